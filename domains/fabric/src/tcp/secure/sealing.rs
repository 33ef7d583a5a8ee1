//! Bytes to send.

use std::io;

use super::Keys;
use super::record::{LENGTH, MAX_RECORD, MAX_TEXT, Sealer};

/// Records that wait to be sent. Written text is collected in records, which are sealed when they
/// are full or sent.
#[derive(Debug)]
pub struct Sealing {
    sealer: Sealer,
    /// Records; bytes before `sent` have been sent.
    records: Vec<u8>,
    sent: usize,
    /// Start of the last record, if that is not sealed yet.
    open: Option<usize>,
}

impl Sealing {
    /// No records yet.
    pub fn new(keys: &Keys) -> Self {
        Sealing {
            sealer: Sealer::new(keys),
            records: Vec::new(),
            sent: 0,
            open: None,
        }
    }

    /// Appends text.
    pub fn write(&mut self, mut text: &[u8]) {
        while !text.is_empty() {
            let start = *self.open.get_or_insert_with(|| {
                let start = self.records.len();
                self.records.extend_from_slice(&[0; LENGTH]);
                start
            });
            let room = start + LENGTH + MAX_TEXT - self.records.len();
            let (now, later) = text.split_at(room.min(text.len()));
            self.records.extend_from_slice(now);
            text = later;
            if now.len() == room {
                self.seal();
            }
        }
    }

    fn seal(&mut self) {
        if let Some(start) = self.open.take() {
            self.sealer.seal(&mut self.records, start);
        }
    }

    /// Bytes that wait to be sent.
    pub fn unsent(&self) -> usize {
        self.records.len() - self.sent
    }

    /// Discards all that waits. The connection is useless afterwards.
    pub fn forget(&mut self) {
        self.records.clear();
        (self.sent, self.open) = (0, None);
    }

    /// Gives as many bytes to `send` as that takes; returns whether that was all.
    ///
    /// # Errors
    /// That of `send`, except [`io::ErrorKind::WouldBlock`].
    pub fn flush(&mut self, mut send: impl FnMut(&[u8]) -> io::Result<usize>) -> io::Result<bool> {
        self.seal();
        while self.unsent() > 0 {
            match send(&self.records[self.sent..]) {
                Ok(count) => self.sent += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        self.records.clear();
        self.sent = 0;
        // A burst must not hold its memory for the life of the connection.
        self.records.shrink_to(4 * MAX_RECORD);
        Ok(true)
    }

    #[cfg(test)]
    pub(super) fn sealer(&mut self) -> &mut Sealer {
        &mut self.sealer
    }
}
