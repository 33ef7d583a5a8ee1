//! TCP and UDP between two processes: round trips and streams.
//!
//! A *session* is a TCP connection to the peer's [`server`], requested by one line of JSON. A TCP
//! test runs on the same connection. A UDP test has a separate socket, whose port is the server's
//! first line, while the session's connection stays open. [`client`] has the measurements,
//! [`flood`] those with many receivers or a given rate.

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

/// A client's request, with the length of messages in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Session {
    /// Every message is sent back.
    Echo(Transport, usize),
    /// Messages are counted; the server's last line are [`Samples`](crate::samples::Samples). The
    /// last field is the number of first messages that carry a pattern and are verified, not
    /// counted.
    Sink(Transport, usize, u64),
    /// Datagrams to the socket or to a group are counted.
    Count(usize, Option<SocketAddrV4>),
}

/// Bytes of a buffer for any datagram.
const LONGEST_MESSAGE: usize = 64 * 1024;
