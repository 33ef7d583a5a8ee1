//! Rows: datagrams of one flow, read one behind the other, handed on together as one GSO packet.
//!
//! A kernel works through all of its layers for each packet that is written to a TAP, which costs a
//! driver two thirds of its time for a datagram. Of a row the kernel does that once, and then cuts the
//! row for the socket (UDP GSO, [`Capabilities::USO`]). A network card with `rx-udp-gro-forwarding` does
//! the same.
//!
//! A row consists of what had been read already, so no datagram waits for another. All datagrams of
//! a row have the same headers but for lengths, checksums and IPv4's number of a packet, and the same
//! length but for the last, which may be shorter. Their checksums are left out: those of senders
//! without offload are never put in a row.
//!
//! Packets are read into one buffer, in which the datagrams of a row stay where they were read.
//!
//! [`Capabilities::USO`]: crate::offload::Capabilities::USO

use std::io::IoSlice;
use std::ops::Range;

use crate::offload::MAX_PACKET;
use crate::offload::Offload;
use crate::offload::checksum::Sum;
use crate::offload::layout::{Layout, Network, Transport, ipv4, ipv6, number, udp};

/// The most datagrams: kernels before Linux 6.9 accept no more (`UDP_MAX_SEGMENTS`).
const MOST: usize = 64;

/// The longest headers: tags, IPv6 without extensions or IPv4 with all options, and UDP.
const LONGEST_HEADERS: usize = 90;

/// The longest IP packet in bytes.
const LONGEST_PACKET: usize = u16::MAX as usize;

/// Bytes of the buffer for the datagrams of a row with all of their headers.
const ROOM: usize = LONGEST_PACKET + MOST * (Offload::LEN + LONGEST_HEADERS);

/// Datagrams that are handed on together, and the buffer into which packets are read.
#[derive(Debug)]
pub struct UdpGro {
    buffer: Vec<u8>,
    /// Bytes of the buffer that belong to the row.
    filled: usize,
    first: Option<First>,
    /// Where the payloads are.
    payloads: Vec<Range<usize>>,
    /// Of the row as a whole: those of virtio-net, Ethernet, IP and UDP.
    headers: [u8; Offload::LEN + LONGEST_HEADERS],
}

/// The first datagram, whose packet is at the beginning of the buffer.
#[derive(Clone, Copy, Debug)]
struct First {
    layout: Layout,
    /// Bytes of its payload.
    size: usize,
    /// Whether the last datagram was a shorter one.
    is_closed: bool,
}

impl Default for UdpGro {
    fn default() -> Self {
        UdpGro {
            // One more byte shows that a packet was too long and lost its end.
            buffer: vec![0; ROOM + MAX_PACKET + 1],
            filled: 0,
            first: None,
            payloads: Vec::with_capacity(MOST),
            headers: [0; Offload::LEN + LONGEST_HEADERS],
        }
    }
}

impl UdpGro {
    /// Whether there is no row.
    #[cfg(test)]
    fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    /// Where the next packet is to be read, behind the row.
    pub fn space(&mut self) -> &mut [u8] {
        &mut self.buffer[self.filled..self.filled + MAX_PACKET + 1]
    }

    /// The packet of `len` bytes that was read at `at`.
    pub fn packet(&self, at: usize, len: usize) -> &[u8] {
        &self.buffer[at..at + len]
    }

    /// Bytes of the buffer that belong to the row, behind which the next packet is read.
    pub fn filled(&self) -> usize {
        self.filled
    }

    /// Begins a row, when there is none, with the packet of `len` bytes that was read at `at`. Returns
    /// whether others can follow that packet.
    pub fn begin(&mut self, at: usize, len: usize) -> bool {
        debug_assert!(self.first.is_none() && self.filled == 0);
        let Some(layout) = datagram(self.packet(at, len)) else {
            return false;
        };
        if at > 0 {
            self.buffer.copy_within(at..at + len, 0);
        }
        let payload = Offload::LEN + layout.payload_at..len;
        self.first = Some(First {
            layout,
            size: payload.len(),
            is_closed: false,
        });
        self.keep(len, payload);
        true
    }

    /// Adds the packet of `len` bytes that was read. Returns whether the packet belongs to the row.
    pub fn add(&mut self, len: usize) -> bool {
        let Some(first) = self.first.filter(|first| !first.is_closed) else {
            return false;
        };
        let (layout, packet) = (first.layout, self.packet(self.filled, len));
        let size = len.saturating_sub(Offload::LEN + layout.payload_at);
        let carried: usize = self.payloads.iter().map(Range::len).sum();
        let whole = layout.payload_at - layout.network_at + carried + size;
        let fits = (1..=first.size).contains(&size)
            && self.payloads.len() < MOST
            && whole <= LONGEST_PACKET
            && self.filled + len <= ROOM;
        if !fits || datagram(packet) != Some(layout) || !self.follows(&layout, packet) {
            return false;
        }
        let payload = self.filled + len - size..self.filled + len;
        if let Some(first) = &mut self.first {
            first.is_closed = size < first.size;
        }
        self.keep(len, payload);
        true
    }

    fn keep(&mut self, len: usize, payload: Range<usize>) {
        self.payloads.push(payload);
        self.filled += len;
    }

    /// Whether a datagram with this layout has the headers that the next one of the row would have.
    fn follows(&self, layout: &Layout, packet: &[u8]) -> bool {
        let [ours, its] = [&self.buffer[..], packet].map(|packet| &packet[Offload::LEN..]);
        let is_same = |range: Range<usize>| ours[range.clone()] == its[range];
        let (ip, udp) = (layout.network_at, layout.transport_at);
        let is_same_network = match layout.network {
            Network::Ipv6 => {
                let len = ip + ipv6::PAYLOAD_LEN.start..ip + ipv6::PAYLOAD_LEN.end;
                is_same(0..len.start) && is_same(len.end..udp)
            }
            Network::Ipv4 => {
                let [len, id, checksum] = [ipv4::TOTAL_LEN, ipv4::ID, ipv4::CHECKSUM]
                    .map(|field| ip + field.start..ip + field.end);
                let expected = number(ours, id.clone()).unwrap_or_default();
                let expected = expected.wrapping_add(self.payloads.len() as u16);
                let is_whole = ours[ip + ipv4::FRAGMENT.start] & ipv4::DONT_FRAGMENT != 0;
                is_same(0..len.start)
                    && is_same(id.end..checksum.start)
                    && is_same(checksum.end..udp)
                    // Nobody looks at the number of what is never cut (RFC 6864).
                    && (is_whole || number(its, id) == Some(expected))
            }
        };
        is_same_network && is_same(udp..udp + udp::DATAGRAM_LEN.start)
    }

    /// The parts of the packet that the row is, and how many datagrams that has; the row ends with
    /// that. Nothing if there is no row.
    pub fn take(&mut self) -> Option<(Vec<IoSlice<'_>>, usize)> {
        let First { layout, size, .. } = self.first.take()?;
        let len = std::mem::take(&mut self.filled);
        let count = self.payloads.len();
        if count == 1 {
            self.payloads.clear();
            return Some((vec![IoSlice::new(&self.buffer[..len])], count));
        }
        let headers = Offload::LEN + layout.payload_at;
        self.headers[..headers].copy_from_slice(&self.buffer[..headers]);
        let carried = self.payloads.iter().map(Range::len).sum();
        write_headers(&mut self.headers[..headers], &layout, size, carried);
        let buffer = &self.buffer;
        let payloads = self
            .payloads
            .drain(..)
            .map(|payload| IoSlice::new(&buffer[payload]));
        let parts = std::iter::once(IoSlice::new(&self.headers[..headers]));
        Some((parts.chain(payloads).collect(), count))
    }
}

/// The headers of a packet that is one datagram whose checksum is left out, and that could be part of a
/// row.
fn datagram(packet: &[u8]) -> Option<Layout> {
    let (offload, frame) = Offload::split(packet)?;
    let (checksum, None) = (offload.checksum()?, offload.segmentation()) else {
        return None;
    };
    let layout = Layout::read(frame)?;
    let ip = &frame[layout.network_at..layout.transport_at];
    let is_intact = layout.network == Network::Ipv6 || Sum::of(ip).checksum() == [0, 0];
    let is_one = layout.transport == Transport::Udp
        && layout.payload_at <= LONGEST_HEADERS
        && layout.payload_at < frame.len()
        && checksum.start == layout.transport_at
        && checksum.at == layout.transport_at + udp::CHECKSUM
        && is_intact;
    is_one.then_some(layout)
}

/// Makes the headers of a datagram those of a row of datagrams of `size` bytes, which has `carried` bytes.
fn write_headers(packet: &mut [u8], layout: &Layout, size: usize, carried: usize) {
    let (offload, headers) = packet.split_at_mut(Offload::LEN);
    let write = |bytes: &mut [u8], range: Range<usize>, number: usize| {
        // A row is no longer than an IP packet may be.
        bytes[range].copy_from_slice(&(number as u16).to_be_bytes());
    };
    let (ip, datagram) = headers.split_at_mut(layout.transport_at);
    let ip = &mut ip[layout.network_at..];
    let before = number(datagram, udp::DATAGRAM_LEN).unwrap_or_default();
    let len = udp::LEN + carried;
    match layout.network {
        Network::Ipv6 => {
            let extensions = ip.len() - ipv6::LEN;
            write(ip, ipv6::PAYLOAD_LEN, extensions + len);
        }
        Network::Ipv4 => {
            write(ip, ipv4::TOTAL_LEN, ip.len() + len);
            ip[ipv4::CHECKSUM].fill(0);
            let checksum = Sum::of(ip).checksum();
            ip[ipv4::CHECKSUM].copy_from_slice(&checksum);
        }
    }
    write(datagram, udp::DATAGRAM_LEN, len);
    let pseudo = udp::CHECKSUM..udp::CHECKSUM + 2;
    let sum = Sum::of(&datagram[pseudo.clone()]).with_changed(before, len as u16);
    // What is to be complemented is there as it is.
    let pseudo_sum = sum.checksum().map(|byte| !byte);
    datagram[pseudo].copy_from_slice(&pseudo_sum);
    offload.copy_from_slice(&Offload::udp_gso(layout, size));
}

#[cfg(test)]
mod tests;
