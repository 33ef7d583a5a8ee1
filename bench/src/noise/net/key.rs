//! The key that both ends share, and its proof.

use std::fs::DirBuilder;
use std::io::{self, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use clap::Args;
use tempfile::NamedTempFile;
use toroid_agent::read_private;

use super::wire::Digest;

/// Fewest characters of a key.
const SHORTEST: usize = 16;

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

// Not a doc comment, which would replace the texts of the commands.
#[derive(Args)]
pub(crate) struct Shared {
    /// Secret that both ends share [default: the contents of noise.key in the directory of domains,
    /// which `serve` makes if absent].
    #[arg(
        long,
        value_name = "KEY",
        env = "TOROID_NOISE_KEY",
        hide_env_values = true
    )]
    key: Option<String>,
}

impl Shared {
    /// The key of the command line; otherwise that of this user's file.
    pub(crate) fn given(&self) -> Result<Key> {
        match &self.key {
            Some(text) => checked(text),
            None => read(&file()?),
        }
    }

    /// As [`Shared::given`], but the file is made if absent. Returns its path, too.
    pub(crate) fn given_or_made(&self) -> Result<(Key, Option<PathBuf>)> {
        if self.key.is_some() {
            return Ok((self.given()?, None));
        }
        let path = file()?;
        if !path.exists() {
            let shown = path.display();
            make(&path)
                .with_context(|| format!("cannot write a key to {shown}; give one with --key"))?;
        }
        Ok((read(&path)?, Some(path)))
    }
}

/// The key of a file.
fn read(path: &Path) -> Result<Key> {
    let text = read_private(path).context("give the key of the server with --key")?;
    checked(text.trim())
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
    let mut whole = NamedTempFile::new_in(directory)?;
    writeln!(whole, "{}", String::from(random()?))?;
    match whole.persist_noclobber(path) {
        Err(failed) if failed.error.kind() != io::ErrorKind::AlreadyExists => Err(failed.error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
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
        let (key, same) = (read(&path).unwrap(), Key::of(text.trim()));
        let proof = |key: &Key| {
            let nonce = Digest(blake3::hash(b"a"));
            key.proof(End::Client, nonce, nonce)
        };
        assert_eq!(proof(&key), proof(&same));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        let error = format!("{:#}", read(&path).map(|_| ()).unwrap_err());
        assert!(error.contains("chmod 600"), "{error}");
    }
}
