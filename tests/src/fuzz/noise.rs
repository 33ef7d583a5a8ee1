//! A connection to `noise serve`, from its first byte to its last.

use bench::noise::net::key::Key;
use bench::noise::net::session::{Limits, Session, Step};
use bench::noise::net::wire::{Digest, Order};

/// Limits of the session.
const LIMITS: Limits = Limits {
    seconds: 60,
    bytes: 1 << 30,
};

/// Bytes of one read.
const READ: usize = 97;

/// Lines of a stranger, who becomes a client with a proof of the key. No order comes before it or
/// beyond a limit.
pub fn noise(bytes: &[u8]) -> bool {
    // The server's nonce is random elsewhere; a corpus needs one of its own.
    let nonce = Digest::try_from("5e".repeat(32)).expect("32 bytes");
    let mut session = Session::new(Key::of("key of the corpus"), nonce, LIMITS);
    let (mut is_known, mut accepted) = (false, 0);
    for part in bytes.chunks(READ) {
        session.push(part);
        loop {
            match session.next_step() {
                Ok(None) => break,
                Err(_) => {
                    assert_eq!(session.next_step(), Ok(None), "the conversation is over");
                    return false;
                }
                Ok(Some(Step::Answer(_))) => {}
                Ok(Some(Step::Authenticated(_))) => is_known = true,
                Ok(Some(Step::Data { .. })) => accepted += 1,
                Ok(Some(Step::Work(order))) => {
                    assert!(is_known, "{order:?} without a proof");
                    check(&order);
                    accepted += 1;
                }
            }
        }
    }
    accepted > 0
}

fn check(order: &Order) {
    match *order {
        Order::Echo {
            bytes,
            connections,
            count,
            ..
        } => {
            assert!(bytes <= 4 << 20 && count <= 1_000_000);
            assert!((1..=64).contains(&connections));
        }
        Order::Poll { count } => assert!(count <= 1_000_000),
        Order::Streams(streams) => {
            let ms = u64::from(streams.slices) * u64::from(streams.slice_ms);
            assert!(ms < 1000 * (LIMITS.seconds + 1), "{streams:?}");
            assert!((1..=64).contains(&streams.streams) && streams.bytes <= 4 << 20);
        }
        // It has no numbers.
        Order::Export => {}
    }
}
