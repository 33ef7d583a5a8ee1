//! Operations of a client that a proxy needs.

use super::reader::{ItemRef, Lookup};
use super::{Client, ClientError, check_key};
use crate::network::Network;
use crate::protocol::messages::{Reply, Request, VERSION};

impl<N: Network> Client<N> {
    /// Looks for several keys as [`Client::get_many`], but asks nobody: what was in vain is told as
    /// [`Lookup::Retry`].
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

    /// Reports what was read, and waits until the server has counted it.
    ///
    /// # Errors
    /// [`ClientError`].
    pub(crate) fn report_and_wait(&mut self) -> Result<(), ClientError> {
        self.report()?;
        // It asks for nothing new, and is answered after what was sent before it.
        match self.call(&Request::Hello { version: VERSION })? {
            Reply::Welcome(_) => Ok(()),
            _ => Err(ClientError::Protocol),
        }
    }

    /// Whether the server is there, and the domain lets us speak to it; asks nobody. For who has
    /// posted nothing.
    ///
    /// # Errors
    /// [`ClientError`], if not.
    pub(crate) fn check(&mut self) -> Result<(), ClientError> {
        self.exchange.check()
    }
}
