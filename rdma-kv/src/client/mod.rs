//! The client: gets by reading the server's memory, changes by messages.
//!
//! * `reader`: one-sided gets, with its `location_cache`; `view`: borrowed values; `uses`: reports
//!   of gets.
//! * `gets`, `borrow`, `changes`: operations; `posting`: changes without waiting for each; `text`:
//!   memcached's protocol over messages, for proxies and statistics.
//! * `exchange`: requests and replies; `staging`: memory for large values on their way.

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

/// A value with its attributes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Value {
    /// Flags that were given when it was set.
    pub flags: u32,
    /// Changes with each change of the key's value; for [`Client::compare_and_set`].
    pub cas: u64,
    /// The bytes.
    pub data: Vec<u8>,
}

/// A connection to a server. Gets read the server's memory; all other operations are messages.
///
/// Gets are linearizable with the changes of all clients, RDMA or memcached, unless
/// [`Client::set_consistency`] asks for less.
pub struct Client<N: Network = Domain> {
    network: N,
    exchange: Exchange<N::Channel>,
    reader: Reader<N::Endpoint>,
    staging: Option<Staging>,
    /// Hazard pointers of the values that are borrowed.
    hazards: Option<HazardPool<Remote<N>>>,
    posted: VecDeque<Posted>,
    /// Results of posted changes that are not polled yet.
    settled: VecDeque<Outcome>,
    /// Values of up to this many bytes travel with their change.
    inline_limit: usize,
    /// Bytes of posted values that may not be sent yet.
    unsent: usize,
}

impl Client<Domain> {
    /// Connects to the server at `place`, or to the only one of the domain.
    ///
    /// # Errors
    /// [`ClientError::NoServer`], [`ClientError::SeveralServers`], and the refusal of the agent or
    /// server.
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
    /// Connects over `channel`: greets the server at its other end, and opens its regions.
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

    /// Node of the server.
    pub fn server(&self) -> NodeId {
        self.exchange.peer()
    }

    /// Sets the longest value that travels with its change, if it fits a packet. The server
    /// reads longer ones from this client. [`INLINE_LIMIT`], the default, suits most programs.
    pub fn set_inline_limit(&mut self, bytes: usize) {
        self.inline_limit = bytes.min(INLINE_MOST);
    }

    /// Sets the consistency of later gets; [`Consistency::Strict`] by default.
    pub fn set_consistency(&mut self, consistency: Consistency) {
        self.reader.set_consistency(consistency);
    }

    /// Statistics of the gets so far.
    pub fn stats(&self) -> ReaderStats {
        self.reader.stats()
    }

    /// Sends a request and waits for its reply. Replies to earlier posts are settled first.
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
