//! The watchdog of a story.

use std::process;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread;
use std::time::Duration;

use crate::cluster::is_nightly;
use crate::leftovers;

/// Limit of a story. A nightly one has 20 times as long.
const WATCHDOG: Duration = Duration::from_secs(150);

/// Time for a hanging story to fail by itself, after its processes were killed.
const LAST_WORDS: Duration = Duration::from_secs(10);

/// The watchdog of the story that runs, while one is watched.
static OF_STORY: Mutex<Weak<Watchdog>> = Mutex::new(Weak::new());

/// Turns a hang into a failure: kills all processes that the story has started, so that it fails by
/// itself, and later the test. The limit starts again when the story [goes on](Watchdog::goes_on).
#[derive(Debug)]
pub(crate) struct Watchdog {
    alive: Sender<()>,
}

impl Watchdog {
    /// Watches the story until the last of its watchdogs is dropped. These are one: what a part of the
    /// story does starts the limit of the whole again, and so does a call of this function.
    pub(crate) fn start() -> Arc<Self> {
        let mut of_story = OF_STORY.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(watchdog) = of_story.upgrade() {
            watchdog.goes_on();
            return watchdog;
        }
        let watchdog = Arc::new(Self::of_this_thread());
        *of_story = Arc::downgrade(&watchdog);
        watchdog
    }

    /// Watches a story, named after its thread.
    fn of_this_thread() -> Self {
        let (alive, test) = mpsc::channel();
        let name = thread::current().name().unwrap_or("a test").to_owned();
        thread::spawn(move || {
            let mut limit = if is_nightly() {
                20 * WATCHDOG
            } else {
                WATCHDOG
            };
            let mut has_barked = false;
            loop {
                match test.recv_timeout(limit) {
                    Ok(()) => {}
                    Err(RecvTimeoutError::Disconnected) => return,
                    Err(RecvTimeoutError::Timeout) if has_barked => process::exit(101),
                    Err(RecvTimeoutError::Timeout) => {
                        eprintln!("{name} hangs: all that it has started is killed");
                        leftovers::kill_descendants();
                        (limit, has_barked) = (LAST_WORDS, true);
                    }
                }
            }
        });
        Watchdog { alive }
    }

    /// Starts the limit again.
    pub(crate) fn goes_on(&self) {
        // Without a receiver the story has hung already.
        let _ = self.alive.send(());
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{catch_unwind, resume_unwind};

    use super::*;
    use crate::cluster::leaves_nothing;
    use crate::outside::on_a_host_of_its_own;

    fn is_watched() -> bool {
        OF_STORY.lock().expect("no panic").strong_count() > 0
    }

    /// A story of noise hung for ever in a read: it had no cluster, and so no watchdog.
    #[test]
    fn a_story_without_a_cluster_is_watched() {
        // Other processes of the machine may leave something meanwhile, so the story does not end.
        let unended = catch_unwind(|| {
            leaves_nothing(|| {
                let (story, part) = (Watchdog::start(), Watchdog::start());
                let is_one = Arc::ptr_eq(&story, &part);
                drop((story, part));
                resume_unwind(Box::new((is_watched(), is_one)));
            })
        });
        let seen = unended.expect_err("it unwinds");
        assert_eq!(seen.downcast_ref(), Some(&(true, true)));
    }

    #[test]
    #[ignore = "needs root"]
    fn a_story_on_a_host_of_its_own_is_watched() {
        on_a_host_of_its_own(|| assert!(is_watched()));
    }
}
