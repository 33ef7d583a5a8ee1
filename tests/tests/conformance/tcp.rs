//! On `tcp`, over the loopback interface: the rig takes the part of agents, and has a network card
//! that serves regions of `shm`.

use std::collections::HashMap;
use std::fs::File;
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};
use std::thread;

use tests::conformance::{HERE, PARTITION, Rig, THERE, link};
use toroid_fabric::mem::Status;
use toroid_fabric::shm;
use toroid_fabric::tcp::wire::{End, Frame};
use toroid_fabric::tcp::{Channel, Cutter, Opened, QueuePair, Regions, RemoteRegion, serve, tune};
use toroid_fabric::{Access, NodeId, OpError, Region, RemoteKey};

use crate::shm::Shm;

pub struct Tcp {
    /// The peer's host.
    shm: Shm,
    exported: Arc<Exported>,
    open: Mutex<Vec<Open>>,
}

/// Regions that the network card may open.
#[derive(Default)]
struct Exported(Mutex<HashMap<RemoteKey, shm::RemoteRegion>>);

/// A queue pair or an end of a channel.
struct Open {
    status: Arc<Status>,
    cutter: Cutter,
    /// The network card at the peer's end reports that the peer has died.
    socket: Option<File>,
}

impl Regions for Exported {
    fn open(&self, key: RemoteKey, _: Access) -> Result<Opened, OpError> {
        let exported = self.0.lock().unwrap();
        let region = exported.get(&key).cloned();
        Ok(region.ok_or(OpError::WrongKey)?.into())
    }
}

fn connection() -> (OwnedFd, OwnedFd) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (ours.into(), listener.accept().unwrap().0.into())
}

impl Tcp {
    fn export_from(&self, node: NodeId, len: u64, rights: Access) -> (Region, RemoteRegion) {
        let (owner, granted) = self.shm.export_from(node, len, rights);
        let key = granted.key();
        self.exported.0.lock().unwrap().insert(key, granted);
        let mut pair: QueuePair = self.endpoint_to(node, 1);
        let opened = pair.open(key, rights, Arc::default(), None).unwrap();
        assert_eq!(opened.len(), len);
        (owner, opened)
    }

    pub fn endpoint_to<R>(&self, node: NodeId, depth: usize) -> QueuePair<R> {
        let (ours, theirs) = connection();
        tune::for_operations(&ours).unwrap();
        tune::for_serving(&theirs).unwrap();
        let exported = Arc::clone(&self.exported);
        thread::spawn(move || serve(theirs, &*exported).unwrap());
        let status = Arc::<Status>::default();
        let pair = QueuePair::new(ours, node, PARTITION, depth, Arc::clone(&status));
        self.open.lock().unwrap().push(Open {
            status,
            cutter: pair.cutter(),
            socket: None,
        });
        pair
    }

    fn end(&self, socket: OwnedFd, local: NodeId, peer: NodeId) -> Channel {
        tune::for_packets(&socket).unwrap();
        let (check, membership) = link(peer);
        let status = Arc::<Status>::default();
        let copy = (local == THERE).then(|| socket.try_clone().unwrap().into());
        let channel = Channel::open(socket, local, check, membership, Arc::clone(&status), None);
        let channel = channel.unwrap();
        let cutter = channel.cutter();
        self.open.lock().unwrap().push(Open {
            status,
            cutter,
            socket: copy,
        });
        channel
    }
}

impl Rig for Tcp {
    type Endpoint = QueuePair;
    type Channel = Channel;
    const LOOKS: usize = 5_000;

    fn new() -> Self {
        Tcp {
            shm: Shm::new(),
            exported: Arc::default(),
            open: Mutex::default(),
        }
    }

    fn export(&self, len: u64, rights: Access) -> (Region, RemoteRegion) {
        self.export_from(THERE, len, rights)
    }

    fn elsewhere(&self, len: u64) -> RemoteRegion {
        self.export_from(NodeId(2), len, Access::all()).1
    }

    fn endpoint(&self, depth: usize) -> QueuePair {
        self.endpoint_to(THERE, depth)
    }

    fn channel(&self) -> (Channel, Channel) {
        let (ours, theirs) = connection();
        (self.end(ours, HERE, THERE), self.end(theirs, THERE, HERE))
    }

    fn revoke(&self) {
        self.shm.revoke();
        for open in self.open.lock().unwrap().iter() {
            open.status.revoke();
            open.cutter.cut();
        }
    }

    fn kill_peer(&self) {
        self.shm.kill_peer();
        let end = Frame::End(End::PeerDead).to_bytes();
        for open in self.open.lock().unwrap().iter() {
            let Some(mut socket) = open.socket.as_ref() else {
                continue;
            };
            socket.write_all(&end).unwrap();
        }
    }
}

tests::conformance!(Tcp);
