//! Two nodes, each with a device, and what an agent would do to them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use toroid_fabric::mem::Status;
use toroid_fabric::mem::Waker;
use toroid_fabric::verbs::{
    Channel, ConnectionParameters, Device, Export, ProtectionDomain, QueuePair, RegionParameters,
    RemoteRegion, Selection,
};
use toroid_fabric::{Access, Endpoint, NodeId, Region, RegionId, RemoteKey};

use tests::conformance::{HERE, PARTITION, Rig, THERE, link};

/// A node's side.
pub struct Side {
    pub domain: Arc<ProtectionDomain>,
    node: NodeId,
}

impl Side {
    pub fn new(device: &str, node: NodeId) -> Self {
        let selection = Selection {
            device: Some(device.to_owned()),
            ..Selection::default()
        };
        let device = Device::open(&selection).unwrap();
        let domain = ProtectionDomain::new(&device, node, PARTITION).unwrap();
        Side { domain, node }
    }

    pub fn export_of(&self, node: NodeId, region: &Region, rights: Access) -> Export {
        let key = key_of(node);
        self.domain.export(region, key, rights).unwrap()
    }

    pub fn export(&self, len: u64, rights: Access) -> (Region, Export) {
        let region = Region::local(len as usize).unwrap();
        let export = self.export_of(self.node, &region, rights);
        (region, export)
    }
}

/// The key of a new region of a node.
pub fn key_of(node: NodeId) -> RemoteKey {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    RemoteKey {
        node,
        partition: PARTITION,
        id: RegionId(NEXT.fetch_add(1, Ordering::Relaxed)),
        secret: [0; 16],
    }
}

/// A peer's region, after its parameters have travelled.
pub fn open(export: &Export) -> RemoteRegion {
    let bytes = export.parameters().to_bytes();
    RemoteRegion::open(RegionParameters::from_bytes(&bytes).unwrap())
}

/// Parameters as they arrive at the other side.
pub fn told(parameters: ConnectionParameters) -> ConnectionParameters {
    ConnectionParameters::from_bytes(&parameters.to_bytes()).unwrap()
}

/// Two queue pairs that are connected: ours, and the peer's.
pub fn connect(here: &Side, there: &Side, depth: usize, status: &Arc<Status>) -> [QueuePair; 2] {
    let ours = here.domain.prepare(there.node, depth).unwrap();
    let theirs = there.domain.prepare(here.node, 1).unwrap();
    let (our, their) = (told(ours.parameters()), told(theirs.parameters()));
    let theirs = theirs.connect(&our, Arc::default()).unwrap();
    let ours = ours.connect(&their, Arc::clone(status)).unwrap();
    [ours, theirs]
}

pub fn channels(here: &Side, there: &Side, status: &Arc<Status>) -> [Channel; 2] {
    let prepare = |side: &Side, peer| {
        let (check, membership) = link(peer);
        side.domain.prepare_channel(check, membership).unwrap()
    };
    let (ours, theirs) = (prepare(here, there.node), prepare(there, here.node));
    let (our, their) = (told(ours.parameters()), told(theirs.parameters()));
    let theirs = theirs.connect(&our, Arc::clone(status)).unwrap();
    let ours = ours.connect(&their, Arc::clone(status)).unwrap();
    [ours, theirs]
}

/// Two sides, and what the peer holds for us.
pub struct Verbs {
    pub here: Side,
    pub there: Side,
    status: Arc<Status>,
    exports: Mutex<Vec<Export>>,
    pairs: Mutex<Vec<QueuePair>>,
    wakers: Mutex<Vec<Waker>>,
}

impl Verbs {
    /// The peer is gone, with all that it had at its device.
    fn end(&self) {
        self.pairs.lock().unwrap().clear();
        self.exports.lock().unwrap().clear();
        self.wakers.lock().unwrap().iter().for_each(Waker::wake);
    }

    fn keep(&self, (region, export): (Region, Export)) -> (Region, RemoteRegion) {
        let remote = open(&export);
        self.exports.lock().unwrap().push(export);
        (region, remote)
    }
}

impl Rig for Verbs {
    type Endpoint = QueuePair;
    type Channel = Channel;

    const LOOKS: usize = 2_000;
    /// `IBV_ATOMIC_HCA`: the device locks against its own atomics only (`rxe_mr_do_atomic_op`).
    const COHERENT_ATOMICS: bool = false;

    fn new() -> Self {
        Verbs {
            here: Side::new("rxe0", HERE),
            there: Side::new("rxe1", THERE),
            status: Arc::default(),
            exports: Mutex::default(),
            pairs: Mutex::default(),
            wakers: Mutex::default(),
        }
    }

    fn export(&self, len: u64, rights: Access) -> (Region, RemoteRegion) {
        self.keep(self.there.export(len, rights))
    }

    fn elsewhere(&self, len: u64) -> RemoteRegion {
        let region = Region::local(len as usize).unwrap();
        let export = self.there.export_of(NodeId(2), &region, Access::all());
        self.keep((region, export)).1
    }

    fn endpoint(&self, depth: usize) -> QueuePair {
        let [ours, theirs] = connect(&self.here, &self.there, depth, &self.status);
        assert_eq!((ours.peer(), theirs.peer()), (THERE, HERE));
        self.pairs.lock().unwrap().push(theirs);
        ours
    }

    fn channel(&self) -> (Channel, Channel) {
        let [ours, theirs] = channels(&self.here, &self.there, &self.status);
        let wakers = [ours.waker(), theirs.waker()];
        self.wakers.lock().unwrap().extend(wakers);
        (ours, theirs)
    }

    fn revoke(&self) {
        self.status.revoke();
        self.end();
    }

    fn kill_peer(&self) {
        self.status.peer_died();
        self.end();
    }
}
