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

use self::connections::Another;
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

/// The listening end.
pub enum Listening {
    Fabric(Listener),
    Socket(TcpListener, Sockets),
}

/// Treatment of the socket of a connection.
pub enum Sockets {
    /// The socket carries packets of the fabric.
    Tcp,
    /// The socket connects two channels of RDMA devices.
    Verbs(Rnic),
    /// The socket carries messages.
    Ethernet,
}

impl Listening {
    /// Begins to listen. Returns the port, too, 0 for [`Carrier::Fabric`].
    pub fn open(carrier: Carrier, domain: &Domain) -> Result<(Self, u16)> {
        let Some(sockets) = Sockets::of(carrier, OWNER)? else {
            return Ok((Listening::Fabric(domain.listen(PROTOCOL)?), 0));
        };
        let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0))?;
        let port = listener.local_addr()?.port();
        Ok((Listening::Socket(listener, sockets), port))
    }

    /// Waits for the next connection.
    pub fn accept(&self) -> Result<Wire> {
        match self {
            Listening::Socket(listener, sockets) => sockets.wire(listener.accept()?.0, OWNER),
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
    let shared = memory(&carrier, domain, None);
    let (listening, port) = Listening::open(carrier, domain)?;
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
    let shared = memory(&carrier, domain, Some(place));
    LiveHost::new(connector(carrier, domain, place, at)?, shared)
}

/// Opens connections to the node `place`, whose sockets have the address `at`.
pub fn connector(
    carrier: Carrier,
    domain: &Domain,
    place: Place,
    at: SocketAddrV4,
) -> Result<Another> {
    let domain = domain.clone();
    Ok(match Sockets::of(carrier, USER)? {
        None => Box::new(move || {
            let channel = domain.connect(place, PROTOCOL)?;
            Ok(Wire::Channel(Box::new(channel)))
        }),
        Some(sockets) => Box::new(move || sockets.wire(TcpStream::connect(at)?, USER)),
    })
}

/// Memory for one-sided operations, of the owner at `place` or, without a place, of this process.
fn memory(carrier: &Carrier, domain: &Domain, place: Option<Place>) -> Memory {
    match carrier {
        Carrier::Fabric => Memory::Domain(domain.clone(), place),
        Carrier::Tcp => Memory::Loopback,
        Carrier::Verbs(_) | Carrier::Ethernet => Memory::None,
    }
}

/// Numbers of both hosts on a channel that no agent made.
const OWNER: NodeId = NodeId(0);
const USER: NodeId = NodeId(1);

/// Their partition.
const PARTITION: Partition = Partition(1);

impl Sockets {
    /// The treatment at the host `local`; `None` for [`Carrier::Fabric`], which has no sockets.
    fn of(carrier: Carrier, local: NodeId) -> Result<Option<Self>> {
        Ok(Some(match carrier {
            Carrier::Fabric => return Ok(None),
            Carrier::Tcp => Sockets::Tcp,
            Carrier::Verbs(device) => Sockets::Verbs(Rnic::open(device.as_deref(), local)?),
            Carrier::Ethernet => Sockets::Ethernet,
        }))
    }

    /// A connection of the host `local` by a socket.
    fn wire(&self, stream: TcpStream, local: NodeId) -> Result<Wire> {
        let check = LinkCheck {
            partition: PARTITION,
            peer: if local == OWNER { USER } else { OWNER },
            protocol: PROTOCOL,
            since: Epoch(0),
        };
        match self {
            Sockets::Ethernet => Ok(Wire::Socket(Socket::new(stream)?)),
            Sockets::Verbs(device) => device.channel(stream, check),
            Sockets::Tcp => packets(stream, local, check),
        }
    }
}

fn packets(stream: TcpStream, local: NodeId, check: LinkCheck) -> Result<Wire> {
    stream.set_nodelay(true)?;
    tcp::tune::for_packets(&stream)?;
    let membership = Membership::at(Epoch(0));
    let stream = OwnedFd::from(stream);
    let channel = tcp::Channel::open(stream, local, check, membership, Arc::default(), None)?;
    let channel = provider::Channel::Tcp(Box::new(channel));
    Ok(Wire::Channel(Box::new(Channel::new(
        channel,
        Arc::default(),
    ))))
}
