//! The key that both ends share, and its proof.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};

use super::wire::Digest;

/// Fewest characters of a key.
const SHORTEST: usize = 16;

/// Bytes of the longest file that may hold a key.
const LONGEST_FILE: u64 = 1024;

/// Purpose of the derived key, as BLAKE3 wants it.
const PURPOSE: &str = "toroid-bench noise 2026-11 session key";

/// A shared secret.
#[derive(Clone)]
pub struct Key([u8; blake3::KEY_LEN]);

/// The end that proves.
#[derive(Clone, Copy, Debug)]
pub enum End {
    /// `noise connect` and others.
    Client,
    /// `noise serve`.
    Server,
}

impl Key {
    /// The key of a text.
    pub fn of(text: &str) -> Self {
        Key(blake3::derive_key(PURPOSE, text.as_bytes()))
    }

    /// Proof that an end knows the key, for one session only.
    pub fn proof(&self, end: End, client: Digest, server: Digest) -> Digest {
        let role = match end {
            End::Client => b"client",
            End::Server => b"server",
        };
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        hasher.update(role);
        hasher.update(client.0.as_bytes());
        hasher.update(server.0.as_bytes());
        Digest(hasher.finalize())
    }
}

/// Random bytes.
///
/// # Errors
/// The system's.
pub fn random() -> io::Result<Digest> {
    let mut bytes = [0; blake3::OUT_LEN];
    getrandom::fill(&mut bytes).map_err(io::Error::from)?;
    Ok(Digest(blake3::Hash::from_bytes(bytes)))
}

/// The key of the command line; otherwise that of this user's file.
pub fn given(text: Option<&str>) -> Result<Key> {
    if let Some(text) = text {
        return checked(text);
    }
    let path = file()?;
    checked(read(&path)?.trim())
}

/// The text of a file, which must belong to this user or root and be closed to all others.
fn read(path: &Path) -> Result<String> {
    let shown = path.display();
    let absent = || format!("there is no key in {shown}; give the server's with --key");
    let file = File::open(path).with_context(absent)?;
    // The metadata is that of the opened file: its name may lead to another file by now.
    let metadata = file.metadata().with_context(absent)?;
    let (mode, uid) = (metadata.mode() & 0o777, metadata.uid());
    let is_ours = uid == nix::unistd::geteuid().as_raw() || uid == 0;
    if mode & 0o077 != 0 || !is_ours {
        bail!("the key {shown} is not only yours (mode {mode:03o}, uid {uid}); `chmod 600` it");
    }
    io::read_to_string(file.take(LONGEST_FILE)).with_context(absent)
}

/// As [`given`], but the file is made if absent. Returns its path, too.
pub fn given_or_made(text: Option<&str>) -> Result<(Key, Option<PathBuf>)> {
    if text.is_some() {
        return Ok((given(text)?, None));
    }
    let path = file()?;
    if !path.exists() {
        make(&path).with_context(|| {
            format!(
                "cannot write a key to {}; give one with --key",
                path.display()
            )
        })?;
    }
    Ok((given(None)?, Some(path)))
}

fn checked(text: &str) -> Result<Key> {
    if text.chars().count() < SHORTEST {
        bail!("the key has fewer than {SHORTEST} characters; choose a longer one for both ends");
    }
    Ok(Key::of(text))
}

/// The file of this user's key.
fn file() -> Result<PathBuf> {
    let directory = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    let state = if nix::unistd::geteuid().is_root() {
        Some("/var/lib".into())
    } else {
        let home = || Some(PathBuf::from(directory("HOME")?).join(".local/state"));
        directory("XDG_STATE_HOME").map(PathBuf::from).or_else(home)
    };
    let state = state.ok_or_else(|| anyhow!("HOME is not set; give the key with --key"))?;
    Ok(state.join("toroid/noise.key"))
}

/// Makes a file with a new key. A key that another process makes meanwhile stays.
fn make(path: &Path) -> io::Result<()> {
    let directory = path.parent().unwrap_or(Path::new("/"));
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(directory)?;
    // A number of the process may be that of a killed one, in a container.
    let whole = path.with_extension(String::from(random()?));
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&whole)?;
    let made = writeln!(file, "{}", String::from(random()?)).and_then(|()| {
        match fs::hard_link(&whole, path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            linked => linked,
        }
    });
    fs::remove_file(&whole)?;
    made
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_proof_holds_for_one_key_end_and_session() {
        let nonces = [b"a", b"b"].map(|bytes| Digest(blake3::hash(bytes)));
        let [client, server] = nonces;
        let key = Key::of("a key of two hosts");
        let proof = key.proof(End::Client, client, server);
        assert_eq!(
            proof,
            Key::of("a key of two hosts").proof(End::Client, client, server)
        );
        assert_ne!(proof, key.proof(End::Server, client, server));
        assert_ne!(proof, key.proof(End::Client, server, client));
        assert_ne!(proof, Key::of("another").proof(End::Client, client, server));
    }

    #[test]
    fn a_key_is_made_once_and_kept() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("toroid/noise.key");
        make(&path).unwrap();
        let text = fs::read_to_string(&path).unwrap();
        assert!(checked(text.trim()).is_ok());
        make(&path).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), text);
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
        assert!(checked("too short").is_err());
        assert_eq!(read(&path).unwrap(), text);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        let error = read(&path).unwrap_err().to_string();
        assert!(error.contains("chmod 600"), "{error}");
    }
}
