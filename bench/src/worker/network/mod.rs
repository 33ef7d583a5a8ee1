//! TCP and UDP between two processes: round trips and streams.
//!
//! A *session* is a TCP connection to the peer's [`server`]. The client asks in one line of JSON. A TCP
//! test then runs on the same connection; a UDP test on a socket of its own, whose port is the server's
//! first line, while the session's connection stays open. [`client`] has the measurements, [`flood`] those with
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

/// A request of a client, for messages of so many bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Session {
    Echo(Transport, usize),
    /// Messages are counted, and [`Samples`](crate::samples::Samples) are the server's last line. So
    /// many first ones carry their number's pattern, are checked and not counted.
    Sink(Transport, usize, u64),
    /// Datagrams are counted likewise, of this socket's own or to a group.
    Count(usize, Option<SocketAddrV4>),
}

/// Longer than any datagram.
const LONGEST_MESSAGE: usize = 64 * 1024;
