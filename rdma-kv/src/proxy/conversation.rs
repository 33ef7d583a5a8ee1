//! A conversation of a client with a proxy, without I/O: bytes in, replies appended.

use super::Upstream;
use super::framing::{Batch, Command};
use super::getting::{self, Getting, Unable};
use crate::protocol::messages::{Awaiting, TEXT_LIMIT};
use crate::text::input::{Input, Tokens, TooLong, line, too_long};
use crate::text::{LONG_GET, Next, REPLIES};

/// A conversation: gets are answered by one-sided reads, other commands are forwarded.
#[derive(Debug)]
pub struct ProxyConversation<U> {
    upstream: U,
    input: Input,
    state: State,
    /// Input bytes that are known to hold no line end.
    searched: usize,
    /// Bytes that are needed to continue.
    need: usize,
}

/// Input that the conversation expects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// A command.
    Command,
    /// The rest of a get's line, whose first keys are answered.
    Getting(Getting),
    /// Input that the server waits for before the next command.
    Server(Unfinished),
    /// The rest of a line that is too long.
    SkippingLine,
    /// Bytes of a value that is dropped.
    Dropping(u64),
    /// Nothing: it has ended.
    Over,
}

/// Reason why no line is ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unready {
    /// The line is incomplete, or will stay so.
    Next(Next),
    /// The line is a get beyond the limit.
    LongGet,
}

/// A command that is forwarded in part, or answered in part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Unfinished {
    /// Input that the server waits for.
    then: Awaiting,
    /// Whether the command wants no reply.
    is_quiet: bool,
    /// Whether replies came since the beginning of the command: a value may be refused before
    /// it has arrived.
    is_answered: bool,
}

impl<U: Upstream> ProxyConversation<U> {
    /// A conversation without input.
    pub fn new(upstream: U) -> Self {
        ProxyConversation {
            upstream,
            input: Input::default(),
            state: State::Command,
            searched: 0,
            need: 1,
        }
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
    }

    /// Whether it waits for a command or for the rest of a line.
    pub(crate) fn is_idle(&self) -> bool {
        match self.state {
            State::Command => true,
            State::Server(unfinished) => unfinished.then == Awaiting::Line,
            State::SkippingLine => true,
            State::Getting(_) | State::Dropping(_) | State::Over => false,
        }
    }

    /// Carries received commands out, and appends the replies.
    pub fn run(&mut self, replies: &mut Vec<u8>) -> Next {
        while replies.len() < REPLIES {
            let next = match self.state {
                State::Command => self.command(replies),
                State::Getting(getting) => self.go_on_getting(getting, replies),
                State::Server(unfinished) => self.go_on_saying(unfinished, replies),
                State::SkippingLine => self.skip_line(),
                State::Dropping(bytes) => self.drop_some(bytes),
                State::Over => Some(Next::Close),
            };
            if let Some(next) = next {
                return next;
            }
        }
        Next::Continue
    }

    fn command(&mut self, replies: &mut Vec<u8>) -> Option<Next> {
        let newline = match self.newline() {
            Ok(newline) => newline,
            Err(Unready::Next(next)) => return Some(next),
            Err(Unready::LongGet) => {
                replies.extend_from_slice(LONG_GET);
                self.state = State::SkippingLine;
                return None;
            }
        };
        let line = line(&self.input.bytes()[..newline]);
        match Command::of(line) {
            Command::Get { cas, keys } => {
                let mut getting = Getting::new(cas);
                let left = getting::get(&mut self.upstream, keys, &mut getting, replies);
                let len = line.len();
                let left = left.map(|keys| keys.0.len());
                self.got(newline, len, left, getting, replies);
            }
            Command::MetaGet { key, flags } => {
                match getting::meta_get(&mut self.upstream, key, flags, replies) {
                    Ok(true) => self.used(newline + 1),
                    Ok(false) => {
                        let batch = Batch {
                            len: newline + 1,
                            answers: 1,
                            ..Batch::default()
                        };
                        self.forward(batch, replies);
                    }
                    Err(error) => {
                        replies.extend_from_slice(error.text());
                        self.used(newline + 1);
                    }
                }
            }
            Command::Other => {
                let batch = Batch::of(self.input.bytes());
                if batch.counts {
                    self.upstream.report();
                }
                self.forward(batch, replies);
            }
        }
        None
    }

    fn go_on_getting(&mut self, mut getting: Getting, replies: &mut Vec<u8>) -> Option<Next> {
        let newline = match self.newline() {
            Ok(newline) => newline,
            Err(Unready::Next(next)) => return Some(next),
            Err(Unready::LongGet) => return None,
        };
        let line = line(&self.input.bytes()[..newline]);
        let left = getting::get(&mut self.upstream, Tokens(line), &mut getting, replies);
        let len = line.len();
        let left = left.map(|keys| keys.0.len());
        self.got(newline, len, left, getting, replies);
        None
    }

    /// Continues after some keys of a get's line of `len` bytes, of which `left` remain.
    fn got(
        &mut self,
        newline: usize,
        len: usize,
        left: Result<usize, Unable>,
        getting: Getting,
        replies: &mut Vec<u8>,
    ) {
        match left {
            Ok(left) if !Tokens(&self.input.bytes()[len - left..len]).is_empty() => {
                self.used(len - left);
                self.state = State::Getting(getting);
            }
            Ok(_) => self.used(newline + 1),
            Err(Unable::Over) => self.state = State::Over,
            Err(Unable::Upstream(error)) => {
                replies.extend_from_slice(error.text());
                self.used(newline + 1);
            }
        }
    }

    /// Forwards commands to the server.
    fn forward(&mut self, batch: Batch, replies: &mut Vec<u8>) {
        let text = &self.input.bytes()[..batch.len];
        let before = replies.len();
        let said = self.upstream.say(false, text, replies);
        self.used(batch.len);
        match said {
            Ok(then) => self.heard(Unfinished {
                then,
                is_quiet: batch.is_quiet,
                is_answered: replies.len() > before,
            }),
            Err(error) => {
                for _ in 0..batch.answers {
                    replies.extend_from_slice(error.text());
                }
                self.state = match (batch.ends, batch.missing) {
                    (true, _) => State::Over,
                    (_, 0) => State::Command,
                    (_, missing) => State::Dropping(missing),
                };
            }
        }
    }

    /// Forwards the rest of a command, or asks for more of its replies.
    fn go_on_saying(&mut self, unfinished: Unfinished, replies: &mut Vec<u8>) -> Option<Next> {
        let then = unfinished.then;
        let bytes = self.input.bytes();
        let most = match then {
            Awaiting::Bytes(count) => usize::try_from(count).unwrap_or(usize::MAX),
            Awaiting::Line => memchr::memchr(b'\n', bytes).map_or(bytes.len(), |at| at + 1),
            _ => 0,
        };
        let len = most.min(bytes.len()).min(TEXT_LIMIT);
        if len == 0 && then != Awaiting::More {
            self.need = most.clamp(1, TEXT_LIMIT);
            return Some(Next::Read);
        }
        let before = replies.len();
        let said = self.upstream.say(true, &bytes[..len], replies);
        self.used(len);
        let has_answered = replies.len() > before;
        match (said, then) {
            (Ok(then), _) => {
                self.heard(Unfinished {
                    then,
                    is_answered: unfinished.is_answered || has_answered,
                    ..unfinished
                });
                // A server that only promises more must not occupy this thread.
                if then == Awaiting::More && !has_answered {
                    return Some(Next::Continue);
                }
            }
            (Err(error), Awaiting::Bytes(count)) if !unfinished.is_answered => {
                if !unfinished.is_quiet {
                    replies.extend_from_slice(error.text());
                }
                self.state = State::Dropping(count.saturating_sub(len as u64));
            }
            // The beginning of the next command is unknown, or its reply would be taken
            // for another one's.
            (Err(_), _) => self.state = State::Over,
        }
        None
    }

    fn heard(&mut self, unfinished: Unfinished) {
        self.state = match unfinished.then {
            Awaiting::Command => State::Command,
            // A wait for 0 bytes would never end.
            Awaiting::End | Awaiting::Bytes(0) => State::Over,
            _ => State::Server(unfinished),
        };
    }

    fn drop_some(&mut self, bytes: u64) -> Option<Next> {
        let arrived = self.input.bytes().len();
        let dropped = usize::try_from(bytes).map_or(arrived, |bytes| bytes.min(arrived));
        self.used(dropped);
        match bytes - dropped as u64 {
            0 => {
                self.state = State::Command;
                None
            }
            left => {
                self.state = State::Dropping(left);
                Some(Next::Read)
            }
        }
    }

    /// Position of the line end, or the reason for its absence.
    fn newline(&mut self) -> Result<usize, Unready> {
        let bytes = self.input.bytes();
        let newline = memchr::memchr(b'\n', &bytes[self.searched..]);
        let newline = newline.map(|at| self.searched + at);
        let is_first = !matches!(self.state, State::Getting(_));
        if is_first {
            match too_long(bytes, newline) {
                None => {}
                Some(TooLong::Get) => return Err(Unready::LongGet),
                Some(TooLong::Other) => {
                    self.state = State::Over;
                    return Err(Unready::Next(Next::Close));
                }
            }
        }
        newline.ok_or_else(|| {
            (self.searched, self.need) = (bytes.len(), bytes.len() + 1);
            Unready::Next(Next::Read)
        })
    }

    fn skip_line(&mut self) -> Option<Next> {
        let bytes = self.input.bytes();
        match memchr::memchr(b'\n', bytes) {
            Some(newline) => {
                self.used(newline + 1);
                None
            }
            None => {
                let len = bytes.len();
                self.used(len);
                self.state = State::SkippingLine;
                Some(Next::Read)
            }
        }
    }

    /// Consumes `count` bytes; a command comes next by default.
    fn used(&mut self, count: usize) {
        self.input.start += count;
        (self.searched, self.need) = (0, 1);
        self.state = State::Command;
    }
}
