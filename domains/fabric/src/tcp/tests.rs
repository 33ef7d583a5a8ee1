//! Connections whose other end keeps the protocol, breaks it, or goes away.

mod operations;
mod packets;

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::secure::{Cipher, KEY, Keys, RecordError};
use super::wire::Malformed;
use super::{Connection, Opened, QueuePair, Regions, serve};
use crate::core::region::Region;
use crate::error::OpError;
use crate::key::{Access, Partition, RegionId, RemoteKey};
use crate::mem::Status;
use crate::mem::memfd::create_memory;
use crate::shm::RemoteRegion;
use crate::topology::NodeId;

const HERE: NodeId = NodeId(0);
const THERE: NodeId = NodeId(1);
const PARTITION: Partition = Partition(7);

/// Keys of the initiating side.
const KEYS: Keys = Keys {
    cipher: Cipher::ChaChaPoly,
    send: [1; KEY],
    receive: [2; KEY],
};

/// Time in which something would have happened.
const WHILE: Duration = Duration::from_millis(50);

/// Timeout of a hang.
const FOR_EVER: Duration = Duration::from_secs(20);

fn key(id: u64) -> RemoteKey {
    RemoteKey {
        node: THERE,
        partition: PARTITION,
        id: RegionId(id),
        secret: [9; 16],
    }
}

fn connection() -> (OwnedFd, UnixStream) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    (ours.into(), theirs)
}

fn pair(connection: impl Into<Connection>, depth: usize) -> QueuePair {
    QueuePair::new(connection, THERE, PARTITION, depth, Arc::default())
}

/// The regions of a host.
#[derive(Default)]
struct Host {
    regions: Mutex<HashMap<RegionId, RemoteRegion>>,
    status: Arc<Status>,
    turn: Turn,
    /// Requests until one waits for long; 0: none does.
    waits: AtomicU32,
}

/// Lets a thread execute or carry something while nobody holds the lock.
type Turn = Arc<Mutex<()>>;

fn await_turn(turn: &Turn) {
    drop(turn.lock().unwrap());
}

impl Regions for Host {
    fn await_turn(&self) {
        await_turn(&self.turn);
    }

    fn take(&self, _: usize) -> Option<Duration> {
        let left = self.waits.load(Relaxed);
        self.waits.store(left.saturating_sub(1), Relaxed);
        (left == 1).then_some(FOR_EVER)
    }

    fn open(&self, key: RemoteKey, _: Access) -> Result<Opened, OpError> {
        let regions = self.regions.lock().unwrap();
        let region = regions.get(&key.id).cloned();
        Ok(region.ok_or(OpError::WrongKey)?.into())
    }
}

impl Host {
    fn export(&self, id: u64, len: usize) -> Region {
        let memory = create_memory(len as u64).unwrap();
        let owner = Region::exported(&memory, len, key(id), Arc::default(), None).unwrap();
        let (all, status) = (Access::all(), Arc::clone(&self.status));
        let opened = RemoteRegion::map(&memory, len, key(id), all, status, None).unwrap();
        self.regions.lock().unwrap().insert(RegionId(id), opened);
        owner
    }

    /// A queue pair that is served.
    fn serve(self: &Arc<Self>, depth: usize) -> (QueuePair, JoinHandle<Result<(), Malformed>>) {
        self.serve_with(depth, None)
    }

    /// The same over a sealed connection.
    fn serve_with(
        self: &Arc<Self>,
        depth: usize,
        keys: Option<Keys>,
    ) -> (QueuePair, JoinHandle<Result<(), Malformed>>) {
        let (ours, theirs) = connection();
        let theirs = Connection::new(OwnedFd::from(theirs), keys.as_ref().map(Keys::mirrored));
        let host = Arc::clone(self);
        let server = thread::spawn(move || serve(theirs, &*host));
        (pair(Connection::new(ours, keys), depth), server)
    }
}
