//! Messages between an RDMA client and the server: what a one-sided read cannot do.
//!
//! Each travels as one packet. A client sends [`Request`]s, the first of which is
//! [`Request::Hello`]; each is answered by one [`Reply`] with the request's number.
//!
//! ```text
//!  0        4      5
//!  +--------+------+--------+
//!  | number | kind | fields |   little endian
//!  +--------+------+--------+
//! ```
//!
//! Keys have a length of one byte before them; a value, or a message's last field of bytes, is
//! what is left of the packet.

use fabric::{Protocol, RemoteKey};

use crate::layout::{MAX_KEY, Placement, Slot, SlotWord};
use crate::store::Geometry;

/// The store's protocol: memcached's port.
pub const PROTOCOL: Protocol = Protocol(11211);

/// The version of these messages, of the layout and of the hash. Others are refused.
pub const VERSION: u32 = 4;

/// Values up to this many bytes travel in a packet with their set; longer ones are read by the
/// server.
pub const INLINE_LIMIT: usize = 4096;

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
    /// Reply: [`Reply::Stored`].
    Set {
        /// From 1 to [`MAX_KEY`] bytes.
        key: &'a [u8],
        /// The client's.
        flags: u32,
        /// As [`crate::store::Store::deadline`] has it.
        exptime: i64,
        /// The value.
        value: SetValue<'a>,
    },
    /// Reply: [`Reply::Done`] or [`Reply::Missing`].
    Delete {
        /// The key.
        key: &'a [u8],
    },
    /// What the client read by itself. No reply.
    Used {
        /// Gets since the last report.
        gets: u32,
        /// Of these, such that found something.
        hits: u32,
        /// Some of the items that were found.
        places: &'a [UsedPlace],
    },
    /// For when reading it was in vain. Reply: [`Reply::Value`] or [`Reply::Missing`].
    Get {
        /// The key.
        key: &'a [u8],
    },
}

/// Where the value of a set is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetValue<'a> {
    /// Here.
    Inline(&'a [u8]),
    /// In the staging region.
    Staged {
        /// First byte.
        offset: u64,
        /// Bytes.
        len: u32,
    },
}

/// A slot and what was in it, as they travel.
pub type UsedPlace = [u8; 12];

/// Packs a slot and what was in it.
pub fn pack_used(slot: Slot, word: SlotWord) -> UsedPlace {
    let mut packed = [0; 12];
    packed[..4].copy_from_slice(&slot.0.to_le_bytes());
    packed[4..].copy_from_slice(&word.0.to_le_bytes());
    packed
}

/// The slot and what was in it, which may be anything.
pub fn unpack_used(packed: &UsedPlace) -> (Slot, SlotWord) {
    let [a, b, c, d, word @ ..] = *packed;
    (
        Slot(u32::from_le_bytes([a, b, c, d])),
        SlotWord(u64::from_le_bytes(word)),
    )
}

/// What the server answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply<'a> {
    /// To [`Request::Hello`].
    Welcome(Geometry),
    /// It was carried out.
    Done,
    /// The value is stored, and where.
    Stored(Placement),
    /// There is no such key.
    Missing,
    /// A value, and where it is.
    Value {
        /// The client's.
        flags: u32,
        /// Where it was when it was read.
        placement: Placement,
        /// The value itself.
        value: GetValue<'a>,
    },
    /// It was not carried out.
    Refused(Refusal),
}

/// Where the value of a get is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GetValue<'a> {
    /// Here.
    Inline(&'a [u8]),
    /// At the start of the staging region.
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
}

/// A packet that is no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("malformed message")]
pub struct Malformed;

/// Encodes a request under a number into `packet`, instead of what was there.
pub fn encode_request(packet: &mut Vec<u8>, number: u32, request: &Request<'_>) {
    packet.clear();
    packet.extend_from_slice(&number.to_le_bytes());
    match *request {
        Request::Hello { version } => {
            packet.push(0);
            packet.extend_from_slice(&version.to_le_bytes());
        }
        Request::Stage { key } => {
            packet.push(1);
            packet.extend_from_slice(&key.to_bytes());
        }
        Request::Set {
            key,
            flags,
            exptime,
            value,
        } => {
            packet.push(match value {
                SetValue::Inline(_) => 2,
                SetValue::Staged { .. } => 3,
            });
            packet.extend_from_slice(&flags.to_le_bytes());
            packet.extend_from_slice(&exptime.to_le_bytes());
            put_key(packet, key);
            match value {
                SetValue::Inline(value) => packet.extend_from_slice(value),
                SetValue::Staged { offset, len } => {
                    packet.extend_from_slice(&offset.to_le_bytes());
                    packet.extend_from_slice(&len.to_le_bytes());
                }
            }
        }
        Request::Delete { key } => {
            packet.push(4);
            put_key(packet, key);
        }
        Request::Get { key } => {
            packet.push(5);
            put_key(packet, key);
        }
        Request::Used { gets, hits, places } => {
            packet.push(6);
            packet.extend_from_slice(&gets.to_le_bytes());
            packet.extend_from_slice(&hits.to_le_bytes());
            packet.extend_from_slice(places.as_flattened());
        }
    }
}

/// Decodes a request and its number.
///
/// # Errors
/// [`Malformed`].
pub fn decode_request(packet: &[u8]) -> Result<(u32, Request<'_>), Malformed> {
    let mut fields = Fields(packet);
    let number = fields.u32()?;
    let request = match fields.u8()? {
        0 => Request::Hello {
            version: fields.u32()?,
        },
        1 => Request::Stage {
            key: fields.remote_key()?,
        },
        kind @ (2 | 3) => Request::Set {
            flags: fields.u32()?,
            exptime: fields.u64()? as i64,
            key: fields.key()?,
            value: match kind {
                2 => SetValue::Inline(fields.rest()),
                _ => SetValue::Staged {
                    offset: fields.u64()?,
                    len: fields.u32()?,
                },
            },
        },
        4 => Request::Delete { key: fields.key()? },
        5 => Request::Get { key: fields.key()? },
        6 => Request::Used {
            gets: fields.u32()?,
            hits: fields.u32()?,
            places: match fields.rest().as_chunks() {
                (places, []) => places,
                _ => return Err(Malformed),
            },
        },
        _ => return Err(Malformed),
    };
    fields.end()?;
    Ok((number, request))
}

/// Encodes a reply to the request of this number into `packet`, instead of what was there.
pub fn encode_reply(packet: &mut Vec<u8>, number: u32, reply: &Reply<'_>) {
    packet.clear();
    packet.extend_from_slice(&number.to_le_bytes());
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
        Reply::Stored(placement) => {
            packet.push(2);
            put_placement(packet, placement);
        }
        Reply::Missing => packet.push(3),
        Reply::Value {
            flags,
            placement,
            value,
        } => {
            packet.push(match value {
                GetValue::Inline(_) => 4,
                GetValue::Staged { .. } => 5,
            });
            packet.extend_from_slice(&flags.to_le_bytes());
            put_placement(packet, placement);
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
            });
        }
    }
}

/// Decodes a reply and the number of the request that it answers.
///
/// # Errors
/// [`Malformed`].
pub fn decode_reply(packet: &[u8]) -> Result<(u32, Reply<'_>), Malformed> {
    let mut fields = Fields(packet);
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
        2 => Reply::Stored(fields.placement()?),
        3 => Reply::Missing,
        kind @ (4 | 5) => Reply::Value {
            flags: fields.u32()?,
            placement: fields.placement()?,
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
            _ => return Err(Malformed),
        }),
        _ => return Err(Malformed),
    };
    fields.end()?;
    Ok((number, reply))
}

/// Callers keep keys to [`MAX_KEY`] bytes; what is beyond is cut, and found malformed.
fn put_key(packet: &mut Vec<u8>, key: &[u8]) {
    packet.push(u8::try_from(key.len()).unwrap_or(u8::MAX));
    packet.extend_from_slice(&key[..key.len().min(usize::from(u8::MAX))]);
}

fn put_placement(packet: &mut Vec<u8>, placement: Placement) {
    packet.extend_from_slice(&placement.slot.0.to_le_bytes());
    packet.extend_from_slice(&placement.word.0.to_le_bytes());
    packet.extend_from_slice(&placement.generation.to_le_bytes());
    packet.extend_from_slice(&placement.len.to_le_bytes());
}

/// What is left of a packet.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take<const N: usize>(&mut self) -> Result<&'a [u8; N], Malformed> {
        let (field, rest) = self.0.split_first_chunk().ok_or(Malformed)?;
        self.0 = rest;
        Ok(field)
    }

    fn u8(&mut self) -> Result<u8, Malformed> {
        Ok(self.take::<1>()?[0])
    }

    fn u32(&mut self) -> Result<u32, Malformed> {
        Ok(u32::from_le_bytes(*self.take()?))
    }

    fn u64(&mut self) -> Result<u64, Malformed> {
        Ok(u64::from_le_bytes(*self.take()?))
    }

    fn remote_key(&mut self) -> Result<RemoteKey, Malformed> {
        Ok(RemoteKey::from_bytes(self.take()?))
    }

    fn placement(&mut self) -> Result<Placement, Malformed> {
        Ok(Placement {
            slot: Slot(self.u32()?),
            word: SlotWord(self.u64()?),
            generation: self.u64()?,
            len: self.u32()?,
        })
    }

    fn key(&mut self) -> Result<&'a [u8], Malformed> {
        let len = usize::from(self.u8()?);
        let (key, rest) = self.0.split_at_checked(len).ok_or(Malformed)?;
        self.0 = rest;
        (1..=MAX_KEY).contains(&len).then_some(key).ok_or(Malformed)
    }

    fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.0)
    }

    fn end(&self) -> Result<(), Malformed> {
        self.0.is_empty().then_some(()).ok_or(Malformed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn placement() -> Placement {
        Placement {
            slot: Slot(1),
            word: SlotWord(2 << 40),
            generation: 3 << 40,
            len: 4,
        }
    }

    fn requests() -> Vec<Request<'static>> {
        let key = &b"key"[..];
        let (flags, exptime) = (7, -1);
        let staged = SetValue::Staged {
            offset: 1 << 33,
            len: 9,
        };
        vec![
            Request::Hello { version: 1 },
            Request::Stage {
                key: RemoteKey::from_bytes(&[9; 32]),
            },
            Request::Set {
                key,
                flags,
                exptime,
                value: SetValue::Inline(b"value"),
            },
            Request::Set {
                key,
                flags,
                exptime,
                value: staged,
            },
            Request::Delete { key },
            Request::Get {
                key: &[b'k'; MAX_KEY],
            },
        ]
    }

    fn replies() -> Vec<Reply<'static>> {
        let geometry = Geometry {
            index: RemoteKey::from_bytes(&[1; 32]),
            items: RemoteKey::from_bytes(&[2; 32]),
            seed: 3,
            boot_id: 4,
            max_item: 5,
        };
        let (flags, placement) = (6, placement());
        vec![
            Reply::Welcome(geometry),
            Reply::Done,
            Reply::Stored(placement),
            Reply::Missing,
            Reply::Value {
                flags,
                placement,
                value: GetValue::Inline(b""),
            },
            Reply::Value {
                flags,
                placement,
                value: GetValue::Staged { len: 8 },
            },
            Reply::Refused(Refusal::Staging),
        ]
    }

    #[test]
    fn messages_round_trip_and_truncated_ones_are_refused() {
        let mut packet = Vec::new();
        for request in requests() {
            encode_request(&mut packet, 77, &request);
            assert_eq!(decode_request(&packet), Ok((77, request)));
            if !matches!(
                request,
                Request::Set {
                    value: SetValue::Inline(_),
                    ..
                }
            ) {
                assert!((0..packet.len()).all(|len| decode_request(&packet[..len]).is_err()));
                packet.push(0);
                assert_eq!(decode_request(&packet), Err(Malformed));
            }
        }
        for reply in replies() {
            encode_reply(&mut packet, 78, &reply);
            assert_eq!(decode_reply(&packet), Ok((78, reply)));
        }
    }

    #[test]
    fn impossible_keys_are_refused() {
        for len in [0, MAX_KEY + 1, 255, 300] {
            let mut packet = Vec::new();
            encode_request(
                &mut packet,
                1,
                &Request::Get {
                    key: &vec![b'k'; len],
                },
            );
            assert_eq!(decode_request(&packet), Err(Malformed));
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_panic(packet in prop::collection::vec(any::<u8>(), 0..80)) {
            let _ = decode_request(&packet);
            let _ = decode_reply(&packet);
        }
    }
}
