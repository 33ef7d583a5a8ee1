//! A process that spins beside a run, as on a machine with other work.
//!
//! The process ends with the run: the run kills it, and the kernel kills it when the run's process
//! dies (`PR_SET_PDEATHSIG` of prctl(2)). At the latest it ends after [`LIMIT`].

use std::hint::black_box;
use std::io;
use std::os::unix::process::parent_id;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, bail};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;

/// The hidden argument of the spinning process; the process id of the run follows.
pub const ARGUMENT: &str = "__bench-busy";

/// Longer than any run.
const LIMIT: Duration = Duration::from_secs(2 * 60 * 60);

/// Additions between two reads of the clock: about a millisecond.
const ADDITIONS: u64 = 1_000_000;

/// Whether a process spins beside this run.
static SPINS: AtomicBool = AtomicBool::new(false);

/// The spinning process, which ends when this is dropped.
#[derive(Debug)]
pub struct Busy(Child);

impl Busy {
    /// Starts the process. The caller is the main thread: the kernel ends the process with its
    /// parent thread.
    pub fn start() -> Result<Self> {
        let child = Command::new("/proc/self/exe")
            .args([ARGUMENT, &std::process::id().to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .map_err(|error| anyhow!("cannot start a process that spins: {error}"))?;
        SPINS.store(true, Ordering::Relaxed);
        Ok(Busy(child))
    }

    /// Checks that the process has not ended.
    pub fn check(&mut self) -> Result<()> {
        match self.0.try_wait() {
            Ok(None) => Ok(()),
            _ => bail!(
                "the process that spins beside has ended early, so the figures are void; run it again"
            ),
        }
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        SPINS.store(false, Ordering::Relaxed);
        // Both fail only if the process has ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Whether a process spins beside this run.
pub fn spins() -> bool {
    SPINS.load(Ordering::Relaxed)
}

/// Spins until the run or [`LIMIT`] ends.
pub fn spin() -> io::Result<()> {
    let run: Option<u32> = std::env::args().nth(2).and_then(|id| id.parse().ok());
    set_pdeathsig(Signal::SIGKILL)?;
    let start = Instant::now();
    // If the run died before the line above, this process has another parent.
    while run == Some(parent_id()) && start.elapsed() < LIMIT {
        (0..ADDITIONS).for_each(|n| _ = black_box(n));
    }
    Ok(())
}
