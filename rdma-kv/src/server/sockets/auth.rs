//! Memcached's ascii authentication (`-Y`).
//!
//! A connection is authenticated by `set <any> <any> <any> <len>\r\n<user> <password>\r\n` with an entry
//! of the file. Until then every command is refused. Follows memcached's `authfile.c` and
//! `try_read_command_asciiauth`.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

/// Largest file of users in bytes.
const FILE_LIMIT: u64 = 1 << 20;

/// Longest line, and longest token after it, in bytes.
const LINE_LIMIT: usize = 2048;

/// Failure to load a file of users.
#[derive(Debug, thiserror::Error)]
pub enum UsersError {
    /// The file cannot be read.
    #[error("Could not open authfile [{}] for reading, error {error}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Error of the system.
        error: io::Error,
    },
    /// A line has no colon.
    #[error("Authfile [{}] has a malformed entry. Should be 'user:password'", .0.display())]
    Malformed(PathBuf),
}

/// Names and passwords, from a file with one line `user:password` each. Clones share them.
#[derive(Clone)]
pub struct Users {
    path: Arc<Path>,
    /// Entries of the form `user password`.
    known: Arc<RwLock<Vec<Vec<u8>>>>,
}

impl Users {
    /// Reads a file of users.
    ///
    /// # Errors
    /// [`UsersError`].
    pub fn load(path: &Path) -> Result<Self, UsersError> {
        Ok(Users {
            known: Arc::new(RwLock::new(read(path)?)),
            path: path.into(),
        })
    }

    /// Reads the file again. Authenticated connections stay authenticated.
    ///
    /// # Errors
    /// [`UsersError`]; the users then stay unchanged.
    pub fn reload(&self) -> Result<(), UsersError> {
        let known = read(&self.path)?;
        *self.known.write().unwrap_or_else(PoisonError::into_inner) = known;
        Ok(())
    }

    /// Whether an entry matches, in the same time for all wrong passwords of one length.
    fn know(&self, user: &[u8], password: &[u8]) -> bool {
        let given = [user, b" ", password].concat();
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        let same = |entry: &Vec<u8>| {
            let differing = entry
                .iter()
                .zip(&given)
                .fold(0, |bits, (a, b)| bits | (a ^ b));
            entry.len() == given.len() && std::hint::black_box(differing) == 0
        };
        known.iter().fold(false, |found, entry| found | same(entry))
    }
}

/// Shows no passwords.
impl fmt::Debug for Users {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Users").field(&self.path).finish()
    }
}

fn read(path: &Path) -> Result<Vec<Vec<u8>>, UsersError> {
    let mut text = Vec::new();
    File::open(path)
        .and_then(|file| file.take(FILE_LIMIT).read_to_end(&mut text))
        .map_err(|error| UsersError::Read {
            path: path.to_owned(),
            error,
        })?;
    let text = text.strip_suffix(b"\n").unwrap_or(&text);
    if text.is_empty() {
        return Ok(Vec::new());
    }
    let entry = |line: &[u8]| {
        let end = line.iter().position(|byte| b"\r\0".contains(byte));
        let line = &line[..end.unwrap_or(line.len())];
        let colon = line.iter().position(|&byte| byte == b':')?;
        Some([&line[..colon], b" ", &line[colon + 1..]].concat())
    };
    let entries = text.split(|&byte| byte == b'\n').map(entry);
    let malformed = || UsersError::Malformed(path.to_owned());
    entries.collect::<Option<_>>().ok_or_else(malformed)
}

/// State of a connection that is not authenticated.
#[derive(Debug)]
pub(super) struct AuthHandshake {
    users: Users,
    received: Vec<u8>,
    /// Bytes that must follow a valid `set` line.
    wanted: Option<usize>,
    /// Wrong passwords that are not counted yet.
    pub(super) refusals: u32,
}

/// Next step of a connection that is not authenticated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum AuthStep {
    /// Read more from the client.
    NeedMore,
    /// Close the connection.
    Close,
    /// The client is authenticated. These bytes follow the handshake.
    Accepted(Vec<u8>),
}

impl AuthHandshake {
    pub(super) fn new(users: Users) -> Self {
        AuthHandshake {
            users,
            received: Vec::new(),
            wanted: None,
            refusals: 0,
        }
    }

    /// Takes received bytes, and appends the replies.
    pub(super) fn receive(&mut self, bytes: &[u8], replies: &mut Vec<u8>) -> AuthStep {
        self.received.extend_from_slice(bytes);
        let mut at = 0;
        let step = loop {
            let rest = &self.received[at..];
            let Some(wanted) = self.wanted else {
                let Some(end) = rest.iter().position(|&byte| byte == b'\n') else {
                    break if rest.len() > LINE_LIMIT {
                        AuthStep::Close
                    } else {
                        AuthStep::NeedMore
                    };
                };
                self.wanted = announced(&rest[..end]);
                at += end + 1;
                match self.wanted {
                    None => replies.extend_from_slice(b"CLIENT_ERROR unauthenticated\r\n"),
                    Some(wanted) if wanted > LINE_LIMIT => break AuthStep::Close,
                    Some(_) => {}
                }
                continue;
            };
            let Some(token) = rest.get(..wanted) else {
                break AuthStep::NeedMore;
            };
            let verdict = self.judge(token);
            replies.extend_from_slice(verdict.as_bytes());
            at += wanted;
            self.wanted = None;
            self.refusals += u32::from(verdict == REFUSED);
            if verdict == STORED {
                break AuthStep::Accepted(self.received.split_off(at));
            }
        };
        self.received.drain(..at.min(self.received.len()));
        step
    }

    fn judge(&self, token: &[u8]) -> &'static str {
        let Some(token) = token.strip_suffix(b"\r\n") else {
            return "CLIENT_ERROR bad command line termination\r\n";
        };
        let mut words = words(token);
        match (words.next(), words.next()) {
            (Some(user), Some(password)) if self.users.know(user, password) => STORED,
            (Some(_), Some(_)) => REFUSED,
            _ => "CLIENT_ERROR bad authentication token format\r\n",
        }
    }
}

const STORED: &str = "STORED\r\n";
const REFUSED: &str = "CLIENT_ERROR authentication failure\r\n";

/// Bytes that must follow this line, if it is a `set`.
fn announced(line: &[u8]) -> Option<usize> {
    let mut words = words(line);
    if words.next() != Some(b"set") {
        return None;
    }
    let len = words.nth(3)?.trim_ascii();
    let len: usize = std::str::from_utf8(len).ok()?.parse().ok()?;
    len.checked_add(2)
}

/// Words between blanks, up to the first NUL.
fn words(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    let line = line.split(|&byte| byte == 0).next().unwrap_or_default();
    line.split(|&byte| byte == b' ')
        .filter(|word| !word.is_empty())
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A file with this text, while `test` runs.
    fn with_file<T>(text: &[u8], test: impl FnOnce(&Path) -> T) -> T {
        let name = format!("toroid-kv-users-{:?}", std::thread::current().id());
        let path = std::env::temp_dir().join(format!("{name}-{}", std::process::id()));
        std::fs::write(&path, text).unwrap();
        let result = test(&path);
        std::fs::remove_file(path).unwrap();
        result
    }

    /// A handshake with these users.
    pub(in crate::server::sockets) fn handshake(text: &[u8]) -> AuthHandshake {
        AuthHandshake::new(with_file(text, |path| Users::load(path).unwrap()))
    }

    /// Replies to `input`, given in pieces of `piece` bytes, and the last step.
    fn feed(handshake: &mut AuthHandshake, input: &[u8], piece: usize) -> (String, AuthStep) {
        let mut replies = Vec::new();
        let mut last = AuthStep::NeedMore;
        let mut rest = input;
        while !rest.is_empty() && last == AuthStep::NeedMore {
            let (piece, after) = rest.split_at(piece.min(rest.len()));
            last = handshake.receive(piece, &mut replies);
            rest = after;
        }
        if let AuthStep::Accepted(left) = &mut last {
            left.extend_from_slice(rest);
        }
        (String::from_utf8(replies).unwrap(), last)
    }

    /// The replies are those of memcached 1.6.18 to the same bytes.
    #[test]
    fn authentication_requires_a_listed_password() {
        let cases: [(&[u8], &str, bool); 9] = [
            (b"set x 0 0 9\r\nfoo xyzzy\r\n", "STORED\r\n", true),
            (b"set x 0 0 14\r\nbar  open\0rest\r\n", "STORED\r\n", true),
            (
                b"set x 0 0 9\r\nfoo xyzzz\r\n",
                "CLIENT_ERROR authentication failure\r\n",
                false,
            ),
            (
                b"set x 0 0 3\r\nfoo\r\n",
                "CLIENT_ERROR bad authentication token format\r\n",
                false,
            ),
            (
                b"set x 0 0 9\r\nfoo xyzzy!!",
                "CLIENT_ERROR bad command line termination\r\n",
                false,
            ),
            (b"get x\r\n", "CLIENT_ERROR unauthenticated\r\n", false),
            (b"set x 0 0\r\n", "CLIENT_ERROR unauthenticated\r\n", false),
            (
                b"set x 0 0 -1\r\n",
                "CLIENT_ERROR unauthenticated\r\n",
                false,
            ),
            (b"\r\n", "CLIENT_ERROR unauthenticated\r\n", false),
        ];
        for (input, reply, enters) in cases {
            for piece in [1, 7, 100] {
                let mut handshake = handshake(b"foo:xyzzy\nbar:open\r\n");
                let (said, step) = feed(&mut handshake, input, piece);
                assert_eq!(said, reply, "{input:?}");
                let expected = if enters {
                    AuthStep::Accepted(Vec::new())
                } else {
                    AuthStep::NeedMore
                };
                assert_eq!(step, expected, "{input:?}");
            }
        }
    }

    #[test]
    fn bytes_after_the_handshake_reach_the_conversation() {
        let input = b"version\r\nset x 0 0 9\r\nfoo wrong\r\nset x 0 0 9\r\nfoo xyzzy\r\nget a\r\n";
        for piece in [1, 20, 100] {
            let (said, step) = feed(&mut handshake(b"foo:xyzzy"), input, piece);
            let expected = "CLIENT_ERROR unauthenticated\r\n\
                            CLIENT_ERROR authentication failure\r\nSTORED\r\n";
            assert_eq!(said, expected);
            assert_eq!(step, AuthStep::Accepted(b"get a\r\n".to_vec()));
        }
    }

    #[test]
    fn unauthenticated_clients_keep_no_memory() {
        let long = vec![b'x'; LINE_LIMIT + 1];
        assert_eq!(feed(&mut handshake(b""), &long, 100).1, AuthStep::Close);
        for len in ["2047", "4294967295", "18446744073709551615"] {
            let set = format!("set x 0 0 {len}\r\n");
            let (said, step) = feed(&mut handshake(b"a:b"), set.as_bytes(), 100);
            if said.is_empty() {
                assert_eq!(step, AuthStep::Close)
            } else {
                assert_eq!(said, "CLIENT_ERROR unauthenticated\r\n")
            }
        }
    }

    #[test]
    fn user_files_are_validated_and_reloaded() {
        for bad in [&b"foo"[..], b"foo:x\n\n", b"foo:x\nbar\n", b"\n\n"] {
            let loaded = with_file(bad, |path| Users::load(path).map(|_| ()));
            assert!(matches!(loaded, Err(UsersError::Malformed(_))), "{bad:?}");
        }
        with_file(b"a:1", |path| {
            let users = Users::load(path).unwrap();
            let same = users.clone();
            std::fs::write(path, b"a:2\n").unwrap();
            users.reload().unwrap();
            assert!(same.know(b"a", b"2") && !same.know(b"a", b"1"));
            std::fs::write(path, b"nonsense").unwrap();
            assert!(users.reload().is_err());
            assert!(same.know(b"a", b"2"));
        });
        let missing = Users::load(Path::new("/nowhere/users"));
        assert!(matches!(missing, Err(UsersError::Read { .. })));
        assert!(!handshake(b"").users.know(b"", b""));
    }
}
