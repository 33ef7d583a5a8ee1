//! The memcached text protocol, without I/O: bytes in, commands out, replies appended.
//!
//! Follows memcached 1.6 to the byte, oddities included: lines end with `\n`, a `\r` before it
//! is dropped unless it is all there is; a NUL ends what is looked at; numbers are read as by
//! `strtol`. See `doc/protocol.txt` and `proto_text.c` there.

use crate::layout::{ItemHeader, MAX_KEY};
use crate::shared::Shared;
use crate::store::{Limits, SetError};
use fabric::{OpError, Region};

/// Longer lines must be those of a large multi-get. Memcached closes after 2048 bytes without an
/// end, but takes what its buffer of this size got in one go; here both are alike.
const LINE_LIMIT: usize = 16 * 1024;

/// The longest multi-get line in bytes; memcached has no limit but memory.
const GET_LINE_LIMIT: usize = 1 << 20;

/// A connection's buffer is at least this large, and shrinks back to it.
const BUFFER: usize = 16 * 1024;

/// Replies are handed on when there are this many bytes of them.
const REPLIES: usize = 256 * 1024;

const VERSION: &[u8] =
    concat!("VERSION 1.6.18-toroid-", env!("CARGO_PKG_VERSION"), "\r\n").as_bytes();
const DELETED: &[u8] = b"DELETED\r\n";
const NOT_FOUND: &[u8] = b"NOT_FOUND\r\n";
const ERROR: &[u8] = b"ERROR\r\n";
const BAD_FORMAT: &[u8] = b"CLIENT_ERROR bad command line format\r\n";
const BAD_CHUNK: &[u8] = b"CLIENT_ERROR bad data chunk\r\n";
const DELETE_USAGE: &[u8] =
    b"CLIENT_ERROR bad command line format.  Usage: delete <key> [noreply]\r\n";
const TOO_LARGE: &[u8] = b"SERVER_ERROR object too large for cache\r\n";
const NOT_FETCHED: &[u8] = b"SERVER_ERROR the value could not be read\r\n";
const OUT_OF_MEMORY: &[u8] = b"SERVER_ERROR out of memory storing object\r\n";

/// What a connection should do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Send the replies, then read more.
    Read,
    /// Send the replies, then call again: there is more to do.
    Continue,
    /// Send the replies, then close.
    Close,
}

/// One connection's side of the protocol.
#[derive(Debug)]
pub struct Conversation {
    input: Input,
    /// Bytes of a refused value, still to come, to be dropped.
    swallow: usize,
    /// Bytes that the command at hand needs before it is worth another look.
    need: usize,
    /// The line at hand is what is left of a get's, whose first keys are answered.
    getting: bool,
}

impl Default for Conversation {
    fn default() -> Self {
        Conversation {
            input: Input::new(),
            swallow: 0,
            need: 1,
            getting: false,
        }
    }
}

impl Conversation {
    /// Room for bytes from the client; at least one.
    pub fn room(&mut self) -> &mut [u8] {
        self.input.room(self.need)
    }

    /// So many bytes were put into the room.
    pub fn received(&mut self, count: usize) {
        self.input.end += count;
    }

    /// Carries out what has arrived completely, and appends the replies.
    ///
    /// # Errors
    /// None but the store's own mistakes.
    pub fn run(&mut self, store: &Shared, replies: &mut Vec<u8>) -> Result<Next, OpError> {
        while replies.len() < REPLIES {
            let dropped = self.swallow.min(self.input.bytes().len());
            self.swallow -= dropped;
            self.input.start += dropped;
            if self.input.bytes().len() < self.need || self.swallow > 0 {
                return Ok(Next::Read);
            }
            let bytes = self.input.bytes();
            let newline = bytes.iter().position(|&byte| byte == b'\n');
            if !self.getting && newline.unwrap_or(bytes.len()) > line_limit(bytes) {
                return Ok(Next::Close);
            }
            let Some(newline) = newline else {
                self.need = bytes.len() + 1;
                return Ok(Next::Read);
            };
            let line = line(&bytes[..newline]);
            let command = match self.getting {
                true => Command::Get(Tokens(line)),
                false => Command::parse(line, store.limits()),
            };
            let rest = &bytes[newline + 1..];
            match command.carry_out(rest, store, replies)? {
                Done::Used {
                    after_line,
                    swallow,
                } => {
                    self.input.start += newline + 1 + after_line;
                    self.swallow = swallow;
                    self.need = 1;
                    self.getting = false;
                }
                Done::Partly { left } => {
                    self.input.start += line.len() - left;
                    self.need = 1;
                    self.getting = true;
                }
                Done::Wants { after_line } => {
                    self.need = newline + 1 + after_line;
                    return Ok(Next::Read);
                }
                Done::Close => return Ok(Next::Close),
            }
        }
        Ok(Next::Continue)
    }
}

/// What became of a command.
enum Done {
    /// It used this many bytes after its line; so many to come are to be dropped.
    Used { after_line: usize, swallow: usize },
    /// It has replied as much as goes into one batch; the last `left` bytes of its line remain.
    Partly { left: usize },
    /// Nothing: it needs this many bytes after its line.
    Wants { after_line: usize },
    /// The connection ends.
    Close,
}

/// Bytes received and not yet used: `buffer[start..end]`.
#[derive(Debug)]
struct Input {
    buffer: Vec<u8>,
    start: usize,
    end: usize,
}

impl Input {
    fn new() -> Self {
        Input {
            buffer: vec![0; BUFFER],
            start: 0,
            end: 0,
        }
    }

    fn bytes(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }

    /// The free end, large enough that `need` bytes from the start fit.
    fn room(&mut self, need: usize) -> &mut [u8] {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
            if self.buffer.len() > BUFFER && need <= BUFFER {
                self.buffer = vec![0; BUFFER];
            }
        }
        let fits = self.start + need <= self.buffer.len() && self.end < self.buffer.len();
        if !fits {
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
            let len = need.max(self.end + 1);
            if self.buffer.len() < len {
                self.buffer.resize(len.next_multiple_of(BUFFER), 0);
            }
        }
        &mut self.buffer[self.end..]
    }
}

/// A command line that was understood.
#[derive(Debug)]
enum Command<'a> {
    Get(Tokens<'a>),
    Set(Set<'a>),
    /// A set over the size limit: its value is swallowed, and what the key had removed.
    TooLarge {
        key: &'a [u8],
        value_len: usize,
        noreply: bool,
    },
    Delete {
        key: &'a [u8],
        noreply: bool,
    },
    Version,
    Quit,
    /// A reply, and whether the client said that it wants none.
    Refused(&'static [u8], bool),
}

#[derive(Debug)]
struct Set<'a> {
    key: &'a [u8],
    flags: u32,
    exptime: i64,
    value_len: usize,
    noreply: bool,
}

impl<'a> Command<'a> {
    fn parse(line: &'a [u8], limits: Limits) -> Self {
        let mut arguments = Tokens(line);
        let command = arguments.next().unwrap_or_default();
        match command {
            b"get" if !arguments.is_empty() => {
                // One bad key spoils the whole command.
                match arguments.clone().all(|key| key.len() <= MAX_KEY) {
                    true => Command::Get(arguments),
                    false => Command::Refused(BAD_FORMAT, false),
                }
            }
            b"set" => Self::parse_set(arguments, limits),
            b"delete" => Self::parse_delete(arguments),
            b"version" => Command::Version,
            b"quit" => Command::Quit,
            _ => Command::Refused(ERROR, false),
        }
    }

    fn parse_set(mut tokens: Tokens<'a>, limits: Limits) -> Self {
        let [Some(key), Some(flags), Some(exptime), Some(len)] = [(); 4].map(|()| tokens.next())
        else {
            return Command::Refused(ERROR, false);
        };
        let noreply = tokens.next() == Some(b"noreply");
        if tokens.next().is_some() {
            return Command::Refused(ERROR, false);
        }
        let numbers = (number::flags(flags), number::int(exptime), number::int(len));
        let (Some(flags), Some(exptime), Some(len)) = numbers else {
            return Command::Refused(BAD_FORMAT, noreply);
        };
        match usize::try_from(len) {
            Ok(value_len) if key.len() <= MAX_KEY && len <= i32::MAX - 2 => {
                let set = Set {
                    key,
                    flags,
                    exptime: exptime.into(),
                    value_len,
                    noreply,
                };
                match limits.admit(key.len(), flags, value_len) {
                    true => Command::Set(set),
                    false => Command::TooLarge {
                        key,
                        value_len,
                        noreply,
                    },
                }
            }
            _ => Command::Refused(BAD_FORMAT, noreply),
        }
    }

    fn parse_delete(mut tokens: Tokens<'a>) -> Self {
        let Some(key) = tokens.next() else {
            return Command::Refused(ERROR, false);
        };
        let noreply = match [tokens.next(), tokens.next(), tokens.next()] {
            [None, _, _] | [Some(b"0"), None, _] => false,
            [Some(b"noreply"), None, _] | [Some(b"0"), Some(b"noreply"), None] => true,
            [_, _, Some(_)] => return Command::Refused(ERROR, false),
            [_, last, None] => {
                return Command::Refused(DELETE_USAGE, last == Some(b"noreply"));
            }
        };
        match key.len() <= MAX_KEY {
            true => Command::Delete { key, noreply },
            false => Command::Refused(BAD_FORMAT, noreply),
        }
    }
}

impl Command<'_> {
    fn carry_out(
        self,
        rest: &[u8],
        store: &Shared,
        replies: &mut Vec<u8>,
    ) -> Result<Done, OpError> {
        let (mut after_line, mut swallow) = (0, 0);
        match self {
            Command::Set(set) => {
                after_line = set.value_len + 2;
                let Some(chunk) = rest.get(..after_line) else {
                    return Ok(Done::Wants { after_line });
                };
                set.carry_out(chunk, store, replies)?;
            }
            Command::TooLarge {
                key,
                value_len,
                noreply,
            } => {
                store.delete(key)?;
                reply(replies, TOO_LARGE, noreply);
                swallow = value_len + 2;
            }
            Command::Get(mut keys) => {
                get(&mut keys, store, replies)?;
                if !keys.is_empty() {
                    return Ok(Done::Partly { left: keys.0.len() });
                }
                replies.extend_from_slice(b"END\r\n");
            }
            Command::Delete { key, noreply } => {
                let text = if store.delete(key)? {
                    DELETED
                } else {
                    NOT_FOUND
                };
                reply(replies, text, noreply);
            }
            Command::Version => replies.extend_from_slice(VERSION),
            Command::Refused(text, noreply) => reply(replies, text, noreply),
            Command::Quit => return Ok(Done::Close),
        }
        Ok(Done::Used {
            after_line,
            swallow,
        })
    }
}

impl Set<'_> {
    fn carry_out(
        &self,
        chunk: &[u8],
        store: &Shared,
        replies: &mut Vec<u8>,
    ) -> Result<(), OpError> {
        let Some(value) = chunk.strip_suffix(b"\r\n") else {
            reply(replies, BAD_CHUNK, self.noreply);
            return Ok(());
        };
        let text: &[u8] = match store.set(self.key, self.flags, self.exptime, value) {
            Ok(_) => b"STORED\r\n",
            Err(SetError::TooLarge) => TOO_LARGE,
            Err(SetError::OutOfMemory) => OUT_OF_MEMORY,
            Err(SetError::Key(_)) => BAD_FORMAT,
            Err(SetError::NotFetched) => NOT_FETCHED,
            Err(SetError::Memory(error)) => return Err(error),
        };
        reply(replies, text, self.noreply);
        Ok(())
    }
}

fn reply(replies: &mut Vec<u8>, text: &[u8], noreply: bool) {
    if !noreply {
        replies.extend_from_slice(text);
    }
}

/// Appends values until there are enough for a batch; `keys` keeps those still to be answered.
fn get(keys: &mut Tokens<'_>, store: &Shared, replies: &mut Vec<u8>) -> Result<(), OpError> {
    while replies.len() < REPLIES
        && let Some(key) = keys.next()
    {
        store.get(key, |item, items| {
            append_value(key, &item.header, items, item.value_offset(), replies)
        })?;
    }
    Ok(())
}

fn append_value(
    key: &[u8],
    header: &ItemHeader,
    items: &Region,
    offset: u64,
    replies: &mut Vec<u8>,
) -> Result<(), OpError> {
    let len = header.value_len as usize;
    replies.reserve(key.len() + len + 40);
    replies.extend_from_slice(b"VALUE ");
    replies.extend_from_slice(key);
    append_number(replies, header.flags);
    append_number(replies, header.value_len);
    replies.extend_from_slice(b"\r\n");
    let start = replies.len();
    replies.resize(start + len, 0);
    items.read(offset, &mut replies[start..])?;
    replies.extend_from_slice(b"\r\n");
    Ok(())
}

/// A blank and the number.
fn append_number(replies: &mut Vec<u8>, mut number: u32) {
    let mut digits = [b' '; 11];
    let mut first = digits.len();
    loop {
        first -= 1;
        digits[first] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            break;
        }
    }
    replies.extend_from_slice(&digits[first - 1..]);
}

/// How long the line may be that starts here.
fn line_limit(bytes: &[u8]) -> usize {
    let blanks = bytes.iter().take_while(|&&byte| byte == b' ').count();
    let command = &bytes[blanks..];
    let is_get = command.starts_with(b"get ") || command.starts_with(b"gets ");
    if is_get && blanks <= 100 {
        GET_LINE_LIMIT
    } else {
        LINE_LIMIT
    }
}

/// What counts of a line's bytes up to its `\n`.
fn line(bytes: &[u8]) -> &[u8] {
    let bytes = match bytes {
        [start @ .., b'\r'] if !start.is_empty() => start,
        bytes => bytes,
    };
    bytes.split(|&byte| byte == 0).next().unwrap_or_default()
}

/// What stands between blanks.
#[derive(Clone, Debug)]
struct Tokens<'a>(&'a [u8]);

impl Tokens<'_> {
    fn is_empty(&self) -> bool {
        self.clone().next().is_none()
    }
}

impl<'a> Iterator for Tokens<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let start = self.0.iter().position(|&byte| byte != b' ')?;
        let rest = &self.0[start..];
        let end = rest
            .iter()
            .position(|&byte| byte == b' ')
            .unwrap_or(rest.len());
        let (token, rest) = rest.split_at(end);
        self.0 = rest;
        Some(token)
    }
}

/// Numbers as the C library reads them.
mod number {
    /// As `strtol`, cut to 32 bits; a number must be there, and end with white space or the
    /// token.
    pub(super) fn int(token: &[u8]) -> Option<i32> {
        let (negative, magnitude) = parse(token)?;
        let wide = match negative {
            true => 0i64.checked_sub_unsigned(magnitude)?,
            false => i64::try_from(magnitude).ok()?,
        };
        Some(wide as i32)
    }

    /// As `strtoul`, cut to 32 bits. Negative numbers are refused, unless they wrap around to
    /// one that is positive as a signed number.
    pub(super) fn flags(token: &[u8]) -> Option<u32> {
        let (negative, magnitude) = parse(token)?;
        let wide = match negative {
            true => magnitude.wrapping_neg(),
            false => magnitude,
        };
        let refused = (wide as i64) < 0 && token.contains(&b'-');
        (!refused).then_some(wide as u32)
    }

    fn parse(token: &[u8]) -> Option<(bool, u64)> {
        let is_space = |byte: &u8| matches!(byte, b'\t'..=b'\r' | b' ');
        let start = token.iter().position(|byte| !is_space(byte))?;
        let (negative, digits) = match &token[start..] {
            [b'-', digits @ ..] => (true, digits),
            [b'+', digits @ ..] => (false, digits),
            digits => (false, digits),
        };
        let count = digits
            .iter()
            .take_while(|byte| byte.is_ascii_digit())
            .count();
        if count == 0 || digits.get(count).is_some_and(|byte| !is_space(byte)) {
            return None;
        }
        let mut value = 0u64;
        for digit in &digits[..count] {
            value = value
                .checked_mul(10)?
                .checked_add(u64::from(digit - b'0'))?;
        }
        Some((negative, value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;
    use proptest::prelude::*;

    /// What a fresh server answers to `input` when it comes in pieces of these sizes, in turn.
    fn converse(input: &[u8], pieces: &[usize]) -> (Vec<u8>, bool) {
        let store = testing::shared(Limits {
            memory: 2 << 20,
            item: 1 << 20,
        });
        let mut conversation = Conversation::default();
        let (mut replies, mut rest) = (Vec::new(), input);
        let mut pieces = pieces.iter().cycle();
        loop {
            let mut batch = Vec::new();
            let next = conversation.run(&store, &mut batch).unwrap();
            replies.extend(batch);
            match next {
                Next::Close => return (replies, true),
                Next::Read if rest.is_empty() => return (replies, false),
                Next::Read => {
                    let room = conversation.room();
                    let count = room.len().min(rest.len()).min(*pieces.next().unwrap());
                    assert!(count > 0);
                    room[..count].copy_from_slice(&rest[..count]);
                    conversation.received(count);
                    rest = &rest[count..];
                }
                Next::Continue => {}
            }
        }
    }

    fn answers(input: &[u8]) -> String {
        String::from_utf8_lossy(&converse(input, &[usize::MAX]).0).into_owned()
    }

    #[test]
    fn set_get_delete() {
        let input =
            b"set a 7 0 3\r\none\r\nget a\r\nget b a a b\r\ndelete a\r\ndelete a\r\nget a\r\n";
        let a = "VALUE a 7 3\r\none\r\n";
        let expected = format!("STORED\r\n{a}END\r\n{a}{a}END\r\nDELETED\r\nNOT_FOUND\r\nEND\r\n");
        assert_eq!(answers(input), expected);
    }

    #[test]
    fn noreply_is_silent() {
        let input =
            b"set a 0 0 1 noreply\r\n1\r\nset a 0 0 1 noreply\r\n123\r\ndelete a noreply\r\n\
                      get a\r\ndelete a 0 noreply\r\n";
        // The bad chunk ends after three bytes; what is left of it is a command.
        assert_eq!(answers(input), "ERROR\r\nEND\r\n");
    }

    #[test]
    fn errors_are_memcacheds() {
        let long = "k".repeat(251);
        let cases = [
            ("", ""),
            ("\r\n", "ERROR\r\n"),
            ("\n", "ERROR\r\n"),
            ("get\r\n", "ERROR\r\n"),
            ("get   \r\n", "ERROR\r\n"),
            ("GET a\r\n", "ERROR\r\n"),
            ("nonsense a b\r\n", "ERROR\r\n"),
            (
                &format!("get a {long}\r\n"),
                "CLIENT_ERROR bad command line format\r\n",
            ),
            (
                &format!("set {long} 0 0 1\r\n"),
                "CLIENT_ERROR bad command line format\r\n",
            ),
            (
                &format!("delete {long}\r\n"),
                "CLIENT_ERROR bad command line format\r\n",
            ),
            ("set a 0 0\r\n", "ERROR\r\n"),
            ("set a 0 0 1 noreply x\r\n", "ERROR\r\n"),
            (
                "set a x 0 1\r\n",
                "CLIENT_ERROR bad command line format\r\n",
            ),
            (
                "set a -1 0 1\r\n",
                "CLIENT_ERROR bad command line format\r\n",
            ),
            (
                "set a 0 0 -1\r\n",
                "CLIENT_ERROR bad command line format\r\n",
            ),
            (
                "set a 0 0 2147483646\r\n",
                "CLIENT_ERROR bad command line format\r\n",
            ),
            ("set a 0 0 1\r\n12\n", "CLIENT_ERROR bad data chunk\r\n"),
            (
                "set a 0 0 1x\r\n",
                "CLIENT_ERROR bad command line format\r\n",
            ),
            ("delete\r\n", "ERROR\r\n"),
            ("delete a b c d\r\n", "ERROR\r\n"),
            (
                "delete a 1\r\n",
                "CLIENT_ERROR bad command line format.  Usage: delete <key> [noreply]\r\n",
            ),
            ("delete a 0\r\n", "NOT_FOUND\r\n"),
            ("version\n", std::str::from_utf8(VERSION).unwrap()),
            ("get a\0b\r\n", "END\r\n"),
        ];
        for (input, expected) in cases {
            assert_eq!(answers(input.as_bytes()), expected, "{input:?}");
        }
    }

    #[test]
    fn a_value_over_the_limit_is_swallowed_and_the_old_one_removed() {
        let mut input = b"set a 0 0 1\r\n1\r\nset a 0 0 2000000\r\n".to_vec();
        input.resize(input.len() + 2_000_000, b'\n');
        input.extend_from_slice(b"\r\nget a\r\n");
        let expected = "STORED\r\nSERVER_ERROR object too large for cache\r\nEND\r\n";
        assert_eq!(answers(&input), expected);
    }

    #[test]
    fn large_values_come_back_and_the_buffer_shrinks() {
        let value = vec![b'v'; 1_000_000];
        let mut input = b"set a 0 0 1000000\r\n".to_vec();
        input.extend_from_slice(&value);
        input.extend_from_slice(b"\r\nget a\r\n");
        let (replies, _) = converse(&input, &[1460, 9000]);
        let expected = [
            b"STORED\r\nVALUE a 0 1000000\r\n",
            &value[..],
            b"\r\nEND\r\n",
        ]
        .concat();
        assert!(replies == expected);
    }

    /// A line of a megabyte that names a value of a megabyte again and again once made a reply
    /// of half a terabyte, in memory.
    #[test]
    fn replies_of_a_long_get_come_in_batches() {
        let store = testing::shared(Limits {
            memory: 2 << 20,
            item: 1 << 20,
        });
        for (value_len, gets) in [(500_000, 40), (10, 100_000)] {
            store.set(b"k", 0, 0, &vec![b'v'; value_len]).unwrap();
            let mut conversation = Conversation::default();
            let input = format!("get{}\r\nversion\r\n", " k".repeat(gets));
            let mut input = input.as_bytes();
            let (mut batch, mut len, mut batches) = (Vec::new(), 0, 0);
            loop {
                let next = conversation.run(&store, &mut batch).unwrap();
                assert!(batch.len() < REPLIES + value_len + 100);
                (len, batches) = (len + batch.len(), batches + 1);
                match next {
                    Next::Continue => batch.clear(),
                    Next::Close => panic!("closed"),
                    Next::Read if input.is_empty() => break,
                    Next::Read => {
                        batch.clear();
                        let count = std::io::Read::read(&mut input, conversation.room()).unwrap();
                        conversation.received(count);
                    }
                }
            }
            let one = format!("VALUE k 0 {value_len}\r\n\r\n").len() + value_len;
            assert_eq!(len, one * gets + b"END\r\n".len() + VERSION.len());
            assert!(batch.ends_with(VERSION));
            assert!(batches > len / (REPLIES + value_len + 100));
        }
    }

    #[test]
    fn quit_and_endless_lines_close() {
        assert_eq!(converse(b"quit\r\nversion\r\n", &[100]), (vec![], true));
        assert_eq!(converse(&[b'x'; 20_000], &[100]), (vec![], true));
        let mut keys = b"get ".to_vec();
        keys.resize(500_000, b' ');
        keys.extend_from_slice(b"a\r\n");
        assert_eq!(converse(&keys, &[4000]), (b"END\r\n".to_vec(), false));
        keys.truncate(400_000);
        keys.resize(2 << 20, b' ');
        assert_eq!(converse(&keys, &[4000]), (vec![], true));
    }

    fn fragments() -> impl Strategy<Value = Vec<u8>> {
        let words: Vec<&'static [u8]> = vec![
            b"get ",
            b"set ",
            b"delete ",
            b"quit",
            b"version",
            b"a",
            b" b ",
            b" 0 0 ",
            b"1",
            b"3",
            b"\r\n",
            b"\r\n",
            b"\n",
            b"\r",
            b"noreply",
            b"\0",
            b"-1",
            b"99999999999999999999",
            b"set a 1 0 3\r\nabc\r\n",
            b"set b 0 0 0\r\n\r\n",
            b"get a b\r\n",
            b"delete a\r\n",
            b"set a 0 0 2000000 noreply\r\n",
            b"set b 0 -1 1\r\nx\r\n",
        ];
        let word = prop_oneof![
            8 => prop::sample::select(words).prop_map(<[u8]>::to_vec),
            1 => prop::collection::vec(any::<u8>(), 0..8),
            1 => (0usize..300).prop_map(|n| vec![b'k'; n]),
        ];
        prop::collection::vec(word, 0..40).prop_map(|words| words.concat())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(300))]
        #[test]
        fn pieces_do_not_matter(
            input in fragments(),
            pieces in prop::collection::vec(1usize..50, 1..20),
        ) {
            prop_assert_eq!(converse(&input, &pieces), converse(&input, &[usize::MAX]));
        }
    }
}
