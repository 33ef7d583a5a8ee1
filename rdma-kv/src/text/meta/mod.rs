//! Meta commands: one letter each, with flags.
//!
//! Flags are parsed twice. First all of them are checked. Then they take effect and are answered in
//! the order in which the client gave them.

mod arithmetic;
mod flags;
mod get;
mod update;

use toroid_fabric::OpError;

use self::flags::{Flags, Key};
use super::input::Tokens;
use super::{BAD_FORMAT, Done, ERROR, Turn, append_number};
use crate::protocol::layout::{MAX_KEY, Marks};
use crate::store::{Item, Store};
use crate::text::counts::Count;

const OPAQUE_TOO_LONG: &[u8] = b"CLIENT_ERROR opaque token too long\r\n";
const INVALID_FLAG: &[u8] = b"CLIENT_ERROR invalid or duplicate flag\r\n";

/// Longest opaque token, with its letter.
const LONGEST_OPAQUE: usize = 32;

/// Most words of a command, with its name.
const MOST_WORDS: usize = 19;

impl Turn<'_> {
    pub(super) fn meta(&mut self, kind: u8, mut tokens: Tokens<'_>) -> Result<Done, OpError> {
        if kind == b'n' {
            return Ok(self.say(b"MN\r\n"));
        }
        let Some(key) = tokens.next() else {
            return Ok(self.say(match kind {
                b'e' => BAD_FORMAT,
                _ => ERROR,
            }));
        };
        if !b"gsdae".contains(&kind) {
            return Ok(self.say(ERROR));
        }
        if key.len() > MAX_KEY {
            return Ok(self.say(BAD_FORMAT));
        }
        self.count(Count::MetaCommands);
        let too_many = tokens.clone().nth(MOST_WORDS - 2).is_some();
        match kind {
            b'g' if too_many => Ok(self.say(b"CLIENT_ERROR options flags are too long\r\n")),
            b'g' => self.meta_get(key, tokens),
            b's' => self.meta_set(key, tokens, too_many),
            b'd' | b'a' if too_many => Ok(self.say(b"CLIENT_ERROR options flags too long\r\n")),
            b'd' => self.meta_delete(key, tokens),
            b'a' => self.meta_arithmetic(key, tokens),
            _ => self.meta_debug(key, tokens),
        }
    }

    /// Replies a code and the flags that are echoed.
    fn tell_all(&mut self, code: &[u8], flags: &Flags, key: &Key<'_>, tokens: Tokens<'_>) -> Done {
        let start = self.replies.len();
        self.replies.extend_from_slice(code);
        for token in tokens {
            if !echo(self.replies, token, key.bytes(), flags.binary) {
                self.replies.truncate(start);
                return self.say(OPAQUE_TOO_LONG);
            }
        }
        self.say(b"\r\n")
    }

    /// `me`: attributes of an item, for people.
    fn meta_debug(&mut self, key: &[u8], mut tokens: Tokens<'_>) -> Result<Done, OpError> {
        let is_base64 = tokens.next() == Some(b"b");
        let Some(key) = Key::of(key, is_base64) else {
            return Ok(self.say(BAD_FORMAT));
        };
        let found = self
            .store
            .with(|store| Ok((store.find(key.bytes())?, store.now())))?;
        let (Some(Item { header, .. }), now) = found else {
            return Ok(self.say(b"EN\r\n"));
        };
        self.replies.extend_from_slice(b"ME ");
        let binary = header.marks.contains(Marks::BINARY_KEY);
        append_key(self.replies, key.bytes(), binary);
        let expires = match header.exptime {
            0 => -1,
            exptime => i64::from(now) - i64::from(exptime),
        };
        let text = format!(
            " exp={expires} la={} cas={} fetch={} cls=1 size={}\r\n",
            now.saturating_sub(header.accessed),
            header.cas,
            if header.marks.contains(Marks::FETCHED) {
                "yes"
            } else {
                "no"
            },
            super::dump::item_size(&header),
        );
        Ok(self.say(text.as_bytes()))
    }
}

/// Appends a key as its client wrote it, without the `b`.
fn append_key(replies: &mut Vec<u8>, key: &[u8], binary: bool) {
    if binary {
        super::base64::encode(key, replies)
    } else {
        replies.extend_from_slice(key)
    }
}

/// Appends ` kKEY`, or ` kKEY b`.
fn echo_key(replies: &mut Vec<u8>, key: &[u8], binary: bool) {
    replies.extend_from_slice(b" k");
    append_key(replies, key, binary);
    if binary {
        replies.extend_from_slice(b" b");
    }
}

fn is_long_opaque(flag: &[u8]) -> bool {
    flag.starts_with(b"O") && flag.len() > LONGEST_OPAQUE
}

/// Appends a flag that every command echoes; false if it is too long.
pub(crate) fn echo(replies: &mut Vec<u8>, flag: &[u8], key: &[u8], binary: bool) -> bool {
    match flag.first() {
        _ if is_long_opaque(flag) => return false,
        Some(b'O') => {
            replies.push(b' ');
            replies.extend_from_slice(flag);
        }
        Some(b'k') => echo_key(replies, key, binary),
        _ => {}
    }
    true
}

/// Appends the seconds to live.
fn append_ttl(replies: &mut Vec<u8>, exptime: u32, now: u32) {
    match exptime {
        0 => replies.extend_from_slice(b" t-1"),
        _ => append_flag(replies, b't', exptime.wrapping_sub(now).into()),
    }
}

/// Appends a blank, a letter and a number.
pub(crate) fn append_flag(replies: &mut Vec<u8>, letter: u8, number: u64) {
    let start = replies.len();
    append_number(replies, number);
    replies.insert(start + 1, letter);
}

fn deadline(store: &Store, exptime: Option<i32>) -> u32 {
    exptime.map_or(0, |exptime| store.deadline(exptime.into()))
}

/// Parses the flags of a command whose errors have one message.
fn flags_of<'a>(key: &'a [u8], tokens: &Tokens<'a>) -> Result<(Flags, Key<'a>), &'static [u8]> {
    Flags::parse(key, tokens.clone()).map_err(|_| INVALID_FLAG)
}
