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
//! yet, or that it is a *super-frame*: a TCP segment of up to 64 KiB, to be cut to the MTU on its
//! way. Between two TAPs neither needs doing. Both cross as they are, which is what makes a
//! stream fast.
//!
//! A node can have its kernel send any header, so it is checked before the receiver's kernel,
//! which checks it again, sees it. Its header length is a hint that the kernel does not rely on.

use std::ops::Range;

use bitflags::bitflags;

use crate::frame::HEADER_LEN as ETHERNET_LEN;

const FLAGS: usize = 0;
const KIND: usize = 1;
const SEGMENT_SIZE: Range<usize> = 4..6;
const CHECKSUM_START: Range<usize> = 6..8;
const CHECKSUM_OFFSET: Range<usize> = 8..10;

const NEEDS_CHECKSUM: u8 = 1;
const CHECKSUM_IS_VALID: u8 = 2;

const WHOLE: u8 = 0;
const TCP_IPV4: u8 = 1;
const TCP_IPV6: u8 = 4;
/// Beside a kind: the segment carries a mark of congestion.
const CONGESTION: u8 = 0x80;

/// Where a TCP header says in four bits how many words it has.
const TCP_WORDS: usize = 12;

bitflags! {
    /// What may be left undone in packets for an exit, because what is behind it does without or
    /// does it itself.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Capabilities: u8 {
        /// Checksums of TCP and UDP.
        const CHECKSUM = 1;
        /// Cutting TCP over IPv4 to the MTU.
        const TSO4 = 1 << 1;
        /// Cutting TCP over IPv6 to the MTU.
        const TSO6 = 1 << 2;
    }
}

/// A checked header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offload {
    /// The longest frame that the super-frame is cut into.
    segment_len: Option<usize>,
}

impl Offload {
    /// Bytes of the header.
    pub const LEN: usize = 10;

    /// The header of a frame that needs nothing.
    pub const NONE: [u8; Self::LEN] = [0; Self::LEN];

    /// Parts a packet into a checked header and its frame; `None` if the two do not agree, or
    /// the header asks for what we do not offer.
    pub fn split(packet: &[u8]) -> Option<(Self, &[u8])> {
        let (header, frame) = packet.split_first_chunk::<{ Self::LEN }>()?;
        let known_flags = header[FLAGS] & !(NEEDS_CHECKSUM | CHECKSUM_IS_VALID) == 0;
        let checksum_start = match header[FLAGS] & NEEDS_CHECKSUM {
            0 => None,
            _ => Some(checked_start(header, frame)?),
        };
        let segment_len = match header[KIND] & !CONGESTION {
            WHOLE => None,
            TCP_IPV4 | TCP_IPV6 => Some(segment_len(header, frame, checksum_start?)?),
            _ => return None,
        };
        known_flags.then_some((Offload { segment_len }, frame))
    }

    /// The length of the longest frame that a frame of `len` bytes stands for.
    pub fn longest(&self, len: usize) -> usize {
        self.segment_len.unwrap_or(len).min(len)
    }
}

/// Where the data begins whose checksum is to be computed, with room for the result.
fn checked_start(header: &[u8; Offload::LEN], frame: &[u8]) -> Option<usize> {
    let start = number(header, CHECKSUM_START);
    let end = start + number(header, CHECKSUM_OFFSET) + 2;
    (start >= ETHERNET_LEN && end <= frame.len()).then_some(start)
}

/// Bytes of a full segment with its headers: a super-frame's checksum starts with its TCP header.
fn segment_len(header: &[u8; Offload::LEN], frame: &[u8], tcp: usize) -> Option<usize> {
    let tcp_len = usize::from(frame.get(tcp + TCP_WORDS)? >> 4) * 4;
    match number(header, SEGMENT_SIZE) {
        0 => None,
        size => Some(tcp + tcp_len + size),
    }
}

fn number(header: &[u8; Offload::LEN], range: Range<usize>) -> usize {
    let bytes = &header[range];
    u16::from_ne_bytes([bytes[0], bytes[1]]).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(flags: u8, kind: u8, numbers: [u16; 4], frame: usize) -> Vec<u8> {
        let mut packet = vec![flags, kind];
        numbers.iter().for_each(|n| packet.extend(n.to_ne_bytes()));
        packet.resize(Offload::LEN + frame, 0x50);
        packet
    }

    /// What a packet's longest frame is, or `None` if it is refused.
    fn longest(flags: u8, kind: u8, numbers: [u16; 4], frame: usize) -> Option<usize> {
        let packet = packet(flags, kind, numbers, frame);
        let (offload, bytes) = Offload::split(&packet)?;
        assert_eq!(bytes.len(), frame);
        Some(offload.longest(frame))
    }

    #[test]
    fn whole_frames_are_as_long_as_they_are() {
        assert_eq!(longest(0, WHOLE, [0; 4], 60), Some(60));
        assert_eq!(longest(CHECKSUM_IS_VALID, WHOLE, [0; 4], 60), Some(60));
        assert_eq!(longest(1, WHOLE, [0, 0, 34, 16], 60), Some(60));
        assert_eq!(longest(0, WHOLE, [0; 4], 0), Some(0));
    }

    #[test]
    fn super_frames_are_as_long_as_their_segments() {
        // Ethernet 14, IPv4 20, TCP 20 (0x50: five words), segments of 1448.
        let numbers = [54, 1448, 34, 16];
        for kind in [TCP_IPV4, TCP_IPV6, TCP_IPV4 | CONGESTION] {
            assert_eq!(longest(1, kind, numbers, 30_000), Some(1502));
        }
        assert_eq!(longest(1, TCP_IPV4, numbers, 500), Some(500));
    }

    #[test]
    fn headers_that_do_not_fit_are_refused() {
        assert_eq!(longest(4, WHOLE, [0; 4], 60), None);
        assert_eq!(longest(0, 3, [0; 4], 60), None);
        for [start, offset] in [[0, 16], [13, 16], [34, 25], [59, 0], [u16::MAX; 2]] {
            assert_eq!(longest(1, WHOLE, [0, 0, start, offset], 60), None);
        }
        assert_eq!(longest(0, TCP_IPV4, [54, 1448, 34, 16], 3000), None);
        assert_eq!(longest(1, TCP_IPV4, [54, 0, 34, 16], 3000), None);
        assert_eq!(longest(1, TCP_IPV4, [54, 1448, 50, 0], 60), None);
        for len in 0..Offload::LEN {
            assert_eq!(Offload::split(&vec![0; len]), None);
        }
    }
}
