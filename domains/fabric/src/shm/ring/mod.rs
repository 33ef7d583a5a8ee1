//! A byte ring for packets between one producer and one consumer that do not trust each other.
//!
//! ```text
//!        head                    tail
//!         v                       v
//!  ------+--------+---------+----+------------------
//!   free | header | payload | .. | free
//!  ------+--------+---------+----+------------------
//! ```
//!
//! Positions count bytes since the creation of the ring and never wrap; a byte's place is its
//! position modulo the capacity. A record is a link header and its payload, padded to a multiple of
//! 8. The payload of a long record begins at a cache line, because copies to one are faster. Each
//! side keeps its own position in private memory and publishes a copy. Positions of the peer are
//! checked against the capacity before use. So a peer that overwrites the shared words can end the
//! ring ([`RingError::Corrupt`]) and nothing else.
//!
//! # Pieces
//! The payload of a long record is published in pieces, so that the consumer copies the first
//! pieces out while the producer still copies the last ones in. The consumer waits for the rest for
//! a bounded time ([`LOOKS`]). Then the record counts as not yet published, and the next attempt
//! copies it from its start.
//!
//! # Sleeping
//! A side without work *arms*: it sets its flag, then looks once more. A side that publishes a
//! position loads the other side's flag afterwards. Both sides have a SeqCst fence between the
//! store and the load, so at least one sees the other's store: either the sleeper finds the news,
//! or the publisher finds the flag and must wake the sleeper.

use crossbeam::utils::CachePadded;

use crate::core::channel::MAX_PAYLOAD;
use crate::core::link::LinkHeader;
use crate::sync::{AtomicU32, AtomicU64, Ordering, fence, spin_loop};

/// Bytes before a ring's data in its memory: a page, so that the data is page-aligned.
#[cfg(not(loom))]
pub(super) const DATA_OFFSET: usize = 4096;

/// Bytes of a cache line.
const LINE: u64 = 64;

/// Payloads of at least this many bytes begin with a line.
const LONG: usize = 1024;

/// Looks of a consumer for each piece of a record: a few microseconds, more than a running producer
/// takes for a piece.
const LOOKS: usize = if cfg!(loom) { 1 } else { 100 };

/// Why a ring did not take or give a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RingError {
    /// The record does not fit at present.
    Full,
    /// The other side published an impossible position or length.
    Corrupt,
}

/// The words that both sides share.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Control {
    /// Bytes ever produced; written by the producer only.
    tail: CachePadded<AtomicU64>,
    /// Bytes ever consumed; written by the consumer only; `tail - capacity <= head <= tail`.
    head: CachePadded<AtomicU64>,
    /// 1 while the consumer sleeps or is about to; set by the consumer, cleared by both.
    consumer_sleeps: CachePadded<AtomicU32>,
    /// 1 while the producer sleeps for room or is about to; set by the producer, cleared by both.
    producer_sleeps: CachePadded<AtomicU32>,
}

// SAFETY: atomic integers and padding.
#[cfg(not(loom))]
unsafe impl crate::mem::mapping::Atomics for Control {}

/// The memory of a ring.
pub(crate) trait Storage {
    /// Bytes of a piece. Payloads of more than two pieces are published in pieces.
    const PIECE: usize;

    fn control(&self) -> &Control;
    /// A power of two.
    fn capacity(&self) -> usize;
    /// Copies into the data at `at`; the caller keeps `at + bytes.len() <= capacity`.
    fn copy_in(&self, at: usize, bytes: &[u8]);
    /// Copies out of the data at `at`; the caller keeps `at + into.len() <= capacity`.
    fn copy_out(&self, at: usize, into: &mut [u8]);
}

/// Place of a range that may wrap at the end of the data, and its length up to that end.
fn halves(position: u64, len: usize, capacity: usize) -> (usize, usize) {
    let at = (position as usize) & (capacity - 1);
    (at, len.min(capacity - at))
}

/// Position of the payload of a record at `start`.
fn payload_at(start: u64, payload: usize) -> u64 {
    let behind = start + LinkHeader::LEN as u64;
    if payload < LONG {
        behind
    } else {
        behind.next_multiple_of(LINE)
    }
}

/// Position of the end of a record at `start`.
fn end_of(start: u64, payload: usize) -> u64 {
    (payload_at(start, payload) + payload as u64).next_multiple_of(8)
}

/// Sets a sleeper's flag; the caller looks once more before sleeping.
fn announce(flag: &AtomicU32) {
    flag.store(1, Ordering::Relaxed);
    // Pairs with the fence in `must_wake`: see "Sleeping" above.
    fence(Ordering::SeqCst);
}

/// Whether the other side, which sleeps on `flag`, must be woken after a position was published.
fn must_wake(flag: &AtomicU32) -> bool {
    // Pairs with the fence in `announce`: see "Sleeping" above.
    fence(Ordering::SeqCst);
    flag.load(Ordering::Relaxed) != 0 && flag.swap(0, Ordering::Relaxed) != 0
}

/// The side that appends records.
#[derive(Debug)]
pub(crate) struct Producer<S> {
    storage: S,
    /// The producer's position; the shared copy is only for the consumer.
    tail: u64,
    /// The consumer's position at the last look; `head <= tail`.
    head: u64,
}

impl<S: Storage> Producer<S> {
    pub(crate) fn new(storage: S) -> Self {
        Producer {
            storage,
            tail: 0,
            head: 0,
        }
    }

    /// Appends `header` and the concatenation of `parts`, whose length is `header.len`; returns
    /// whether the consumer must be woken.
    pub(crate) fn push(&mut self, header: &LinkHeader, parts: &[&[u8]]) -> Result<bool, RingError> {
        let len = header.len as usize;
        let end = end_of(self.tail, len);
        if self.free()? < end - self.tail {
            self.look_at_head()?;
            if self.free()? < end - self.tail {
                return Err(RingError::Full);
            }
        }
        self.copy_in(self.tail, &header.to_bytes());
        let piece = if len > 2 * S::PIECE {
            S::PIECE
        } else {
            MAX_PAYLOAD
        };
        let mut position = payload_at(self.tail, len);
        let mut published = position;
        for bytes in parts.iter().flat_map(|part| part.chunks(piece)) {
            if position - published >= piece as u64 {
                // Release: as below. The consumer is woken for the last piece alone.
                self.storage
                    .control()
                    .tail
                    .store(position, Ordering::Release);
                published = position;
            }
            self.copy_in(position, bytes);
            position += bytes.len() as u64;
        }
        self.tail = end;
        let control = self.storage.control();
        // Release: pairs with the Acquire in `Consumer::look_at_tail`, which then sees the bytes.
        control.tail.store(self.tail, Ordering::Release);
        Ok(must_wake(&control.consumer_sleeps))
    }

    fn copy_in(&self, position: u64, bytes: &[u8]) {
        let (at, first) = halves(position, bytes.len(), self.storage.capacity());
        let (start, rest) = bytes.split_at(first);
        self.storage.copy_in(at, start);
        self.storage.copy_in(0, rest);
    }

    fn free(&self) -> Result<u64, RingError> {
        let used = self.tail - self.head;
        (self.storage.capacity() as u64)
            .checked_sub(used)
            .ok_or(RingError::Corrupt)
    }

    fn look_at_head(&mut self) -> Result<(), RingError> {
        // Acquire: pairs with the Release in `Consumer::pop`, which has copied the bytes that are
        // about to be overwritten.
        let head = self.storage.control().head.load(Ordering::Acquire);
        if !(self.head..=self.tail).contains(&head) {
            return Err(RingError::Corrupt);
        }
        self.head = head;
        Ok(())
    }

    /// Whether there is more room than at the last look, or the consumer has broken the ring.
    pub(crate) fn has_news(&mut self) -> bool {
        let before = self.head;
        self.look_at_head().is_err() || self.head != before
    }

    /// Requests a wake-up when there is more room; returns whether to sleep.
    pub(crate) fn arm(&mut self) -> bool {
        announce(&self.storage.control().producer_sleeps);
        let sleep = !self.has_news();
        if !sleep {
            self.disarm();
        }
        sleep
    }

    pub(crate) fn disarm(&mut self) {
        self.storage
            .control()
            .producer_sleeps
            .store(0, Ordering::Relaxed);
    }
}

/// The side that takes records.
#[derive(Debug)]
pub(crate) struct Consumer<S> {
    storage: S,
    /// The consumer's position; the shared copy is only for the producer.
    head: u64,
    /// The producer's position at the last look; `head <= tail <= head + capacity`.
    tail: u64,
    /// The producer's position from which a record can be taken: behind `head`, or at the end of a
    /// record of which the last pieces were missing.
    wanted: u64,
    /// Whether only records before `tail` are taken.
    is_closed: bool,
}

impl<S: Storage> Consumer<S> {
    pub(crate) fn new(storage: S) -> Self {
        Consumer {
            storage,
            head: 0,
            tail: 0,
            wanted: 1,
            is_closed: false,
        }
    }

    /// Looks for records a last time; later records are ignored.
    #[cfg(not(loom))]
    pub(crate) fn close(&mut self) {
        // A broken ring ends with the last valid position.
        let _ = self.look_at_tail();
        self.is_closed = true;
    }

    /// Whether a record waits, or the producer has broken the ring.
    pub(crate) fn has_news(&mut self) -> bool {
        if self.tail < self.wanted && self.look_at_tail().is_err() {
            return true;
        }
        self.tail >= self.wanted
    }

    /// Replaces the contents of `payload` by the next record's; returns its header and whether
    /// the producer must be woken, or `None` when there is no whole record.
    pub(crate) fn pop(
        &mut self,
        payload: &mut Vec<u8>,
    ) -> Result<Option<(LinkHeader, bool)>, RingError> {
        if self.tail < self.wanted {
            self.look_at_tail()?;
            if self.tail < self.wanted {
                return Ok(None);
            }
        }
        // A hostile peer may publish less than a header. Then the header is made of arbitrary
        // bytes, and every header is checked anyway.
        let mut bytes = [0; LinkHeader::LEN];
        self.copy_out(self.head, &mut bytes);
        let header = LinkHeader::from_bytes(&bytes);
        let len = header.len as usize;
        if len > MAX_PAYLOAD {
            return Err(RingError::Corrupt);
        }
        let end = end_of(self.head, len);
        if end > self.tail && len <= 2 * S::PIECE {
            return Err(RingError::Corrupt);
        }
        payload.resize(len, 0);
        if !self.copy_payload(payload, end)? {
            self.wanted = end;
            return Ok(None);
        }
        self.head = end;
        self.wanted = end + 1;
        let control = self.storage.control();
        // Release: pairs with the Acquire in `Producer::look_at_head`.
        control.head.store(self.head, Ordering::Release);
        Ok(Some((header, must_wake(&control.producer_sleeps))))
    }

    /// Copies the payload of the record that ends at `end`, piece by piece as published; returns
    /// whether all pieces were published.
    fn copy_payload(&mut self, into: &mut [u8], end: u64) -> Result<bool, RingError> {
        let start = payload_at(self.head, into.len());
        let (mut copied, mut looks) = (0, LOOKS * (into.len() / S::PIECE));
        loop {
            let published = self.tail.saturating_sub(start).min(into.len() as u64) as usize;
            if published > copied {
                self.copy_out(start + copied as u64, &mut into[copied..published]);
                copied = published;
            }
            if self.tail >= end {
                return Ok(true);
            }
            if looks == 0 {
                return Ok(false);
            }
            looks -= 1;
            spin_loop();
            self.look_at_tail()?;
        }
    }

    fn copy_out(&self, position: u64, into: &mut [u8]) {
        let (at, first) = halves(position, into.len(), self.storage.capacity());
        let (start, rest) = into.split_at_mut(first);
        self.storage.copy_out(at, start);
        self.storage.copy_out(0, rest);
    }

    fn look_at_tail(&mut self) -> Result<(), RingError> {
        if self.is_closed {
            return Ok(());
        }
        // Acquire: pairs with the Release in `Producer::push`.
        let tail = self.storage.control().tail.load(Ordering::Acquire);
        let waiting = tail.wrapping_sub(self.head);
        if waiting > self.storage.capacity() as u64 || tail < self.tail {
            return Err(RingError::Corrupt);
        }
        self.tail = tail;
        Ok(())
    }

    /// Requests a wake-up when there is a record; returns whether to sleep.
    pub(crate) fn arm(&mut self) -> bool {
        announce(&self.storage.control().consumer_sleeps);
        let sleep = !self.has_news();
        if !sleep {
            self.disarm();
        }
        sleep
    }

    pub(crate) fn disarm(&mut self) {
        self.storage
            .control()
            .consumer_sleeps
            .store(0, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
impl<S: Storage> Producer<S> {
    /// Overwrites data of the ring, as a hostile producer may.
    pub(crate) fn overwrite(&self, at: usize, bytes: &[u8]) {
        self.storage.copy_in(at, bytes);
    }
}

#[cfg(test)]
impl Control {
    fn new() -> Self {
        Control {
            tail: CachePadded::new(AtomicU64::new(0)),
            head: CachePadded::new(AtomicU64::new(0)),
            consumer_sleeps: CachePadded::new(AtomicU32::new(0)),
            producer_sleeps: CachePadded::new(AtomicU32::new(0)),
        }
    }
}

#[cfg(test)]
fn test_header(len: usize) -> LinkHeader {
    use crate::core::hold::Hold;
    use crate::core::link::Protocol;
    use crate::key::{Epoch, Partition};
    use crate::topology::NodeId;
    LinkHeader {
        partition: Partition(1),
        epoch: Epoch(2),
        source: NodeId(3),
        protocol: Protocol(4),
        len: len as u32,
        hold: Hold::NONE,
    }
}

#[cfg(all(test, loom))]
mod loom_tests;
#[cfg(all(test, not(loom)))]
mod tests;
