//! Pacer: when to sleep and when to poll before a frame is due.
//!
//! A sleeping thread wakes 20 to 80 us late here, and more rarely much later. The switch therefore
//! sleeps until a *guard* before the time, and polls from then on. The guard follows the lateness
//! that 99 of 100 wake-ups keep. Polling takes no more than a share of one processor: the guard
//! shrinks with the credit, so that all frames of a stream get a part of the share. Without credit
//! the switch sleeps until the frame is due, which is then late.

use std::ops::RangeInclusive;

use toroid_fabric::model::Nanos;

/// Limits of the guard.
const GUARD: RangeInclusive<Nanos> = 20_000..=150_000;

/// Step of the guard: a late wake-up adds 99 hundredths of it, another takes off one hundredth. The
/// guard is then exceeded once in a hundred times (Robbins and Monro, 1951).
const STEP: Nanos = 5_000;

/// Time for which unused polling may be saved.
const SAVED: Nanos = 20_000_000;

/// What to do until a frame is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pace {
    /// The frame is due.
    Deliver,
    /// Poll.
    Poll,
    /// Sleep until this time.
    Sleep(Nanos),
}

/// Learns how late wake-ups are, and keeps account of polling.
#[derive(Debug)]
pub(super) struct Pacer {
    guard: Nanos,
    /// Share of a processor for polling, in percent.
    share: u64,
    /// Time for which it may poll.
    credit: Nanos,
    credited: Nanos,
    /// Time for which it has polled since the last record.
    polled: Nanos,
}

impl Default for Pacer {
    fn default() -> Self {
        Pacer {
            guard: 50_000,
            share: 30,
            credit: 0,
            credited: 0,
            polled: 0,
        }
    }
}

impl Pacer {
    /// Sets the share of a processor for polling, in percent.
    pub(super) fn set_share(&mut self, percent: u64) {
        self.share = percent.min(100);
    }

    /// What to do at `now` for a frame that is due at `due`.
    pub(super) fn pace(&mut self, now: Nanos, due: Nanos) -> Pace {
        let most = SAVED * self.share / 100;
        let earned = now.saturating_sub(self.credited).min(SAVED) * self.share / 100;
        self.credit = (self.credit + earned).min(most);
        self.credited = now;
        let ahead = due.saturating_sub(now);
        let longer = (self.guard - GUARD.start()) * self.credit / most.max(1);
        let guard = GUARD.start() + longer;
        if ahead == 0 {
            Pace::Deliver
        } else if ahead.min(guard) > self.credit {
            Pace::Sleep(due)
        } else if ahead <= guard {
            Pace::Poll
        } else {
            Pace::Sleep(due - guard)
        }
    }

    /// Records a poll without a result.
    pub(super) fn polled(&mut self, nanos: Nanos) {
        self.credit = self.credit.saturating_sub(nanos);
        self.polled += nanos;
    }

    /// Records how late a wake-up was.
    pub(super) fn woke(&mut self, late: Nanos) {
        let guard = if late > self.guard {
            self.guard + STEP * 99 / 100
        } else {
            self.guard - STEP / 100
        };
        self.guard = guard.clamp(*GUARD.start(), *GUARD.end());
    }

    /// Time of polling since the last call.
    pub(super) fn take_polled(&mut self) -> Nanos {
        std::mem::take(&mut self.polled)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Nanos = 1_000_000_000;

    #[test]
    fn the_switch_sleeps_until_the_guard_and_then_polls() {
        let mut pacer = Pacer::default();
        let due = SECOND + 200_000;
        assert_eq!(pacer.pace(SECOND, due), Pace::Sleep(due - 50_000));
        assert_eq!(pacer.pace(due - 50_000, due), Pace::Poll);
        assert_eq!(pacer.pace(due - 1, due), Pace::Poll);
        assert_eq!(pacer.pace(due, due), Pace::Deliver);
        assert_eq!(pacer.pace(due + 9, due), Pace::Deliver);
    }

    /// Frames are due every 100 us, and each wake-up takes 10 us.
    #[test]
    fn polling_keeps_to_its_share() {
        for share in [0, 5, 30, 100] {
            let mut pacer = Pacer::default();
            pacer.set_share(share);
            let (mut now, mut polled) = (SECOND, 0);
            for due in (SECOND..2 * SECOND).step_by(100_000) {
                loop {
                    match pacer.pace(now, due) {
                        Pace::Deliver => break,
                        Pace::Poll => {
                            pacer.polled(500);
                            now += 500;
                        }
                        Pace::Sleep(until) => {
                            now = until + 10_000;
                            pacer.woke(10_000);
                        }
                    }
                }
                polled += pacer.take_polled();
            }
            let limit = (SECOND + SAVED) * share / 100;
            assert!(polled <= limit, "{polled} of {limit} at {share} %");
            // The guard falls to 20 us, of which half is slept through.
            assert!(
                polled >= (limit * 9 / 10).min(SECOND / 12),
                "{polled} at {share} %"
            );
        }
    }

    /// Frames are due every 72 us, of which the switch is busy for 35 us.
    #[test]
    fn a_stream_that_exceeds_the_share_is_seldom_late() {
        let mut pacer = Pacer::default();
        let mut random = fastrand::Rng::with_seed(7);
        let (mut now, mut late) = (SECOND, 0);
        for due in (SECOND..2 * SECOND).step_by(72_000) {
            loop {
                match pacer.pace(now, due) {
                    Pace::Deliver => break,
                    Pace::Poll => {
                        pacer.polled(500);
                        now += 500;
                    }
                    Pace::Sleep(until) => {
                        let wake_up = random.u64(10_000..30_000);
                        now = until.max(now) + wake_up;
                        pacer.woke(wake_up);
                    }
                }
            }
            late += u32::from(now > due + 1_000);
            now += 35_000;
        }
        assert!(late < 100, "{late} of {}", SECOND / 72_000);
    }

    #[test]
    fn the_guard_follows_late_wake_ups() {
        let mut pacer = Pacer::default();
        let mut random = fastrand::Rng::with_seed(7);
        for _ in 0..100_000 {
            pacer.woke(random.u64(0..100_000));
        }
        assert!((90_000..=110_000).contains(&pacer.guard), "{}", pacer.guard);
        (0..10_000).for_each(|_| pacer.woke(SECOND));
        assert_eq!(pacer.guard, *GUARD.end());
        (0..10_000).for_each(|_| pacer.woke(0));
        assert_eq!(pacer.guard, *GUARD.start());
    }
}
