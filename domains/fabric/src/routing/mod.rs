//! Routes of live messages under the model of a torus.
//!
//! A [`Router`] chooses the route of each message from one node to another: an operation, a packet
//! of a channel, a frame. Its [`Policy`] decides the mode, and the mode
//! decides among candidates ([`choose_by`]). The load of a candidate is the
//! time that its links are reserved for when the message would reach them. [`Mode::Adaptive1`]
//! decides again for each hop, at the time of sending.
//!
//! Counters are those of a network card: flits and packets by the sizes of Aries, stalled cycles by
//! the wait for the first link, and the latency of a round trip by that of the links of one way and
//! the waits behind the first one. A message counts when it has passed all links; a get counts with
//! its answer. Counters are in the memory of the domain ([`RouteRecords`]), to which other domains
//! have no access.

mod candidates;
mod record;

pub use record::{RouteRecord, RouteRecords};

use std::sync::{Arc, Mutex};

use crate::model::{
    ClockId, Costs, LinkClocks, MAX_BACKLOG, Nanos, Passage, Path, Route, SharedClocks, Stage,
    StageList,
};
use crate::os::thread::lock;
use crate::routes::counters::CYCLE_NS;
use crate::routes::model::{PACKET, flits, packets};
use crate::routes::policy::Recorded;
use crate::routes::{
    self, Biases, Counters, LinkId, Load, Mode, Operation, Outgoing, Policy, RouterId, Topology,
    TorusNetwork, choose_again, choose_by,
};
use crate::topology::{NodeId, Torus};
use candidates::{Candidates, Wait, reserved_until};
use record::Entry;

/// Nanoseconds.
const SECOND: u64 = 1_000_000_000;

/// Stages of all routes from one node to another.
#[derive(Clone, Debug)]
pub struct Stages {
    /// Stages of the sender.
    pub before: Vec<Stage>,
    /// Costs of each link.
    pub link: Costs,
    /// Stages of the receiver.
    pub after: Vec<Stage>,
    /// As [`Route::base`](crate::model::Route::base).
    pub base: Nanos,
}

/// What a router is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leg {
    /// The sender.
    pub from: NodeId,
    /// The receiver.
    pub to: NodeId,
    /// The path of the messages.
    pub path: Path,
}

/// Chooses the routes of messages from one node to another.
pub struct Router {
    network: TorusNetwork,
    leg: Leg,
    stages: Stages,
    /// Nanoseconds of a packet on a link.
    packet_ns: f64,
    records: Arc<RouteRecords>,
    entry: Option<Entry>,
    state: Mutex<State>,
}

struct State {
    policy: Recorded<Box<dyn Policy>>,
    mode: Mode,
    random: fastrand::Rng,
    candidates: Candidates,
    /// Links of the last route of [`Mode::Adaptive1`].
    links: Vec<LinkId>,
    /// Counted since the policy learned, by mode.
    counted: [Counters; Mode::ALL.len()],
}

/// A message under way on a chosen route.
#[derive(Clone, Debug)]
pub struct Trip {
    links: Arc<[LinkId]>,
    mode: Mode,
    /// The router that chose the links.
    router: Arc<Router>,
    leg: TripLeg,
}

#[derive(Clone, Debug)]
enum TripLeg {
    /// A request of an operation.
    Request(Operation),
    /// The answer to a get, or an acknowledgement without bytes, with the router of the requests.
    Answer(Arc<Router>),
}

impl Router {
    /// A router without messages so far.
    pub fn new(
        torus: Torus,
        leg: Leg,
        stages: Stages,
        policy: Box<dyn Policy>,
        records: Arc<RouteRecords>,
    ) -> Self {
        let entry = records.entry(leg);
        Router {
            network: torus.into(),
            leg,
            packet_ns: SECOND as f64 / (stages.link.rate / PACKET) as f64,
            stages,
            records,
            entry,
            state: Mutex::new(State {
                policy: Recorded::new(policy),
                mode: Mode::Adaptive0,
                random: fastrand::Rng::new(),
                candidates: Candidates::default(),
                links: Vec::new(),
                counted: Default::default(),
            }),
        }
    }

    /// The route of a message with a payload of `bytes` that leaves at `now`.
    pub fn send(
        self: &Arc<Self>,
        clocks: &SharedClocks,
        now: Nanos,
        bytes: u64,
        operation: Operation,
    ) -> Trip {
        let mut state = lock(&self.state);
        let message = Outgoing {
            to: self.leg.to,
            bytes,
            operation,
            is_alltoall: false,
        };
        if state.policy.decides(&message) {
            state.learn();
        }
        let before = *state.policy.report();
        let mode = state.policy.choose(&message);
        state.mode = mode;
        let (links, is_minimal) = self.choose(&mut state, clocks, now, mode);
        if let Some(entry) = self.entry {
            let report = state.policy.report();
            self.records
                .decided(entry, mode, &before, report, is_minimal);
        }
        Trip {
            links,
            mode,
            router: Arc::clone(self),
            leg: TripLeg::Request(operation),
        }
    }

    /// The route of an answer, in the mode of the last request of `requests`.
    pub fn answer(
        self: &Arc<Self>,
        requests: &Arc<Router>,
        clocks: &SharedClocks,
        now: Nanos,
    ) -> Trip {
        let mode = lock(&requests.state).mode;
        let links = self.choose(&mut lock(&self.state), clocks, now, mode).0;
        Trip {
            links,
            mode,
            router: Arc::clone(self),
            leg: TripLeg::Answer(Arc::clone(requests)),
        }
    }

    /// The links of a route in a mode, and whether it is minimal.
    fn choose(
        &self,
        state: &mut State,
        clocks: &SharedClocks,
        now: Nanos,
        mode: Mode,
    ) -> (Arc<[LinkId]>, bool) {
        let State {
            random, candidates, ..
        } = state;
        let (network, latency) = (&self.network, self.stages.link.latency);
        let ends = (RouterId(self.leg.from.0), RouterId(self.leg.to.0));
        let biases = Biases::default();
        let clocks = clocks.links(network.links());
        let load = |path: &routes::Path, limit| {
            let (wait, limit) = (Wait::new(now, latency), self.time_of(limit));
            self.packets_in(candidates.wait(network, path, clocks, wait, limit))
        };
        let path = choose_by(network, mode, ends, &biases, || random.u64(..), load);
        match mode {
            Mode::Adaptive1 => self.hop_by_hop(path, clocks, now, state),
            _ => {
                let links = candidates.links(network, &path);
                (Arc::clone(links), path.is_minimal())
            }
        }
    }

    /// A route that each router on the way decides again.
    fn hop_by_hop(
        &self,
        mut path: routes::Path,
        clocks: LinkClocks<'_>,
        now: Nanos,
        State { random, links, .. }: &mut State,
    ) -> (Arc<[LinkId]>, bool) {
        links.clear();
        let wait = |link, ready| {
            let wait = reserved_until(clocks, link).saturating_sub(ready);
            wait.min(MAX_BACKLOG)
        };
        let mut head = now;
        while let Some(step) = self.network.step(&mut path) {
            links.push(step.link);
            head += wait(step.link, head) + self.stages.link.latency;
            let load = |link, _| Load {
                queue: u32::try_from(self.packets_in(wait(link, head))).unwrap_or(u32::MAX),
                credits: 0,
            };
            let biases = Biases::default();
            path = choose_again(&self.network, &path, &biases, || random.u64(..), load);
        }
        let least = self.network.distance(RouterId(self.leg.from.0), path.to());
        (Arc::from(&links[..]), links.len() as u32 == least)
    }

    /// Packets that a link passes in a time.
    fn packets_in(&self, time: Nanos) -> u64 {
        time.saturating_mul(self.stages.link.rate / PACKET) / SECOND
    }

    /// A time in which a link passes so many packets, at most a nanosecond too long.
    fn time_of(&self, packets: u64) -> Nanos {
        // Without the division of integers.
        let time = packets as f64 * self.packet_ns;
        (time as Nanos).saturating_add(1)
    }
}

impl std::fmt::Debug for Router {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Router")
            .field("leg", &self.leg)
            .finish_non_exhaustive()
    }
}

impl State {
    fn learn(&mut self) {
        for (mode, counted) in Mode::ALL.into_iter().zip(&mut self.counted) {
            if counted.packets > 0 {
                self.policy.learn(mode, &std::mem::take(counted));
            }
        }
    }
}

impl Stages {
    /// The route over some links.
    pub fn route(&self, links: impl Iterator<Item = LinkId>) -> Route {
        let links = links.map(|link| self.of_link(link));
        let (before, after) = (self.before.iter().copied(), self.after.iter().copied());
        Route {
            stages: before.chain(links).chain(after).collect(),
            base: self.base,
            ..Route::default()
        }
    }

    fn of_link(&self, link: LinkId) -> Stage {
        Stage {
            clock: ClockId::hop(TorusNetwork::hop(link)),
            costs: self.link,
            whole: false,
        }
    }
}

impl StageList for Trip {
    #[inline]
    fn stage(&self, at: usize) -> Option<Stage> {
        let stages = &self.router.stages;
        let Some(at) = at.checked_sub(stages.before.len()) else {
            return stages.before.get(at).copied();
        };
        match self.links.get(at) {
            Some(link) => Some(stages.of_link(*link)),
            None => stages.after.get(at - self.links.len()).copied(),
        }
    }

    fn base(&self) -> Nanos {
        self.router.stages.base
    }
}

impl Trip {
    /// The links that the message takes, one after another.
    pub fn links(&self) -> &[LinkId] {
        &self.links
    }

    /// Counts the message, or a part of it, when it has passed the links of the route.
    pub fn passed(&self, passage: &Passage) {
        let [first, later] = passage.waits();
        let bytes = passage.bytes();
        let (operation, stalled, waited) = match &self.leg {
            TripLeg::Request(Operation::Put) => (Some(Operation::Put), first, later),
            TripLeg::Request(Operation::Get) => (None, first, 0),
            TripLeg::Answer(_) if bytes > 0 => (Some(Operation::Get), 0, first + later),
            TripLeg::Answer(_) => return,
        };
        let mut counted = Counters {
            stalled_cycles: (stalled as f64 / CYCLE_NS) as u64,
            ..Counters::default()
        };
        if let Some(operation) = operation {
            let one_way = self.links.len() as u64 * self.router.stages.link.latency;
            counted.request_flits = flits(bytes, operation);
            counted.packets = packets(bytes);
            counted.latency_ns = counted.packets.saturating_mul(2 * one_way + waited);
        }
        let router = match &self.leg {
            TripLeg::Request(_) => &self.router,
            TripLeg::Answer(requests) => requests,
        };
        lock(&router.state).counted[self.mode as usize] += counted;
        if let Some(entry) = router.entry {
            router.records.count(entry, self.mode, &counted);
        }
    }
}

#[cfg(test)]
mod tests;
