//! The address that a packet is for, and who it says that it is from: the address of its IPv4 or IPv6 header, or of the one who asks or
//! answers by ARP, and whose address it says that it has by neighbour discovery (RFC 4861).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::headers::frame::{EtherType, Frame};
use crate::headers::ipv6::{self, ICMPV6};

/// Its offset in a header, which has at least so many bytes.
const IPV4: (usize, usize) = (12, 20);
const IPV6: (usize, usize) = (8, 40);

/// The same of the address that it is for.
const TO_IPV4: (usize, usize) = (16, 20);
const TO_IPV6: (usize, usize) = (24, 40);

/// Of addresses of IPv4 and of six bytes. Kernels take more than one kind of those for Ethernet's.
const ARP: (usize, usize) = (14, 28);
const ARP_KIND: [u8; 4] = [8, 0, 6, 4];

/// Of the address that a message about a neighbour is about.
const NEIGHBOUR: (usize, usize) = (8, 24);
const NEIGHBOUR_ADVERTISEMENT: u8 = 136;

/// The addresses that `frame` says are its sender's, as far as a kernel would read them.
pub fn addresses(frame: Frame<'_>) -> impl Iterator<Item = IpAddr> {
    let (ethertype, packet) = frame.untagged();
    let addresses = match ethertype {
        EtherType::IPV4 => [ipv4(packet, IPV4), None],
        EtherType::IPV6 => [ipv6(packet, IPV6), advertised(packet)],
        EtherType::ARP if packet.get(2..6) == Some(&ARP_KIND) => [ipv4(packet, ARP), None],
        _ => [None; 2],
    };
    addresses.into_iter().flatten()
}

/// The address that the packet in `frame` is for.
pub fn destination(frame: Frame<'_>) -> Option<IpAddr> {
    let (ethertype, packet) = frame.untagged();
    match ethertype {
        EtherType::IPV4 => ipv4(packet, TO_IPV4),
        EtherType::IPV6 => ipv6(packet, TO_IPV6),
        _ => None,
    }
}

/// The address of which a packet says that its sender has it, whatever it has besides.
fn advertised(packet: &[u8]) -> Option<IpAddr> {
    match ipv6::payload(packet)? {
        (ICMPV6, message @ [NEIGHBOUR_ADVERTISEMENT, ..]) => ipv6(message, NEIGHBOUR),
        _ => None,
    }
}

fn ipv4(bytes: &[u8], at: (usize, usize)) -> Option<IpAddr> {
    read::<4>(bytes, at).map(|bytes| Ipv4Addr::from(bytes).into())
}

fn ipv6(bytes: &[u8], at: (usize, usize)) -> Option<IpAddr> {
    read::<16>(bytes, at).map(|bytes| Ipv6Addr::from(bytes).into())
}

fn read<const N: usize>(bytes: &[u8], (at, header): (usize, usize)) -> Option<[u8; N]> {
    bytes.get(..header)?[at..].first_chunk().copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(ethertype: [u8; 2], packet: &[u8]) -> Vec<IpAddr> {
        let bytes = [&[0; 12], &ethertype[..], packet].concat();
        addresses(Frame::new(&bytes).unwrap()).collect()
    }

    fn found(ethertype: [u8; 2], packet: &[u8]) -> Option<IpAddr> {
        all(ethertype, packet).into_iter().next()
    }

    #[test]
    fn addresses_are_found_where_they_are() {
        let numbered: Vec<u8> = (0..40).collect();
        let ipv4 = Some(IpAddr::from([12, 13, 14, 15]));
        assert_eq!(found([8, 0], &numbered), ipv4);
        let ipv6: [u8; 16] = std::array::from_fn(|n| n as u8 + 8);
        assert_eq!(found([0x86, 0xdd], &numbered), Some(ipv6.into()));
        let tagged = [&[0, 0, 0x81, 0, 0, 7, 8, 0][..], &numbered[..]].concat();
        assert_eq!(found([0x88, 0xa8], &tagged), ipv4);
        assert_eq!(found([0x81, 0], &[0, 0, 8]), None);
        // Of Ethernet and of IEEE 802.
        for kind in [1, 6] {
            let arp = [&[0, kind], &ARP_KIND[..], &numbered[6..28]].concat();
            let sender = Some(IpAddr::from([14, 15, 16, 17]));
            assert_eq!(found([8, 6], &arp), sender);
        }
    }

    #[test]
    fn destinations_are_found_where_they_are() {
        let to = |ethertype: [u8; 2]| {
            let numbered: Vec<u8> = (0..40).collect();
            let bytes = [&[0; 12], &ethertype[..], &numbered].concat();
            destination(Frame::new(&bytes).unwrap())
        };
        assert_eq!(to([8, 0]), Some(IpAddr::from([16, 17, 18, 19])));
        let ipv6: [u8; 16] = std::array::from_fn(|n| n as u8 + 24);
        assert_eq!(to([0x86, 0xdd]), Some(ipv6.into()));
        assert_eq!(to([8, 6]), None);
    }

    #[test]
    fn what_is_advertised_is_a_second_address() {
        let owned: [u8; 16] = std::array::from_fn(|n| n as u8 + 100);
        let packet = |headers: &[u8], kind: u8| {
            let next = if headers.is_empty() { ICMPV6 } else { 60 };
            let mut packet = vec![0x60, 0, 0, 0, 0, 0, next, 255];
            packet.extend([7; 32]);
            packet.extend(headers);
            packet.extend([kind, 0, 0, 0, 0x20, 0, 0, 0]);
            packet.extend(owned);
            packet
        };
        let sender = IpAddr::from([7; 16]);
        for headers in [&[][..], &[ICMPV6, 0, 1, 4, 0, 0, 0, 0]] {
            let advertisement = packet(headers, NEIGHBOUR_ADVERTISEMENT);
            assert_eq!(all([0x86, 0xdd], &advertisement), [sender, owned.into()]);
            let cut = &advertisement[..advertisement.len() - 1];
            assert_eq!(all([0x86, 0xdd], cut), [sender]);
            let solicitation = packet(headers, 135);
            assert_eq!(all([0x86, 0xdd], &solicitation), [sender]);
        }
    }

    #[test]
    fn what_is_cut_off_or_something_else_has_none() {
        for (ethertype, header) in [([8, 0], 20), ([0x86, 0xdd], 40), ([8, 6], 28)] {
            let packet = [&[0, 1], &ARP_KIND[..], &[0; 40]].concat();
            assert!(found(ethertype, &packet[..header]).is_some());
            assert_eq!(found(ethertype, &packet[..header - 1]), None);
        }
        assert_eq!(found([8, 6], &[0; 40]), None);
        assert_eq!(found([0x88, 0xcc], &[0; 40]), None);
    }
}
