//! The first 64 bytes of each side of a connection between hosts.
//!
//! ```text
//!  0        6      7         8          9      16                        64
//!  +--------+------+---------+----------+------+--------------------------+
//!  | toroid | kind | lowest  | highest  | tag  | proof                    |   connecting side
//!  +--------+------+---------+----------+------+--------------------------+
//!  | toroid | word | lowest  | highest  | zero | proof                    |   accepting side
//!  +--------+------+---------+----------+------+--------------------------+
//! ```
//!
//! For a session ([`Kind::Session`]) the first proof begins with the first message of the
//! [`handshake`](super::handshake), and the second is the begin of the next, whose rest follows. For
//! data ([`Kind::Data`]) the tag names the cipher and the ticket, and the proofs are the two messages
//! of a handshake with the ticket's secret; without encryption the tag is zero, the first proof the
//! ticket and the second zero. A [`Word`] answers a bad opening with the reason, in the clear. The
//! reason tells the other side nothing that it could not find out, and is only a hint, because any
//! router on the way may write it. All messages before the other side has proven itself are of fixed
//! length.

use std::ops::Range;

/// Bytes of an opening.
pub(crate) const OPENING: usize = 64;

/// Bytes of the proof in an opening: a handshake message, or a ticket.
pub(crate) const PROOF: usize = 48;

/// Lowest and highest version of the session protocol of this release.
pub(super) const VERSIONS: (u8, u8) = (12, 12);

const MAGIC: Range<usize> = 0..6;
const WORD_AT: usize = 6;
const LOWEST_AT: usize = 7;
const HIGHEST_AT: usize = 8;
const TAG_AT: Range<usize> = HIGHEST_AT + 1..PREAMBLE;
const PROOF_AT: Range<usize> = OPENING - PROOF..OPENING;

/// Bytes of a tag: a cipher, and an identifier of a ticket.
pub(crate) const TAG: usize = TAG_AT.end - TAG_AT.start;

const TOROID: &[u8; 6] = b"toroid";

/// Bytes before the proof.
pub(super) const PREAMBLE: usize = OPENING - PROOF;

/// Purpose of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    /// A session between agents.
    Session = b's',
    /// A data connection of a process to the agent of a peer.
    Data = b'd',
}

/// Answer to an opening.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Word {
    /// The connection goes on.
    Welcome = b'w',
    /// The two sides have no version in common.
    Version = b'v',
    /// Too many connections are not authenticated yet.
    Busy = b'b',
    /// The ticket is unknown, used or expired.
    BadTicket = b't',
    /// The cipher is unknown, or only one of the two sides encrypts.
    Cipher = b'c',
}

/// An opening of either side.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Opening<W> {
    /// Purpose of the connection, or answer.
    pub(crate) word: W,
    /// Lowest and highest version of the sender.
    pub(crate) versions: (u8, u8),
    /// Cipher and ticket of a data connection; otherwise zero.
    pub(crate) tag: [u8; TAG],
    /// The handshake message or ticket.
    pub(crate) proof: [u8; PROOF],
}

/// Meaning of the seventh byte.
pub(crate) trait Says: Copy + 'static {
    const ALL: &'static [Self];

    /// Whether the tag may differ from zero.
    fn has_tag(self) -> bool {
        self.byte() == Kind::Data as u8
    }

    fn byte(self) -> u8;

    fn from_byte(byte: u8) -> Option<Self> {
        Self::ALL.iter().copied().find(|word| word.byte() == byte)
    }
}

macro_rules! says {
    ($side:ident: $($word:ident),+) => {
        impl Says for $side {
            const ALL: &'static [Self] = &[$($side::$word),+];

            fn byte(self) -> u8 {
                self as u8
            }
        }
    };
}

says!(Kind: Session, Data);
says!(Word: Welcome, Version, Busy, BadTicket, Cipher);

impl<W: Says> Opening<W> {
    /// Makes an opening of this release.
    pub(crate) fn new(word: W, proof: [u8; PROOF]) -> Self {
        Opening::tagged(word, [0; TAG], proof)
    }

    /// The same with a tag.
    pub(crate) fn tagged(word: W, tag: [u8; TAG], proof: [u8; PROOF]) -> Self {
        Opening {
            word,
            versions: VERSIONS,
            tag,
            proof,
        }
    }

    /// Parses an opening; `None` for any other bytes.
    pub(crate) fn parse(bytes: &[u8; OPENING]) -> Option<Self> {
        let (mut tag, mut proof) = ([0; TAG], [0; PROOF]);
        tag.copy_from_slice(&bytes[TAG_AT]);
        proof.copy_from_slice(&bytes[PROOF_AT]);
        let word = W::from_byte(bytes[WORD_AT])?;
        let is_one = &bytes[MAGIC] == TOROID && (word.has_tag() || tag == [0; TAG]);
        is_one.then_some(Opening {
            word,
            versions: (bytes[LOWEST_AT], bytes[HIGHEST_AT]),
            tag,
            proof,
        })
    }

    pub(crate) fn bytes(&self) -> [u8; OPENING] {
        let mut bytes = [0; OPENING];
        bytes[..PREAMBLE].copy_from_slice(&self.preamble());
        bytes[PROOF_AT].copy_from_slice(&self.proof);
        bytes
    }

    /// The bytes before the proof. Both handshake messages depend on them.
    pub(super) fn preamble(&self) -> [u8; PREAMBLE] {
        let mut bytes = [0; PREAMBLE];
        bytes[MAGIC].copy_from_slice(TOROID);
        bytes[WORD_AT] = self.word.byte();
        (bytes[LOWEST_AT], bytes[HIGHEST_AT]) = self.versions;
        bytes[TAG_AT].copy_from_slice(&self.tag);
        bytes
    }

    /// Highest version in common.
    pub(crate) fn agreed(&self) -> Option<u8> {
        let highest = self.versions.1.min(VERSIONS.1);
        (highest >= self.versions.0.max(VERSIONS.0)).then_some(highest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_well_formed_opening_is_parsed() {
        let sent = Opening::new(Kind::Session, [7; PROOF]);
        let bytes = sent.bytes();
        let read = Opening::<Kind>::parse(&bytes).unwrap();
        assert_eq!(
            (read.word, read.versions, read.proof),
            (Kind::Session, VERSIONS, [7; PROOF])
        );
        assert!(Opening::<Word>::parse(&bytes).is_none());
        let data = Opening::tagged(Kind::Data, [5; TAG], [7; PROOF]);
        let read = Opening::<Kind>::parse(&data.bytes()).unwrap();
        assert_eq!((read.word, read.tag), (Kind::Data, [5; TAG]));
        // Other openings have no tag.
        for at in (0..=WORD_AT).chain(HIGHEST_AT + 1..PREAMBLE) {
            let mut other = bytes;
            other[at] ^= 0x80;
            assert!(Opening::<Kind>::parse(&other).is_none(), "byte {at}");
        }
    }

    #[test]
    fn the_highest_common_version_is_agreed() {
        let (lowest, highest) = VERSIONS;
        let with = |versions| Opening {
            versions,
            ..Opening::new(Kind::Session, [0; PROOF])
        };
        assert_eq!(with((0, highest)).agreed(), Some(highest));
        assert_eq!(with((lowest, u8::MAX)).agreed(), Some(highest));
        assert_eq!(with((highest + 1, u8::MAX)).agreed(), None);
        assert_eq!(with((0, lowest - 1)).agreed(), None);
        assert_eq!(with((highest, lowest - 1)).agreed(), None);
    }
}
