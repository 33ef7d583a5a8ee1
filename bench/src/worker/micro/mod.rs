//! Micro-benchmarks of two connected hosts.
//!
//! * [`script`]: what is exchanged. [`exchange`]: how, for any [`Host`](exchange::Host).
//! * [`host`]: a live host, over [`connections`], each a [`wire`].
//! * [`writes`]: one-sided writes into memory of the other host.
//! * [`message_layer`]: messages of any length and source over the packets of connections.

use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::Result;
use serde::{Deserialize, Serialize};
use toroid_client::member::{Domain, Listener};
use toroid_fabric::channel::ChannelError;
use toroid_fabric::emulation::Channel;
use toroid_fabric::link::LinkCheck;
use toroid_fabric::{Epoch, Membership, NodeId, Partition, Place, Protocol, provider, tcp};

use self::connections::Another;
use self::host::LiveHost;
use self::wire::{Socket, Wire};
use self::writes::Memory;
use super::processor::{self, Bound};

pub mod connections;
pub mod exchange;
pub mod host;
pub mod message_layer;
pub mod script;
pub mod wire;
pub mod writes;

const PROTOCOL: Protocol = Protocol(0xfab4);

/// Longest sleep in a wait for the other side.
const LOOK: Duration = Duration::from_secs(1);

/// Carrier of messages between two hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Carrier {
    /// A channel of the domain, between two nodes of one host by the provider `shm`.
    Fabric,
    /// The fabric's provider for several hosts, over the loopback interface of one node.
    Tcp,
    /// The kernel's TCP, over the interfaces of a domain.
    Ethernet,
}

/// The listening end.
pub enum Listening {
    Fabric(Listener),
    Socket(TcpListener, Carrier),
}

impl Listening {
    /// Begins to listen. Returns the port, too, 0 for [`Carrier::Fabric`].
    pub fn open(carrier: Carrier, domain: &Domain) -> Result<(Self, u16)> {
        match carrier {
            Carrier::Fabric => Ok((Listening::Fabric(domain.listen(PROTOCOL)?), 0)),
            Carrier::Tcp | Carrier::Ethernet => {
                let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0))?;
                let port = listener.local_addr()?.port();
                Ok((Listening::Socket(listener, carrier), port))
            }
        }
    }

    /// Waits for the next connection.
    pub fn accept(&self) -> Result<Wire> {
        match self {
            Listening::Socket(listener, carrier) => socket(*carrier, listener.accept()?.0, OWNER),
            Listening::Fabric(listener) => loop {
                if let Some(channel) = listener.accept(LOOK)? {
                    return Ok(Wire::Channel(Box::new(channel)));
                }
            },
        }
    }
}

/// Starts a thread that follows scripts. Returns its port, 0 for [`Carrier::Fabric`].
pub fn serve(carrier: Carrier, domain: &Domain) -> Result<u16> {
    let (listening, port) = Listening::open(carrier, domain)?;
    let shared = memory(carrier, domain, None);
    // Both hosts poll, so each needs its own processor.
    let processor = processor::last()?;
    let follow = move || -> Result<()> {
        let _bound = Bound::new(None, processor)?;
        LiveHost::new(Box::new(move || listening.accept()), shared)?.serve()
    };
    let run = move || match follow() {
        Err(error) if error.downcast_ref() != Some(&ChannelError::PeerDead) => {
            eprintln!("toroid-bench: {error}");
        }
        // The leader has ended.
        _ => {}
    };
    thread::Builder::new().name("follower".into()).spawn(run)?;
    Ok(port)
}

/// Connects to a follower in the node `place`, whose sockets have the address `at`.
pub fn connect(
    carrier: Carrier,
    domain: &Domain,
    place: Place,
    at: SocketAddrV4,
) -> Result<LiveHost> {
    let shared = memory(carrier, domain, Some(place));
    let domain = domain.clone();
    let another: Another = Box::new(move || connection(carrier, &domain, place, at));
    LiveHost::new(another, shared)
}

/// One connection to the node `place`, whose sockets have the address `at`.
pub fn connection(
    carrier: Carrier,
    domain: &Domain,
    place: Place,
    at: SocketAddrV4,
) -> Result<Wire> {
    match carrier {
        Carrier::Fabric => {
            let channel = domain.connect(place, PROTOCOL)?;
            Ok(Wire::Channel(Box::new(channel)))
        }
        Carrier::Tcp | Carrier::Ethernet => socket(carrier, TcpStream::connect(at)?, USER),
    }
}

/// Memory for one-sided operations, of the owner at `place` or, without a place, of this process.
fn memory(carrier: Carrier, domain: &Domain, place: Option<Place>) -> Memory {
    match carrier {
        Carrier::Fabric => Memory::Domain(domain.clone(), place),
        Carrier::Tcp => Memory::Loopback,
        Carrier::Ethernet => Memory::None,
    }
}

/// Numbers of both hosts on a channel that no agent made.
const OWNER: NodeId = NodeId(0);
const USER: NodeId = NodeId(1);

/// A connection over a socket, at the side of `local`.
fn socket(carrier: Carrier, stream: TcpStream, local: NodeId) -> Result<Wire> {
    if carrier == Carrier::Ethernet {
        return Ok(Wire::Socket(Socket::new(stream)?));
    }
    stream.set_nodelay(true)?;
    tcp::tune::for_packets(&stream)?;
    let check = LinkCheck {
        partition: Partition(1),
        peer: if local == OWNER { USER } else { OWNER },
        protocol: PROTOCOL,
        since: Epoch(0),
    };
    let membership = Membership::at(Epoch(0));
    let stream = OwnedFd::from(stream);
    let channel = tcp::Channel::open(stream, local, check, membership, Arc::default(), None)?;
    let channel = provider::Channel::Tcp(Box::new(channel));
    Ok(Wire::Channel(Box::new(Channel::new(
        channel,
        Arc::default(),
    ))))
}
