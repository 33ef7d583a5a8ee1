//! On `shm`, without an agent: the rig takes the part of the control thread.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use tests::conformance::{HERE, PARTITION, Rig, THERE, link};
use toroid_fabric::mem::Status;
use toroid_fabric::mem::Waker;
use toroid_fabric::mem::memfd::{create_memory, read_only};
use toroid_fabric::shm::RING_BYTES;
use toroid_fabric::shm::{Channel, ChannelEnds, QueuePair, RemoteRegion};
use toroid_fabric::{Access, NodeId, Region, RegionId, RemoteKey};

pub struct Shm {
    status: Arc<Status>,
    wakers: Mutex<Vec<Waker>>,
    regions: AtomicU64,
}

impl Shm {
    pub fn export_from(&self, node: NodeId, len: u64, rights: Access) -> (Region, RemoteRegion) {
        let key = RemoteKey {
            node,
            partition: PARTITION,
            id: RegionId(self.regions.fetch_add(1, Ordering::Relaxed)),
            secret: [0; 16],
        };
        let memory = create_memory(len).unwrap();
        let owner = Region::exported(&memory, len as usize, key, Arc::default(), None).unwrap();
        let writes = rights.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
        let granted = if writes {
            memory
        } else {
            read_only(&memory).unwrap()
        };
        let status = Arc::clone(&self.status);
        let remote = RemoteRegion::map(&granted, len as usize, key, rights, status, None);
        (owner, remote.unwrap())
    }

    fn end(&self, ends: ChannelEnds, local: NodeId, peer: NodeId) -> Channel {
        let (check, membership) = link(peer);
        let status = Arc::clone(&self.status);
        let channel = Channel::open(ends, local, check, membership, status, None).unwrap();
        self.wakers.lock().unwrap().push(channel.waker());
        channel
    }

    fn wake_all(&self) {
        self.wakers.lock().unwrap().iter().for_each(Waker::wake);
    }
}

impl Rig for Shm {
    type Endpoint = QueuePair;
    type Channel = Channel;

    fn new() -> Self {
        Shm {
            status: Arc::default(),
            wakers: Mutex::default(),
            regions: AtomicU64::default(),
        }
    }

    fn export(&self, len: u64, rights: Access) -> (Region, RemoteRegion) {
        self.export_from(THERE, len, rights)
    }

    fn elsewhere(&self, len: u64) -> RemoteRegion {
        self.export_from(NodeId(2), len, Access::all()).1
    }

    fn endpoint(&self, depth: usize) -> QueuePair {
        QueuePair::new(THERE, PARTITION, depth)
    }

    fn channel(&self) -> (Channel, Channel) {
        let (ours, theirs) = ChannelEnds::create(RING_BYTES).unwrap();
        (self.end(ours, HERE, THERE), self.end(theirs, THERE, HERE))
    }

    fn revoke(&self) {
        self.status.revoke();
        self.wake_all();
    }

    fn kill_peer(&self) {
        self.status.peer_died();
        self.wake_all();
    }
}

tests::conformance!(Shm);
