//! Access of a process in a node to the fabric: the process attaches to the agent, then maps regions
//! and exchanges packets itself.
//!
//! A control thread receives the replies and events of the agent. It acknowledges epochs and ends
//! objects of former members, also while the application computes or sleeps. It records every
//! grant before the application gets it, so that no event about a grant is lost.

mod control;
mod emulation;
mod nodes;
mod regions;
mod remote;
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
use toroid_fabric::emulation::{Channel, PeerLink, QueuePair};
use toroid_fabric::link::{DropReason, LinkCheck};
use toroid_fabric::provider::{self, Provider, RemoteRegion};
use toroid_fabric::shm;
use toroid_fabric::{
    Access, NodeId, PacketChannel, Partition, Place, Protocol, Region, RemoteKey, Torus,
};
use toroid_model::info::DomainInfo;
use toroid_model::refusal::{Refusal, RefusalKind};
use toroid_protocol::agent::{NODE_SOCKET, Reply, Request};

use crate::credentials::peer_uid;
pub use control::Dial;
use control::{Control, Incoming, ListenerRelease};
use regions::Mapped;

/// Torus, number, place and domains of a node.
type Identity = (Torus, u32, Place, Vec<String>);

/// Pause between two attempts to attach.
const PAUSE: Duration = Duration::from_millis(50);

/// Reason why a request of a member failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MemberError {
    /// Caller: this process runs in no node.
    #[error("this process is not in a node; start it with `toroid exec NODE -- ...`")]
    NotInNode,
    /// The agent refused the request.
    #[error("{0}")]
    Refused(#[from] Refusal),
    /// Policy: the node has left the domain.
    #[error("the node has left the domain")]
    Revoked,
    /// The agent has ended, or sent an unexpected message.
    #[error("lost the agent: {0}")]
    Agent(String),
    /// The system could not map a grant.
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
                // The agent was killed meanwhile; another may start soon.
                Err(MemberError::Agent(_)) if start.elapsed() < control::AGENT_TIMEOUT => {
                    thread::sleep(PAUSE);
                }
                result => return result,
            }
        }
    }

    fn attach_once() -> Result<Self, MemberError> {
        Self::attach_through(Dial::new(connect))
    }

    /// Attaches to the agent to which `dial` connects.
    pub fn attach_through(dial: Dial) -> Result<Self, MemberError> {
        let control = Control::start(dial)?;
        let (torus, node, place, _): Identity = control.ask(Request::Whoami)?;
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

    /// Number of the node.
    pub fn node(&self) -> NodeId {
        self.node
    }

    /// Place of the node.
    pub fn place(&self) -> Place {
        self.place
    }

    /// Torus of the fabric.
    pub fn torus(&self) -> Torus {
        self.torus
    }

    /// Names of the domains of which the node is now a member.
    ///
    /// # Errors
    /// [`MemberError::Agent`].
    pub fn domains(&self) -> Result<Vec<String>, MemberError> {
        let (.., domains): Identity = self.control.ask(Request::Whoami)?;
        Ok(domains)
    }

    /// A domain of which the node is a member.
    ///
    /// # Errors
    /// [`MemberError::Refused`] when the node is no member.
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

/// A domain from the view of a member.
#[derive(Clone, Debug)]
pub struct Domain {
    member: Member,
    name: Arc<str>,
    partition: Partition,
}

impl Domain {
    /// Name of the domain.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Number of the domain in link headers and keys.
    pub fn partition(&self) -> Partition {
        self.partition
    }

    /// Attachment from which the domain was obtained.
    pub fn member(&self) -> &Member {
        &self.member
    }

    /// Number of packets of this domain that this process has dropped for a reason.
    pub fn dropped(&self, reason: DropReason) -> u64 {
        self.member.control.dropped(self.partition, reason)
    }

    /// Present members and addresses.
    ///
    /// # Errors
    /// [`MemberError::Refused`] when the node has left it.
    pub fn info(&self) -> Result<DomainInfo, MemberError> {
        show(&self.member.control, &self.name)
    }

    /// Registers `len` zeroed bytes, which members of this domain may access according to `access`
    /// until the last handle is dropped.
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
            Mapped::Remote(_) => Err(wrong_region()),
        }
    }

    /// Opens a region of a peer, with some or all of the rights that its owner granted.
    ///
    /// # Errors
    /// [`MemberError::Refused`] when the key is wrong, a right was not granted, or one of the
    /// two nodes is not a member; [`MemberError::System`].
    pub fn open(&self, key: RemoteKey, access: Access) -> Result<RemoteRegion, MemberError> {
        match self.open_here(key, access)? {
            Some(region) => {
                region.emulate(self.link(key.node));
                Ok(RemoteRegion::Shm(region))
            }
            None => Ok(RemoteRegion::Tcp(self.open_remote(key, access)?)),
        }
    }

    /// Opens a region of a node of this host, without the emulation of links; `None` if another host
    /// carries the node.
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
                Mapped::Own(_) => Err(wrong_region()),
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
        let remote = self.remote_queue_pair(place, depth)?;
        let node = self.member.torus.node(place);
        let node = node.ok_or_else(|| MemberError::no_such_node(place))?;
        let pair = remote.unwrap_or_else(|| {
            provider::QueuePair::Shm(shm::QueuePair::new(node, self.partition, depth))
        });
        Ok(QueuePair::new(pair, self.link(node)))
    }

    /// A packet channel to the listener for `protocol` at `place`.
    ///
    /// # Errors
    /// [`MemberError::Refused`] when there is no such listener, or `place` is not a member.
    pub fn connect(&self, place: Place, protocol: Protocol) -> Result<Channel, MemberError> {
        let request = Request::Connect {
            domain: self.name.to_string(),
            place,
            protocol: protocol.0,
        };
        let answer = self.member.control.call(request)?;
        let channel = match (answer.channel, answer.remote) {
            (Some(channel), _) => provider::Channel::Shm(channel),
            (None, Some(remote)) => self.remote_channel(remote, protocol)?,
            (None, None) => {
                let message = "no descriptor or no memory for a channel";
                return Err(io::Error::other(message).into());
            }
        };
        let link = self.link(channel.peer());
        Ok(Channel::new(channel, link))
    }

    /// Accepts channels for `protocol` at this node, until the listener is dropped.
    ///
    /// # Errors
    /// [`MemberError::Refused`] when another process of the node listens already.
    pub fn listen(&self, protocol: Protocol) -> Result<Listener, MemberError> {
        let control = &self.member.control;
        let incoming = control.listen(&self.name, self.partition, protocol)?;
        Ok(Listener {
            release: ListenerRelease {
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
        parse_places(self.member.control.ask(request)?)
    }
}

/// Identifies peers by number; the methods of [`Domain`] identify them by place.
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

    fn link(&self, peer: NodeId) -> Arc<PeerLink> {
        self.member.control.link(self.partition, peer)
    }
}

/// Channels that peers open to this process.
#[derive(Debug)]
pub struct Listener {
    incoming: Arc<Incoming>,
    release: ListenerRelease,
}

impl Listener {
    /// Waits up to `timeout` for the next channel.
    ///
    /// # Errors
    /// [`MemberError::Revoked`] when the node has left the domain, [`MemberError::Agent`] when
    /// the agent has ended. Both are permanent.
    pub fn accept(&self, timeout: Duration) -> Result<Option<Channel>, MemberError> {
        if let Some(channel) = self.next()? {
            return Ok(Some(channel));
        }
        let timeout = PollTimeout::try_from(timeout).unwrap_or(PollTimeout::MAX);
        // An interrupted wait returns without a channel.
        let _ = poll(
            &mut [PollFd::new(self.wake_fd(), PollFlags::POLLIN)],
            timeout,
        );
        self.next()
    }

    fn next(&self) -> Result<Option<Channel>, MemberError> {
        let ListenerRelease {
            control, service, ..
        } = &self.release;
        let emulate = |channel: shm::Channel| {
            let link = control.link(service.0, channel.peer());
            Channel::new(provider::Channel::Shm(channel), link)
        };
        Ok(self.incoming.next()?.map(emulate))
    }

    /// Readable while a channel waits to be accepted.
    pub fn wake_fd(&self) -> BorrowedFd<'_> {
        self.incoming.wake_fd()
    }
}

/// Connects to the node socket, also while no agent runs.
fn connect() -> Result<UnixStream, MemberError> {
    let address = SocketAddr::from_abstract_name(NODE_SOCKET)?;
    let stream = UnixStream::connect_addr(&address).map_err(|_| MemberError::NotInNode)?;
    // Outside of nodes any process may listen under this name. In a node the agent is root.
    if peer_uid(&stream)?.is_root() {
        Ok(stream)
    } else {
        Err(MemberError::NotInNode)
    }
}

fn show(control: &Control, name: &str) -> Result<DomainInfo, MemberError> {
    let name = name.to_owned();
    control.ask(Request::DomainShow { name })
}

fn parse_places(places: Vec<String>) -> Result<Vec<Place>, MemberError> {
    let parse = |place: String| {
        place
            .parse::<Place>()
            .map_err(|_| MemberError::Agent(place))
    };
    places.into_iter().map(parse).collect()
}

fn wrong_region() -> MemberError {
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

    /// An agent that grants all requests, but without descriptors. The thread returns the requests.
    fn agent_that_loses_descriptors(stream: UnixStream) -> JoinHandle<Vec<Request>> {
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
                // Fails after the member has ended, which does not wait for replies to releases.
                let _ = writer.send(&Message::Reply(reply), &[]);
            }
            asked
        })
    }

    #[test]
    fn a_grant_without_descriptors_fails_alone_and_is_released() {
        let (here, there) = UnixStream::pair().unwrap();
        let agent = agent_that_loses_descriptors(there);
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

    /// Regression: the error was "lost the agent", and a proxy retried for ever.
    #[test]
    fn an_unknown_node_is_an_error_of_the_caller() {
        let error = MemberError::no_such_node(Place { x: 9, y: 0, z: 0 });
        let told = "there is no node 9,0,0; see `toroid node ls`";
        assert_eq!(error.to_string(), told);
    }
}
