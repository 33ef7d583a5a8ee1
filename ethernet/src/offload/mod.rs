//! Offloads: what the kernel left for a network card to do, had there been one.
//!
//! Every packet of a TAP starts with the header of virtio-net (section 5.1.6 of the VIRTIO 1.2
//! specification, in its legacy form):
//!
//! ```text
//!  0       1      2            4              6                8                 10
//!  +-------+------+------------+--------------+----------------+-----------------+-------+
//!  | flags | kind | header len | segment size | checksum start | checksum offset | frame |
//!  +-------+------+------------+--------------+----------------+-----------------+-------+
//! ```
//!
//! in the machine's byte order. It says of the frame behind it that its checksum is not computed
//! yet, or that it is a *GSO packet*: a TCP segment of up to 64 KiB or a row of UDP datagrams, to
//! be cut to the MTU on its way. Between two TAPs neither needs doing. Both cross as they are,
//! which is what makes a stream fast. Where the receiver's [`Capabilities`] do not allow for it,
//! [`crate::offload::segmentation`] does what was left undone.
//!
//! A node can have its kernel send any header, so it is checked against the frame's own headers
//! before we work with it or the receiver's kernel, which checks it again, sees it. Its header
//! length is a hint that neither relies on.

pub(crate) mod checksum;
pub mod gso_packet;
pub mod layout;
pub mod segmentation;
pub(crate) mod udp_gro;

use std::ops::Range;

use bitflags::bitflags;

use crate::headers::frame::HEADER_LEN as ETHERNET_LEN;
use layout::{Layout, Network, Transport, tcp, udp};

const FLAGS: usize = 0;
const KIND: usize = 1;
const HEADERS_LEN: Range<usize> = 2..4;
const SEGMENT_SIZE: Range<usize> = 4..6;
const CHECKSUM_START: Range<usize> = 6..8;
const CHECKSUM_OFFSET: Range<usize> = 8..10;

const NEEDS_CHECKSUM: u8 = 1;
const CHECKSUM_IS_VALID: u8 = 2;

const WHOLE: u8 = 0;
const TCP_IPV4: u8 = 1;
const TCP_IPV6: u8 = 4;
const UDP: u8 = 5;
/// Beside a kind of TCP: the segment carries a mark of congestion.
const CONGESTION: u8 = 0x80;

/// The most segments of a stream: what 64 KiB give at the smallest segment that TCP accepts of a
/// peer unless told otherwise, 88 bytes (`TCP_MIN_MSS` of Linux). Smaller ones are fine in smaller
/// GSO packets. Without a bound 64 KiB of a node would become 65,536 frames, and each is a call
/// of the kernel during which everybody else waits.
const MAX_SEGMENTS: usize = (64 << 10) / 88;

/// The most datagrams: Linux sends and accepts no more (`UDP_MAX_SEGMENTS`).
const MAX_DATAGRAMS: usize = 128;

/// The longest packet in bytes: one of the fabric, so that any provider could carry it.
pub const MAX_PACKET: usize = toroid_fabric::channel::MAX_PAYLOAD;

bitflags! {
    /// What may be left undone in packets for an exit, because what is behind it does without or
    /// does it itself.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Capabilities: u8 {
        /// Checksums of TCP and UDP.
        const CHECKSUM = 1;
        /// Progress TCP over IPv4 to the MTU.
        const TSO4 = 1 << 1;
        /// Progress TCP over IPv6 to the MTU.
        const TSO6 = 1 << 2;
        /// Progress rows of UDP datagrams.
        const USO = 1 << 3;
    }
}

/// A checked header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offload {
    checksum: Option<Checksum>,
    segmentation: Option<Segmentation>,
}

/// A checksum to be computed of all from `start` to the end of the frame. Where it goes there is
/// what else it includes: the sum of a pseudo header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checksum {
    /// Where the data begins.
    pub start: usize,
    /// Where the checksum goes; both its bytes are within the frame.
    pub at: usize,
}

/// How a GSO packet is to be cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segmentation {
    /// Its headers.
    pub layout: Layout,
    /// Bytes of payload in all pieces but the last; not 0.
    pub size: usize,
}

impl Offload {
    /// Bytes of the header.
    pub const LEN: usize = 10;

    /// The header of a frame that needs nothing.
    pub const NONE: [u8; Self::LEN] = [0; Self::LEN];

    /// The header of a GSO packet that is a row of datagrams with these headers, of `size` bytes each.
    pub(crate) fn udp_gso(layout: &Layout, size: usize) -> [u8; Self::LEN] {
        let mut header = [0; Self::LEN];
        header[FLAGS] = NEEDS_CHECKSUM;
        header[KIND] = UDP;
        let numbers = [
            (HEADERS_LEN, layout.payload_at),
            (SEGMENT_SIZE, size),
            (CHECKSUM_START, layout.transport_at),
            (CHECKSUM_OFFSET, udp::CHECKSUM),
        ];
        for (range, number) in numbers {
            header[range].copy_from_slice(&(number as u16).to_ne_bytes());
        }
        header
    }

    /// Parts a packet into a checked header and its frame; `None` if the two do not agree, or
    /// the header asks for what we do not offer.
    pub fn split(packet: &[u8]) -> Option<(Self, &[u8])> {
        let (header, frame) = packet.split_first_chunk::<{ Self::LEN }>()?;
        let known_flags = header[FLAGS] & !(NEEDS_CHECKSUM | CHECKSUM_IS_VALID) == 0;
        let checksum = match header[FLAGS] & NEEDS_CHECKSUM {
            0 => None,
            _ => Some(checked_checksum(header, frame)?),
        };
        let segmentation = match header[KIND] {
            WHOLE | CONGESTION => None,
            kind => Some(checked_segmentation(header, kind, frame, checksum?)?),
        };
        known_flags.then_some((
            Offload {
                checksum,
                segmentation,
            },
            frame,
        ))
    }

    /// The length of the longest frame that a frame of `len` bytes stands for.
    pub fn longest(&self, len: usize) -> usize {
        let frame = |of: Segmentation| of.layout.payload_at + of.size;
        self.segmentation.map_or(len, |of| frame(of).min(len))
    }

    /// What an exit must have to take it as it is.
    pub fn needs(&self) -> Capabilities {
        let checksum = match self.checksum {
            Some(_) => Capabilities::CHECKSUM,
            None => Capabilities::empty(),
        };
        let kind = |of: Segmentation| (of.layout.transport, of.layout.network);
        checksum
            | match self.segmentation.map(kind) {
                None => Capabilities::empty(),
                Some((Transport::Tcp, Network::Ipv4)) => Capabilities::TSO4,
                Some((Transport::Tcp, Network::Ipv6)) => Capabilities::TSO6,
                Some((Transport::Udp, _)) => Capabilities::USO,
            }
    }

    /// The checksum that is to be computed; of a GSO packet, that of each piece.
    pub fn checksum(&self) -> Option<Checksum> {
        self.checksum
    }

    /// How it is to be cut, if it is a GSO packet.
    pub fn segmentation(&self) -> Option<Segmentation> {
        self.segmentation
    }
}

/// What is to be computed begins behind the Ethernet header, and there is room for the result.
fn checked_checksum(header: &[u8; Offload::LEN], frame: &[u8]) -> Option<Checksum> {
    let start = number(header, CHECKSUM_START);
    let at = start + number(header, CHECKSUM_OFFSET);
    (start >= ETHERNET_LEN && at + 2 <= frame.len()).then_some(Checksum { start, at })
}

/// The frame is of the kind that the header says, and the checksum is its transport's.
fn checked_segmentation(
    header: &[u8; Offload::LEN],
    kind: u8,
    frame: &[u8],
    checksum: Checksum,
) -> Option<Segmentation> {
    let layout = Layout::read(frame)?;
    let is_kind = match (layout.transport, layout.network) {
        (Transport::Tcp, Network::Ipv4) => kind & !CONGESTION == TCP_IPV4,
        (Transport::Tcp, Network::Ipv6) => kind & !CONGESTION == TCP_IPV6,
        (Transport::Udp, _) => kind == UDP,
    };
    let (offset, most) = match layout.transport {
        Transport::Tcp => (tcp::CHECKSUM, MAX_SEGMENTS),
        Transport::Udp => (udp::CHECKSUM, MAX_DATAGRAMS),
    };
    let (start, at) = (layout.transport_at, layout.transport_at + offset);
    let size = number(header, SEGMENT_SIZE);
    let is_good = is_kind
        && checksum == Checksum { start, at }
        && size > 0
        && (frame.len() - layout.payload_at).div_ceil(size) <= most;
    is_good.then_some(Segmentation { layout, size })
}

fn number(header: &[u8; Offload::LEN], range: Range<usize>) -> usize {
    let bytes = &header[range];
    u16::from_ne_bytes([bytes[0], bytes[1]]).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::offload::gso_packet::GsoPacket;

    /// A packet with five words of TCP wherever one looks.
    fn packet(flags: u8, kind: u8, numbers: [u16; 4], frame: usize) -> Vec<u8> {
        let mut packet = vec![flags, kind];
        numbers.iter().for_each(|n| packet.extend(n.to_ne_bytes()));
        packet.resize(Offload::LEN + frame, 0x50);
        packet
    }

    /// What a packet's longest frame is and what it needs, or `None` if it is refused.
    fn read(packet: &[u8]) -> Option<(usize, Capabilities)> {
        let (offload, frame) = Offload::split(packet)?;
        Some((offload.longest(frame.len()), offload.needs()))
    }

    #[test]
    fn whole_frames_are_as_long_as_they_are() {
        let nothing = Capabilities::empty();
        let read = |flags, numbers, frame| read(&packet(flags, WHOLE, numbers, frame));
        assert_eq!(read(0, [0; 4], 60), Some((60, nothing)));
        assert_eq!(read(CHECKSUM_IS_VALID, [0; 4], 60), Some((60, nothing)));
        let checksum = read(1, [0, 0, 34, 16], 60);
        assert_eq!(checksum, Some((60, Capabilities::CHECKSUM)));
        assert_eq!(read(0, [0; 4], 0), Some((0, nothing)));
    }

    #[test]
    fn gso_packets_are_as_long_as_their_frames() {
        let tso4 = Capabilities::CHECKSUM | Capabilities::TSO4;
        let tso6 = Capabilities::CHECKSUM | Capabilities::TSO6;
        let uso = Capabilities::CHECKSUM | Capabilities::USO;
        let plain = GsoPacket::default();
        let ipv6 = GsoPacket {
            network: Network::Ipv6,
            ..plain.clone()
        };
        let udp = |of: &GsoPacket| GsoPacket {
            transport: Transport::Udp,
            ..of.clone()
        };
        let read = |of: &GsoPacket| read(&of.to_bytes());
        assert_eq!(read(&plain), Some((14 + 20 + 20 + 1448, tso4)));
        assert_eq!(read(&ipv6), Some((14 + 40 + 20 + 1448, tso6)));
        assert_eq!(read(&udp(&plain)), Some((14 + 20 + 8 + 1448, uso)));
        assert_eq!(read(&udp(&ipv6)), Some((14 + 40 + 8 + 1448, uso)));
        let small = GsoPacket {
            payload: vec![0; 10],
            ..plain.clone()
        };
        assert_eq!(read(&small), Some((64, tso4)));
        let mut congested = plain.to_bytes();
        congested[KIND] |= CONGESTION;
        assert_eq!(super::tests::read(&congested), read(&plain));
    }

    #[test]
    fn headers_that_do_not_fit_are_refused() {
        assert_eq!(read(&packet(4, WHOLE, [0; 4], 60)), None);
        assert_eq!(read(&packet(0, 3, [0; 4], 60)), None);
        for [start, offset] in [[0, 16], [13, 16], [34, 25], [59, 0], [u16::MAX; 2]] {
            assert_eq!(read(&packet(1, WHOLE, [0, 0, start, offset], 60)), None);
        }
        for len in 0..Offload::LEN {
            assert_eq!(Offload::split(&vec![0; len]), None);
        }
    }

    #[test]
    fn gso_packets_with_lies_are_refused() {
        let good = GsoPacket::default().to_bytes();
        assert!(read(&good).is_some());
        let set = |at: usize, bytes: &[u8]| {
            let mut bad = good.clone();
            bad[at..at + bytes.len()].copy_from_slice(bytes);
            (read(&bad), at, bytes.to_vec())
        };
        let (ip, tcp) = (Offload::LEN + 14, Offload::LEN + 34);
        let zero = 0u16.to_ne_bytes();
        let lies = [
            set(FLAGS, &[0]),
            set(KIND, &[TCP_IPV6]),
            set(KIND, &[UDP]),
            set(KIND, &[3]),
            set(SEGMENT_SIZE.start, &zero),
            set(CHECKSUM_START.start, &zero),
            set(CHECKSUM_START.start, &35u16.to_ne_bytes()),
            set(CHECKSUM_OFFSET.start, &6u16.to_ne_bytes()),
            set(ip - 2, &[0x08, 0x06]),
            set(ip, &[0x44]),
            set(ip, &[0x4f]),
            set(ip, &[0x65]),
            set(ip + 2, &[0xff, 0xff]),
            set(ip + 6, &[0x20, 0x00]),
            set(ip + 6, &[0x00, 0x01]),
            set(ip + 9, &[17]),
            set(ip + 9, &[1]),
            set(tcp + 12, &[0x40]),
        ];
        for (outcome, at, bytes) in lies {
            assert_eq!(outcome, None, "{bytes:x?} at {at}");
        }
        // Segmentation off anywhere, or longer than they say.
        assert!((0..good.len()).all(|len| read(&good[..len]).is_none()));
        assert_eq!(read(&[&good[..], &[0]].concat()), None);
    }

    #[test]
    fn a_gso_packet_becomes_only_so_many_frames() {
        let of = |transport, size, payload| {
            let gso = GsoPacket {
                transport,
                size,
                payload: vec![0; payload],
                ..GsoPacket::default()
            };
            read(&gso.to_bytes()).is_some()
        };
        assert!(of(Transport::Tcp, 1, MAX_SEGMENTS));
        assert!(!of(Transport::Tcp, 1, MAX_SEGMENTS + 1));
        assert!(of(Transport::Tcp, u16::MAX, 60_000));
        assert!(of(Transport::Tcp, 88, 60_000));
        assert!(!of(Transport::Tcp, 60, 60_000));
        assert!(of(Transport::Udp, 400, 400 * MAX_DATAGRAMS));
        assert!(!of(Transport::Udp, 400, 400 * MAX_DATAGRAMS + 1));
    }

    #[test]
    fn extensions_of_ipv6_end() {
        let with = |extensions| {
            let ipv6 = GsoPacket {
                network: Network::Ipv6,
                options: extensions,
                ..GsoPacket::default()
            };
            read(&ipv6.to_bytes()).is_some()
        };
        assert!(with(7) && !with(8));
        // The first of three says that a fragment's header follows, and in turn that it is as long
        // as can be.
        let ipv6 = GsoPacket {
            network: Network::Ipv6,
            options: 3,
            ..GsoPacket::default()
        };
        for (at, byte) in [(54, 44), (55, 255)] {
            let mut bad = ipv6.to_bytes();
            bad[Offload::LEN + at] = byte;
            assert_eq!(read(&bad), None);
        }
    }
}
