//! Agents in the background: processes of their own, which report when they are ready.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd::setsid;
use toroid_model::refusal::Refusal;

use super::{again, run, state_dir};
use crate::config::Config;
use crate::error::{AgentError, during, in_data, in_state};
use crate::store::names::LOG;
use crate::store::ownership;

/// Argument of the role: runs an agent; its state directory follows. The configuration is a line of
/// JSON on standard input, because an argument has at most 128 KiB.
pub(crate) const ROLE: &str = "__agent";

/// Line on an agent's standard output when it is ready; any other is a refusal as JSON.
const READY: &str = "ready";

/// An agent that this process has started. It outlives the handle, unless it has a lifeline.
#[derive(Debug)]
pub struct Background {
    child: Child,
    lifeline: Option<ChildStdin>,
}

impl Background {
    /// The agent's process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Cuts the lifeline and waits for the end of the agent, with all its nodes and its driver. Of
    /// use only with [`Config::lifeline`].
    ///
    /// # Errors
    /// The system's.
    pub fn end(mut self) -> io::Result<()> {
        drop(self.lifeline.take());
        self.child.wait().map(drop)
    }
}

/// Starts an agent in a process and session of its own, by executing this program again (see
/// [`crate::roles`]), and returns when it is ready. With [`Config::lifeline`] it ends when
/// the result is dropped or this process ends.
///
/// # Errors
/// [`AgentError`]: there is no agent, and nothing is left but its log.
pub fn spawn_background(config: &Config) -> Result<Background, AgentError> {
    let (broken, unusable) = (in_state(&config.state), in_data(&config.data));
    let config = Config {
        state: std::path::absolute(&config.state).map_err(broken)?,
        data: std::path::absolute(&config.data).map_err(unusable)?,
        ..config.clone()
    };
    let log = open_log(&config.state).map_err(broken)?;
    let mut text = serde_json::to_string(&config).map_err(|error| broken(error.into()))?;
    text.push('\n');

    let mut command = Command::new("/proc/self/exe");
    command
        .arg0("toroid-agent")
        .arg(ROLE)
        .arg(&config.state)
        .stdin(Stdio::piped());
    // Each arena of the allocator costs memory, and the agent's threads seldom allocate at once.
    command.env("MALLOC_ARENA_MAX", "2");
    command.stdout(Stdio::piped()).stderr(log);
    let started = during("start the agent");
    let mut child = command.spawn().map_err(started)?;
    let mut stdin = child.stdin.take();
    if let Some(stdin) = &mut stdin {
        // A child that does not read it says why, or dies.
        let _ = stdin.write_all(text.as_bytes());
    }
    let lifeline = stdin.filter(|_| config.lifeline);
    match wait_until_ready(&mut child, &config.state) {
        Ok(()) => Ok(Background { child, lifeline }),
        Err(error) => {
            drop(lifeline);
            child.wait().map_err(started)?;
            Err(error)
        }
    }
}

/// Opens the log for appending, because a running agent may write to it. Only its user may read it,
/// because it names domains and users.
fn open_log(state: &Path) -> io::Result<File> {
    const PRIVATE: u32 = 0o600;
    state_dir::make(state)?;
    let mut options = OpenOptions::new();
    options.create(true).append(true).mode(PRIVATE);
    let log = ownership::open(&mut options, &state.join(LOG))?;
    // An agent of an earlier release may have made it.
    log.set_permissions(Permissions::from_mode(PRIVATE))?;
    Ok(log)
}

fn wait_until_ready(child: &mut Child, state: &Path) -> Result<(), AgentError> {
    let mut line = String::new();
    if let Some(stdout) = child.stdout.take() {
        // Reading errors count as silence.
        let _ = BufReader::new(stdout).read_line(&mut line);
    }
    if line.trim_end() == READY {
        return Ok(());
    }
    match serde_json::from_str::<Refusal>(&line) {
        Ok(refusal) => Err(AgentError::Background(refusal)),
        Err(_) => Err(AgentError::Died {
            log: PathBuf::from(state).join(LOG),
        }),
    }
}

/// The other side of [`spawn_background`]; returns the exit status.
pub(crate) fn run_role() -> u8 {
    if again::is_asked() {
        let result = again::run();
        // Nobody waits for this agent.
        if let Err(error) = &result {
            tracing::error!("{error}");
        }
        return u8::from(result.is_err());
    }
    let result = start();
    if let Err(error) = &result {
        tracing::error!("{error}");
        if let Ok(refusal) = serde_json::to_string(&error.refusal()) {
            // This fails when the starter has stopped waiting.
            let _ = say(&refusal);
        }
    }
    u8::from(result.is_err())
}

fn start() -> Result<(), AgentError> {
    let config = read_config().map_err(during("read its configuration"))?;
    setsid().map_err(|error| during("start a session")(error.into()))?;
    std::env::set_current_dir("/").map_err(during("change to /"))?;
    // For lists of processes: a process executed as /proc/self/exe is called "exe".
    fs::write("/proc/self/comm", "toroid-agent").map_err(during("name its process"))?;
    run(config, is_read, || say(READY))
}

fn read_config() -> io::Result<Config> {
    let mut text = String::new();
    io::stdin().read_line(&mut text)?;
    Ok(serde_json::from_str(&text)?)
}

/// Whether the other end of this process's standard output is open.
fn is_read() -> bool {
    let stdout = io::stdout();
    let mut ended = [PollFd::new(stdout.as_fd(), PollFlags::empty())];
    // If the system does not tell, writing will.
    let polled = poll(&mut ended, PollTimeout::ZERO);
    polled.is_err() || ended[0].any() != Some(true)
}

fn say(line: &str) -> io::Result<()> {
    writeln!(io::stdout(), "{line}")
}
