//! Errors of a client.

use toroid_client::member::MemberError;
use toroid_fabric::channel::ChannelError;
use toroid_fabric::{OpError, Place};

use crate::client::reader::ReadError;
use crate::protocol::layout::MAX_KEY;
use crate::protocol::messages::{Malformed, Refusal};

/// Failure of an operation of a client.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// Caller: the key is empty or too long.
    #[error("a key of {0} bytes: give from 1 to {MAX_KEY}")]
    Key(usize),
    /// Caller: the value exceeds the server's limit. The old value of the key is gone.
    #[error("a value of {len} bytes is too large: the server takes items of up to {limit} bytes")]
    TooLarge {
        /// Bytes of the value.
        len: usize,
        /// Bytes of the largest item: key, value and overhead.
        limit: u32,
    },
    /// Caller: the buffer is too small for the value.
    #[error("the value has {len} bytes, and the buffer only {room}")]
    BufferTooSmall {
        /// Bytes of the value.
        len: usize,
        /// Bytes of the buffer.
        room: usize,
    },
    /// Caller: the window of posted changes is full.
    #[error("poll the changes that were posted before")]
    WindowFull,
    /// Caller: too many values are borrowed.
    #[error("{limit} views are borrowed: a client can have no more at a time")]
    TooManyViews {
        /// Most views of a client.
        limit: u32,
    },
    /// No node of the domain serves the store.
    #[error("no node of domain {0} serves the store; start one with `toroid-kv serve`")]
    NoServer(String),
    /// Caller: several nodes serve the store, and none was named.
    #[error("several nodes serve the store: {}; name one, such as `toroid-kv get -s {} KEY`", list(.0), first(.0))]
    SeveralServers(Vec<Place>),
    /// The agent denied the request, or is gone.
    #[error(transparent)]
    Member(#[from] MemberError),
    /// A read failed: the server is gone, or one of the two nodes has left the domain.
    #[error("cannot read the server's memory: {0}")]
    Operation(#[from] OpError),
    /// The channel ended: the server is gone, or one of the two nodes has left the domain.
    #[error("cannot reach the server: {0}")]
    Channel(#[from] ChannelError),
    /// The server refused the request.
    #[error("{0}")]
    Refused(Refusal),
    /// The server did not answer in time, now or earlier: connect again. The operation may have
    /// taken place.
    #[error("the server does not answer")]
    Timeout,
    /// The server sent a reply that no correct server sends.
    #[error("the server broke the protocol")]
    Protocol,
}

/// Places, as a list for people.
fn list(places: &[Place]) -> String {
    let places: Vec<String> = places.iter().map(ToString::to_string).collect();
    places.join(" and ")
}

fn first(places: &[Place]) -> String {
    places.first().map_or_else(String::new, ToString::to_string)
}

impl From<Malformed> for ClientError {
    fn from(Malformed: Malformed) -> Self {
        ClientError::Protocol
    }
}

impl From<ReadError> for ClientError {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Operation(error) => error.into(),
            ReadError::Layout(_) | ReadError::BootId => ClientError::Protocol,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_servers_are_named_by_their_places() {
        let places = ["0,0,0", "1,0,0"].map(|place| place.parse().unwrap());
        assert_eq!(
            ClientError::SeveralServers(places.into()).to_string(),
            "several nodes serve the store: 0,0,0 and 1,0,0; name one, such as `toroid-kv get -s \
             0,0,0 KEY`"
        );
    }
}
