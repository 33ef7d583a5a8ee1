//! Flow control of an RDMA stream, without I/O.
//!
//! Credits limit the bytes to the length of the peer's ring, and the messages to the peer's receive
//! queue. The peer returns credits for bytes read and messages received: with its own messages, or
//! by a message of their own when it owes half of either. Returned credits are an immediate value:
//!
//! ```text
//!  31       24 23        0
//!  +----------+----------+
//!  | messages |  bytes   |
//!  +----------+----------+
//! ```
//!
//! A message that only returns credits costs none. Each returns half of the bytes or messages, and
//! the peer has at most all of both, so at most four of them are in flight.

use std::collections::VecDeque;

/// Bytes of a ring, a power of two: 16 of the longest packets.
pub(super) const RING: usize = 1 << 20;

/// Messages that a peer may send before credits are returned.
const MESSAGES: usize = 64;

/// Messages in flight that only return credits.
const RETURNS: usize = 4;

/// Length of the receive queue and of the send queue of an end.
pub(super) const REQUESTS: usize = MESSAGES + RETURNS;

/// Bits of an immediate value that count bytes.
const BYTES_BITS: u32 = 24;

/// The peer returned or used more credits than it had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Broken;

/// The sending direction of an end.
#[derive(Debug)]
pub(super) struct Outgoing {
    /// Bytes sent; modulo [`RING`] the place of the next.
    at: u64,
    /// Bytes used in the peer's ring, up to [`RING`].
    bytes: usize,
    /// Receives used of the peer, up to [`MESSAGES`].
    messages: usize,
    /// Bytes of each request without a completion, oldest first; 0 for a message that only returns
    /// credits.
    requests: VecDeque<usize>,
    /// Number of the oldest.
    oldest: u64,
    /// Bytes of all `requests`.
    leaving: usize,
    /// Messages among `requests` that only return credits.
    returns: usize,
    /// Requests and bytes since the last signalled request.
    unsignalled: (usize, usize),
}

/// A request to post.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sent {
    pub(super) number: u64,
    /// Whether to signal its completion: often enough that no sender waits for an unsignalled one.
    pub(super) signalled: bool,
}

impl Outgoing {
    pub(super) fn new() -> Self {
        Outgoing {
            at: 0,
            bytes: 0,
            messages: 0,
            requests: VecDeque::with_capacity(REQUESTS),
            oldest: 0,
            leaving: 0,
            returns: 0,
            // The first is signalled.
            unsignalled: (MESSAGES / 4 - 1, 0),
        }
    }

    /// Place of the next byte, in both rings.
    pub(super) fn place(&self) -> usize {
        self.at as usize % RING
    }

    /// Longest possible length of the next message.
    pub(super) fn room(&self) -> usize {
        let under_way = self.requests.len() - self.returns;
        if self.messages.max(under_way) < MESSAGES {
            // Neither unsent bytes in our ring nor unread bytes in the peer's are overwritten.
            (RING - self.bytes.max(self.leaving)).min(RING - self.place())
        } else {
            0
        }
    }

    /// Records a message of `len` bytes, for which there is [room](Outgoing::room).
    pub(super) fn send(&mut self, len: usize) -> Sent {
        self.at += len as u64;
        self.bytes += len;
        self.messages += 1;
        self.leaving += len;
        let (requests, bytes) = (self.unsignalled.0 + 1, self.unsignalled.1 + len);
        let signalled = requests >= MESSAGES / 4 || bytes >= RING / 4;
        self.unsignalled = if signalled { (0, 0) } else { (requests, bytes) };
        self.push(len, signalled)
    }

    /// Whether a message that only returns credits may be sent.
    pub(super) fn may_return(&self) -> bool {
        self.returns < RETURNS
    }

    /// Records a message that only returns credits.
    pub(super) fn send_return(&mut self) -> Sent {
        self.returns += 1;
        self.push(0, true)
    }

    fn push(&mut self, len: usize, signalled: bool) -> Sent {
        let number = self.oldest + self.requests.len() as u64;
        self.requests.push_back(len);
        Sent { number, signalled }
    }

    /// Whether the first request has completed.
    pub(super) fn has_sent(&self) -> bool {
        self.oldest > 0
    }

    /// Records that all requests up to number `last` have completed.
    pub(super) fn have_left(&mut self, last: u64) {
        while self.oldest <= last
            && let Some(len) = self.requests.pop_front()
        {
            self.oldest += 1;
            self.leaving -= len;
            self.returns -= usize::from(len == 0);
        }
    }

    /// Records credits that the peer has returned.
    pub(super) fn given_back(&mut self, number: u32) -> Result<(), Broken> {
        let bytes = (number & ((1 << BYTES_BITS) - 1)) as usize;
        let messages = (number >> BYTES_BITS) as usize;
        self.bytes = self.bytes.checked_sub(bytes).ok_or(Broken)?;
        self.messages = self.messages.checked_sub(messages).ok_or(Broken)?;
        Ok(())
    }
}

/// The receiving direction of an end.
#[derive(Debug, Default)]
pub(super) struct Incoming {
    /// Bytes read.
    at: u64,
    /// Bytes to read; together with `owed_bytes` up to [`RING`].
    pub(super) len: usize,
    owed_bytes: usize,
    /// Up to [`MESSAGES`].
    owed_messages: usize,
}

impl Incoming {
    /// Place of the next byte to read.
    pub(super) fn place(&self) -> usize {
        self.at as usize % RING
    }

    /// Records a message of `len` bytes, in whose place another is expected.
    pub(super) fn arrived(&mut self, len: usize) -> Result<(), Broken> {
        self.len += len;
        self.owed_messages += 1;
        if self.len + self.owed_bytes <= RING && self.owed_messages <= MESSAGES {
            Ok(())
        } else {
            Err(Broken)
        }
    }

    /// Records that `len` bytes were read.
    pub(super) fn read(&mut self, len: usize) {
        self.at += len as u64;
        self.len -= len;
        self.owed_bytes += len;
    }

    /// Whether the debt is worth a message of its own.
    pub(super) fn owes_much(&self) -> bool {
        self.owed_bytes >= RING / 2 || self.owed_messages >= MESSAGES / 2
    }

    /// Takes all owed credits, as an immediate value.
    pub(super) fn give_back(&mut self) -> u32 {
        let number = (self.owed_messages << BYTES_BITS | self.owed_bytes) as u32;
        (self.owed_bytes, self.owed_messages) = (0, 0);
        number
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Both ends, and the messages between them.
    struct Ends {
        ends: [(Outgoing, Incoming); 2],
        /// Bytes and immediate value of each message in flight from each end.
        way: [VecDeque<(usize, u32)>; 2],
        /// The newest signalled request of each end.
        told: [Option<u64>; 2],
    }

    impl Ends {
        fn new() -> Self {
            Ends {
                ends: [(); 2].map(|()| (Outgoing::new(), Incoming::default())),
                way: Default::default(),
                told: [None; 2],
            }
        }

        /// Writes up to `len` bytes; returns the number for which there was room.
        fn write(&mut self, end: usize, len: usize) -> usize {
            let (outgoing, incoming) = &mut self.ends[end];
            let len = len.min(outgoing.room());
            if len > 0 {
                let sent = outgoing.send(len);
                let message = (len, incoming.give_back());
                self.carry(end, sent, message);
            }
            len
        }

        fn read(&mut self, end: usize, len: usize) -> usize {
            let (_, incoming) = &mut self.ends[end];
            let len = len.min(incoming.len);
            incoming.read(len);
            self.give_back(end);
            len
        }

        fn give_back(&mut self, end: usize) {
            let (outgoing, incoming) = &mut self.ends[end];
            if incoming.owes_much() && outgoing.may_return() {
                let sent = outgoing.send_return();
                let message = (0, incoming.give_back());
                self.carry(end, sent, message);
            }
        }

        fn carry(&mut self, end: usize, sent: Sent, message: (usize, u32)) {
            if sent.signalled {
                self.told[end] = Some(sent.number);
            }
            self.way[end].push_back(message);
            assert!(self.way[end].len() <= REQUESTS, "more than is expected");
            assert!(self.ends[end].0.requests.len() <= REQUESTS);
        }

        /// The oldest message of the other end arrives.
        fn arrive(&mut self, end: usize) {
            if let Some((len, number)) = self.way[1 - end].pop_front() {
                let (outgoing, incoming) = &mut self.ends[end];
                outgoing.given_back(number).unwrap();
                if len > 0 {
                    incoming.arrived(len).unwrap();
                }
                self.give_back(end);
            }
        }

        /// The device reports completions.
        fn tell(&mut self, end: usize) {
            if let Some(last) = self.told[end].take() {
                self.ends[end].0.have_left(last);
            }
            self.give_back(end);
        }
    }

    proptest! {
        /// In any order of steps no end receives more than it expects, and all bytes arrive.
        #[test]
        fn correct_ends_never_exceed_credits_and_never_wait_for_ever(
            steps in prop::collection::vec((0..4_u8, 0..2_usize, 1..300_000_usize), 1..2000)
        ) {
            let mut ends = Ends::new();
            let (mut written, mut read) = ([0; 2], [0; 2]);
            for (step, end, len) in steps {
                match step {
                    0 => written[end] += ends.write(end, len),
                    1 => read[end] += ends.read(end, len),
                    2 => ends.arrive(end),
                    _ => ends.tell(end),
                }
            }
            for end in [0, 1].repeat(8 * REQUESTS) {
                ends.arrive(end);
                ends.tell(end);
                read[end] += ends.read(end, RING);
            }
            prop_assert_eq!([read[1], read[0]], written);
            for end in [0, 1] {
                prop_assert!(ends.write(end, 1) == 1, "there is room again");
            }
        }
    }

    #[test]
    fn a_message_ends_at_the_end_of_the_ring() {
        let mut ends = Ends::new();
        assert_eq!(ends.write(0, RING - 10), RING - 10);
        ends.tell(0);
        ends.arrive(1);
        ends.read(1, RING);
        ends.arrive(0);
        assert_eq!(ends.write(0, 100), 10);
        assert_eq!(ends.write(0, 100), 100);
    }

    #[test]
    fn the_first_request_and_every_sixteenth_after_it_are_signalled() {
        let mut outgoing = Outgoing::new();
        let asked: Vec<_> = (0..33).filter(|_| outgoing.send(1).signalled).collect();
        assert_eq!(asked, [0, 16, 32]);
        assert!(!outgoing.has_sent());
        outgoing.have_left(0);
        assert!(outgoing.has_sent());
    }

    #[test]
    fn an_excess_of_messages_bytes_or_credits_is_broken() {
        let mut incoming = Incoming::default();
        assert_eq!(incoming.arrived(RING), Ok(()));
        assert_eq!(incoming.arrived(1), Err(Broken));
        let mut incoming = Incoming::default();
        assert!((0..MESSAGES).all(|_| incoming.arrived(1).is_ok()));
        assert_eq!(incoming.arrived(1), Err(Broken));
        let mut outgoing = Outgoing::new();
        outgoing.send(7);
        assert_eq!(outgoing.given_back(1 << BYTES_BITS | 8), Err(Broken));
        let mut outgoing = Outgoing::new();
        outgoing.send(7);
        assert_eq!(outgoing.given_back(2 << BYTES_BITS | 7), Err(Broken));
    }
}
