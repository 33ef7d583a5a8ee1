//! What the two ends of a stream may send and owe each other: numbers only.
//!
//! An end may have written as many bytes as the peer's ring has, and as many messages as
//! the peer has told its device to expect. The peer gives both back as it takes them, along with what it
//! sends itself, or alone when it owes half of either. What is given back comes as a number:
//!
//! ```text
//!  31       24 23        0
//!  +----------+----------+
//!  | messages |  bytes   |
//!  +----------+----------+
//! ```
//!
//! A message that gives back alone is paid for with nothing. As each gives back half of something, and
//! the peer has got no more than all of both, four of them are on their way at most.

use std::collections::VecDeque;

/// Bytes of a ring, a power of two: 16 of the longest packets.
pub(super) const RING: usize = 1 << 20;

/// Messages that a peer may send before it hears that they were taken.
const MESSAGES: usize = 64;

/// Messages that give back alone and are under way.
const RETURNS: usize = 4;

/// Messages that an end must expect, and requests that it may have.
pub(super) const REQUESTS: usize = MESSAGES + RETURNS;

/// Bits of the number that count bytes.
const BYTES_BITS: u32 = 24;

/// The peer has broken the rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Broken;

/// What an end has sent.
#[derive(Debug)]
pub(super) struct Outgoing {
    /// Bytes so far, of which the remainder by [`RING`] is the place of the next.
    at: u64,
    /// Of the peer's: up to [`RING`].
    bytes: usize,
    /// Up to [`MESSAGES`].
    messages: usize,
    /// Bytes of each request of which the device has not told that it has left, oldest first; a message that
    /// gives back alone has none.
    requests: VecDeque<usize>,
    /// The number of the oldest.
    oldest: u64,
    /// Bytes of all of them.
    leaving: usize,
    returns: usize,
    /// Requests and bytes since the last that asked for a completion.
    untold: (usize, usize),
}

/// A request to be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sent {
    pub(super) number: u64,
    /// Whether it is to ask for a completion: often enough that nothing waits for one that nobody asked for.
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
            // The first asks.
            untold: (MESSAGES / 4 - 1, 0),
        }
    }

    /// Where the next byte goes, in both rings.
    pub(super) fn place(&self) -> usize {
        self.at as usize % RING
    }

    /// Bytes that one more message could have: those after it go elsewhere.
    pub(super) fn room(&self) -> usize {
        let under_way = self.requests.len() - self.returns;
        if self.messages.max(under_way) < MESSAGES {
            // What has not left is not to be overwritten here, what was not taken not there.
            (RING - self.bytes.max(self.leaving)).min(RING - self.place())
        } else {
            0
        }
    }

    /// Notes a message with so many bytes, for which there is [room](Outgoing::room).
    pub(super) fn send(&mut self, len: usize) -> Sent {
        self.at += len as u64;
        self.bytes += len;
        self.messages += 1;
        self.leaving += len;
        let (requests, bytes) = (self.untold.0 + 1, self.untold.1 + len);
        let signalled = requests >= MESSAGES / 4 || bytes >= RING / 4;
        self.untold = if signalled { (0, 0) } else { (requests, bytes) };
        self.push(len, signalled)
    }

    /// Whether there is room for a message that gives back alone.
    pub(super) fn may_return(&self) -> bool {
        self.returns < RETURNS
    }

    /// Notes such a message.
    pub(super) fn send_return(&mut self) -> Sent {
        self.returns += 1;
        self.push(0, true)
    }

    fn push(&mut self, len: usize, signalled: bool) -> Sent {
        let number = self.oldest + self.requests.len() as u64;
        self.requests.push_back(len);
        Sent { number, signalled }
    }

    /// Whether the first is known to have left.
    pub(super) fn has_sent(&self) -> bool {
        self.oldest > 0
    }

    /// All requests up to this number have left.
    pub(super) fn have_left(&mut self, last: u64) {
        while self.oldest <= last
            && let Some(len) = self.requests.pop_front()
        {
            self.oldest += 1;
            self.leaving -= len;
            self.returns -= usize::from(len == 0);
        }
    }

    /// The peer has given back what this number says.
    pub(super) fn given_back(&mut self, number: u32) -> Result<(), Broken> {
        let bytes = (number & ((1 << BYTES_BITS) - 1)) as usize;
        let messages = (number >> BYTES_BITS) as usize;
        self.bytes = self.bytes.checked_sub(bytes).ok_or(Broken)?;
        self.messages = self.messages.checked_sub(messages).ok_or(Broken)?;
        Ok(())
    }
}

/// What an end has received.
#[derive(Debug, Default)]
pub(super) struct Incoming {
    /// Bytes that were read so far.
    at: u64,
    /// Bytes that are there to be read; with those owed up to [`RING`].
    pub(super) len: usize,
    owed_bytes: usize,
    /// Up to [`MESSAGES`].
    owed_messages: usize,
}

impl Incoming {
    /// Where the next byte is to be read.
    pub(super) fn place(&self) -> usize {
        self.at as usize % RING
    }

    /// A message has come, and another is expected in its place.
    pub(super) fn arrived(&mut self, len: usize) -> Result<(), Broken> {
        self.len += len;
        self.owed_messages += 1;
        if self.len + self.owed_bytes <= RING && self.owed_messages <= MESSAGES {
            Ok(())
        } else {
            Err(Broken)
        }
    }

    /// So many of the bytes that are there were read.
    pub(super) fn read(&mut self, len: usize) {
        self.at += len as u64;
        self.len -= len;
        self.owed_bytes += len;
    }

    /// Whether the peer is to be told although nothing is sent to it.
    pub(super) fn owes_much(&self) -> bool {
        self.owed_bytes >= RING / 2 || self.owed_messages >= MESSAGES / 2
    }

    /// All that is owed, as the number that gives it back.
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

    /// Both ends, and between them what a device would carry.
    struct Ends {
        ends: [(Outgoing, Incoming); 2],
        /// Bytes and number of each message on its way from each end.
        way: [VecDeque<(usize, u32)>; 2],
        /// The newest request of each end that asked for a completion.
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

        /// Writes up to so many bytes; returns how many there was room for.
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

        /// The device tells what has left.
        fn tell(&mut self, end: usize) {
            if let Some(last) = self.told[end].take() {
                self.ends[end].0.have_left(last);
            }
            self.give_back(end);
        }
    }

    proptest! {
        /// Whatever is done in whichever order, nobody gets more than it expects, and in the end all arrives.
        #[test]
        fn ends_that_keep_to_the_rules_never_break_them_or_wait_for_ever(
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
    fn a_message_ends_with_the_ring() {
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
    fn the_first_asks_for_a_completion_and_then_every_sixteenth() {
        let mut outgoing = Outgoing::new();
        let asked: Vec<_> = (0..33).filter(|_| outgoing.send(1).signalled).collect();
        assert_eq!(asked, [0, 16, 32]);
        assert!(!outgoing.has_sent());
        outgoing.have_left(0);
        assert!(outgoing.has_sent());
    }

    #[test]
    fn who_sends_or_gives_back_too_much_is_found_out() {
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
