//! Members, exported regions and listeners of a network within one process.

use std::collections::HashMap;
use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use crate::core::link::{LinkCheck, Protocol};
use crate::core::membership::Membership;
use crate::core::region::Region;
use crate::error::OpError;
use crate::key::{Access, Epoch, Partition, RegionId, RemoteKey};
use crate::mem::memfd::{create_memory, read_only};
use crate::mem::{Status, Waker};
use crate::os::thread::lock;
use crate::provider::Provider;
use crate::shm::{Channel, ChannelEnds, QueuePair, RING_BYTES, RemoteRegion};
use crate::topology::NodeId;

/// Why a node of a [`Network`] is not granted access.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Caller or policy: the key, a right or a membership is missing.
    #[error(transparent)]
    Refused(#[from] OpError),
    /// Peer: no process of the node listens.
    #[error("no process of {peer} listens for protocol {}", protocol.0)]
    NoListener {
        /// The node.
        peer: NodeId,
        /// The protocol.
        protocol: Protocol,
    },
    /// System: no memory or no descriptor is left.
    #[error("the system has no room: {0}")]
    System(#[from] io::Error),
}

/// A fabric within one process, for one partition. Clones are handles to the same.
#[derive(Clone, Debug)]
pub struct Network(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    partition: Partition,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    epoch: u32,
    members: HashMap<NodeId, Membership>,
    exports: HashMap<RegionId, Export>,
    next_region: u64,
    listeners: HashMap<(NodeId, Protocol), Sender<Channel>>,
    grants: Vec<Grant>,
}

/// A region that peers may open.
#[derive(Debug)]
struct Export {
    memory: File,
    len: usize,
    key: RemoteKey,
    access: Access,
}

/// A grant of a node at another node. The grant ends when either node leaves.
#[derive(Debug)]
struct Grant {
    nodes: [NodeId; 2],
    region: Option<RegionId>,
    status: Weak<Status>,
    waker: Option<Waker>,
}

impl Network {
    /// A fabric without members.
    pub fn new(partition: Partition) -> Self {
        Network(Arc::new(Shared {
            partition,
            state: Mutex::default(),
        }))
    }

    /// Makes a node a member, if it is not one yet.
    pub fn join(&self, node: NodeId) -> Node {
        let mut state = self.0.state();
        let epoch = Epoch(state.epoch);
        let membership = state.members.entry(node);
        membership.or_insert_with(|| Membership::at(epoch));
        Node {
            network: self.clone(),
            id: node,
        }
    }

    /// Ends the membership of a node. All grants of the node, and those of peers at the node, end
    /// with [`OpError::Revoked`].
    pub fn leave(&self, node: NodeId) {
        let mut state = self.0.state();
        state.members.remove(&node);
        state.epoch += 1;
        let epoch = state.epoch;
        for membership in state.members.values() {
            // Release: pairs with the Acquire of a channel that sends.
            let order = std::sync::atomic::Ordering::Release;
            membership.epoch.store(epoch, order);
        }
        state.listeners.retain(|(listener, _), _| *listener != node);
        state.exports.retain(|_, export| export.key.node != node);
        state.end(Status::revoke, |grant| grant.nodes.contains(&node));
    }

    /// Ends the processes of a node as if they had been killed: its regions and channels end with
    /// [`OpError::PeerDead`].
    pub fn kill(&self, node: NodeId) {
        let mut state = self.0.state();
        state.listeners.retain(|(listener, _), _| *listener != node);
        state.exports.retain(|_, export| export.key.node != node);
        state.end(Status::peer_died, |grant| grant.nodes.contains(&node));
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

impl State {
    /// The membership of a node.
    fn member(&self, node: NodeId) -> Result<&Membership, OpError> {
        self.members.get(&node).ok_or(OpError::Revoked)
    }

    /// A status that ends when one of the two nodes leaves.
    fn grant(&mut self, nodes: [NodeId; 2], region: Option<RegionId>) -> Arc<Status> {
        self.grants.retain(|grant| grant.status.strong_count() > 0);
        let status = Arc::new(Status::default());
        self.grants.push(Grant {
            nodes,
            region,
            status: Arc::downgrade(&status),
            waker: None,
        });
        status
    }

    fn end(&mut self, how: impl Fn(&Status), which: impl Fn(&Grant) -> bool) {
        for grant in self.grants.iter().filter(|grant| which(grant)) {
            if let Some(status) = grant.status.upgrade() {
                how(&status);
            }
            if let Some(waker) = &grant.waker {
                waker.wake();
            }
        }
    }

    /// One end of a channel between two members.
    fn channel_end(
        &mut self,
        ends: ChannelEnds,
        [local, peer]: [NodeId; 2],
        partition: Partition,
        protocol: Protocol,
    ) -> Result<Channel, Error> {
        let membership = self.member(local)?.clone();
        let check = LinkCheck {
            partition,
            peer,
            protocol,
            since: Epoch(self.epoch),
        };
        let status = self.grant([local, peer], None);
        let channel = Channel::open(ends, local, check, membership, status, None)?;
        if let Some(grant) = self.grants.last_mut() {
            grant.waker = Some(channel.waker());
        }
        Ok(channel)
    }
}

/// A member of a [`Network`].
#[derive(Clone, Debug)]
pub struct Node {
    network: Network,
    id: NodeId,
}

impl Node {
    /// The node.
    pub fn id(&self) -> NodeId {
        self.id
    }

    /// Registers `len` zeroed bytes that members may use with the rights `access`, until the last
    /// handle is dropped.
    ///
    /// # Errors
    /// [`OpError::Revoked`] when the node has left; [`Error::System`].
    pub fn alloc(&self, len: usize, access: Access) -> Result<Region, Error> {
        let shared = &self.network.0;
        let mut state = shared.state();
        state.member(self.id)?;
        let id = RegionId(state.next_region);
        state.next_region += 1;
        let key = RemoteKey {
            node: self.id,
            partition: shared.partition,
            id,
            secret: secret(),
        };
        let memory = create_memory(len as u64)?;
        let guard = Arc::new(Unexport {
            network: Arc::downgrade(shared),
            region: id,
        });
        let region = Region::exported(&memory, len, key, Arc::default(), Some(guard))?;
        let export = Export {
            memory,
            len,
            key,
            access,
        };
        state.exports.insert(id, export);
        Ok(region)
    }

    /// Listens for channels of a protocol, until the listener is dropped. An earlier listener of
    /// the node for the same protocol gets no more channels.
    ///
    /// # Errors
    /// [`OpError::Revoked`] when the node has left.
    pub fn listen(&self, protocol: Protocol) -> Result<Listener, Error> {
        let mut state = self.network.0.state();
        state.member(self.id)?;
        let (sender, channels) = mpsc::channel();
        state.listeners.insert((self.id, protocol), sender);
        Ok(Listener { channels })
    }
}

impl Provider for Node {
    type Region = RemoteRegion;
    type QueuePair = QueuePair;
    type Channel = Channel;
    type Error = Error;

    fn open(&self, key: RemoteKey, access: Access) -> Result<RemoteRegion, Error> {
        let mut state = self.network.0.state();
        state.member(self.id)?;
        state.member(key.node)?;
        let export = state.exports.get(&key.id);
        let export = export.filter(|export| export.key == key);
        let export = export.ok_or(OpError::WrongKey)?;
        if !export.access.contains(access) {
            return Err(OpError::MissingRight { needed: access }.into());
        }
        let writes = access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
        let memory = if writes {
            export.memory.try_clone()?
        } else {
            read_only(&export.memory)?
        };
        let len = export.len;
        let status = state.grant([self.id, key.node], Some(key.id));
        Ok(RemoteRegion::map(&memory, len, key, access, status, None)?)
    }

    fn queue_pair(&self, peer: NodeId, depth: usize) -> Result<QueuePair, Error> {
        let shared = &self.network.0;
        let state = shared.state();
        state.member(self.id)?;
        state.member(peer)?;
        Ok(QueuePair::new(peer, shared.partition, depth))
    }

    fn channel(&self, peer: NodeId, protocol: Protocol) -> Result<Channel, Error> {
        let shared = &self.network.0;
        let mut state = shared.state();
        let (ours, theirs) = ChannelEnds::create(RING_BYTES)?;
        let ours = state.channel_end(ours, [self.id, peer], shared.partition, protocol)?;
        let theirs = state.channel_end(theirs, [peer, self.id], shared.partition, protocol)?;
        let listener = state.listeners.get(&(peer, protocol));
        let sent = listener.is_some_and(|listener| listener.send(theirs).is_ok());
        if sent {
            Ok(ours)
        } else {
            Err(Error::NoListener { peer, protocol })
        }
    }
}

/// Channels that peers open to a node for one protocol.
#[derive(Debug)]
pub struct Listener {
    channels: Receiver<Channel>,
}

impl Listener {
    /// Waits up to `timeout` for the next channel.
    pub fn accept(&self, timeout: Duration) -> Option<Channel> {
        self.channels.recv_timeout(timeout).ok()
    }
}

/// Takes a region back from peers when its owner drops it.
#[derive(Debug)]
struct Unexport {
    network: Weak<Shared>,
    region: RegionId,
}

impl Drop for Unexport {
    fn drop(&mut self) {
        if let Some(shared) = self.network.upgrade() {
            let mut state = shared.state();
            state.exports.remove(&self.region);
            state.end(Status::peer_died, |grant| grant.region == Some(self.region));
        }
    }
}

/// A random secret; only this process could use it.
fn secret() -> [u8; 16] {
    let half = || u128::from(RandomState::new().hash_one(0));
    (half() << 64 | half()).to_le_bytes()
}
