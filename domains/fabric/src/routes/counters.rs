//! Counters of a network card: what one tenant's packets of one mode met.
//!
//! The four counters of the paper. All of them are of the card, none of a router: a router's
//! counters hold the traffic of other tenants.

use std::ops::{Add, AddAssign};

/// Length of a cycle of the network card: 800 MHz.
pub const CYCLE_NS: f64 = 1.25;

/// Sums since the card started. Differences of two readings describe the time between.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Flits of requests that left the card.
    pub request_flits: u64,
    /// Cycles for which a flit was ready and back-pressure held it.
    pub stalled_cycles: u64,
    /// Requests with a response.
    pub packets: u64,
    /// Sum over `packets` of the nanoseconds between request and response, without the wait in the
    /// card's queue.
    pub latency_ns: u64,
}

/// Latency and stalls of an interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    /// L: mean time between request and response, in cycles.
    pub latency: f64,
    /// s: stalled cycles per flit.
    pub stalls: f64,
}

impl Counters {
    /// What was counted after `earlier`. A counter that fell counts as unchanged.
    #[must_use]
    pub fn since(&self, earlier: &Counters) -> Counters {
        Counters {
            request_flits: self.request_flits.saturating_sub(earlier.request_flits),
            stalled_cycles: self.stalled_cycles.saturating_sub(earlier.stalled_cycles),
            packets: self.packets.saturating_sub(earlier.packets),
            latency_ns: self.latency_ns.saturating_sub(earlier.latency_ns),
        }
    }

    /// Stalled cycles per flit; `None` without flits.
    pub fn stalls(&self) -> Option<f64> {
        (self.request_flits > 0).then(|| self.stalled_cycles as f64 / self.request_flits as f64)
    }

    /// Mean latency of a packet in cycles; `None` without packets.
    pub fn latency(&self) -> Option<f64> {
        (self.packets > 0).then(|| self.latency_ns as f64 / self.packets as f64 / CYCLE_NS)
    }

    /// Latency and stalls; `None` without flits or without packets.
    pub fn sample(&self) -> Option<Sample> {
        Some(Sample {
            latency: self.latency()?,
            stalls: self.stalls()?,
        })
    }
}

impl Add for Counters {
    type Output = Counters;

    fn add(self, other: Counters) -> Counters {
        Counters {
            request_flits: self.request_flits.saturating_add(other.request_flits),
            stalled_cycles: self.stalled_cycles.saturating_add(other.stalled_cycles),
            packets: self.packets.saturating_add(other.packets),
            latency_ns: self.latency_ns.saturating_add(other.latency_ns),
        }
    }
}

impl AddAssign for Counters {
    fn add_assign(&mut self, other: Counters) {
        *self = *self + other;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_give_latency_in_cycles_and_stalls_per_flit() {
        let earlier = Counters {
            request_flits: 100,
            stalled_cycles: 7,
            packets: 20,
            latency_ns: 30_000,
        };
        let counted = Counters {
            request_flits: 50,
            stalled_cycles: 25,
            packets: 10,
            latency_ns: 25_000,
        };
        let now = earlier + counted;
        assert_eq!(now.since(&earlier), counted);
        let sample = now.since(&earlier).sample().unwrap();
        assert_eq!((sample.latency, sample.stalls), (2000.0, 0.5));
    }

    #[test]
    fn an_interval_without_packets_has_no_sample() {
        assert_eq!(Counters::default().sample(), None);
        let earlier = Counters {
            packets: 5,
            ..Counters::default()
        };
        assert_eq!(Counters::default().since(&earlier), Counters::default());
    }
}
