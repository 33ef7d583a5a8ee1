//! Busy-poll backoff: how long the switch polls for the next frame before it sleeps.
//!
//! Waking a sleeping thread costs more than forwarding a frame: the sender interrupts another core, which
//! a hypervisor may first have to schedule. In an exchange of requests and responses the next frame comes
//! soon, and polling for it is cheaper than a wake-up. Between single frames polling is a waste.
//!
//! On two idle virtual cores a round trip took 40 to 90 us without polling and 36 us with it, and a stream
//! gained a tenth.
//!
//! The switch yields the core between two polls, because the senders of the next frame may need it: with
//! one core busy, that halved the slowest round trips. A computing thread then keeps the core for
//! milliseconds, whereas a thread that wakes from sleep preempts it at once. After losing the core the
//! switch therefore does not poll for a while.

use std::time::{Duration, Instant};

/// The longest polling: longer than a round trip between two nodes, and short enough that a wrong guess
/// costs little.
const LONGEST: Duration = Duration::from_micros(50);

/// A yield longer than this has lost the core to a computing thread. Other threads return sooner: they
/// wait for a frame again.
const CORE_LOST: Duration = Duration::from_micros(500);

/// Time without polling after the core was lost.
const PAUSE: Duration = Duration::from_millis(100);

/// Learns from the last waits whether polling pays.
#[derive(Debug, Default)]
pub(super) struct BusyPoll {
    pays: bool,
    paused_until: Option<Instant>,
}

impl BusyPoll {
    /// How long to poll at the beginning of a wait.
    pub(super) fn duration(&self, now: Instant) -> Duration {
        let may_poll = self.paused_until.is_none_or(|end| end <= now);
        if self.pays && may_poll {
            LONGEST
        } else {
            Duration::ZERO
        }
    }

    /// Records the begin and end of one yield.
    pub(super) fn yielded(&mut self, from: Instant, to: Instant) {
        if to - from > CORE_LOST {
            self.paused_until = Some(to + PAUSE);
        }
    }

    /// Records the wait for the last frame, polling and sleeping together. If polling would have found
    /// that frame, the next wait polls. One longer wait ends polling until frames come in quick
    /// succession again.
    pub(super) fn record_wait(&mut self, from: Instant, to: Instant) {
        self.pays = to - from <= LONGEST;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn polling_begins_with_a_short_wait_and_ends_with_a_long_one() {
        let (mut busy_poll, now) = (BusyPoll::default(), Instant::now());
        assert_eq!(busy_poll.duration(now), Duration::ZERO);
        busy_poll.record_wait(now, now + LONGEST);
        assert_eq!(busy_poll.duration(now), LONGEST);
        busy_poll.record_wait(now, now + 2 * LONGEST);
        assert_eq!(busy_poll.duration(now), Duration::ZERO);
    }

    #[test]
    fn polling_pauses_after_the_core_was_lost() {
        let (mut busy_poll, now) = (BusyPoll::default(), Instant::now());
        busy_poll.record_wait(now, now + LONGEST);
        busy_poll.yielded(now, now + CORE_LOST);
        assert_eq!(busy_poll.duration(now), LONGEST);
        let back = now + 2 * CORE_LOST;
        busy_poll.yielded(now, back);
        busy_poll.record_wait(now, now + LONGEST);
        assert_eq!(busy_poll.duration(back), Duration::ZERO);
        assert_eq!(busy_poll.duration(back + PAUSE), LONGEST);
    }
}
