use proptest::prelude::*;

use super::*;
use crate::offload::gso_packet::GsoPacket;
use crate::offload::segmentation::tests::pieces;

/// Offsets in the packets that [`nth`] makes with IPv4.
const IP: usize = Offload::LEN + 14;
const UDP: usize = IP + 20;

/// The `n`th datagram of a flow, with this payload and without a computed checksum, as a kernel sends
/// it.
fn nth(flow: &GsoPacket, n: usize, payload: &[u8]) -> Vec<u8> {
    let gso_packet = GsoPacket {
        transport: Transport::Udp,
        id: flow.id.wrapping_add(n as u16),
        payload: payload.to_vec(),
        ..flow.clone()
    };
    let mut packet = gso_packet.to_bytes();
    // One datagram, so no GSO.
    packet[1..6].fill(0);
    packet
}

/// Reads a packet into the buffer; returns whether the GSO packet has taken it.
fn offer(gro: &mut UdpGro, packet: &[u8]) -> bool {
    gro.space()[..packet.len()].copy_from_slice(packet);
    if gro.is_empty() {
        gro.begin(0, packet.len())
    } else {
        gro.add(packet.len())
    }
}

fn taken(gro: &mut UdpGro) -> Option<(Vec<u8>, usize)> {
    let (parts, count) = gro.take()?;
    let parts: Vec<&[u8]> = parts.iter().map(|part| &**part).collect();
    Some((parts.concat(), count))
}

/// Writes the checksum of the IPv4 header.
fn fill_checksum(packet: &mut [u8]) {
    Ipv4Packet::new_unchecked(&mut packet[IP..UDP]).fill_checksum();
}

proptest! {
    #[test]
    fn a_gso_packet_is_segmented_to_the_datagrams_it_was_made_of(
        is_ipv6: bool,
        tags in 0..3_usize,
        options in 0..3_usize,
        id: u16,
        size in 1..1500_usize,
        count in 1..80_usize,
        last in 1..1500_usize,
    ) {
        let flow = GsoPacket {
            ip_version: if is_ipv6 { IpVersion::Ipv6 } else { IpVersion::Ipv4 },
            tags,
            options,
            id,
            ..GsoPacket::default()
        };
        let (mut gro, mut made_of) = (UdpGro::default(), Vec::new());
        for n in 0..count {
            let len = if n + 1 == count { last.min(size) } else { size };
            let payload: Vec<u8> = (0..len).map(|at| (at * 7 + n) as u8).collect();
            let packet = nth(&flow, n, &payload);
            if !offer(&mut gro, &packet) {
                break;
            }
            made_of.push(packet);
        }
        let expected = count.min(MAX_DATAGRAMS);
        // As many as fit into one packet of IP.
        prop_assert!(made_of.len() == expected || (made_of.len() + 1) * (size + 8) > 65_000);
        let (packet, number) = taken(&mut gro).expect("a GSO packet");
        prop_assert_eq!(number, made_of.len());
        let singly: Vec<Vec<u8>> = made_of.iter().flat_map(|packet| pieces(packet)).collect();
        prop_assert_eq!(pieces(&packet), singly);
        prop_assert!(gro.is_empty() && gro.take().is_none());
    }

    #[test]
    fn no_bytes_cause_a_panic(packets: Vec<Vec<u8>>, at: usize, byte: u8) {
        let mut gro = UdpGro::default();
        let mut changed = nth(&GsoPacket::default(), 1, b"payload");
        let at = at % changed.len();
        changed[at] = byte;
        offer(&mut gro, &nth(&GsoPacket::default(), 0, b"payload"));
        for packet in packets.iter().chain([&changed]) {
            if !offer(&mut gro, packet) {
                gro.take();
            }
        }
    }
}

/// Whether the second packet is coalesced with the first.
fn follows(second: &[u8]) -> bool {
    let mut gro = UdpGro::default();
    assert!(offer(&mut gro, &nth(&GsoPacket::default(), 0, &[1; 100])));
    offer(&mut gro, second)
}

#[test]
fn only_the_next_datagram_of_a_flow_is_added() {
    let flow = GsoPacket::default();
    let next = nth(&flow, 1, &[2; 100]);
    assert!(follows(&next));
    assert!(follows(&nth(&flow, 1, &[2; 99])), "a shorter one");
    assert!(!follows(&nth(&flow, 1, &[2; 101])), "a longer one");
    assert!(!follows(&nth(&flow, 1, &[])), "an empty one");
    // MACs, DSCP, TTL, addresses, ports.
    for at in [Offload::LEN, IP + 1, IP + 8, IP + 12, IP + 16, UDP, UDP + 2] {
        let mut other = next.clone();
        other[at] ^= 4;
        fill_checksum(&mut other);
        assert!(!follows(&other), "{at}");
    }
    let mut wrong = next.clone();
    wrong[IP + 10] ^= 1;
    assert!(!follows(&wrong), "with a wrong header checksum");
    let mut complete = next.clone();
    complete[..Offload::LEN].fill(0);
    assert!(!follows(&complete), "with a complete checksum");
    let stream = GsoPacket {
        payload: vec![2; 100],
        ..flow.clone()
    };
    assert!(!follows(&stream.to_bytes()), "a stream");
}

#[test]
fn identifications_of_packets_that_may_be_fragmented_are_kept() {
    let fragmentable = |n: usize| {
        let mut packet = nth(&GsoPacket::default(), n, &[1; 100]);
        packet[IP + 6] = 0;
        fill_checksum(&mut packet);
        packet
    };
    let follows = |first: usize, second: usize| {
        let mut gro = UdpGro::default();
        assert!(offer(&mut gro, &fragmentable(first)));
        offer(&mut gro, &fragmentable(second))
    };
    assert!(follows(3, 4));
    assert!(!follows(3, 5));
    // Packets that are never fragmented are never reassembled, so their identification is ignored.
    let mut gro = UdpGro::default();
    let flow = GsoPacket::default();
    assert!(offer(&mut gro, &nth(&flow, 0, &[1; 100])));
    assert!(offer(&mut gro, &nth(&flow, 0, &[1; 100])));
}

#[test]
fn a_shorter_datagram_is_the_last() {
    let (mut gro, flow) = (UdpGro::default(), GsoPacket::default());
    for (n, len) in [(0, 100), (1, 100), (2, 99)] {
        assert!(offer(&mut gro, &nth(&flow, n, &vec![1; len])));
    }
    assert!(!offer(&mut gro, &nth(&flow, 3, &[1; 99])));
    assert_eq!(taken(&mut gro).map(|(_, count)| count), Some(3));
}
