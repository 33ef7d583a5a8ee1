use std::net::IpAddr;

use proptest::prelude::*;
use smoltcp::wire::IpAddress;

use super::*;
use crate::offload::Capabilities;
use crate::offload::gso_packet::GsoPacket;

const FIN: u8 = 1;
const PSH: u8 = 1 << 3;
const CWR: u8 = 1 << 7;
const UDP_CHECKSUM: usize = 6;

/// The frames that a packet becomes.
pub(crate) fn pieces(packet: &[u8]) -> Vec<Vec<u8>> {
    let (offload, frame) = Offload::split(packet).expect("a good packet");
    let mut segmenter = Segmenter::default();
    let mut segments = segmenter.frames(&offload, frame);
    let mut all = Vec::new();
    while let Some(frame) = segments.next() {
        assert_eq!(frame.len(), frame.0.concat().len());
        all.push(frame.0.concat());
    }
    all
}

/// Content of a segment.
#[derive(Debug, PartialEq)]
struct Seen {
    payload: Vec<u8>,
    sequence: u32,
    flags: u8,
    id: u16,
}

/// The checksum as RFC 1071 defines it, word by word; 0 over data that contains its checksum.
fn rfc_1071(data: &[u8]) -> u16 {
    let mut sum = 0u16;
    for word in data.chunks(2) {
        let word = u16::from_be_bytes([word[0], *word.get(1).unwrap_or(&0)]);
        let (next, carry) = sum.overflowing_add(word);
        sum = next + u16::from(carry);
    }
    !sum
}

#[test]
fn checksums_match_the_example_of_rfc_1071() {
    let data = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
    assert_eq!(rfc_1071(&data), !0xddf2);
    assert_eq!(!checksum::data(&data), !0xddf2);
}

/// Reads a segment with another implementation, which checks all lengths and checksums.
fn see(of: &GsoPacket, frame: &[u8]) -> Seen {
    let ip = &frame[14 + 4 * of.tags..];
    let (addresses, id, above) = match of.ip_version {
        IpVersion::Ipv4 => {
            let packet = Ipv4Packet::new_checked(ip).unwrap();
            assert_eq!(rfc_1071(&ip[..packet.header_len().into()]), 0);
            assert_eq!(usize::from(packet.total_len()), ip.len());
            assert_eq!((packet.ecn(), packet.dont_frag()), (2, true));
            let addresses = (packet.src_addr().into(), packet.dst_addr().into());
            (addresses, packet.ident(), &ip[packet.header_len().into()..])
        }
        IpVersion::Ipv6 => {
            let packet = Ipv6Packet::new_checked(ip).unwrap();
            assert_eq!(packet.total_len(), ip.len());
            assert_eq!(packet.traffic_class(), 2);
            let addresses = (packet.src_addr().into(), packet.dst_addr().into());
            (addresses, of.id, &ip[40 + 8 * of.options..])
        }
    };
    let (source, destination): (IpAddress, IpAddress) = addresses;
    let octets = |address: IpAddress| match IpAddr::from(address) {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    };
    let len = (above.len() as u32).to_be_bytes();
    let pseudo = [octets(source), octets(destination), len.into()].concat();
    let summed = [&pseudo[..], &[0, 0, 0, of.protocol()], above].concat();
    assert_eq!(rfc_1071(&summed), 0);
    match of.transport {
        Transport::Tcp => {
            let segment = TcpPacket::new_checked(above).unwrap();
            assert!(segment.verify_checksum(&source, &destination));
            assert_eq!((segment.src_port(), segment.dst_port()), of.ports.into());
            Seen {
                payload: segment.payload().into(),
                sequence: segment.seq_number().0.cast_unsigned(),
                flags: above[13],
                id,
            }
        }
        Transport::Udp => {
            let datagram = UdpPacket::new_checked(above).unwrap();
            assert!(datagram.verify_checksum(&source, &destination));
            assert_ne!(datagram.checksum(), 0, "0 means that there is no checksum");
            assert_eq!(usize::from(datagram.len()), above.len());
            assert_eq!((datagram.src_port(), datagram.dst_port()), of.ports.into());
            Seen {
                payload: datagram.payload().into(),
                sequence: of.sequence,
                flags: 0,
                id,
            }
        }
    }
}

/// The expected segments.
fn expected(of: &GsoPacket) -> Vec<Seen> {
    let size = usize::from(of.size);
    let count = of.payload.len().div_ceil(size).max(1);
    let piece = |n: usize| {
        let payload = of.payload.chunks(size).nth(n).unwrap_or_default();
        let mut flags = of.flags;
        if n + 1 < count {
            flags &= !(FIN | PSH);
        }
        if n > 0 {
            flags &= !CWR;
        }
        let is_tcp = of.transport == Transport::Tcp;
        let moved = if is_tcp { n * size } else { 0 };
        let is_ipv4 = of.ip_version == IpVersion::Ipv4;
        Seen {
            payload: payload.into(),
            sequence: of.sequence.wrapping_add(moved as u32),
            flags: if is_tcp { flags } else { 0 },
            id: of.id.wrapping_add(if is_ipv4 { n as u16 } else { 0 }),
        }
    };
    (0..count).map(piece).collect()
}

fn gso_packets() -> impl Strategy<Value = GsoPacket> {
    let ip_version = prop_oneof![Just(IpVersion::Ipv4), Just(IpVersion::Ipv6)];
    let transport = prop_oneof![Just(Transport::Tcp), Just(Transport::Udp)];
    let headers = (0..3usize, ip_version, 0..8usize, transport, 0..11usize);
    let numbers = (
        any::<u8>(),
        any::<u32>(),
        any::<u16>(),
        any::<[[u8; 16]; 2]>(),
    );
    let payload = prop::collection::vec(any::<u8>(), 0..4000);
    (headers, numbers, payload, 60..3000u16).prop_map(|(headers, numbers, payload, size)| {
        let (tags, ip_version, options, transport, tcp_options) = headers;
        let (flags, sequence, id, addresses) = numbers;
        GsoPacket {
            tags,
            ip_version,
            options,
            transport,
            tcp_options,
            flags,
            sequence,
            id,
            addresses,
            payload,
            size,
            ..GsoPacket::default()
        }
    })
}

proptest! {
    #[test]
    fn segments_carry_the_payload_and_fields_of_the_gso_packet(of in gso_packets()) {
        let packet = of.to_bytes();
        let pieces = pieces(&packet);
        let seen: Vec<Seen> = pieces.iter().map(|piece| see(&of, piece)).collect();
        prop_assert_eq!(&seen, &expected(&of));
        let whole: Vec<u8> = seen.into_iter().flat_map(|seen| seen.payload).collect();
        prop_assert_eq!(whole, of.payload);
        let (offload, frame) = Offload::split(&packet).unwrap();
        let longest = pieces.iter().map(Vec::len).max().unwrap();
        prop_assert_eq!(offload.longest(frame.len()), longest);
    }

    #[test]
    fn parts_stand_for_the_frames_of_the_gso_packet(of in gso_packets(), most in 1..20usize) {
        let packet = of.to_bytes();
        let (offload, frame) = Offload::split(&packet).unwrap();
        let whole = pieces(&packet);
        let lens: Vec<usize> = whole.iter().map(Vec::len).collect();
        let count = offload.frames(frame.len());
        let stated = (0..count).map(|n| offload.frame_len(frame.len(), n));
        prop_assert_eq!(stated.collect::<Vec<_>>(), lens);
        let begins = (0..count).step_by(most);
        let parts = begins.map(|begin| offload.part(&packet, begin..count.min(begin + most)));
        let cut: Vec<_> = parts.flat_map(|part| pieces(&part)).collect();
        prop_assert_eq!(cut, whole);
    }

    #[test]
    fn checksums_are_completed(of in gso_packets()) {
        // Without a GSO type the packet is one frame.
        let mut packet = of.to_bytes();
        packet[1] = 0;
        let frames = pieces(&packet);
        prop_assert_eq!(frames.len(), 1);
        let seen = see(&of, &frames[0]);
        prop_assert_eq!(seen.payload, of.payload);
    }

    #[test]
    fn forged_packets_are_refused_or_segmented(mut packet: Vec<u8>, of in gso_packets(), edits: Vec<(u16, u8)>) {
        for bytes in [&mut packet, &mut of.to_bytes()] {
            for (at, byte) in &edits {
                let len = bytes.len();
                if let Some(place) = bytes.get_mut(usize::from(*at) % len.clamp(1, 100)) {
                    *place = *byte;
                }
            }
            if let Some((offload, frame)) = Offload::split(bytes) {
                let frames = pieces(bytes);
                let longest = offload.longest(frame.len());
                prop_assert!(frames.iter().all(|frame| frame.len() <= longest));
                prop_assert!(frames.len() <= 745, "{} frames", frames.len());
                let grown: usize = frames.iter().map(Vec::len).sum();
                prop_assert!(grown <= frame.len() + frames.len() * MAX_HEADERS);
            }
        }
    }
}

#[test]
fn packets_without_offloads_stay_unchanged() {
    let mut packet = vec![0; Offload::LEN];
    packet.extend([7; 60]);
    assert_eq!(pieces(&packet), [vec![7; 60]]);
    assert_eq!(pieces(&packet[..Offload::LEN]), [vec![0; 0]]);
}

#[test]
fn a_udp_checksum_of_zero_is_sent_as_0xffff() {
    // With its own checksum as the payload, the datagram sums up to 0xffff.
    let mut datagram = GsoPacket {
        transport: Transport::Udp,
        payload: vec![0; 2],
        ..GsoPacket::default()
    };
    let frame = pieces(&datagram.to_bytes()).remove(0);
    let checksum = [frame[34 + UDP_CHECKSUM], frame[34 + UDP_CHECKSUM + 1]];
    datagram.payload = checksum.into();
    let frame = pieces(&datagram.to_bytes()).remove(0);
    assert_eq!(&frame[34 + UDP_CHECKSUM..][..2], [0xff, 0xff]);
}

#[test]
fn an_egress_port_without_offloads_does_not_accept_a_gso_packet() {
    let packet = GsoPacket::default().to_bytes();
    let (offload, _) = Offload::split(&packet).unwrap();
    assert!(!Capabilities::empty().contains(offload.needs()));
    assert!(Capabilities::all().contains(offload.needs()));
}
