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
//! * From a look that finds an excess of threads until one that finds none, threads that poll yield
//!   their processors between two polls in place of spinning ([`is_suspected`]). While polling is
//!   the better way, the next look may be [`LONG`] away.
//! * An excess of threads that lasts longer than [`MOMENT`], without a look in between that found
//!   none, is tried as contention. A kernel thread that runs for some microseconds does not count.
//! * In a trial threads sleep at once for [`TRIAL`]. The trial shows contention if this process then
//!   gets at least as many news per time as while it polled. A thread that never waits is kept from
//!   its processor by polling; threads that all wait for each other may lose more by waking up.
//! * The result holds for [`TRIAL`], and twice as long each time that it is found again, up to
//!   [`LONG`]. Then the other way is tried again.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};
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

/// Duration of a trial of either way to wait.
const TRIAL: u64 = 1000;

/// Longest time for which the result of a trial holds.
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

/// Whether the last look found more threads than processors: another thread may need this processor.
/// For every round of polling, like [`is_presumed`].
pub(crate) fn is_suspected() -> bool {
    KNOWN.is_suspected()
}

/// Counts news for which a thread may have waited.
pub(crate) fn count_news() {
    KNOWN.count_news();
}

/// Result of the last look, or the trial that goes on. All times are in microseconds since the
/// first look.
///
/// The words are hints without mutual consistency: a thread that sees words of two looks polls or
/// sleeps once in vain.
#[derive(Debug)]
struct Contention {
    /// Time of the next look.
    until: AtomicU64,
    /// Whether threads sleep at once until then.
    sleeps: AtomicBool,
    /// News during phases of trials, except those that threads counted at the same time.
    news: AtomicU64,
    /// Whether the last look found an excess of threads. Only then are news counted: threads that
    /// poll in turns would pay for the count otherwise.
    is_suspected: AtomicBool,
    trial: Mutex<Trial>,
}

/// Comparison of polling and sleeping.
#[derive(Debug)]
struct Trial {
    /// Start of the phase: of the first of the looks that found more threads than processors, or of
    /// the present way to wait. 0 if the last look found no more threads than processors.
    since: u64,
    /// News at that time.
    news: u64,
    /// Whether both ways are tried in turns.
    goes_on: bool,
    /// Whether sleeping is the better way as far as known.
    sleep_is_better: bool,
    /// News per second with polling and with sleeping.
    rates: [u64; 2],
    /// Time for which the better way is kept.
    hold: u64,
}

impl Trial {
    const NONE: Trial = Trial {
        since: 0,
        news: 0,
        goes_on: false,
        sleep_is_better: false,
        rates: [0; 2],
        hold: TRIAL,
    };
}

impl Contention {
    const fn none() -> Self {
        Contention {
            until: AtomicU64::new(0),
            sleeps: AtomicBool::new(false),
            news: AtomicU64::new(0),
            is_suspected: AtomicBool::new(false),
            trial: Mutex::new(Trial::NONE),
        }
    }

    fn count_news(&self) {
        if !self.is_suspected() {
            return;
        }
        // A lost count is harmless, and cheaper than a locked instruction.
        let news = self.news.load(Ordering::Relaxed);
        self.news.store(news.wrapping_add(1), Ordering::Relaxed);
    }

    fn is_suspected(&self) -> bool {
        self.is_suspected.load(Ordering::Relaxed)
    }

    fn is_presumed(&self, now: impl FnOnce() -> u64) -> bool {
        self.sleeps.load(Ordering::Relaxed) && now() < self.until.load(Ordering::Relaxed)
    }

    fn is_found(&self, now: u64, look: impl FnOnce() -> bool) -> bool {
        if now < self.until.load(Ordering::Relaxed) {
            return self.sleeps.load(Ordering::Relaxed);
        }
        // Another thread is looking.
        let Ok(mut trial) = self.trial.try_lock() else {
            return self.sleeps.load(Ordering::Relaxed);
        };
        let trial = &mut *trial;
        let (until, sleeps) = (
            self.until.load(Ordering::Relaxed),
            self.sleeps.load(Ordering::Relaxed),
        );
        // Another thread has looked since, perhaps later than `now`.
        if now < until || now < trial.since {
            return sleeps;
        }
        if now - until > AGES.max(trial.hold) {
            self.forget(trial);
        }
        // While threads sleep in turns, the number of runnable threads does not show the effect of
        // polling.
        let is_tried_asleep = trial.goes_on && sleeps;
        if !is_tried_asleep && !look() {
            self.forget(trial);
            return self.wait_by(false, now, FRESH);
        }
        if !trial.goes_on {
            match now - trial.since {
                ..MOMENT => return self.wait_by(false, now, GLANCE),
                MOMENT..AGES => trial.goes_on = true,
                _ => {
                    self.begin(trial, now);
                    return self.wait_by(false, now, GLANCE);
                }
            }
        }
        let news = self.news.load(Ordering::Relaxed).wrapping_sub(trial.news);
        trial.rates[usize::from(sleeps)] =
            news.saturating_mul(1_000_000) / (now - trial.since).max(1);
        self.begin(trial, now);
        if sleeps == trial.sleep_is_better {
            return self.wait_by(!sleeps, now, TRIAL);
        }
        let [polling, sleeping] = trial.rates;
        let sleep_is_better = sleeping >= polling;
        trial.hold = if sleep_is_better == trial.sleep_is_better {
            (2 * trial.hold).min(LONG)
        } else {
            TRIAL
        };
        trial.sleep_is_better = sleep_is_better;
        self.wait_by(sleep_is_better, now, trial.hold)
    }

    /// Starts a phase.
    fn begin(&self, trial: &mut Trial, now: u64) {
        trial.since = now;
        trial.news = self.news.load(Ordering::Relaxed);
        self.is_suspected.store(true, Ordering::Relaxed);
    }

    fn forget(&self, trial: &mut Trial) {
        *trial = Trial::NONE;
        self.is_suspected.store(false, Ordering::Relaxed);
    }

    /// Makes threads wait in one way for some time; returns whether they sleep.
    fn wait_by(&self, sleeping: bool, now: u64, time: u64) -> bool {
        self.sleeps.store(sleeping, Ordering::Relaxed);
        self.until.store(now + time, Ordering::Relaxed);
        sleeping
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
            assert!(!known.is_suspected());
            assert!(!known.is_found(now, || true));
            assert!(known.is_suspected());
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

    /// Runs a process that gets `rates` news per millisecond with polling and with sleeping, and
    /// returns the share of time for which threads slept.
    fn sleeping_share(known: &Contention, start: u64, time: u64, rates: [u64; 2]) -> f64 {
        let (mut slept, mut owed) = (0, 0);
        for now in (start..start + time).step_by(10) {
            let sleeps = known.is_presumed(|| now) || known.is_found(now, || true);
            slept += u64::from(sleeps);
            owed += 10 * rates[usize::from(sleeps)];
            for _ in 0..owed / 1000 {
                known.count_news();
            }
            owed %= 1000;
        }
        slept as f64 * 10.0 / time as f64
    }

    #[test]
    fn threads_wait_in_the_way_that_brings_more_news() {
        const SECOND: u64 = 1_000_000;
        for (rates, expected) in [
            ([37, 100], 0.9..1.0),
            ([500, 100], 0.0..0.1),
            ([0, 0], 0.9..1.0),
        ] {
            let known = Contention::none();
            let share = sleeping_share(&known, 2 * AGES, SECOND, rates);
            assert!(expected.contains(&share), "{rates:?}: {share}");
            // The other way has become better.
            let share = sleeping_share(&known, 2 * AGES + SECOND, SECOND, [rates[1], rates[0]]);
            let other = if rates[0] == rates[1] {
                share
            } else {
                1.0 - share
            };
            assert!(expected.contains(&other), "{rates:?} changed: {share}");
        }
    }

    /// Regression: a thread read the clock, and before it looked another thread looked later. The
    /// first thread ended the new phase at once, or computed with a negative time.
    #[test]
    fn a_look_of_an_earlier_time_changes_nothing() {
        let known = Contention::none();
        let start = 2 * AGES;
        sleeping_share(&known, start, 10_000, [1, 10]);
        let trial = |known: &Contention| format!("{:?}", known.trial.lock().unwrap());
        let before = trial(&known);
        // As when the time of the next look is read before another thread changes it.
        let until = known.until.swap(0, Ordering::Relaxed);
        known.is_found(start, never);
        assert_eq!(trial(&known), before);
        known.until.store(until, Ordering::Relaxed);
        known.is_found(start, never);
        assert_eq!(trial(&known), before);
    }

    #[test]
    fn a_look_without_contention_ends_the_comparison() {
        let known = Contention::none();
        sleeping_share(&known, 2 * AGES, 100_000, [1, 10]);
        let mut now = 2 * AGES + 100_000;
        while known.is_found(now, || false) {
            now += 10;
        }
        assert!(now <= 2 * AGES + 100_000 + LONG);
        assert!(!known.is_presumed(|| now) && !known.is_found(now + FRESH - 1, never));
        now += TRIAL;
        assert!(!known.is_found(now, || false) && !known.is_suspected());
        assert!(
            !known.is_found(now + FRESH, || true),
            "a new excess counts anew"
        );
    }
}
