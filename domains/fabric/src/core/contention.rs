//! Contention for processors: more runnable threads than the host has processors.
//!
//! A polling thread occupies a processor. As long as another processor is left for the peer,
//! polling saves the time of falling asleep and of waking up. With more runnable threads than
//! processors, polling keeps the peer from running. A thread that sleeps at once hands its
//! processor to the peer, and both threads together need only one.
//!
//! The number of runnable threads comes from /proc/loadavg (proc(5)). A look costs some
//! microseconds, so threads share the result of the last look for a while.
//!
//! * Contention is an excess of threads that lasts longer than [`MOMENT`], without a look in
//!   between that found none. A kernel thread that runs for some microseconds does not count.
//! * Contention is presumed to last for [`SHORT`]. Then threads poll again: while both threads
//!   sleep in turns, the number does not show the effect of polling.
//! * If contention is found again within the time that it was presumed to last, it is presumed to
//!   last twice as long, up to [`LONG`]. So polling continues if it succeeds for longer than
//!   threads slept.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

/// Validity of a look that found no excess of threads, in microseconds like all times here.
const FRESH: u64 = 500;

/// Validity of a look that found more threads than processors for the first time.
const GLANCE: u64 = 50;

/// Longest excess of threads that is no contention.
const MOMENT: u64 = 200;

/// Age from which an earlier look is ignored.
const AGES: u64 = 5000;

/// Presumed duration of new contention.
const SHORT: u64 = 1000;

/// Longest presumed duration of contention.
const LONG: u64 = 64_000;

/// The contention that this process knows of.
static KNOWN: Contention = Contention::none();

/// Whether a thread that polls from `now` on would keep another from running. To be called after
/// some polling, when the peer is runnable.
pub(crate) fn is_found(now: Instant) -> bool {
    KNOWN.is_found(since_start_us(now), runnable_beyond_processors)
}

/// Whether contention is presumed to last, without a look. For every round of polling: without
/// contention the call is one load.
pub(crate) fn is_presumed(now: Instant) -> bool {
    KNOWN.is_presumed(|| since_start_us(now))
}

/// The result of the last look. All times are in microseconds since the first look.
///
/// The words are hints without mutual consistency: a thread that sees words of two looks polls or
/// sleeps once in vain.
#[derive(Debug)]
struct Contention {
    /// Time of the next look.
    until: AtomicU64,
    /// Presumed duration of contention; 0 without contention.
    lasts: AtomicU64,
    /// Time of the first of the looks that found more threads than processors; 0 if the last one
    /// did not.
    since: AtomicU64,
}

impl Contention {
    const fn none() -> Self {
        Contention {
            until: AtomicU64::new(0),
            lasts: AtomicU64::new(0),
            since: AtomicU64::new(0),
        }
    }

    fn is_presumed(&self, now: impl FnOnce() -> u64) -> bool {
        self.lasts.load(Ordering::Relaxed) != 0 && now() < self.until.load(Ordering::Relaxed)
    }

    fn is_found(&self, now: u64, look: impl FnOnce() -> bool) -> bool {
        let until = self.until.load(Ordering::Relaxed);
        let lasted = self.lasts.load(Ordering::Relaxed);
        if now < until {
            return lasted != 0;
        }
        if !look() {
            self.since.store(0, Ordering::Relaxed);
            return self.presume(now, 0, FRESH);
        }
        if lasted != 0 && now - until <= lasted {
            let longer = (2 * lasted).min(LONG);
            return self.presume(now, longer, longer);
        }
        match now.saturating_sub(self.since.load(Ordering::Relaxed)) {
            ..MOMENT => self.presume(now, 0, GLANCE),
            MOMENT..AGES => self.presume(now, SHORT, SHORT),
            _ => {
                self.since.store(now, Ordering::Relaxed);
                self.presume(now, 0, GLANCE)
            }
        }
    }

    /// Records a presumed duration and the validity of the look; returns whether there is
    /// contention.
    fn presume(&self, now: u64, lasts: u64, good: u64) -> bool {
        self.lasts.store(lasts, Ordering::Relaxed);
        self.until.store(now + good, Ordering::Relaxed);
        lasts != 0
    }
}

/// Microseconds since the first call plus twice [`AGES`], so that 0 is long ago.
fn since_start_us(now: Instant) -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    let start = *START.get_or_init(Instant::now);
    2 * AGES + now.saturating_duration_since(start).as_micros() as u64
}

/// Whether there are more runnable threads than processors; false without /proc.
fn runnable_beyond_processors() -> bool {
    static LOADAVG: OnceLock<Option<(File, usize)>> = OnceLock::new();
    let open = || {
        let processors = thread::available_parallelism().ok()?.get();
        Some((File::open("/proc/loadavg").ok()?, processors))
    };
    let Some((file, processors)) = LOADAVG.get_or_init(open) else {
        return false;
    };
    let mut text = [0; 64];
    let len = file.read_at(&mut text, 0).unwrap_or(0);
    runnable(&text[..len]).is_some_and(|runnable| runnable > *processors)
}

/// Number of runnable threads in a line of /proc/loadavg such as `0.20 0.18 0.12 3/80 11206`.
fn runnable(line: &[u8]) -> Option<usize> {
    let line = std::str::from_utf8(line).ok()?;
    let (runnable, _) = line.split_whitespace().nth(3)?.split_once('/')?;
    runnable.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_counts_this_thread_among_the_runnable() {
        assert_eq!(runnable(b"0.20 0.18 0.12 3/80 11206\n"), Some(3));
        for other in [
            &b""[..],
            b"0.20 0.18 0.12",
            b"0.20 0.18 0.12 x/80 1",
            b"\xff",
        ] {
            assert_eq!(runnable(other), None);
        }
        let line = std::fs::read("/proc/loadavg").unwrap();
        assert!(runnable(&line) >= Some(1));
    }

    fn never() -> bool {
        unreachable!("the last look is still good")
    }

    #[test]
    fn a_momentary_excess_of_threads_is_no_contention() {
        let known = Contention::none();
        let mut now = 2 * AGES;
        for _ in 0..3 {
            assert!(!known.is_found(now, || true));
            assert!(!known.is_found(now + GLANCE - 1, never));
            assert!(!known.is_found(now + MOMENT - 1, || true));
            now += MOMENT + GLANCE;
            assert!(!known.is_found(now, || false));
            assert!(!known.is_found(now + FRESH - 1, never));
            now += FRESH;
        }
        assert!(!known.is_found(now, || true));
        assert!(
            !known.is_found(now + AGES, || true),
            "the last look is too old to count"
        );
        assert!(known.is_found(now + AGES + MOMENT, || true));
    }

    /// Lasting contention makes looks ever rarer; a look without contention ends it.
    #[test]
    fn contention_found_again_soon_is_presumed_to_last_twice_as_long() {
        let known = Contention::none();
        let mut now = 2 * AGES;
        assert!(!known.is_found(now, || true));
        now += MOMENT;
        for lasts in [1000, 2000, 4000, 8000, 16_000, 32_000, 64_000, 64_000] {
            assert!(!known.is_presumed(|| now), "a thread polls before it looks");
            assert!(known.is_found(now, || true));
            assert!(
                known.is_presumed(|| now + lasts - 1) && known.is_found(now + lasts - 1, never)
            );
            now += lasts;
        }
        // Threads have polled for longer than they slept.
        now += LONG + 1;
        assert!(!known.is_found(now, || true));
        now += MOMENT;
        assert!(known.is_found(now, || true));
        assert!(known.is_presumed(|| now + SHORT - 1) && !known.is_presumed(|| now + SHORT));
        now += SHORT;
        assert!(!known.is_found(now, || false));
        assert!(!known.is_presumed(|| now));
    }
}
