//! Sealed connections: each direction is a sequence of records.
//!
//! ```text
//!  0        2
//!  +--------+-------------+-----+
//!  | length | cipher text | tag |   little endian; the length of cipher text and tag
//!  +--------+-------------+-----+
//! ```
//!
//! Two agents agree on [`Keys`] in a handshake; the process that owns the socket gets them. Nonces
//! are the numbers of the records, so a record that is altered, repeated, left out or out of order
//! does not open, and no later record does. After [`RECORDS_PER_KEY`] records both sides derive the
//! next key from the present one, as `REKEY` of the Noise framework does.

mod incoming;
mod record;
mod sealing;
#[cfg(test)]
mod tests;

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, OnceLock};

use super::stream::Cutter;
pub use incoming::Incoming;
pub use record::{MAX_RECORD, MAX_TEXT, Opener, RECORDS_PER_KEY, Sealer};
pub use sealing::Sealing;

/// Bytes of a key.
pub const KEY: usize = 32;

/// An authenticated cipher.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cipher {
    /// AES-256 in Galois/Counter Mode.
    AesGcm,
    /// ChaCha20-Poly1305.
    ChaChaPoly,
}

impl Cipher {
    const ALL: [Self; 2] = [Cipher::AesGcm, Cipher::ChaChaPoly];

    /// The faster cipher on this processor: AES-GCM with AES instructions.
    pub fn fastest() -> Self {
        if has_aes() {
            Cipher::AesGcm
        } else {
            Cipher::ChaChaPoly
        }
    }

    /// Name in the Noise framework.
    pub fn noise_name(self) -> &'static str {
        match self {
            Cipher::AesGcm => "AESGCM",
            Cipher::ChaChaPoly => "ChaChaPoly",
        }
    }

    /// Number in messages, never 0.
    pub fn code(self) -> u8 {
        match self {
            Cipher::AesGcm => b'a',
            Cipher::ChaChaPoly => b'c',
        }
    }

    /// The cipher with this number.
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|cipher| cipher.code() == code)
    }
}

impl fmt::Display for Cipher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Cipher::AesGcm => "AES-256-GCM",
            Cipher::ChaChaPoly => "ChaCha20-Poly1305",
        })
    }
}

#[cfg(any(target_arch = "x86", target_arch = "x86_64"))]
fn has_aes() -> bool {
    std::is_x86_feature_detected!("aes") && std::is_x86_feature_detected!("pclmulqdq")
}

#[cfg(target_arch = "aarch64")]
fn has_aes() -> bool {
    std::arch::is_aarch64_feature_detected!("aes")
        && std::arch::is_aarch64_feature_detected!("pmull")
}

#[cfg(not(any(target_arch = "x86", target_arch = "x86_64", target_arch = "aarch64")))]
fn has_aes() -> bool {
    false
}

/// Keys of one side of a connection. The debug output does not show the bytes.
#[derive(Clone, PartialEq, Eq)]
pub struct Keys {
    /// The cipher of both directions.
    pub cipher: Cipher,
    /// Key of records that this side sends.
    pub send: [u8; KEY],
    /// Key of records that this side receives.
    pub receive: [u8; KEY],
}

impl Keys {
    /// Keys of the other side.
    pub fn mirrored(&self) -> Self {
        Keys {
            cipher: self.cipher,
            send: self.receive,
            receive: self.send,
        }
    }
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Keys({})", self.cipher)
    }
}

/// The received bytes are not what the other side sealed. The connection is useless afterwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// A record does not open: it was altered, repeated, left out or reordered on its way, or
    /// sealed with another key.
    #[error(
        "a record between the hosts was altered, repeated or reordered on its way; look for \
         what stands between them"
    )]
    Altered,
    /// No record has this length.
    #[error("what came between the hosts is no record: {0} bytes are announced")]
    Length(usize),
    /// The connection ended within a record.
    #[error("the connection between the hosts was cut within a record")]
    Cut,
}

/// Why a sealed connection ended, for the caller that gave it away.
#[derive(Clone, Debug, Default)]
pub struct Fault(Arc<OnceLock<RecordError>>);

impl Fault {
    /// The error, if there was one.
    pub fn get(&self) -> Option<RecordError> {
        self.0.get().copied()
    }

    pub(super) fn set(&self, error: RecordError) {
        // The first error counts.
        let _ = self.0.set(error);
    }
}

/// A connected socket, and the keys if its bytes are sealed.
#[derive(Debug)]
pub struct Connection {
    pub(super) socket: Arc<OwnedFd>,
    pub(super) keys: Option<Keys>,
    pub(super) fault: Fault,
}

impl Connection {
    /// A connection with sealed bytes, or clear ones without keys.
    pub fn new(socket: impl Into<Arc<OwnedFd>>, keys: Option<Keys>) -> Self {
        Connection {
            socket: socket.into(),
            keys,
            fault: Fault::default(),
        }
    }

    /// Ends the connection.
    pub fn cutter(&self) -> Cutter {
        Cutter::of(&self.socket)
    }

    /// Tells why the connection ended, when it has.
    pub fn fault(&self) -> Fault {
        self.fault.clone()
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl From<Arc<OwnedFd>> for Connection {
    /// A connection with clear bytes: within this host.
    fn from(socket: Arc<OwnedFd>) -> Self {
        Connection::new(socket, None)
    }
}

impl From<OwnedFd> for Connection {
    /// As from a shared socket.
    fn from(socket: OwnedFd) -> Self {
        Connection::new(socket, None)
    }
}
