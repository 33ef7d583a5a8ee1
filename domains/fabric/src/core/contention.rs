//! Whether more threads want processors than the host has.
//!
//! A thread that polls keeps a processor. As long as one is left for the peer, polling saves both
//! the time to fall asleep and to be woken. Once there are more runnable threads than processors,
//! polling keeps the peer from running: then a thread that sleeps at once hands its processor over,
//! and both together need no more than one.
//!
//! The number of runnable threads is the kernel's, of /proc/loadavg (proc(5)). A look costs some
//! microseconds, so threads share the last one for a while.
//!
//! * A thread of the kernel that runs for some microseconds is no contention: this is what is found
//!   for longer than [`MOMENT`], without a look in between that found none.
//! * Contention is presumed to last for [`SHORT`]. Then threads poll again: while both sleep in turns,
//!   the number says nothing about what polling would do.
//! * Where contention is found again sooner than it was presumed to last, it is presumed to last twice
//!   as long, up to [`LONG`]. So polling that goes well for longer than threads slept goes on.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

/// For how long a look that found no contention is good.
const FRESH: u64 = 500;

/// For how long a look is good that found more threads than processors for the first time.
const GLANCE: u64 = 50;

/// What is found for no longer is no contention.
const MOMENT: u64 = 200;

/// What was found so long ago says nothing.
const AGES: u64 = 5000;

/// For how long contention is presumed to last when it is found anew, and for how long at most.
const SHORT: u64 = 1000;
const LONG: u64 = 64_000;

/// What this process knows.
static KNOWN: Contention = Contention::none();

/// Whether a thread that polls from `now` on would keep a processor from another. A thread asks
/// after it has polled for a while, so that its peer is runnable.
pub(crate) fn is_found(now: Instant) -> bool {
    KNOWN.is_found(since_start_us(now), runnable_beyond_processors)
}

/// Whether contention is presumed to last, without a look. A thread that polls asks this again and
/// again: where there is no contention, the answer is one load.
pub(crate) fn is_presumed(now: Instant) -> bool {
    KNOWN.is_presumed(|| since_start_us(now))
}

/// The last look and what it found. All times are in microseconds since the first.
///
/// The words are hints, and not kept consistent with each other: a thread that sees those of two looks
/// polls or sleeps once in vain.
#[derive(Debug)]
struct Contention {
    /// When to look again.
    until: AtomicU64,
    /// For how long contention is presumed to last; 0 if there is none.
    lasts: AtomicU64,
    /// Since when looks have found more threads than processors; 0 if the last one did not.
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

    /// Notes what was found, and for how long that is good; returns whether it is contention.
    fn presume(&self, now: u64, lasts: u64, good: u64) -> bool {
        self.lasts.store(lasts, Ordering::Relaxed);
        self.until.store(now + good, Ordering::Relaxed);
        lasts != 0
    }
}

/// Beyond [`AGES`] from the start, so that 0 is long ago.
fn since_start_us(now: Instant) -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    let start = *START.get_or_init(Instant::now);
    2 * AGES + now.saturating_duration_since(start).as_micros() as u64
}

/// Without /proc there is no contention.
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

/// The runnable threads that a line of /proc/loadavg counts, such as `0.20 0.18 0.12 3/80 11206`.
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
    fn what_is_found_for_a_moment_is_no_contention() {
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
            "nothing of the last one"
        );
        assert!(known.is_found(now + AGES + MOMENT, || true));
    }

    /// Contention that lasts is looked for ever less often; a look without it ends it.
    #[test]
    fn contention_is_presumed_to_last_the_longer_the_sooner_it_is_found_again() {
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
