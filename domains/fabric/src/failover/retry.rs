//! When to retry after a failure.

use std::time::{Duration, Instant};

/// The shortest and the longest pause before the peer's host is asked again.
pub(super) const BACKOFF: [Duration; 2] = [Duration::from_millis(20), Duration::from_secs(5)];

/// The longest pause for a device that fails repeatedly, also to connect: each attempt takes seconds.
pub(super) const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// The time of the next attempt.
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

    /// The retry after a failure, and perhaps another before it.
    pub(super) fn after(failed: Option<Self>) -> Self {
        failed.map_or(Self::later(BACKOFF[0]), |last| last.even_later(BACKOFF[1]))
    }

    pub(super) fn even_later(self, longest: Duration) -> Self {
        Self::later(longest.min(self.pause * 2))
    }

    pub(super) fn is_now(self) -> bool {
        self.at <= Instant::now()
    }

    /// As [`Retry::is_now`], for the side that answers an attempt: the pause of the other side may have
    /// begun a little earlier.
    pub(super) fn is_almost_now(self) -> bool {
        self.at <= Instant::now() + self.pause / 2
    }
}
