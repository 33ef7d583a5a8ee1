//! When to try again what has failed.

use std::time::{Duration, Instant};

/// Pauses before the far side is asked again grow from the first to the second.
pub(super) const BACKOFF: [Duration; 2] = [Duration::from_millis(20), Duration::from_secs(5)];

/// The same for a device that fails again and again, also to connect: each time takes seconds.
pub(super) const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// When something may be tried once more.
#[derive(Clone, Copy, Debug)]
pub(super) struct Retry {
    at: Instant,
    pause: Duration,
}

impl Retry {
    pub(super) fn at_once() -> Self {
        Retry {
            at: Instant::now(),
            pause: BACKOFF[0],
        }
    }

    pub(super) fn later(pause: Duration) -> Self {
        Retry {
            at: Instant::now() + pause,
            pause,
        }
    }

    pub(super) fn even_later(self, longest: Duration) -> Self {
        Self::later(longest.min(self.pause * 2))
    }

    pub(super) fn is_now(self) -> bool {
        self.at <= Instant::now()
    }

    /// The same for who hears of somebody else's pause, which may have begun a little earlier.
    pub(super) fn is_almost_now(self) -> bool {
        self.at <= Instant::now() + self.pause / 2
    }
}
