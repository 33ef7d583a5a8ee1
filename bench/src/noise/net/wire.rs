//! The protocol between `noise connect` and `noise serve`: lines of JSON, without I/O.
//!
//! ```text
//! connect                                     serve
//!   {"hello":{version, nonce}}           ->
//!                                        <-     {"challenge":{nonce}}
//!   {"proof":of the key}                 ->     nothing else is done before
//!                                        <-     {"welcome":{proof of the key, limits}}
//!   {"order":..}                         ->
//!                                        <-     {"ready":{token}}
//!   other connections: {"data":{token, sends}}; datagrams: the token
//!                                        <-     "go", the measured traffic, {"done":..}
//! ```
//!
//! A token is random and belongs to one order, so that no third host takes part.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// The version of the protocol.
pub const VERSION: u32 = 2;

/// Longest line of a client, in bytes.
pub const LONGEST_ORDER: usize = 1024;

/// Longest line of a server, in bytes: it has the bytes of many slices of many streams.
pub const LONGEST_ANSWER: usize = 16 << 20;

/// Largest message over TCP, in bytes.
pub const LARGEST: u32 = 4 << 20;

/// Largest datagram, in bytes.
pub const LARGEST_DATAGRAM: u32 = 32 << 10;

/// Most streams of an order in one direction.
pub const MOST_STREAMS: u32 = 64;

/// Most round trips of an order.
pub const MOST_ROUND_TRIPS: u32 = 1_000_000;

/// Most slices of time of a stream.
pub const MOST_SLICES: u32 = 10_000;

/// Value of all bytes of messages.
pub const FILL: u8 = 0xa5;

/// Bytes of a datagram of [`Order::Poll`]; the first four are its number, in little-endian order.
pub const NUMBERED: usize = 64;

/// Reason to end a conversation.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// A line is longer than any of this protocol.
    #[error("the peer sent a line of over {limit} bytes, so it speaks another protocol")]
    TooLong {
        /// The longest line in bytes.
        limit: usize,
    },
    /// A line is no message of this protocol.
    #[error("the peer sent no message of this protocol ({0}); is it `toroid-bench noise`?")]
    Foreign(String),
    /// The peer has another version.
    #[error(
        "the peer speaks version {theirs} of the protocol, this program {VERSION}; use equal ones"
    )]
    Version {
        /// The peer's version.
        theirs: u32,
    },
    /// The peer does not know the key.
    #[error("the peer has another key; give both ends the same --key")]
    WrongKey,
    /// A message came at the wrong time.
    #[error("the peer sent {0} out of turn")]
    OutOfTurn(&'static str),
    /// An order is beyond a limit.
    #[error("the order has {what} of {asked}, and the limit is {limit}")]
    Limit {
        /// The limited number.
        what: &'static str,
        /// The number in the order.
        asked: u64,
        /// The largest number.
        limit: u64,
    },
}

impl WireError {
    /// The reason for which a server refuses, in a client's words: there the server is the peer.
    pub fn for_client(&self) -> String {
        match self {
            WireError::WrongKey => "it has another key; give both ends the same --key".into(),
            WireError::Version { theirs } => format!(
                "it speaks version {VERSION} of the protocol, this program {theirs}; use equal ones"
            ),
            other => other.to_string(),
        }
    }
}

/// 32 bytes in hexadecimal form: a nonce, a proof or a token. Comparison takes constant time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Digest(pub(super) blake3::Hash);

impl TryFrom<String> for Digest {
    type Error = blake3::HexError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        blake3::Hash::from_hex(text).map(Digest)
    }
}

impl From<Digest> for String {
    fn from(digest: Digest) -> String {
        digest.0.to_hex().to_string()
    }
}

/// The protocol of measured messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Protocol {
    /// One connection, or one for each stream.
    Tcp,
    /// Datagrams.
    Udp,
}

/// The direction of a stream, as the client sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Direction {
    /// To the server.
    Out,
    /// From the server.
    In,
    /// Both at the same time.
    Both,
}

impl Direction {
    /// Whether the client sends.
    pub fn is_out(self) -> bool {
        self != Direction::In
    }

    /// Whether the server sends.
    pub fn is_in(self) -> bool {
        self != Direction::Out
    }
}

/// Streams of messages for a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Streams {
    /// The protocol; datagrams have one stream in one direction.
    pub protocol: Protocol,
    /// Streams in each direction.
    pub streams: u32,
    /// The direction.
    pub direction: Direction,
    /// Bytes of a message.
    pub bytes: u32,
    /// Length of a slice of time, in milliseconds.
    pub slice_ms: u32,
    /// Slices of time in which messages are sent.
    pub slices: u32,
}

/// Work for the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Order {
    /// Send each message back, until the client ends it.
    Echo {
        /// The protocol.
        protocol: Protocol,
        /// Bytes of a message.
        bytes: u32,
        /// Connections; 1 for datagrams.
        connections: u32,
        /// Round trips at most, on each connection.
        count: u32,
    },
    /// Send numbered datagrams back without sleeping, and name those that a detour delayed.
    Poll {
        /// Datagrams at most.
        count: u32,
    },
    /// Send or receive streams.
    Streams(Streams),
    /// Export a region in a domain of both nodes, until the session ends.
    Export,
}

/// A message of the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// The beginning of a session.
    Hello {
        /// The client's [`VERSION`].
        version: u32,
        /// Random bytes of the client.
        nonce: Digest,
    },
    /// Proof that the client knows the key.
    Proof(Digest),
    /// Work, after the proof.
    Order(Order),
    /// The beginning of another connection, which carries a stream or round trips.
    Data {
        /// The token of the order.
        token: Digest,
        /// Whether the server sends on this connection.
        sends: bool,
    },
}

/// A received stream.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Flow {
    /// Time of the first bytes from the start of the order, in nanoseconds.
    pub first_ns: u64,
    /// Bytes that came first.
    pub first_bytes: u64,
    /// Time of the last bytes within the slices.
    pub last_ns: u64,
    /// All bytes, also after the slices.
    pub bytes: u64,
    /// Bytes received in each slice of time.
    pub slices: Vec<u64>,
}

/// The outcome of an order at the server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Done {
    /// Messages that were sent back.
    Echoed(u64),
    /// Numbers of datagrams that a detour of the server delayed, rising.
    Polled(Vec<u32>),
    /// Bytes that the server sent, and the streams that it received.
    Streamed {
        /// Bytes sent.
        sent: u64,
        /// Streams received.
        flows: Vec<Flow>,
    },
    /// Key of the exported region.
    Exported(String),
    /// Reason for which no region was exported.
    NotExported(String),
}

/// A message of the server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Answer {
    /// The answer to a hello.
    Challenge {
        /// Random bytes of the server.
        nonce: Digest,
    },
    /// The answer to a valid proof.
    Welcome {
        /// Proof that the server knows the key.
        proof: Digest,
        /// Time that is left for the session, in seconds.
        seconds: u64,
        /// Bytes that are left for the session.
        bytes: u64,
    },
    /// Other connections or datagrams may come.
    Ready {
        /// The token with which they begin.
        token: Digest,
    },
    /// All of them have come, and the time of the order begins.
    Go,
    /// The order is done.
    Done(Done),
    /// The session ends.
    Refused {
        /// Reason and remedy.
        reason: String,
    },
}

/// Splits received bytes into lines.
#[derive(Debug)]
pub struct Lines {
    received: Vec<u8>,
    /// Bytes at the front that hold no end of a line.
    searched: usize,
    limit: usize,
}

impl Lines {
    /// No bytes yet; a line has at most `limit` bytes.
    pub fn new(limit: usize) -> Self {
        Lines {
            received: Vec::new(),
            searched: 0,
            limit,
        }
    }

    /// Adds received bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        self.received.extend_from_slice(bytes);
    }

    /// The next whole line as a message; `None` until its end has come.
    ///
    /// # Errors
    /// [`WireError::TooLong`] and [`WireError::Foreign`].
    pub fn next_message<T: DeserializeOwned>(&mut self) -> Result<Option<T>, WireError> {
        let new = self.received[self.searched..].iter();
        let end = new.clone().position(|byte| *byte == b'\n');
        let end = end.map(|end| self.searched + end);
        let len = end.unwrap_or(self.received.len());
        if len > self.limit {
            return Err(WireError::TooLong { limit: self.limit });
        }
        self.searched = len;
        let Some(end) = end else { return Ok(None) };
        let message = serde_json::from_slice(&self.received[..end]);
        self.received.drain(..=end);
        self.searched = 0;
        message
            .map(Some)
            .map_err(|error| WireError::Foreign(error.to_string()))
    }
}

/// A message as a line.
pub fn line(message: &impl Serialize) -> Vec<u8> {
    // Only maps without text keys cannot be JSON, and no message has one.
    let mut line = serde_json::to_vec(message).unwrap_or_default();
    line.push(b'\n');
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_whole_in_any_pieces() {
        let order = Request::Order(Order::Poll { count: 7 });
        let both = [
            line(&order),
            line(&Request::Proof(Digest(blake3::hash(b"x")))),
        ]
        .concat();
        let mut lines = Lines::new(LONGEST_ORDER);
        let mut found = Vec::new();
        for byte in both {
            lines.push(&[byte]);
            found.extend(lines.next_message::<Request>().unwrap());
        }
        assert_eq!(found.len(), 2);
        assert_eq!(found[0], order);
    }

    #[test]
    fn both_ends_name_both_versions() {
        let error = WireError::Version { theirs: 1 };
        let here = format!("the peer speaks version 1 of the protocol, this program {VERSION};");
        assert!(error.to_string().starts_with(&here), "{error}");
        let there = format!("it speaks version {VERSION} of the protocol, this program 1;");
        let told = error.for_client();
        assert!(told.starts_with(&there), "{told}");
    }

    #[test]
    fn a_line_without_end_and_a_foreign_one_are_errors() {
        let mut lines = Lines::new(8);
        lines.push(b"12345678");
        assert_eq!(lines.next_message::<u64>(), Ok(None));
        lines.push(b"9");
        assert_eq!(
            lines.next_message::<u64>(),
            Err(WireError::TooLong { limit: 8 })
        );
        let mut lines = Lines::new(64);
        lines.push(b"GET / HTTP/1.1\r\n");
        let foreign = lines.next_message::<Request>().unwrap_err();
        assert!(matches!(foreign, WireError::Foreign(_)), "{foreign}");
    }
}
