//! Time that the machine itself takes for a transfer.

use super::SOON;
use crate::model::Nanos;
use crate::os::thread::monotonic;

/// Bytes from which on the time depends on the length.
pub(super) const LONG: u64 = 4096;

/// Long transfers that count.
const RECENT: usize = 7;

/// Times of recent transfers.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct OwnTime {
    short: Shortest,
    /// Nanoseconds per MiB of long transfers, oldest first from `long % RECENT` on.
    per_mib: [Nanos; RECENT],
    /// Number of long transfers.
    long: usize,
}

impl OwnTime {
    pub(super) fn learn(&mut self, bytes: u64, took: Nanos) {
        if bytes < LONG {
            self.short.learn(took);
        } else {
            self.per_mib[self.long % RECENT] = took.saturating_mul(1 << 20) / bytes;
            self.long += 1;
        }
    }

    /// The shortest time of a short transfer, and the median time of a long one. 0 before the first.
    pub(super) fn of(&self, bytes: u64) -> Nanos {
        if bytes < LONG {
            return self.short.get();
        }
        let mut recent = self.per_mib;
        let recent = &mut recent[..self.long.min(RECENT)];
        recent.sort_unstable();
        let median = recent.get(recent.len() / 2).copied().unwrap_or_default();
        ((u128::from(median) * u128::from(bytes)) >> 20) as Nanos
    }
}

/// The shortest of recent times: longer ones were interrupted.
#[derive(Clone, Copy, Debug, Default)]
struct Shortest(Option<Nanos>);

impl Shortest {
    fn learn(&mut self, took: Nanos) {
        // The known time grows slowly, so that it follows a change.
        let shortest = self
            .0
            .map_or(took, |known| took.min(known + known / 64 + 1));
        self.0 = Some(shortest);
    }

    /// 0 before the first time.
    fn get(self) -> Nanos {
        self.0.unwrap_or_default()
    }
}

/// Time that a call takes to return.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Exit {
    exit: Shortest,
    /// Time of a look at the clock.
    clock: Shortest,
}

impl Exit {
    /// Learns from a call that looked at the clock at `looked` and is about to return.
    pub(super) fn learn(&mut self, looked: Nanos) {
        let now = monotonic();
        self.clock.learn(monotonic() - now);
        // Half a look passes before the caller's time begins, and half of one after it ends.
        self.exit.learn(now - looked + 2 * self.clock.get());
    }

    /// The time before its due time at which a call returns, at most [`SOON`]. 0 before the first.
    pub(super) fn get(&self) -> Nanos {
        // Calls with cold caches took longer than the next one may take.
        self.exit.get().min(SOON)
    }

    /// The time between two looks at the clock, without the looks.
    pub(super) fn without_clock(&self, time: Nanos) -> Nanos {
        time.saturating_sub(self.clock.get())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interrupted_transfers_do_not_count_and_changes_do() {
        let mut time = OwnTime::default();
        assert_eq!((time.of(64), time.of(1 << 20)), (0, 0));
        for took in [70, 60, 4_000, 61] {
            time.learn(64, took);
        }
        assert!((60..70).contains(&time.of(8)));
        for _ in 0..200 {
            time.learn(64, 300);
        }
        assert_eq!(time.of(64), 300);
    }

    #[test]
    fn a_long_transfer_takes_the_median_of_recent_ones() {
        let mut time = OwnTime::default();
        for took in [1_000_000, 100_000, 104_000, 102_000, 900_000] {
            time.learn(1 << 20, took);
        }
        assert_eq!((time.of(1 << 20), time.of(1 << 19)), (104_000, 52_000));
        for _ in 0..4 {
            time.learn(2 << 20, 100_000);
        }
        assert_eq!(time.of(1 << 20), 50_000);
    }
}
