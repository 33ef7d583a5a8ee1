//! Changes that wait for their result.

use super::{Client, ClientError, check_key};
use crate::network::Network;
use crate::protocol::change::{Change, Delta, Mode, Stored};
use crate::protocol::messages::{Reply, Request};

impl<N: Network> Client<N> {
    /// Stores a value. `exptime` is memcached's: 0 never, negative at once, up to 30 days (in
    /// seconds) from now, else Unix time.
    ///
    /// # Errors
    /// [`ClientError`]; the old value of the key may then be gone.
    pub fn set(
        &mut self,
        key: &[u8],
        flags: u32,
        exptime: i64,
        value: &[u8],
    ) -> Result<(), ClientError> {
        match self.store(&change(Mode::Set, key, flags, exptime), value)? {
            Stored::Stored { .. } => Ok(()),
            _ => Err(ClientError::Protocol),
        }
    }

    /// Stores a value if the key is absent; otherwise returns [`Stored::NotStored`].
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn add(
        &mut self,
        key: &[u8],
        flags: u32,
        exptime: i64,
        value: &[u8],
    ) -> Result<Stored, ClientError> {
        self.store(&change(Mode::Add, key, flags, exptime), value)
    }

    /// Stores a value if the key is present; otherwise returns [`Stored::NotStored`].
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn replace(
        &mut self,
        key: &[u8],
        flags: u32,
        exptime: i64,
        value: &[u8],
    ) -> Result<Stored, ClientError> {
        self.store(&change(Mode::Replace, key, flags, exptime), value)
    }

    /// Stores a value if the key still has the cas `cas` (see [`super::Value::cas`]); otherwise
    /// returns [`Stored::Exists`] or [`Stored::NotFound`].
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn compare_and_set(
        &mut self,
        key: &[u8],
        flags: u32,
        exptime: i64,
        value: &[u8],
        cas: u64,
    ) -> Result<Stored, ClientError> {
        let change = Change {
            cas,
            ..change(Mode::Compare, key, flags, exptime)
        };
        self.store(&change, value)
    }

    /// Appends bytes to a value. Returns [`Stored::NotStored`] if the key is absent, or they do
    /// not fit.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn append(&mut self, key: &[u8], value: &[u8]) -> Result<Stored, ClientError> {
        self.store(&change(Mode::Append, key, 0, 0), value)
    }

    /// Prepends bytes to a value; otherwise as [`Client::append`].
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn prepend(&mut self, key: &[u8], value: &[u8]) -> Result<Stored, ClientError> {
        self.store(&change(Mode::Prepend, key, 0, 0), value)
    }

    /// Adds to a value that is a number; returns the new number, or `None` when the key is
    /// absent. Wraps around at 2^64.
    ///
    /// # Errors
    /// [`ClientError`], such as [`crate::protocol::messages::Refusal::NotANumber`].
    pub fn increment(&mut self, key: &[u8], delta: u64) -> Result<Option<u64>, ClientError> {
        self.count(key, Delta::Add(delta))
    }

    /// Subtracts from a value that is a number; otherwise as [`Client::increment`]. Saturates
    /// at 0.
    ///
    /// # Errors
    /// [`ClientError`], such as [`crate::protocol::messages::Refusal::NotANumber`].
    pub fn decrement(&mut self, key: &[u8], delta: u64) -> Result<Option<u64>, ClientError> {
        self.count(key, Delta::Subtract(delta))
    }

    /// Removes a key; returns whether it was present.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn delete(&mut self, key: &[u8]) -> Result<bool, ClientError> {
        check_key(key)?;
        let did = self.did(&Request::Delete { key });
        // Afterwards: replies to earlier posts have arrived meanwhile, and their locations
        // are cached.
        self.reader.forget(key);
        did
    }

    /// Changes the expiry of a key, as in [`Client::set`]; returns whether it was present.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn touch(&mut self, key: &[u8], exptime: i64) -> Result<bool, ClientError> {
        check_key(key)?;
        self.did(&Request::Touch { key, exptime })
    }

    /// Removes all keys: at once if `delay` is 0, or `delay` seconds from now, or if that is
    /// more than 30 days, at that Unix time.
    ///
    /// # Errors
    /// [`ClientError`], such as [`crate::protocol::messages::Refusal::Forbidden`].
    pub fn flush_all(&mut self, delay: i64) -> Result<(), ClientError> {
        let did = self.did(&Request::Flush { delay });
        self.reader.forget_all();
        did.map(drop)
    }

    fn count(&mut self, key: &[u8], delta: Delta) -> Result<Option<u64>, ClientError> {
        check_key(key)?;
        match self.call(&Request::Count { key, delta })? {
            Reply::Counted { value, location } => {
                self.reader.remember(key, location);
                Ok(Some(value))
            }
            Reply::Missing => Ok(None),
            Reply::Refused(refusal) => Err(ClientError::Refused(refusal)),
            _ => Err(ClientError::Protocol),
        }
    }

    /// Whether the request was carried out; false when the key is absent.
    fn did(&mut self, request: &Request<'_>) -> Result<bool, ClientError> {
        match self.call(request)? {
            Reply::Done => Ok(true),
            Reply::Missing => Ok(false),
            Reply::Refused(refusal) => Err(ClientError::Refused(refusal)),
            _ => Err(ClientError::Protocol),
        }
    }
}

fn change(mode: Mode, key: &[u8], flags: u32, exptime: i64) -> Change<'_> {
    Change {
        mode,
        flags,
        exptime,
        ..Change::set(key, false)
    }
}
