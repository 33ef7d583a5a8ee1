//! Fields of messages.

use toroid_fabric::RemoteKey;

use super::{Awaiting, Malformed, Piece, TEXT_LIMIT};
use crate::protocol::change::{Change, Mode, Stored};
use crate::protocol::layout::{Location, MAX_KEY, Slot, SlotWord};

/// Modes by their numbers.
const MODES: [Mode; 6] = [
    Mode::Set,
    Mode::Add,
    Mode::Replace,
    Mode::Append,
    Mode::Prepend,
    Mode::Compare,
];

/// A mode's number.
pub(super) fn mode_to(mode: Mode) -> u8 {
    MODES.iter().position(|&other| other == mode).unwrap_or(0) as u8
}

/// Appends a key. A key of more than 255 bytes, which no caller gives, is cut and decodes as
/// malformed.
pub(super) fn put_key(packet: &mut Vec<u8>, key: &[u8]) {
    packet.push(u8::try_from(key.len()).unwrap_or(u8::MAX));
    packet.extend_from_slice(&key[..key.len().min(usize::from(u8::MAX))]);
}

pub(super) fn put_location(packet: &mut Vec<u8>, location: Location) {
    packet.extend_from_slice(&location.slot.0.to_le_bytes());
    packet.extend_from_slice(&location.word.0.to_le_bytes());
    packet.extend_from_slice(&location.generation.to_le_bytes());
    packet.extend_from_slice(&location.len.to_le_bytes());
}

pub(super) fn put_stored(packet: &mut Vec<u8>, stored: Stored) {
    match stored {
        Stored::Stored { location, cas } => {
            packet.push(0);
            packet.extend_from_slice(&cas.to_le_bytes());
            put_location(packet, location);
        }
        Stored::NotStored => packet.push(1),
        Stored::Exists => packet.push(2),
        Stored::NotFound => packet.push(3),
    }
}

pub(super) fn put_awaiting(packet: &mut Vec<u8>, awaiting: Awaiting) {
    match awaiting {
        Awaiting::Command => packet.push(0),
        Awaiting::Line => packet.push(1),
        Awaiting::Bytes(bytes) => {
            packet.push(2);
            packet.extend_from_slice(&bytes.to_le_bytes());
        }
        Awaiting::More => packet.push(3),
        Awaiting::End => packet.push(4),
    }
}

/// The fields of a message that are still to be decoded.
pub(super) struct Fields<'a>(pub(super) &'a [u8]);

impl<'a> Fields<'a> {
    fn take<const N: usize>(&mut self) -> Result<&'a [u8; N], Malformed> {
        let (field, rest) = self.0.split_first_chunk().ok_or(Malformed)?;
        self.0 = rest;
        Ok(field)
    }

    pub(super) fn u8(&mut self) -> Result<u8, Malformed> {
        Ok(self.take::<1>()?[0])
    }

    pub(super) fn u32(&mut self) -> Result<u32, Malformed> {
        Ok(u32::from_le_bytes(*self.take()?))
    }

    pub(super) fn u64(&mut self) -> Result<u64, Malformed> {
        Ok(u64::from_le_bytes(*self.take()?))
    }

    pub(super) fn i64(&mut self) -> Result<i64, Malformed> {
        Ok(i64::from_le_bytes(*self.take()?))
    }

    pub(super) fn remote_key(&mut self) -> Result<RemoteKey, Malformed> {
        Ok(RemoteKey::from_bytes(self.take()?))
    }

    pub(super) fn location(&mut self) -> Result<Location, Malformed> {
        Ok(Location {
            slot: Slot(self.u32()?),
            word: SlotWord(self.u64()?),
            generation: self.u64()?,
            len: self.u32()?,
        })
    }

    pub(super) fn piece(&mut self) -> Result<Piece, Malformed> {
        Ok(Piece {
            offset: self.u64()?,
            len: self.u32()?,
        })
    }

    pub(super) fn change(&mut self) -> Result<Change<'a>, Malformed> {
        let mode = MODES.get(usize::from(self.u8()?)).ok_or(Malformed)?;
        Ok(Change {
            mode: *mode,
            flags: self.u32()?,
            exptime: self.i64()?,
            cas: self.u64()?,
            ..Change::set(self.key()?, false)
        })
    }

    pub(super) fn stored(&mut self) -> Result<Stored, Malformed> {
        Ok(match self.u8()? {
            0 => Stored::Stored {
                cas: self.u64()?,
                location: self.location()?,
            },
            1 => Stored::NotStored,
            2 => Stored::Exists,
            3 => Stored::NotFound,
            _ => return Err(Malformed),
        })
    }

    pub(super) fn key(&mut self) -> Result<&'a [u8], Malformed> {
        let len = usize::from(self.u8()?);
        let (key, rest) = self.0.split_at_checked(len).ok_or(Malformed)?;
        self.0 = rest;
        (1..=MAX_KEY).contains(&len).then_some(key).ok_or(Malformed)
    }

    pub(super) fn awaiting(&mut self) -> Result<Awaiting, Malformed> {
        Ok(match self.u8()? {
            0 => Awaiting::Command,
            1 => Awaiting::Line,
            // A wait for 0 bytes would never end.
            2 => match self.u64()? {
                0 => return Err(Malformed),
                bytes => Awaiting::Bytes(bytes),
            },
            3 => Awaiting::More,
            4 => Awaiting::End,
            _ => return Err(Malformed),
        })
    }

    pub(super) fn text(&mut self) -> Result<&'a [u8], Malformed> {
        let text = self.rest();
        (text.len() <= TEXT_LIMIT).then_some(text).ok_or(Malformed)
    }

    pub(super) fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.0)
    }

    pub(super) fn end(&self) -> Result<(), Malformed> {
        self.0.is_empty().then_some(()).ok_or(Malformed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_for_zero_bytes_is_malformed() {
        for (bytes, expected) in [(0, Err(Malformed)), (1, Ok(Awaiting::Bytes(1)))] {
            let mut packet = Vec::new();
            put_awaiting(&mut packet, Awaiting::Bytes(bytes));
            assert_eq!(Fields(&packet).awaiting(), expected);
        }
    }
}
