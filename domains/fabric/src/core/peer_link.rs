//! The link model between this process and a peer, which may change at any time.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex};

use crate::model::{ClockId, Nanos, Passage, Route, SharedClocks, carry};
use crate::os::thread::lock;
use crate::routes::Operation;
use crate::routing::{Router, Trip};

/// Time of a retry, besides the round trip.
const RETRY: Nanos = 10_000;

/// The most retries of a message, as in InfiniBand: a route that loses everything is slow, not cut.
const RETRIES: usize = 7;

/// Routes to a peer and back.
#[derive(Debug)]
pub struct Way {
    /// From this process to the peer.
    pub out: Route,
    /// From the peer to this process.
    pub back: Route,
    /// A route that the sender waits for before it posts, instead of `out`.
    pub spin: Option<Route>,
    /// Clocks of the stages of all.
    pub clocks: Arc<SharedClocks>,
    /// Routers that replace the routes `out` and `back`, message by message.
    pub routers: Option<Routers>,
}

/// Routers to a peer and back.
#[derive(Debug)]
pub struct Routers {
    /// From this process to the peer.
    pub out: Arc<Router>,
    /// From the peer to this process, for answers.
    pub back: Arc<Router>,
}

/// What a message carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Freight {
    /// Bytes under way.
    pub(crate) bytes: u64,
    /// Bytes of the operation, which may be those of the answer.
    pub(crate) payload: u64,
    pub(crate) operation: Operation,
}

impl Freight {
    /// A message with its own bytes.
    pub(crate) fn of(bytes: u64) -> Self {
        Freight {
            bytes,
            payload: bytes,
            operation: Operation::Put,
        }
    }

    /// A request for bytes.
    pub(crate) fn get(payload: u64) -> Self {
        Freight {
            bytes: 0,
            payload,
            operation: Operation::Get,
        }
    }
}

/// A direction of a [`Way`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Leg {
    Out,
    Back,
}

impl Way {
    pub(crate) fn route(&self, leg: Leg) -> &Route {
        match leg {
            Leg::Out => &self.out,
            Leg::Back => &self.back,
        }
    }

    /// The chosen route of a message that leaves at `now`; `None` without routers.
    pub(crate) fn trip(&self, leg: Leg, now: Nanos, freight: &Freight) -> Option<Trip> {
        let Routers { out, back } = self.routers.as_ref()?;
        let Freight {
            payload, operation, ..
        } = *freight;
        Some(match leg {
            Leg::Out => out.send(&self.clocks, now, payload, operation),
            Leg::Back => back.answer(out, &self.clocks, now),
        })
    }

    /// Whether messages take longer than the machine takes, once they are posted.
    fn delays(&self) -> bool {
        let stages = [&self.out, &self.back].map(|route| route.stages.len());
        self.spin.is_none() || stages != [0, 0]
    }

    /// Nanoseconds of jitter and retries of a message.
    pub(crate) fn delay(&self, leg: Leg, random: &mut fastrand::Rng) -> Nanos {
        self.delay_on(self.route(leg), random)
    }

    fn delay_on(&self, route: &Route, random: &mut fastrand::Rng) -> Nanos {
        let delay = route.jitter.draw(random);
        if route.loss <= 0.0 {
            return delay;
        }
        let is_lost = |_: &usize| random.f64() < route.loss;
        let retries = (0..RETRIES).take_while(is_lost).count() as Nanos;
        let all = [Some(&self.out), Some(&self.back), self.spin.as_ref()];
        let latencies = all.into_iter().flatten().map(latency);
        let round_trip = latencies.fold(0, Nanos::saturating_add);
        delay.saturating_add(retries * round_trip.saturating_add(RETRY))
    }

    /// Reserves the whole way to the peer for a message that is ready at `now`; returns its
    /// arrival.
    pub fn carry_out(&self, now: Nanos, bytes: u64, random: &mut fastrand::Rng) -> Nanos {
        let delay = self.delay(Leg::Out, random);
        let Some(trip) = self.trip(Leg::Out, now, &Freight::of(bytes)) else {
            return carry(&self.out, &*self.clocks, now, bytes, delay).arrival;
        };
        let mut passage = Passage::new(now, bytes);
        passage.advance(&trip, &*self.clocks, Nanos::MAX);
        trip.passed(&passage);
        passage.times(&trip, delay).arrival
    }

    /// The time until which a sender spins that wants to post a message at `now`; reserves the
    /// route that it waits for.
    pub(crate) fn posts_at(&self, now: Nanos, bytes: u64, random: &mut fastrand::Rng) -> Nanos {
        let Some(route) = &self.spin else {
            return now;
        };
        let delay = self.delay_on(route, random);
        carry(route, &*self.clocks, now, bytes, delay).arrival
    }
}

/// The clock on which a route records how late its messages are.
pub(crate) fn first_clock(route: &Route) -> Option<ClockId> {
    route.stages.first().map(|stage| stage.clock)
}

/// The latency of all stages.
pub(crate) fn latency(route: &Route) -> Nanos {
    let latencies = route.stages.iter().map(|stage| stage.costs.latency);
    latencies.fold(0, Nanos::saturating_add)
}

/// Kinds of models: one that delays messages, and one that lets senders spin.
const DELAYS: u8 = 1;
const SPINS: u8 = 2;

/// The link to one peer in one partition, which all queue pairs, channels and regions of the process
/// share. The default has no model.
#[derive(Debug, Default)]
pub struct PeerLink {
    /// 0 without a model.
    kinds: AtomicU8,
    way: Mutex<Option<Arc<Way>>>,
}

impl PeerLink {
    /// Changes the link model. Operations and packets that are under way keep their times.
    pub fn set(&self, way: Option<Arc<Way>>) {
        let is = |kind, of: fn(&Way) -> bool| {
            if way.as_deref().is_some_and(of) {
                kind
            } else {
                0
            }
        };
        let kinds = is(DELAYS, Way::delays) | is(SPINS, |way| way.spin.is_some());
        let mut current = lock(&self.way);
        self.kinds.store(kinds, Ordering::Relaxed);
        *current = way;
    }

    /// Whether there is a model.
    #[inline]
    pub fn is_on(&self) -> bool {
        self.kinds.load(Ordering::Relaxed) != 0
    }

    pub(crate) fn delays(&self) -> bool {
        self.kinds.load(Ordering::Relaxed) & DELAYS != 0
    }

    pub(crate) fn spins(&self) -> bool {
        self.kinds.load(Ordering::Relaxed) & SPINS != 0
    }

    /// Whether these are the routes at present.
    pub(crate) fn has(&self, way: &Arc<Way>) -> bool {
        let current = lock(&self.way);
        current.as_ref().is_some_and(|its| Arc::ptr_eq(its, way))
    }

    /// The routes, if there is a model.
    pub fn way(&self) -> Option<Arc<Way>> {
        lock(&self.way).clone()
    }
}
