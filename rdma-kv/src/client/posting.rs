//! Posted changes: many at a time, and their results.
//!
//! The server answers in the order of the requests. Until then a large value stays in its piece of
//! the staging region. Key and value are the caller's again as soon as the change is posted.

use std::time::Instant;

use toroid_fabric::Region;

use super::exchange::TIMEOUT;
use super::staging::Staging;
use super::{Client, ClientError, check_key};
use crate::network::Network;
use crate::protocol::change::{Change, Stored};
use crate::protocol::messages::{Piece, Refusal, Reply, Request, STAGING_ACCESS, SetValue};

/// Most changes that can be posted and not polled.
pub const WINDOW: usize = 64;

/// Posted changes are sent at the latest when their values have this many bytes.
const BATCH_BYTES: usize = 16 * 1024;

/// Identifies a posted change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ticket(u32);

/// Result of a posted change.
pub type Outcome = (Ticket, Result<Stored, ClientError>);

/// A change without a result.
pub(super) struct Posted {
    number: u32,
    since: Instant,
    /// Hash of the key.
    hash: u64,
    value_len: usize,
    state: State,
}

enum State {
    /// The value travels with the request.
    Inline,
    /// The value is in the oldest piece of the staging region.
    Staged,
    /// The value exceeds the largest item: the request has its length alone, and is refused.
    TooLarge,
    /// The change was not sent.
    Refused(ClientError),
}

impl<N: Network> Client<N> {
    /// Posts a change without waiting for its result, which [`Client::poll`] and
    /// [`Client::wait`] return in the order of posting. Key and value can be reused at once.
    /// The change is sent together with others, at the latest by these two.
    ///
    /// # Errors
    /// [`ClientError::WindowFull`]: nothing was posted; poll first. Otherwise the end of the
    /// connection.
    pub fn post(&mut self, change: &Change<'_>, value: &[u8]) -> Result<Ticket, ClientError> {
        if self.posted.len() + self.settled.len() >= WINDOW {
            return Err(ClientError::WindowFull);
        }
        let number = self.begin(change, value)?.ok_or(ClientError::WindowFull)?;
        if self.unsent >= BATCH_BYTES {
            self.exchange.send()?;
        }
        Ok(Ticket(number))
    }

    /// The result of the oldest posted change, if it is known. Never waits.
    ///
    /// # Errors
    /// The end of the connection; the results of the other changes are then unknown.
    pub fn poll(&mut self) -> Result<Option<Outcome>, ClientError> {
        self.exchange.send()?;
        self.settle_refused();
        while self.settled.is_empty() && self.exchange.receive()? {
            self.settle()?;
        }
        let sent = self.exchange.last_sent();
        let is_late = |posted: &Posted| posted.since.max(sent).elapsed() > TIMEOUT;
        match self.settled.pop_front() {
            None if self.posted.front().is_some_and(is_late) => Err(self.exchange.time_out()),
            outcome => Ok(outcome),
        }
    }

    /// Waits for the result of the oldest posted change; `None` when none is posted.
    ///
    /// # Errors
    /// As [`Client::poll`].
    pub fn wait(&mut self) -> Result<Option<Outcome>, ClientError> {
        if self.settled.is_empty() && !self.posted.is_empty() {
            self.settle_next()?;
        }
        Ok(self.settled.pop_front())
    }

    /// Makes a change and waits for its result; see [`Client::set`] and the like for errors.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn store(&mut self, change: &Change<'_>, value: &[u8]) -> Result<Stored, ClientError> {
        let number = self.begin_when_possible(change, value)?;
        loop {
            match self.settled.pop_back() {
                Some((Ticket(of), outcome)) if of == number => return outcome,
                other => self.settled.extend(other),
            }
            self.settle_next()?;
        }
    }

    /// Makes several changes in one batch. Calls `each` with the index of a change and its
    /// result, in order. A failed change does not stop the others.
    ///
    /// # Errors
    /// The end of the connection; the results of the other changes are then unknown.
    pub fn store_many(
        &mut self,
        changes: &[(Change<'_>, &[u8])],
        mut each: impl FnMut(usize, Result<Stored, ClientError>),
    ) -> Result<(), ClientError> {
        // Earlier posts stay for their caller to poll.
        let before = self.posted.len() + self.settled.len();
        let mut told = 0;
        for (change, value) in changes {
            self.begin_when_possible(change, value)?;
            while let Some((_, outcome)) = self.settled.remove(before) {
                each(told, outcome);
                told += 1;
            }
        }
        while told < changes.len() {
            if self.settled.len() <= before {
                self.settle_next()?;
            }
            while let Some((_, outcome)) = self.settled.remove(before) {
                each(told, outcome);
                told += 1;
            }
        }
        Ok(())
    }

    /// Begins a change as soon as there is room for it; returns its number.
    fn begin_when_possible(
        &mut self,
        change: &Change<'_>,
        value: &[u8],
    ) -> Result<u32, ClientError> {
        loop {
            if self.posted.len() < WINDOW
                && let Some(number) = self.begin(change, value)?
            {
                if self.unsent >= BATCH_BYTES {
                    self.exchange.send()?;
                }
                return Ok(number);
            }
            self.settle_next()?;
        }
    }

    /// Queues a change, if there is room for it and its value now; returns its number.
    fn begin(&mut self, change: &Change<'_>, value: &[u8]) -> Result<Option<u32>, ClientError> {
        let (key, value_len) = (change.key, value.len());
        if let Err(error) = check_key(key) {
            return Ok(Some(self.refuse(error)));
        }
        let is_inline = value_len <= self.inline_limit;
        if !self
            .exchange
            .has_room(if is_inline { value_len } else { 0 })?
        {
            return Ok(None);
        }
        let (state, request) = if value_len > self.reader.max_item() as usize {
            let (change, value) = (*change, SetValue::Staged(announced(value_len)));
            (State::TooLarge, Request::Store { change, value })
        } else if is_inline {
            let (change, value) = (*change, SetValue::Inline(value));
            (State::Inline, Request::Store { change, value })
        } else {
            let piece = match self.stage(value) {
                Ok(Some(piece)) => piece,
                Ok(None) => return Ok(None),
                // The present region is still enough for other values.
                Err(error @ (ClientError::Refused(_) | ClientError::Member(_))) => {
                    return Ok(Some(self.refuse(error)));
                }
                Err(error) => return Err(error),
            };
            let (change, value) = (*change, SetValue::Staged(piece));
            (State::Staged, Request::Store { change, value })
        };
        if self.exchange.all_is_sent() {
            self.unsent = 0;
        }
        self.unsent += value_len;
        let number = self.exchange.add(&request);
        let hash = self.reader.hash_of(key);
        // The location of the key is unknown until the reply.
        self.reader.forget_at(hash);
        self.note(number, hash, value_len, state);
        Ok(Some(number))
    }

    fn refuse(&mut self, error: ClientError) -> u32 {
        let number = self.exchange.next_number();
        self.note(number, 0, 0, State::Refused(error));
        number
    }

    fn note(&mut self, number: u32, hash: u64, value_len: usize, state: State) {
        self.posted.push_back(Posted {
            number,
            since: Instant::now(),
            hash,
            value_len,
            state,
        });
    }

    fn too_large(&self, len: usize) -> ClientError {
        ClientError::TooLarge {
            len,
            limit: self.reader.max_item(),
        }
    }

    /// Puts a value into the staging region, which is made or enlarged if necessary.
    fn stage(&mut self, value: &[u8]) -> Result<Option<Piece>, ClientError> {
        let len = value.len();
        let several = Staging::len_for_several(len);
        match &mut self.staging {
            None => self.stage_region(Staging::len_for_one(len))?,
            Some(staging) if staging.is_enough_for(len) => {
                if let Some(piece) = staging.put(value)? {
                    return Ok(Some(piece));
                }
                // Several values are on their way at a time.
                if staging.len() >= several {
                    return Ok(None);
                }
                match self.network.alloc(several, STAGING_ACCESS) {
                    Ok(region) => self.stage_in(region)?,
                    // The values go one after the other, then.
                    Err(_) => return Ok(None),
                }
            }
            // The server may still read from the present region.
            Some(staging) if !staging.is_idle() => return Ok(None),
            Some(_) => self.stage_region(Staging::len_for_one(len))?,
        }
        match &mut self.staging {
            Some(staging) => Ok(staging.put(value)?),
            None => Ok(None),
        }
    }

    /// Makes and registers a staging region of `len` bytes in place of the present one.
    pub(super) fn stage_region(&mut self, len: u64) -> Result<(), ClientError> {
        let region = self.network.alloc(len, STAGING_ACCESS)?;
        self.stage_in(region)
    }

    fn stage_in(&mut self, region: Region) -> Result<(), ClientError> {
        let key = region.remote_key().ok_or(ClientError::Protocol)?;
        let reply = self.call(&Request::Stage { key })?;
        let refusal = match reply {
            // The server has answered all earlier requests.
            Reply::Done => {
                self.staging = Some(Staging::new(region));
                return Ok(());
            }
            Reply::Refused(refusal) => refusal,
            _ => return Err(ClientError::Protocol),
        };
        // The server has released the present one as well.
        if let Some(staging) = &mut self.staging {
            staging.lose();
        }
        Err(ClientError::Refused(refusal))
    }

    /// Waits until one more posted change has a result.
    fn settle_next(&mut self) -> Result<(), ClientError> {
        if !self.settle_refused() {
            self.exchange.next(Instant::now() + TIMEOUT)?;
            self.settle()?;
        }
        Ok(())
    }

    /// Settles changes that were not sent and are next in order; returns whether there was one.
    fn settle_refused(&mut self) -> bool {
        let mut any = false;
        while let Some(posted) = self.posted.pop_front() {
            let State::Refused(error) = posted.state else {
                self.posted.push_front(posted);
                break;
            };
            self.settled.push_back((Ticket(posted.number), Err(error)));
            any = true;
        }
        any
    }

    /// Makes all posted changes older by `by`.
    #[cfg(test)]
    pub(crate) fn backdate(&mut self, by: std::time::Duration) {
        for posted in &mut self.posted {
            posted.since -= by;
        }
    }

    /// Settles the change of the current reply.
    pub(super) fn settle(&mut self) -> Result<(), ClientError> {
        self.settle_refused();
        let (number, reply) = self.exchange.reply()?;
        let posted = self.posted.pop_front();
        let posted = posted.filter(|posted| posted.number == number);
        let posted = posted.ok_or(ClientError::Protocol)?;
        let outcome = match (reply, &posted.state) {
            (Reply::Refused(Refusal::TooLarge), _) => Err(self.too_large(posted.value_len)),
            (_, State::TooLarge) => return Err(ClientError::Protocol),
            (Reply::Stored(stored), _) => Ok(stored),
            (Reply::Refused(refusal), _) => Err(ClientError::Refused(refusal)),
            _ => return Err(ClientError::Protocol),
        };
        if let (State::Staged, Some(staging)) = (&posted.state, &mut self.staging) {
            staging.give_back();
            if matches!(outcome, Err(ClientError::Refused(Refusal::Staging))) {
                staging.lose();
            }
        }
        match outcome {
            Ok(Stored::Stored { location, .. }) => {
                // Only the last posted change of a key has its current location.
                let mut later = self.posted.iter();
                if later.all(|later| later.hash != posted.hash) {
                    self.reader.remember_unless_cached(posted.hash, location);
                }
            }
            Ok(_) => {}
            Err(_) => self.reader.forget_at(posted.hash),
        }
        self.settled.push_back((Ticket(number), outcome));
        Ok(())
    }
}

/// Stands for a value that is not sent.
fn announced(value_len: usize) -> Piece {
    Piece {
        offset: 0,
        len: u32::try_from(value_len).unwrap_or(u32::MAX),
    }
}
