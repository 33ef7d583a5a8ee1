//! The watchdog of a story.

use std::process;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread;
use std::time::Duration;

use crate::cluster::is_nightly;
use crate::leftovers;

/// Limit of a story. A nightly one has 20 times as long.
const WATCHDOG: Duration = Duration::from_secs(150);

/// Time for a hanging story to fail by itself, after its processes were killed.
const LAST_WORDS: Duration = Duration::from_secs(10);

/// Turns a hang into a failure: kills all processes that the story has started, so that it fails by
/// itself, and later the test. The limit starts again when the story [goes on](Watchdog::goes_on).
#[derive(Debug)]
pub(crate) struct Watchdog {
    alive: Sender<()>,
}

impl Watchdog {
    /// Starts the watch of a story, named after its thread.
    pub(crate) fn start() -> Self {
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
