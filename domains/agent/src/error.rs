//! Errors of an agent that cannot start or go on, with remedies.

use std::ffi::OsString;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use toroid_client::rdma::RdmaError;
use toroid_fabric::{Place, Torus};
use toroid_model::limits::MAX_NODES;
use toroid_model::refusal::{Refusal, RefusalKind};

use crate::channel::secret::SecretError;
use crate::interfaces::tun_remedy;
use crate::store::StoreError;

/// Remedy where the kernel makes no namespaces even for root. README has the whole command.
const IN_A_CONTAINER: &str = "let it make namespaces: in a container with `--cap-add SYS_ADMIN --cap-add NET_ADMIN \
     --security-opt seccomp=unconfined --security-opt apparmor=unconfined`";

/// Step in making a node that fails where the kernel makes no namespaces for it.
pub(crate) const GIVE_USERS: &str = "make its namespaces";

/// Error of an agent that could not start or go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AgentError {
    /// Another agent runs for the state directory.
    #[error("an agent runs already for {}, as process {pid}", state.display())]
    Running {
        /// The state directory.
        state: PathBuf,
        /// Process id of the other agent.
        pid: u32,
    },
    /// The state directory cannot be used.
    #[error("cannot use the state directory {}: {source}", state.display())]
    State {
        /// The state directory.
        state: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// The data directory cannot be used.
    #[error("cannot use the data directory {}: {source}", data.display())]
    Data {
        /// The data directory.
        data: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// The directory of domains cannot be used.
    #[error(transparent)]
    Directory(#[from] StoreError),
    /// The directory of domains is that of several hosts.
    #[error("the directory {} is of several hosts: {hosts}", directory.display())]
    SeveralHosts {
        /// Names of the hosts.
        hosts: String,
        /// Where it is.
        directory: PathBuf,
    },
    /// The directory of domains has domains of its own, and this host should follow another.
    #[error("the directory {} has domains of its own, and cannot follow another", directory.display())]
    OwnDirectory {
        /// Where it is.
        directory: PathBuf,
    },
    /// The copy of the directory has a part of the last update only, and this host should lead.
    #[error("the copy {} has only a part of the last update, and cannot lead", directory.display())]
    PartialDirectory {
        /// Where it is.
        directory: PathBuf,
    },
    /// The pre-shared key cannot be read.
    #[error(transparent)]
    Key(#[from] SecretError),
    /// The configured RDMA device cannot be used.
    #[error(transparent)]
    Rdma(#[from] RdmaError),
    /// The address for other hosts cannot be bound.
    #[error("cannot listen to other hosts on {address}: {source}")]
    Listen {
        /// Where.
        address: SocketAddr,
        /// The system's reason.
        source: io::Error,
    },
    /// The directory of domains is that of another fabric.
    #[error("the directory {} is of a torus {kept}, not {asked}", directory.display())]
    OtherTorus {
        /// The torus asked for.
        asked: Torus,
        /// The torus of the directory.
        kept: Torus,
        /// Where it is.
        directory: PathBuf,
    },
    /// The nodes of an agent that was killed cannot be taken over.
    #[error("the nodes that an agent has left in {} are of {what}", state.display())]
    Inherited {
        /// The state directory.
        state: PathBuf,
        /// Their difference.
        what: String,
    },
    /// Existing nodes have links of another torus, or none.
    #[error(
        "the nodes that an agent has left {}, and not {asked}",
        kept.as_ref().map_or_else(|| "emulate no fabric".into(), |kept| format!("emulate the fabric {kept}"))
    )]
    OtherFabric {
        /// Name of the requested profile.
        asked: String,
        /// Name of their profile.
        kept: Option<String>,
    },
    /// A torus has all links, and a domain has links of its own.
    #[error("domain {domain} has links of its own, and the fabric {fabric} has all links")]
    LinksWithFabric {
        /// Name of the profile.
        fabric: String,
        /// The domain.
        domain: String,
    },
    /// The clocks of a torus are those of one host.
    #[error("the fabric {0} cannot be emulated over several hosts, whose clocks differ")]
    FabricOfHosts(String),
    /// There are more nodes than the hosts can emulate.
    #[error("{nodes} nodes are too many for {hosts}: each emulates at most {MAX_NODES}")]
    TooManyNodes {
        /// Number of nodes.
        nodes: u32,
        /// `host NAME`, or `one host` if there are no others.
        hosts: String,
    },
    /// Existing nodes have TAPs, and no more can be made.
    #[error("cannot open /dev/net/tun: {0}")]
    Tun(io::Error),
    /// The kernel denies an ordinary user a user namespace.
    #[error("cannot enter a user namespace: {0}")]
    UserNamespace(io::Error),
    /// The register of uids for nodes cannot be opened.
    #[error("cannot open the register of the users of nodes: {0}")]
    Users(io::Error),
    /// A limit of nodes cannot be enforced.
    #[error("cannot limit {what}: {reason}")]
    Limit {
        /// The limited thing, as a noun.
        what: &'static str,
        /// The obstacle.
        reason: String,
    },
    /// A node could not be made.
    #[error("cannot make node {place}: cannot {action}: {source}")]
    Node {
        /// Which.
        place: Place,
        /// What failed, as a verb and its object.
        action: String,
        /// The system's reason.
        source: io::Error,
    },
    /// The driver could not be started.
    #[error("cannot start the Ethernet driver {}: {source}", program.display())]
    Driver {
        /// Its program.
        program: OsString,
        /// The system's reason.
        source: io::Error,
    },
    /// The driver does not work.
    #[error("{0}")]
    DriverFailed(String),
    /// Another system call failed.
    #[error("cannot {action}: {source}")]
    System {
        /// What failed, as a verb and its object.
        action: &'static str,
        /// The system's reason.
        source: io::Error,
    },
    /// The process that started the agent stopped waiting for it, or told it to end.
    #[error("interrupted while it started, so it has ended")]
    Interrupted,
    /// The agent could not start again.
    #[error("cannot start again: {0}; its nodes go on, and `toroid up` takes them over")]
    NotAgain(io::Error),
    /// A directory on etcd cannot be used.
    #[error("{}", .0.message)]
    Etcd(Refusal),
    /// The directory has not moved to where it is said to be lost.
    #[error("{}", .0.message)]
    Moved(Refusal),
    /// An agent in the background reported this refusal.
    #[error("{0}")]
    Background(Refusal),
    /// An agent in the background ended without a report.
    #[error("the agent ended while it started; see {}", log.display())]
    Died {
        /// Its log.
        log: PathBuf,
    },
}

impl AgentError {
    /// The error as a refusal, with its kind and a remedy.
    pub fn refusal(&self) -> Refusal {
        let kind = match self {
            AgentError::Background(refusal)
            | AgentError::Etcd(refusal)
            | AgentError::Moved(refusal) => return refusal.clone(),
            AgentError::Directory(error) => return error.refusal(),
            AgentError::Running { .. }
            | AgentError::Inherited { .. }
            | AgentError::OtherTorus { .. }
            | AgentError::SeveralHosts { .. }
            | AgentError::OtherFabric { .. }
            | AgentError::LinksWithFabric { .. }
            | AgentError::OwnDirectory { .. }
            | AgentError::PartialDirectory { .. } => RefusalKind::Exists,
            AgentError::Key(SecretError::Open { .. }) => RefusalKind::Denied,
            AgentError::Key(_) | AgentError::FabricOfHosts(_) | AgentError::TooManyNodes { .. } => {
                RefusalKind::Invalid
            }
            AgentError::Tun(_) | AgentError::UserNamespace(_) => RefusalKind::Denied,
            AgentError::State { source, .. } | AgentError::Data { source, .. }
                if is_denied(source) =>
            {
                RefusalKind::Denied
            }
            _ => RefusalKind::Failed,
        };
        let remedy = match self {
            AgentError::Running { .. } => {
                "use it, end it with `toroid down`, or choose another directory with --state"
            }
            AgentError::State { source, .. } if is_denied(source) => {
                "choose another directory with --state, where neither it nor those above it belong \
                 to other users or can be written by them"
            }
            AgentError::Data { source, .. } if is_denied(source) => {
                "choose another directory with --data, where neither it nor those above it belong \
                 to other users or can be written by them"
            }
            AgentError::State { .. } => "choose another directory with --state",
            AgentError::Data { .. } => "choose another directory with --data",
            AgentError::OtherTorus { .. } => {
                "leave --torus out to go on with it, choose another place with --data, or begin \
                 anew with `toroid up --fresh`, which moves it aside"
            }
            AgentError::SeveralHosts { .. } => {
                "start it with --config, choose another place with --data, or begin anew with \
                 `toroid up --fresh`, which moves it aside"
            }
            AgentError::OwnDirectory { .. } => {
                "let this host hold the directory (`directory` in its file), or begin anew with \
                 `toroid up --fresh`, which moves it aside"
            }
            AgentError::PartialDirectory { .. } => {
                "let another host lead (`directory` in the files); without another copy, begin anew \
                 with `toroid up --fresh`, which moves it aside"
            }
            AgentError::Rdma(error) => error.remedy(),
            AgentError::Key(_) => "see `key` in the file for `toroid up --config`",
            AgentError::Listen { .. } => {
                "see `listen` in the file for `toroid up --config`: an address of this host, and a \
                 port that nobody else has"
            }
            AgentError::Inherited { .. } => {
                "take them over with a `toroid up` that fits, or end them with `toroid down`"
            }
            AgentError::OtherFabric { .. } => {
                "leave --fabric out to go on with them, or end them with `toroid down`"
            }
            AgentError::LinksWithFabric { .. } => {
                "start without --fabric and run `toroid link rm`, or begin anew with `toroid up \
                 --fresh`"
            }
            AgentError::FabricOfHosts(_) => {
                "leave --fabric out, and set single links with `toroid link set`"
            }
            AgentError::TooManyNodes { .. } => {
                "choose a smaller --torus, or let more hosts carry it (docs/hosts.md)"
            }
            AgentError::Tun(error) => tun_remedy(error),
            AgentError::UserNamespace(_) => {
                "allow them (sysctl user.max_user_namespaces, or \
                 kernel.apparmor_restrict_unprivileged_userns=0), or run as root"
            }
            AgentError::Users(_) => "make /run writable for root; only its lock file is made there",
            AgentError::Limit { .. } => {
                "let the agent make control groups: start it as root where the controllers memory and \
                 pids are mounted writable, or see docs/operating.md"
            }
            AgentError::Node { action, .. } if action == GIVE_USERS => {
                "allow namespaces (sysctl user.max_user_namespaces, user.max_net_namespaces), and \
                 run the agent outside of a chroot"
            }
            AgentError::Node { source, .. } if is_denied(source) => IN_A_CONTAINER,
            AgentError::Driver { .. } => {
                "build it with `cargo build -p ethernet`, or do without Ethernet with \
                 --no-ethernet"
            }
            AgentError::DriverFailed(_) => {
                "see agent.log in the state directory, or do without Ethernet with --no-ethernet"
            }
            AgentError::Node { .. } | AgentError::System { .. } => {
                "see agent.log in the state directory, and the limits of the system (`ulimit -a`)"
            }
            _ => "if it does not say why, start it again with --foreground",
        };
        Refusal::new(kind, self.to_string(), remedy)
    }
}

/// Makes the error of a state directory from the system's.
pub(crate) fn in_state(state: &Path) -> impl Fn(io::Error) -> AgentError + Copy {
    move |source| AgentError::State {
        state: state.into(),
        source,
    }
}

/// Makes the error of a data directory from the system's.
pub(crate) fn in_data(data: &Path) -> impl Fn(io::Error) -> AgentError + Copy {
    move |source| AgentError::Data {
        data: data.into(),
        source,
    }
}

/// Makes the error of an action, a verb and its object, from the system's.
pub(crate) fn during(action: &'static str) -> impl Fn(io::Error) -> AgentError + Copy {
    move |source| AgentError::System { action, source }
}

fn is_denied(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::PermissionDenied
}
