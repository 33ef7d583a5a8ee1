//! Who a packet says that it is from: the address of its IPv4 or IPv6 header, or of the one who asks or
//! answers by ARP.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::frame::{EtherType, Frame};

/// Its offset in a header, which has at least so many bytes.
const IPV4: (usize, usize) = (12, 20);
const IPV6: (usize, usize) = (8, 40);

/// Of addresses of Ethernet and IPv4, which the first six bytes say.
const ARP: (usize, usize) = (14, 28);
const ARP_KIND: [u8; 6] = [0, 1, 8, 0, 6, 4];

/// The address in `frame`, or `None` if it has none that a kernel would read.
pub fn address(frame: Frame<'_>) -> Option<IpAddr> {
    let (ethertype, packet) = frame.untagged();
    match ethertype {
        EtherType::IPV4 => read::<4>(packet, IPV4).map(|bytes| Ipv4Addr::from(bytes).into()),
        EtherType::IPV6 => read::<16>(packet, IPV6).map(|bytes| Ipv6Addr::from(bytes).into()),
        EtherType::ARP if packet.starts_with(&ARP_KIND) => {
            read::<4>(packet, ARP).map(|bytes| Ipv4Addr::from(bytes).into())
        }
        _ => None,
    }
}

fn read<const N: usize>(packet: &[u8], (at, header): (usize, usize)) -> Option<[u8; N]> {
    packet.get(..header)?[at..].first_chunk().copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(ethertype: [u8; 2], packet: &[u8]) -> Option<IpAddr> {
        let bytes = [&[0; 12], &ethertype[..], packet].concat();
        address(Frame::new(&bytes).unwrap())
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
        let arp = [&ARP_KIND[..], &numbered[6..28]].concat();
        let sender = Some(IpAddr::from([14, 15, 16, 17]));
        assert_eq!(found([8, 6], &arp), sender);
    }

    #[test]
    fn what_is_cut_off_or_something_else_has_none() {
        for (ethertype, header) in [([8, 0], 20), ([0x86, 0xdd], 40), ([8, 6], 28)] {
            let packet = [&ARP_KIND[..], &[0; 40]].concat();
            assert!(found(ethertype, &packet[..header]).is_some());
            assert_eq!(found(ethertype, &packet[..header - 1]), None);
        }
        assert_eq!(found([8, 6], &[0; 40]), None);
        assert_eq!(found([0x88, 0xcc], &[0; 40]), None);
    }
}
