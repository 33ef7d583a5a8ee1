//! Gets: by one-sided reads, or by a message where those do not succeed.

use super::staging::Staging;
use super::{Client, ClientError, Value, check_key};
use crate::client::reader::{Lookup, ValueRef};
use crate::network::Network;
use crate::protocol::messages::{GetValue, Piece, Refusal, Reply, Request};

impl<N: Network> Client<N> {
    /// Gets a value; `None` when the key is absent.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn get(&mut self, key: &[u8]) -> Result<Option<Value>, ClientError> {
        self.get_with(key, |value| value.to_owned())
    }

    /// Gets a value and passes it to `use_it` in the read buffer: without allocation, and with
    /// one copy out of the server's memory. `None` when the key is absent.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn get_with<T>(
        &mut self,
        key: &[u8],
        use_it: impl FnOnce(ValueRef<'_>) -> T,
    ) -> Result<Option<T>, ClientError> {
        check_key(key)?;
        self.report_if_due()?;
        match self.reader.get(key)? {
            Lookup::Found(value) => return Ok(Some(use_it(value))),
            Lookup::Absent => return Ok(None),
            Lookup::Retry => {}
        }
        let asked = self.ask(key)?;
        Ok(asked.map(|value| use_it(value.as_ref())))
    }

    /// Gets a value into `into`; returns its flags and length, or `None` when the key is
    /// absent. Does not allocate, and copies once if the location is cached.
    ///
    /// # Errors
    /// [`ClientError::BufferTooSmall`] and others of [`ClientError`].
    pub fn get_into(
        &mut self,
        key: &[u8],
        into: &mut [u8],
    ) -> Result<Option<(u32, usize)>, ClientError> {
        check_key(key)?;
        self.report_if_due()?;
        let (flags, len) = match self.reader.get_into(key, into)? {
            Lookup::Found(found) => found,
            Lookup::Absent => return Ok(None),
            Lookup::Retry => match self.ask(key)? {
                None => return Ok(None),
                Some(Value { flags, data, .. }) => {
                    if let Some(into) = into.get_mut(..data.len()) {
                        into.copy_from_slice(&data);
                    }
                    (flags, data.len())
                }
            },
        };
        if len <= into.len() {
            Ok(Some((flags, len)))
        } else {
            Err(ClientError::BufferTooSmall {
                len,
                room: into.len(),
            })
        }
    }

    /// Gets several values. Calls `each` in any order with the index of a key and its value, or
    /// `None`. All keys with cached locations are read in one batch.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn get_many(
        &mut self,
        keys: &[&[u8]],
        mut each: impl FnMut(usize, Option<ValueRef<'_>>),
    ) -> Result<(), ClientError> {
        keys.iter().try_for_each(|key| check_key(key))?;
        self.report_if_due()?;
        let mut left_to_server = Vec::new();
        self.reader.get_many(keys, |number, lookup| match lookup {
            Lookup::Found(value) => each(number, Some(value)),
            Lookup::Absent => each(number, None),
            Lookup::Retry => left_to_server.push(number),
        })?;
        for number in left_to_server {
            let asked = self.ask(keys[number])?;
            each(number, asked.as_ref().map(Value::as_ref));
        }
        Ok(())
    }

    /// Gets a value and changes its expiry, as in [`Client::set`]. The server answers, as it
    /// alone may write.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn get_and_touch(
        &mut self,
        key: &[u8],
        exptime: i64,
    ) -> Result<Option<Value>, ClientError> {
        check_key(key)?;
        self.ask_and_touch(key, Some(exptime))
    }

    /// Asks the server for a value that changes too often to be read.
    pub(crate) fn ask(&mut self, key: &[u8]) -> Result<Option<Value>, ClientError> {
        let asked = self.ask_and_touch(key, None)?;
        Ok(asked.filter(|value| self.reader.may_return(key, &value.data)))
    }

    fn ask_and_touch(
        &mut self,
        key: &[u8],
        touch: Option<i64>,
    ) -> Result<Option<Value>, ClientError> {
        // The server has fetched all posted values before it answers, so the whole region
        // is free then.
        let room = self.staging.as_ref().map(Staging::whole);
        let request = |room| Request::Get { key, touch, room };
        let mut room = room.unwrap_or_default();
        let mut reply = self.call(&request(room))?;
        if reply == Reply::Refused(Refusal::Staging) {
            self.stage_region(self.reader.max_item().into())?;
            room = self
                .staging
                .as_ref()
                .map(Staging::whole)
                .unwrap_or_default();
            reply = self.call(&request(room))?;
        }
        let (flags, cas, location, value) = match reply {
            Reply::Value {
                flags,
                cas,
                location,
                value,
            } => (flags, cas, location, value),
            Reply::Missing => return Ok(None),
            Reply::Refused(refusal) => return Err(ClientError::Refused(refusal)),
            _ => return Err(ClientError::Protocol),
        };
        let data = match value {
            GetValue::Inline(value) => value.to_vec(),
            GetValue::Staged { len } if len <= room.len => {
                let staging = self.staging.as_ref().ok_or(ClientError::Protocol)?;
                staging.read(Piece { len, ..room })?
            }
            GetValue::Staged { .. } => return Err(ClientError::Protocol),
        };
        self.reader.remember(key, location);
        Ok(Some(Value { flags, cas, data }))
    }

    /// Reports if that is due. A report has no reply, and is dropped without room in the
    /// channel.
    pub(super) fn report_if_due(&mut self) -> Result<(), ClientError> {
        if self.reader.uses().is_due() {
            self.report()
        } else {
            Ok(())
        }
    }

    /// Reports the gets since the last report now. Gets report by themselves every few
    /// thousand.
    ///
    /// # Errors
    /// [`ClientError::Channel`].
    pub fn report(&mut self) -> Result<(), ClientError> {
        if self.reader.uses().is_empty() {
            return Ok(());
        }
        let exchange = &mut self.exchange;
        self.reader
            .uses()
            .report(|gets, hits, uses| exchange.tell(&Request::Used { gets, hits, uses }))
    }
}

impl Value {
    fn as_ref(&self) -> ValueRef<'_> {
        ValueRef {
            flags: self.flags,
            cas: self.cas,
            data: &self.data,
        }
    }
}

impl ValueRef<'_> {
    fn to_owned(self) -> Value {
        Value {
            flags: self.flags,
            cas: self.cas,
            data: self.data.to_vec(),
        }
    }
}
