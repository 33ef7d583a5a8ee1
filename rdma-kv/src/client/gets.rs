//! Gets: by reading the server's memory, or where that is in vain, by asking.

use fabric::PacketChannel;
use fabric::channel::ChannelError;

use super::{Client, ClientError, Value, check_key};
use crate::control::{GetValue, Refusal, Reply, Request, encode_request};
use crate::network::Network;
use crate::reader::{Sought, ValueRef};

impl<N: Network> Client<N> {
    /// Gets a value; `None` when there is none.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn get(&mut self, key: &[u8]) -> Result<Option<Value>, ClientError> {
        self.get_with(key, |value| Value {
            flags: value.flags,
            data: value.data.to_vec(),
        })
    }

    /// Gets a value and gives it to `use_it` where it was read to: without allocation, and with
    /// one copy, out of the server's memory.
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
            Sought::Found(value) => return Ok(Some(use_it(value))),
            Sought::Absent => return Ok(None),
            Sought::Unsettled => {}
        }
        let asked = self.ask(key)?;
        Ok(asked.map(|Value { flags, data }| use_it(ValueRef { flags, data: &data })))
    }

    /// Gets a value into `into`; returns its flags and length. Without allocation, and with one
    /// copy when its place is cached.
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
            Sought::Found(found) => found,
            Sought::Absent => return Ok(None),
            Sought::Unsettled => match self.ask(key)? {
                None => return Ok(None),
                Some(Value { flags, data }) => {
                    if let Some(into) = into.get_mut(..data.len()) {
                        into.copy_from_slice(&data);
                    }
                    (flags, data.len())
                }
            },
        };
        match len <= into.len() {
            true => Ok(Some((flags, len))),
            false => Err(ClientError::BufferTooSmall {
                len,
                room: into.len(),
            }),
        }
    }

    /// Gets several values, in any order: `each` gets the number of a key and its value, if there is
    /// one. All whose places are known are read in one go.
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
        let mut unsettled = Vec::new();
        self.reader.get_many(keys, |number, sought| match sought {
            Sought::Found(value) => each(number, Some(value)),
            Sought::Absent => each(number, None),
            Sought::Unsettled => unsettled.push(number),
        })?;
        for number in unsettled {
            let asked = self.ask(keys[number])?;
            let value = asked.as_ref();
            each(
                number,
                value.map(|Value { flags, data }| ValueRef {
                    flags: *flags,
                    data,
                }),
            );
        }
        Ok(())
    }

    /// Asks the server for a value that changes too quickly to be read.
    pub(crate) fn ask(&mut self, key: &[u8]) -> Result<Option<Value>, ClientError> {
        let mut reply = self.call(&Request::Get { key })?;
        if reply == Reply::Refused(Refusal::Staging) {
            self.stage(self.reader.max_item().into())?;
            reply = self.call(&Request::Get { key })?;
        }
        let (flags, placement, value) = match reply {
            Reply::Value {
                flags,
                placement,
                value,
            } => (flags, placement, value),
            Reply::Missing => return Ok(None),
            Reply::Refused(refusal) => return Err(ClientError::Refused(refusal)),
            _ => return Err(ClientError::Protocol),
        };
        let data = match value {
            GetValue::Inline(value) => value.to_vec(),
            GetValue::Staged { len } => {
                let staging = self.staging.as_ref().ok_or(ClientError::Protocol)?;
                if u64::from(len) > staging.len() {
                    return Err(ClientError::Protocol);
                }
                let mut data = vec![0; len as usize];
                staging.read(0, &mut data)?;
                data
            }
        };
        self.reader.remember(key, placement);
        Ok(Some(Value { flags, data }))
    }

    /// Tells the server what was read, now and then. No reply follows, and where there is no room
    /// for the report, it is lost.
    fn report_if_due(&mut self) -> Result<(), ClientError> {
        if !self.reader.uses().is_due() {
            return Ok(());
        }
        let (channel, packet) = (&mut self.channel, &mut self.packet);
        let sent = self.reader.uses().report(|gets, hits, places| {
            encode_request(packet, 0, &Request::Used { gets, hits, places });
            channel.send(&[packet])
        });
        match sent {
            Err(ChannelError::Full) | Ok(()) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}
