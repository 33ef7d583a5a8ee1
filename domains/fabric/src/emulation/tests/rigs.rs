//! Queue pairs and channels of both providers, behind links.

use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::thread;

use super::*;
use crate::core::link::{LinkCheck, Protocol};
use crate::core::membership::Membership;
use crate::core::region::Region;
use crate::key::{Access, Epoch, RemoteKey};
use crate::loopback::Network;
use crate::mem::Status;
use crate::provider::{self, Provider};
use crate::{shm, tcp};

/// Bytes of regions.
const BYTES: u64 = 2 << 20;

/// A region of the peer, and a queue pair to the peer behind a link.
pub(super) struct Rig {
    /// Has the peer as a member.
    network: Network,
    pub(super) owner: Region,
    pub(super) remote: RemoteRegion,
    pub(super) local: Region,
    pub(super) pair: QueuePair,
}

/// The host of the peer.
struct Host(shm::RemoteRegion);

impl tcp::Regions for Host {
    fn open(&self, _: RemoteKey, _: Access) -> Result<tcp::Opened, OpError> {
        Ok(self.0.clone().into())
    }
}

/// Both ends of a connection.
fn connection() -> [OwnedFd; 2] {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (theirs, _) = listener.accept().unwrap();
    for end in [&ours, &theirs] {
        end.set_nodelay(true).unwrap();
    }
    [ours.into(), theirs.into()]
}

/// A rig of each provider.
pub(super) fn pairs(link: &Arc<PeerLink>, depth: usize) -> [Rig; 2] {
    let near = |_: &shm::RemoteRegion, _| {
        let pair = shm::QueuePair::new(THERE, PARTITION, depth);
        (provider::QueuePair::Shm(pair), None)
    };
    let far = |region: &shm::RemoteRegion, key| {
        let ([ours, theirs], host) = (connection(), Host(region.clone()));
        thread::spawn(move || tcp::serve(theirs, &host));
        let mut pair = tcp::QueuePair::new(ours, THERE, PARTITION, depth, Arc::default());
        let remote = pair.open(key, Access::all(), Arc::default(), None);
        let remote = RemoteRegion::Tcp(remote.unwrap());
        (provider::QueuePair::Tcp(Box::new(pair)), Some(remote))
    };
    [rig(link, near), rig(link, far)]
}

fn rig(
    link: &Arc<PeerLink>,
    pair: impl FnOnce(&shm::RemoteRegion, RemoteKey) -> (provider::QueuePair, Option<RemoteRegion>),
) -> Rig {
    let network = Network::new(PARTITION);
    let (here, there) = (network.join(HERE), network.join(THERE));
    let owner = there.alloc(BYTES as usize, Access::all()).unwrap();
    let key = owner.remote_key().unwrap();
    let mapped = here.open(key, Access::all()).unwrap();
    let (pair, remote) = pair(&mapped, key);
    Rig {
        network,
        owner,
        remote: remote.unwrap_or(RemoteRegion::Shm(mapped)),
        local: Region::local(BYTES as usize).unwrap(),
        pair: QueuePair::new(pair, Arc::clone(link)),
    }
}

impl Rig {
    pub(super) fn send(&mut self, operation: Operation<RemoteRegion>) {
        self.pair.post(1, operation).unwrap();
        self.pair.flush();
    }

    /// Replaces the queue pair by one on `tcp` whose peer answers nothing. Returns the peer's end.
    pub(super) fn connect_to_silence(&mut self, link: &Arc<PeerLink>) -> OwnedFd {
        let [ours, theirs] = connection();
        let pair = tcp::QueuePair::new(ours, THERE, PARTITION, 1, Arc::default());
        let pair = provider::QueuePair::Tcp(Box::new(pair));
        self.pair = QueuePair::new(pair, Arc::clone(link));
        theirs
    }

    pub(super) fn write(&self, value: u64) -> Operation<RemoteRegion> {
        self.local.store(0, value).unwrap();
        Operation::write(&self.remote, 0, &self.local, 0..8)
    }

    pub(super) fn add(&self) -> Operation<RemoteRegion> {
        Operation::fetch_add(&self.remote, 0, 1)
    }

    pub(super) fn await_completion(&mut self) -> Completion {
        let mut done = [Completion::default()];
        while self.pair.poll(&mut done) == 0 {
            assert!(self.pair.wait(FOR_EVER), "nothing completes");
        }
        done[0]
    }

    /// Ends the membership of the peer.
    pub(super) fn revoke(&self) {
        self.network.leave(THERE);
    }
}

/// Both ends of a channel, each behind its link.
pub(super) struct Ends {
    pub(super) ours: Channel,
    pub(super) theirs: Channel,
    /// Ends the membership of one node for the other.
    pub(super) revoke: Box<dyn Fn()>,
    /// Ends the processes of our node.
    pub(super) kill: Box<dyn Fn()>,
}

/// A channel of each provider.
pub(super) fn channels(links: [&Arc<PeerLink>; 2]) -> [Ends; 2] {
    [near(links), far(links)]
}

fn near([our_link, their_link]: [&Arc<PeerLink>; 2]) -> Ends {
    let network = Network::new(PARTITION);
    let listener = network.join(THERE).listen(Protocol(1)).unwrap();
    let ours = network.join(HERE).channel(THERE, Protocol(1)).unwrap();
    let theirs = listener.accept(Duration::ZERO).unwrap();
    let other = network.clone();
    Ends {
        ours: Channel::new(provider::Channel::Shm(ours), Arc::clone(our_link)),
        theirs: Channel::new(provider::Channel::Shm(theirs), Arc::clone(their_link)),
        revoke: Box::new(move || network.leave(HERE)),
        kill: Box::new(move || other.kill(HERE)),
    }
}

fn far([our_link, their_link]: [&Arc<PeerLink>; 2]) -> Ends {
    let open = |socket, local, peer, link| {
        let status = Arc::<Status>::default();
        let check = LinkCheck {
            partition: PARTITION,
            peer,
            protocol: Protocol(1),
            since: Epoch(1),
        };
        let membership = Membership::at(Epoch(1));
        let ended = Arc::clone(&status);
        let channel = tcp::Channel::open(socket, local, check, membership, ended, None);
        let channel = Box::new(channel.unwrap());
        let cutter = channel.cutter();
        let channel = Channel::new(provider::Channel::Tcp(channel), Arc::clone(link));
        (channel, status, cutter)
    };
    let [our_socket, their_socket] = connection();
    let (ours, _, our_cutter) = open(our_socket, HERE, THERE, our_link);
    let (theirs, status, their_cutter) = open(their_socket, THERE, HERE, their_link);
    Ends {
        ours,
        theirs,
        revoke: Box::new(move || {
            status.revoke();
            their_cutter.cut();
        }),
        kill: Box::new(move || our_cutter.cut()),
    }
}
