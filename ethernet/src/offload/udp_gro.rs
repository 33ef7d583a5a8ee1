//! UDP GRO (generic receive offload): datagrams of one flow, read one after the other, forwarded as one
//! GSO packet.
//!
//! A kernel passes each packet that is written to a TAP through all of its layers, which takes two thirds
//! of a driver's time for a datagram. A GSO packet passes once and is segmented at the socket
//! ([`Capabilities::USO`]). A network card with `rx-udp-gro-forwarding` does the same.
//!
//! A GSO packet consists of datagrams that had been read already, so no datagram waits for another. All
//! of its datagrams have the same headers except for lengths, checksums and IPv4 identification, and the
//! same length except for the last, which may be shorter. Their checksums are not computed yet: datagrams
//! of senders without offload are never coalesced.
//!
//! Packets are read into one buffer, in which coalesced datagrams stay where they were read.
//!
//! [`Capabilities::USO`]: crate::offload::Capabilities::USO

use std::io::IoSlice;
use std::ops::Range;

use smoltcp::wire::{
    IPV6_HEADER_LEN, IpVersion, Ipv4Packet, Ipv6Packet, UDP_HEADER_LEN, UdpPacket, checksum,
};

use crate::offload::layout::{Layout, Transport};
use crate::offload::{MAX_PACKET, Offload};

/// Limit of the datagrams in a GSO packet, which is that of kernels before Linux 6.9
/// (`UDP_MAX_SEGMENTS`).
const MAX_DATAGRAMS: usize = 64;

/// Limit of the headers in bytes: tags, IPv6 without extensions or IPv4 with all options, and UDP.
const MAX_HEADERS: usize = 90;

/// The longest IP packet in bytes.
const MAX_IP_PACKET: usize = u16::MAX as usize;

/// Bytes of the buffer for coalesced datagrams with all of their headers.
const ROOM: usize = MAX_IP_PACKET + MAX_DATAGRAMS * (Offload::LEN + MAX_HEADERS);

/// Source and destination port, at the begin of a UDP header.
const PORTS_LEN: usize = 4;

/// Coalesced datagrams, and the buffer into which packets are read.
#[derive(Debug)]
pub(crate) struct UdpGro {
    buffer: Vec<u8>,
    /// Bytes of the buffer that coalesced datagrams occupy.
    filled: usize,
    first: Option<First>,
    /// Positions of the payloads.
    payloads: Vec<Range<usize>>,
    /// Headers of the GSO packet: virtio-net, Ethernet, IP and UDP.
    headers: [u8; Offload::LEN + MAX_HEADERS],
}

/// The first datagram, at the beginning of the buffer.
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
            // One more byte reveals packets that were too long and lost their end.
            buffer: vec![0; ROOM + MAX_PACKET + 1],
            filled: 0,
            first: None,
            payloads: Vec::with_capacity(MAX_DATAGRAMS),
            headers: [0; Offload::LEN + MAX_HEADERS],
        }
    }
}

impl UdpGro {
    /// Whether no datagram is held.
    #[cfg(test)]
    fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    /// Space for the next packet, behind the held datagrams.
    pub(crate) fn space(&mut self) -> &mut [u8] {
        &mut self.buffer[self.filled..self.filled + MAX_PACKET + 1]
    }

    /// The packet of `len` bytes that was read at `at`.
    pub(crate) fn packet(&self, at: usize, len: usize) -> &[u8] {
        &self.buffer[at..at + len]
    }

    /// Position at which the next packet is read.
    pub(crate) fn filled(&self) -> usize {
        self.filled
    }

    /// Begins a GSO packet with the packet of `len` bytes that was read at `at`; no datagram may be held.
    /// Returns whether other datagrams can follow that packet.
    pub(crate) fn begin(&mut self, at: usize, len: usize) -> bool {
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
        self.hold(len, payload);
        true
    }

    /// Adds the packet of `len` bytes that was read last. Returns whether it belongs to the GSO packet.
    pub(crate) fn add(&mut self, len: usize) -> bool {
        let Some(first) = self.first.filter(|first| !first.is_closed) else {
            return false;
        };
        let (layout, packet) = (first.layout, self.packet(self.filled, len));
        let size = len.saturating_sub(Offload::LEN + layout.payload_at);
        let carried: usize = self.payloads.iter().map(Range::len).sum();
        let whole = layout.payload_at - layout.ip_at + carried + size;
        let fits = (1..=first.size).contains(&size)
            && self.payloads.len() < MAX_DATAGRAMS
            && whole <= MAX_IP_PACKET
            && self.filled + len <= ROOM;
        if !fits || datagram(packet) != Some(layout) || !self.continues_flow(&layout, packet) {
            return false;
        }
        let payload = self.filled + len - size..self.filled + len;
        if let Some(first) = &mut self.first {
            first.is_closed = size < first.size;
        }
        self.hold(len, payload);
        true
    }

    fn hold(&mut self, len: usize, payload: Range<usize>) {
        self.payloads.push(payload);
        self.filled += len;
    }

    /// Whether a datagram with this layout has the headers of the next datagram of the flow.
    fn continues_flow(&self, layout: &Layout, packet: &[u8]) -> bool {
        let end = layout.transport_at + PORTS_LEN;
        let [first, next] = [&self.buffer[..], packet].map(|packet| &packet[Offload::LEN..][..end]);
        let mut expected = [0; MAX_HEADERS];
        let expected = &mut expected[..end];
        expected.copy_from_slice(first);
        match layout.ip_version {
            IpVersion::Ipv6 => {
                let len = Ipv6Packet::new_unchecked(&next[layout.ip_at..]).payload_len();
                Ipv6Packet::new_unchecked(&mut expected[layout.ip_at..]).set_payload_len(len);
            }
            IpVersion::Ipv4 => {
                let next = Ipv4Packet::new_unchecked(&next[layout.ip_at..]);
                let mut ours = Ipv4Packet::new_unchecked(&mut expected[layout.ip_at..]);
                let id = ours.ident().wrapping_add(self.payloads.len() as u16);
                // The identification of a packet that is never fragmented has no meaning (RFC 6864).
                if !ours.dont_frag() && next.ident() != id {
                    return false;
                }
                ours.set_ident(next.ident());
                ours.set_total_len(next.total_len());
                ours.set_checksum(next.checksum());
            }
        }
        expected == next
    }

    /// The parts of the GSO packet and its number of datagrams, after which no datagram is held. A single
    /// datagram is returned unchanged.
    pub(crate) fn take(&mut self) -> Option<(Vec<IoSlice<'_>>, usize)> {
        let First { layout, size, .. } = self.first.take()?;
        let len = std::mem::take(&mut self.filled);
        let count = self.payloads.len();
        if count == 1 {
            self.payloads.clear();
            return Some((vec![IoSlice::new(&self.buffer[..len])], count));
        }
        let headers = &mut self.headers[..Offload::LEN + layout.payload_at];
        headers.copy_from_slice(&self.buffer[..headers.len()]);
        let carried = self.payloads.iter().map(Range::len).sum();
        write_headers(headers, &layout, size, carried);
        let payloads = self.payloads.drain(..);
        let payloads = payloads.map(|payload| IoSlice::new(&self.buffer[payload]));
        let parts = std::iter::once(IoSlice::new(headers));
        Some((parts.chain(payloads).collect(), count))
    }
}

/// The layout of a packet that is one datagram without a computed checksum and may be coalesced.
fn datagram(packet: &[u8]) -> Option<Layout> {
    let (offload, frame) = Offload::split(packet)?;
    let (checksum, None) = (offload.checksum?, offload.segmentation) else {
        return None;
    };
    let layout = Layout::read(frame)?;
    let ip = &frame[layout.ip_at..layout.transport_at];
    let is_intact =
        layout.ip_version == IpVersion::Ipv6 || Ipv4Packet::new_unchecked(ip).verify_checksum();
    let is_one = layout.transport == Transport::Udp
        && layout.payload_at <= MAX_HEADERS
        && layout.payload_at < frame.len()
        && checksum.start == layout.transport_at
        && checksum.at == layout.transport_at + layout.transport.checksum_at()
        && is_intact;
    is_one.then_some(layout)
}

/// Turns the headers of a datagram into those of a GSO packet with `carried` bytes of payload, `size` bytes
/// in each datagram.
fn write_headers(packet: &mut [u8], layout: &Layout, size: usize, carried: usize) {
    let (offload, headers) = packet.split_at_mut(Offload::LEN);
    let (ip, datagram) = headers.split_at_mut(layout.transport_at);
    let ip = &mut ip[layout.ip_at..];
    let ip_len = ip.len();
    // A GSO packet is no longer than an IP packet may be.
    let len = UDP_HEADER_LEN + carried;
    match layout.ip_version {
        IpVersion::Ipv6 => {
            let payload_len = ip_len - IPV6_HEADER_LEN + len;
            Ipv6Packet::new_unchecked(ip).set_payload_len(payload_len as u16);
        }
        IpVersion::Ipv4 => {
            let mut ip = Ipv4Packet::new_unchecked(ip);
            ip.set_total_len((ip_len + len) as u16);
            ip.fill_checksum();
        }
    }
    let mut udp = UdpPacket::new_unchecked(datagram);
    // The field holds the sum of the pseudo header without its complement.
    let pseudo = checksum::combine(&[udp.checksum(), !udp.len(), len as u16]);
    udp.set_len(len as u16);
    udp.set_checksum(pseudo);
    offload.copy_from_slice(&Offload::udp_gso(layout, size));
}

#[cfg(test)]
mod tests;
