//! The measured nodes: a private agent in a private directory, and processes of this program in its
//! nodes.
//!
//! Everything ends with this process, however it ends: a liveness socket ends the agent, the agent
//! its nodes and driver, and each node its processes.

use std::fmt::Display;
use std::fs::{self, File, OpenOptions};
use std::io::{self, PipeReader, PipeWriter};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::iterator::Signals;
use toroid_agent::background::{Background, spawn_background};
use toroid_agent::{AgentError, Config, tun_remedy};
use toroid_client::admin::{ClientError, Control, Order};
use toroid_fabric::Torus;
use toroid_fabric::topology::TopologyError;
use toroid_model::info::{DomainInfo, Limits, MemberInfo};
use toroid_model::link::FabricProfile;
use toroid_model::refusal::Refusal;

use self::answers::lines_of;
use self::process::{Running, forward_lines};
use crate::directory::Directory;
use crate::roles::{self, StoreConfig};
use crate::worker;

mod answers;
mod process;

pub use self::process::Process;

const TUN: &str = "/dev/net/tun";

/// Longest silence of a process in a step without a patience of its own.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Longest delay between the end of the agent by a signal and the arrival of the same signal here.
const SIGNAL_DELAY: Duration = Duration::from_millis(100);

/// Reason for the early end of a run.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// A signal ended the run.
    #[error("interrupted by signal {0}")]
    Interrupted(i32),
    /// Only root of the host may do that.
    #[error("only root can {action}; run it with sudo")]
    NotRoot {
        /// The denied action, as a verb and its object.
        action: &'static str,
    },
    /// `/dev/net/tun` is missing or closed.
    #[error("cannot open {TUN}: {error}; {}", tun_remedy(.error))]
    Tun {
        /// The system's reason.
        error: io::Error,
    },
    /// The agent did not start.
    #[error("{refusal}{}{log}", if log.is_empty() { "" } else { ":\n" })]
    Agent {
        /// Reason and remedy.
        refusal: Refusal,
        /// The agent's log, if the agent gave no reason.
        log: String,
    },
    /// The agent refused.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// A system call failed.
    #[error("cannot {action}: {source}")]
    System {
        /// The failed action, as a verb and its object.
        action: &'static str,
        /// The system's reason.
        source: io::Error,
    },
    /// The torus has an invalid shape.
    #[error(transparent)]
    Torus(#[from] TopologyError),
    /// A domain or cluster lacks a node.
    #[error("the agent made a domain without the server's node")]
    NoServer,
    /// A process in a node ended, or hangs.
    #[error("{process} {what}")]
    Lost {
        /// The process.
        process: String,
        /// Verb that completes the sentence.
        what: &'static str,
    },
    /// A process in a node could not carry out an order.
    #[error("{process}: {message}")]
    Failed {
        /// The process.
        process: String,
        /// Reason of the failure.
        message: String,
    },
}

impl ClusterError {
    /// An error of this process, outside of nodes.
    pub(crate) fn ours(error: impl Display) -> Self {
        ClusterError::Failed {
            process: "toroid-bench".into(),
            message: error.to_string(),
        }
    }

    /// Adds the measurement in which a process failed.
    pub(crate) fn at(self, measurement: impl Display) -> Self {
        match self {
            ClusterError::Failed { process, message } => ClusterError::Failed {
                process,
                message: format!("{measurement}: {message}"),
            },
            other => other,
        }
    }
}

impl From<AgentError> for ClusterError {
    fn from(error: AgentError) -> Self {
        let refusal = error.refusal();
        // The log is removed with the private directory.
        let log = match error {
            AgentError::Died { log } => fs::read_to_string(log).unwrap_or_default(),
            _ => String::new(),
        };
        ClusterError::Agent { refusal, log }
    }
}

pub(crate) fn system(action: &'static str) -> impl FnOnce(io::Error) -> ClusterError {
    move |source| ClusterError::System { action, source }
}

/// The acknowledgement time-out of a shrink, in ms. On a busy machine a late process makes a shrink
/// slow, which the figures show. The usual time-out would fence the process and end the run.
const PATIENCE_MS: u64 = 5000;

/// Events of a run: lines and ends of its processes, and signals.
#[derive(Debug)]
enum News {
    Signal(i32),
    Line { process: u32, line: String },
    Closed { process: u32 },
}

/// An agent with its nodes. Dropping it ends all of them and removes their files.
#[derive(Debug)]
pub struct Cluster {
    // Dropped in this order.
    control: Option<Control>,
    agent: Option<Background>,
    directory: Directory,
    news: Receiver<News>,
    sender: Sender<News>,
    processes: u32,
}

impl Cluster {
    /// Starts an agent, with Ethernet if `driver_argument` is given: over userspace stacks alone
    /// where TAPs cannot be created ([`Cluster::no_taps`]). From now on a signal that would end the
    /// program ends the run at its next step, with [`ClusterError::Interrupted`].
    ///
    /// # Errors
    /// The agent's, with the remedy.
    pub fn start(torus: Torus, driver_argument: Option<&str>) -> Result<Self, ClusterError> {
        Self::start_emulating(None, torus, driver_argument)
    }

    /// As [`Cluster::start`], with the costs of a torus.
    pub(crate) fn start_emulating(
        fabric: Option<FabricProfile>,
        torus: Torus,
        driver_argument: Option<&str>,
    ) -> Result<Self, ClusterError> {
        let driver = |argument| ["/proc/self/exe", argument].map(Into::into).into();
        Self::start_as(|state| {
            Ok(Config {
                fabric,
                torus: Some(torus),
                driver_command: driver_argument.map(driver),
                ..private(state.into())
            })
        })
    }

    /// Starts an agent with the configuration for a private state directory.
    pub(crate) fn start_as(
        config: impl FnOnce(&Path) -> Result<Config, ClusterError>,
    ) -> Result<Self, ClusterError> {
        let (sender, news) = mpsc::channel();
        forward_signals(sender.clone()).map_err(system("handle signals"))?;
        check_signals()?;
        let directory = Directory::create().map_err(system("make a private directory"))?;
        let agent = spawn_background(&config(&directory.0)?);
        // A signal may have reached the agent before it left this session.
        let agent =
            agent.map_err(|error| interruption(&news, SIGNAL_DELAY).unwrap_or(error.into()))?;
        let control = Control::connect(&directory.0);
        let mut cluster = Cluster {
            control: None,
            agent: Some(agent),
            directory,
            news,
            sender,
            processes: 0,
        };
        cluster.control = Some(control?);
        Ok(cluster)
    }

    /// Creates a domain of all nodes.
    ///
    /// # Errors
    /// The agent's.
    pub fn create_domain(&mut self, name: &str) -> Result<DomainInfo, ClusterError> {
        Ok(self
            .control()?
            .create(name, &["*,*,*".into()], None, None)?)
    }

    /// Reason and remedy if nodes have userspace stacks instead of interfaces.
    pub(crate) fn no_taps(&mut self) -> Result<Option<Refusal>, ClusterError> {
        let no_taps = self.control()?.status()?.no_taps;
        // The agent's remedy is to start it again, which does not apply: this agent ends with the
        // run.
        let ours = open_tun().err().map(|error| tun_remedy(&error).to_owned());
        Ok(no_taps.map(|no_taps| Refusal {
            remedy: ours.unwrap_or_default(),
            ..no_taps
        }))
    }

    /// The network namespace of a node; only root of the host may open it.
    pub(crate) fn network(&mut self, node: &str) -> Result<File, ClusterError> {
        let nodes = self.control()?.nodes()?;
        let node = nodes.iter().find(|info| info.place.to_string() == node);
        let pid = node.and_then(|node| node.pid);
        let pid = pid.ok_or(ClusterError::NoServer)?;
        File::open(format!("/proc/{pid}/ns/net")).map_err(system("open a node's network"))
    }

    /// Process id of the agent's first process.
    pub(crate) fn agent_pid(&self) -> Option<u32> {
        self.agent.as_ref().map(Background::pid)
    }

    /// A path in the private directory.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.0.join(name)
    }

    /// Starts this program in a node, in the role of its arguments.
    ///
    /// # Errors
    /// The agent's, and the system's.
    pub fn spawn(&mut self, node: &str, arguments: &[&str]) -> Result<Process, ClusterError> {
        self.spawn_in(Path::new("/"), node, arguments)
    }

    /// Starts this program in `directory`, which may be out of reach for the node's users.
    pub(crate) fn spawn_in(
        &mut self,
        directory: &Path,
        node: &str,
        arguments: &[&str],
    ) -> Result<Process, ClusterError> {
        let directory = std::path::absolute(directory).map_err(system("find a directory"))?;
        let cwd = directory.to_string_lossy();
        let (theirs_in, input) = io::pipe().map_err(system("make a pipe"))?;
        let (output, theirs_out) = io::pipe().map_err(system("make a pipe"))?;
        let argv = [&["/proc/self/exe"][..], arguments].concat();
        let argv: Vec<String> = argv.into_iter().map(Into::into).collect();
        let errors = io::stderr();
        let stdio = [theirs_in.as_fd(), theirs_out.as_fd(), errors.as_fd()];
        let command = self.control()?.exec(&Order {
            node,
            argv: &argv,
            env: &environment(),
            search: "",
            cwd: &cwd,
            stdio,
            terminal: None,
            binds: &[],
        })?;
        let name = format!("{} in node {node}", arguments.join(" "));
        let running = Running::InNode { _command: command };
        self.process(name, (input, output), running)
    }

    /// Starts a worker in the network namespace of the calling thread, outside of all nodes.
    pub(crate) fn worker_outside(&mut self) -> Result<Process, ClusterError> {
        let (theirs_in, input) = io::pipe().map_err(system("make a pipe"))?;
        let (output, theirs_out) = io::pipe().map_err(system("make a pipe"))?;
        // A group of its own: Ctrl-C ends the run, and the run ends its processes.
        let child = Command::new("/proc/self/exe")
            .arg(roles::WORKER)
            .stdin(theirs_in)
            .stdout(theirs_out)
            .process_group(0)
            .spawn()
            .map_err(system("start a process"))?;
        let name = format!("{} outside", roles::WORKER);
        self.process(name, (input, output), Running::Outside(child))
    }

    fn process(
        &mut self,
        name: String,
        (input, output): (PipeWriter, PipeReader),
        running: Running,
    ) -> Result<Process, ClusterError> {
        self.processes += 1;
        let id = self.processes;
        let sender = self.sender.clone();
        thread::Builder::new()
            .spawn(move || forward_lines(id, output, &sender))
            .map_err(system("start a thread"))?;
        Ok(Process {
            id,
            name,
            input,
            has_ended: false,
            _running: running,
        })
    }

    /// Starts a worker in a node.
    pub(crate) fn worker(&mut self, node: &str) -> Result<Process, ClusterError> {
        self.spawn(node, &[roles::WORKER])
    }

    /// Exports memory of `len` bytes in `owner`, and opens it in `peer`.
    pub(crate) fn connect_memory(
        &self,
        domain: &str,
        len: usize,
        owner: &mut Process,
        peer: &mut Process,
    ) -> Result<(), ClusterError> {
        let keys = self.ask(owner, &worker::Order::Export(domain.into(), len))?;
        self.ask(peer, &worker::Order::UseMemory(domain.into(), keys))
    }

    /// Starts a store in a node, with a mark in its command line. Returns process and TCP port.
    pub(crate) fn start_store(
        &mut self,
        node: &str,
        config: &StoreConfig,
        mark: &str,
    ) -> Result<(Process, u16), ClusterError> {
        let config = serde_json::to_string(config).unwrap_or_default();
        let store = self.spawn(node, &[roles::STORE, &config, mark])?;
        let port = self.answer(&store)?;
        Ok((store, port))
    }

    /// Sends a line of JSON to a process and waits for its answer.
    ///
    /// # Errors
    /// As [`Cluster::answer`].
    pub fn ask<A: DeserializeOwned>(
        &self,
        process: &mut Process,
        order: &impl Serialize,
    ) -> Result<A, ClusterError> {
        process.tell(order);
        self.answer(process)
    }

    /// Sends an order to each of two processes, which work at the same time.
    pub(crate) fn ask_both<A: DeserializeOwned>(
        &self,
        [(first, order), (second, other)]: [(&mut Process, &impl Serialize); 2],
    ) -> Result<[A; 2], ClusterError> {
        first.tell(order);
        second.tell(other);
        let [one, two] = self.lines([first, second])?;
        Ok([first.understand(&one)?, second.understand(&two)?])
    }

    /// Sends an order to several processes, which work at the same time.
    ///
    /// # Errors
    /// As [`Cluster::answer`], of the first process that fails. The others may wait for it: the run
    /// must end.
    pub fn ask_all<A: DeserializeOwned>(
        &self,
        processes: &mut [Process],
        order: &impl Serialize,
    ) -> Result<Vec<A>, ClusterError> {
        self.ask_all_within(processes, order, PATIENCE)
    }

    /// As [`Cluster::ask_all`], for a step after which a process hangs only if it is silent for
    /// `patience`.
    pub(crate) fn ask_all_within<A: DeserializeOwned>(
        &self,
        processes: &mut [Process],
        order: &impl Serialize,
        patience: Duration,
    ) -> Result<Vec<A>, ClusterError> {
        processes.iter_mut().for_each(|process| process.tell(order));
        let processes: Vec<&Process> = processes.iter().collect();
        let lines = lines_of(&self.news, &processes, patience)?;
        let answers = processes.iter().zip(&lines);
        answers
            .map(|(process, line)| process.understand(line))
            .collect()
    }

    /// Waits for the answer of a process, a line of JSON.
    ///
    /// # Errors
    /// [`ClusterError::Interrupted`], [`ClusterError::Lost`], [`ClusterError::Failed`].
    pub fn answer<A: DeserializeOwned>(&self, process: &Process) -> Result<A, ClusterError> {
        let [line] = self.lines([process])?;
        process.understand(&line)
    }

    fn lines<const N: usize>(&self, from: [&Process; N]) -> Result<[String; N], ClusterError> {
        let mut lines = lines_of(&self.news, &from, PATIENCE)?.into_iter();
        Ok(from.map(|_| lines.next().unwrap_or_default()))
    }

    /// Another connection to the agent.
    pub(crate) fn connect(&self) -> Result<Control, ClusterError> {
        Ok(Control::connect(&self.directory.0)?)
    }

    /// The control connection to the agent.
    ///
    /// # Errors
    /// [`ClusterError`].
    pub fn control(&mut self) -> Result<&mut Control, ClusterError> {
        self.control.as_mut().ok_or(ClusterError::Lost {
            process: "the agent".into(),
            what: "has ended",
        })
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // On an error the agent has ended, or ends with its liveness socket.
        if let Some(control) = self.control.take() {
            let _ = control.down();
        }
        if let Some(agent) = self.agent.take() {
            let _ = agent.end();
        }
    }
}

/// Configuration of an agent that ends with this process, without Ethernet.
pub(crate) fn private(state: PathBuf) -> Config {
    Config {
        data: state.join("data"),
        state,
        fresh: false,
        torus: None,
        driver_command: None,
        offload: None,
        // The input of `compare` may be there.
        share_tmp: true,
        fabric: None,
        precision: None,
        limits: Limits::default(),
        lifeline: true,
        hosts: None,
        ack_timeout_ms: PATIENCE_MS,
    }
}

/// The signal that arrived during the agent's start, if any, at most `delay` later.
fn interruption(news: &Receiver<News>, delay: Duration) -> Option<ClusterError> {
    // The agent may end before the signal thread runs.
    match news.recv_timeout(delay) {
        Ok(News::Signal(signal)) => Some(ClusterError::Interrupted(signal)),
        _ => None,
    }
}

/// Checks that TAPs can be created.
pub(crate) fn check_tun() -> Result<(), ClusterError> {
    open_tun().map_err(|error| ClusterError::Tun { error })
}

fn open_tun() -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).open(TUN).map(drop)
}

/// The member of a domain in a node.
pub(crate) fn member<'a>(
    domain: &'a DomainInfo,
    node: &str,
) -> Result<&'a MemberInfo, ClusterError> {
    let mut members = domain.members.iter();
    let member = members.find(|member| member.node.to_string() == node);
    member.ok_or(ClusterError::NoServer)
}

/// Environment variables of processes in nodes, for logs and backtraces.
fn environment() -> Vec<(String, String)> {
    ["PATH", "RUST_LOG", "RUST_BACKTRACE"]
        .iter()
        .filter_map(|&name| Some((name.into(), std::env::var(name).ok()?)))
        .collect()
}

/// The last signal that ended the run; 0 for none.
static INTERRUPTED: AtomicI32 = AtomicI32::new(0);

/// Returns an error after a signal, for steps that wait for no process.
pub(crate) fn check_signals() -> Result<(), ClusterError> {
    match INTERRUPTED.load(Ordering::Relaxed) {
        0 => Ok(()),
        signal => Err(ClusterError::Interrupted(signal)),
    }
}

/// From now on a signal that would end the program ends the run at its next step, as after
/// [`Cluster::start`].
pub(crate) fn catch_signals() -> Result<(), ClusterError> {
    // Without a receiver, steps find the signal by `check_signals` alone.
    let (sender, _) = mpsc::channel();
    forward_signals(sender).map_err(system("handle signals"))
}

fn forward_signals(sender: Sender<News>) -> io::Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP, SIGQUIT])?;
    thread::Builder::new().spawn(move || {
        for signal in signals.forever() {
            if INTERRUPTED.swap(signal, Ordering::Relaxed) == 0 {
                // A run that waits for a hanging agent does not see the signal.
                thread::spawn(move || {
                    thread::sleep(PATIENCE);
                    std::process::exit(128 + signal);
                });
            }
            if sender.send(News::Signal(signal)).is_err() {
                // The run is cleaning up, which must not be cut short.
            }
        }
    })?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_late_signal_is_still_the_reason_of_a_failed_start() {
        let (sender, news) = mpsc::channel();
        let late = thread::spawn(move || {
            thread::yield_now();
            sender.send(News::Signal(SIGINT)).unwrap();
            sender
        });
        let found = interruption(&news, Duration::MAX);
        assert!(matches!(found, Some(ClusterError::Interrupted(SIGINT))));
        let _sender = late.join().unwrap();
        assert!(interruption(&news, SIGNAL_DELAY).is_none());
    }
}
