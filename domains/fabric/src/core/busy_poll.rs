//! How long a thread polls for news before it sleeps.

use std::time::{Duration, Instant};

use super::contention;

/// How often to look for news before asking for the time, which takes as long as some looks.
const LOOKS: usize = 4;

/// How long to look for news before falling asleep: longer, when something came so soon after the first
/// look that looking on would have met it, and briefly again, when nothing did. It is how KVM lets a processor
/// look around before it halts (Documentation/virt/kvm/halt-polling.rst in Linux).
///
/// Two who wait for each other in turns otherwise stay slow for ever, once both have fallen asleep, where
/// to be woken takes longer than the other one looks.
#[derive(Clone, Copy, Debug)]
pub struct Polling {
    window: Duration,
}

impl Polling {
    /// About what falling asleep and being woken costs at least, so that it at most doubles the price of
    /// either.
    const LEAST: Duration = Duration::from_micros(10);

    /// What being woken costs in a virtual machine whose host is busy. Who is asked less often than this
    /// lets its processor sleep.
    const MOST: Duration = Duration::from_micros(200);

    /// Who lets others have the processor is back sooner, unless they have work of their own to do.
    const SHORT: Duration = Duration::from_micros(50);

    /// Passes the time between two looks, the first of which was at `since`; returns whether to look
    /// on. Soon it lets others have the processor: whom it waits for may be one of them. Where threads
    /// want more processors than there are, it does not look on.
    pub fn pause(self, since: Instant) -> bool {
        self.pause_at(Instant::now(), since)
    }

    fn pause_at(self, now: Instant, since: Instant) -> bool {
        let before = now.saturating_duration_since(since);
        if contention::is_presumed(now) {
            return false;
        }
        if before < Self::LEAST {
            std::hint::spin_loop();
            return true;
        }
        if contention::is_found(now) || before >= self.window {
            return false;
        }
        std::thread::yield_now();
        // Who looks is not woken, so those who keep the processor would keep it longer than from a sleeper.
        since.elapsed() - before < Self::SHORT
    }

    /// Notes that who looked from `since` on in vain has slept, or let others have the processor, and is back.
    pub fn waited(&mut self, since: Instant) {
        self.learn(since.elapsed());
    }

    fn learn(&mut self, time: Duration) {
        self.window = if time < Self::MOST {
            (2 * self.window).min(Self::MOST)
        } else {
            Self::LEAST
        };
    }

    /// Looks from `since`, which is now, until there is news, or it is time to sleep: returns how long.
    pub(crate) fn look(
        self,
        since: Instant,
        timeout: Duration,
        mut has_news: impl FnMut() -> bool,
    ) -> Option<Duration> {
        let mut now = since;
        while now.saturating_duration_since(since) < timeout {
            if (0..LOOKS).any(|_| has_news()) {
                return None;
            }
            now = Instant::now();
            if !self.pause_at(now, since) {
                break;
            }
        }
        Some(timeout.saturating_sub(since.elapsed()))
    }
}

impl Default for Polling {
    fn default() -> Self {
        Polling {
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
    fn who_waits_shortly_looks_longer_the_next_time() {
        let mut polling = Polling::default();
        assert_eq!(polling.window, Polling::LEAST);
        polling.learn(Duration::from_micros(30));
        assert_eq!(polling.window, 2 * Polling::LEAST);
        for _ in 0..9 {
            polling.learn(Polling::MOST - Duration::from_nanos(1));
        }
        assert_eq!(polling.window, Polling::MOST);
        polling.learn(Polling::MOST);
        assert_eq!(polling.window, Polling::LEAST);
    }

    #[test]
    fn a_look_ends_with_news_or_leaves_time_to_sleep() {
        let polling = Polling::default();
        let (mut looks, hour) = (0, Duration::from_secs(3600));
        let left = polling.look(Instant::now(), hour, || {
            looks += 1;
            looks == 3 * LOOKS
        });
        // Whoever did not get as many looks in a window slept through it.
        assert!(left.is_none() || looks < 3 * LOOKS);
        let since = Instant::now();
        let left = polling.look(since, hour, || false).unwrap();
        assert!(left <= hour - Polling::LEAST || contention::is_presumed(since));
        let left = polling.look(Instant::now(), Duration::ZERO, || true);
        assert_eq!(left, Some(Duration::ZERO));
    }

    /// Once a message took 20 us and more as soon as a third thread wanted one of two processors: both
    /// ends polled, and kept each other and the third from running.
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
                let (mut looks, since) = (0, Instant::now());
                let left = Polling::default().look(since, hour, || {
                    looks += 1;
                    false
                });
                // Without contention it would have looked for longer.
                left.is_some() && looks == LOOKS && since.elapsed() < Polling::LEAST
            });
            let slept_at_once = tries.any(|slept| slept);
            is_over.store(true, Ordering::Relaxed);
            slept_at_once
        });
        assert!(slept_at_once);
    }

    #[test]
    fn who_has_looked_for_long_enough_looks_no_longer() {
        let polling = Polling {
            window: Polling::MOST,
        };
        let since = Instant::now().checked_sub(Polling::MOST).unwrap();
        assert!(!polling.pause(since));
    }
}
