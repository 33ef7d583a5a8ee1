//! Operations of a client that a proxy needs.

use super::reader::{ItemRef, Lookup};
use super::{Client, ClientError, check_key};
use crate::network::Network;
use crate::protocol::messages::{Reply, Request, VERSION};

impl<N: Network> Client<N> {
    /// Looks several keys up as [`Client::get_many`] does, without asking the server: keys that
    /// need that have [`Lookup::Retry`].
    ///
    /// # Errors
    /// [`ClientError`].
    pub(crate) fn look_many(
        &mut self,
        keys: &[&[u8]],
        each: impl FnMut(usize, Lookup<ItemRef<'_>>),
    ) -> Result<(), ClientError> {
        keys.iter().try_for_each(|key| check_key(key))?;
        self.report_if_due()?;
        Ok(self.reader.look_many(keys, each)?)
    }

    /// Reports gets, and waits until the server has counted them.
    ///
    /// # Errors
    /// [`ClientError`].
    pub(crate) fn report_and_wait(&mut self) -> Result<(), ClientError> {
        self.report()?;
        // This request changes nothing, and its reply follows the report.
        match self.call(&Request::Hello { version: VERSION })? {
            Reply::Welcome(_) => Ok(()),
            _ => Err(ClientError::Protocol),
        }
    }

    /// Checks that the server is there and the domain permits access. Sends nothing. No change
    /// may be posted.
    ///
    /// # Errors
    /// [`ClientError`], if not.
    pub(crate) fn check(&mut self) -> Result<(), ClientError> {
        self.exchange.check()
    }
}
