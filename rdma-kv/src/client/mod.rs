//! A client that gets by reading the server's memory, and sets by messages.
//!
//! * `gets`, `changes`: what it does.
//! * `exchange`: how it asks the server.

mod changes;
mod error;
mod exchange;
mod gets;

use domains::member::Domain;
use fabric::{Access, PacketChannel, Place, Region};

pub use error::ClientError;

use crate::control::{PROTOCOL, Reply, Request, VERSION};
use crate::layout::MAX_KEY;
use crate::network::Network;
use crate::reader::{Reader, ReaderStats};
use exchange::call;

/// What the server may do with the staging region: fetch values, and put large ones that could
/// not be read one-sided.
pub(crate) const STAGING_ACCESS: Access = Access::REMOTE_READ.union(Access::REMOTE_WRITE);

/// A value and the client's flags.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Value {
    /// Given when it was set.
    pub flags: u32,
    /// The value.
    pub data: Vec<u8>,
}

/// A connection to a server. A get reads the server's memory; all else are messages.
///
/// Gets are linearizable with everyone's sets and deletes, through whichever door they came.
pub struct Client<N: Network = Domain> {
    network: N,
    channel: N::Channel,
    reader: Reader<N::Endpoint>,
    staging: Option<Region>,
    packet: Vec<u8>,
    number: u32,
    timed_out: bool,
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
    pub fn over(network: N, mut channel: N::Channel) -> Result<Self, ClientError> {
        let mut packet = Vec::new();
        let hello = Request::Hello { version: VERSION };
        let geometry = match call(&mut channel, &mut packet, 0, &hello)? {
            Reply::Welcome(geometry) => geometry,
            Reply::Refused(refusal) => return Err(ClientError::Refused(refusal)),
            _ => return Err(ClientError::Protocol),
        };
        let index = network.open(geometry.index, Access::REMOTE_READ)?;
        let items = network.open(geometry.items, Access::REMOTE_READ)?;
        let endpoint = network.endpoint(channel.peer())?;
        Ok(Client {
            reader: Reader::new(endpoint, index, items, &geometry)?,
            network,
            channel,
            staging: None,
            packet,
            number: 0,
            timed_out: false,
        })
    }

    /// What its gets did so far.
    pub fn stats(&self) -> ReaderStats {
        self.reader.stats()
    }

    fn call(&mut self, request: &Request<'_>) -> Result<Reply<'_>, ClientError> {
        if self.timed_out {
            // The server may still read the staging region for what it did not answer.
            return Err(ClientError::Timeout);
        }
        self.number = self.number.wrapping_add(1);
        let reply = call(&mut self.channel, &mut self.packet, self.number, request);
        self.timed_out = matches!(reply, Err(ClientError::Timeout));
        reply
    }
}

fn check_key(key: &[u8]) -> Result<(), ClientError> {
    match key.len() {
        1..=MAX_KEY => Ok(()),
        len => Err(ClientError::Key(len)),
    }
}
