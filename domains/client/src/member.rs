//! How a process of a node uses the fabric: it attaches to the agent, and from then on maps
//! regions and exchanges packets itself.
//!
//! A control thread receives what the agent says. It acknowledges epochs and ends what belongs to
//! nodes that left, also while the application computes or sleeps, and it books every grant
//! before the application gets it, so that no news about a grant can be missed.

mod control;
mod far;
mod nodes;
mod regions;
mod stack;

use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use toroid_fabric::link::{DropReason, LinkCheck};
use toroid_fabric::provider::{Channel, Provider, QueuePair, RemoteRegion};
use toroid_fabric::shm;
use toroid_fabric::{Access, NodeId, Partition, Place, Protocol, Region, RemoteKey, Torus};
use toroid_model::info::DomainInfo;
use toroid_model::refusal::{Refusal, RefusalKind};
use toroid_protocol::agent::{NODE_SOCKET, Reply, Request};

use crate::credentials::peer_uid;
pub use control::Dial;
use control::{Control, Incoming, ListenerRelease};
use regions::Mapped;

/// Between two attempts to attach.
const PAUSE: Duration = Duration::from_millis(50);

/// Why a request of a member failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MemberError {
    /// Caller: this process runs in no node.
    #[error("this process is not in a node; start it with `toroid exec NODE -- ...`")]
    NotInNode,
    /// The agent said no, and why.
    #[error("{0}")]
    Refused(#[from] Refusal),
    /// Policy: the node has left the domain.
    #[error("the node has left the domain")]
    Revoked,
    /// The agent has gone, or speaks another language.
    #[error("lost the agent: {0}")]
    Agent(String),
    /// The system could not map what the agent granted.
    #[error("cannot map memory: {0}")]
    System(#[from] io::Error),
}

impl MemberError {
    /// Caller: the fabric has no node with this place or number.
    pub fn no_such_node(node: impl fmt::Display) -> Self {
        MemberError::Refused(Refusal::no_such_node(node))
    }
}

/// A process attached to the node that it runs in. Clones share the attachment, which ends with
/// the last of them and of everything made from them.
#[derive(Clone, Debug)]
pub struct Member {
    control: Arc<Control>,
    node: NodeId,
    place: Place,
    torus: Torus,
}

impl Member {
    /// Attaches to the agent of the node in which this process runs.
    ///
    /// # Errors
    /// [`MemberError::NotInNode`]; [`MemberError::Refused`] when agent and library speak
    /// different versions or the node has too many processes; [`MemberError::Agent`] when there has
    /// been no agent for 10 s.
    pub fn attach() -> Result<Self, MemberError> {
        let start = Instant::now();
        loop {
            match Self::attach_once() {
                // The agent was killed under us; perhaps there is another one soon.
                Err(MemberError::Agent(_)) if start.elapsed() < control::PATIENCE => {
                    thread::sleep(PAUSE);
                }
                result => return result,
            }
        }
    }

    fn attach_once() -> Result<Self, MemberError> {
        Self::attach_through(Dial::new(connect))
    }

    /// Attaches to the agent to which `dial` leads.
    pub fn attach_through(dial: Dial) -> Result<Self, MemberError> {
        let control = Control::start(dial)?;
        let reply = control.call(Request::Whoami)?;
        let Reply::Whoami {
            torus, node, place, ..
        } = reply.reply
        else {
            return Err(unexpected(&reply.reply));
        };
        let node = NodeId(node);
        control.set_node(node);
        control.map_fence()?;
        control.take_ticket()?;
        Ok(Member {
            control,
            node,
            place,
            torus,
        })
    }

    /// The node.
    pub fn node(&self) -> NodeId {
        self.node
    }

    /// Its place.
    pub fn place(&self) -> Place {
        self.place
    }

    /// The shape of the fabric.
    pub fn torus(&self) -> Torus {
        self.torus
    }

    /// The domains of which the node is a member now.
    ///
    /// # Errors
    /// [`MemberError::Agent`].
    pub fn domains(&self) -> Result<Vec<String>, MemberError> {
        match self.control.call(Request::Whoami)?.reply {
            Reply::Whoami { domains, .. } => Ok(domains),
            other => Err(unexpected(&other)),
        }
    }

    /// A domain of which the node is a member.
    ///
    /// # Errors
    /// [`MemberError::Refused`] when it is not.
    pub fn domain(&self, name: &str) -> Result<Domain, MemberError> {
        let info = show(&self.control, name)?;
        self.control.learn_epoch(info.id, info.epoch);
        Ok(Domain {
            member: self.clone(),
            name: info.name.into(),
            partition: Partition(info.id),
        })
    }

    /// The domain called `name`, or the only one of the node when there is no name.
    ///
    /// # Errors
    /// [`MemberError::Refused`] when the node is not a member, or of none or several without a
    /// name to choose.
    pub fn domain_or_only(&self, name: Option<&str>) -> Result<Domain, MemberError> {
        if let Some(name) = name {
            return self.domain(name);
        }
        let domains = self.domains()?;
        let refuse = |message: String, remedy: &str| {
            Err(Refusal::new(RefusalKind::Invalid, message, remedy).into())
        };
        match &domains[..] {
            [only] => self.domain(only),
            [] => refuse(
                format!("node {} is in no domain", self.place),
                "put it in one with `toroid domain grow`",
            ),
            several => refuse(
                format!(
                    "node {} is in several domains: {}",
                    self.place,
                    several.join(", ")
                ),
                "choose one with --domain",
            ),
        }
    }
}

/// A domain as one of its members sees it.
#[derive(Clone, Debug)]
pub struct Domain {
    member: Member,
    name: Arc<str>,
    partition: Partition,
}

impl Domain {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its number in link headers and keys.
    pub fn partition(&self) -> Partition {
        self.partition
    }

    /// The attachment that it was asked for from.
    pub fn member(&self) -> &Member {
        &self.member
    }

    /// How many packets of this domain this process has dropped for this reason.
    pub fn dropped(&self, reason: DropReason) -> u64 {
        self.member.control.dropped(self.partition, reason)
    }

    /// Its members and addresses at present.
    ///
    /// # Errors
    /// [`MemberError::Refused`] when the node has left it.
    pub fn info(&self) -> Result<DomainInfo, MemberError> {
        show(&self.member.control, &self.name)
    }

    /// Registers `len` zeroed bytes that members of this domain may use as `access` says. Peers
    /// lose them when the last handle is dropped.
    ///
    /// # Errors
    /// [`MemberError::Refused`] when a limit is reached; [`MemberError::System`].
    pub fn alloc(&self, len: u64, access: Access) -> Result<Region, MemberError> {
        let domain = self.name.to_string();
        let request = Request::Alloc {
            domain,
            len,
            access,
        };
        match self.member.control.map(request)? {
            Mapped::Own(region) => Ok(region),
            Mapped::Remote(_) => Err(mixed_up()),
        }
    }

    /// Opens a region that a peer has published, with some or all of the rights that it gave.
    ///
    /// # Errors
    /// [`MemberError::Refused`] when the key is wrong, the right was not given, or one of the
    /// two nodes is not a member; [`MemberError::System`].
    pub fn open(&self, key: RemoteKey, access: Access) -> Result<RemoteRegion, MemberError> {
        match self.open_here(key, access)? {
            Some(region) => Ok(RemoteRegion::Shm(region)),
            None => Ok(RemoteRegion::Tcp(self.open_far(key, access)?)),
        }
    }

    /// Opens a region of a node of this host; `None` if another one carries it.
    pub fn open_here(
        &self,
        key: RemoteKey,
        access: Access,
    ) -> Result<Option<shm::RemoteRegion>, MemberError> {
        let answer = self.member.control.call(Request::Open { key, access })?;
        match (answer.reply, answer.region) {
            (Reply::Elsewhere, _) => Ok(None),
            (_, Some(mapped)) => match mapped? {
                Mapped::Remote(region) => Ok(Some(region)),
                Mapped::Own(_) => Err(mixed_up()),
            },
            (other, None) => Err(unexpected(&other)),
        }
    }

    /// A queue pair for one-sided operations on regions of the member at `place`, for up to
    /// `depth` operations at a time.
    ///
    /// # Errors
    /// [`MemberError::Refused`] when `place` is no node, or not a member and of another host.
    pub fn queue_pair(&self, place: Place, depth: usize) -> Result<QueuePair, MemberError> {
        if let Some(pair) = self.far_queue_pair(place, depth)? {
            return Ok(pair);
        }
        let node = self.member.torus.node(place);
        let node = node.ok_or_else(|| MemberError::no_such_node(place))?;
        let pair = shm::QueuePair::new(node, self.partition, depth);
        Ok(QueuePair::Shm(pair))
    }

    /// A packet channel to whoever listens for `protocol` at `place`.
    ///
    /// # Errors
    /// [`MemberError::Refused`] when nobody does, or `place` is not a member.
    pub fn connect(&self, place: Place, protocol: Protocol) -> Result<Channel, MemberError> {
        let request = Request::Connect {
            domain: self.name.to_string(),
            place,
            protocol: protocol.0,
        };
        let answer = self.member.control.call(request)?;
        match (answer.channel, answer.far) {
            (Some(channel), _) => Ok(Channel::Shm(channel)),
            (None, Some(far)) => Ok(self.far_channel(far, protocol)?),
            (None, None) => {
                Err(io::Error::other("no descriptor or no memory for a channel").into())
            }
        }
    }

    /// Accepts channels for `protocol` at this node, until the listener is dropped.
    ///
    /// # Errors
    /// [`MemberError::Refused`] when another process of the node does already.
    pub fn listen(&self, protocol: Protocol) -> Result<Listener, MemberError> {
        let control = &self.member.control;
        let incoming = control.listen(&self.name, self.partition, protocol)?;
        Ok(Listener {
            _release: ListenerRelease {
                control: Arc::clone(control),
                domain: Arc::clone(&self.name),
                service: (self.partition, protocol),
                incoming: Arc::clone(&incoming),
            },
            incoming,
        })
    }

    /// The members at which a process listens for `protocol`.
    ///
    /// # Errors
    /// [`MemberError::Agent`].
    pub fn listeners(&self, protocol: Protocol) -> Result<Vec<Place>, MemberError> {
        let request = Request::Lookup {
            domain: self.name.to_string(),
            protocol: protocol.0,
        };
        match self.member.control.call(request)?.reply {
            Reply::Listeners { places } => places
                .iter()
                .map(|place| place.parse().map_err(|_| MemberError::Agent(place.clone())))
                .collect(),
            other => Err(unexpected(&other)),
        }
    }
}

/// Peers by number. The methods of [`Domain`] name them by place.
impl Provider for Domain {
    type Region = RemoteRegion;
    type QueuePair = QueuePair;
    type Channel = Channel;
    type Error = MemberError;

    fn open(&self, key: RemoteKey, access: Access) -> Result<RemoteRegion, MemberError> {
        Domain::open(self, key, access)
    }

    fn queue_pair(&self, peer: NodeId, depth: usize) -> Result<QueuePair, MemberError> {
        Domain::queue_pair(self, self.place(peer)?, depth)
    }

    fn channel(&self, peer: NodeId, protocol: Protocol) -> Result<Channel, MemberError> {
        self.connect(self.place(peer)?, protocol)
    }
}

impl Domain {
    fn place(&self, node: NodeId) -> Result<Place, MemberError> {
        let place = self.member.torus.place(node);
        place.ok_or_else(|| MemberError::no_such_node(node.0))
    }
}

/// Channels that peers open to this process.
#[derive(Debug)]
pub struct Listener {
    incoming: Arc<Incoming>,
    _release: ListenerRelease,
}

impl Listener {
    /// Waits up to `timeout` for the next channel.
    ///
    /// # Errors
    /// [`MemberError::Revoked`] when the node has left the domain, [`MemberError::Agent`] when
    /// the agent has gone. Neither mends itself.
    pub fn accept(&self, timeout: Duration) -> Result<Option<Channel>, MemberError> {
        if let Some(channel) = self.incoming.next()? {
            return Ok(Some(Channel::Shm(channel)));
        }
        let timeout = PollTimeout::try_from(timeout).unwrap_or(PollTimeout::MAX);
        // An interrupted wait is one without a result.
        let _ = poll(
            &mut [PollFd::new(self.wake_fd(), PollFlags::POLLIN)],
            timeout,
        );
        Ok(self.incoming.next()?.map(Channel::Shm))
    }

    /// Readable while a channel waits to be accepted.
    pub fn wake_fd(&self) -> BorrowedFd<'_> {
        self.incoming.wake_fd()
    }
}

/// Connects to the agent of this process's node, or to where one will listen.
fn connect() -> Result<UnixStream, MemberError> {
    let address = SocketAddr::from_abstract_name(NODE_SOCKET)?;
    let stream = UnixStream::connect_addr(&address).map_err(|_| MemberError::NotInNode)?;
    // Outside of nodes the name is free for anybody. A node sees its agent as root.
    if peer_uid(&stream)?.is_root() {
        Ok(stream)
    } else {
        Err(MemberError::NotInNode)
    }
}

fn show(control: &Control, name: &str) -> Result<DomainInfo, MemberError> {
    let name = name.to_owned();
    match control.call(Request::DomainShow { name })?.reply {
        Reply::Domain(info) => Ok(info),
        other => Err(unexpected(&other)),
    }
}

fn mixed_up() -> MemberError {
    MemberError::Agent("it mixed up regions".into())
}

fn unexpected(reply: &Reply) -> MemberError {
    MemberError::Agent(format!("unexpected reply {reply:?}"))
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::thread::JoinHandle;

    use toroid_fabric::RegionId;
    use toroid_protocol::agent::{ChannelInfo, Message, VERSION};
    use toroid_protocol::wire;

    use super::*;

    const KEY: RemoteKey = RemoteKey {
        node: NodeId(1),
        partition: Partition(7),
        id: RegionId(3),
        secret: [0; 16],
    };

    /// Grants all that it is asked for, and its descriptors are lost on the way; in the end it
    /// tells what it was asked.
    fn agent_whose_descriptors_are_lost(stream: UnixStream) -> JoinHandle<Vec<Request>> {
        std::thread::spawn(move || {
            let (mut reader, writer) = wire::split(stream).unwrap();
            let mut asked = Vec::new();
            while let Ok((request, _)) = reader.receive::<Request>() {
                let reply = match &request {
                    Request::Hello { .. } => Reply::Welcome {
                        version: VERSION,
                        pid: 1,
                    },
                    Request::Alloc { .. } | Request::Open { .. } => Reply::Region {
                        key: KEY,
                        len: 64,
                        fence: 0,
                        moving: false,
                    },
                    Request::Connect {
                        domain,
                        place,
                        protocol,
                    } => Reply::Channel(ChannelInfo {
                        id: 5,
                        domain: domain.clone(),
                        partition: 7,
                        epoch: 1,
                        peer: 1,
                        place: *place,
                        protocol: *protocol,
                        fence: 0,
                    }),
                    _ => Reply::Done,
                };
                asked.push(request);
                // The member may have gone: it does not wait for the answer to what it gives back.
                let _ = writer.send(&Message::Reply(reply), &[]);
            }
            asked
        })
    }

    #[test]
    fn a_grant_whose_descriptors_are_lost_fails_alone_and_is_given_back() {
        let (here, there) = UnixStream::pair().unwrap();
        let agent = agent_whose_descriptors_are_lost(there);
        let once = Mutex::new(Some(here));
        let dial = move || once.lock().unwrap().take().ok_or(MemberError::NotInNode);
        let control = Control::start(Dial::new(dial)).unwrap();
        control.set_node(NodeId(0));
        let torus: Torus = "2x2x2".parse().unwrap();
        let place = torus.place(NodeId(1)).unwrap();
        let domain = Domain {
            member: Member {
                control,
                node: NodeId(0),
                place: torus.place(NodeId(0)).unwrap(),
                torus,
            },
            name: "blue".into(),
            partition: Partition(7),
        };
        for _ in 0..2 {
            let access = Access::REMOTE_READ;
            assert!(matches!(
                domain.alloc(64, access),
                Err(MemberError::System(_))
            ));
            assert!(matches!(
                domain.open(KEY, access),
                Err(MemberError::System(_))
            ));
            let channel = domain.connect(place, Protocol(9));
            assert!(matches!(channel, Err(MemberError::System(_))));
        }
        drop(domain);
        let asked = agent.join().unwrap();
        let count = |request| asked.iter().filter(|asked| **asked == request).count();
        assert_eq!(count(Request::Free { key: KEY }), 2);
        assert_eq!(count(Request::Disconnect { id: 5 }), 2);
    }

    /// It once said "lost the agent", and a proxy went on trying.
    #[test]
    fn an_unknown_node_is_the_callers_mistake() {
        let error = MemberError::no_such_node(Place { x: 9, y: 0, z: 0 });
        let told = "there is no node 9,0,0; see `toroid node ls`";
        assert_eq!(error.to_string(), told);
    }
}
