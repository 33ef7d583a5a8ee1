//! A client on another host, over the provider `tcp`: the other host's network card is here a
//! thread for each connection.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread;

use toroid_client::member::MemberError;
use toroid_fabric::provider::{Channel, QueuePair, RemoteRegion};
use toroid_fabric::{Access, NodeId, OpError, Region, RemoteKey, tcp};

use super::*;
use crate::network::Network;
use crate::testing::{PARTITION, SERVER, link};

/// The domain as seen from a node of another host.
struct Far(TestNetwork);

/// Opens regions in the name of the far node, as its network card would.
struct Card(TestNetwork);

impl tcp::Regions for Card {
    fn open(&self, key: RemoteKey, access: Access) -> Result<tcp::Opened, OpError> {
        let opened = self.0.open(key, access);
        opened
            .map(|(region, _)| region.into())
            .map_err(|_| OpError::WrongKey)
    }
}

impl Far {
    fn pair<R>(&self, peer: NodeId) -> tcp::QueuePair<R> {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let card = Card(self.0.clone());
        thread::spawn(move || tcp::serve(OwnedFd::from(theirs), &card).unwrap());
        tcp::QueuePair::new(OwnedFd::from(ours), peer, PARTITION, 16, Arc::default())
    }
}

impl Network for Far {
    type Endpoint = QueuePair;
    type Channel = Channel;

    fn alloc(&self, len: u64, access: Access) -> Result<Region, MemberError> {
        self.0.alloc(len, access)
    }

    fn open(&self, key: RemoteKey, access: Access) -> Result<(RemoteRegion, u64), MemberError> {
        let mut pair: tcp::QueuePair = self.pair(key.node);
        let opened = pair.open(key, access, Arc::default(), None);
        let region = opened.map_err(|error| MemberError::Agent(error.to_string()))?;
        let len = region.len();
        Ok((RemoteRegion::Tcp(region), len))
    }

    fn endpoint(&self, peer: NodeId) -> Result<QueuePair, MemberError> {
        Ok(QueuePair::Tcp(Box::new(self.pair(peer))))
    }
}

/// Both ends of a connection between a far node and the card.
fn channels(node: NodeId) -> [tcp::Channel; 2] {
    let (far, card) = UnixStream::pair().unwrap();
    let end = |socket: UnixStream, local, peer| {
        let (check, membership) = link(peer);
        let status = Arc::default();
        tcp::Channel::open(
            OwnedFd::from(socket),
            local,
            check,
            membership,
            status,
            None,
        )
        .unwrap()
    };
    [end(far, node, SERVER), end(card, SERVER, node)]
}

fn far_client(cluster: &Cluster, node: u32) -> crate::Client<Far> {
    let [far, card] = channels(NodeId(node));
    let near = cluster.channel(node);
    thread::spawn(move || tcp::relay(near, card, &|| {}));
    let network = Far(cluster.network.at(node));
    crate::Client::over(network, Channel::Tcp(Box::new(far))).unwrap()
}

#[test]
fn local_and_remote_clients_see_the_same_values() {
    let cluster = Cluster::start(Limits {
        memory: 16 << 20,
        item: 2 << 20,
    });
    let (mut far, mut near) = (far_client(&cluster, 1), cluster.client(2));
    for len in [0, 1, 100, INLINE_LIMIT, INLINE_LIMIT + 1, 70_000, 2_000_000] {
        let of = |who: u8| (0..len).map(|n| (n * 7) as u8 ^ who).collect::<Vec<u8>>();
        far.set(b"key", 1, 0, &of(1)).unwrap();
        assert!(near.get(b"key").unwrap().unwrap().data == of(1), "{len}");
        near.set(b"key", 2, 0, &of(2)).unwrap();
        for _ in 0..2 {
            let value = far.get(b"key").unwrap().unwrap();
            assert!(value.data == of(2) && value.flags == 2, "{len}");
        }
        assert!(near.delete(b"key").unwrap());
        assert!(far.get(b"key").unwrap().is_none());
        assert!(!far.delete(b"key").unwrap());
    }
}

#[test]
fn a_client_on_another_host_borrows_a_copy() {
    let cluster = Cluster::start(Limits {
        memory: 16 << 20,
        item: 2 << 20,
    });
    let (mut far, mut near) = (far_client(&cluster, 1), cluster.client(2));
    assert!(far.borrow(b"key").unwrap().is_none());
    near.set(b"key", 3, 0, b"before").unwrap();
    let view = far.borrow(b"key").unwrap().unwrap();
    near.set(b"key", 4, 0, b"after").unwrap();
    assert_eq!(view.to_vec().unwrap(), b"before");
    assert_eq!(view.flags(), 3);
    let view = far.borrow(b"key").unwrap().unwrap();
    assert_eq!(view.to_vec().unwrap(), b"after");
}

#[test]
fn a_client_on_another_host_notices_the_death_of_the_server() {
    let cluster = Cluster::start(Limits {
        memory: 16 << 20,
        item: 2 << 20,
    });
    let mut far = far_client(&cluster, 1);
    far.set(b"key", 0, 0, b"value").unwrap();
    assert!(far.get(b"key").unwrap().is_some());
    cluster.network.end();
    let got = far.get(b"key");
    assert!(
        matches!(got, Err(ClientError::Operation(OpError::PeerDead))),
        "{got:?}"
    );
}
