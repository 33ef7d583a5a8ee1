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
//! Positions count bytes since the ring was made and never wrap; a byte's place is its position
//! modulo the capacity. A record is a link header and its payload, padded to a multiple of 8. The
//! payload of a long record begins with a cache line, since copies to one are faster.
//! Each side keeps its own position to itself and publishes a copy, so a peer that scribbles over
//! the shared words can end the ring ([`RingError::Corrupt`]) and nothing else: whatever is read
//! is checked against the capacity before it is used.
//!
//! # Pieces
//! The payload of a long record is published in pieces, so that the consumer copies the first ones out
//! while the producer still copies the last ones in. The consumer waits for the rest as long as the
//! producer goes on ([`LOOKS`]). After that the record counts as not yet there, and is copied from its
//! start the next time.
//!
//! # Sleeping
//! Who finds nothing to do *arms*: it sets its flag, then looks once more. Who publishes a
//! position looks at the other's flag afterwards. Between the store and the load on either side
//! stands a SeqCst fence, so at least one of the two sees the other's store: either the sleeper
//! finds the news, or the publisher finds the flag and must wake it.

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

/// How often a consumer looks for each piece of a record: a few microseconds, which is longer than a
/// producer takes that goes on.
const LOOKS: usize = if cfg!(loom) { 1 } else { 100 };

/// Why a ring did not take or give a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RingError {
    /// The record does not fit at present.
    Full,
    /// The other side published what cannot be.
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
    /// 1 while the consumer sleeps or is about to; set by it, cleared by both.
    consumer_sleeps: CachePadded<AtomicU32>,
    /// 1 while the producer sleeps for room or is about to; set by it, cleared by both.
    producer_sleeps: CachePadded<AtomicU32>,
}

// SAFETY: integers that are atomic, and padding.
#[cfg(not(loom))]
unsafe impl crate::mem::mapping::Atomics for Control {}

/// Where a ring lives.
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

/// Splits a range that may go over the end of the data in two that do not.
fn halves(position: u64, len: usize, capacity: usize) -> (usize, usize) {
    let at = (position as usize) & (capacity - 1);
    (at, len.min(capacity - at))
}

/// Where the payload begins of a record at `start`.
fn payload_at(start: u64, payload: usize) -> u64 {
    let behind = start + LinkHeader::LEN as u64;
    if payload < LONG {
        behind
    } else {
        behind.next_multiple_of(LINE)
    }
}

/// Where a record at `start` ends.
fn end_of(start: u64, payload: usize) -> u64 {
    (payload_at(start, payload) + payload as u64).next_multiple_of(8)
}

/// Sets a sleeper's flag; the caller looks once more before it sleeps.
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
    /// Our position; the shared copy is only for the consumer.
    tail: u64,
    /// The consumer's position when we last looked; `head <= tail`.
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
        // Acquire: pairs with the Release in `Consumer::pop`, which has then copied the bytes
        // that we are about to overwrite.
        let head = self.storage.control().head.load(Ordering::Acquire);
        if !(self.head..=self.tail).contains(&head) {
            return Err(RingError::Corrupt);
        }
        self.head = head;
        Ok(())
    }

    /// Whether there is more room than when we last looked, or the consumer has broken the ring.
    pub(crate) fn has_news(&mut self) -> bool {
        let before = self.head;
        self.look_at_head().is_err() || self.head != before
    }

    /// Asks to be woken when there is more room; returns whether to sleep.
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
    /// Our position; the shared copy is only for the producer.
    head: u64,
    /// The producer's position when we last looked; `head <= tail <= head + capacity`.
    tail: u64,
    /// The producer's position at which there is something to take: behind `head`, or at the end of a
    /// record of which the last pieces were missing.
    wanted: u64,
    /// Whether nothing more is taken than what is before `tail`.
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

    /// Looks for records a last time; what is published from now on does not exist.
    #[cfg(not(loom))]
    pub(crate) fn close(&mut self) {
        // A broken ring ends with the last whole look at it.
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
        // A record begins with a whole header, whose bytes need not have been published by a peer that
        // lies: then they are any bytes, as those of a header may be.
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

    /// Copies the payload of the record that ends at `end`, piece by piece as they are published; returns
    /// whether all of them were.
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

    /// Asks to be woken when there is a record; returns whether to sleep.
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
    /// What a hostile producer does.
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
    use crate::core::link::Protocol;
    use crate::key::{Epoch, Partition};
    use crate::topology::NodeId;
    LinkHeader {
        partition: Partition(1),
        epoch: Epoch(2),
        source: NodeId(3),
        protocol: Protocol(4),
        len: len as u32,
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::collections::VecDeque;
    use std::sync::Arc;
    use std::sync::atomic::AtomicU8;

    use proptest::prelude::*;

    use super::*;

    struct Heap {
        control: Control,
        bytes: Vec<AtomicU8>,
    }

    impl Storage for Arc<Heap> {
        const PIECE: usize = 24;

        fn control(&self) -> &Control {
            &self.control
        }
        fn capacity(&self) -> usize {
            self.bytes.len()
        }
        fn copy_in(&self, at: usize, bytes: &[u8]) {
            for (i, byte) in bytes.iter().enumerate() {
                self.bytes[at + i].store(*byte, Ordering::Relaxed);
            }
        }
        fn copy_out(&self, at: usize, into: &mut [u8]) {
            for (i, byte) in into.iter_mut().enumerate() {
                *byte = self.bytes[at + i].load(Ordering::Relaxed);
            }
        }
    }

    fn ring(capacity: usize) -> (Arc<Heap>, Producer<Arc<Heap>>, Consumer<Arc<Heap>>) {
        let bytes = (0..capacity).map(|_| AtomicU8::new(0)).collect();
        let heap = Arc::new(Heap {
            control: Control::new(),
            bytes,
        });
        (
            heap.clone(),
            Producer::new(heap.clone()),
            Consumer::new(heap),
        )
    }

    #[derive(Clone, Debug)]
    enum Step {
        Push(Vec<u8>),
        Pop,
        ArmConsumer,
        ArmProducer,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => proptest::collection::vec(any::<u8>(), 0..120).prop_map(Step::Push),
            4 => Just(Step::Pop),
            1 => Just(Step::ArmConsumer),
            1 => Just(Step::ArmProducer),
        ]
    }

    proptest! {
        /// The oracle: a queue of payloads with the same bound on bytes.
        #[test]
        fn a_ring_is_a_bounded_queue(steps in proptest::collection::vec(step(), 1..400)) {
            let (_, mut producer, mut consumer) = ring(256);
            let mut oracle: VecDeque<Vec<u8>> = VecDeque::new();
            let (mut asleep, mut waiting) = (false, false);
            for step in steps {
                match step {
                    Step::Push(payload) => {
                        let used: u64 = oracle.iter().map(|p| end_of(0, p.len())).sum();
                        let fits = used + end_of(0, payload.len()) <= 256;
                        let half = payload.len() / 2;
                        let parts = [&payload[..half], &payload[half..]];
                        let pushed = producer.push(&test_header(payload.len()), &parts);
                        prop_assert_eq!(pushed, if fits { Ok(asleep) } else { Err(RingError::Full) });
                        if fits {
                            asleep = false;
                            oracle.push_back(payload);
                        }
                    }
                    Step::Pop => {
                        let mut payload = vec![7; 3];
                        let popped = consumer.pop(&mut payload).unwrap();
                        prop_assert_eq!(popped.map(|(_, wake)| wake), oracle.front().map(|_| waiting));
                        if let Some(expected) = oracle.pop_front() {
                            prop_assert_eq!(payload, expected);
                            waiting = false;
                        }
                    }
                    Step::ArmConsumer => {
                        asleep = consumer.arm();
                        prop_assert_eq!(asleep, oracle.is_empty());
                    }
                    Step::ArmProducer => waiting = producer.arm(),
                }
            }
        }

        /// A peer that writes anything anywhere gets an error or wrong bytes, nothing else.
        #[test]
        fn a_hostile_peer_breaks_only_its_own_ring(
            data in proptest::collection::vec(any::<u8>(), 256),
            tail in prop_oneof![any::<u64>(), 0u64..600],
            head in prop_oneof![any::<u64>(), 0u64..600],
        ) {
            let (heap, mut producer, mut consumer) = ring(256);
            heap.copy_in(0, &data);
            heap.control.tail.store(tail, Ordering::Relaxed);
            heap.control.head.store(head, Ordering::Relaxed);
            let mut payload = Vec::new();
            for _ in 0..40 {
                match consumer.pop(&mut payload) {
                    Ok(Some((header, _))) => prop_assert_eq!(header.len as usize, payload.len()),
                    Ok(None) | Err(_) => break,
                }
            }
            for _ in 0..40 {
                if producer.push(&test_header(16), &[&[0; 16]]).is_err() {
                    break;
                }
            }
            let _ = (producer.arm(), consumer.arm());
        }
    }

    #[test]
    fn impossible_positions_are_corrupt() {
        let (heap, mut producer, mut consumer) = ring(256);
        heap.control.tail.store(257, Ordering::Relaxed);
        assert_eq!(consumer.pop(&mut Vec::new()), Err(RingError::Corrupt));
        assert!(!consumer.arm(), "a broken ring is news");
        for _ in 0..6 {
            producer.push(&test_header(16), &[&[0; 16]]).unwrap();
        }
        heap.control.head.store(1 << 40, Ordering::Relaxed);
        assert_eq!(
            producer.push(&test_header(16), &[&[0; 16]]),
            Err(RingError::Corrupt)
        );
    }

    #[test]
    fn a_record_longer_than_what_was_published_is_corrupt() {
        let (heap, mut producer, mut consumer) = ring(256);
        producer.push(&test_header(8), &[&[0; 8]]).unwrap();
        heap.copy_in(0, &test_header(9).to_bytes());
        assert_eq!(consumer.pop(&mut Vec::new()), Err(RingError::Corrupt));
    }

    /// The first pieces of a record alone are neither a record, nor news, nor the end of the ring.
    #[test]
    fn a_record_is_taken_once_its_last_piece_is_there() {
        let (heap, mut producer, mut consumer) = ring(256);
        producer.push(&test_header(8), &[&[1; 8]]).unwrap();
        let mut payload = Vec::new();
        assert!(consumer.pop(&mut payload).unwrap().is_some());
        let bytes: Vec<u8> = (0..100).collect();
        producer.push(&test_header(100), &[&bytes]).unwrap();
        let end = heap.control.tail.load(Ordering::Relaxed);
        for first in [33, 56, 80, end - 1] {
            heap.control.tail.store(first, Ordering::Relaxed);
            consumer.tail = consumer.tail.min(first);
            assert_eq!(consumer.pop(&mut payload), Ok(None), "of {first} bytes");
            assert!(!consumer.has_news() && consumer.arm(), "of {first} bytes");
            consumer.disarm();
        }
        heap.control.tail.store(end, Ordering::Relaxed);
        assert!(!consumer.arm(), "the record is there");
        assert!(consumer.pop(&mut payload).unwrap().is_some());
        assert_eq!(payload, bytes);
        assert!(consumer.arm());
    }

    #[test]
    fn long_payloads_begin_with_a_line() {
        for start in [0, 8, 24, 40, 64, 1 << 20] {
            assert_eq!(payload_at(start, LONG - 1), start + LinkHeader::LEN as u64);
            let at = payload_at(start, LONG);
            assert!(at.is_multiple_of(LINE) && at - start < LINE + LinkHeader::LEN as u64);
            assert_eq!(end_of(start, LONG + 1), at + LONG as u64 + 8);
        }
    }

    #[test]
    fn two_threads_pass_every_record_in_order() {
        // Miri takes its time.
        let records = if cfg!(miri) { 200 } else { 20_000u32 };
        let (_, mut producer, mut consumer) = ring(512);
        std::thread::scope(|scope| {
            scope.spawn(move || {
                for n in 0..records {
                    let payload = vec![n as u8; (n % 200) as usize];
                    while producer
                        .push(&test_header(payload.len()), &[&payload])
                        .is_err()
                    {
                        std::thread::yield_now();
                    }
                }
            });
            let mut payload = Vec::new();
            for n in 0..records {
                while consumer.pop(&mut payload).unwrap().is_none() {
                    std::thread::yield_now();
                }
                assert_eq!(payload, vec![n as u8; (n % 200) as usize]);
            }
        });
    }
}

/// Every interleaving that the memory model allows, within loom's bounds.
#[cfg(all(test, loom))]
mod loom_tests {
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::thread;

    use super::*;

    /// Cells on which loom reports every access that is not ordered by the ring.
    struct Cells {
        control: Control,
        words: Vec<UnsafeCell<[u8; 8]>>,
    }

    // SAFETY: loom checks every access to the cells and fails the test on a race.
    unsafe impl Send for Cells {}
    // SAFETY: as above.
    unsafe impl Sync for Cells {}

    impl Storage for Arc<Cells> {
        const PIECE: usize = 8;

        fn control(&self) -> &Control {
            &self.control
        }
        fn capacity(&self) -> usize {
            self.words.len() * 8
        }
        fn copy_in(&self, at: usize, bytes: &[u8]) {
            for (i, byte) in bytes.iter().enumerate() {
                let place = at + i;
                // SAFETY: loom verifies that nobody else accesses the cell meanwhile.
                self.words[place / 8].with_mut(|word| unsafe { (*word)[place % 8] = *byte });
            }
        }
        fn copy_out(&self, at: usize, into: &mut [u8]) {
            for (i, byte) in into.iter_mut().enumerate() {
                let place = at + i;
                // SAFETY: as above.
                *byte = self.words[place / 8].with(|word| unsafe { (*word)[place % 8] });
            }
        }
    }

    /// A ring that holds two records of one word each.
    fn ring() -> (Producer<Arc<Cells>>, Consumer<Arc<Cells>>) {
        let words = (0..8).map(|_| UnsafeCell::new([0; 8])).collect();
        let cells = Arc::new(Cells {
            control: Control::new(),
            words,
        });
        (Producer::new(cells.clone()), Consumer::new(cells))
    }

    fn payload(n: u8) -> [u8; 8] {
        [n; 8]
    }

    #[test]
    fn records_arrive_whole_and_in_order() {
        loom::model(|| {
            let (mut producer, mut consumer) = ring();
            let sender = thread::spawn(move || {
                for n in 1..=3 {
                    while producer.push(&test_header(8), &[&payload(n)]).is_err() {
                        thread::yield_now();
                    }
                }
            });
            let mut bytes = Vec::new();
            for n in 1..=3 {
                while consumer.pop(&mut bytes).unwrap().is_none() {
                    thread::yield_now();
                }
                assert_eq!(bytes, payload(n));
            }
            sender.join().unwrap();
        });
    }

    #[test]
    fn a_sleeping_consumer_is_always_woken() {
        loom::model(|| {
            let (mut producer, mut consumer) = ring();
            let sender = thread::spawn(move || producer.push(&test_header(8), &[&payload(1)]));
            let slept = consumer.arm();
            let woken = sender.join().unwrap().unwrap();
            let arrived = consumer.pop(&mut Vec::new()).unwrap().is_some();
            assert!(arrived);
            assert!(
                !slept || woken,
                "asleep with a record in the ring and nobody to wake it"
            );
        });
    }

    #[test]
    fn a_record_in_pieces_is_taken_whole_and_wakes_its_consumer() {
        loom::model(|| {
            let (mut producer, mut consumer) = ring();
            let sent: [u8; 24] = std::array::from_fn(|n| n as u8);
            let sender = thread::spawn(move || producer.push(&test_header(24), &[&sent]));
            let mut bytes = Vec::new();
            let at_once = consumer.pop(&mut bytes).unwrap().is_some();
            let slept = !at_once && consumer.arm();
            let woken = sender.join().unwrap().unwrap();
            assert!(
                !slept || woken,
                "asleep with a record in the ring and nobody to wake it"
            );
            assert!(at_once || consumer.pop(&mut bytes).unwrap().is_some());
            assert_eq!(bytes, sent);
        });
    }

    #[test]
    fn a_producer_that_waits_for_room_is_always_woken() {
        loom::model(|| {
            let (mut producer, mut consumer) = ring();
            producer.push(&test_header(8), &[&payload(1)]).unwrap();
            producer.push(&test_header(8), &[&payload(2)]).unwrap();
            let receiver = thread::spawn(move || {
                let (_, wake) = consumer.pop(&mut Vec::new()).unwrap().unwrap();
                wake
            });
            let slept = producer.arm();
            let woken = receiver.join().unwrap();
            assert!(
                !slept || woken,
                "asleep with room in the ring and nobody to wake it"
            );
            assert!(producer.push(&test_header(8), &[&payload(3)]).is_ok());
        });
    }
}
