//! The memcached text protocol, without I/O: bytes in, replies appended.
//!
//! Follows memcached 1.6 to the byte, oddities included: lines end with `\n`, a `\r` before it is
//! dropped unless it is all there is; a NUL ends the line; numbers are read as by `strtol`. See
//! `doc/protocol.txt` and `proto_text.c` there.
//!
//! A [`Conversation`] belongs to one connection. All conversations share a [`ServerState`].

mod admin;
mod base64;
mod classic;
pub(crate) mod counts;
mod disconnect;
mod dump;
pub(crate) mod input;
mod keys;
mod meta;
mod prefixes;
mod server_state;
mod stats;
#[cfg(test)]
mod tests;
mod watch;

use std::sync::Arc;

use toroid_fabric::OpError;

pub(crate) use self::classic::value_len;
pub(crate) use self::disconnect::{
    BINARY_REMEDY, BINARY_REQUEST, DisconnectReason, warn_of_binary,
};
pub(crate) use self::meta::{append_flag, echo};
pub use self::server_state::{Ends, Rules, ServerState};

use self::classic::GetOptions;
use self::dump::{Dump, DumpKind};
use self::input::{Arguments, Input, Tokens, TooLong};
use self::server_state::{Activity, ConnectionSlot};
use self::watch::Watching;
use crate::number::Digits;
use crate::protocol::change::Mode;
use crate::store::BudgetPermit;
use crate::store::SetError;
use crate::store::shared::Shared;
use crate::text::counts::{Count, Counts};

/// Bytes of replies that make a batch.
pub(crate) const REPLIES: usize = 256 * 1024;

const VERSION: &[u8] =
    concat!("VERSION 1.6.18-toroid-", env!("CARGO_PKG_VERSION"), "\r\n").as_bytes();
const OK: &[u8] = b"OK\r\n";
const ERROR: &[u8] = b"ERROR\r\n";
const NOT_FOUND: &[u8] = b"NOT_FOUND\r\n";
const BAD_FORMAT: &[u8] = b"CLIENT_ERROR bad command line format\r\n";
const BAD_CHUNK: &[u8] = b"CLIENT_ERROR bad data chunk\r\n";
const NOT_A_NUMBER: &[u8] = b"CLIENT_ERROR cannot increment or decrement non-numeric value\r\n";
const TOO_LARGE: &[u8] = b"SERVER_ERROR object too large for cache\r\n";
const NO_MEMORY: &[u8] = b"SERVER_ERROR out of memory storing object\r\n";
pub(crate) const LONG_GET: &[u8] = b"SERVER_ERROR out of memory writing get response\r\n";
const NO_MEMORY_TO_COUNT: &[u8] = b"SERVER_ERROR out of memory\r\n";

/// Next step of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Send the replies, then read more.
    Read,
    /// Send the replies, then call again: there is more to do.
    Continue,
    /// Send the replies, then call again after a while, with what has been read or without.
    Watch,
    /// Send the replies, then close.
    Close,
}

/// Input that a conversation waits for after all complete commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wants {
    /// A command.
    Command,
    /// The rest of a line.
    Line,
    /// This many more bytes of a value.
    Bytes(usize),
}

/// A conversation: the protocol state of one connection.
#[derive(Debug)]
pub struct Conversation {
    slot: ConnectionSlot,
    input: Input,
    /// Bytes of a refused value that are still to be dropped.
    swallow: usize,
    /// Bytes that the current command needs.
    need: usize,
    /// Permit to buffer them, if they are a value.
    permit: Option<BudgetPermit>,
    /// Bytes of these that hold no line end.
    searched: usize,
    /// Whether the current line is a get beyond the limit, which is dropped.
    skips_line: bool,
    /// Options of a get, if the current line is the rest of one.
    getting: Option<GetOptions>,
    /// A dump under way.
    dumping: Option<Dump>,
    /// Set once the connection watches; its input is dropped.
    watching: Option<Watching>,
}

impl Default for Conversation {
    /// A conversation of a server of its own.
    fn default() -> Self {
        Conversation::new(&Arc::default(), Ends::default())
    }
}

impl Conversation {
    /// A conversation over a connection to `server`.
    pub fn new(server: &Arc<ServerState>, ends: Ends) -> Self {
        Conversation {
            slot: ConnectionSlot::take(server, ends),
            input: Input::default(),
            swallow: 0,
            need: 1,
            permit: None,
            searched: 0,
            skips_line: false,
            getting: None,
            dumping: None,
            watching: None,
        }
    }

    /// A conversation with a client of a proxy, which may use the store, but not `shutdown` and
    /// `watch`.
    pub fn by_proxy(server: &Arc<ServerState>, ends: Ends) -> Self {
        let mut conversation = Conversation::new(server, ends);
        conversation.slot.is_direct = false;
        conversation
    }

    /// Notes a first authentication, and whether it succeeded.
    pub fn logged_in(&self, welcome: bool) {
        self.slot.count(Count::AuthCommands);
        if !welcome {
            self.slot.count(Count::AuthErrors);
        }
    }

    /// Counts a disconnection by the server.
    pub(crate) fn ended(&self, why: DisconnectReason) {
        // A connection ends once, so the cell is empty.
        let _ = self.slot.ended.set(why);
        self.slot.count(match why {
            DisconnectReason::Binary => Count::BinaryClients,
            DisconnectReason::Idle => Count::IdleKicks,
        });
    }

    /// Notes whether replies wait for room in the socket.
    pub(crate) fn sends(&self, waits: bool) {
        self.slot.stats.is_at(if waits {
            Activity::Write
        } else {
            Activity::Read
        });
    }

    /// Received bytes that are not used yet.
    pub(crate) fn input(&mut self) -> &mut Input {
        &mut self.input
    }

    /// Buffer for received bytes; at least one.
    pub fn room(&mut self) -> &mut [u8] {
        self.input.room(self.need)
    }

    /// Notes that `count` bytes were received into the buffer.
    pub fn received(&mut self, count: usize) {
        self.input.end += count;
        self.slot.heard(count);
    }

    /// Input that the conversation waits for, after [`Next::Read`].
    pub fn wants(&self) -> Wants {
        let arrived = self.input.bytes().len();
        match (self.swallow, arrived) {
            (0, 0) => Wants::Command,
            // No line end has arrived.
            (0, _) if self.searched == arrived => Wants::Line,
            (0, _) => Wants::Bytes(self.need.saturating_sub(arrived)),
            (swallow, _) => Wants::Bytes(swallow),
        }
    }

    /// Carries complete commands out, and appends the replies.
    ///
    /// # Errors
    /// Only for a bug of the store.
    pub fn run(&mut self, store: &Shared, replies: &mut Vec<u8>) -> Result<Next, OpError> {
        let before = replies.len();
        let next = self.carry_out(store, replies);
        self.slot.stats.is_at(match next {
            Ok(Next::Watch) => Activity::Watch,
            Ok(Next::Read) if self.swallow > 0 => Activity::Swallow,
            Ok(Next::Read) if matches!(self.wants(), Wants::Bytes(_)) => Activity::Value,
            _ => Activity::Read,
        });
        let written = (replies.len() - before) as u64;
        self.slot.stats.counts.add(Count::BytesWritten, written);
        next
    }

    fn carry_out(&mut self, store: &Shared, replies: &mut Vec<u8>) -> Result<Next, OpError> {
        if let Some(watching) = &self.watching {
            self.input.start = self.input.end;
            watching.take(replies);
            return Ok(Next::Watch);
        }
        let mut commands = 0;
        while replies.len() < REPLIES {
            if let Some(dump) = &mut self.dumping {
                if !dump.go_on(store, replies)? {
                    self.dumping = None;
                }
                // A dump takes a turn, even a short one.
                return Ok(Next::Continue);
            }
            let dropped = self.swallow.min(self.input.bytes().len());
            self.swallow -= dropped;
            self.input.start += dropped;
            let bytes = self.input.bytes();
            if bytes.len() < self.need || self.swallow > 0 {
                return Ok(Next::Read);
            }
            let newline = memchr::memchr(b'\n', &bytes[self.searched..]);
            let newline = newline.map(|at| self.searched + at);
            if self.skips_line {
                self.input.start += newline.map_or(bytes.len(), |newline| newline + 1);
                (self.need, self.searched) = (1, 0);
                self.skips_line = newline.is_none();
                continue;
            }
            if self.getting.is_none() {
                match input::too_long(bytes, newline) {
                    None => {}
                    Some(TooLong::Get) => {
                        replies.extend_from_slice(LONG_GET);
                        self.slot.count(Count::LongGets);
                        (self.skips_line, self.searched) = (true, 0);
                        continue;
                    }
                    Some(TooLong::Other) => return Ok(Next::Close),
                }
            }
            let Some(newline) = newline else {
                (self.searched, self.need) = (bytes.len(), bytes.len() + 1);
                return Ok(Next::Read);
            };
            if self.slot.server.rules.per_turn == Some(commands) {
                self.slot.count(Count::Yields);
                return Ok(Next::Continue);
            }
            commands += 1;
            let line = input::line(&bytes[..newline]);
            let mut turn = Turn {
                store,
                slot: &self.slot,
                rest: &bytes[newline + 1..],
                permit: &mut self.permit,
                replies,
                noreply: false,
            };
            let done = match self.getting {
                Some(options) => turn.get(Tokens(line), options),
                None => turn.command(line),
            };
            let used = match done? {
                Done::Used => newline + 1,
                Done::UsedValue { len } => newline + 1 + len,
                Done::Swallow { len } => {
                    self.swallow = len;
                    newline + 1
                }
                Done::Partly { left, options } => {
                    self.getting = Some(options);
                    self.input.start += line.len() - left;
                    (self.need, self.searched) = (1, 0);
                    continue;
                }
                Done::Wants { len } => {
                    (self.need, self.searched) = (newline + 1 + len, newline);
                    return Ok(Next::Read);
                }
                Done::Dump(kind) => {
                    self.dumping = Some(Dump::new(kind));
                    newline + 1
                }
                Done::Watch(watching) => {
                    self.watching = Some(watching);
                    return Ok(Next::Watch);
                }
                Done::Close => return Ok(Next::Close),
            };
            self.input.start += used;
            self.permit = None;
            (self.need, self.searched, self.getting) = (1, 0, None);
        }
        Ok(Next::Continue)
    }
}

/// Result of a command.
#[derive(Debug)]
enum Done {
    /// Its line is used.
    Used,
    /// Its line and this many bytes after it are used.
    UsedValue { len: usize },
    /// Its line is used, and this many bytes after it are dropped.
    Swallow { len: usize },
    /// The batch is full; the last `left` bytes of its line remain.
    Partly { left: usize, options: GetOptions },
    /// It needs this many bytes after its line.
    Wants { len: usize },
    /// Its line is used, and a dump follows.
    Dump(DumpKind),
    /// All input is used, and the connection watches from now on.
    Watch(Watching),
    /// The connection ends.
    Close,
}

/// Execution of one command.
struct Turn<'a> {
    store: &'a Shared,
    slot: &'a ConnectionSlot,
    /// Received bytes after the line of the command.
    rest: &'a [u8],
    /// Permit of the conversation.
    permit: &'a mut Option<BudgetPermit>,
    replies: &'a mut Vec<u8>,
    /// Whether the client wants no reply.
    noreply: bool,
}

impl Turn<'_> {
    fn command(&mut self, line: &[u8]) -> Result<Done, OpError> {
        let mut tokens = Tokens(line);
        let command = tokens.next().unwrap_or_default();
        match command {
            b"get" | b"bget" => return self.first_get(tokens, false),
            b"gets" => return self.first_get(tokens, true),
            b"gat" => return self.first_get_and_touch(tokens, false),
            b"gats" => return self.first_get_and_touch(tokens, true),
            [b'm', kind] => return self.meta(*kind, tokens),
            _ => {}
        }
        let arguments = Arguments::of(tokens);
        match command {
            b"set" => self.update(Mode::Set, &arguments),
            b"add" => self.update(Mode::Add, &arguments),
            b"replace" => self.update(Mode::Replace, &arguments),
            b"append" => self.update(Mode::Append, &arguments),
            b"prepend" => self.update(Mode::Prepend, &arguments),
            b"cas" => self.update(Mode::Compare, &arguments),
            b"incr" => self.arithmetic(true, &arguments),
            b"decr" => self.arithmetic(false, &arguments),
            b"touch" => self.touch(&arguments),
            b"delete" => self.delete(&arguments),
            b"stats" => self.stats(&arguments),
            b"quit" => Ok(Done::Close),
            b"shutdown" => Ok(self.shutdown(&arguments)),
            b"flush_all" => self.flush_all(&arguments),
            _ => Ok(self.administer(command, &arguments)),
        }
    }

    /// Waits for the rest of a value if the budget allows. Otherwise refuses the value, and removes
    /// the old value of a set.
    fn want(&mut self, len: usize, key: &[u8], mode: Mode) -> Result<Done, OpError> {
        *self.permit = self.store.receive_permit(len);
        if self.permit.is_some() {
            return Ok(Done::Wants { len });
        }
        let text = self.refusal(SetError::OutOfMemory, NO_MEMORY)?;
        if mode == Mode::Set {
            self.store.delete(key)?;
        }
        self.say(text);
        Ok(Done::Swallow { len })
    }

    /// Replies, unless the client wants none.
    fn say(&mut self, text: &[u8]) -> Done {
        if !self.noreply {
            self.replies.extend_from_slice(text);
        }
        Done::Used
    }

    fn counts(&self) -> &Counts {
        &self.slot.stats.counts
    }

    fn count(&self, count: Count) {
        self.counts().one(count);
    }
}

/// Appends a blank and a number.
pub(crate) fn append_number(replies: &mut Vec<u8>, number: u64) {
    replies.push(b' ');
    replies.extend_from_slice(Digits::of(number).bytes());
}
