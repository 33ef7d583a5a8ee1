//! `get`, `gets` and `mg`, answered by one-sided reads.

use super::{Upstream, UpstreamError};
use crate::client::reader::{ItemRef, Lookup};
use crate::protocol::layout::Marks;
use crate::protocol::messages::Awaiting;
use crate::text::input::Tokens;
use crate::text::{REPLIES, append_flag, append_number, echo};

/// Most keys per lookup.
const KEYS: usize = 16;

/// Bound of a reply with one value: no server takes larger items.
const LONGEST: usize = (1 << 30) + 1024;

const END: &[u8] = b"END\r\n";

/// State of a `get` or `gets` between its batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Getting {
    /// Whether the reply has the cas.
    cas: bool,
    /// Keys per lookup: about as many as there is room for their values.
    most: usize,
}

impl Getting {
    pub(super) fn new(cas: bool) -> Self {
        Getting { cas, most: KEYS }
    }
}

/// Reason for which a get is not continued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unable {
    /// The server cannot be reached.
    Upstream(UpstreamError),
    /// The server has replied, and ended the session.
    Over,
}

impl From<UpstreamError> for Unable {
    fn from(error: UpstreamError) -> Self {
        Unable::Upstream(error)
    }
}

/// Answers keys of a `get` in order, until a batch is full; returns the remaining keys.
pub(super) fn get<'a>(
    upstream: &mut impl Upstream,
    mut keys: Tokens<'a>,
    getting: &mut Getting,
    replies: &mut Vec<u8>,
) -> Result<Tokens<'a>, Unable> {
    let cas = getting.cas;
    while replies.len() < REPLIES && !keys.is_empty() {
        let mut chunk = [&b""[..]; KEYS];
        let count = chunk.iter_mut().zip(keys.clone().take(getting.most));
        let count = count.map(|(place, key)| *place = key).count();
        let mut answers = Answers::to(&chunk[..count], cas, replies);
        upstream.look(&chunk[..count], &mut |n, lookup| answers.note(n, lookup))?;
        let (mut answered, missing) = answers.finish();
        match missing {
            Some(Seen::Retry) => {
                ask(upstream, chunk[answered], cas, replies)?;
                answered += 1;
            }
            // The next value had no room: the first one always has.
            Some(_) => getting.most = answered.max(1),
            None if replies.len() < REPLIES => getting.most = KEYS.min(2 * getting.most),
            None => {}
        }
        if let Some(last) = answered.checked_sub(1) {
            keys.nth(last);
        }
    }
    if keys.is_empty() {
        replies.extend_from_slice(END);
    }
    Ok(keys)
}

/// Forwards one key that changes too often to be read.
fn ask(
    upstream: &mut impl Upstream,
    key: &[u8],
    cas: bool,
    replies: &mut Vec<u8>,
) -> Result<(), Unable> {
    let start = replies.len();
    let said = say_get(upstream, key, cas, replies);
    if said == Ok(Awaiting::End) {
        return Err(Unable::Over);
    }
    let end = replies.len().saturating_sub(END.len());
    if said == Ok(Awaiting::Command) && end >= start && replies[end..] == *END {
        replies.truncate(end);
        return Ok(());
    }
    // Bytes after a partial value would be taken for its rest.
    replies.truncate(start);
    Err(said.err().unwrap_or(UpstreamError::Gone).into())
}

fn say_get(
    upstream: &mut impl Upstream,
    key: &[u8],
    cas: bool,
    replies: &mut Vec<u8>,
) -> Result<Awaiting, UpstreamError> {
    let command = if cas { &b"gets "[..] } else { b"get " };
    let start = replies.len();
    let mut then = upstream.say(false, &[command, key, b"\r\n"].concat(), replies)?;
    // A server that never ends its reply is cut off.
    while then == Awaiting::More && replies.len() - start < LONGEST {
        let before = replies.len();
        then = upstream.say(true, b"", replies)?;
        if replies.len() == before {
            break;
        }
    }
    Ok(then)
}

/// State of a key.
#[derive(Clone, Copy, Debug)]
enum Seen {
    /// No result yet.
    Not,
    Absent,
    /// Its reply, as a range of those that are kept.
    Kept {
        start: usize,
        end: usize,
    },
    Retry,
}

/// Puts replies, which come in any order, into the order of the keys.
struct Answers<'a> {
    keys: &'a [&'a [u8]],
    cas: bool,
    replies: &'a mut Vec<u8>,
    seen: [Seen; KEYS],
    /// Keys that are answered so far.
    next: usize,
    /// Replies that came before their turn.
    kept: Vec<u8>,
}

impl<'a> Answers<'a> {
    fn to(keys: &'a [&'a [u8]], cas: bool, replies: &'a mut Vec<u8>) -> Self {
        Answers {
            keys,
            cas,
            replies,
            seen: [Seen::Not; KEYS],
            next: 0,
            kept: Vec::new(),
        }
    }

    fn note(&mut self, number: usize, lookup: Lookup<ItemRef<'_>>) {
        // Looked up again after a reconnection.
        if number < self.next {
            return;
        }
        match lookup {
            Lookup::Found(item) if number == self.next && self.replies.len() < REPLIES => {
                append_value(self.replies, self.keys[number], &item, self.cas);
                self.next += 1;
            }
            Lookup::Found(item) if number != self.next && self.kept.len() < REPLIES => {
                let start = self.kept.len();
                append_value(&mut self.kept, self.keys[number], &item, self.cas);
                let end = self.kept.len();
                self.seen[number] = Seen::Kept { start, end };
            }
            Lookup::Found(_) => self.seen[number] = Seen::Not,
            Lookup::Absent => self.seen[number] = Seen::Absent,
            Lookup::Retry => self.seen[number] = Seen::Retry,
        }
        while self.next < self.keys.len() {
            match self.seen[self.next] {
                Seen::Absent => {}
                Seen::Kept { start, end } => self.replies.extend_from_slice(&self.kept[start..end]),
                Seen::Not | Seen::Retry => break,
            }
            self.next += 1;
        }
    }

    /// Number of answered keys, and the state of the next one.
    fn finish(self) -> (usize, Option<Seen>) {
        let next = self.seen[..self.keys.len()].get(self.next);
        (self.next, next.copied())
    }
}

fn append_value(replies: &mut Vec<u8>, key: &[u8], item: &ItemRef<'_>, cas: bool) {
    replies.reserve(key.len() + item.data.len() + 60);
    replies.extend_from_slice(b"VALUE ");
    replies.extend_from_slice(key);
    append_number(replies, item.header.flags.into());
    append_number(replies, item.data.len() as u64);
    if cas {
        append_number(replies, item.header.cas);
    }
    replies.extend_from_slice(b"\r\n");
    replies.extend_from_slice(item.data);
    replies.extend_from_slice(b"\r\n");
}

/// Answers a plain `mg`; returns whether it could. It cannot for an item that a client is to store
/// anew: the server knows which client.
pub(super) fn meta_get(
    upstream: &mut impl Upstream,
    key: &[u8],
    flags: Tokens<'_>,
    replies: &mut Vec<u8>,
) -> Result<bool, UpstreamError> {
    let start = replies.len();
    let mut answered = false;
    upstream.look(&[key], &mut |_, lookup| {
        replies.truncate(start);
        answered = match lookup {
            Lookup::Found(item) => append_item(replies, key, flags.clone(), &item),
            Lookup::Absent => {
                append_miss(replies, key, flags.clone());
                true
            }
            Lookup::Retry => false,
        };
    })?;
    Ok(answered)
}

fn append_item(replies: &mut Vec<u8>, key: &[u8], flags: Tokens<'_>, item: &ItemRef<'_>) -> bool {
    let marks = item.header.marks;
    if marks.intersects(Marks::STALE | Marks::WON | Marks::BINARY_KEY) {
        return false;
    }
    let len = item.data.len() as u64;
    let wants_value = flags.clone().any(|flag| flag == b"v");
    if wants_value {
        replies.extend_from_slice(b"VA");
        append_number(replies, len);
    } else {
        replies.extend_from_slice(b"HD")
    }
    for flag in flags {
        match flag {
            b"s" => append_flag(replies, b's', len),
            b"f" => append_flag(replies, b'f', item.header.flags.into()),
            _ => {
                echo(replies, flag, key, false);
            }
        }
    }
    replies.extend_from_slice(b"\r\n");
    if wants_value {
        replies.extend_from_slice(item.data);
        replies.extend_from_slice(b"\r\n");
    }
    true
}

fn append_miss(replies: &mut Vec<u8>, key: &[u8], flags: Tokens<'_>) {
    if flags.clone().any(|flag| flag == b"q") {
        return;
    }
    replies.extend_from_slice(b"EN");
    for flag in flags {
        echo(replies, flag, key, false);
    }
    replies.extend_from_slice(b"\r\n");
}
