//! A client that gets by reading the server's memory, and sets by messages.

use std::time::{Duration, Instant};

use domains::member::{Domain, MemberError};
use fabric::channel::ChannelError;
use fabric::{Access, OpError, PacketChannel, Place, Region};

use crate::control::{
    GetValue, INLINE_LIMIT, Malformed, PROTOCOL, Refusal, Reply, Request, SetValue, VERSION,
    decode_reply, encode_request,
};
use crate::layout::{MAX_KEY, Placement};
use crate::network::Network;
use crate::reader::{ReadError, Reader, ReaderStats, Sought, ValueRef};

/// How long the server may take to answer a message.
const TIMEOUT: Duration = Duration::from_secs(5);

/// The staging region has at least this many bytes.
const STAGING_MIN: u64 = 64 * 1024;

/// What the server may do with the staging region: fetch values, and put large ones that could
/// not be read one-sided.
pub(crate) const STAGING_ACCESS: Access = Access::REMOTE_READ.union(Access::REMOTE_WRITE);

/// Why an operation of a client failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// Caller: the key is empty or too long.
    #[error("a key of {0} bytes: give from 1 to {MAX_KEY}")]
    Key(usize),
    /// Caller: the value is over the server's limit. What the key had before is gone.
    #[error("a value of {len} bytes is too large: the server takes items of up to {limit} bytes")]
    TooLarge {
        /// Bytes of the value.
        len: usize,
        /// Of the largest item: key, value and some overhead.
        limit: u32,
    },
    /// Caller: the buffer is too small for the value.
    #[error("the value has {len} bytes, and the buffer only {room}")]
    BufferTooSmall {
        /// Bytes of the value.
        len: usize,
        /// Bytes of the buffer.
        room: usize,
    },
    /// Nobody serves in the domain.
    #[error("no node of domain {0} serves the store; start one with `toroid-kv serve`")]
    NoServer(String),
    /// Caller: which of several servers?
    #[error("several nodes serve the store: {0:?}; name one")]
    SeveralServers(Vec<Place>),
    /// The agent refused, or has gone.
    #[error(transparent)]
    Member(#[from] MemberError),
    /// A read failed: the server is gone, or one of the two nodes has left the domain.
    #[error("cannot read the server's memory: {0}")]
    Operation(#[from] OpError),
    /// The channel ended: the server is gone, or one of the two nodes has left the domain.
    #[error("cannot reach the server: {0}")]
    Channel(#[from] ChannelError),
    /// The server refused.
    #[error("{0}")]
    Refused(Refusal),
    /// The server did not answer in time, now or before: connect again. Whether the operation
    /// took place is not known.
    #[error("the server does not answer")]
    Timeout,
    /// The server answers what no correct server does.
    #[error("the server broke the protocol")]
    Protocol,
}

impl From<Malformed> for ClientError {
    fn from(Malformed: Malformed) -> Self {
        ClientError::Protocol
    }
}

impl From<ReadError> for ClientError {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Operation(error) => error.into(),
            ReadError::Layout(_) | ReadError::BootId => ClientError::Protocol,
        }
    }
}

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

    /// What its gets did so far.
    pub fn stats(&self) -> ReaderStats {
        self.reader.stats()
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

    /// The staging region, made to hold `len` bytes.
    fn stage(&mut self, len: u64) -> Result<&Region, ClientError> {
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

/// Sends a request and waits for its reply, which stays in `packet`.
fn call<'a>(
    channel: &mut impl PacketChannel,
    packet: &'a mut Vec<u8>,
    number: u32,
    request: &Request<'_>,
) -> Result<Reply<'a>, ClientError> {
    let deadline = Instant::now() + TIMEOUT;
    encode_request(packet, number, request);
    while let Err(error) = channel.send(&[packet]) {
        match error {
            ChannelError::Full => wait(channel, deadline)?,
            error => return Err(error.into()),
        }
    }
    while !channel.receive(packet)? {
        wait(channel, deadline)?;
    }
    match decode_reply(packet)? {
        (of, reply) if of == number => Ok(reply),
        _ => Err(ClientError::Protocol),
    }
}

fn wait(channel: &mut impl PacketChannel, deadline: Instant) -> Result<(), ClientError> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(ClientError::Timeout);
    }
    channel.wait(left);
    Ok(())
}

fn check_key(key: &[u8]) -> Result<(), ClientError> {
    match key.len() {
        1..=MAX_KEY => Ok(()),
        len => Err(ClientError::Key(len)),
    }
}
