//! A thread that acts for threads which do not look.
//!
//! Objects with something due later register once, and publish the time in [`Due::at`]. The thread
//! sleeps until the earliest. While times change, it wakes in short intervals instead, so that their
//! owners do not have to wake it: that takes a system call. The interval grows as long as the owners
//! act themselves.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::thread::{self, Thread};
use std::time::Duration;

use crate::model::Nanos;
use crate::os::thread::{lock, monotonic, precisely, spawn_undisturbed};

/// Nothing is due.
pub(super) const NEVER: Nanos = Nanos::MAX;

/// The shortest and the longest interval.
const INTERVALS: [Nanos; 2] = [50_000, 200_000];

/// The shortest sleep, also when the owner of a due object holds its lock.
const LEAST: Nanos = 20_000;

/// Time after the last change for which the thread wakes in intervals.
const LINGER: Nanos = 5_000_000;

/// Stack of the thread, which executes operations.
const STACK_BYTES: usize = 256 * 1024;

/// An object with something due at a time.
pub(super) trait Due: Send + Sync {
    /// The time, or [`NEVER`]. Stored with SeqCst before [`announce`].
    fn at(&self) -> Nanos;
    /// Acts, unless the owner is about to.
    fn act(&self);
}

static TIMER: Timer = Timer {
    objects: Mutex::new(Vec::new()),
    wakes_at: AtomicU64::new(0),
    thread: OnceLock::new(),
};

struct Timer {
    objects: Mutex<Vec<Weak<dyn Due>>>,
    /// The end of the thread's sleep; 0 while it is awake.
    wakes_at: AtomicU64,
    thread: OnceLock<Thread>,
}

/// Registers an object, until its last handle is dropped.
///
/// # Errors
/// The system's: no thread could be started.
pub(super) fn register(object: &Arc<impl Due + 'static>) -> io::Result<()> {
    let mut objects = lock(&TIMER.objects);
    if TIMER.thread.get().is_none() {
        let builder = thread::Builder::new().name("toroid-timer".into());
        let started = spawn_undisturbed(builder.stack_size(STACK_BYTES), || {
            precisely(|| TIMER.run())
        })?;
        // The lock is held, so no other thread has set it.
        let _ = TIMER.thread.set(started.thread().clone());
    }
    objects.retain(|object| object.strong_count() > 0);
    let object: Weak<dyn Due> = Arc::<_>::downgrade(object) as _;
    objects.push(object);
    Ok(())
}

/// Wakes the thread if it would sleep for long after `at`, the new time of a registered object.
pub(super) fn announce(at: Nanos) {
    // SeqCst: pairs with the store in `Timer::run`. Either this sees the long sleep, or the thread
    // sees the object's time, which was stored before.
    if TIMER.wakes_at.load(Ordering::SeqCst) > at.saturating_add(INTERVALS[1])
        && let Some(thread) = TIMER.thread.get()
    {
        thread.unpark();
    }
}

impl Timer {
    fn run(&self) -> ! {
        let [shortest, longest] = INTERVALS;
        let (mut interval, mut changed, mut before) = (shortest, monotonic(), NEVER);
        loop {
            let has_acted = self.act();
            let (now, next) = (monotonic(), self.next());
            interval = if has_acted {
                shortest
            } else {
                longest.min(2 * interval)
            };
            if has_acted || next != before {
                (changed, before) = (now, next);
            }
            let wake = if now - changed >= LINGER {
                next
            } else if interval == shortest {
                next.min(now + shortest)
            } else {
                now + interval
            };
            self.sleep(wake.max(now + LEAST), now);
        }
    }

    fn sleep(&self, mut wake: Nanos, now: Nanos) {
        // SeqCst: pairs with the load in `announce`.
        self.wakes_at.store(wake, Ordering::SeqCst);
        if wake > now + INTERVALS[1] {
            // A time that was stored before the owner could see the long sleep.
            wake = wake.min(self.next().max(now + LEAST));
        }
        match wake.saturating_sub(now) {
            _ if wake == NEVER => thread::park(),
            left => thread::park_timeout(Duration::from_nanos(left)),
        }
        self.wakes_at.store(0, Ordering::SeqCst);
    }

    fn present(&self) -> Vec<Arc<dyn Due>> {
        let objects = lock(&self.objects);
        objects.iter().filter_map(Weak::upgrade).collect()
    }

    fn next(&self) -> Nanos {
        let present = self.present();
        let times = present.iter().map(|object| object.at());
        times.min().unwrap_or(NEVER)
    }

    /// Lets all due objects act; returns whether there were any.
    fn act(&self) -> bool {
        let now = monotonic();
        let is_due = |object: &Arc<dyn Due>| object.at() <= now;
        let due: Vec<_> = self.present().into_iter().filter(is_due).collect();
        due.iter().for_each(|object| object.act());
        !due.is_empty()
    }
}
