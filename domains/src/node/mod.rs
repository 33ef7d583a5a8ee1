//! Emulated nodes: a process that is the first of its own PID namespace, with a network and a
//! mount namespace, and all that runs there.
//!
//! This module is the agent's side. The other side, [`init`], has a lifeline as its standard input:
//! sessions come through it, and its end is the node's end. Because it starts the node's commands
//! itself, nobody ever has to enter a namespace.

pub(crate) mod init;
pub(crate) mod messages;

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use fabric::Place;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};

use crate::netlink::Netlink;
use crate::protocol::NODE_SOCKET;
use crate::roles;
use crate::wire::{self, Reader, WireError, Writer};
use messages::{InitConfig, Report};

/// Whether root in a node is nobody on the host. Only then may users run commands in nodes of
/// theirs without being administrators.
pub(crate) const CONFINES_USERS: bool = false;

/// How long the first process of a node may take until it is ready: on an idle host it takes
/// some 10 ms.
const BIRTH: Duration = Duration::from_secs(30);

/// What a node is to be.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) place: Place,
    /// The file that is `/etc/hosts` in the node.
    pub(crate) hosts: PathBuf,
    /// The soft limit of descriptors for its commands.
    pub(crate) open_files: u64,
}

/// A node that has just been made and is ready.
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

/// Why a node could not be made.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action}: {source}")]
pub(crate) struct NodeError {
    pub(crate) action: String,
    pub(crate) source: io::Error,
}

/// Gives a system's error its action.
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
    /// Makes the node and returns when it is ready.
    pub(crate) fn make(&self) -> Result<Node, NodeError> {
        // Namespaces are properties of a thread. One that ends afterwards makes them, so that
        // the agent's other threads stay where they are.
        let maker = |plan: Plan| thread::Builder::new().spawn(move || plan.make_here());
        let maker = maker(self.clone()).during("start a thread")?;
        let panicked = || io::Error::other("the thread panicked");
        maker
            .join()
            .map_err(|_| panicked())
            .during("make namespaces")?
    }

    fn make_here(&self) -> Result<Node, NodeError> {
        let namespaces =
            CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWPID;
        unshare(namespaces).during("make namespaces")?;
        self.set_up_mounts()?;
        let network = File::open("/proc/thread-self/ns/net").during("open its network")?;
        set_up_loopback()?;
        let listener = SocketAddr::from_abstract_name(NODE_SOCKET)
            .and_then(|address| UnixListener::bind_addr(&address))
            .during("listen in it")?;
        let (init, socket) = self.start_init()?;
        let (reports, orders) = wire::split(socket).during("talk to it")?;
        let mut node = Node {
            init,
            orders,
            reports,
            network: network.into(),
            listener,
        };
        if let Err(error) = node.wait_until_ready() {
            // They fail when it has ended already.
            let _ = node.init.kill();
            let _ = node.init.wait();
            return Err(error);
        }
        Ok(node)
    }

    fn set_up_mounts(&self) -> Result<(), NodeError> {
        // What the host mounts and unmounts later happens in the node too, so that a node never
        // keeps a disk busy; what the node mounts stays in the node.
        let none = None::<&str>;
        let slave = MsFlags::MS_SLAVE | MsFlags::MS_REC;
        mount(none, "/", none, slave, none).during("separate its mounts")?;
        let hosts = Path::new("/etc/hosts");
        if hosts.exists() {
            mount(Some(&self.hosts), hosts, none, MsFlags::MS_BIND, none)
                .during("mount its /etc/hosts")?;
        }
        Ok(())
    }

    fn start_init(&self) -> Result<(Child, UnixStream), NodeError> {
        let config = InitConfig {
            open_files: self.open_files,
        };
        let config = serde_json::to_string(&config).during("write its configuration")?;
        let (ours, theirs) = UnixStream::pair().during("make a socket")?;
        let mut command = Command::new("/proc/self/exe");
        command.arg0(format!("toroid-node {}", self.place));
        command.arg(roles::NODE_INIT).arg(config);
        command.env_clear().env("MALLOC_ARENA_MAX", "1");
        command.stdin(OwnedFd::from(theirs)).stdout(Stdio::null());
        let init = command.spawn().during("start its first process")?;
        Ok((init, ours))
    }
}

fn set_up_loopback() -> Result<(), NodeError> {
    let up = || {
        let mut netlink = Netlink::open()?;
        let loopback = netlink.index("lo")?;
        netlink.set_up(loopback)
    };
    up().map_err(io::Error::other)
        .during("bring up its loopback")
}

impl Node {
    fn wait_until_ready(&mut self) -> Result<(), NodeError> {
        self.wait_at_most(Some(BIRTH))?;
        let first = self.reports.receive();
        self.wait_at_most(None)?;
        match first {
            Ok((Report::Ready { warnings }, _)) => {
                for warning in warnings {
                    tracing::debug!("a node does without something: {warning}");
                }
                Ok(())
            }
            Err(WireError::Io(error)) => Err(error),
            Err(error) => Err(io::Error::other(error)),
        }
        .during("wait for its first process")
    }

    fn wait_at_most(&self, time: Option<Duration>) -> Result<(), NodeError> {
        let limited = self.reports.stream().set_read_timeout(time);
        limited.during("wait for its first process")
    }
}
