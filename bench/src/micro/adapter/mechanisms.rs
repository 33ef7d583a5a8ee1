//! Mechanisms of an adapter, each as code with work that is counted, and the prices of that work.

use std::collections::VecDeque;
use std::ops::Range;

use crate::worker::micro::script::{Nanos, PAGE};

/// How the card learns of a new descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doorbell {
    /// A write to the card names the endpoint.
    Direct,
    /// The card scans the queues of all endpoints.
    Scan,
    /// The host traps into its kernel, which names the endpoint.
    Trap,
}

/// How the card finds the physical address of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Translation {
    /// The whole table is on the card.
    Flat,
    /// The card keeps this many entries, those used last; the table is in the host's memory.
    Cached(usize),
}

/// How bytes reach the card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Data {
    /// The card reads the host's memory.
    Peer,
    /// The host copies them to the card.
    HostCopy,
}

/// The choices that make an adapter.
#[derive(Clone, Copy, Debug)]
pub struct Mechanisms {
    pub doorbell: Doorbell,
    pub translation: Translation,
    pub data: Data,
    /// Whether a descriptor may have several segments. Otherwise the host packs them.
    pub gathers: bool,
    /// Time for which a blocking receive polls before it sleeps.
    pub spin: Nanos,
    /// Whether completions of several endpoints can come through one queue.
    pub completion_queues: bool,
}

/// Work of a message at the host or at the card.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub traps: u64,
    /// Bytes copied by the host.
    pub copied: u64,
    /// Endpoints that the card looked at.
    pub scanned: u64,
    /// Translations that were not on the card.
    pub misses: u64,
    /// Segments that the card read.
    pub segments: u64,
    /// Sleeps of the receiver.
    pub wakeups: u64,
    /// Entries taken from a completion queue.
    pub completions: u64,
    /// Endpoints without a message at which the receiver looked.
    pub looked: u64,
}

/// Prices of one piece of work, in nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
pub struct Prices {
    pub trap: Nanos,
    /// For 1024 bytes.
    pub copied: Nanos,
    pub scanned: Nanos,
    pub miss: Nanos,
    pub segment: Nanos,
    pub wakeup: Nanos,
    pub completion: Nanos,
    pub look: Nanos,
}

impl Prices {
    /// The price of all the work.
    pub fn of(&self, work: &Counts) -> Nanos {
        work.traps * self.trap
            + work.copied * self.copied / 1024
            + work.scanned * self.scanned
            + work.misses * self.miss
            + work.segments * self.segment
            + work.wakeups * self.wakeup
            + work.completions * self.completion
            + work.looked * self.look
    }
}

/// A message as posted: its segments in the host's memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Descriptor(pub Vec<Range<usize>>);

impl Descriptor {
    fn pages(&self) -> impl Iterator<Item = usize> {
        let of = |place: &Range<usize>| place.start / PAGE..place.end.div_ceil(PAGE);
        self.0.iter().flat_map(of)
    }
}

/// A network card with the send queues of all endpoints.
#[derive(Debug)]
pub struct Card {
    mechanisms: Mechanisms,
    queues: Vec<VecDeque<Descriptor>>,
    /// The endpoint at which the next scan begins.
    next: usize,
    /// Cached translations, the one used last at the end.
    cached: Vec<usize>,
}

impl Card {
    pub fn new(mechanisms: Mechanisms, endpoints: usize) -> Self {
        Card {
            mechanisms,
            queues: vec![VecDeque::new(); endpoints],
            next: 0,
            cached: Vec::new(),
        }
    }

    /// Posts to an endpoint; the host's work.
    pub fn post(&mut self, endpoint: usize, descriptor: Descriptor) -> Counts {
        self.queues[endpoint].push_back(descriptor);
        Counts {
            traps: u64::from(self.mechanisms.doorbell == Doorbell::Trap),
            ..Counts::default()
        }
    }

    /// Finds the descriptor posted to `endpoint` and reads its segments; the card's work.
    pub fn take(&mut self, endpoint: usize) -> Counts {
        let mut work = Counts::default();
        let found = match self.mechanisms.doorbell {
            Doorbell::Direct | Doorbell::Trap => self.queues[endpoint].pop_front(),
            Doorbell::Scan => self.scan(&mut work),
        };
        for page in found.iter().flat_map(Descriptor::pages) {
            work.misses += u64::from(!self.is_known(page));
        }
        work.segments = found.map_or(0, |descriptor| descriptor.0.len() as u64);
        work
    }

    /// Looks at each endpoint once, from the one after the last find on.
    fn scan(&mut self, work: &mut Counts) -> Option<Descriptor> {
        let count = self.queues.len();
        for at in (self.next..self.next + count).map(|at| at % count) {
            work.scanned += 1;
            if let Some(descriptor) = self.queues[at].pop_front() {
                self.next = (at + 1) % count;
                return Some(descriptor);
            }
        }
        None
    }

    /// Whether the translation of a page is on the card; afterwards it is.
    fn is_known(&mut self, page: usize) -> bool {
        let Translation::Cached(entries) = self.mechanisms.translation else {
            return true;
        };
        let known = self.cached.iter().rposition(|&cached| cached == page);
        match known {
            Some(at) => drop(self.cached.remove(at)),
            None if self.cached.len() >= entries => drop(self.cached.remove(0)),
            None => {}
        }
        self.cached.push(page);
        known.is_some()
    }
}

#[cfg(test)]
mod tests {
    use std::iter;

    use super::*;

    fn card(doorbell: Doorbell, translation: Translation, endpoints: usize) -> Card {
        let mechanisms = Mechanisms {
            doorbell,
            translation,
            data: Data::Peer,
            gathers: true,
            spin: 0,
            completion_queues: true,
        };
        Card::new(mechanisms, endpoints)
    }

    fn at(card: &mut Card, endpoint: usize, start: usize) -> (Counts, Counts) {
        let place = iter::once(start..start + 64);
        let posted = card.post(endpoint, Descriptor(place.collect()));
        (posted, card.take(endpoint))
    }

    #[test]
    fn only_a_scan_looks_at_idle_endpoints() {
        for endpoints in [1, 2, 17, 65] {
            let mut scanning = card(Doorbell::Scan, Translation::Flat, endpoints);
            for _ in 0..3 {
                at(&mut scanning, 0, 0);
                let (_, work) = at(&mut scanning, 0, 0);
                assert_eq!(work.scanned, endpoints as u64);
            }
            let mut direct = card(Doorbell::Direct, Translation::Flat, endpoints);
            let (posted, work) = at(&mut direct, 0, 0);
            assert_eq!((posted.traps, work.scanned, work.segments), (0, 0, 1));
            let mut trapping = card(Doorbell::Trap, Translation::Flat, endpoints);
            assert_eq!(at(&mut trapping, 0, 0).0.traps, 1);
        }
    }

    #[test]
    fn pages_beyond_the_cache_miss_always_and_others_once() {
        let misses = |entries, pages: usize| -> u64 {
            let mut card = card(Doorbell::Direct, Translation::Cached(entries), 1);
            let messages = (0..4 * pages).map(|n| n % pages * PAGE);
            messages.map(|start| at(&mut card, 0, start).1.misses).sum()
        };
        assert_eq!((misses(8, 7), misses(8, 8), misses(8, 9)), (7, 8, 36));
        let mut card = card(Doorbell::Direct, Translation::Cached(8), 1);
        card.post(0, Descriptor(vec![PAGE - 1..PAGE + 1, 5 * PAGE..6 * PAGE]));
        let work = card.take(0);
        assert_eq!((work.misses, work.segments), (3, 2));
    }

    #[test]
    fn work_has_its_price() {
        let prices = Prices {
            trap: 1,
            copied: 2048,
            scanned: 100,
            miss: 1_000,
            segment: 10_000,
            wakeup: 100_000,
            completion: 1_000_000,
            look: 10_000_000,
        };
        let work = Counts {
            traps: 1,
            copied: 10,
            scanned: 3,
            misses: 4,
            segments: 5,
            wakeups: 6,
            completions: 7,
            looked: 8,
        };
        assert_eq!(prices.of(&work), 87_654_321);
    }
}
