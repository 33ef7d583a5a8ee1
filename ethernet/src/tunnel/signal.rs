//! What drivers say to each other about a [line](super::line), on the connection beside it.
//!
//! ```text
//!  0      1      4        8            56
//!  +------+------+--------+------------+
//!  | word | zero | number | parameters |   little endian; the parameters are zeros where there are none
//!  +------+------+--------+------------+
//! ```
//!
//! One side asks, and numbers its lines. The other prepares its end, connects it and answers; then the first
//! connects, and looks whether a beginning arrives by the line itself. From a beginning over the connection on, the frames of who says so go by the line, and from an end on by the
//! connection again, so that no frame overtakes another.

use toroid_fabric::parameters::RdmaStreamParameters;

use super::{BEFORE_NOTICE, Nonsense, Tag};

/// Something about a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Notice {
    /// Which line.
    pub number: u32,
    /// What of it.
    pub word: Word,
}

/// What there is to say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word {
    /// The other side is to connect its end to this one.
    Ask(RdmaStreamParameters),
    /// That has been done, and this is it.
    Answer(RdmaStreamParameters),
    /// What comes next comes by the line.
    Begin,
    /// There is no line, or no longer.
    End,
}

impl Notice {
    /// Bytes of it.
    pub const LEN: usize = 56;

    /// Its bytes, behind those that come before a notice.
    pub fn to_item(self) -> [u8; Tag::LEN + Self::LEN] {
        let mut bytes = [0; Tag::LEN + Self::LEN];
        bytes[..Tag::LEN].copy_from_slice(&BEFORE_NOTICE);
        bytes[Tag::LEN..].copy_from_slice(&self.to_bytes());
        bytes
    }

    /// Its bytes.
    pub fn to_bytes(self) -> [u8; Self::LEN] {
        let none = [0; RdmaStreamParameters::LEN];
        let (word, parameters) = match self.word {
            Word::Ask(parameters) => (1, parameters.to_bytes()),
            Word::Answer(parameters) => (2, parameters.to_bytes()),
            Word::Begin => (3, none),
            Word::End => (4, none),
        };
        let mut bytes = [0; Self::LEN];
        bytes[0] = word;
        bytes[4..8].copy_from_slice(&self.number.to_le_bytes());
        bytes[8..].copy_from_slice(&parameters);
        bytes
    }

    /// The notice with these bytes.
    ///
    /// # Errors
    /// [`Nonsense`].
    pub fn from_bytes(bytes: &[u8; Self::LEN]) -> Result<Self, Nonsense> {
        let [word, 0, 0, 0, a, b, c, d, parameters @ ..] = bytes else {
            return Err(Nonsense);
        };
        let has_none = parameters.iter().all(|byte| *byte == 0);
        let told = || RdmaStreamParameters::from_bytes(parameters).map_err(|_| Nonsense);
        let word = match word {
            1 => Word::Ask(told()?),
            2 => Word::Answer(told()?),
            3 if has_none => Word::Begin,
            4 if has_none => Word::End,
            _ => return Err(Nonsense),
        };
        let number = u32::from_le_bytes([*a, *b, *c, *d]);
        Ok(Notice { number, word })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use toroid_fabric::parameters::ConnectionParameters;

    use super::*;

    /// Those of some line.
    pub(crate) fn parameters() -> RdmaStreamParameters {
        RdmaStreamParameters {
            connection: ConnectionParameters {
                number: 0x11,
                psn: 0x22,
                lid: 0,
                mtu: 5,
                depth: 1,
                gid: [9; 16],
            },
            address: 0x7fff_0000_0000,
            rkey: 0x33,
        }
    }

    #[test]
    fn notices_are_as_drawn() {
        let words = [
            Word::Ask(parameters()),
            Word::Answer(parameters()),
            Word::Begin,
            Word::End,
        ];
        for (word, first) in words.into_iter().zip(1..) {
            let number = 0x0102_0304;
            let notice = Notice { number, word };
            let bytes = notice.to_bytes();
            assert_eq!(bytes[..8], [first, 0, 0, 0, 4, 3, 2, 1]);
            assert_eq!(Notice::from_bytes(&bytes), Ok(notice));
        }
    }

    #[test]
    fn anything_else_is_nonsense() {
        let begin = Notice {
            number: 1,
            word: Word::Begin,
        };
        for (at, byte) in [(0, 0), (0, 5), (0, 1), (1, 1), (3, 1), (8, 1), (55, 1)] {
            let mut bytes = begin.to_bytes();
            bytes[at] = byte;
            assert_eq!(Notice::from_bytes(&bytes), Err(Nonsense), "{at}: {byte}");
        }
    }
}
