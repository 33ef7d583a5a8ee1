//! Emulated nodes: the first process of a PID namespace, with a network and a mount namespace,
//! under a root agent with users of its own, and all processes there.
//!
//! This module is the agent's side. The other side, [`birth`] and then [`init`], has a liveness
//! socket as its standard input, for sessions and for the node's end. It starts the node's commands
//! itself, so no process ever has to enter a namespace.

mod birth;
mod command;
pub(crate) mod init;
mod mounts;
mod session;

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::time::Duration;

use nix::sched::{CloneFlags, setns, unshare};
use toroid_fabric::Place;
use toroid_model::addressing::host_name;
use toroid_protocol::node::{InitConfig, Mapped, NodeEvent};
use toroid_protocol::wire::{self, Reader, WireError, Writer};

use super::cgroups::enter;
use crate::error::GIVE_USERS;
use crate::process::role_command;
use crate::threads;

/// Number of uids, and of gids, of a node with users of its own.
pub(super) const USERS_PER_NODE: u32 = 65_536;

const WAIT: &str = "wait for its first process";

/// Time for the first process of a node to get ready. On an idle host it takes some 10 ms.
const BIRTH: Duration = Duration::from_secs(30);

/// Configuration of a node.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) place: Place,
    /// Hosts file of the node.
    pub(crate) hosts: PathBuf,
    /// Soft limit of descriptors for its commands.
    pub(crate) open_files: u64,
    /// Whether `/tmp` and `/var/tmp` are the host's.
    pub(crate) shares_tmp: bool,
    /// Most bytes of each file system for temporary files or shared memory.
    pub(crate) temporary_bytes: u64,
    /// Control groups that limit it.
    pub(crate) groups: Vec<PathBuf>,
}

/// A new node that is ready.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) init: Child,
    pub(crate) orders: Writer,
    pub(crate) reports: Reader,
    /// Its network namespace.
    pub(crate) network: OwnedFd,
    /// Its node socket.
    pub(crate) listener: UnixListener,
}

/// Failure to make a node.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action}: {source}")]
pub(crate) struct NodeError {
    pub(crate) action: String,
    pub(crate) source: io::Error,
}

impl From<&NodeError> for NodeEvent {
    fn from(error: &NodeError) -> Self {
        NodeEvent::Failed {
            action: error.action.clone(),
            message: error.source.to_string(),
            code: error.source.raw_os_error(),
        }
    }
}

/// Adds the failed action to a system's error.
trait During<T> {
    fn during(self, action: &str) -> Result<T, NodeError>;
}

impl<T, E: Into<io::Error>> During<T> for Result<T, E> {
    fn during(self, action: &str) -> Result<T, NodeError> {
        self.map_err(|error| NodeError {
            action: action.into(),
            source: error.into(),
        })
    }
}

impl Plan {
    /// Makes the node and returns when it is ready. `users` is the first of its [`USERS_PER_NODE`]
    /// uids and gids on the host; without, it has the users of the agent's user namespace.
    pub(crate) fn make(&self, users: Option<u32>) -> Result<Node, NodeError> {
        // A short-lived thread makes the PID namespace, so that children of the agent's other
        // threads stay in theirs.
        let plan = self.clone();
        let maker = threads::start(move || plan.make_here(users)).during("start a thread")?;
        let panicked = || io::Error::other("the thread panicked");
        maker
            .join()
            .map_err(|_| panicked())
            .during("make a PID namespace")?
    }

    fn make_here(&self, users: Option<u32>) -> Result<Node, NodeError> {
        unshare(CloneFlags::CLONE_NEWPID).during("make a PID namespace")?;
        let (mut init, socket) = self.start_init(users)?;
        let enter = || {
            self.groups
                .iter()
                .try_for_each(|group| enter(group, init.id()))
        };
        let born = enter()
            .during("limit what it takes")
            .and_then(|()| wire::split(socket).during("talk to it"))
            .and_then(|(reports, orders)| attend_birth(init.id(), users, reports, orders));
        match born {
            Ok((network, listener, reports, orders)) => Ok(Node {
                init,
                orders,
                reports,
                network,
                listener: listener.into(),
            }),
            Err(error) => {
                // These fail only after it has ended.
                let _ = init.kill();
                let _ = init.wait();
                Err(error)
            }
        }
    }

    fn start_init(&self, users: Option<u32>) -> Result<(Child, UnixStream), NodeError> {
        let config = InitConfig {
            open_files: self.open_files,
            name: host_name(self.place),
            hosts: self.hosts.clone(),
            users,
            shares_tmp: self.shares_tmp,
            temporary_bytes: self.temporary_bytes,
        };
        let config = serde_json::to_string(&config).during("write its configuration")?;
        let (ours, theirs) = UnixStream::pair().during("make a socket")?;
        let mut command = role_command(&format!("toroid-node {}", self.place), init::ROLE);
        command.arg(config);
        command.stdin(OwnedFd::from(theirs)).stdout(Stdio::null());
        if users.is_some() {
            // The agent's standard error is its log, or a terminal.
            command.stderr(Stdio::null());
        }
        let init = command.spawn().during("start its first process")?;
        Ok((init, ours))
    }
}

/// Serves the birth until the node is ready; returns its network and its socket.
fn attend_birth(
    init: u32,
    users: Option<u32>,
    mut reports: Reader,
    orders: Writer,
) -> Result<(OwnedFd, OwnedFd, Reader, Writer), NodeError> {
    wait_at_most(&reports, Some(BIRTH))?;
    loop {
        let (report, descriptors) = reports.receive().map_err(cause).during(WAIT)?;
        match report {
            NodeEvent::Unshared => {
                map_users(init, users).during(GIVE_USERS)?;
                let sys = sysfs_of(init).during("make its /sys")?;
                let mapped = orders.send(&Mapped, &[sys.as_fd()]);
                mapped.map_err(cause).during(WAIT)?;
            }
            NodeEvent::Failed {
                action,
                message,
                code,
            } => {
                let source = code.map(io::Error::from_raw_os_error);
                let source = source.unwrap_or_else(|| io::Error::other(message));
                return Err(NodeError { action, source });
            }
            NodeEvent::Ready { warnings } => {
                for warning in warnings {
                    tracing::debug!("a node does without something: {warning}");
                }
                let lost = |_| io::Error::other("it came without its network and socket");
                let both = <[OwnedFd; 2]>::try_from(descriptors);
                let [network, listener] = both.map_err(lost).during(WAIT)?;
                wait_at_most(&reports, None)?;
                return Ok((network, listener, reports, orders));
            }
        }
    }
}

/// Maps users and groups in the user namespace of the node's first process.
fn map_users(init: u32, users: Option<u32>) -> io::Result<()> {
    let Some(first) = users else {
        return Err(io::Error::other("it shall have none"));
    };
    for map in ["gid_map", "uid_map"] {
        let text = format!("0 {first} {USERS_PER_NODE}");
        fs::write(format!("/proc/{init}/{map}"), text)?;
    }
    Ok(())
}

/// Makes a `/sys` for the network namespace of the node's first process. This thread enters the
/// namespace itself, because its next child would be in the PID namespace of the node.
fn sysfs_of(init: u32) -> io::Result<OwnedFd> {
    let network = File::open(format!("/proc/{init}/ns/net"))?;
    setns(network, CloneFlags::CLONE_NEWNET)?;
    mounts::sysfs()
}

fn wait_at_most(reports: &Reader, time: Option<Duration>) -> Result<(), NodeError> {
    reports.stream().set_read_timeout(time).during(WAIT)
}

/// The system's error, or any other as text.
fn cause(error: WireError) -> io::Error {
    match error {
        WireError::Io(source) => source,
        other => io::Error::other(other),
    }
}
