//! Network cards of both levels: queues of messages, the window, and counters.

use toroid_fabric::routes::{Counters, Mode};

use super::slab::{NONE, Slab};
use super::transfer::Transfer;
use super::{TICKS, Ticks};

/// A network card.
#[derive(Clone, Copy, Debug)]
pub struct Card {
    /// Requests without response.
    pub outstanding: u32,
    /// Most requests without response so far.
    pub most_outstanding: u32,
    /// The time since which a request is ready, the link is idle, and back-pressure holds it.
    pub held_since: Option<Ticks>,
    /// Whether the last packet or chunk was a response.
    pub was_response: bool,
    /// Queue of flows; each sends a packet or a chunk, then the next one.
    first: u32,
    last: u32,
}

/// Messages of a card in one domain, in order.
#[derive(Clone, Copy, Debug)]
struct Flow {
    head: u32,
    tail: u32,
    /// Next flow in the card's queue.
    next: u32,
    /// Bytes that arrived at this node in the domain.
    delivered: u64,
}

/// Sums of a flow and mode, with times in ticks.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sums {
    pub request_flits: u64,
    pub stalled: Ticks,
    pub packets: u64,
    pub latency: Ticks,
}

/// All cards, and their flows: one for each node of each domain that has sent or received.
#[derive(Debug)]
pub struct Cards {
    pub cards: Vec<Card>,
    flows: Vec<Flow>,
    sums: Vec<[Sums; Mode::ALL.len()]>,
    /// First flow of each domain; `NONE` for a domain without any.
    domains: Vec<u32>,
    cycle: Ticks,
}

impl Cards {
    /// Bytes for a card and its flow in one domain.
    pub const MEMORY: u64 =
        (size_of::<Card>() + size_of::<Flow>() + size_of::<[Sums; Mode::ALL.len()]>()) as u64;

    /// Cards that send a flit each `cycle`.
    pub fn new(nodes: u32, cycle: Ticks) -> Self {
        let card = Card {
            outstanding: 0,
            most_outstanding: 0,
            held_since: None,
            was_response: false,
            first: NONE,
            last: NONE,
        };
        Cards {
            cards: vec![card; nodes as usize],
            flows: Vec::new(),
            sums: Vec::new(),
            domains: Vec::new(),
            cycle,
        }
    }

    /// The flow of a node in a domain.
    pub fn flow(&mut self, node: u32, domain: u16) -> u32 {
        let domain = usize::from(domain);
        if self.domains.len() <= domain {
            self.domains.resize(domain + 1, NONE);
        }
        if self.domains[domain] == NONE {
            self.domains[domain] = self.flows.len() as u32;
            let flow = Flow {
                head: NONE,
                tail: NONE,
                next: NONE,
                delivered: 0,
            };
            let flows = self.flows.len() + self.cards.len();
            self.flows.resize(flows, flow);
            self.sums.resize(flows, Default::default());
        }
        self.domains[domain] + node
    }

    /// The flow of a node in a domain, if the domain has any.
    fn existing(&self, node: u32, domain: u16) -> Option<usize> {
        let first = *self.domains.get(usize::from(domain))?;
        (first != NONE).then(|| (first + node) as usize)
    }

    /// Appends a message to its flow.
    pub fn enqueue(&mut self, transfers: &mut Slab<Transfer>, index: u32) {
        let (flow, node) = (transfers[index].flow, transfers[index].message.from.0);
        let state = &mut self.flows[flow as usize];
        match state.head {
            NONE => {
                state.head = index;
                state.tail = index;
                self.enter(node, flow);
            }
            _ => {
                transfers[state.tail].next = index;
                state.tail = index;
            }
        }
    }

    /// Message whose packet is next.
    #[inline]
    pub fn next(&self, node: u32) -> Option<u32> {
        let flow = self.cards[node as usize].first;
        (flow != NONE).then(|| self.flows[flow as usize].head)
    }

    /// The card sends a packet, which ends the time that a request was held, if one was: it is the
    /// next one of [`Cards::next`].
    #[inline]
    pub fn stalled(&mut self, node: u32, transfers: &Slab<Transfer>, now: Ticks) {
        let Some(since) = self.cards[node as usize].held_since.take() else {
            return;
        };
        if let Some(index) = self.next(node) {
            let Transfer { message, flow, .. } = transfers[index];
            self.sums(flow, message.mode).stalled += now - since;
        }
    }

    /// The message of [`Cards::next`] has sent packets. Another flow of the card is next.
    #[inline]
    pub fn sent(&mut self, node: u32, transfers: &mut Slab<Transfer>, packets: u32) {
        let card = &mut self.cards[node as usize];
        card.outstanding += packets;
        card.most_outstanding = card.most_outstanding.max(card.outstanding);
        let flow = card.first;
        let state = &mut self.flows[flow as usize];
        let transfer = &mut transfers[state.head];
        transfer.sent += packets;
        let is_last = transfer.sent == transfer.packets;
        if is_last {
            state.head = transfer.next;
        } else if card.first == card.last {
            return;
        }
        let is_empty = state.head == NONE;
        card.first = std::mem::replace(&mut state.next, NONE);
        if !is_empty {
            self.enter(node, flow);
        }
    }

    /// Appends a flow to the queue of a card.
    fn enter(&mut self, node: u32, flow: u32) {
        let card = &mut self.cards[node as usize];
        match card.first {
            NONE => card.first = flow,
            _ => self.flows[card.last as usize].next = flow,
        }
        card.last = flow;
    }

    /// Responses to a message have arrived, with this latency each. Returns whether they are the
    /// last.
    #[inline]
    pub fn answered(&mut self, transfer: &mut Transfer, packets: u32, latency: Ticks) -> bool {
        let Transfer { message, flow, .. } = *transfer;
        transfer.answered += packets;
        let sums = self.sums(flow, message.mode);
        sums.packets += u64::from(packets);
        sums.latency += latency * Ticks::from(packets);
        self.cards[message.from.0 as usize].outstanding -= packets;
        transfer.answered == transfer.packets
    }

    /// Sums of a flow and mode.
    #[inline]
    pub fn sums(&mut self, flow: u32, mode: Mode) -> &mut Sums {
        &mut self.sums[flow as usize][mode as usize]
    }

    /// Counts bytes that arrived at a node.
    #[inline]
    pub fn deliver(&mut self, node: u32, domain: u16, bytes: u64) {
        let flow = self.flow(node, domain);
        self.flows[flow as usize].delivered += bytes;
    }

    /// Requests of all cards without response.
    pub fn outstanding(&self) -> u64 {
        let outstanding = self.cards.iter().map(|card| u64::from(card.outstanding));
        outstanding.sum()
    }

    /// Bytes that arrived at a node in a domain.
    pub fn delivered(&self, node: u32, domain: u16) -> u64 {
        self.existing(node, domain)
            .map_or(0, |flow| self.flows[flow].delivered)
    }

    /// Counters of a node in a domain.
    pub fn counters(&self, node: u32, domain: u16, mode: Mode) -> Counters {
        let Some(flow) = self.existing(node, domain) else {
            return Counters::default();
        };
        let sums = &self.sums[flow][mode as usize];
        Counters {
            request_flits: sums.request_flits,
            stalled_cycles: sums.stalled / self.cycle,
            packets: sums.packets,
            latency_ns: sums.latency / TICKS,
        }
    }
}
