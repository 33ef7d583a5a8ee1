//! Received bytes.

use super::record::{MAX_RECORD, Opener};
use super::{Keys, RecordError};

/// Received bytes of a connection: those of texts, and behind them records that are not whole yet.
/// Records are opened in place. Without keys all bytes are text.
#[derive(Debug, Default)]
pub struct Incoming {
    bytes: Vec<u8>,
    /// Bytes for texts.
    room: usize,
    /// Unprocessed text is in `head..end`.
    head: usize,
    end: usize,
    /// Unopened bytes are in `sealed..filled`; both are `end` without such bytes.
    sealed: usize,
    filled: usize,
    opener: Option<Opener>,
    /// The first error. Nothing is opened afterwards.
    error: Option<RecordError>,
}

impl Incoming {
    /// A buffer of `room` bytes for texts. Memory is allocated with the first use.
    pub fn new(room: usize, keys: Option<&Keys>) -> Self {
        Incoming {
            room,
            opener: keys.map(Opener::new),
            ..Incoming::default()
        }
    }

    /// Whether received bytes are opened.
    pub fn is_sealed(&self) -> bool {
        self.opener.is_some()
    }

    /// Place for received bytes; empty if the buffer is full. [`Incoming::received`] takes them.
    pub fn place(&mut self) -> &mut [u8] {
        // Beside a text that is not complete there is always room for a whole record.
        let len = self.room + self.opener.as_ref().map_or(0, |_| MAX_RECORD);
        self.bytes.resize(len, 0);
        if self.head == self.end || len - self.filled < len / 4 {
            self.compact();
        }
        &mut self.bytes[self.filled..]
    }

    /// Moves unprocessed bytes to the start.
    pub fn compact(&mut self) {
        if self.head > 0 {
            self.bytes.copy_within(self.head..self.end, 0);
            self.end -= self.head;
            self.head = 0;
        }
        if self.sealed > self.end {
            self.bytes.copy_within(self.sealed..self.filled, self.end);
            self.filled -= self.sealed - self.end;
            self.sealed = self.end;
        }
    }

    /// Takes `count` bytes that were written to the [`place`](Incoming::place), and opens whole
    /// records. Returns the number of bytes of text that came thereby.
    ///
    /// # Errors
    /// [`RecordError`]; texts before that are there.
    pub fn received(&mut self, count: usize) -> Result<usize, RecordError> {
        self.filled = self.bytes.len().min(self.filled + count);
        let before = self.end;
        let Some(opener) = &mut self.opener else {
            self.end = self.filled;
            self.sealed = self.filled;
            return Ok(self.end - before);
        };
        while self.error.is_none() {
            let opened =
                Opener::record_len(&self.bytes[self.sealed..self.filled]).and_then(|len| {
                    let Some(len) = len.filter(|len| self.sealed + len <= self.filled) else {
                        return Ok(false);
                    };
                    let record = self.sealed..self.sealed + len;
                    self.sealed = record.end;
                    self.end += opener.open(&mut self.bytes, record, self.end)?;
                    Ok(true)
                });
            match opened {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) => self.error = Some(error),
            }
        }
        if let Some(error) = self.error {
            return Err(error);
        }
        if self.sealed == self.filled {
            (self.sealed, self.filled) = (self.end, self.end);
        }
        Ok(self.end - before)
    }

    /// Checks that no record is incomplete when the connection has ended.
    ///
    /// # Errors
    /// [`RecordError::Cut`].
    pub fn check_end(&self) -> Result<(), RecordError> {
        let is_whole = self.sealed == self.filled;
        is_whole.then_some(()).ok_or(RecordError::Cut)
    }

    /// Unprocessed text.
    pub fn text(&self) -> &[u8] {
        &self.bytes[self.head..self.end]
    }

    /// Unprocessed text, to be changed in place.
    pub fn text_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.head..self.end]
    }

    /// Whether nothing can be received before text is consumed.
    pub fn is_full(&self) -> bool {
        !self.bytes.is_empty()
            && self.end - self.head + self.filled - self.sealed == self.bytes.len()
    }

    /// Marks the first `count` bytes of the text as processed.
    pub fn consume(&mut self, count: usize) {
        self.head = self.end.min(self.head.saturating_add(count));
    }

    /// Marks the first `count` bytes of the text as processed, and returns them.
    pub fn take(&mut self, count: usize) -> &[u8] {
        let from = self.head;
        self.consume(count);
        &self.bytes[from..self.head]
    }

    /// Removes text in the middle.
    pub fn take_out(&mut self, at: usize, count: usize) {
        let start = self.head + at;
        self.bytes.copy_within(start + count..self.end, start);
        let is_whole = self.sealed == self.filled;
        self.end -= count;
        if is_whole {
            (self.sealed, self.filled) = (self.end, self.end);
        }
    }

    #[cfg(test)]
    pub(super) fn opener(&mut self) -> &mut Opener {
        self.opener.as_mut().expect("it is sealed")
    }
}
