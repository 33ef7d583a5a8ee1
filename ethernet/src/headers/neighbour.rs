//! Address queries: ARP requests and neighbour solicitations, and replies in the owner's name.
//!
//! The directory knows the addresses of every member, so the switch answers a query about a member
//! itself: an ARP request (RFC 826), an ARP probe (RFC 5227), a neighbour solicitation (RFC 4861) or
//! duplicate address detection (RFC 4862).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    ArpOperation, ArpPacket, ArpRepr, EthernetAddress, EthernetFrame, EthernetProtocol,
    EthernetRepr, Icmpv6Message, Icmpv6Packet, Icmpv6Repr, IpProtocol, Ipv6Packet, Ipv6Repr,
    NdiscNeighborFlags, NdiscRepr,
};

use crate::headers::frame::{Frame, HEADER_LEN};
use crate::headers::mac::Mac;

/// Hop limit of neighbour discovery. A router would have decreased it.
const HOP_LIMIT: u8 = 255;

const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
const ALL_NODES_MAC: Mac = Mac([0x33, 0x33, 0, 0, 0, 1]);

/// A query for the owner of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AddressQuery {
    requester: Mac,
    query: Query,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Query {
    Arp { from: Ipv4Addr, target: Ipv4Addr },
    Solicitation { from: Ipv6Addr, target: Ipv6Addr },
}

impl AddressQuery {
    /// The query in `frame`; `None` for other or malformed frames.
    pub(crate) fn read(frame: Frame<'_>) -> Option<Self> {
        let query = match frame.ethertype() {
            EthernetProtocol::Arp => read_arp(frame.payload())?,
            EthernetProtocol::Ipv6 => read_solicitation(frame.payload())?,
            _ => return None,
        };
        let requester = frame.source();
        Some(AddressQuery { requester, query })
    }

    /// The queried address.
    pub(crate) fn target(&self) -> IpAddr {
        match self.query {
            Query::Arp { target, .. } => target.into(),
            Query::Solicitation { target, .. } => target.into(),
        }
    }

    /// Whether the requester has no address yet and means to take the queried one.
    pub(crate) fn is_probe(&self) -> bool {
        match self.query {
            Query::Arp { from, .. } => from.is_unspecified(),
            Query::Solicitation { from, .. } => from.is_unspecified(),
        }
    }

    /// The frame that tells the requester that `owner` has the address.
    pub(crate) fn reply(&self, owner: Mac) -> Vec<u8> {
        match self.query {
            Query::Arp { from, target } => arp_reply((self.requester, from), (owner, target)),
            // Duplicate address detection. The requester has no address, so the reply goes to all nodes.
            Query::Solicitation { from, target } if from.is_unspecified() => {
                advertisement((ALL_NODES_MAC, ALL_NODES), (owner, target), false)
            }
            Query::Solicitation { from, target } => {
                advertisement((self.requester, from), (owner, target), true)
            }
        }
    }
}

fn read_arp(payload: &[u8]) -> Option<Query> {
    match ArpRepr::parse(&ArpPacket::new_checked(payload).ok()?).ok()? {
        ArpRepr::EthernetIpv4 {
            operation: ArpOperation::Request,
            source_protocol_addr: from,
            target_protocol_addr: target,
            ..
        } => Some(Query::Arp { from, target }),
        _ => None,
    }
}

fn read_solicitation(payload: &[u8]) -> Option<Query> {
    let packet = Ipv6Packet::new_checked(payload).ok()?;
    let ip = Ipv6Repr::parse(&packet).ok()?;
    if ip.next_header != IpProtocol::Icmpv6 || ip.hop_limit != HOP_LIMIT {
        return None;
    }
    let message = Icmpv6Packet::new_checked(packet.payload()).ok()?;
    if message.msg_type() != Icmpv6Message::NeighborSolicit {
        return None;
    }
    let checked = ChecksumCapabilities::default();
    match Icmpv6Repr::parse(&ip.src_addr, &ip.dst_addr, &message, &checked).ok()? {
        Icmpv6Repr::Ndisc(NdiscRepr::NeighborSolicit { target_addr, .. }) => {
            Some(Query::Solicitation {
                from: ip.src_addr,
                target: target_addr,
            })
        }
        _ => None,
    }
}

/// A gratuitous ARP reply to one receiver: `owner` has the address. A kernel that has learned another
/// owner within the last second accepts no other reply.
pub(crate) fn arp_correction(receiver: Mac, owner: (Mac, Ipv4Addr)) -> Vec<u8> {
    let mut frame = arp_reply(owner, owner);
    frame[..receiver.0.len()].copy_from_slice(&receiver.0);
    frame
}

fn arp_reply(requester: (Mac, Ipv4Addr), owner: (Mac, Ipv4Addr)) -> Vec<u8> {
    let reply = ArpRepr::EthernetIpv4 {
        operation: ArpOperation::Reply,
        source_hardware_addr: wire(owner.0),
        source_protocol_addr: owner.1,
        target_hardware_addr: wire(requester.0),
        target_protocol_addr: requester.1,
    };
    let mut frame = addressed(
        owner.0,
        requester.0,
        EthernetProtocol::Arp,
        reply.buffer_len(),
    );
    reply.emit(&mut ArpPacket::new_unchecked(&mut frame[HEADER_LEN..]));
    frame
}

fn advertisement(to: (Mac, Ipv6Addr), owner: (Mac, Ipv6Addr), solicited: bool) -> Vec<u8> {
    let mut flags = NdiscNeighborFlags::OVERRIDE;
    flags.set(NdiscNeighborFlags::SOLICITED, solicited);
    let message = Icmpv6Repr::Ndisc(NdiscRepr::NeighborAdvert {
        flags,
        target_addr: owner.1,
        lladdr: Some(wire(owner.0).into()),
    });
    let ip = Ipv6Repr {
        src_addr: owner.1,
        dst_addr: to.1,
        next_header: IpProtocol::Icmpv6,
        payload_len: message.buffer_len(),
        hop_limit: HOP_LIMIT,
    };
    let len = ip.buffer_len() + message.buffer_len();
    let mut frame = addressed(owner.0, to.0, EthernetProtocol::Ipv6, len);
    let mut packet = Ipv6Packet::new_unchecked(&mut frame[HEADER_LEN..]);
    ip.emit(&mut packet);
    message.emit(
        &ip.src_addr,
        &ip.dst_addr,
        &mut Icmpv6Packet::new_unchecked(packet.payload_mut()),
        &ChecksumCapabilities::default(),
    );
    frame
}

/// A frame with its header written and `len` bytes of payload to be filled in.
fn addressed(source: Mac, destination: Mac, ethertype: EthernetProtocol, len: usize) -> Vec<u8> {
    let mut frame = vec![0; HEADER_LEN + len];
    EthernetRepr {
        src_addr: wire(source),
        dst_addr: wire(destination),
        ethertype,
    }
    .emit(&mut EthernetFrame::new_unchecked(&mut frame));
    frame
}

fn wire(mac: Mac) -> EthernetAddress {
    EthernetAddress(mac.0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const OWNER: Mac = Mac([0x06, 0, 1, 0, 0, 0]);

    /// 10.64.0.2 at 06:00:01:01:00:00 asks for 10.64.0.1.
    const ARP_REQUEST: &[u8] = b"\xff\xff\xff\xff\xff\xff\x06\x00\x01\x01\x00\x00\x08\x06\
        \x00\x01\x08\x00\x06\x04\x00\x01\
        \x06\x00\x01\x01\x00\x00\x0a\x40\x00\x02\
        \x00\x00\x00\x00\x00\x00\x0a\x40\x00\x01";

    const ARP_REPLY: &[u8] = b"\x06\x00\x01\x01\x00\x00\x06\x00\x01\x00\x00\x00\x08\x06\
        \x00\x01\x08\x00\x06\x04\x00\x02\
        \x06\x00\x01\x00\x00\x00\x0a\x40\x00\x01\
        \x06\x00\x01\x01\x00\x00\x0a\x40\x00\x02";

    /// fd00::2 asks ff02::1:ff00:1 for fd00::1, with its own link-layer address.
    const SOLICITATION: &[u8] = b"\x33\x33\xff\x00\x00\x01\x06\x00\x01\x01\x00\x00\x86\xdd\
        \x60\x00\x00\x00\x00\x20\x3a\xff\
        \xfd\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\
        \xff\x02\x00\x00\x00\x00\x00\x00\x00\x00\x00\x01\xff\x00\x00\x01\
        \x87\x00\x78\x98\x00\x00\x00\x00\
        \xfd\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x01\
        \x01\x01\x06\x00\x01\x01\x00\x00";

    const ADVERTISEMENT: &[u8] = b"\x06\x00\x01\x01\x00\x00\x06\x00\x01\x00\x00\x00\x86\xdd\
        \x60\x00\x00\x00\x00\x20\x3a\xff\
        \xfd\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x01\
        \xfd\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\
        \x88\x00\x17\x9d\x60\x00\x00\x00\
        \xfd\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x01\
        \x02\x01\x06\x00\x01\x00\x00\x00";

    fn query(bytes: &[u8]) -> Option<AddressQuery> {
        AddressQuery::read(Frame::new(bytes)?)
    }

    /// The bytes, changed at one place.
    fn with(bytes: &[u8], at: usize, value: u8) -> Vec<u8> {
        let mut bytes = bytes.to_vec();
        bytes[at] = value;
        bytes
    }

    /// The RFC 1071 checksum of an IPv6 packet's pseudo header and message, independent of smoltcp:
    /// 0 if the checksum in the message is correct.
    fn checksum(packet: &[u8]) -> u16 {
        let mut summed = packet[8..40].to_vec();
        summed.extend([0, 0, packet[4], packet[5], 0, 0, 0, packet[6]]);
        summed.extend(&packet[40..]);
        let sum: u32 = summed
            .chunks(2)
            .map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])))
            .sum();
        !((sum & 0xffff) + (sum >> 16)) as u16
    }

    #[test]
    fn the_samples_are_valid() {
        assert_eq!(checksum(&SOLICITATION[HEADER_LEN..]), 0);
        assert_eq!(checksum(&ADVERTISEMENT[HEADER_LEN..]), 0);
    }

    #[test]
    fn an_arp_request_is_answered() {
        let query = query(ARP_REQUEST).unwrap();
        assert_eq!(query.target(), IpAddr::from([10, 64, 0, 1]));
        assert_eq!(query.reply(OWNER), ARP_REPLY);
    }

    #[test]
    fn an_arp_probe_is_answered_without_a_requester_address() {
        let mut probe = ARP_REQUEST.to_vec();
        probe[28..32].fill(0);
        let mut reply = ARP_REPLY.to_vec();
        reply[38..42].fill(0);
        assert_eq!(query(&probe).unwrap().reply(OWNER), reply);
    }

    #[test]
    fn a_solicitation_is_answered() {
        let query = query(SOLICITATION).unwrap();
        assert_eq!(query.target(), "fd00::1".parse::<IpAddr>().unwrap());
        assert_eq!(query.reply(OWNER), ADVERTISEMENT);
    }

    #[test]
    fn duplicate_address_detection_is_answered_to_all_nodes() {
        // From ::, and without the option: RFC 4861 forbids it there.
        let mut bytes = SOLICITATION[..SOLICITATION.len() - 8].to_vec();
        bytes[19] = 24;
        bytes[22..38].fill(0);
        bytes[56..58].fill(0);
        let sum = checksum(&bytes[HEADER_LEN..]).to_be_bytes();
        bytes[56..58].copy_from_slice(&sum);
        let reply = query(&bytes).unwrap().reply(OWNER);
        assert_eq!(reply[..6], ALL_NODES_MAC.0);
        assert_eq!(reply[38..54], ALL_NODES.octets());
        assert_eq!(reply[58], 0x20, "override, and not solicited");
        assert_eq!(reply[62..], ADVERTISEMENT[62..]);
        assert_eq!(checksum(&reply[HEADER_LEN..]), 0);
    }

    #[test]
    fn other_messages_are_no_queries() {
        for (sample, field, at, value) in [
            (ARP_REQUEST, "operation", 21, 2),
            (SOLICITATION, "hop limit", 21, 64),
            (SOLICITATION, "checksum", 56, 0),
            (SOLICITATION, "message type", 54, 136),
            (SOLICITATION, "ethertype", 12, 8),
        ] {
            assert_eq!(query(&with(sample, at, value)), None, "{field}");
            for len in 0..sample.len() {
                assert_eq!(query(&sample[..len]), None, "cut at {len}");
            }
        }
    }

    proptest! {
        #[test]
        fn no_bytes_cause_a_panic(
            ipv6: bool,
            payload in proptest::collection::vec(any::<u8>(), 0..200),
        ) {
            let sample = if ipv6 { SOLICITATION } else { ARP_REQUEST };
            let mut bytes = sample[..HEADER_LEN].to_vec();
            bytes.extend(payload);
            if let Some(query) = query(&bytes) {
                query.reply(OWNER);
            }
        }

        #[test]
        fn no_change_of_a_query_causes_a_panic(
            ipv6: bool,
            changes in proptest::collection::vec((14_usize..80, any::<u8>()), 0..4),
        ) {
            let mut bytes = if ipv6 { SOLICITATION } else { ARP_REQUEST }.to_vec();
            for (at, value) in changes {
                if let Some(byte) = bytes.get_mut(at) {
                    *byte = value;
                }
            }
            if let Some(query) = query(&bytes) {
                query.reply(OWNER);
            }
        }
    }
}
