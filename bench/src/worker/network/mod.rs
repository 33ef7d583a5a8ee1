//! TCP and UDP between two processes: round trips and streams.
//!
//! A *session* is a TCP connection to the peer's [`server`]. The client asks in one line of JSON; a TCP test then runs on the same connection, a UDP test on a socket of its own
//! while the session's connection stays open. [`client`] has the measurements, [`flood`] those with
//! many receivers or a given rate.

use std::net::SocketAddrV4;

use serde::{Deserialize, Serialize};

pub mod client;
pub mod flood;
pub mod server;
pub mod socket;

/// A transport of Internet sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Transport {
    /// With `TCP_NODELAY` for round trips.
    Tcp,
    /// One datagram per message.
    Udp,
}

/// A request of a client, for messages of `bytes` bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Session {
    /// Messages are sent back.
    Echo { transport: Transport, bytes: usize },
    /// Messages are counted. The first `verified` of them carry their number's pattern, are
    /// checked and not counted.
    Sink {
        transport: Transport,
        bytes: usize,
        verified: u64,
    },
    /// Datagrams are counted, of this socket's own or to a group.
    Count {
        bytes: usize,
        group: Option<SocketAddrV4>,
    },
}

/// The server's line before a UDP test.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct UdpReady {
    port: u16,
}

/// The server's line after a sink's last message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Received {
    messages: u64,
    bytes: u64,
    elapsed_ns: u64,
    errors: u64,
}

/// Longer than any datagram.
const LONGEST_MESSAGE: usize = 64 * 1024;
