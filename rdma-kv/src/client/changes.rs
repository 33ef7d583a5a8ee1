//! Changes: messages, whose large values the server reads from the client.

use fabric::Region;

use super::{Client, ClientError, STAGING_ACCESS, check_key};
use crate::control::{INLINE_LIMIT, Refusal, Reply, Request, SetValue};
use crate::layout::Placement;
use crate::network::Network;

/// The staging region has at least this many bytes.
const STAGING_MIN: u64 = 64 * 1024;

impl<N: Network> Client<N> {
    /// Stores a value. `exptime` is memcached's: 0 never, negative at once, up to 30 days (in
    /// seconds) from now, else Unix time.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn set(
        &mut self,
        key: &[u8],
        flags: u32,
        exptime: i64,
        value: &[u8],
    ) -> Result<(), ClientError> {
        check_key(key)?;
        let placement = match self.send_set(key, flags, exptime, value) {
            Ok(placement) => placement,
            Err(error) => {
                self.reader.forget(key);
                return Err(error);
            }
        };
        self.reader.remember(key, placement);
        Ok(())
    }

    /// Removes a key; returns whether it was there.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn delete(&mut self, key: &[u8]) -> Result<bool, ClientError> {
        check_key(key)?;
        self.reader.forget(key);
        match self.call(&Request::Delete { key })? {
            Reply::Done => Ok(true),
            Reply::Missing => Ok(false),
            Reply::Refused(refusal) => Err(ClientError::Refused(refusal)),
            _ => Err(ClientError::Protocol),
        }
    }

    fn send_set(
        &mut self,
        key: &[u8],
        flags: u32,
        exptime: i64,
        value: &[u8],
    ) -> Result<Placement, ClientError> {
        let too_large = ClientError::TooLarge {
            len: value.len(),
            limit: self.reader.max_item(),
        };
        if value.len() > self.reader.max_item() as usize {
            // As with memcached, a failed set leaves no older value behind.
            self.delete(key)?;
            return Err(too_large);
        }
        let value = match value.len() <= INLINE_LIMIT {
            true => SetValue::Inline(value),
            false => {
                self.stage(value.len() as u64)?.write(0, value)?;
                SetValue::Staged {
                    offset: 0,
                    len: value.len() as u32,
                }
            }
        };
        match self.call(&Request::Set {
            key,
            flags,
            exptime,
            value,
        })? {
            Reply::Stored(placement) => Ok(placement),
            Reply::Refused(Refusal::TooLarge) => Err(too_large),
            Reply::Refused(refusal) => {
                if refusal == Refusal::Staging {
                    // The server has let go of it.
                    self.staging = None;
                }
                Err(ClientError::Refused(refusal))
            }
            _ => Err(ClientError::Protocol),
        }
    }

    /// The staging region, made to hold `len` bytes.
    pub(super) fn stage(&mut self, len: u64) -> Result<&Region, ClientError> {
        if self
            .staging
            .as_ref()
            .is_none_or(|region| region.len() < len)
        {
            let len = len.next_power_of_two().max(STAGING_MIN);
            let region = self.network.alloc(len, STAGING_ACCESS)?;
            let key = region.remote_key().ok_or(ClientError::Protocol)?;
            match self.call(&Request::Stage { key })? {
                Reply::Done => self.staging = Some(region),
                Reply::Refused(refusal) => return Err(ClientError::Refused(refusal)),
                _ => return Err(ClientError::Protocol),
            }
        }
        self.staging.as_ref().ok_or(ClientError::Protocol)
    }
}
