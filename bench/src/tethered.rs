//! Another program as a child that ends with this process, however that ends, in a network namespace.
//!
//! The kernel kills the child when the thread that has started it ends (`PR_SET_PDEATHSIG` of
//! prctl(2)), so the main thread starts it.

use std::convert::Infallible;
use std::fs::File;
use std::io;
use std::os::unix::process::{CommandExt, parent_id};
use std::path::Path;
use std::process::{self, Command};

use anyhow::{Context, Result, anyhow, bail};
use nix::sched::{CloneFlags, setns};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;

/// The hidden argument; the process id of the run, the path of a network namespace, and another
/// program with its arguments follow.
pub const ARGUMENT: &str = "__bench-tethered";

/// The command that runs `program` in a network namespace.
pub fn command(network: &Path, program: &str) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command
        .args([ARGUMENT, &process::id().to_string()])
        .arg(network)
        .arg(program)
        // A group of its own: Ctrl-C ends the run, and the run ends its processes.
        .process_group(0);
    command
}

/// Executes the program.
pub fn run() -> Result<Infallible> {
    set_pdeathsig(Signal::SIGKILL)?;
    let mut arguments = std::env::args_os().skip(2);
    let mut next = || arguments.next().unwrap_or_default();
    let (run, network, program) = (next(), next(), next());
    // The run may have died before the line above.
    if run.to_string_lossy() != parent_id().to_string() {
        bail!("the run has ended");
    }
    let entered =
        File::open(&network).and_then(|network| Ok(setns(network, CloneFlags::CLONE_NEWNET)?));
    entered.context("cannot enter a network")?;
    let error: io::Error = Command::new(&program).args(arguments).exec();
    Err(anyhow!("cannot run {}: {error}", program.display()))
}
