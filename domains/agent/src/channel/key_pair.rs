//! The key pair by which the other hosts know this one.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use snow::params::DHChoice;
use snow::resolvers::{CryptoResolver, DefaultResolver};
use toroid_model::host_key::PublicKey;

use super::secret::{KEY, Secret, SecretError};
use crate::random;
use crate::store::ownership;

/// Name of the file in the data directory.
const FILE: &str = "host.key";

/// A key pair. Its debug output shows the public key only.
#[derive(Clone)]
pub(crate) struct KeyPair {
    private: [u8; KEY],
    public: PublicKey,
}

impl KeyPair {
    /// Makes a new key pair.
    pub(crate) fn generate() -> io::Result<Self> {
        let private = random::bytes();
        let private = private.map_err(|refusal| io::Error::other(refusal.message))?;
        Ok(Self::of(private))
    }

    /// Reads the key pair of this host, or makes one if there is none.
    pub(crate) fn read_or_make(data: &Path) -> Result<Self, SecretError> {
        let path = data.join(FILE);
        match Secret::read(&path) {
            Ok(private) => Ok(Self::of(*private.bytes())),
            Err(SecretError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                let made = Self::generate().and_then(|made| made.write(data).map(|()| made));
                made.map_err(|source| SecretError::Io { path, source })
            }
            Err(error) => Err(error),
        }
    }

    /// Makes this the key pair of the host, durably.
    pub(crate) fn write(&self, data: &Path) -> io::Result<()> {
        let (path, next) = (data.join(FILE), next_file(data));
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(0o600);
        let mut file = ownership::open(&mut options, &next)?;
        file.write_all(random::to_hex(&self.private).as_bytes())?;
        file.sync_all()?;
        fs::rename(next, path)?;
        File::open(data)?.sync_all()
    }

    pub(crate) fn public(&self) -> PublicKey {
        self.public
    }

    pub(super) fn private(&self) -> &[u8; KEY] {
        &self.private
    }

    pub(super) fn of(private: [u8; KEY]) -> Self {
        let mut curve = DefaultResolver
            .resolve_dh(&DHChoice::Curve25519)
            .expect("the feature use-curve25519 is on");
        curve.set(&private);
        let mut public = [0; KEY];
        public.copy_from_slice(&curve.pubkey()[..KEY]);
        KeyPair {
            private,
            public: PublicKey(public),
        }
    }
}

fn next_file(data: &Path) -> PathBuf {
    data.join(FILE).with_extension("key.next")
}

impl fmt::Debug for KeyPair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("KeyPair").field(&self.public).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_key_pair_is_made_once_and_is_closed_to_others() {
        let data = tempfile::tempdir().unwrap();
        let first = KeyPair::read_or_make(data.path()).unwrap();
        let again = KeyPair::read_or_make(data.path()).unwrap();
        assert!(first.public == again.public && first.private == again.private);
        let path = data.path().join(FILE);
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let next = KeyPair::generate().unwrap();
        next.write(data.path()).unwrap();
        let read = KeyPair::read_or_make(data.path()).unwrap();
        assert!(read.public == next.public && read.public != first.public);
        assert!(!format!("{read:?}").contains(&random::to_hex(&read.private)));
        fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
        let error = KeyPair::read_or_make(data.path()).unwrap_err();
        assert!(error.to_string().contains("chmod 600"), "{error}");
    }
}
