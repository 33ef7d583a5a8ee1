//! A process that spins beside a run, as on a machine on which something else works, too.
//!
//! The process ends with the run, however the run ends: it is killed when the run is over, and the
//! kernel kills it when the run's process dies (`PR_SET_PDEATHSIG` of prctl(2)). It ends by itself
//! after [`LIMIT`].

use std::hint::black_box;
use std::io;
use std::os::unix::process::parent_id;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, bail};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;

/// The hidden argument of the process that spins; the process id of the run follows.
pub const ARGUMENT: &str = "__bench-busy";

/// No run takes as long.
const LIMIT: Duration = Duration::from_secs(2 * 60 * 60);

/// Additions between two looks at the clock: about a millisecond.
const ADDITIONS: u64 = 1_000_000;

/// Whether a process spins.
static SPINS: AtomicBool = AtomicBool::new(false);

/// The process. Dropping it ends the process.
#[derive(Debug)]
pub struct Busy(Child);

impl Busy {
    /// Starts the process. To be called by the main thread, at whose end the kernel ends the process.
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

pub fn spin() -> io::Result<()> {
    let run: Option<u32> = std::env::args().nth(2).and_then(|id| id.parse().ok());
    set_pdeathsig(Signal::SIGKILL)?;
    let start = Instant::now();
    // A run that died before the line above has left this process to another parent.
    while run == Some(parent_id()) && start.elapsed() < LIMIT {
        (0..ADDITIONS).for_each(|n| _ = black_box(n));
    }
    Ok(())
}
