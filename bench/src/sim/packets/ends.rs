//! Ends of packets: cards send requests, answer them, and receive responses.

use toroid_fabric::routes::Topology;

use super::links::Next;
use super::packet::Packet;
use super::{Event, Happening, Message, PacketNetwork};
use crate::sim::slab::NONE;
use crate::sim::transfer::Transfer;

impl<T: Topology> PacketNetwork<T> {
    /// Sends a request or a response of a card, in turns if both are ready.
    pub(super) fn inject(&mut self, node: u32) {
        let now = self.agenda.now();
        let (request, response) = (
            self.links.card_to_router(node, false),
            self.links.card_to_router(node, true),
        );
        let link = self.links.link(request);
        let card = &self.cards.cards[node as usize];
        let transfer = self
            .cards
            .next(node)
            .filter(|_| card.outstanding < self.profile.nic.window);
        if transfer.is_none() && !self.links.has_waiting(response) {
            return;
        }
        if !self.links.is_free(link, now) {
            return self.wake(link);
        }
        let was_response = card.was_response;
        let flits = self.links.first_flits(&self.packets, response);
        let may_respond = flits.is_some_and(|flits| self.links.has_credits(response, flits));
        let may_request = transfer.is_some_and(|index| {
            let transfer = &self.transfers[index];
            let flits = transfer.request(transfer.sent, 1, &self.profile);
            self.links.has_credits(request, flits as u8)
        });
        if transfer.is_some() && !may_request {
            self.cards.cards[node as usize]
                .held_since
                .get_or_insert(now);
        }
        match transfer {
            Some(index) if may_request && (was_response || !may_respond) => {
                self.request(node, index)
            }
            _ if may_respond => self.respond(node, response),
            _ => return,
        }
        let is_open = self.cards.cards[node as usize].outstanding < self.profile.nic.window;
        if self.links.has_waiting(response) || is_open && self.cards.next(node).is_some() {
            self.wake(link);
        }
    }

    /// Sends the next request of a message.
    fn request(&mut self, node: u32, index: u32) {
        let now = self.agenda.now();
        let transfer = &self.transfers[index];
        let flits = transfer.request(transfer.sent, 1, &self.profile) as u8;
        let Transfer { message, flow, .. } = *transfer;
        let is_put = transfer.is_put();
        let (from, to) = (
            self.topology.router(message.from),
            self.topology.router(message.to),
        );
        let packet = self.packets.insert(Packet {
            sent: now,
            path: self.topology.minimal(from, to, 0),
            next: NONE,
            message: index,
            node: message.to.0,
            held: NONE,
            flits,
            global_hops: 0,
            is_response: false,
            mode: message.mode,
            domain: message.domain,
        });
        self.cards.stalled(node, &self.transfers, now);
        self.cards.sent(node, &mut self.transfers, 1);
        self.cards.sums(flow, message.mode).request_flits += u64::from(flits);
        self.cards.cards[node as usize].was_response = false;
        let channel = self.links.card_to_router(node, false);
        self.leave(packet, channel, is_put);
    }

    /// Sends the first response of a card's queue.
    fn respond(&mut self, node: u32, channel: u32) {
        self.cards.stalled(node, &self.transfers, self.agenda.now());
        let packet = self.links.unlink(&self.packets, channel);
        let has_payload = !self.transfers[self.packets[packet].message].is_put();
        self.cards.cards[node as usize].was_response = true;
        self.leave(packet, channel, has_payload);
    }

    /// Begins with a packet on the link from its card.
    fn leave(&mut self, index: u32, channel: u32, has_payload: bool) {
        let packet = &mut self.packets[index];
        packet.held = channel;
        let next = match packet.path.is_at_end() {
            true => Next::Card,
            false => Next::Router,
        };
        let least = if has_payload { self.packet_ticks } else { 0 };
        let sent = self
            .links
            .send(channel, packet.flits, self.agenda.now(), next, least);
        self.agenda.schedule(sent.arrival, Event::Arrival(index));
    }

    /// A packet is in the memory of its last node.
    pub(super) fn receive(&mut self, index: u32) {
        let Packet {
            held,
            flits,
            is_response,
            ..
        } = self.packets[index];
        let returned = self.agenda.now() + self.links.latency(held);
        self.agenda.schedule(
            returned,
            Event::Credit {
                flits,
                channel: held,
            },
        );
        match is_response {
            false => self.receive_request(index),
            true => self.receive_response(index),
        }
    }

    /// Turns a request into its response.
    fn receive_request(&mut self, index: u32) {
        let packet = &mut self.packets[index];
        let transfer = &mut self.transfers[packet.message];
        let number = transfer.arrived;
        transfer.arrived += 1;
        let message = transfer.message;
        packet.flits = transfer.response(number, 1, &self.profile) as u8;
        packet.global_hops = 0;
        packet.is_response = true;
        packet.node = message.from.0;
        let (from, to) = (
            self.topology.router(message.to),
            self.topology.router(message.from),
        );
        packet.path = self.topology.minimal(from, to, 0);
        if transfer.is_put() {
            let bytes = transfer.payload(number, 1, &self.profile);
            self.cards.deliver(message.to.0, message.domain, bytes);
            if transfer.arrived == transfer.packets {
                self.agenda.report(Happening::Delivered(message.token));
            }
        }
        let channel = self.links.card_to_router(message.to.0, true);
        self.links.enqueue(&mut self.packets, index, channel);
        self.inject(message.to.0);
    }

    /// Ends a request.
    fn receive_response(&mut self, index: u32) {
        let Packet { message, sent, .. } = self.packets.remove(index);
        let transfer = &mut self.transfers[message];
        if !transfer.is_put() {
            let bytes = transfer.payload(transfer.answered, 1, &self.profile);
            let Message { from, domain, .. } = transfer.message;
            self.cards.deliver(from.0, domain, bytes);
        }
        let latency = self.agenda.now() - sent;
        let is_last = self.cards.answered(transfer, 1, latency);
        let Transfer { message: of, .. } = *transfer;
        if is_last {
            if !transfer.is_put() {
                self.agenda.report(Happening::Delivered(of.token));
            }
            self.agenda.report(Happening::Completed(of.token));
            self.transfers.remove(message);
        }
        self.inject(of.from.0);
    }
}
