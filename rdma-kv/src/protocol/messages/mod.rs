//! Messages between an RDMA client and the server, for all that a one-sided read cannot do.
//!
//! A packet holds one or more messages. A client sends [`Request`]s, beginning with
//! [`Request::Hello`]. The server answers each but [`Request::Used`] and [`Request::Leave`] by one
//! [`Reply`] with the number of the request, in the order of the requests.
//!
//! ```text
//!  0        4        8      9
//!  +--------+--------+------+--------+
//!  | length | number | kind | fields |   little endian; length: bytes after the length itself
//!  +--------+--------+------+--------+
//! ```
//!
//! A key is preceded by its length in one byte. A value, or the last field of bytes, extends to the
//! end of the message.

mod fields;
mod used;

use toroid_fabric::{Access, Protocol, RemoteKey};

use crate::protocol::change::{Change, Delta, Stored};
use crate::protocol::geometry::Geometry;
use crate::protocol::layout::Location;
pub use used::{PackedUse, SAMPLED, Use};

use fields::{Fields, mode_to, put_awaiting, put_key, put_location, put_stored};

/// Protocol number of the store's channels: memcached's port.
pub const PROTOCOL: Protocol = Protocol(11211);

/// Version of these messages, of the layout and of the hash. A server refuses clients of another
/// version.
pub const VERSION: u32 = 6;

/// Values of up to this many bytes travel in the packet of their set. The server reads longer ones
/// from the staging region.
pub const INLINE_LIMIT: usize = 4096;

/// Most bytes of memcached's protocol in one message.
pub const TEXT_LIMIT: usize = 32 * 1024;

/// Most bytes of a message without keys and values.
pub const OVERHEAD: usize = 128;

/// Access of the server to a client's staging region: it reads values of sets, and writes values of gets
/// that could not be read one-sided.
pub const STAGING_ACCESS: Access = Access::REMOTE_READ.union(Access::REMOTE_WRITE);

/// Bytes of the length field.
const LENGTH: usize = 4;

/// A request of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request<'a> {
    /// Greets the server; the first request. Reply: [`Reply::Welcome`].
    Hello {
        /// The client's [`VERSION`].
        version: u32,
    },
    /// Registers the staging region: from now on large values pass through it. The server may
    /// read and write it. Reply: [`Reply::Done`].
    Stage {
        /// The region.
        key: RemoteKey,
    },
    /// Stores a value, as memcached's `set`, `add`, `replace`, `append`, `prepend` and `cas`.
    /// Reply: [`Reply::Stored`].
    Store {
        /// Condition and key. Options of meta commands alone are not encoded.
        change: Change<'a>,
        /// The value.
        value: SetValue<'a>,
    },
    /// Removes a key. Reply: [`Reply::Done`] or [`Reply::Missing`].
    Delete {
        /// The key.
        key: &'a [u8],
    },
    /// Changes a number, as `incr` and `decr`. Reply: [`Reply::Counted`] or [`Reply::Missing`].
    Count {
        /// The key.
        key: &'a [u8],
        /// Amount and direction.
        delta: Delta,
    },
    /// Changes the expiry of a key. Reply: [`Reply::Done`] or [`Reply::Missing`].
    Touch {
        /// The key.
        key: &'a [u8],
        /// Memcached's expiry; see [`Change::exptime`].
        exptime: i64,
    },
    /// Removes all items, as `flush_all`. Reply: [`Reply::Done`].
    Flush {
        /// Seconds from now, or a Unix time if that is more than 30 days; 0 is at once.
        delay: i64,
    },
    /// Reports one-sided gets. No reply.
    Used {
        /// Gets since the last report.
        gets: u32,
        /// Gets of these that found an item.
        hits: u32,
        /// A sample of the items that were found.
        uses: &'a [PackedUse],
    },
    /// Registers the client's hazard pointers, in a region that the server may read and write;
    /// see `protocol::hazards`. Reply: [`Reply::Done`].
    Borrow {
        /// The region.
        hazards: RemoteKey,
    },
    /// Gets a value by message: after an unsuccessful one-sided get, and for `gat`. Reply:
    /// [`Reply::Value`] or [`Reply::Missing`].
    Get {
        /// The key.
        key: &'a [u8],
        /// New expiry of the key, if any; see [`Change::exptime`].
        touch: Option<i64>,
        /// Piece of the staging region for a large value.
        room: Piece,
    },
    /// Bytes of memcached's protocol, in one of the client's sessions. Reply: [`Reply::Said`].
    Text {
        /// Number of the session. Its first message begins it.
        session: u32,
        /// Up to [`TEXT_LIMIT`] bytes; empty to get more of the replies.
        text: &'a [u8],
    },
    /// Ends a session. No reply.
    Leave {
        /// Number of the session.
        session: u32,
    },
}

/// A part of the staging region.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Piece {
    /// Offset in the region.
    pub offset: u64,
    /// Bytes.
    pub len: u32,
}

/// Location of the value of a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetValue<'a> {
    /// In the message.
    Inline(&'a [u8]),
    /// In the staging region.
    Staged(Piece),
}

/// A reply of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply<'a> {
    /// Reply to [`Request::Hello`].
    Welcome(Geometry),
    /// The request was carried out.
    Done,
    /// Result of a change.
    Stored(Stored),
    /// The number was changed.
    Counted {
        /// The new number.
        value: u64,
        /// Location of its item.
        location: Location,
    },
    /// The key is absent.
    Missing,
    /// A value and the location of its item.
    Value {
        /// Flags that the client gave.
        flags: u32,
        /// Its cas.
        cas: u64,
        /// Location of the item when it was read.
        location: Location,
        /// The bytes, or their place.
        value: GetValue<'a>,
    },
    /// The request was refused.
    Refused(Refusal),
    /// Reply to [`Request::Text`].
    Said {
        /// Input that the session waits for.
        awaiting: Awaiting,
        /// Replies: up to [`TEXT_LIMIT`] bytes.
        text: &'a [u8],
    },
}

/// Input that a session of memcached's protocol waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Awaiting {
    /// A command.
    Command,
    /// The rest of a line.
    Line,
    /// This many more bytes of a value; at least 1.
    Bytes(u64),
    /// A message without text: there are more replies.
    More,
    /// Nothing: the session has ended.
    End,
}

/// Location of the value of a get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GetValue<'a> {
    /// In the message.
    Inline(&'a [u8]),
    /// In the piece that the request names.
    Staged {
        /// Bytes.
        len: u32,
    },
}

/// Reason for which a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Caller: the client speaks another version.
    #[error("the server speaks version {VERSION} of the store's protocol only")]
    Version,
    /// Caller: the key or the message is malformed.
    #[error("the server did not understand the request")]
    Malformed,
    /// Caller: over the server's item size limit.
    #[error("object too large for cache")]
    TooLarge,
    /// Server: all memory is reserved for values on their way.
    #[error("the server is out of memory")]
    OutOfMemory,
    /// Caller: the value does not fit the staging region, or the server cannot use that region.
    #[error("the server cannot use the staging region")]
    Staging,
    /// Caller: the region of hazard pointers is too short, or the server cannot use it.
    #[error("the server cannot see what the client borrows")]
    HazardPointers,
    /// Caller: the value is no number.
    #[error("cannot increment or decrement non-numeric value")]
    NotANumber,
    /// Server: its options forbid it.
    #[error("the server does not allow this")]
    Forbidden,
}

/// A packet that does not decode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("malformed message")]
pub struct Malformed;

/// Appends a request with this number to `packet`.
pub fn encode_request(packet: &mut Vec<u8>, number: u32, request: &Request<'_>) {
    encode(packet, number, |packet| put_request(packet, request));
}

fn put_request(packet: &mut Vec<u8>, request: &Request<'_>) {
    match *request {
        Request::Hello { version } => {
            packet.push(0);
            packet.extend_from_slice(&version.to_le_bytes());
        }
        Request::Stage { key } => {
            packet.push(1);
            packet.extend_from_slice(&key.to_bytes());
        }
        Request::Store { change, value } => put_store(packet, &change, value),
        Request::Delete { key } => {
            packet.push(4);
            put_key(packet, key);
        }
        Request::Get { key, touch, room } => {
            packet.push(if touch.is_some() { 9 } else { 5 });
            packet.extend_from_slice(&touch.unwrap_or_default().to_le_bytes());
            packet.extend_from_slice(&room.offset.to_le_bytes());
            packet.extend_from_slice(&room.len.to_le_bytes());
            put_key(packet, key);
        }
        Request::Used { gets, hits, uses } => {
            packet.push(6);
            packet.extend_from_slice(&gets.to_le_bytes());
            packet.extend_from_slice(&hits.to_le_bytes());
            packet.extend_from_slice(uses.as_flattened());
        }
        Request::Count { key, delta } => {
            let (kind, amount) = match delta {
                Delta::Add(amount) => (7, amount),
                Delta::Subtract(amount) => (8, amount),
            };
            packet.push(kind);
            packet.extend_from_slice(&amount.to_le_bytes());
            put_key(packet, key);
        }
        Request::Touch { key, exptime } => {
            packet.push(10);
            packet.extend_from_slice(&exptime.to_le_bytes());
            put_key(packet, key);
        }
        Request::Flush { delay } => {
            packet.push(11);
            packet.extend_from_slice(&delay.to_le_bytes());
        }
        Request::Text { session, text } => {
            packet.push(12);
            packet.extend_from_slice(&session.to_le_bytes());
            packet.extend_from_slice(text);
        }
        Request::Leave { session } => {
            packet.push(13);
            packet.extend_from_slice(&session.to_le_bytes());
        }
        Request::Borrow { hazards } => {
            packet.push(14);
            packet.extend_from_slice(&hazards.to_bytes());
        }
    }
}

fn put_store(packet: &mut Vec<u8>, change: &Change<'_>, value: SetValue<'_>) {
    packet.push(match value {
        SetValue::Inline(_) => 2,
        SetValue::Staged { .. } => 3,
    });
    packet.push(mode_to(change.mode));
    packet.extend_from_slice(&change.flags.to_le_bytes());
    packet.extend_from_slice(&change.exptime.to_le_bytes());
    packet.extend_from_slice(&change.cas.to_le_bytes());
    put_key(packet, change.key);
    match value {
        SetValue::Inline(value) => packet.extend_from_slice(value),
        SetValue::Staged(Piece { offset, len }) => {
            packet.extend_from_slice(&offset.to_le_bytes());
            packet.extend_from_slice(&len.to_le_bytes());
        }
    }
}

/// Decodes a request and its number.
///
/// # Errors
/// [`Malformed`].
pub fn decode_request(message: &[u8]) -> Result<(u32, Request<'_>), Malformed> {
    let mut fields = Fields(message);
    let number = fields.u32()?;
    let request = match fields.u8()? {
        0 => Request::Hello {
            version: fields.u32()?,
        },
        1 => Request::Stage {
            key: fields.remote_key()?,
        },
        kind @ (2 | 3) => Request::Store {
            change: fields.change()?,
            value: match kind {
                2 => SetValue::Inline(fields.rest()),
                _ => SetValue::Staged(fields.piece()?),
            },
        },
        4 => Request::Delete { key: fields.key()? },
        kind @ (5 | 9) => {
            let exptime = fields.i64()?;
            Request::Get {
                touch: (kind == 9).then_some(exptime),
                room: fields.piece()?,
                key: fields.key()?,
            }
        }
        6 => Request::Used {
            gets: fields.u32()?,
            hits: fields.u32()?,
            uses: match fields.rest().as_chunks() {
                (uses, []) => uses,
                _ => return Err(Malformed),
            },
        },
        kind @ (7 | 8) => {
            let amount = fields.u64()?;
            Request::Count {
                delta: match kind {
                    7 => Delta::Add(amount),
                    _ => Delta::Subtract(amount),
                },
                key: fields.key()?,
            }
        }
        10 => Request::Touch {
            exptime: fields.i64()?,
            key: fields.key()?,
        },
        11 => Request::Flush {
            delay: fields.i64()?,
        },
        12 => Request::Text {
            session: fields.u32()?,
            text: fields.text()?,
        },
        13 => Request::Leave {
            session: fields.u32()?,
        },
        14 => Request::Borrow {
            hazards: fields.remote_key()?,
        },
        _ => return Err(Malformed),
    };
    fields.end()?;
    Ok((number, request))
}

/// Appends a reply to the request of this number to `packet`.
pub fn encode_reply(packet: &mut Vec<u8>, number: u32, reply: &Reply<'_>) {
    encode(packet, number, |packet| put_reply(packet, reply));
}

fn put_reply(packet: &mut Vec<u8>, reply: &Reply<'_>) {
    match *reply {
        Reply::Welcome(geometry) => {
            packet.push(0);
            packet.extend_from_slice(&geometry.index.to_bytes());
            packet.extend_from_slice(&geometry.items.to_bytes());
            packet.extend_from_slice(&geometry.seed.to_le_bytes());
            packet.extend_from_slice(&geometry.boot_id.to_le_bytes());
            packet.extend_from_slice(&geometry.max_item.to_le_bytes());
        }
        Reply::Done => packet.push(1),
        Reply::Stored(stored) => {
            packet.push(2);
            put_stored(packet, stored);
        }
        Reply::Missing => packet.push(3),
        Reply::Value {
            flags,
            cas,
            location,
            value,
        } => {
            packet.push(match value {
                GetValue::Inline(_) => 4,
                GetValue::Staged { .. } => 5,
            });
            packet.extend_from_slice(&flags.to_le_bytes());
            packet.extend_from_slice(&cas.to_le_bytes());
            put_location(packet, location);
            match value {
                GetValue::Inline(value) => packet.extend_from_slice(value),
                GetValue::Staged { len } => packet.extend_from_slice(&len.to_le_bytes()),
            }
        }
        Reply::Refused(refusal) => {
            packet.push(6);
            packet.push(match refusal {
                Refusal::Version => 0,
                Refusal::Malformed => 1,
                Refusal::TooLarge => 2,
                Refusal::OutOfMemory => 3,
                Refusal::Staging => 4,
                Refusal::NotANumber => 5,
                Refusal::Forbidden => 6,
                Refusal::HazardPointers => 7,
            });
        }
        Reply::Counted { value, location } => {
            packet.push(7);
            packet.extend_from_slice(&value.to_le_bytes());
            put_location(packet, location);
        }
        Reply::Said { awaiting, text } => {
            packet.push(8);
            put_awaiting(packet, awaiting);
            packet.extend_from_slice(text);
        }
    }
}

/// Decodes a reply and the number of the request that it answers.
///
/// # Errors
/// [`Malformed`].
pub fn decode_reply(message: &[u8]) -> Result<(u32, Reply<'_>), Malformed> {
    let mut fields = Fields(message);
    let number = fields.u32()?;
    let reply = match fields.u8()? {
        0 => Reply::Welcome(Geometry {
            index: fields.remote_key()?,
            items: fields.remote_key()?,
            seed: fields.u64()?,
            boot_id: fields.u64()?,
            max_item: fields.u32()?,
        }),
        1 => Reply::Done,
        2 => Reply::Stored(fields.stored()?),
        3 => Reply::Missing,
        kind @ (4 | 5) => Reply::Value {
            flags: fields.u32()?,
            cas: fields.u64()?,
            location: fields.location()?,
            value: match kind {
                4 => GetValue::Inline(fields.rest()),
                _ => GetValue::Staged { len: fields.u32()? },
            },
        },
        6 => Reply::Refused(match fields.u8()? {
            0 => Refusal::Version,
            1 => Refusal::Malformed,
            2 => Refusal::TooLarge,
            3 => Refusal::OutOfMemory,
            4 => Refusal::Staging,
            5 => Refusal::NotANumber,
            6 => Refusal::Forbidden,
            7 => Refusal::HazardPointers,
            _ => return Err(Malformed),
        }),
        7 => Reply::Counted {
            value: fields.u64()?,
            location: fields.location()?,
        },
        8 => Reply::Said {
            awaiting: fields.awaiting()?,
            text: fields.text()?,
        },
        _ => return Err(Malformed),
    };
    fields.end()?;
    Ok((number, reply))
}

/// Splits the first message off a packet.
///
/// # Errors
/// [`Malformed`], also when there is none.
pub fn split_message<'a>(packet: &mut &'a [u8]) -> Result<&'a [u8], Malformed> {
    let mut fields = Fields(packet);
    let len = fields.u32()? as usize;
    let (message, rest) = fields.0.split_at_checked(len).ok_or(Malformed)?;
    *packet = rest;
    Ok(message)
}

/// Lengthens the last message of a packet, which begins at `start`, by `len` bytes, and returns
/// these.
pub fn lengthen(packet: &mut Vec<u8>, start: usize, len: usize) -> &mut [u8] {
    let end = packet.len();
    packet.resize(end + len, 0);
    set_length(packet, start);
    &mut packet[end..]
}

fn encode(packet: &mut Vec<u8>, number: u32, put: impl FnOnce(&mut Vec<u8>)) {
    let start = packet.len();
    packet.extend_from_slice(&[0; LENGTH]);
    packet.extend_from_slice(&number.to_le_bytes());
    put(packet);
    set_length(packet, start);
}

/// Cannot overflow: packets are far shorter.
fn set_length(packet: &mut [u8], start: usize) {
    let len = (packet.len() - start - LENGTH) as u32;
    packet[start..start + LENGTH].copy_from_slice(&len.to_le_bytes());
}

#[cfg(test)]
mod tests;
