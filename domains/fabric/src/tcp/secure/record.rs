//! Single records: keys, nonces and the change of keys.

use std::fmt;
use std::ops::Range;

use ring::aead::{AES_256_GCM, Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};

use super::{Cipher, KEY, Keys, RecordError};

/// Records that are sealed with one key. With records of [`MAX_TEXT`] bytes these are 2^31 blocks
/// of AES, where the advantage of a distinguisher is below 2^-64.
pub const RECORDS_PER_KEY: u64 = 1 << 20;

/// Bytes of plain text in the longest record.
pub const MAX_TEXT: usize = 32 * 1024;

/// Bytes of a record before its cipher text.
pub(super) const LENGTH: usize = 2;

/// Bytes of an authentication tag.
pub(super) const TAG: usize = 16;

/// Bytes of the longest record.
pub const MAX_RECORD: usize = LENGTH + MAX_TEXT + TAG;

/// Nonce with which the next key is derived. No record has it.
const REKEY_NONCE: u64 = u64::MAX;

/// One direction: the present key, and the number of the next record.
struct Direction {
    cipher: Cipher,
    key: LessSafeKey,
    next: u64,
}

impl Direction {
    fn new(cipher: Cipher, key: &[u8; KEY]) -> Self {
        Direction {
            cipher,
            key: load(cipher, key),
            next: 0,
        }
    }

    /// Nonce of the next record. Derives the next key when the present one is used up.
    fn nonce(&mut self) -> Nonce {
        if self.next > 0 && self.next.is_multiple_of(RECORDS_PER_KEY) {
            self.rekey();
        }
        let nonce = nonce(self.cipher, self.next);
        // 2^64 records take centuries.
        self.next += 1;
        nonce
    }

    fn rekey(&mut self) {
        let mut next = [0; KEY];
        let sealed = self.key.seal_in_place_separate_tag(
            nonce(self.cipher, REKEY_NONCE),
            Aad::empty(),
            &mut next,
        );
        // Only texts of gigabytes are refused.
        let _tag = sealed.expect("a key is short");
        self.key = load(self.cipher, &next);
    }
}

fn load(cipher: Cipher, key: &[u8; KEY]) -> LessSafeKey {
    let algorithm = match cipher {
        Cipher::AesGcm => &AES_256_GCM,
        Cipher::ChaChaPoly => &CHACHA20_POLY1305,
    };
    LessSafeKey::new(UnboundKey::new(algorithm, key).expect("both ciphers have keys of 32 bytes"))
}

/// The nonce of a number, as in the Noise framework.
fn nonce(cipher: Cipher, number: u64) -> Nonce {
    let mut bytes = [0; 12];
    bytes[4..].copy_from_slice(&match cipher {
        Cipher::AesGcm => number.to_be_bytes(),
        Cipher::ChaChaPoly => number.to_le_bytes(),
    });
    Nonce::assume_unique_for_key(bytes)
}

impl fmt::Debug for Direction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, record {}", self.cipher, self.next)
    }
}

/// Seals records of the sending direction.
#[derive(Debug)]
pub struct Sealer(Direction);

impl Sealer {
    /// The sealer of this side.
    pub fn new(keys: &Keys) -> Self {
        Sealer(Direction::new(keys.cipher, &keys.send))
    }

    /// Seals a record in place. `record` has room for the length, then the text of at most
    /// [`MAX_TEXT`] bytes; the tag is appended.
    pub(super) fn seal(&mut self, records: &mut Vec<u8>, record: usize) {
        let text = record + LENGTH;
        let length = (records.len() - text + TAG) as u16;
        let nonce = self.0.nonce();
        let sealed =
            self.0
                .key
                .seal_in_place_separate_tag(nonce, Aad::empty(), &mut records[text..]);
        let tag = sealed.expect("a record is short");
        records[record..text].copy_from_slice(&length.to_le_bytes());
        records.extend_from_slice(tag.as_ref());
    }

    #[cfg(test)]
    pub(super) fn skip_to(&mut self, number: u64) {
        self.0.next = number;
    }
}

/// Opens records of the receiving direction.
#[derive(Debug)]
pub struct Opener(Direction);

impl Opener {
    /// The opener of this side.
    pub fn new(keys: &Keys) -> Self {
        Opener(Direction::new(keys.cipher, &keys.receive))
    }

    /// Bytes of the record at the front, if its length has come.
    ///
    /// # Errors
    /// [`RecordError::Length`].
    pub(super) fn record_len(bytes: &[u8]) -> Result<Option<usize>, RecordError> {
        let Some(length) = bytes.first_chunk() else {
            return Ok(None);
        };
        let length = usize::from(u16::from_le_bytes(*length));
        // Empty texts would keep this side busy for nothing.
        if !(TAG + 1..=TAG + MAX_TEXT).contains(&length) {
            return Err(RecordError::Length(length));
        }
        Ok(Some(LENGTH + length))
    }

    /// Opens the whole record in `bytes[record]`, and moves its text to `bytes[to..]`, where `to`
    /// is at or before the record. Returns the bytes of the text.
    ///
    /// # Errors
    /// [`RecordError::Altered`].
    pub(super) fn open(
        &mut self,
        bytes: &mut [u8],
        record: Range<usize>,
        to: usize,
    ) -> Result<usize, RecordError> {
        let sealed = record.start + LENGTH - to..;
        let place = &mut bytes[to..record.end];
        let nonce = self.0.nonce();
        let opened = self.0.key.open_within(nonce, Aad::empty(), place, sealed);
        opened
            .map(|text| text.len())
            .map_err(|_| RecordError::Altered)
    }

    #[cfg(test)]
    pub(super) fn skip_to(&mut self, number: u64) {
        self.0.next = number;
    }
}
