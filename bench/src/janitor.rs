//! The janitor: a process that removes the directories of a run with several lives of agents.
//!
//! Agents of other runs remove their private directory at their end. An agent of such a run needs the
//! directory in its next life, so the janitor waits for the end of the run, and then of all agents.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use toroid_agent::is_held;
use toroid_protocol::fdstore;

use crate::directory::remove_state;

/// The hidden argument; the directories to remove follow. Directories in the first one are states of
/// agents.
pub const ARGUMENT: &str = "__bench-janitor";

/// Marks a directory that the janitor removes.
const MARK: &str = "janitor";

/// Longest wait for the end of agents.
const PATIENCE: Duration = Duration::from_secs(120);

const PAUSE: Duration = Duration::from_millis(20);

/// The janitor of a run. Dropping it removes the directories.
#[derive(Debug)]
pub struct Janitor(Child);

impl Janitor {
    /// Starts the process, for the directory `states` of states of agents, and another one.
    pub fn start(states: &Path, other: &Path) -> io::Result<Self> {
        File::create(states.join(MARK))?;
        let child = Command::new("/proc/self/exe")
            .arg(ARGUMENT)
            .args([states, other])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            // A group of its own: Ctrl-C ends the run, and then this.
            .process_group(0)
            .spawn()?;
        Ok(Janitor(child))
    }
}

impl Drop for Janitor {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        // This fails only if the process has ended.
        let _ = self.0.wait();
    }
}

/// Whether the janitor removes this state of an agent.
pub fn removes(state: &Path) -> bool {
    state.with_file_name(MARK).exists()
}

/// Waits for the end of the run and of its agents, and removes the directories.
pub fn run() -> Result<()> {
    let directories: Vec<PathBuf> = std::env::args_os().skip(2).map(PathBuf::from).collect();
    io::copy(&mut io::stdin().by_ref(), &mut io::sink())?;
    let states = directories.first().map(fs::read_dir).transpose()?;
    let start = Instant::now();
    for state in states.into_iter().flatten() {
        let state = state?.path();
        let runs = || is_held(&state).unwrap_or(false) || fdstore::is_there(&state);
        while state.is_dir() && start.elapsed() < PATIENCE && (runs() || remains(&state)) {
            thread::sleep(PAUSE);
        }
    }
    for directory in &directories {
        fs::remove_dir_all(directory)?;
    }
    Ok(())
}

/// Whether a state is there after an attempt to remove it.
fn remains(state: &Path) -> bool {
    remove_state(state);
    state.exists()
}
