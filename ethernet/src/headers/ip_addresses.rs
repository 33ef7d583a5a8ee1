//! IP addresses in a frame: the addresses that the sender claims, and the destination.
//!
//! A sender claims an address in the IPv4 or IPv6 header, in an ARP request or reply, and in a neighbour
//! advertisement (RFC 4861). A complete header is read regardless of its other fields: kernels
//! accept different ones.

use std::net::IpAddr;

use smoltcp::wire::{
    ArpPacket, EthernetProtocol, IPV4_HEADER_LEN, IPV6_HEADER_LEN, Icmpv6Message, Icmpv6Packet,
    IpProtocol, Ipv4Packet, Ipv6Packet,
};

use crate::headers::frame::Frame;
use crate::headers::ipv6;

/// Bytes of an ARP packet with Ethernet and IPv4 addresses.
const ARP_LEN: usize = 28;

/// Bytes of a neighbour advertisement without options.
const ADVERTISEMENT_LEN: usize = 24;

/// The addresses that `frame` claims for its sender.
pub(crate) fn claimed(frame: Frame<'_>) -> impl Iterator<Item = IpAddr> {
    let (ethertype, packet) = frame.untagged();
    let addresses = match ethertype {
        EthernetProtocol::Ipv4 => [ipv4(packet).map(|ip| ip.src_addr().into()), None],
        EthernetProtocol::Ipv6 => {
            let source = ipv6(packet).map(|ip| ip.src_addr().into());
            [source, advertised(packet)]
        }
        EthernetProtocol::Arp => [arp_sender(packet), None],
        _ => [None; 2],
    };
    addresses.into_iter().flatten()
}

/// Destination address of the packet in `frame`.
pub(crate) fn destination(frame: Frame<'_>) -> Option<IpAddr> {
    let (ethertype, packet) = frame.untagged();
    match ethertype {
        EthernetProtocol::Ipv4 => Some(ipv4(packet)?.dst_addr().into()),
        EthernetProtocol::Ipv6 => Some(ipv6(packet)?.dst_addr().into()),
        _ => None,
    }
}

fn ipv4(packet: &[u8]) -> Option<Ipv4Packet<&[u8]>> {
    packet.get(..IPV4_HEADER_LEN).map(Ipv4Packet::new_unchecked)
}

/// The first header of an IPv6 packet.
pub(super) fn ipv6(packet: &[u8]) -> Option<Ipv6Packet<&[u8]>> {
    packet.get(..IPV6_HEADER_LEN).map(Ipv6Packet::new_unchecked)
}

/// Sender address of an ARP packet. Kernels accept more than one hardware type for Ethernet.
fn arp_sender(packet: &[u8]) -> Option<IpAddr> {
    let arp = ArpPacket::new_unchecked(packet.get(..ARP_LEN)?);
    let is_ipv4 = arp.protocol_type() == EthernetProtocol::Ipv4
        && (arp.hardware_len(), arp.protocol_len()) == (6, 4);
    let address = is_ipv4.then(|| arp.source_protocol_addr().first_chunk::<4>());
    Some(IpAddr::from(*address??))
}

/// Target address of a neighbour advertisement.
fn advertised(packet: &[u8]) -> Option<IpAddr> {
    let (IpProtocol::Icmpv6, message) = ipv6::upper_layer(packet)? else {
        return None;
    };
    let message = Icmpv6Packet::new_unchecked(message.get(..ADVERTISEMENT_LEN)?);
    let is_advertisement = message.msg_type() == Icmpv6Message::NeighborAdvert;
    is_advertisement.then(|| message.target_addr().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Types and address lengths of IPv4 and Ethernet.
    const ARP_TYPES: [u8; 4] = [8, 0, 6, 4];

    fn all(ethertype: [u8; 2], packet: &[u8]) -> Vec<IpAddr> {
        let bytes = [&[0; 12], &ethertype[..], packet].concat();
        claimed(Frame::new(&bytes).unwrap()).collect()
    }

    fn found(ethertype: [u8; 2], packet: &[u8]) -> Option<IpAddr> {
        all(ethertype, packet).into_iter().next()
    }

    #[test]
    fn source_addresses_are_read_from_ip_and_arp_headers() {
        let numbered: Vec<u8> = (0..40).collect();
        let ipv4 = Some(IpAddr::from([12, 13, 14, 15]));
        assert_eq!(found([8, 0], &numbered), ipv4);
        let ipv6: [u8; 16] = std::array::from_fn(|n| n as u8 + 8);
        assert_eq!(found([0x86, 0xdd], &numbered), Some(ipv6.into()));
        let tagged = [&[0, 0, 0x81, 0, 0, 7, 8, 0][..], &numbered[..]].concat();
        assert_eq!(found([0x88, 0xa8], &tagged), ipv4);
        assert_eq!(found([0x81, 0], &[0, 0, 8]), None);
        // Hardware types Ethernet and IEEE 802.
        for kind in [1, 6] {
            let arp = [&[0, kind], &ARP_TYPES[..], &numbered[6..28]].concat();
            let sender = Some(IpAddr::from([14, 15, 16, 17]));
            assert_eq!(found([8, 6], &arp), sender);
        }
    }

    #[test]
    fn destination_addresses_are_read_from_ip_headers() {
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
    fn a_neighbour_advertisement_claims_its_target() {
        let owned: [u8; 16] = std::array::from_fn(|n| n as u8 + 100);
        let packet = |headers: &[u8], kind: u8| {
            let next = if headers.is_empty() {
                u8::from(IpProtocol::Icmpv6)
            } else {
                60
            };
            let mut packet = vec![0x60, 0, 0, 0, 0, 0, next, 255];
            packet.extend([7; 32]);
            packet.extend(headers);
            packet.extend([kind, 0, 0, 0, 0x20, 0, 0, 0]);
            packet.extend(owned);
            packet
        };
        let sender = IpAddr::from([7; 16]);
        for headers in [
            &[][..],
            &[u8::from(IpProtocol::Icmpv6), 0, 1, 4, 0, 0, 0, 0],
        ] {
            let advertisement = packet(headers, 136);
            assert_eq!(all([0x86, 0xdd], &advertisement), [sender, owned.into()]);
            let cut = &advertisement[..advertisement.len() - 1];
            assert_eq!(all([0x86, 0xdd], cut), [sender]);
            let solicitation = packet(headers, 135);
            assert_eq!(all([0x86, 0xdd], &solicitation), [sender]);
        }
    }

    #[test]
    fn truncated_and_other_packets_claim_none() {
        for (ethertype, header) in [([8, 0], 20), ([0x86, 0xdd], 40), ([8, 6], 28)] {
            let packet = [&[0, 1], &ARP_TYPES[..], &[0; 40]].concat();
            assert!(found(ethertype, &packet[..header]).is_some());
            assert_eq!(found(ethertype, &packet[..header - 1]), None);
        }
        assert_eq!(found([8, 6], &[0; 40]), None);
        assert_eq!(found([0x88, 0xcc], &[0; 40]), None);
    }
}
