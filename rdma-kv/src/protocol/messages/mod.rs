//! Messages between an RDMA client and the server: what a one-sided read cannot do.
//!
//! A packet holds one or more. A client sends [`Request`]s, the first of which is
//! [`Request::Hello`]; each but [`Request::Used`] and [`Request::Leave`] is answered by one [`Reply`] with the request's
//! number, in the order of the requests.
//!
//! ```text
//!  0        4        8      9
//!  +--------+--------+------+--------+
//!  | length | number | kind | fields |   little endian; length: of what follows it
//!  +--------+--------+------+--------+
//! ```
//!
//! Keys have a length of one byte before them; a value, or a message's last field of bytes, is
//! what is left of the message.

mod fields;
mod used;

use toroid_fabric::{Access, Protocol, RemoteKey};

use crate::protocol::change::{Change, Delta, Stored};
use crate::protocol::geometry::Geometry;
use crate::protocol::layout::Location;
pub use used::{PackedUse, SAMPLED, Use};

use fields::{Fields, mode_to, put_awaiting, put_key, put_location, put_stored};

/// The store's protocol: memcached's port.
pub const PROTOCOL: Protocol = Protocol(11211);

/// The version of these messages, of the layout and of the hash. Others are refused.
pub const VERSION: u32 = 6;

/// Values up to this many bytes travel in a packet with their set; longer ones are read by the
/// server.
pub const INLINE_LIMIT: usize = 4096;

/// As many bytes of memcached's protocol travel in one message.
pub const TEXT_LIMIT: usize = 32 * 1024;

/// Bytes of a message but for keys and values, at most.
pub const OVERHEAD: usize = 128;

/// Access of the server to a client's staging region: it reads values of sets, and writes values of gets
/// that could not be read one-sided.
pub const STAGING_ACCESS: Access = Access::REMOTE_READ.union(Access::REMOTE_WRITE);

/// Bytes of a message's length.
const LENGTH: usize = 4;

/// What a client asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request<'a> {
    /// First. Reply: [`Reply::Welcome`].
    Hello {
        /// [`VERSION`].
        version: u32,
    },
    /// From now on, values pass through this region of the client, which the server may read
    /// and write. Reply: [`Reply::Done`].
    Stage {
        /// The region.
        key: RemoteKey,
    },
    /// What memcached's `set`, `add`, `replace`, `append`, `prepend` and `cas` do. Reply:
    /// [`Reply::Stored`].
    Store {
        /// On which condition, and under which key. What only meta commands can ask for does not
        /// travel.
        change: Change<'a>,
        /// The value.
        value: SetValue<'a>,
    },
    /// Reply: [`Reply::Done`] or [`Reply::Missing`].
    Delete {
        /// The key.
        key: &'a [u8],
    },
    /// `incr` and `decr`. Reply: [`Reply::Counted`] or [`Reply::Missing`].
    Count {
        /// The key.
        key: &'a [u8],
        /// How far.
        delta: Delta,
    },
    /// Reply: [`Reply::Done`] or [`Reply::Missing`].
    Touch {
        /// The key.
        key: &'a [u8],
        /// As [`crate::store::Store::deadline`] has it.
        exptime: i64,
    },
    /// `flush_all`. Reply: [`Reply::Done`].
    Flush {
        /// As [`crate::store::operations::flush`] has it.
        delay: i64,
    },
    /// What the client read by itself. No reply.
    Used {
        /// Gets since the last report.
        gets: u32,
        /// Of these, such that found something.
        hits: u32,
        /// Some of the items that were found.
        uses: &'a [PackedUse],
    },
    /// From now on, what the client borrows is on hazard pointers in this region of it, which the server may
    /// read and write; see [`crate::protocol::hazards`]. Reply: [`Reply::Done`].
    Borrow {
        /// The region.
        hazards: RemoteKey,
    },
    /// For when reading it was in vain, and `gat`. Reply: [`Reply::Value`] or
    /// [`Reply::Missing`].
    Get {
        /// The key.
        key: &'a [u8],
        /// When it is to be dead from now on, as [`crate::store::Store::deadline`] has it.
        touch: Option<i64>,
        /// Where a large value may be put.
        room: Piece,
    },
    /// Bytes of memcached's protocol, from somebody for whom the client speaks. Reply:
    /// [`Reply::Said`].
    Text {
        /// Whose: each has a conversation for itself, which begins with its first message.
        session: u32,
        /// Up to [`TEXT_LIMIT`]; none to have more of the replies.
        text: &'a [u8],
    },
    /// A conversation is over. No reply.
    Leave {
        /// Which one.
        session: u32,
    },
}

/// A part of the staging region.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Piece {
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub len: u32,
}

/// Where the value of a set is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetValue<'a> {
    /// Here.
    Inline(&'a [u8]),
    /// In the staging region.
    Staged(Piece),
}

/// What the server answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply<'a> {
    /// To [`Request::Hello`].
    Welcome(Geometry),
    /// It was carried out.
    Done,
    /// What became of a value to be stored.
    Stored(Stored),
    /// A number is now this one.
    Counted {
        /// The number.
        value: u64,
        /// Where it is.
        location: Location,
    },
    /// There is no such key.
    Missing,
    /// A value, and where it is.
    Value {
        /// The client's.
        flags: u32,
        /// Its number.
        cas: u64,
        /// Where it was when it was read.
        location: Location,
        /// The value itself.
        value: GetValue<'a>,
    },
    /// It was not carried out.
    Refused(Refusal),
    /// To [`Request::Text`].
    Said {
        /// What the conversation is waiting for.
        awaiting: Awaiting,
        /// What was answered: up to [`TEXT_LIMIT`] bytes.
        text: &'a [u8],
    },
}

/// What a conversation by memcached's protocol waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Awaiting {
    /// A command.
    Command,
    /// The rest of a line.
    Line,
    /// So many more bytes of a value.
    Bytes(u64),
    /// To be asked for the rest of its replies, by a message without text.
    More,
    /// Nothing; it is over.
    End,
}

/// Where the value of a get is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GetValue<'a> {
    /// Here.
    Inline(&'a [u8]),
    /// Where the request said.
    Staged {
        /// Bytes.
        len: u32,
    },
}

/// Why a request was not carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Caller: the client speaks another version.
    #[error("the server speaks version {VERSION} of the store's protocol only")]
    Version,
    /// Caller: key or message are impossible.
    #[error("the server did not understand the request")]
    Malformed,
    /// Caller: over the server's item size limit.
    #[error("object too large for cache")]
    TooLarge,
    /// Server: everything is in the middle of being set.
    #[error("the server is out of memory")]
    OutOfMemory,
    /// Caller: the value does not fit the staging region, or that could not be used.
    #[error("the server cannot use the staging region")]
    Staging,
    /// Caller: the region of hazard pointers is too short, or could not be used.
    #[error("the server cannot see what the client borrows")]
    HazardPointers,
    /// Caller: the value is none.
    #[error("cannot increment or decrement non-numeric value")]
    NotANumber,
    /// Server: its options forbid it.
    #[error("the server does not allow this")]
    Forbidden,
}

/// A packet that is no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("malformed message")]
pub struct Malformed;

/// Adds a request under a number to `packet`.
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

/// Adds a reply to the request of this number to `packet`.
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

/// Takes the first message off a packet.
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

/// Makes the last message of a packet, which starts at `start`, longer by `len` bytes, and returns
/// these: for a value that comes from elsewhere.
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

/// Packets are far shorter than what overflows a length.
fn set_length(packet: &mut [u8], start: usize) {
    let len = (packet.len() - start - LENGTH) as u32;
    packet[start..start + LENGTH].copy_from_slice(&len.to_le_bytes());
}

#[cfg(test)]
mod tests;
