//! Forwarding: reads packets of a port, decides and delivers.

use std::io;

use nix::errno::Errno;
use toroid_fabric::model::{Nanos, SharedClocks, TokenBucket};
use toroid_model::ethernet::DropReason;

use super::links::{DomainLinks, Links};
use super::throttle::cost;
use super::tunnels::{ActiveTunnel, Tunnels};
use crate::forward::{Action, Ingress, NextHop};
use crate::offload::segmentation::{FrameParts, Segmenter};
use crate::offload::udp_gro::UdpGro;
use crate::port::tap::Tap;
use crate::port::{SwitchPort, is_gone};

/// Frames that one port may send before others get their turn: 0.1 ms at 9000 bytes. A frame for several
/// recipients, and a GSO packet that is segmented, count as several.
pub(super) const BATCH: usize = 64;

/// Buffers that packets pass through.
#[derive(Default)]
pub(super) struct Scratch {
    gro: UdpGro,
    pub(super) segmenter: Segmenter,
}

/// One turn of a port: up to [`BATCH`] frames.
pub(super) struct Turn<'a, 't> {
    ingress: &'t Ingress<'a, SwitchPort>,
    tunnels: &'t Tunnels,
    links: Option<DomainLinks<'t>>,
    /// Time at which a frame is due that waits already.
    next_due: Option<Nanos>,
    scratch: &'t mut Scratch,
    /// Limit of the sender, if it has a rate.
    bucket: Option<&'t mut TokenBucket>,
    /// Destination of the collected datagrams.
    gro_tap: Option<&'a Tap>,
    /// Number of GSO packets begun in this turn.
    gro_packets: usize,
}

impl<'a, 't> Turn<'a, 't> {
    pub(super) fn new(
        ingress: &'t Ingress<'a, SwitchPort>,
        tunnels: &'t Tunnels,
        links: &'t mut Links,
        scratch: &'t mut Scratch,
    ) -> Self {
        Turn {
            ingress,
            tunnels,
            next_due: links.line.next_due(),
            links: links.of(ingress.partition()),
            scratch,
            bucket: None,
            gro_tap: None,
            gro_packets: 0,
        }
    }

    /// Charges the packets of this turn to a bucket. The turn ends with the packet that leaves a
    /// debt.
    pub(super) fn limited_by(&mut self, bucket: Option<&'t mut TokenBucket>) -> &mut Self {
        self.bucket = bucket;
        self
    }

    /// Whether datagrams were collected in this turn.
    pub(super) fn has_coalesced(&self) -> bool {
        self.gro_packets > 0
    }

    /// Forwards packets of `port` until the turn ends, which a frame that is due ends, too.
    ///
    /// # Errors
    /// Those of [`SwitchPort::receive`]: there are no more packets, or the port cannot be read.
    pub(super) fn forward_all(&mut self, port: &SwitchPort) -> io::Result<()> {
        let mut sent = 0;
        let end = loop {
            if sent >= BATCH || sent > 0 && self.is_any_due() || self.is_held() {
                break Ok(());
            }
            match port.receive(self.scratch.gro.space()) {
                Ok(len) => {
                    self.ingress.record_read();
                    self.charge(len);
                    sent += self.forward(len).max(1);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => break Err(error),
            }
        };
        self.flush_gro();
        end
    }

    /// Whether the sender owes something.
    fn is_held(&self) -> bool {
        let bucket = self.bucket.as_ref();
        bucket.is_some_and(|bucket| bucket.held_until(SharedClocks::now()).is_some())
    }

    /// Charges a packet to its sender.
    fn charge(&mut self, len: usize) {
        if let Some(bucket) = &mut self.bucket {
            bucket.charge(cost(len), SharedClocks::now());
        }
    }

    fn is_any_due(&self) -> bool {
        let links = self.links.as_ref();
        let next_due = links.map_or(self.next_due, DomainLinks::next_due);
        next_due.is_some_and(|due| due <= SharedClocks::now())
    }

    /// Forwards the packet of `len` bytes that was read last. Returns the number of its frames.
    fn forward(&mut self, len: usize) -> usize {
        let gro = &mut self.scratch.gro;
        let at = gro.filled();
        let action = self.ingress.decide(gro.packet(at, len));
        let gro_tap = match (&action, &self.links) {
            (Action::Forward(next_hop), None) => {
                next_hop.egress().and_then(SwitchPort::accepts_udp_gso)
            }
            _ => None,
        };
        if let (Some(tap), Some(before)) = (gro_tap, self.gro_tap)
            && std::ptr::eq(tap, before)
            && gro.add(len)
        {
            return 1;
        }
        self.flush_gro();
        let Scratch { gro, segmenter } = &mut *self.scratch;
        if gro_tap.is_some() && gro.begin(at, len) {
            self.gro_tap = gro_tap;
            self.gro_packets += 1;
            return 1;
        }
        let packet = gro.packet(at, len);
        let links = self.links.as_mut();
        execute(self.ingress, action, packet, segmenter, self.tunnels, links)
    }

    /// Sends the collected datagrams, if there are any.
    fn flush_gro(&mut self) {
        let gro = &mut self.scratch.gro;
        if let (Some(tap), Some((parts, datagrams))) = (self.gro_tap.take(), gro.take())
            && let Err(error) = tap.send_parts(&parts)
        {
            (0..datagrams).for_each(|_| self.ingress.count(reason(&error)));
        }
    }
}

/// Decides on a packet of another host, which has paid there, and forwards it. Returns the number of its frames.
pub(super) fn decide_and_execute(
    ingress: &Ingress<'_, SwitchPort>,
    packet: &[u8],
    segmenter: &mut Segmenter,
    tunnels: &Tunnels,
) -> usize {
    let action = ingress.decide(packet);
    execute(ingress, action, packet, segmenter, tunnels, None)
}

/// Executes the decision on a packet. Returns the number of its frames.
fn execute(
    ingress: &Ingress<'_, SwitchPort>,
    action: Action<'_, SwitchPort>,
    packet: &[u8],
    segmenter: &mut Segmenter,
    tunnels: &Tunnels,
    mut links: Option<&mut DomainLinks<'_>>,
) -> usize {
    let mut deliver = |next_hop: NextHop<'_, SwitchPort>| {
        let links = links.as_mut();
        let taken = links.and_then(|links| links.take(ingress, &next_hop, packet));
        taken.unwrap_or_else(|| deliver(ingress, &next_hop, packet, segmenter, tunnels))
    };
    match action {
        Action::Forward(next_hop) => deliver(next_hop),
        Action::Flood(next_hops) => {
            let frames = next_hops.map(|next_hop| match next_hop {
                Ok(next_hop) => deliver(next_hop),
                Err(reason) => {
                    ingress.count(reason);
                    0
                }
            });
            frames.sum()
        }
        Action::Reply(frame) => {
            let reply = FrameParts([&frame, &[], &[]]);
            let sent = ingress
                .egress()
                .map_or(Ok(()), |egress| egress.send_frame(&reply));
            if let Err(error) = sent {
                ingress.count(reason(&error));
            }
            1
        }
        Action::Drop(reason) => {
            ingress.count(reason);
            0
        }
    }
}

/// Delivers a packet to its next hop. Returns the number of its frames.
pub(super) fn deliver(
    ingress: &Ingress<'_, SwitchPort>,
    next_hop: &NextHop<'_, SwitchPort>,
    packet: &[u8],
    segmenter: &mut Segmenter,
    tunnels: &Tunnels,
) -> usize {
    let delivered = match next_hop {
        NextHop::Member(_, egress) | NextHop::Outside(_, egress) => {
            egress.deliver(packet, segmenter)
        }
        NextHop::Host(host, _) => send_remote(ingress, packet, tunnels.get(host)).map(|()| 1),
    };
    delivered.unwrap_or_else(|error| {
        ingress.count(reason(&error));
        1
    })
}

fn send_remote(
    ingress: &Ingress<'_, SwitchPort>,
    packet: &[u8],
    active: Option<&ActiveTunnel>,
) -> io::Result<()> {
    match (ingress.header(), active) {
        (Some(header), Some(active)) => active.tunnel.send(&header, packet),
        _ => Err(io::ErrorKind::NotConnected.into()),
    }
}

/// The reason for the drop of a frame.
fn reason(error: &io::Error) -> DropReason {
    match error.raw_os_error().map(Errno::from_raw) {
        Some(Errno::EAGAIN | Errno::ENOBUFS | Errno::ENOMEM) => DropReason::Full,
        // A send queue.
        None if error.kind() == io::ErrorKind::WouldBlock => DropReason::Full,
        Some(Errno::EIO | Errno::ENETDOWN | Errno::ENXIO) => DropReason::Down,
        Some(Errno::EMSGSIZE) => DropReason::TooLong,
        _ if is_gone(error) => DropReason::Down,
        _ => DropReason::Refused,
    }
}
