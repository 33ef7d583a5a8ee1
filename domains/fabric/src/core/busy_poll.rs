//! Busy-poll backoff: the time that a thread polls for news before it sleeps.

use std::time::{Duration, Instant};

use super::contention;

/// The back-off of a thread that busy-polls: the time to poll before sleeping.
///
/// The window doubles after a wait so short that polling on would have met the news, and falls back
/// to the shortest after a longer one, as KVM does before it halts a processor
/// (Documentation/virt/kvm/halt-polling.rst in Linux). Without it, two threads that wait for each
/// other in turns stay slow once both have slept, because waking takes longer than one window.
#[derive(Clone, Copy, Debug)]
pub struct BusyPoll {
    window: Duration,
}

impl BusyPoll {
    /// The shortest window: about the least cost of sleeping and being woken, so that polling in
    /// vain at most doubles it.
    const LEAST: Duration = Duration::from_micros(10);

    /// The longest window: the cost of being woken in a virtual machine on a busy host. Peers
    /// polled less often than this sleep instead of spinning.
    const MOST: Duration = Duration::from_micros(200);

    /// The longest time that `sched_yield(2)` takes when no other thread wants the processor for
    /// work of its own.
    const SHORT: Duration = Duration::from_micros(50);

    /// Passes the time between two polls, the first of which was at `since`; returns whether to
    /// poll again. After the shortest window the thread yields its processor, on which the peer may
    /// be waiting to run. After short waits it yields at once where more threads seem to be runnable
    /// than there are processors. Returns false where more threads are runnable than there are
    /// processors and sleeping brings more news.
    pub fn keeps_polling(self, since: Instant) -> bool {
        self.keeps_polling_at(Instant::now(), since)
    }

    fn keeps_polling_at(self, now: Instant, since: Instant) -> bool {
        let before = now.saturating_duration_since(since);
        if contention::is_presumed(now) {
            return false;
        }
        if before < Self::LEAST && !self.yields_at_once(contention::is_suspected()) {
            std::hint::spin_loop();
            return true;
        }
        if contention::is_found(now) || before >= self.window {
            return false;
        }
        std::thread::yield_now();
        // A poller is not woken, so one that was off its processor for long is late.
        since.elapsed() - before < Self::SHORT
    }

    /// Whether a thread yields its processor also within the shortest window. With three threads in a
    /// row on two processors, spinning made a round trip three times as long. After a long wait
    /// there may be threads that compute, and a yield lasts for their turn.
    fn yields_at_once(self, may_be_contention: bool) -> bool {
        may_be_contention && self.window > Self::LEAST
    }

    /// Counts news that came while a thread polled with [`BusyPoll::keeps_polling`].
    pub fn count_news(self) {
        contention::count_news();
    }

    /// Records that a thread that polled in vain from `since` on has slept or yielded, and is back.
    pub fn record_wait(&mut self, since: Instant) {
        self.learn(since.elapsed());
    }

    fn learn(&mut self, time: Duration) {
        self.window = if time < Self::MOST {
            (2 * self.window).min(Self::MOST)
        } else {
            Self::LEAST
        };
    }

    /// Polls from `since`, which is now, until `has_news` or the window has passed. Returns the
    /// part of `timeout` that is left to sleep, or `None` if there are news.
    pub(crate) fn poll_until(
        self,
        since: Instant,
        timeout: Duration,
        mut has_news: impl FnMut() -> bool,
    ) -> Option<Duration> {
        // Few waits end without news.
        contention::count_news();
        let mut now = since;
        while now.saturating_duration_since(since) < timeout {
            if has_news() {
                return None;
            }
            now = Instant::now();
            if !self.keeps_polling_at(now, since) {
                break;
            }
        }
        Some(timeout.saturating_sub(since.elapsed()))
    }
}

impl Default for BusyPoll {
    fn default() -> Self {
        BusyPoll {
            window: Self::LEAST,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;

    use super::*;

    #[test]
    fn a_short_wait_doubles_the_next_window() {
        let mut busy_poll = BusyPoll::default();
        assert_eq!(busy_poll.window, BusyPoll::LEAST);
        busy_poll.learn(Duration::from_micros(30));
        assert_eq!(busy_poll.window, 2 * BusyPoll::LEAST);
        for _ in 0..9 {
            busy_poll.learn(BusyPoll::MOST - Duration::from_nanos(1));
        }
        assert_eq!(busy_poll.window, BusyPoll::MOST);
        busy_poll.learn(BusyPoll::MOST);
        assert_eq!(busy_poll.window, BusyPoll::LEAST);
    }

    /// Regression: beside threads that compute, each wait lasted for their turn.
    #[test]
    fn only_after_short_waits_a_thread_yields_at_once() {
        let mut busy_poll = BusyPoll::default();
        assert!(!busy_poll.yields_at_once(true));
        busy_poll.learn(Duration::from_micros(30));
        assert!(busy_poll.yields_at_once(true));
        assert!(!busy_poll.yields_at_once(false));
        busy_poll.learn(BusyPoll::MOST);
        assert!(!busy_poll.yields_at_once(true));
    }

    #[test]
    fn polling_ends_with_news_or_leaves_time_to_sleep() {
        let busy_poll = BusyPoll::default();
        let (mut polls, hour) = (0, Duration::from_secs(3600));
        let left = busy_poll.poll_until(Instant::now(), hour, || {
            polls += 1;
            polls == 3
        });
        // On a busy machine a thread may get fewer polls in a window.
        assert!(left.is_none() || polls < 3);
        let since = Instant::now();
        let left = busy_poll.poll_until(since, hour, || false).unwrap();
        assert!(left <= hour - BusyPoll::LEAST || contention::is_presumed(since));
        let left = busy_poll.poll_until(Instant::now(), Duration::ZERO, || true);
        assert_eq!(left, Some(Duration::ZERO));
    }

    /// Regression: a message took 20 us and more as soon as a third thread wanted one of two
    /// processors, because both ends polled, and kept each other and the third thread from running.
    #[test]
    fn threads_sleep_at_once_where_there_are_more_of_them_than_processors() {
        let (spinners, hour) = (
            thread::available_parallelism().unwrap(),
            Duration::from_secs(3600),
        );
        let is_over = AtomicBool::new(false);
        let slept_at_once = thread::scope(|scope| {
            for _ in 0..spinners.get() {
                scope.spawn(|| {
                    while !is_over.load(Ordering::Relaxed) {
                        std::hint::spin_loop();
                    }
                });
            }
            let mut tries = (0..1000).map(|_| {
                let (mut polls, since) = (0, Instant::now());
                let left = BusyPoll::default().poll_until(since, hour, || {
                    polls += 1;
                    false
                });
                // Without contention the thread would have polled for longer.
                left.is_some() && polls == 1 && since.elapsed() < BusyPoll::LEAST
            });
            let slept_at_once = tries.any(|slept| slept);
            is_over.store(true, Ordering::Relaxed);
            slept_at_once
        });
        assert!(slept_at_once);
    }

    #[test]
    fn no_poll_outlasts_its_window() {
        let busy_poll = BusyPoll {
            window: BusyPoll::MOST,
        };
        let since = Instant::now().checked_sub(BusyPoll::MOST).unwrap();
        assert!(!busy_poll.keeps_polling(since));
    }
}
