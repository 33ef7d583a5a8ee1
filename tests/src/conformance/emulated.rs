//! A provider behind emulated links of 20 us and 1 Gbit/s.

use std::sync::Arc;
use std::time::{Duration, Instant};

use toroid_fabric::emulation::{Channel, PeerLink, QueuePair, Way};
use toroid_fabric::model::{Path, SharedClocks};
use toroid_fabric::provider::{self, RemoteRegion};
use toroid_fabric::{Access, NodeId, PacketChannel, Region};
use toroid_model::link::LinkSpec;

use super::channels::receive;
use super::{HERE, Remote, Rig, THERE, each_kind, run};

const LINK: &str = "latency=20us rate=1Gbit";

/// The latency, less the time that the emulation expects a call to take for its return.
const LATENCY: Duration = Duration::from_micros(19);

/// A rig of a provider that agents choose.
pub trait Provided: Rig {
    fn region(region: Remote<Self>) -> RemoteRegion;
    fn queue_pair(&self, depth: usize) -> provider::QueuePair;
    fn end(channel: Self::Channel) -> provider::Channel;
}

pub struct Emulated<R> {
    provider: R,
    /// Our link to the peer, and the peer's to us.
    links: [Arc<PeerLink>; 2],
}

impl<R: Provided> Rig for Emulated<R> {
    type Endpoint = QueuePair;
    type Channel = Channel;
    const LOOKS: usize = 5_000;
    const COHERENT_ATOMICS: bool = R::COHERENT_ATOMICS;

    fn new() -> Self {
        let link: LinkSpec = LINK.parse().unwrap();
        let route = |from, to| link.route(from, to, Path::Rdma).unwrap();
        let clocks = SharedClocks::map(&SharedClocks::create().unwrap());
        let clocks = Arc::new(clocks.unwrap());
        let links = [(HERE, THERE), (THERE, HERE)].map(|(local, peer): (NodeId, NodeId)| {
            let link = Arc::<PeerLink>::default();
            link.set(Some(Arc::new(Way {
                out: route(local, peer),
                back: route(peer, local),
                spin: None,
                clocks: Arc::clone(&clocks),
                routers: None,
            })));
            link
        });
        Emulated {
            provider: R::new(),
            links,
        }
    }

    fn export(&self, len: u64, rights: Access) -> (Region, RemoteRegion) {
        let (owner, remote) = self.provider.export(len, rights);
        (owner, R::region(remote))
    }

    fn elsewhere(&self, len: u64) -> RemoteRegion {
        R::region(self.provider.elsewhere(len))
    }

    fn endpoint(&self, depth: usize) -> QueuePair {
        let pair = self.provider.queue_pair(depth);
        QueuePair::new(pair, Arc::clone(&self.links[0]))
    }

    fn channel(&self) -> (Channel, Channel) {
        let (ours, theirs) = self.provider.channel();
        let end = |end, link: &Arc<PeerLink>| Channel::new(R::end(end), Arc::clone(link));
        (end(ours, &self.links[0]), end(theirs, &self.links[1]))
    }

    fn revoke(&self) {
        self.provider.revoke();
    }

    fn kill_peer(&self) {
        self.provider.kill_peer();
    }
}

pub fn nothing_is_early<R: Provided>(rig: &Emulated<R>) {
    let (_owner, remote) = rig.export(64, Access::all());
    let local = Region::local(64).unwrap();
    let mut endpoint = rig.endpoint(1);
    let (mut ours, mut theirs) = rig.channel();
    let mut packet = Vec::new();
    for _ in 0..100 {
        for (right, operation) in each_kind(&remote, &local, 0, 8) {
            let start = Instant::now();
            run(&mut endpoint, operation).unwrap();
            assert!(start.elapsed() >= 2 * LATENCY, "{right:?}");
        }
        let start = Instant::now();
        ours.send(&[b"packet"]).unwrap();
        receive(&mut theirs, &mut packet).unwrap();
        assert!(start.elapsed() >= LATENCY, "a packet");
    }
}
