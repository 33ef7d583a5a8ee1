//! Input of a conversation, and its lines and words.

/// Least size of an input's own buffer while it is filled, and the most that it keeps with less in
/// it.
const BUFFER: usize = 16 * 1024;

/// Size of the scratch buffer of a thread: a value of 64 KiB fits with its line.
pub(crate) const SCRATCH_LEN: usize = 128 * 1024;

/// Longest line, except of a large multi-get. Memcached's buffer has this size.
const LINE_LIMIT: usize = 16 * 1024;

/// As [`LINE_LIMIT`], while the line's end has not come.
const UNENDED_LIMIT: usize = 2048;

/// Longest multi-get line in bytes; memcached limits the memory for responses instead.
pub(crate) const GET_LINE_LIMIT: usize = 1 << 20;

/// Received bytes that are not used yet: `buffer[start..end]`.
#[derive(Debug, Default)]
pub(crate) struct Input {
    buffer: Vec<u8>,
    pub(crate) start: usize,
    pub(crate) end: usize,
}

/// A buffer of [`SCRATCH_LEN`] bytes that the inputs of a thread use in turn, absent while one has
/// it. Waiting inputs need none, and it stays in the processor's cache.
#[derive(Debug)]
pub(crate) struct ScratchInput(Option<Vec<u8>>);

impl Default for ScratchInput {
    fn default() -> Self {
        ScratchInput(Some(vec![0; SCRATCH_LEN]))
    }
}

impl Input {
    /// Moves into the scratch buffer, unless there is too much to move.
    pub(crate) fn move_to(&mut self, scratch: &mut ScratchInput) {
        let len = self.bytes().len();
        if len <= BUFFER
            && let Some(mut buffer) = scratch.0.take()
        {
            buffer[..len].copy_from_slice(self.bytes());
            *self = Input {
                buffer,
                start: 0,
                end: len,
            };
        }
    }

    /// Moves out of the scratch buffer, if it is there, with the rest.
    pub(crate) fn move_from(&mut self, scratch: &mut ScratchInput) {
        if scratch.0.is_some() {
            return self.shrink();
        }
        if self.buffer.len() != SCRATCH_LEN {
            // The input has outgrown the scratch buffer.
            *scratch = ScratchInput::default();
            return self.shrink();
        }
        scratch.0 = Some(self.keep_what_is_left());
    }

    /// Frees memory that the rest does not need.
    pub(crate) fn shrink(&mut self) {
        if self.buffer.len() > BUFFER && self.bytes().len() <= BUFFER {
            self.keep_what_is_left();
        }
    }

    /// Moves the rest to a buffer of its own; returns the former one.
    fn keep_what_is_left(&mut self) -> Vec<u8> {
        let left = self.bytes().to_vec();
        (self.start, self.end) = (0, left.len());
        std::mem::replace(&mut self.buffer, left)
    }

    /// Bytes of memory that it has.
    #[cfg(test)]
    pub(crate) fn capacity(&self) -> usize {
        self.buffer.capacity()
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }

    /// The free end of the buffer, so that `need` bytes from the start fit.
    pub(crate) fn room(&mut self, need: usize) -> &mut [u8] {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
            if self.buffer.len() > SCRATCH_LEN && need <= SCRATCH_LEN {
                self.shrink();
            }
        }
        let fits = self.start + need <= self.buffer.len() && self.end < self.buffer.len();
        if !fits {
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
            // Announced bytes count only up to twice what has arrived.
            let len = need.min(2 * self.end.max(BUFFER)).max(self.end + 1);
            if self.buffer.len() < len {
                self.buffer.resize(len.next_multiple_of(BUFFER), 0);
            }
        }
        &mut self.buffer[self.end..]
    }
}

/// Kind of a line beyond its limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TooLong {
    /// A get of more than [`GET_LINE_LIMIT`] bytes; the reply is an error.
    Get,
    /// Any other command; the connection ends.
    Other,
}

/// Whether the first line of `bytes` is too long; its end is at `newline`, if it has arrived.
pub(crate) fn too_long(bytes: &[u8], newline: Option<usize>) -> Option<TooLong> {
    let len = newline.unwrap_or(bytes.len());
    if len <= UNENDED_LIMIT {
        return None;
    }
    let blanks = bytes.iter().take_while(|&&byte| byte == b' ').count();
    let command = &bytes[blanks..];
    let is_get = command.starts_with(b"get ") || command.starts_with(b"gets ");
    if is_get && blanks <= 100 {
        (len > GET_LINE_LIMIT).then_some(TooLong::Get)
    } else if newline.is_some() {
        (len > LINE_LIMIT).then_some(TooLong::Other)
    } else {
        Some(TooLong::Other)
    }
}

/// The part of a line that counts, up to its `\n`.
pub(crate) fn line(bytes: &[u8]) -> &[u8] {
    let bytes = match bytes {
        [start @ .., b'\r'] if !start.is_empty() => start,
        bytes => bytes,
    };
    match memchr::memchr(0, bytes) {
        Some(end) => &bytes[..end],
        None => bytes,
    }
}

/// Words between blanks.
#[derive(Clone, Debug)]
pub(crate) struct Tokens<'a>(pub(crate) &'a [u8]);

impl Tokens<'_> {
    pub(crate) fn is_empty(&self) -> bool {
        self.clone().next().is_none()
    }
}

impl<'a> Iterator for Tokens<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let start = self.0.iter().position(|&byte| byte != b' ')?;
        let rest = &self.0[start..];
        let end = memchr::memchr(b' ', rest).unwrap_or(rest.len());
        let (token, rest) = rest.split_at(end);
        self.0 = rest;
        Some(token)
    }
}

/// Words after a command that any command but a get uses, and that memcached counts.
const KEPT: usize = 7;
const MOST: usize = 22;

/// Words after a command, as far as any command but a get uses them.
#[derive(Debug)]
pub(crate) struct Arguments<'a> {
    tokens: [&'a [u8]; KEPT],
    /// Number of words, up to [`MOST`] as in memcached.
    pub(crate) count: usize,
    last: &'a [u8],
}

impl<'a> Arguments<'a> {
    pub(crate) fn of(tokens: Tokens<'a>) -> Self {
        let mut arguments = Arguments {
            tokens: [b""; KEPT],
            count: 0,
            last: b"",
        };
        for token in tokens.take(MOST) {
            if let Some(kept) = arguments.tokens.get_mut(arguments.count) {
                *kept = token;
            }
            arguments.last = token;
            arguments.count += 1;
        }
        arguments
    }

    /// The argument with this number, from 0; empty if absent.
    pub(crate) fn at(&self, number: usize) -> &'a [u8] {
        self.tokens.get(number).copied().unwrap_or_default()
    }

    /// Whether the last word is `noreply`, as memcached decides it.
    pub(crate) fn noreply(&self) -> bool {
        self.last == b"noreply"
    }

    pub(crate) fn last(&self) -> &'a [u8] {
        self.last
    }
}
