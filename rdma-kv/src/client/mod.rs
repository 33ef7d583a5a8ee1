//! A client that gets by reading the server's memory, and sets by messages.
//!
//! * `gets`, `borrow`, `changes`: what it does; `posting`: changes without waiting for each; `text`: what it
//!   does for others.
//! * `exchange`: how it asks the server; `staging`: where large values are meanwhile.

mod borrow;
mod changes;
pub(crate) mod content;
mod error;
mod exchange;
mod gets;
mod location_cache;
mod posting;
pub mod reader;
mod staging;
mod text;
#[cfg(feature = "server")]
mod upstream;
mod uses;
pub(crate) mod view;

use std::collections::VecDeque;
use std::time::Instant;

use toroid_client::member::Domain;
use toroid_fabric::{Access, NodeId, Place};

pub use content::content_key;
pub use error::ClientError;
pub use posting::{Outcome, Ticket, WINDOW};
pub use reader::{Consistency, ReaderStats, ValueRef};
pub use view::{View, ViewError};

use crate::network::{Network, Remote};
use crate::protocol::layout::MAX_KEY;
use crate::protocol::messages::{INLINE_LIMIT, PROTOCOL, Reply, Request, VERSION};
use exchange::{Exchange, INLINE_MOST, TIMEOUT};
use posting::Posted;
use reader::Reader;
use staging::Staging;
use view::HazardPool;

/// A value and what the server keeps with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Value {
    /// Given when it was set.
    pub flags: u32,
    /// Another one each time that the key's value is set: for [`Client::compare_and_set`].
    pub cas: u64,
    /// The value.
    pub data: Vec<u8>,
}

/// A connection to a server. A get reads the server's memory; all else are messages.
///
/// Gets are linearizable with everyone's sets and deletes, through whichever door they came, unless
/// less was asked for: [`Client::set_consistency`].
pub struct Client<N: Network = Domain> {
    network: N,
    exchange: Exchange<N::Channel>,
    reader: Reader<N::Endpoint>,
    staging: Option<Staging>,
    /// What the client has borrowed, for the server to see.
    hazards: Option<HazardPool<Remote<N>>>,
    posted: VecDeque<Posted>,
    /// What became of others, until it is polled.
    settled: VecDeque<Outcome>,
    /// Values of up to this many bytes travel with their change.
    inline_limit: usize,
    /// Bytes of the values that were posted and perhaps not sent.
    unsent: usize,
}

impl Client<Domain> {
    /// Connects to the server at `place`, or to the only one of the domain.
    ///
    /// # Errors
    /// [`ClientError::NoServer`], [`ClientError::SeveralServers`], and why it was refused.
    pub fn connect(domain: &Domain, place: Option<Place>) -> Result<Self, ClientError> {
        let place = match place {
            Some(place) => place,
            None => match domain.listeners(PROTOCOL)?[..] {
                [only] => only,
                [] => return Err(ClientError::NoServer(domain.name().to_owned())),
                ref several => return Err(ClientError::SeveralServers(several.to_vec())),
            },
        };
        Self::over(domain.clone(), domain.connect(place, PROTOCOL)?)
    }
}

impl<N: Network> Client<N> {
    /// Greets the server at the other end of `channel` and opens its regions.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn over(network: N, channel: N::Channel) -> Result<Self, ClientError> {
        let mut exchange = Exchange::new(channel);
        let hello = Request::Hello { version: VERSION };
        let geometry = match exchange.ask(&hello)? {
            Reply::Welcome(geometry) => geometry,
            Reply::Refused(refusal) => return Err(ClientError::Refused(refusal)),
            _ => return Err(ClientError::Protocol),
        };
        let index = network.open(geometry.index, Access::REMOTE_READ)?;
        let items = network.open(geometry.items, Access::REMOTE_READ)?;
        let endpoint = network.endpoint(exchange.peer())?;
        Ok(Client {
            reader: Reader::new(endpoint, index, items, &geometry)?,
            network,
            exchange,
            staging: None,
            hazards: None,
            posted: VecDeque::new(),
            settled: VecDeque::new(),
            inline_limit: INLINE_LIMIT,
            unsent: 0,
        })
    }

    /// The server's node.
    pub fn server(&self) -> NodeId {
        self.exchange.peer()
    }

    /// From now on values of up to `bytes` bytes travel with their change, if they fit a packet;
    /// the server reads others from this client. [`INLINE_LIMIT`] is right for most.
    pub fn set_inline_limit(&mut self, bytes: usize) {
        self.inline_limit = bytes.min(INLINE_MOST);
    }

    /// What its gets promise from now on; [`Consistency::Strict`] at first.
    pub fn set_consistency(&mut self, consistency: Consistency) {
        self.reader.set_consistency(consistency);
    }

    /// What its gets did so far.
    pub fn stats(&self) -> ReaderStats {
        self.reader.stats()
    }

    /// Asks, and waits for the answer. What was posted before is answered first.
    fn call(&mut self, request: &Request<'_>) -> Result<Reply<'_>, ClientError> {
        let deadline = Instant::now() + TIMEOUT;
        let value_len = match request {
            Request::Text { text, .. } => text.len(),
            _ => 0,
        };
        while !self.exchange.has_room(value_len)? {
            self.exchange.next(deadline)?;
            self.settle()?;
        }
        let number = self.exchange.add(request);
        loop {
            self.exchange.next(deadline)?;
            if self.exchange.reply()?.0 == number {
                break;
            }
            self.settle()?;
        }
        Ok(self.exchange.reply()?.1)
    }
}

fn check_key(key: &[u8]) -> Result<(), ClientError> {
    match key.len() {
        1..=MAX_KEY => Ok(()),
        len => Err(ClientError::Key(len)),
    }
}
