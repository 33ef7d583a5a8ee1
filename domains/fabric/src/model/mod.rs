//! Link model: the time at which a message arrives.
//!
//! A route is a list of [`Stage`]s: an end host, a network card, a link. Each takes messages one
//! after another. [`carry`] is the whole model: it reserves every stage of a route and returns the
//! time of arrival. The function has no I/O and no clock of its own. Its state is behind [`Clocks`]:
//! words in shared memory for live traffic ([`SharedClocks`]), a vector for simulation
//! ([`VectorClocks`]), a map for tests ([`LocalClocks`]). So the emulator and a simulator compute the same times.
//!
//! Costs of a stage are those of LogGP (Alexandrov et al., 1995): `message` is the overhead o,
//! `rate` is 1/G, `latency` is L. `packet` and `header` are the costs of cutting a message into
//! packets.
//!
//! A stage serves messages in the order of their reservations. Where several routes share a far
//! stage, a message should reserve the stage when it reaches the stage, not before: a reservation
//! for a later time leaves the stage idle until then. A [`Passage`] reserves stage by stage for
//! that; a simulation, which computes stages on the way, does so by [`Reach::cross`]. For the same reason, an answer reserves its way back when the request has arrived.

mod clocks;
mod draw;
mod flow;
mod shared;
mod token_bucket;

pub use clocks::{ClockId, Clocks, LocalClocks, Reserved, VectorClocks};
pub use draw::Jitter;
pub use flow::{Flow, FlowPath, FlowRule};
pub use shared::{ClockRecord, FlowRecord, LinkClocks, Path, SharedClocks, record_of};
pub use token_bucket::TokenBucket;

/// Nanoseconds of `CLOCK_MONOTONIC`, or of any other clock that starts at 0.
pub type Nanos = u64;

/// Ticks of a nanosecond in which stages reserve time: a message of 64 bytes takes 6.4 ns on a link
/// of 10 GB/s.
pub const TICKS: u64 = 64;

/// Longest backlog that a stage may report. Any process that maps the clocks may write them: a
/// larger value counts as this one.
pub const MAX_BACKLOG: Nanos = 10_000_000_000;

/// Costs that a message pays at a stage. The default costs nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Costs {
    /// Nanoseconds for each message.
    pub message: Nanos,
    /// Nanoseconds for each packet.
    pub packet: Nanos,
    /// Most bytes of a message in one packet; 0 if messages are not cut.
    pub payload: u32,
    /// Bytes that each packet has besides.
    pub header: u32,
    /// Bytes per second; 0 if bytes take no time.
    pub rate: u64,
    /// Nanoseconds that each message is under way after this stage. Messages overlap there.
    pub latency: Nanos,
}

impl Costs {
    /// Packets that carry `bytes`, at least one.
    pub fn packets(&self, bytes: u64) -> u64 {
        match self.payload {
            0 => 1,
            payload => bytes.div_ceil(payload.into()).max(1),
        }
    }

    /// Bytes on the wire for `bytes` of a message.
    pub fn wire_bytes(&self, bytes: u64) -> u64 {
        bytes.saturating_add(self.packets(bytes).saturating_mul(self.header.into()))
    }

    /// Ticks for which `bytes` of a message occupy the stage.
    fn service(&self, bytes: u64) -> u64 {
        let fixed = self.packets(bytes).saturating_mul(self.packet);
        ticks(self.message.saturating_add(fixed))
            .saturating_add(self.transfer(self.wire_bytes(bytes)))
    }

    /// Ticks for bytes on the wire, rounded up: a stage is never faster than its rate.
    fn transfer(&self, wire: u64) -> u64 {
        const SECOND: u64 = 1_000_000_000 * TICKS;
        if self.rate == 0 {
            return 0;
        }
        // Up to 288 MB, which divides in a third of the time.
        if let Some(ticks) = wire.checked_mul(SECOND) {
            return ticks.div_ceil(self.rate);
        }
        let ticks = (u128::from(wire) * u128::from(SECOND)).div_ceil(self.rate.into());
        u64::try_from(ticks).unwrap_or(u64::MAX)
    }
}

/// One step of a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stage {
    /// The clock that all traffic through this stage shares.
    pub clock: ClockId,
    /// Costs of a message.
    pub costs: Costs,
    /// Whether the stage begins with a message when the last byte has come (store and forward).
    /// Otherwise the stage begins with the first byte (cut-through). The first byte leaves any
    /// stage after [`Costs::message`] and [`Costs::latency`].
    pub whole: bool,
}

/// Way of messages to a peer. The default adds nothing.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Route {
    /// Stages in the order of passage.
    pub stages: Vec<Stage>,
    /// Variation of the latency.
    pub jitter: Jitter,
    /// Probability that a frame is lost, from 0 to 1. Reliable paths pay a retry instead.
    pub loss: f64,
    /// Most bytes that may wait at the first stage; later frames are dropped. Reliable paths wait
    /// instead.
    pub limit: Option<u64>,
    /// Whether latency comes on top of the time that the machine itself takes. Otherwise the
    /// machine's time is part of it.
    pub on_top: bool,
    /// Nanoseconds that the machine itself takes and that count as a part of the route: messages
    /// arrive earlier by that, but never before they are ready.
    pub base: Nanos,
}

/// Stages that a message passes one after another.
pub trait StageList {
    /// The stage at a place, from 0 on; `None` behind the last one.
    fn stage(&self, at: usize) -> Option<Stage>;

    /// As [`Route::base`].
    fn base(&self) -> Nanos;
}

impl StageList for Route {
    #[inline]
    fn stage(&self, at: usize) -> Option<Stage> {
        self.stages.get(at).copied()
    }

    fn base(&self) -> Nanos {
        self.base
    }
}

/// Times of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    /// The first stage begins with the message.
    pub start: Nanos,
    /// The last byte arrives.
    pub arrival: Nanos,
}

/// The message found more than [`Route::limit`] bytes before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the queue of the link is full")]
pub struct QueueFull;

/// Carries a message of `bytes` that is ready at `now` along a route, and reserves its stages.
/// `delay` is an additional latency, as drawn from [`Route::jitter`].
///
/// Messages of one sender arrive in order if `delay` is constant; queues keep the order otherwise.
pub fn carry(
    route: &impl StageList,
    clocks: &impl Clocks,
    now: Nanos,
    bytes: u64,
    delay: Nanos,
) -> Times {
    let mut passage = Passage::new(now, bytes);
    passage.advance(route, clocks, Nanos::MAX);
    passage.times(route, delay)
}

/// As [`carry`], unless more than [`Route::limit`] bytes wait at the first stage.
///
/// # Errors
/// [`QueueFull`]; nothing is reserved.
pub fn carry_or_drop(
    route: &Route,
    clocks: &impl Clocks,
    now: Nanos,
    bytes: u64,
    delay: Nanos,
) -> Result<Times, QueueFull> {
    let mut passage = Passage::enter(route, clocks, now, bytes)?;
    passage.advance(route, clocks, Nanos::MAX);
    Ok(passage.times(route, delay))
}

/// A message on its way, which reserves a stage when it reaches the stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Passage {
    bytes: u64,
    /// Stages passed.
    stages: usize,
    /// Start at the first stage, in ticks.
    start: u64,
    reach: Reach,
    /// Waits at the first stage that begins with the first byte, and at later ones, in ticks.
    waits: [u64; 2],
    /// Whether the message has passed the first of them.
    is_on_links: bool,
    ready: Nanos,
}

impl Passage {
    /// A message of `bytes` that is ready at `now`, before the first stage.
    pub fn new(now: Nanos, bytes: u64) -> Self {
        let ticks = ticks(now);
        Passage {
            bytes,
            stages: 0,
            start: ticks,
            reach: Reach::at(ticks),
            waits: [0; 2],
            is_on_links: false,
            ready: now,
        }
    }

    /// A message that has reserved the first stage, unless more than [`Route::limit`] bytes wait
    /// there.
    ///
    /// # Errors
    /// [`QueueFull`]; nothing is reserved.
    pub fn enter(
        route: &Route,
        clocks: &impl Clocks,
        now: Nanos,
        bytes: u64,
    ) -> Result<Self, QueueFull> {
        let mut passage = Passage::new(now, bytes);
        if let (Some(stage), Some(limit)) = (route.stages.first(), route.limit) {
            let wait = stage.costs.transfer(limit);
            passage.pass(stage, clocks, wait).ok_or(QueueFull)?;
        }
        Ok(passage)
    }

    /// Time at which the message reaches the next stage; `None` behind the last one.
    pub fn reaches(&self, route: &impl StageList) -> Option<Nanos> {
        let stage = route.stage(self.stages)?;
        Some(self.ready_for(&stage) / TICKS)
    }

    /// Reserves the stages that the message reaches until then.
    pub fn advance(&mut self, route: &impl StageList, clocks: &impl Clocks, until: Nanos) {
        while let Some(stage) = route.stage(self.stages) {
            let is_far = self.ready_for(&stage) / TICKS > until;
            // Without a limit no stage refuses.
            if is_far || self.pass(&stage, clocks, u64::MAX).is_none() {
                break;
            }
        }
    }

    /// Times of a message behind the last stage, and `delay`, as drawn from [`Route::jitter`].
    pub fn times(&self, route: &impl StageList, delay: Nanos) -> Times {
        let arrival = self.reach.tail.div_ceil(TICKS).saturating_add(delay);
        Times {
            start: self.start / TICKS,
            arrival: arrival.saturating_sub(route.base()).max(self.ready),
        }
    }

    /// Bytes of the message.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Nanoseconds for which the message has waited so far at stages that begin with the first byte:
    /// at the first one, and at later ones.
    pub fn waits(&self) -> [Nanos; 2] {
        self.waits.map(|wait| wait / TICKS)
    }

    fn ready_for(&self, stage: &Stage) -> u64 {
        self.reach.ready_for(stage)
    }

    fn pass(&mut self, stage: &Stage, clocks: &impl Clocks, wait: u64) -> Option<()> {
        let ready = self.ready_for(stage);
        let start = self.reach.cross(stage, clocks, self.bytes, wait)?;
        if self.stages == 0 {
            self.start = start;
        }
        if !stage.whole {
            let waited = &mut self.waits[usize::from(self.is_on_links)];
            *waited = waited.saturating_add(start - ready);
            self.is_on_links = true;
        }
        self.stages += 1;
        Some(())
    }
}

/// Where a message is: the times at which its ends reach the next stage, in ticks of 1/64 ns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reach {
    /// The first byte.
    pub head: u64,
    /// The last byte.
    pub tail: u64,
}

impl Reach {
    /// A message that is ready at a tick, before the first stage.
    pub fn at(tick: u64) -> Self {
        Reach {
            head: tick,
            tail: tick,
        }
    }

    /// Reserves the next stage for a message of `bytes`, and returns the tick at which the stage
    /// begins with the message. Returns `None`, and reserves nothing, if that would be more than
    /// `wait` ticks late.
    #[inline]
    pub fn cross(
        &mut self,
        stage: &Stage,
        clocks: &impl Clocks,
        bytes: u64,
        wait: u64,
    ) -> Option<u64> {
        let costs = &stage.costs;
        let service = costs.service(bytes);
        let start = clocks.reserve(stage.clock, self.ready_for(stage), service, wait)?;
        let latency = ticks(costs.latency);
        let head = start.saturating_add(ticks(costs.message));
        let tail = start.saturating_add(service).max(self.tail);
        self.head = head.saturating_add(latency);
        self.tail = tail.saturating_add(latency);
        Some(start)
    }

    #[inline]
    fn ready_for(&self, stage: &Stage) -> u64 {
        if stage.whole { self.tail } else { self.head }
    }
}

fn ticks(nanos: Nanos) -> u64 {
    nanos.saturating_mul(TICKS)
}

#[cfg(test)]
mod tests;
