//! The pre-shared key of all hosts, by which the leader and a new host trust each other at first.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::unistd::Uid;
use snow::params::HashChoice;
use snow::resolvers::{CryptoResolver, DefaultResolver};
use snow::types::Hash;

use crate::random::{from_hex, to_hex};

/// Bytes of a key.
pub(crate) const KEY: usize = 32;

/// Bytes of the longest file that may hold a key, such as one of RSA in PEM.
const MAX_FILE: u64 = 16 << 10;

/// A pre-shared key. Its debug output does not show the bytes.
#[derive(Clone)]
pub struct Secret([u8; KEY]);

/// Failure to read a key from a file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SecretError {
    /// Error of the system.
    #[error("cannot read or make the key {}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// Other users may read the file, or it belongs to another user.
    #[error("the key {} is not only yours (mode {mode:03o}, uid {uid}); `chmod 600` it", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// Mode of the file.
        mode: u32,
        /// Owner of the file.
        uid: u32,
    },
    /// The file has other contents.
    #[error("{} holds no key of {} hexadecimal digits; make one with `openssl rand -hex {KEY}`", path.display(), 2 * KEY)]
    Nonsense {
        /// The file.
        path: PathBuf,
    },
}

impl Secret {
    /// Reads a key from a file, which must belong to this user or root and be closed to all others.
    ///
    /// # Errors
    /// [`SecretError`].
    pub fn read(path: &Path) -> Result<Self, SecretError> {
        let text = read_private(path)?;
        let key = from_hex(text.trim()).map(Secret);
        key.ok_or_else(|| SecretError::Nonsense { path: path.into() })
    }

    pub(crate) fn bytes(&self) -> &[u8; KEY] {
        &self.0
    }

    /// Text by which to recognize the key.
    pub(crate) fn digest(&self) -> String {
        let mut hash = blake2s();
        let mut digest = [0; KEY];
        hash.hmac(&self.0, b"toroid spent key", &mut digest);
        to_hex(&digest)
    }

    #[cfg(test)]
    pub(crate) fn of(byte: u8) -> Self {
        Secret([byte; KEY])
    }
}

/// Digest of bytes, as text.
pub(crate) fn digest(bytes: &[u8]) -> String {
    let mut hash = blake2s();
    let mut digest = [0; KEY];
    hash.input(bytes);
    hash.result(&mut digest);
    to_hex(&digest)
}

/// The hash function of all handshakes.
pub(super) fn blake2s() -> Box<dyn Hash> {
    let hash = DefaultResolver.resolve_hash(&HashChoice::Blake2s);
    hash.expect("the feature use-blake2 is on")
}

/// The text of a file with a secret, which must belong to this user or root and be closed to all
/// others.
///
/// # Errors
/// [`SecretError::Io`] and [`SecretError::Open`].
pub fn read_private(path: &Path) -> Result<String, SecretError> {
    let broken = |source| SecretError::Io {
        path: path.into(),
        source,
    };
    let file = File::open(path).map_err(broken)?;
    // The metadata is that of the opened file: its name may lead to another file by now.
    let metadata = file.metadata().map_err(broken)?;
    let (mode, uid) = (metadata.mode() & 0o777, metadata.uid());
    let is_ours = uid == Uid::effective().as_raw() || uid == 0;
    if mode & 0o077 != 0 || !is_ours {
        return Err(SecretError::Open {
            path: path.into(),
            mode,
            uid,
        });
    }
    let mut text = String::new();
    let read = file.take(MAX_FILE).read_to_string(&mut text);
    read.map_err(broken)?;
    Ok(text)
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_key_is_read_only_from_a_file_that_is_closed_to_others() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("key");
        let write = |text: &str, mode: u32| {
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            Secret::read(&path)
        };
        let sound = format!("{}\n", "0f".repeat(KEY));
        assert_eq!(write(&sound, 0o600).unwrap().bytes(), &[0x0f; KEY]);
        for mode in [0o640, 0o604, 0o620, 0o601] {
            let error = write(&sound, mode).unwrap_err();
            assert!(matches!(error, SecretError::Open { .. }), "{error}");
        }
        for text in [
            "",
            "0f",
            &"0g".repeat(KEY),
            &"é".repeat(KEY),
            &"00".repeat(KEY + 1),
        ] {
            let error = write(text, 0o600).unwrap_err();
            assert!(matches!(error, SecretError::Nonsense { .. }), "{error}");
        }
        let error = Secret::read(&directory.path().join("none")).unwrap_err();
        assert!(matches!(error, SecretError::Io { .. }), "{error}");
    }
}
