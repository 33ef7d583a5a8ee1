//! The ring as a bounded queue, with hostile peers, in pieces and between threads.

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

    /// A peer that writes arbitrary bytes anywhere causes an error or wrong bytes, nothing else.
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
fn a_record_is_taken_once_its_last_piece_is_published() {
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
    assert!(!consumer.arm(), "the record is complete");
    assert!(consumer.pop(&mut payload).unwrap().is_some());
    assert_eq!(payload, bytes);
    assert!(consumer.arm());
}

#[test]
fn long_payloads_begin_at_a_cache_line() {
    for start in [0, 8, 24, 40, 64, 1 << 20] {
        assert_eq!(payload_at(start, LONG - 1), start + LinkHeader::LEN as u64);
        let at = payload_at(start, LONG);
        assert!(at.is_multiple_of(LINE) && at - start < LINE + LinkHeader::LEN as u64);
        assert_eq!(end_of(start, LONG + 1), at + LONG as u64 + 8);
    }
}

#[test]
fn two_threads_pass_every_record_in_order() {
    // Few records under Miri, which is slow.
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
