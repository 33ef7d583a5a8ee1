//! Shared parts of this crate's tests: a store without an agent.

use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};
use toroid_client::member::MemberError;
use toroid_fabric::Membership;
use toroid_fabric::link::LinkCheck;
use toroid_fabric::mem::Status;
use toroid_fabric::mem::memfd::create_memory;
use toroid_fabric::shm::{Channel, ChannelEnds, QueuePair, RemoteRegion};
use toroid_fabric::{
    Access, Completion, Endpoint, Epoch, NodeId, OpError, Operation, Partition, Pending, PostError,
    Read, Region, RegionId, RemoteKey,
};

use crate::network::Network;
use crate::protocol::change::{Change, Stored};
use crate::protocol::layout::Location;
use crate::protocol::messages::PROTOCOL;
use crate::server::rdma::Accept;
use crate::store::operations::{self};
use crate::store::shared::Shared;
use crate::store::{Item, Limits, SetError, Store};

/// Unix time in seconds at which stores of tests start.
pub const UNIX_S: i64 = 1_700_000_000;

/// Hash seed of stores of tests.
pub const SEED: u64 = 22;

/// Node of servers of tests.
pub const SERVER: NodeId = NodeId(0);

/// The partition of tests.
pub const PARTITION: Partition = Partition(1);

/// Link check and membership of a channel's end whose peer is `peer`.
pub fn link(peer: NodeId) -> (LinkCheck, Membership) {
    let check = LinkCheck {
        partition: PARTITION,
        peer,
        protocol: PROTOCOL,
        since: Epoch(0),
    };
    (check, Membership::at(check.since))
}

/// A unique remote key.
fn remote_key(node: NodeId) -> RemoteKey {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let id = RegionId(NEXT.fetch_add(1, Ordering::Relaxed));
    RemoteKey {
        node,
        partition: PARTITION,
        id,
        secret: [0; 16],
    }
}

/// An empty store behind its lock.
pub fn shared(limits: Limits) -> Shared {
    limits.check().unwrap();
    TestNetwork::new().store(limits)
}

/// As [`shared`]; released memory is reused at once.
pub fn shared_that_reuses(limits: Limits) -> Shared {
    let store = shared(limits);
    store.with(Store::reuse_at_once);
    store
}

impl Shared {
    /// Stores a value unconditionally.
    pub fn set(
        &self,
        key: &[u8],
        flags: u32,
        exptime: i64,
        value: &[u8],
    ) -> Result<Location, SetError> {
        let change = Change {
            flags,
            exptime,
            ..Change::set(key, false)
        };
        match operations::store(self, &change, value)? {
            Stored::Stored { location, .. } => Ok(location),
            refused => panic!("a set was {refused:?}"),
        }
    }
}

/// The value of a key, as the server sees it.
pub fn value(store: &Shared, key: &[u8]) -> Option<Vec<u8>> {
    let read = |item: &Item, items: &Region| {
        let mut value = vec![0; item.header.value_len as usize];
        items.read(item.value_offset(), &mut value)?;
        Ok(value)
    };
    store.get(key, read).unwrap()
}

/// Order in which an [`Adversary`] delivers the pieces of a read.
#[derive(Clone, Copy, Debug)]
pub enum Order {
    /// From the start.
    Forward,
    /// From the end.
    Backward,
    /// Odd pieces, then even ones.
    Inside,
}

/// Endpoint that delivers each read in pieces of up to [`Adversary::PIECE`] bytes, with a hook
/// before each piece.
pub struct Adversary {
    order: Order,
    before: Option<Box<dyn FnMut(usize) + Send>>,
    pieces: usize,
}

impl Adversary {
    /// Bytes of a piece, which is delivered as a whole.
    const PIECE: usize = 64;

    /// An adversary without a hook; [`Adversary::before_piece`] sets one.
    pub fn new(order: Order) -> Self {
        Adversary {
            order,
            before: None,
            pieces: 0,
        }
    }

    /// Sets the hook: `happen` is called before each later piece, with its number from 0.
    pub fn before_piece(&mut self, happen: impl FnMut(usize) + Send + 'static) {
        self.before = Some(Box::new(happen));
        self.pieces = 0;
    }

    fn deliver(&mut self, read: &mut Read<'_, Region>) -> Result<(), OpError> {
        let mut pieces: Vec<_> = read.into.chunks_mut(Self::PIECE).enumerate().collect();
        match self.order {
            Order::Forward => {}
            Order::Backward => pieces.reverse(),
            Order::Inside => pieces.sort_by_key(|(n, _)| (n % 2 == 0, *n)),
        }
        for (n, piece) in pieces {
            if let Some(before) = &mut self.before {
                before(self.pieces);
            }
            self.pieces += 1;
            read.remote
                .read(read.offset + (n * Self::PIECE) as u64, piece)?;
        }
        Ok(())
    }
}

impl Endpoint for Adversary {
    type Remote = Region;

    fn peer(&self) -> NodeId {
        SERVER
    }

    fn partition(&self) -> Partition {
        PARTITION
    }

    fn post(&mut self, _: u64, _: Operation<Region>) -> Result<(), PostError> {
        Err(PostError::QueueFull { depth: 0 })
    }

    fn flush(&mut self) {}

    fn poll(&mut self, _: &mut [Completion]) -> usize {
        0
    }

    fn wait(&mut self, _: Duration) -> bool {
        false
    }

    fn pending(&mut self, _: bool) -> Pending {
        Pending::Nothing
    }

    fn read_batch(&mut self, reads: &mut [Read<'_, Region>]) -> Result<(), OpError> {
        reads.iter_mut().try_for_each(|read| self.deliver(read))
    }
}

/// A domain within this process: regions by their keys, and channels.
#[derive(Clone)]
pub struct TestNetwork {
    node: NodeId,
    memory: Arc<Mutex<HashMap<RemoteKey, File>>>,
    /// Status of all opened regions and channels.
    status: Arc<Status>,
}

impl TestNetwork {
    /// A new domain, seen from the server's node.
    pub fn new() -> Self {
        TestNetwork {
            node: SERVER,
            memory: Arc::default(),
            status: Arc::default(),
        }
    }

    /// The same domain, seen from another node.
    pub fn at(&self, node: u32) -> Self {
        TestNetwork {
            node: NodeId(node),
            ..self.clone()
        }
    }

    /// A server's store in this domain.
    pub fn store(&self, limits: Limits) -> Shared {
        self.store_within(limits, limits)
    }

    /// As [`TestNetwork::store`], in regions large enough for the limits `most`.
    pub fn store_within(&self, most: Limits, limits: Limits) -> Shared {
        let (index, items) = most.regions();
        let [index, items] = [index, items].map(|len| self.alloc(len, Access::all()).unwrap());
        Shared::new(Store::new(index, items, limits, [11, SEED], UNIX_S).unwrap())
    }

    /// Bytes of a region of this domain for which the system has allocated memory.
    pub fn allocated(&self, region: &Region) -> u64 {
        let memory = self.memory.lock().unwrap();
        let memory = &memory[&region.remote_key().unwrap()];
        512 * memory.metadata().unwrap().blocks()
    }

    /// Simulates the death of the server's process.
    pub fn end(&self) {
        self.status.peer_died();
    }

    /// Both ends of a channel between this node and another.
    pub fn channel(&self, peer: &TestNetwork) -> [Channel; 2] {
        let (here, there) = ChannelEnds::create(256 * 1024).unwrap();
        let end = |ends, local: NodeId, peer| {
            let (check, membership) = link(peer);
            let status = Arc::clone(&self.status);
            Channel::open(ends, local, check, membership, status, None).unwrap()
        };
        [
            end(here, self.node, peer.node),
            end(there, peer.node, self.node),
        ]
    }
}

impl Network for TestNetwork {
    type Endpoint = QueuePair;
    type Channel = Channel;

    fn alloc(&self, len: u64, _: Access) -> Result<Region, MemberError> {
        let memory = create_memory(len)?;
        let key = remote_key(self.node);
        let region = Region::exported(&memory, len as usize, key, Arc::default(), None)?;
        self.memory.lock().unwrap().insert(key, memory);
        Ok(region)
    }

    fn open(&self, key: RemoteKey, access: Access) -> Result<(RemoteRegion, u64), MemberError> {
        let memory = self.memory.lock().unwrap();
        let memory = memory
            .get(&key)
            .ok_or_else(|| MemberError::Agent("no such key".into()))?;
        let len = memory.metadata()?.len();
        let region = RemoteRegion::map(
            memory,
            len as usize,
            key,
            access,
            Arc::clone(&self.status),
            None,
        )?;
        Ok((region, len))
    }

    fn endpoint(&self, peer: NodeId) -> Result<QueuePair, MemberError> {
        Ok(QueuePair::new(peer, PARTITION, 16))
    }
}

/// Listener for channels that tests open to a server.
#[derive(Clone)]
pub struct TestListener {
    waiting: Arc<Mutex<VecDeque<Channel>>>,
    wake: Arc<OwnedFd>,
}

impl TestListener {
    /// A listener without waiting channels.
    pub fn new() -> Self {
        let flags = EventfdFlags::NONBLOCK;
        TestListener {
            waiting: Arc::default(),
            wake: Arc::new(eventfd(0, flags).unwrap()),
        }
    }

    /// Lets the server accept `channel`.
    pub fn connect(&self, channel: Channel) {
        self.waiting.lock().unwrap().push_back(channel);
        rustix::io::write(&*self.wake, &1u64.to_ne_bytes()).unwrap();
    }
}

impl Accept for TestListener {
    type Channel = Channel;

    fn accept(&self) -> Result<Option<Channel>, MemberError> {
        let _ = rustix::io::read(&*self.wake, &mut [0; 8]);
        Ok(self.waiting.lock().unwrap().pop_front())
    }

    fn wake_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}
