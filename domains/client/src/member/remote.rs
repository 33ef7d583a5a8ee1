//! Peers on other hosts, reached over connections to the target proxies of their hosts. The agent makes
//! these connections; they end when one of the two nodes leaves the domain.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, Weak};
use std::thread;
use std::time::Duration;

use toroid_fabric::Membership;
#[cfg(feature = "verbs")]
use toroid_fabric::failover::{self, NoResources, ResourceSource, Resources};
use toroid_fabric::link::LinkCheck;
use toroid_fabric::mem::Status;
use toroid_fabric::provider::{Channel, QueuePair};
use toroid_fabric::tcp::{self, Cutter};
#[cfg(feature = "verbs")]
use toroid_fabric::verbs::ProtectionDomain;
use toroid_fabric::{Access, Epoch, NodeId, OpError, Partition, Place, Protocol, RemoteKey};
#[cfg(feature = "verbs")]
use toroid_model::rdma::Rdma;
use toroid_model::refusal::{Refusal, RefusalKind};
use toroid_protocol::agent::{RemoteInfo, Reply, Request};

use super::control::{Control, lock};
use super::regions::no_room;
use super::{Domain, Member, MemberError, unexpected};
#[cfg(feature = "verbs")]
use crate::rdma;

/// Connection granted by the agent.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) socket: Arc<OwnedFd>,
    pub(super) partition: Partition,
    pub(super) peer: NodeId,
    pub(super) status: Arc<Status>,
    pub(super) membership: Membership,
    /// RDMA device of this host, if operations may use it as well.
    #[cfg(feature = "verbs")]
    rdma: Option<Rdma>,
}

/// Connections that end with the membership of one of their two nodes.
#[derive(Debug, Default)]
pub(super) struct Links(Vec<Link>);

#[derive(Debug)]
struct Link {
    partition: Partition,
    peer: NodeId,
    /// Status of operations of this process; `None` if the connection serves the peer.
    status: Option<Weak<Status>>,
    cutter: Cutter,
}

/// Time in which the peer can read the reason of a refusal.
const REFUSAL_DELAY: Duration = Duration::from_secs(2);

/// Queue pairs that open regions, by peer.
#[derive(Debug, Default)]
pub(super) struct Openers(Mutex<HashMap<(Partition, NodeId), Opener>>);

/// Queue pair to one peer; `None` before the first. Opening a region waits for the peer's host.
type Opener = Arc<Mutex<Option<tcp::QueuePair>>>;

impl Links {
    pub(super) fn add(&mut self, connection: &Connection) {
        self.push(Link {
            partition: connection.partition,
            peer: connection.peer,
            status: Some(Arc::downgrade(&connection.status)),
            cutter: Cutter::of(&connection.socket),
        });
    }

    /// Adds a connection that serves requests of the peer.
    pub(super) fn add_served(&mut self, partition: Partition, peer: NodeId, cutter: Cutter) {
        self.push(Link {
            partition,
            peer,
            status: None,
            cutter,
        });
    }

    fn push(&mut self, link: Link) {
        let is_used = |status: &Weak<Status>| status.strong_count() > 0;
        self.0
            .retain(|link| !link.cutter.is_over() || link.status.as_ref().is_some_and(is_used));
        self.0.push(link);
    }

    /// Ends the links for which `ends` is true.
    pub(super) fn end(&mut self, ends: impl Fn(Partition, NodeId) -> bool, how: fn(&Status)) {
        let ended = self
            .0
            .extract_if(.., |link| ends(link.partition, link.peer));
        let mut served = Vec::new();
        for Link { status, cutter, .. } in ended {
            match status.map(|status| status.upgrade()) {
                None => served.push(cutter),
                Some(status) => {
                    status.iter().for_each(|status| how(status));
                    cutter.cut();
                }
            }
        }
        if !served.is_empty() {
            // Without a thread they end with the peer processes.
            let _ = thread::Builder::new().spawn(move || {
                thread::sleep(REFUSAL_DELAY);
                served.iter().for_each(Cutter::cut);
            });
        }
    }
}

/// Protection domains of this host's RDMA device, by partition, while a queue pair uses them.
#[cfg(feature = "verbs")]
#[derive(Debug, Default)]
pub(super) struct Protections(Mutex<HashMap<Partition, Weak<ProtectionDomain>>>);

#[cfg(feature = "verbs")]
impl Protections {
    fn of(&self, domain: &Domain, rdma: &Rdma) -> Option<Arc<ProtectionDomain>> {
        let device = rdma::device(rdma)?;
        let mut all = lock(&self.0);
        all.retain(|_, protection| protection.strong_count() > 0);
        let present = all.get(&domain.partition).and_then(Weak::upgrade);
        present.or_else(|| {
            let made = ProtectionDomain::new(&device, domain.member.node, domain.partition);
            let made = made.inspect_err(|error| tracing::warn!("no protection domain: {error}"));
            let made = made.ok()?;
            all.insert(domain.partition, Arc::downgrade(&made));
            Some(made)
        })
    }
}

impl Openers {
    fn to(&self, partition: Partition, peer: NodeId) -> Opener {
        let mut all = lock(&self.0);
        let is_good = |pair: &tcp::QueuePair| pair.status().check().is_ok();
        // A locked queue pair is in use and stays.
        all.retain(|_, opener| match opener.try_lock() {
            Ok(pair) => pair.as_ref().is_some_and(is_good),
            Err(_) => true,
        });
        Arc::clone(all.entry((partition, peer)).or_default())
    }
}

impl Control {
    /// Records a granted connection; `None` if this process could not take its descriptor.
    pub(super) fn record_remote(
        &self,
        info: &RemoteInfo,
        descriptors: Vec<OwnedFd>,
    ) -> Option<Connection> {
        let partition = Partition(info.partition);
        let socket = Arc::new(descriptors.into_iter().next()?);
        let status = Arc::new(self.status(info.fence));
        let membership = self.membership(partition, info.epoch);
        let connection = Connection {
            socket,
            partition,
            peer: NodeId(info.peer),
            status,
            membership,
            #[cfg(feature = "verbs")]
            rdma: info.rdma.clone(),
        };
        self.with_links(|links| links.add(&connection));
        Some(connection)
    }
}

impl Member {
    /// Ends a connection when this node or `peer` has left, after a delay in which the peer process
    /// can read the reason.
    pub fn cut_when_revoked(&self, partition: Partition, peer: NodeId, cutter: Cutter) {
        let control = &self.control;
        control.with_links(|links| links.add_served(partition, peer, cutter));
    }

    /// Whether the attachment has ended.
    pub fn has_ended(&self) -> bool {
        self.control.is_closed()
    }
}

impl Connection {
    fn queue_pair<R>(self, depth: usize) -> tcp::QueuePair<R> {
        let Connection {
            socket,
            partition,
            peer,
            status,
            ..
        } = self;
        tcp::QueuePair::new(socket, peer, partition, depth, status)
    }

    /// A channel of a process, which stays attached as long as it has the channel.
    fn channel(self, of: &Member, protocol: Protocol) -> io::Result<tcp::Channel> {
        let check = LinkCheck {
            partition: self.partition,
            peer: self.peer,
            protocol,
            // The two hosts may learn of a change at different times. A connection ends with the
            // membership of its nodes, so no packet on it is older than that membership.
            since: Epoch(0),
        };
        let Connection {
            socket,
            status,
            membership,
            ..
        } = self;
        let keep = Some(Arc::clone(&of.control) as _);
        tcp::Channel::open(socket, of.node, check, membership, status, keep)
    }
}

impl Domain {
    /// Membership in this domain, updated by events.
    pub fn membership(&self) -> Membership {
        self.member.control.membership(self.partition, 0)
    }

    /// Channel for a program.
    pub(super) fn remote_channel(
        &self,
        connection: Connection,
        protocol: Protocol,
    ) -> io::Result<Channel> {
        #[cfg(feature = "verbs")]
        let rdma = connection.rdma.clone();
        let channel = connection.channel(&self.member, protocol)?;
        #[cfg(feature = "verbs")]
        if let Some(rdma) = rdma {
            let channel = failover::Channel::new(channel, self.resources(rdma), true)?;
            return Ok(Channel::Failover(Box::new(channel)));
        }
        Ok(Channel::Tcp(Box::new(channel)))
    }

    /// Source of the device resources of a channel, called when the channel first needs them.
    #[cfg(feature = "verbs")]
    fn resources(&self, rdma: Rdma) -> ResourceSource {
        let domain = self.clone();
        Box::new(move || {
            let protections = &domain.member.control.protections;
            let of = protections.of(&domain, &rdma);
            let of = of.ok_or(NoResources::Ever)?;
            Ok(Resources {
                domain: of,
                account: None,
            })
        })
    }

    /// Connection to the target proxy of the member at `place`; `None` if this host carries the member.
    fn reach(&self, place: Place) -> Result<Option<Connection>, MemberError> {
        let domain = self.name.to_string();
        let answer = self.member.control.call(Request::Reach { domain, place })?;
        match (answer.reply, answer.remote) {
            (Reply::Here, _) => Ok(None),
            (Reply::Remote(_), Some(connection)) => Ok(Some(connection)),
            (Reply::Remote(_), None) => Err(no_room().into()),
            (other, _) => Err(unexpected(&other)),
        }
    }

    /// Queue pair of a program to the member at `place`, if another host carries that member.
    pub(super) fn remote_queue_pair(
        &self,
        place: Place,
        depth: usize,
    ) -> Result<Option<QueuePair>, MemberError> {
        let connection = self.reach(place)?;
        Ok(connection.map(|connection| self.by_any_device(connection, depth)))
    }

    #[cfg(feature = "verbs")]
    fn by_any_device(&self, connection: Connection, depth: usize) -> QueuePair {
        let rdma = connection.rdma.clone();
        let protection = rdma.and_then(|rdma| self.member.control.protections.of(self, &rdma));
        let pair = connection.queue_pair(depth);
        match protection {
            Some(protection) => {
                QueuePair::Failover(Box::new(failover::QueuePair::new(pair, protection)))
            }
            None => QueuePair::Tcp(Box::new(pair)),
        }
    }

    #[cfg(not(feature = "verbs"))]
    fn by_any_device(&self, connection: Connection, depth: usize) -> QueuePair {
        QueuePair::Tcp(Box::new(connection.queue_pair(depth)))
    }

    /// Queue pair over TCP alone to the member at `place`, if another host carries that member.
    fn connected_queue_pair(
        &self,
        place: Place,
        depth: usize,
    ) -> Result<Option<tcp::QueuePair>, MemberError> {
        let connection = self.reach(place)?;
        Ok(connection.map(|connection| connection.queue_pair(depth)))
    }

    /// Opens a region at the host that carries its node.
    pub(super) fn open_remote(
        &self,
        key: RemoteKey,
        access: Access,
    ) -> Result<tcp::RemoteRegion, MemberError> {
        let control = &self.member.control;
        let opener = control.openers.to(self.partition, key.node);
        let mut opener = lock(&opener);
        loop {
            let (mut pair, is_new) = match opener.take() {
                Some(pair) => (pair, false),
                None => (self.opener_to(key.node)?, true),
            };
            let (status, keep) = (Arc::clone(pair.status()), Arc::clone(control));
            match pair.open(key, access, status, Some(keep)) {
                // The connection may be an old one; a new one may succeed.
                Err(OpError::Unreachable | OpError::Corrupt | OpError::Revoked) if !is_new => {}
                Err(error @ (OpError::Unreachable | OpError::Corrupt | OpError::Revoked)) => {
                    return Err(refused(error));
                }
                result => {
                    *opener = Some(pair);
                    return result.map_err(refused);
                }
            }
        }
    }

    fn opener_to(&self, node: NodeId) -> Result<tcp::QueuePair, MemberError> {
        let place = self.member.torus.place(node);
        let pair = place
            .map(|place| self.connected_queue_pair(place, 1))
            .transpose()?;
        // `None` if the node has moved to this host since the agent answered `Reply::Elsewhere`.
        pair.flatten().ok_or_else(|| refused(OpError::WrongKey))
    }
}

/// Error that the agent gives for a region of this host.
fn refused(error: OpError) -> MemberError {
    let (kind, remedy) = match error {
        OpError::Revoked => return MemberError::Revoked,
        OpError::WrongKey | OpError::PeerDead => {
            (RefusalKind::NotFound, "its owner may have freed it")
        }
        OpError::MissingRight { .. } => (
            RefusalKind::Denied,
            "ask for less, or let the owner allocate it with more",
        ),
        OpError::System { .. } => (
            RefusalKind::Exhausted,
            "drop some of the regions that this node's processes have open there",
        ),
        _ => (
            RefusalKind::Failed,
            "see `toroid status` on both hosts; then try again",
        ),
    };
    let message = match error {
        OpError::WrongKey => "no region has this key".into(),
        OpError::System { .. } => "the other host has no room for another open region".into(),
        error => error.to_string(),
    };
    Refusal::new(kind, message, remedy).into()
}
