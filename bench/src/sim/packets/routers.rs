//! Routers: a packet is routed, waits for its next link, and leaves.

use toroid_fabric::routes::{LinkId, LinkKind, Load, Mode, Topology, choose, choose_again};

use super::links::{Kind, Links, Next};
use super::packet::Packet;
use super::{Event, Message, PacketNetwork};

impl<T: Topology> PacketNetwork<T> {
    /// A packet arrives behind the link whose buffer it holds.
    #[inline]
    pub(super) fn arrive(&mut self, index: u32) {
        match self.links.kind(self.links.link(self.packets[index].held)) {
            Kind::BetweenRouters => {
                if self.packets[index].mode == Mode::Adaptive1 {
                    self.count_global_hop(index);
                    self.route_again(index);
                }
                self.forward(index);
            }
            Kind::FromCard(_) => {
                self.route(index);
                self.forward(index);
            }
            Kind::ToCard => self.receive(index),
        }
    }

    /// Chooses the path of a packet at its first router.
    #[inline]
    fn route(&mut self, index: u32) {
        let Packet {
            path, mode, domain, ..
        } = self.packets[index];
        let (links, flits) = (&self.links, self.packet_flits);
        let load = |link, _| load(links, link, flits);
        let ends = (path.at(), path.to());
        let random = || self.random.u64(..);
        let path = choose(
            &self.topology,
            mode,
            ends,
            &self.profile.biases,
            random,
            load,
        );
        if mode != Mode::Adaptive1 || path.is_at_end() {
            self.routed.of(domain).count(path.is_minimal());
        }
        self.packets[index].path = path;
    }

    fn count_global_hop(&mut self, index: u32) {
        let packet = &mut self.packets[index];
        let link = LinkId(self.links.link(packet.held));
        let is_global = self.topology.kind(link) == LinkKind::Global;
        packet.global_hops = packet.global_hops.saturating_add(is_global.into());
    }

    /// Decides again at a later router. At the last one, the path counts.
    fn route_again(&mut self, index: u32) {
        let Packet { path, domain, .. } = self.packets[index];
        if path.is_at_end() {
            let is_minimal = self.was_minimal(index);
            return self.routed.of(domain).count(is_minimal);
        }
        let (links, flits) = (&self.links, self.packet_flits);
        let load = |link, _| load(links, link, flits);
        let random = || self.random.u64(..);
        self.packets[index].path =
            choose_again(&self.topology, &path, &self.profile.biases, random, load);
    }

    /// Whether the hops of a packet at its last router are those of a minimal path: one link between
    /// groups, or no hop too many where groups are not left.
    fn was_minimal(&self, index: u32) -> bool {
        let packet = &self.packets[index];
        let Message { from, to, .. } = self.transfers[packet.message].message;
        let from = if packet.is_response { to } else { from };
        match packet.global_hops {
            0 => {
                let distance = self
                    .topology
                    .distance(self.topology.router(from), packet.path.to());
                u32::from(packet.path.hop()) <= distance
            }
            hops => hops == 1,
        }
    }

    /// Sends a packet over its next link, or appends it to the link's queue.
    #[inline]
    fn forward(&mut self, index: u32) {
        let packet = &mut self.packets[index];
        let last = self.links.kind(self.links.link(packet.held));
        let channel = match self.topology.step(&mut packet.path) {
            Some(step) => self
                .links
                .channel(step.link, step.channel, packet.is_response),
            None => self.links.router_to_card(packet.node, packet.is_response),
        };
        let (link, flits) = (self.links.link(channel), packet.flits);
        let queue = self.links.queue(channel, last != Kind::BetweenRouters);
        let may_begin = self.links.may_begin(link, self.agenda.now());
        if may_begin && !self.links.has_waiting(queue) && self.links.has_credits(channel, flits) {
            return self.transmit(index, channel);
        }
        self.links.enqueue(&mut self.packets, index, queue);
        if !may_begin {
            self.wake(link);
        }
    }

    /// Sends the next packet of a free link's queue.
    #[inline]
    pub(super) fn serve(&mut self, link: u32) {
        if let Some((index, channel)) = self.links.dequeue(&self.packets, link) {
            self.transmit(index, channel);
            if self.links.has_queue(link) {
                self.wake(link);
            }
        }
    }

    /// Begins with a packet on a link, and frees the buffer that the packet held.
    #[inline]
    fn transmit(&mut self, index: u32, channel: u32) {
        let packet = &mut self.packets[index];
        let next = match self.links.kind(self.links.link(channel)) {
            Kind::ToCard => Next::Memory,
            _ if packet.path.is_at_end() => Next::Card,
            _ => Next::Router,
        };
        let flits = packet.flits;
        let sent = self.links.send(channel, flits, self.agenda.now(), next, 0);
        let held = std::mem::replace(&mut packet.held, channel);
        self.agenda.schedule(sent.arrival, Event::Arrival(index));
        let returned = sent.left + self.links.latency(held);
        self.agenda.schedule(
            returned,
            Event::Credit {
                flits,
                channel: held,
            },
        );
    }

    pub(super) fn wake(&mut self, link: u32) {
        if let Some(at) = self.links.wake(link) {
            self.agenda.schedule(at, Event::Free(link));
        }
    }

    pub(super) fn credit(&mut self, channel: u32, flits: u8) {
        self.links.credit(channel, flits);
        let link = self.links.link(channel);
        match self.links.kind(link) {
            Kind::FromCard(node) => self.inject(node),
            _ if !self.links.is_waited_for(channel) => {}
            _ if self.links.may_begin(link, self.agenda.now()) => self.serve(link),
            _ => self.wake(link),
        }
    }
}

/// The load of a link in whole packets.
#[inline]
fn load(links: &Links, link: LinkId, packet_flits: u32) -> Load {
    let (queue, credits) = links.load(link.0);
    Load {
        queue: queue / packet_flits,
        credits: credits / packet_flits,
    }
}
