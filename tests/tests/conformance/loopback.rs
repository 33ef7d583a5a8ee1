//! On `loopback`, whose network takes the part of agents.

use tests::conformance::{HERE, PARTITION, Rig, THERE};
use toroid_fabric::loopback::{Channel, Network, QueuePair, RemoteRegion};
use toroid_fabric::provider::Provider;
use toroid_fabric::{Access, NodeId, Protocol, Region};

pub struct Loopback(Network);

impl Loopback {
    fn export_from(&self, node: NodeId, len: u64, rights: Access) -> (Region, RemoteRegion) {
        let owner = self.0.join(node).alloc(len as usize, rights).unwrap();
        let key = owner.remote_key().unwrap();
        let remote = self.0.join(HERE).open(key, rights).unwrap();
        (owner, remote)
    }
}

impl Rig for Loopback {
    type Endpoint = QueuePair;
    type Channel = Channel;

    fn new() -> Self {
        let network = Network::new(PARTITION);
        network.join(HERE);
        network.join(THERE);
        Loopback(network)
    }

    fn export(&self, len: u64, rights: Access) -> (Region, RemoteRegion) {
        self.export_from(THERE, len, rights)
    }

    fn elsewhere(&self, len: u64) -> RemoteRegion {
        self.export_from(NodeId(2), len, Access::all()).1
    }

    fn endpoint(&self, depth: usize) -> QueuePair {
        let granted = self.0.join(HERE).queue_pair(THERE, depth);
        // One that was made before the peer left, as far as the suite can tell.
        granted.unwrap_or_else(|_| QueuePair::new(THERE, PARTITION, depth))
    }

    fn channel(&self) -> (Channel, Channel) {
        let listener = self.0.join(THERE).listen(Protocol(1)).unwrap();
        let ours = self.0.join(HERE).channel(THERE, Protocol(1)).unwrap();
        (ours, listener.accept(Default::default()).unwrap())
    }

    fn revoke(&self) {
        self.0.leave(THERE);
    }

    fn kill_peer(&self) {
        self.0.kill(THERE);
    }
}

tests::conformance!(Loopback);
