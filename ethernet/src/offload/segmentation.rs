//! Does in software what a packet's sender left undone, for exits that cannot take it so: cuts
//! GSO packets to the MTU and completes checksums. What comes out is as the sender's kernel would
//! have sent it through an interface without offload.
//!
//! No payload is copied: a [`FrameParts`] is headers written anew and a part of the frame, to be
//! written out one behind the other. A [`Segmenter`] has the only buffer.

use crate::offload::checksum::Sum;
use crate::offload::layout::{
    Layout, MAX_HEADERS, Network, Transport, ipv4, ipv6, number, tcp, udp,
};
use crate::offload::{Checksum, Offload, Segmentation};

/// Cuts packets, one after another.
#[derive(Debug)]
pub struct Segmenter {
    headers: [u8; MAX_HEADERS],
}

/// A whole frame with its checksums, in parts that are to be put together; some may be empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameParts<'a>(pub [&'a [u8]; 3]);

/// The frames of a packet, one after another.
#[derive(Debug)]
pub struct Frames<'a> {
    headers: &'a mut [u8; MAX_HEADERS],
    frame: &'a [u8],
    work: Work,
}

/// What is left to do.
#[derive(Clone, Copy, Debug)]
enum Work {
    Nothing,
    Pass,
    Complete(Checksum),
    Segmentation(Progress),
}

#[derive(Clone, Copy, Debug)]
struct Progress {
    cut: Segmentation,
    /// Where the next piece's payload begins in the frame.
    at: usize,
    /// The sum of the pseudo header, with the length of the GSO packet.
    pseudo: Sum,
}

impl Default for Segmenter {
    fn default() -> Self {
        Segmenter {
            headers: [0; MAX_HEADERS],
        }
    }
}

impl Segmenter {
    /// What the frame of a checked packet stands for: at least one frame.
    pub fn frames<'a>(&'a mut self, offload: &Offload, frame: &'a [u8]) -> Frames<'a> {
        let work = match (offload.segmentation(), offload.checksum()) {
            (Some(cut), Some(checksum)) => {
                let headers = cut.layout.payload_at;
                self.headers[..headers].copy_from_slice(&frame[..headers]);
                Work::Segmentation(Progress {
                    cut,
                    at: headers,
                    pseudo: Sum::of(&frame[checksum.at..checksum.at + 2]),
                })
            }
            (_, Some(checksum)) => Work::Complete(checksum),
            (_, None) => Work::Pass,
        };
        Frames {
            headers: &mut self.headers,
            frame,
            work,
        }
    }
}

impl FrameParts<'_> {
    /// Bytes of the frame.
    pub fn len(&self) -> usize {
        self.0.iter().map(|part| part.len()).sum()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Frames<'_> {
    /// The next frame. Each call writes into the same buffer, so this is no [`Iterator`].
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> Option<FrameParts<'_>> {
        match self.work {
            Work::Nothing => None,
            Work::Pass => {
                self.work = Work::Nothing;
                Some(FrameParts([self.frame, &[], &[]]))
            }
            Work::Complete(checksum) => {
                self.work = Work::Nothing;
                Some(self.complete(checksum))
            }
            Work::Segmentation(cutting) => Some(self.cut(cutting)),
        }
    }

    fn complete(&mut self, Checksum { start, at }: Checksum) -> FrameParts<'_> {
        // As the kernel does it for any protocol. Its other zero is as good for those that know
        // only one.
        self.headers[..2].copy_from_slice(&Sum::of(&self.frame[start..]).nonzero_checksum());
        let (before, behind) = (&self.frame[..at], &self.frame[at + 2..]);
        FrameParts([before, &self.headers[..2], behind])
    }

    fn cut(&mut self, cutting: Progress) -> FrameParts<'_> {
        let Progress { cut, at, pseudo } = cutting;
        let end = self.frame.len().min(at + cut.size);
        let (is_first, is_last) = (at == cut.layout.payload_at, end == self.frame.len());
        self.work = if is_last {
            Work::Nothing
        } else {
            Work::Segmentation(Progress { at: end, ..cutting })
        };
        let payload = &self.frame[at..end];
        let headers = &mut self.headers[..cut.layout.payload_at];
        adapt_network(&cut.layout, headers, payload.len(), is_first);
        match cut.layout.transport {
            Transport::Tcp => adapt_tcp(&cut, headers, self.frame, is_first, is_last),
            Transport::Udp => adapt_udp(&cut.layout, headers, payload.len()),
        }
        let whole = self.frame.len() - cut.layout.transport_at;
        let piece = headers.len() - cut.layout.transport_at + payload.len();
        // Both are less than 64 KiB: the network header tells them.
        let pseudo = pseudo.with_changed(whole as u16, piece as u16);
        seal(&cut.layout, headers, pseudo.plus(Sum::of(payload)));
        FrameParts([&self.headers[..cut.layout.payload_at], payload, &[]])
    }
}

/// Lengths, and what IPv4 has besides: a number for each packet, and a checksum of its header.
fn adapt_network(layout: &Layout, headers: &mut [u8], payload: usize, is_first: bool) {
    let len = headers.len() - layout.network_at + payload;
    let header = &mut headers[layout.network_at..layout.transport_at];
    match layout.network {
        Network::Ipv6 => write(header, ipv6::PAYLOAD_LEN, (len - ipv6::LEN) as u16),
        Network::Ipv4 => {
            write(header, ipv4::TOTAL_LEN, len as u16);
            let before = number(header, ipv4::ID).unwrap_or_default();
            write(header, ipv4::ID, before.wrapping_add((!is_first).into()));
            header[ipv4::CHECKSUM].fill(0);
            let checksum = Sum::of(header).checksum();
            header[ipv4::CHECKSUM].copy_from_slice(&checksum);
        }
    }
}

/// Each segment goes on where the one before ended. That there is no more, and that what there is
/// is urgently waited for, is true of the last only; that the window was made smaller is to be
/// told once.
fn adapt_tcp(cut: &Segmentation, headers: &mut [u8], frame: &[u8], is_first: bool, is_last: bool) {
    let header = &mut headers[cut.layout.transport_at..];
    let flags = frame[cut.layout.transport_at + tcp::FLAGS];
    let not_last = if is_last { 0 } else { tcp::FIN | tcp::PSH };
    let not_first = if is_first { 0 } else { tcp::CWR };
    header[tcp::FLAGS] = flags & !(not_last | not_first);
    if !is_first && let Some(sequence) = header[tcp::SEQUENCE].first_chunk_mut::<4>() {
        // All but the last are of full size, so the one before was.
        let before = u32::from_be_bytes(*sequence);
        *sequence = before.wrapping_add(cut.size as u32).to_be_bytes();
    }
}

fn adapt_udp(layout: &Layout, headers: &mut [u8], payload: usize) {
    let header = &mut headers[layout.transport_at..];
    write(header, udp::DATAGRAM_LEN, (udp::LEN + payload) as u16);
}

/// Writes the checksum of the transport; `rest` is the sum of what is in no header.
fn seal(layout: &Layout, headers: &mut [u8], rest: Sum) {
    let header = &mut headers[layout.transport_at..];
    let at = match layout.transport {
        Transport::Tcp => tcp::CHECKSUM,
        Transport::Udp => udp::CHECKSUM,
    };
    header[at..at + 2].fill(0);
    let sum = Sum::of(header).plus(rest);
    let checksum = match layout.transport {
        Transport::Tcp => sum.checksum(),
        Transport::Udp => sum.nonzero_checksum(),
    };
    header[at..at + 2].copy_from_slice(&checksum);
}

fn write(bytes: &mut [u8], range: std::ops::Range<usize>, number: u16) {
    bytes[range].copy_from_slice(&number.to_be_bytes());
}

#[cfg(test)]
mod tests;
