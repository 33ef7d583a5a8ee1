//! Administration of an agent: a connection to its control socket, with a method for each request.

mod call;
mod exec;
mod links;
mod properties;
mod state;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

pub use exec::{ExecHandle, Order, Signals};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
pub use properties::Properties;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
pub use state::{SYSTEM_STATE, own_state};
use toroid_fabric::{Place, Torus};
use toroid_model::allocation::Destination;
use toroid_model::audit::AuditEvent;
use toroid_model::directory::MemberSpec;
use toroid_model::gateway::GatewayKind;
use toroid_model::host_key::PublicKey;
use toroid_model::info::{DomainInfo, MemberDrops, NodeInfo, QuotaInfo, ShrinkNeeds, Status};
use toroid_model::link::Rate;
use toroid_model::placement::Policy;
use toroid_model::quota::Resource;
use toroid_model::refusal::{Refusal, RefusalKind};
use toroid_protocol::agent::{
    NODE_SOCKET, NewDomain, NodeAllocation, ReplyValue, Request, VERSION,
};
use toroid_protocol::fdstore;
use toroid_protocol::wire::{self, Reader, WireError, Writer};

use crate::credentials::peer_uid;
use call::{is_broken_off, unexpected};

/// The name of the control socket in a state directory.
pub const CONTROL_SOCKET: &str = "agent.sock";

/// Time in milliseconds from the agent's last reply to the end of its process.
const LAST_WORDS_MS: u16 = 5000;

/// Time in which an agent must answer the greeting.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// Number of greetings to an agent that closes the connection, and the pause between them.
const GREETINGS: u32 = 20;
const PAUSE: Duration = Duration::from_millis(20);

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// Nothing listens there.
    #[error("no agent runs for {}; start one with `toroid up`", state.display())]
    NoAgent {
        /// The state directory.
        state: PathBuf,
    },
    /// The agent has ended, but its nodes continue.
    #[error(
        "no agent runs for {}, but its nodes go on; `toroid up` takes them over, `toroid down` \
         ends them", state.display()
    )]
    Orphaned {
        /// The state directory.
        state: PathBuf,
    },
    /// It does not answer.
    #[error("no agent answers; if it has ended, `toroid up` takes its nodes over")]
    Silent,
    /// This process is in no node.
    #[error("this process is not in a node; start it with `toroid exec NODE -- ...`")]
    NotInNode,
    /// The agent refused the request.
    #[error("{0}")]
    Refused(#[from] Refusal),
    /// The connection broke.
    #[error("lost the agent: {0}")]
    Wire(#[from] WireError),
    /// A change failed in this way after an attempt whose result is not known.
    #[error("{0}; whether the change was made is unknown: look, and make it again if not")]
    Unknown(Box<ClientError>),
    /// The request is longer than messages may be. Nothing was sent.
    #[error("cannot send the request: {0}; give it fewer or shorter values")]
    TooLong(WireError),
    /// The agent sent an unexpected reply.
    #[error("the agent answered out of turn: {0}")]
    Unexpected(String),
}

impl From<io::Error> for ClientError {
    fn from(error: io::Error) -> Self {
        WireError::from(error).into()
    }
}

/// A connection to an agent.
#[derive(Debug)]
pub struct Control {
    address: Address,
    pid: u32,
    reader: Reader,
    writer: Writer,
    waits: Option<fn()>,
}

/// Address of an agent.
#[derive(Clone, Debug)]
enum Address {
    State(PathBuf),
    Node,
}

impl Address {
    fn connect(&self) -> Result<UnixStream, ClientError> {
        match self {
            Address::State(state) => {
                UnixStream::connect(state.join(CONTROL_SOCKET)).map_err(|error| {
                    match error.kind() {
                        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
                            no_agent(state.clone())
                        }
                        io::ErrorKind::PermissionDenied => denied(state).into(),
                        _ => error.into(),
                    }
                })
            }
            Address::Node => {
                let address = SocketAddr::from_abstract_name(NODE_SOCKET)?;
                let connected = UnixStream::connect_addr(&address);
                let stream = connected.map_err(|_| ClientError::NotInNode)?;
                // Outside of nodes any process may listen under this name. In a node its agent is
                // root, also if the agent is an ordinary user outside.
                if peer_uid(&stream)?.is_root() {
                    Ok(stream)
                } else {
                    Err(ClientError::NotInNode)
                }
            }
        }
    }
}

fn is_silence(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
    )
}

fn no_agent(state: PathBuf) -> ClientError {
    // The file descriptor store of an agent that was killed is still there.
    if fdstore::is_there(&state) {
        ClientError::Orphaned { state }
    } else {
        ClientError::NoAgent { state }
    }
}

fn denied(state: &Path) -> Refusal {
    Refusal::new(
        RefusalKind::Denied,
        format!("the agent of {} is another user's", state.display()),
        "start your own with `toroid up`, or name its state directory with --state",
    )
}

impl Control {
    /// Connects to the agent of a state directory.
    ///
    /// # Errors
    /// [`ClientError::NoAgent`]; [`ClientError::Refused`] when the versions differ, the agent is
    /// another user's, or it has too many connections.
    pub fn connect(state: &Path) -> Result<Self, ClientError> {
        Self::open(Address::State(state.into()))
    }

    /// Connects to the agent of the node of this process, which refuses requests of administrators
    /// there.
    ///
    /// # Errors
    /// [`ClientError::NotInNode`], and as [`Control::connect`].
    pub fn of_node() -> Result<Self, ClientError> {
        Self::open(Address::Node)
    }

    /// Connects, and retries while an ending agent accepts connections and closes them.
    fn open(address: Address) -> Result<Self, ClientError> {
        for _ in 1..GREETINGS {
            match Self::greet(address.clone()) {
                Err(ClientError::Wire(error)) if is_broken_off(&error) => thread::sleep(PAUSE),
                result => return result,
            }
        }
        Self::greet(address)
    }

    fn greet(address: Address) -> Result<Self, ClientError> {
        let stream = address.connect()?;
        // The socket of a node is there also when no agent is.
        stream.set_read_timeout(Some(HANDSHAKE))?;
        let (mut reader, writer) = wire::split(stream)?;
        reader.take_long();
        let mut control = Control {
            address,
            pid: 0,
            reader,
            writer,
            waits: None,
        };
        control.pid = match control.exchange(&Request::Hello { version: VERSION }, &mut None) {
            Err(ClientError::Wire(WireError::Io(error))) if is_silence(&error) => {
                return Err(ClientError::Silent);
            }
            reply => u32::from_reply(reply?.0).map_err(|other| unexpected(&other))?,
        };
        control.reader.stream().set_read_timeout(None)?;
        Ok(control)
    }

    /// Calls `tell` once for each request that waits until an agent leads.
    pub fn when_waiting(&mut self, tell: fn()) {
        self.waits = Some(tell);
    }

    /// The agent's process id.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// The state of the agent.
    ///
    /// # Errors
    /// [`ClientError`], as for all that follow.
    pub fn status(&mut self) -> Result<Status, ClientError> {
        self.call(&Request::Status)
    }

    /// All nodes, in order of their number.
    pub fn nodes(&mut self) -> Result<Vec<NodeInfo>, ClientError> {
        self.call(&Request::NodeList)
    }

    /// Gives a node a further name.
    pub fn alias(&mut self, node: &str, alias: &str) -> Result<(), ClientError> {
        self.call(&Request::NodeAlias {
            node: node.into(),
            alias: alias.into(),
        })
    }

    /// Takes a further name away from its node.
    pub fn unalias(&mut self, alias: &str) -> Result<(), ClientError> {
        let alias = alias.into();
        self.call(&Request::NodeUnalias { alias })
    }

    /// Creates a domain of the nodes in `nodes`, which are node sets. Interfaces are up and
    /// names resolve when it returns.
    pub fn create(
        &mut self,
        name: &str,
        nodes: &[String],
        subnet: Option<&str>,
        mtu: Option<u32>,
    ) -> Result<DomainInfo, ClientError> {
        self.create_domain(NewDomain {
            name: name.into(),
            nodes: nodes.into(),
            subnet: subnet.map(Into::into),
            mtu,
            ..NewDomain::default()
        })
    }

    /// Creates a domain with all that it can have.
    pub fn create_domain(&mut self, new: NewDomain) -> Result<DomainInfo, ClientError> {
        self.call(&Request::DomainCreate(new))
    }

    /// Adds nodes to a domain as full members.
    pub fn grow(&mut self, name: &str, nodes: &[String]) -> Result<DomainInfo, ClientError> {
        self.admit(name, nodes, MemberSpec::default())
    }

    /// Adds nodes to a domain as members of one kind.
    pub fn admit(
        &mut self,
        name: &str,
        nodes: &[String],
        spec: MemberSpec,
    ) -> Result<DomainInfo, ClientError> {
        self.call(&Request::DomainGrow {
            name: name.into(),
            nodes: nodes.into(),
            limited: spec.limited,
            plain: spec.no_offload,
            stack: spec.userspace_stack,
            rate: spec.rate,
        })
    }

    /// Changes the rate limit of members; `None`: none.
    pub fn set_rate(
        &mut self,
        name: &str,
        nodes: &[String],
        rate: Option<Rate>,
    ) -> Result<DomainInfo, ClientError> {
        self.call(&Request::DomainRate {
            name: name.into(),
            nodes: nodes.into(),
            rate,
        })
    }

    /// Lets processes of nodes grow and shrink a domain, or no longer.
    pub fn manage(
        &mut self,
        name: &str,
        nodes: &[String],
        revoke: bool,
    ) -> Result<DomainInfo, ClientError> {
        self.call(&Request::DomainManage {
            name: name.into(),
            nodes: nodes.into(),
            revoke,
        })
    }

    /// Changes properties of a domain; `None` keeps one.
    pub fn set(&mut self, name: &str, properties: Properties) -> Result<DomainInfo, ClientError> {
        let Properties {
            public,
            forward,
            sealed,
            fence,
            ethernet,
            owner,
        } = properties;
        self.call(&Request::DomainSet {
            name: name.into(),
            public,
            forward,
            sealed,
            fence,
            ethernet,
            owner,
        })
    }

    /// Connects a domain to an external network, at a member through an interface of the host.
    pub fn add_gateway(
        &mut self,
        node: &str,
        domain: &str,
        uplink: &str,
        kind: GatewayKind,
    ) -> Result<DomainInfo, ClientError> {
        self.call(&Request::GatewayAdd {
            node: node.into(),
            domain: domain.into(),
            uplink: uplink.into(),
            kind,
        })
    }

    /// Ends that.
    pub fn remove_gateway(&mut self, node: &str, domain: &str) -> Result<DomainInfo, ClientError> {
        self.call(&Request::GatewayRemove {
            node: node.into(),
            domain: domain.into(),
        })
    }

    /// Admits a host with this key to the directory.
    pub fn admit_host(&mut self, host: &str, key: PublicKey) -> Result<(), ClientError> {
        let host = host.into();
        self.call(&Request::HostAdmit { host, key })
    }

    /// Takes a host out of the directory.
    pub fn remove_host(&mut self, host: &str) -> Result<(), ClientError> {
        self.call(&Request::HostRemove { host: host.into() })
    }

    /// Moves the directory to etcd, or to the files of a host.
    pub fn move_directory(&mut self, to: &str) -> Result<(), ClientError> {
        self.call(&Request::DirectoryMove { to: to.into() })
    }

    /// Gives the agent's host a new key pair.
    pub fn rotate_host_key(&mut self) -> Result<(), ClientError> {
        self.call(&Request::HostRotate { keys: Vec::new() })
    }

    /// Gives nodes to a user, or back to the agent.
    pub fn chown(&mut self, nodes: &[String], owner: Option<u32>) -> Result<(), ClientError> {
        self.call(&Request::NodeChown {
            nodes: nodes.into(),
            owner,
        })
    }

    /// Lets the owner of a domain place nodes of this user in it, or no longer.
    pub fn consent(
        &mut self,
        nodes: &[String],
        domain: &str,
        withdraw: bool,
    ) -> Result<(), ClientError> {
        self.call(&Request::NodeConsent {
            nodes: nodes.into(),
            domain: domain.into(),
            withdraw,
        })
    }

    /// Allocates free nodes, near a node or according to `placement`, for `destination`.
    pub fn alloc_nodes(
        &mut self,
        count: u32,
        placement: Policy,
        near: Option<&str>,
        destination: &Destination,
    ) -> Result<(Vec<String>, Option<DomainInfo>), ClientError> {
        let (domain, create) = destination.parts();
        self.call(&Request::NodeAlloc(NodeAllocation {
            count,
            placement,
            near: near.map(Into::into),
            domain,
            create,
        }))
    }

    /// Gives nodes back; they leave their domains.
    pub fn free_nodes(&mut self, nodes: &[String]) -> Result<(), ClientError> {
        let nodes = nodes.into();
        self.call(&Request::NodeFree { nodes })
    }

    /// Takes nodes out of a domain. Returns the domain, unless the request was repeated after the
    /// caller had left by it.
    pub fn shrink(
        &mut self,
        name: &str,
        nodes: &[String],
    ) -> Result<Option<DomainInfo>, ClientError> {
        self.call(&Request::DomainShrink {
            name: name.into(),
            nodes: nodes.into(),
        })
    }

    /// Describes the work of a shrink, on all hosts. Changes nothing.
    pub fn shrink_needs(
        &mut self,
        name: &str,
        nodes: &[String],
    ) -> Result<ShrinkNeeds, ClientError> {
        self.call(&Request::ShrinkNeeds {
            name: name.into(),
            nodes: nodes.into(),
        })
    }

    /// Removes a domain.
    pub fn remove(&mut self, name: &str) -> Result<(), ClientError> {
        self.call(&Request::DomainRemove { name: name.into() })
    }

    /// Changes and denials that concern this user, from number `since` on, and the next number.
    /// With `wait`, waits some seconds for an event.
    pub fn events(
        &mut self,
        since: u64,
        wait: bool,
    ) -> Result<(Vec<AuditEvent>, u64), ClientError> {
        self.call(&Request::Events { since, wait })
    }

    /// Resources and limits of a user, of nodes, or with neither of all tenants that concern the
    /// caller. Also returns the hosts whose counts are missing, with the reasons.
    pub fn quotas(
        &mut self,
        user: Option<u32>,
        nodes: &[String],
    ) -> Result<(Vec<QuotaInfo>, BTreeMap<String, String>), ClientError> {
        let nodes = nodes.into();
        self.call(&Request::QuotaShow { user, nodes })
    }

    /// Sets limits of a user or of nodes, or lifts those that are `None`.
    pub fn limit(
        &mut self,
        user: Option<u32>,
        nodes: &[String],
        limits: BTreeMap<Resource, Option<u64>>,
    ) -> Result<(), ClientError> {
        self.call(&Request::QuotaSet {
            user,
            nodes: nodes.into(),
            limits,
        })
    }

    /// All domains, in order of their names.
    pub fn list(&mut self) -> Result<Vec<DomainInfo>, ClientError> {
        self.call(&Request::DomainList)
    }

    /// One domain.
    pub fn show(&mut self, name: &str) -> Result<DomainInfo, ClientError> {
        self.call(&Request::DomainShow { name: name.into() })
    }

    /// Frames of members of a domain that reached no receiver. Also returns the hosts whose
    /// counts are missing, with the reasons.
    pub fn drops(
        &mut self,
        name: &str,
    ) -> Result<(Vec<MemberDrops>, BTreeMap<String, String>), ClientError> {
        self.call(&Request::DomainDrops { name: name.into() })
    }

    /// The torus, and the number, place and domains of the node of this process, on a connection
    /// made by [`Control::of_node`].
    pub fn whoami(&mut self) -> Result<(Torus, u32, Place, Vec<String>), ClientError> {
        self.call(&Request::Whoami)
    }

    /// Ends the agent with its nodes and driver; returns when their processes have gone.
    pub fn down(mut self) -> Result<(), ClientError> {
        let agent = watch(self.pid);
        self.call::<()>(&Request::Down)?;
        if let Some(agent) = agent {
            // Should it outlive the wait, there is nothing more to do: it has ended all others.
            let mut ended = [PollFd::new(agent.as_fd(), PollFlags::POLLIN)];
            let _ = poll(&mut ended, PollTimeout::from(LAST_WORDS_MS));
        }
        Ok(())
    }
}

/// A descriptor that becomes readable when the process has ended.
fn watch(pid: u32) -> Option<OwnedFd> {
    let pid = Pid::from_raw(i32::try_from(pid).ok()?)?;
    pidfd_open(pid, PidfdFlags::empty()).ok()
}
