//! Every interleaving that the memory model allows, within loom's bounds.

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
            // SAFETY: loom verifies that no other thread accesses the cell meanwhile.
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
