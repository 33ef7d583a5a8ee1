//! Segmentation in software, for ports that do not accept a GSO packet: cuts the payload to the MTU and
//! completes checksums. The result equals the frames that the sender's kernel sends without offload.
//!
//! The payload is not copied: a frame is [`FrameParts`], rewritten headers and a part of the GSO packet,
//! to be written with one vectored call. The only buffer is that of the [`Segmenter`].
//!
//! [`part_of`] cuts a GSO packet into smaller ones, which leaves the checksums to the receiver.
//!
//! smoltcp reads and writes the header fields and sums up the data. The checksum of a segment continues the
//! sum of the pseudo header that the kernel left in the packet.

use std::ops::Range;

use smoltcp::wire::{
    IPV6_HEADER_LEN, IpVersion, Ipv4Packet, Ipv6Packet, TcpPacket, UdpPacket, checksum,
};

use crate::offload::layout::{Layout, MAX_HEADERS, Transport};
use crate::offload::{Checksum, GSO_NONE, MAX_PACKET, Offload, SEGMENT_SIZE, Segmentation, TYPE};

/// [`checksum::data`] adds words of 16 bits in 32 bits.
const _: () = assert!(MAX_PACKET <= 128 << 10);

/// Segments packets, one after another.
#[derive(Debug)]
pub struct Segmenter {
    headers: [u8; MAX_HEADERS],
}

/// A complete frame with its checksums, in consecutive parts; parts may be empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameParts<'a>(pub [&'a [u8]; 3]);

/// The frames of one packet.
#[derive(Debug)]
pub struct Frames<'a> {
    headers: &'a mut [u8; MAX_HEADERS],
    frame: &'a [u8],
    rest: Rest,
}

/// Frames still to come.
#[derive(Clone, Copy, Debug)]
enum Rest {
    None,
    Unchanged,
    WithChecksum(Checksum),
    Segments(Segments),
}

#[derive(Clone, Copy, Debug)]
struct Segments {
    segmentation: Segmentation,
    /// Begin of the next payload in the GSO packet.
    at: usize,
    /// Sum of the pseudo header with the length of the GSO packet.
    pseudo: u16,
}

impl Default for Segmenter {
    fn default() -> Self {
        Segmenter {
            headers: [0; MAX_HEADERS],
        }
    }
}

impl Segmenter {
    /// The frames that a checked packet stands for: at least one.
    pub fn frames<'a>(&'a mut self, offload: &Offload, frame: &'a [u8]) -> Frames<'a> {
        let rest = match (offload.segmentation, offload.checksum) {
            (Some(segmentation), Some(field)) => {
                let headers = segmentation.layout.payload_at;
                self.headers[..headers].copy_from_slice(&frame[..headers]);
                Rest::Segments(Segments {
                    segmentation,
                    at: headers,
                    pseudo: checksum::data(&frame[field.at..field.at + 2]),
                })
            }
            (_, Some(checksum)) => Rest::WithChecksum(checksum),
            (_, None) => Rest::Unchanged,
        };
        Frames {
            headers: &mut self.headers,
            frame,
            rest,
        }
    }
}

impl FrameParts<'_> {
    /// Bytes of the frame.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.0.iter().map(|part| part.len()).sum()
    }
}

impl Frames<'_> {
    /// The next frame. Each call overwrites the same buffer, so this is no [`Iterator`].
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> Option<FrameParts<'_>> {
        match std::mem::replace(&mut self.rest, Rest::None) {
            Rest::None => None,
            Rest::Unchanged => Some(FrameParts([self.frame, &[], &[]])),
            Rest::WithChecksum(checksum) => Some(self.complete(checksum)),
            Rest::Segments(segments) => Some(self.segment(segments)),
        }
    }

    fn complete(&mut self, Checksum { start, at }: Checksum) -> FrameParts<'_> {
        // The kernel writes 0xffff instead of 0 for every protocol; protocols other than UDP accept it.
        let checksum = nonzero(!checksum::data(&self.frame[start..]));
        self.headers[..2].copy_from_slice(&checksum.to_be_bytes());
        let (before, behind) = (&self.frame[..at], &self.frame[at + 2..]);
        FrameParts([before, &self.headers[..2], behind])
    }

    fn segment(&mut self, segments: Segments) -> FrameParts<'_> {
        let Segments {
            segmentation: Segmentation { layout, size },
            at,
            pseudo,
        } = segments;
        let end = self.frame.len().min(at + size);
        let is_first = at == layout.payload_at;
        if end < self.frame.len() {
            self.rest = Rest::Segments(Segments {
                at: end,
                ..segments
            });
        }
        let payload = &self.frame[at..end];
        let headers = &mut self.headers[..layout.payload_at];
        update_ip(&layout, headers, payload.len(), (!is_first).into());
        update_transport(&layout, self.frame, headers, at..end);
        let pseudo = pseudo_of(&layout, self.frame, pseudo, payload.len());
        let rest = checksum::combine(&[pseudo, checksum::data(payload)]);
        write_checksum(&layout, headers, rest);
        FrameParts([headers, payload, &[]])
    }
}

/// Some consecutive segments of a GSO packet as a packet of their own, whose offloads are the same
/// except that a single segment needs no segmentation.
pub(super) fn part_of(packet: &[u8], of: &Segmentation, segments: Range<usize>) -> Vec<u8> {
    let Segmentation { layout, size } = of;
    let frame = &packet[Offload::LEN..];
    let begin = layout.payload_at + segments.start * size;
    let end = frame.len().min(layout.payload_at + segments.end * size);
    let payload = &frame[begin..end];
    let mut part = Vec::with_capacity(Offload::LEN + layout.payload_at + payload.len());
    part.extend_from_slice(&packet[..Offload::LEN + layout.payload_at]);
    if segments.len() == 1 {
        part[TYPE] = GSO_NONE;
        part[SEGMENT_SIZE].fill(0);
    }
    let headers = &mut part[Offload::LEN..];
    update_ip(layout, headers, payload.len(), segments.start as u16);
    update_transport(layout, frame, headers, begin..end);
    // The field holds the sum of the pseudo header.
    let at = layout.transport_at + layout.transport.checksum_at();
    let pseudo = pseudo_of(
        layout,
        frame,
        checksum::data(&frame[at..at + 2]),
        payload.len(),
    );
    headers[at..at + 2].copy_from_slice(&pseudo.to_be_bytes());
    part.extend_from_slice(payload);
    part
}

/// Writes the fields of a transport header, except its checksum, for this part of the payload.
fn update_transport(layout: &Layout, frame: &[u8], headers: &mut [u8], part: Range<usize>) {
    let (is_first, is_last) = (part.start == layout.payload_at, part.end == frame.len());
    let header = &mut headers[layout.transport_at..];
    match layout.transport {
        Transport::Tcp => {
            let whole = TcpPacket::new_unchecked(&frame[layout.transport_at..]);
            let mut tcp = TcpPacket::new_unchecked(header);
            // Only the last segment ends the stream or is urgent; the window was reduced once.
            tcp.set_fin(whole.fin() && is_last);
            tcp.set_psh(whole.psh() && is_last);
            tcp.set_cwr(whole.cwr() && is_first);
            tcp.set_seq_number(whole.seq_number() + (part.start - layout.payload_at));
        }
        Transport::Udp => {
            let len = header.len() + part.len();
            UdpPacket::new_unchecked(header).set_len(len as u16);
        }
    }
}

/// The sum of the pseudo header for a part with `payload` bytes; `pseudo` is that of the frame.
fn pseudo_of(layout: &Layout, frame: &[u8], pseudo: u16, payload: usize) -> u16 {
    // Both lengths are less than 64 KiB, because the IP header states them.
    let whole = frame.len() - layout.transport_at;
    let len = layout.payload_at - layout.transport_at + payload;
    checksum::combine(&[pseudo, !(whole as u16), len as u16])
}

/// Writes the length; in IPv4 also the identification, `later` by this number, and the header
/// checksum.
fn update_ip(layout: &Layout, headers: &mut [u8], payload: usize, later: u16) {
    let len = headers.len() - layout.ip_at + payload;
    let header = &mut headers[layout.ip_at..layout.transport_at];
    match layout.ip_version {
        IpVersion::Ipv6 => {
            Ipv6Packet::new_unchecked(header).set_payload_len((len - IPV6_HEADER_LEN) as u16);
        }
        IpVersion::Ipv4 => {
            let mut ip = Ipv4Packet::new_unchecked(header);
            ip.set_total_len(len as u16);
            ip.set_ident(ip.ident().wrapping_add(later));
            ip.fill_checksum();
        }
    }
}

/// Writes the transport checksum; `rest` is the sum of the pseudo header and the payload.
fn write_checksum(layout: &Layout, headers: &mut [u8], rest: u16) {
    let header = &mut headers[layout.transport_at..];
    let at = layout.transport.checksum_at();
    header[at..at + 2].fill(0);
    let checksum = !checksum::combine(&[checksum::data(header), rest]);
    let checksum = match layout.transport {
        Transport::Tcp => checksum,
        Transport::Udp => nonzero(checksum),
    };
    header[at..at + 2].copy_from_slice(&checksum.to_be_bytes());
}

/// The other zero of ones' complement for 0, which means in UDP that there is no checksum.
fn nonzero(checksum: u16) -> u16 {
    match checksum {
        0 => 0xffff,
        checksum => checksum,
    }
}

#[cfg(test)]
pub(crate) mod tests;
