//! Ends of chunks: cards send requests, answer them, and receive responses.

use toroid_fabric::model::Reach;
use toroid_fabric::routes::{Mode, Topology};

use super::{Chunk, ChunkNetwork, Event, FINER, Happening, Ticks, reserve};

/// The next request of a card.
struct Request {
    transfer: u32,
    packets: u32,
}

impl<T: Topology> ChunkNetwork<T> {
    /// Sends all chunks for which a card is free now: requests and responses in turns.
    pub(super) fn inject(&mut self, node: u32) {
        let now = self.agenda.now();
        loop {
            let request = self.next_request(node);
            let sender = &mut self.senders[node as usize];
            if request.is_none() && sender.requests.is_empty() {
                return;
            }
            let free_at = self.clocks.reserved(self.stages.sender_clock(node)).until;
            let free_at = free_at.div_ceil(FINER);
            if free_at > now {
                if !std::mem::replace(&mut sender.is_scheduled, true) {
                    self.agenda.schedule(free_at, Event::Card(node));
                }
                return;
            }
            let was_response = &mut self.cards.cards[node as usize].was_response;
            match request {
                Some(request) if *was_response || sender.requests.is_empty() => {
                    *was_response = false;
                    self.request(node, request);
                }
                _ => {
                    *was_response = true;
                    self.respond(node);
                }
            }
        }
    }

    /// The request of a card's first message, if the window has room.
    ///
    /// A chunk counts as a whole from its first request to its last response. Packets leave and are
    /// answered one after another, so the window has room for the others of a chunk at either end.
    fn next_request(&self, node: u32) -> Option<Request> {
        let index = self.cards.next(node)?;
        let transfer = &self.transfers[index];
        let packets = (transfer.packets - transfer.sent).min(self.packets);
        let others = 2 * (self.packets - 1);
        let outstanding = self.cards.cards[node as usize].outstanding + packets;
        let has_room = outstanding <= self.profile.nic.window.saturating_add(others);
        has_room.then_some(Request {
            transfer: index,
            packets,
        })
    }

    /// Sends the next chunk of a message.
    fn request(&mut self, node: u32, request: Request) {
        let Request {
            transfer: index,
            packets,
        } = request;
        let transfer = &self.transfers[index];
        let first = transfer.sent;
        let payload = transfer.payload(first, packets, &self.profile) as u32;
        let flits = transfer.request(first, packets, &self.profile);
        let (message, flow) = (transfer.message, transfer.flow);
        self.cards.sent(node, &mut self.transfers, packets);
        self.cards.sums(flow, message.mode).request_flits += u64::from(flits);
        let now = self.agenda.now();
        self.launch(index, payload, packets as u16, now, false);
    }

    /// Answers the first request of a card's queue.
    fn respond(&mut self, node: u32) {
        let Some(index) = self.senders[node as usize].requests.pop_front() else {
            return;
        };
        let request = self.chunks.remove(index);
        let Chunk {
            transfer,
            payload,
            packets,
            sent,
            ..
        } = request;
        self.launch(transfer, payload, packets, sent, true);
    }

    /// Lets a chunk with `payload` bytes of a message leave the card of its first node.
    fn launch(
        &mut self,
        transfer: u32,
        payload: u32,
        packets: u16,
        sent: Ticks,
        is_response: bool,
    ) {
        let message = self.transfers[transfer].message;
        let is_carrier = self.transfers[transfer].is_put() != is_response;
        let carried = if is_carrier { payload } else { 0 };
        let (from, to) = match is_response {
            true => (message.to, message.from),
            false => (message.from, message.to),
        };
        let wire = carried + u32::from(packets) * self.profile.header;
        let mut reach = Reach::at(self.agenda.now() * FINER);
        let stage = self.stages.sender(from.0, carried > 0);
        reserve(&mut reach, &stage, &self.clocks, wire);
        let path = self.route((from, to), message.mode);
        let index = self.chunks.insert(Chunk {
            reach,
            sent,
            path,
            transfer,
            to: to.0,
            payload,
            wire,
            packets,
            is_response,
            is_adaptive: message.mode == Mode::Adaptive1,
        });
        let head = reach.head / FINER;
        self.agenda.schedule(head, Event::Router(index));
    }

    /// A request has arrived, and waits for its response to leave.
    pub(super) fn answer(&mut self, index: u32) {
        let Chunk {
            transfer,
            packets,
            to,
            ..
        } = self.chunks[index];
        let transfer = &mut self.transfers[transfer];
        transfer.arrived += u32::from(packets);
        if transfer.arrived == transfer.packets && transfer.is_put() {
            let delivered = Happening::Delivered(transfer.message.token);
            self.agenda.report(delivered);
        }
        self.senders[to as usize].requests.push_back(index);
        self.inject(to);
    }

    /// A response has arrived and makes room in the window.
    pub(super) fn complete(&mut self, index: u32) {
        let chunk = self.chunks.remove(index);
        let transfer = &mut self.transfers[chunk.transfer];
        let latency = self.agenda.now() - chunk.sent;
        let is_last = (self.cards).answered(transfer, chunk.packets.into(), latency);
        let (message, is_put) = (transfer.message, transfer.is_put());
        if is_last {
            self.transfers.remove(chunk.transfer);
            if !is_put {
                self.agenda.report(Happening::Delivered(message.token));
            }
            self.agenda.report(Happening::Completed(message.token));
        }
        self.inject(message.from.0);
    }
}
