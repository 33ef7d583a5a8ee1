//! Micro-benchmarks of two connected hosts.
//!
//! * [`script`]: what is exchanged. [`exchange`]: how, for any [`Host`](exchange::Host).
//! * [`host`]: a live host, over [`connections`], each a [`wire`]; [`devices`]: those of RDMA devices.
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

use self::devices::Rnic;
use self::host::LiveHost;
use self::wire::{Socket, Wire};
use self::writes::Memory;
use super::processor::{self, Bound};

pub mod connections;
pub mod devices;
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
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Carrier {
    /// A channel of the domain, between two nodes of one host by the provider `shm`.
    Fabric,
    /// The fabric's provider for several hosts, over the loopback interface of one node.
    Tcp,
    /// The fabric's provider for RDMA devices, by this device or the first one of the host.
    Verbs(Option<String>),
    /// The kernel's TCP, over the interfaces of a domain.
    Ethernet,
}

/// A carrier as one process uses it for all its connections.
pub enum Transport {
    Fabric(Domain),
    Sockets(Sockets),
}

/// The listening end.
pub enum Listening {
    Fabric(Listener),
    Socket(TcpListener, Sockets),
}

/// Treatment of the socket of a connection.
#[derive(Clone)]
pub enum Sockets {
    /// The socket carries packets of the fabric.
    Tcp,
    /// The socket connects two channels of RDMA devices.
    Verbs(Rnic),
    /// The socket carries messages.
    Ethernet,
}

impl Transport {
    /// Prepares a carrier in a node of `domain`.
    pub fn open(carrier: Carrier, domain: &Domain) -> Result<Self> {
        Ok(Transport::Sockets(match carrier {
            Carrier::Fabric => return Ok(Transport::Fabric(domain.clone())),
            Carrier::Tcp => Sockets::Tcp,
            Carrier::Verbs(device) => Sockets::Verbs(Rnic::open(device.as_deref())?),
            Carrier::Ethernet => Sockets::Ethernet,
        }))
    }

    /// Begins to listen. Returns the port, too, 0 for [`Transport::Fabric`].
    pub fn listen(&self) -> Result<(Listening, u16)> {
        match self {
            Transport::Fabric(domain) => Ok((Listening::Fabric(domain.listen(PROTOCOL)?), 0)),
            Transport::Sockets(sockets) => {
                let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0))?;
                let port = listener.local_addr()?.port();
                Ok((Listening::Socket(listener, sockets.clone()), port))
            }
        }
    }

    /// Connects to a process that listens in the node `place`, whose sockets have the address `at`.
    pub fn connect(&self, place: Place, at: SocketAddrV4) -> Result<Wire> {
        match self {
            Transport::Fabric(domain) => {
                let channel = domain.connect(place, PROTOCOL)?;
                Ok(Wire::Channel(Box::new(channel)))
            }
            Transport::Sockets(sockets) => sockets.wire(TcpStream::connect(at)?),
        }
    }

    /// Memory for one-sided operations, of the owner at `place` or, without a place, of this process.
    fn memory(&self, place: Option<Place>) -> Memory {
        match self {
            Transport::Fabric(domain) => Memory::Domain(domain.clone(), place),
            Transport::Sockets(Sockets::Tcp) => Memory::Loopback,
            #[cfg(feature = "verbs")]
            Transport::Sockets(Sockets::Verbs(device)) => Memory::Device(device.clone()),
            Transport::Sockets(_) => Memory::None,
        }
    }
}

impl Listening {
    /// Waits for the next connection.
    pub fn accept(&self) -> Result<Wire> {
        match self {
            Listening::Socket(listener, sockets) => sockets.wire(listener.accept()?.0),
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
    let transport = Transport::open(carrier, domain)?;
    let shared = transport.memory(None);
    let (listening, port) = transport.listen()?;
    // Both hosts poll, so each needs its own processor.
    let processor = processor::last()?;
    let follow = move || -> Result<()> {
        let _bound = Bound::new(None, processor)?;
        LiveHost::new(Box::new(move || listening.accept()), shared)?.serve()
    };
    let run = move || match follow().map_err(|error| (error.downcast_ref().copied(), error)) {
        // The leader has ended, over sockets perhaps with something unread.
        Ok(()) | Err((Some(ChannelError::PeerDead | ChannelError::Unreachable), _)) => {}
        Err((_, error)) => eprintln!("toroid-bench: {error}"),
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
    let transport = Transport::open(carrier, domain)?;
    let shared = transport.memory(Some(place));
    LiveHost::new(Box::new(move || transport.connect(place, at)), shared)
}

/// Number of each host on a connection that no agent made.
const NODE: NodeId = NodeId(0);

/// Partition of such hosts.
const PARTITION: Partition = Partition(1);

impl Sockets {
    /// A connection by a socket.
    fn wire(&self, stream: TcpStream) -> Result<Wire> {
        let check = LinkCheck {
            partition: PARTITION,
            peer: NODE,
            protocol: PROTOCOL,
            since: Epoch(0),
        };
        match self {
            Sockets::Ethernet => Ok(Wire::Socket(Socket::new(stream)?)),
            Sockets::Verbs(device) => device.channel(stream, check),
            Sockets::Tcp => packets(stream, check),
        }
    }
}

fn packets(stream: TcpStream, check: LinkCheck) -> Result<Wire> {
    stream.set_nodelay(true)?;
    tcp::tune::for_packets(&stream)?;
    let membership = Membership::at(Epoch(0));
    let stream = OwnedFd::from(stream);
    let channel = tcp::Channel::open(stream, NODE, check, membership, Arc::default(), None)?;
    let channel = provider::Channel::Tcp(Box::new(channel));
    Ok(Wire::Channel(Box::new(Channel::new(
        channel,
        Arc::default(),
    ))))
}
