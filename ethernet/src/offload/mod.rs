//! Offloads: work that a kernel leaves to a network card, here to the receiver or the driver.
//!
//! Every packet of a TAP starts with the virtio-net header (section 5.1.6 of the VIRTIO 1.2
//! specification, in its legacy form), in the byte order of the machine:
//!
//! ```text
//!  0       1      2            4              6                8                 10
//!  +-------+------+------------+--------------+----------------+-----------------+-------+
//!  | flags | type | header len | segment size | checksum start | checksum offset | frame |
//!  +-------+------+------------+--------------+----------------+-----------------+-------+
//! ```
//!
//! The header says that the checksum of the frame is not computed yet, or that the frame is a *GSO packet*
//! (generic segmentation offload): a TCP segment of up to 64 KiB, or up to 128 UDP datagrams with one
//! header, to be cut to the MTU on the way. Between two TAPs neither is needed, and both cross unchanged,
//! which makes streams fast. Where the [`Capabilities`] of the receiver do not include an
//! offload, [`segmentation`] does its work.
//!
//! * [`layout`]: positions of the headers of a GSO packet.
//! * [`segmentation`]: frames of a GSO packet. `udp_gro`: the other direction, for datagrams.
//! * [`gso_packet`]: GSO packets as a kernel sends them, to try out a kernel and for tests.
//!
//! A node can make its kernel send any header. The driver checks it against the headers of the frame
//! before using or forwarding it; the receiver's kernel checks it again. Neither relies on the header
//! length, which is a hint.

pub mod gso_packet;
pub mod layout;
pub mod segmentation;
pub(crate) mod udp_gro;

use std::ops::Range;

use bitflags::bitflags;
use smoltcp::wire::IpVersion;

use crate::headers::frame::HEADER_LEN as ETHERNET_LEN;
use layout::{Layout, Transport};

const FLAGS: usize = 0;
const TYPE: usize = 1;
const HEADERS_LEN: Range<usize> = 2..4;
const SEGMENT_SIZE: Range<usize> = 4..6;
const CHECKSUM_START: Range<usize> = 6..8;
const CHECKSUM_OFFSET: Range<usize> = 8..10;

const NEEDS_CHECKSUM: u8 = 1;
const CHECKSUM_IS_VALID: u8 = 2;

const GSO_NONE: u8 = 0;
const GSO_TCP_IPV4: u8 = 1;
const GSO_TCP_IPV6: u8 = 4;
const GSO_UDP: u8 = 5;
/// Beside a TCP type: the segment carries an ECN mark.
const GSO_ECN: u8 = 0x80;

/// Limit of the segments of a TCP packet: 64 KiB at the smallest maximum segment size that Linux
/// accepts by default, 88 bytes (`TCP_MIN_MSS`). Smaller GSO packets may have smaller segments.
/// Without a limit a node could turn 64 KiB into 65,536 frames, each a system call during which all
/// other nodes wait.
const MAX_SEGMENTS: usize = (64 << 10) / 88;

/// Limit of the datagrams of a UDP packet, which is that of Linux (`UDP_MAX_SEGMENTS`).
const MAX_DATAGRAMS: usize = 128;

/// The longest packet in bytes: one of the fabric, so that any provider could carry it.
pub const MAX_PACKET: usize = toroid_fabric::channel::MAX_PAYLOAD;

bitflags! {
    /// Offloads that a port accepts: the receiver behind it does without the work, or does it itself.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Capabilities: u8 {
        /// Checksums of TCP and UDP.
        const CHECKSUM = 1;
        /// Segmentation of TCP over IPv4.
        const TSO4 = 1 << 1;
        /// Segmentation of TCP over IPv6.
        const TSO6 = 1 << 2;
        /// Segmentation of UDP.
        const USO = 1 << 3;
    }
}

/// A checked virtio-net header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offload {
    /// The checksum to be computed; of a GSO packet, that of each segment.
    checksum: Option<Checksum>,
    /// Segmentation, if the packet is a GSO packet.
    segmentation: Option<Segmentation>,
}

/// A checksum to be computed from `start` to the end of the frame. Its field holds the sum of the pseudo
/// header, which it includes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Checksum {
    /// Begin of the data.
    pub(crate) start: usize,
    /// Position of the checksum; both of its bytes are within the frame.
    pub(crate) at: usize,
}

/// Segmentation of a GSO packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Segmentation {
    /// Positions of the headers.
    pub(crate) layout: Layout,
    /// Bytes of payload of each segment but the last; not 0.
    pub(crate) size: usize,
}

impl Offload {
    /// Bytes of the header.
    pub const LEN: usize = 10;

    /// Header of a frame that needs no offload.
    pub const NONE: [u8; Self::LEN] = [0; Self::LEN];

    /// Header of a GSO packet of UDP datagrams with `size` bytes of payload each.
    pub(crate) fn udp_gso(layout: &Layout, size: usize) -> [u8; Self::LEN] {
        let mut header = [0; Self::LEN];
        header[FLAGS] = NEEDS_CHECKSUM;
        header[TYPE] = GSO_UDP;
        let numbers = [
            (HEADERS_LEN, layout.payload_at),
            (SEGMENT_SIZE, size),
            (CHECKSUM_START, layout.transport_at),
            (CHECKSUM_OFFSET, Transport::Udp.checksum_at()),
        ];
        for (range, number) in numbers {
            header[range].copy_from_slice(&(number as u16).to_ne_bytes());
        }
        header
    }

    /// Splits a packet into its checked header and its frame; `None` if the two disagree, or the header
    /// asks for an unknown offload.
    pub fn split(packet: &[u8]) -> Option<(Self, &[u8])> {
        let (header, frame) = packet.split_first_chunk::<{ Self::LEN }>()?;
        let known_flags = header[FLAGS] & !(NEEDS_CHECKSUM | CHECKSUM_IS_VALID) == 0;
        let checksum = match header[FLAGS] & NEEDS_CHECKSUM {
            0 => None,
            _ => Some(checked_checksum(header, frame)?),
        };
        let segmentation = match header[TYPE] {
            GSO_NONE | GSO_ECN => None,
            gso_type => Some(checked_segmentation(header, gso_type, frame, checksum?)?),
        };
        let offload = Offload {
            checksum,
            segmentation,
        };
        known_flags.then_some((offload, frame))
    }

    /// Length of the longest frame that a frame of `len` bytes stands for.
    pub fn longest(&self, len: usize) -> usize {
        self.segmentation
            .map_or(len, |Segmentation { layout, size }| {
                len.min(layout.payload_at + size)
            })
    }

    /// Number of frames that a frame of `len` bytes stands for.
    pub(crate) fn frames(&self, len: usize) -> usize {
        self.segmentation
            .map_or(1, |Segmentation { layout, size }| {
                (len - layout.payload_at).div_ceil(size).max(1)
            })
    }

    /// Length of the `n`th of the frames that a frame of `len` bytes stands for.
    pub(crate) fn frame_len(&self, len: usize, n: usize) -> usize {
        self.segmentation
            .map_or(len, |Segmentation { layout, size }| {
                layout.payload_at + size.min(len - layout.payload_at - n * size)
            })
    }

    /// Some consecutive frames of a packet with this header, as a packet.
    pub(crate) fn part(&self, packet: &[u8], frames: Range<usize>) -> Vec<u8> {
        match &self.segmentation {
            Some(segmentation) if frames.len() < self.frames(packet.len() - Self::LEN) => {
                segmentation::part_of(packet, segmentation, frames)
            }
            _ => packet.to_vec(),
        }
    }

    /// Capabilities that a port needs to accept the packet unchanged.
    pub(crate) fn needs(&self) -> Capabilities {
        let checksum = match self.checksum {
            Some(_) => Capabilities::CHECKSUM,
            None => Capabilities::empty(),
        };
        let kind = |of: Segmentation| (of.layout.transport, of.layout.ip_version);
        checksum
            | match self.segmentation.map(kind) {
                None => Capabilities::empty(),
                Some((Transport::Tcp, IpVersion::Ipv4)) => Capabilities::TSO4,
                Some((Transport::Tcp, IpVersion::Ipv6)) => Capabilities::TSO6,
                Some((Transport::Udp, _)) => Capabilities::USO,
            }
    }
}

/// The checksum of the header, if its data begins behind the Ethernet header and its field is in the frame.
fn checked_checksum(header: &[u8; Offload::LEN], frame: &[u8]) -> Option<Checksum> {
    let start = number(header, CHECKSUM_START);
    let at = start + number(header, CHECKSUM_OFFSET);
    (start >= ETHERNET_LEN && at + 2 <= frame.len()).then_some(Checksum { start, at })
}

/// The segmentation of the header, if the frame is of its type and the checksum that of the transport.
fn checked_segmentation(
    header: &[u8; Offload::LEN],
    gso_type: u8,
    frame: &[u8],
    checksum: Checksum,
) -> Option<Segmentation> {
    let layout = Layout::read(frame)?;
    let is_type = match (layout.transport, layout.ip_version) {
        (Transport::Tcp, IpVersion::Ipv4) => gso_type & !GSO_ECN == GSO_TCP_IPV4,
        (Transport::Tcp, IpVersion::Ipv6) => gso_type & !GSO_ECN == GSO_TCP_IPV6,
        (Transport::Udp, _) => gso_type == GSO_UDP,
    };
    let most = match layout.transport {
        Transport::Tcp => MAX_SEGMENTS,
        Transport::Udp => MAX_DATAGRAMS,
    };
    let expected = Checksum {
        start: layout.transport_at,
        at: layout.transport_at + layout.transport.checksum_at(),
    };
    let size = number(header, SEGMENT_SIZE);
    let is_good = is_type
        && checksum == expected
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

    /// A packet filled with 0x50: a TCP header length of five words at any position.
    fn packet(flags: u8, kind: u8, numbers: [u16; 4], frame: usize) -> Vec<u8> {
        let mut packet = vec![flags, kind];
        numbers.iter().for_each(|n| packet.extend(n.to_ne_bytes()));
        packet.resize(Offload::LEN + frame, 0x50);
        packet
    }

    /// Longest frame and needed capabilities of a packet; `None` if it is refused.
    fn read(packet: &[u8]) -> Option<(usize, Capabilities)> {
        let (offload, frame) = Offload::split(packet)?;
        Some((offload.longest(frame.len()), offload.needs()))
    }

    #[test]
    fn a_frame_without_gso_keeps_its_length() {
        let nothing = Capabilities::empty();
        let read = |flags, numbers, frame| read(&packet(flags, GSO_NONE, numbers, frame));
        assert_eq!(read(0, [0; 4], 60), Some((60, nothing)));
        assert_eq!(read(CHECKSUM_IS_VALID, [0; 4], 60), Some((60, nothing)));
        let checksum = read(1, [0, 0, 34, 16], 60);
        assert_eq!(checksum, Some((60, Capabilities::CHECKSUM)));
        assert_eq!(read(0, [0; 4], 0), Some((0, nothing)));
    }

    #[test]
    fn the_longest_frame_of_a_gso_packet_counts() {
        let tso4 = Capabilities::CHECKSUM | Capabilities::TSO4;
        let tso6 = Capabilities::CHECKSUM | Capabilities::TSO6;
        let uso = Capabilities::CHECKSUM | Capabilities::USO;
        let tcp4 = GsoPacket::default();
        let ipv6 = GsoPacket {
            ip_version: IpVersion::Ipv6,
            ..tcp4.clone()
        };
        let udp = |of: &GsoPacket| GsoPacket {
            transport: Transport::Udp,
            ..of.clone()
        };
        let read = |of: &GsoPacket| read(&of.to_bytes());
        assert_eq!(read(&tcp4), Some((14 + 20 + 20 + 1448, tso4)));
        assert_eq!(read(&ipv6), Some((14 + 40 + 20 + 1448, tso6)));
        assert_eq!(read(&udp(&tcp4)), Some((14 + 20 + 8 + 1448, uso)));
        assert_eq!(read(&udp(&ipv6)), Some((14 + 40 + 8 + 1448, uso)));
        let small = GsoPacket {
            payload: vec![0; 10],
            ..tcp4.clone()
        };
        assert_eq!(read(&small), Some((64, tso4)));
        let mut congested = tcp4.to_bytes();
        congested[TYPE] |= GSO_ECN;
        assert_eq!(super::tests::read(&congested), read(&tcp4));
    }

    #[test]
    fn inconsistent_headers_are_refused() {
        assert_eq!(read(&packet(4, GSO_NONE, [0; 4], 60)), None);
        assert_eq!(read(&packet(0, 3, [0; 4], 60)), None);
        for [start, offset] in [[0, 16], [13, 16], [34, 25], [59, 0], [u16::MAX; 2]] {
            assert_eq!(read(&packet(1, GSO_NONE, [0, 0, start, offset], 60)), None);
        }
        for len in 0..Offload::LEN {
            assert_eq!(Offload::split(&vec![0; len]), None);
        }
    }

    #[test]
    fn gso_packets_with_forged_fields_are_refused() {
        let good = GsoPacket::default().to_bytes();
        assert!(read(&good).is_some());
        let set = |at: usize, bytes: &[u8]| {
            let mut bad = good.clone();
            bad[at..at + bytes.len()].copy_from_slice(bytes);
            (read(&bad), at, bytes.to_vec())
        };
        let (ip, tcp) = (Offload::LEN + 14, Offload::LEN + 34);
        let zero = 0u16.to_ne_bytes();
        let forged = [
            set(FLAGS, &[0]),
            set(TYPE, &[GSO_TCP_IPV6]),
            set(TYPE, &[GSO_UDP]),
            set(TYPE, &[3]),
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
        for (outcome, at, bytes) in forged {
            assert_eq!(outcome, None, "{bytes:x?} at {at}");
        }
        // Truncated anywhere, or longer than the headers state.
        assert!((0..good.len()).all(|len| read(&good[..len]).is_none()));
        assert_eq!(read(&[&good[..], &[0]].concat()), None);
    }

    #[test]
    fn the_number_of_frames_of_a_gso_packet_is_limited() {
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
    fn the_number_of_ipv6_extensions_is_limited() {
        let with = |extensions| {
            let ipv6 = GsoPacket {
                ip_version: IpVersion::Ipv6,
                options: extensions,
                ..GsoPacket::default()
            };
            read(&ipv6.to_bytes()).is_some()
        };
        assert!(with(7) && !with(8));
        // The first of three extensions announces a fragment header, then the greatest length.
        let ipv6 = GsoPacket {
            ip_version: IpVersion::Ipv6,
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
