//! The store's own client: gets read the server's memory, sets and deletes are messages.

use domains::member::Domain;
use fabric::Place;
use rdma_kv::client::ClientError;
use rdma_kv::reader::ReaderStats;

use super::Client;

/// The longest value that is read, in bytes.
const LONGEST: usize = 1 << 20;

/// Why an operation failed.
#[derive(Debug, thiserror::Error)]
#[error("store by RDMA: {0}")]
pub struct RdmaError(#[from] ClientError);

/// A connection to a server.
pub struct RdmaClient {
    client: rdma_kv::client::Client,
    value: Vec<u8>,
    len: usize,
}

impl RdmaClient {
    /// Connects to the server at `place`.
    ///
    /// # Errors
    /// The server's and the agent's.
    pub fn connect(domain: &Domain, place: Place) -> Result<Self, RdmaError> {
        Ok(RdmaClient {
            client: rdma_kv::client::Client::connect(domain, Some(place))?,
            value: vec![0; LONGEST],
            len: 0,
        })
    }
}

impl RdmaClient {
    /// What its gets did so far.
    pub fn stats(&self) -> ReaderStats {
        self.client.stats()
    }
}

impl Client for RdmaClient {
    type Error = RdmaError;

    fn get(&mut self, key: &[u8]) -> Result<bool, RdmaError> {
        let found = self.client.get_into(key, &mut self.value)?;
        self.len = found.map_or(0, |(_flags, len)| len);
        Ok(found.is_some())
    }

    fn value(&self) -> &[u8] {
        &self.value[..self.len]
    }

    fn set(&mut self, key: &[u8], value: &[u8]) -> Result<(), RdmaError> {
        Ok(self.client.set(key, 0, 0, value)?)
    }

    fn delete(&mut self, key: &[u8]) -> Result<bool, RdmaError> {
        Ok(self.client.delete(key)?)
    }
}
