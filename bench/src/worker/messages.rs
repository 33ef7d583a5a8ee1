//! Messages between two nodes: ping-pong, in one direction, and [timed by the receiver](one_way).
//!
//! A message of up to 1 KiB is a packet, which the receiver copies into a buffer. A longer message
//! is a one-sided write into registered memory of the receiver, followed by a packet with its
//! number; the receiver announces free places in that memory. Message libraries over RDMA devices
//! do the same with posted buffers (rendezvous). The packet always arrives after the whole message.
//!
//! The receiver checks the number of every message, and outside of the measured time all bytes of
//! the first messages and the last.

pub mod one_way;

use std::ops::Range;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use toroid_client::member::{Domain, Listener};
use toroid_fabric::channel::ChannelError;
use toroid_fabric::emulation::{Channel, QueuePair};
use toroid_fabric::link::LinkHeader;
use toroid_fabric::provider::RemoteRegion;
use toroid_fabric::shm::RING_BYTES;
use toroid_fabric::{
    Access, Completion, Endpoint, Operation, PacketChannel, Place, Protocol, Region,
};

use self::one_way::OneWay;
use crate::samples::Samples;
use crate::worker::pattern;
use crate::worker::processor::{self, Bound};

/// Bytes of the longest message.
pub const LONGEST: usize = 4 << 20;

/// Bytes of the longest message in a packet. A longer one is faster by a write and a packet than by
/// two copies, into the ring and out.
const PACKET: usize = 1 << 10;

/// Bytes of a stream's long messages in flight, within [`FEWEST`] and [`MOST`] messages.
const UNDER_WAY: usize = RING_BYTES;
const FEWEST: usize = 4;
const MOST: usize = 64;

/// Bytes of a receiver's memory.
const INBOX: usize = FEWEST * LONGEST;

/// Messages before the timed ones.
const WARM_UP: u64 = 32;

/// Bytes of the number at the start of a message.
const NUMBER: usize = 8;

const PROTOCOL: Protocol = Protocol(0xfab1);

const NONSENSE: &str = "messages: the peer broke the protocol";

/// Longest sleep in a wait for the other side.
const LOOK: Duration = Duration::from_secs(1);

/// The most messages of this size in flight in one direction.
pub fn window(bytes: usize) -> u32 {
    let record = (LinkHeader::LEN + bytes).next_multiple_of(8);
    match bytes {
        ..=PACKET => (RING_BYTES / record) as u32,
        _ => (UNDER_WAY / bytes).clamp(FEWEST, MOST) as u32,
    }
}

/// A series of messages between the two sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Session {
    /// Whether each message is answered by one back.
    pub pingpong: bool,
    pub bytes: usize,
    /// Number of timed messages in one direction.
    pub count: u32,
    /// Whether each side has a processor of its own, if there are two: a scheduler may keep both on
    /// one, where they poll in turns.
    pub bound: bool,
}

impl Session {
    fn is_long(&self) -> bool {
        self.bytes > PACKET
    }

    /// Offset of a long message in the receiver's memory. A ping-pong has two places, because the
    /// next message may arrive during the check of a series' last one.
    fn place_of(&self, number: u64) -> u64 {
        let places = if self.pingpong {
            2
        } else {
            u64::from(window(self.bytes))
        };
        number % places * self.bytes as u64
    }

    /// Number of messages of a stream of `count` per answer of the receiver. An answer frees the
    /// places of long messages; the last one acknowledges all.
    fn answered_together(&self, count: u64) -> u64 {
        if self.is_long() {
            u64::from(window(self.bytes) / 2)
        } else {
            count
        }
    }

    /// Seed of the pattern after a message's number, equal for all timed messages as in libfabric's
    /// program.
    fn seed(&self, number: u64) -> u64 {
        pattern::mix(self.bytes as u64) ^ number.min(WARM_UP)
    }
}

/// The measuring side's request to the serving side.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
enum Request {
    Exchange(Session),
    OneWay(OneWay),
}

/// Listens for the measuring side.
pub fn listen(domain: &Domain) -> Result<Listener> {
    Ok(domain.listen(PROTOCOL)?)
}

/// Accepts a channel and takes part in the requested sessions until the channel ends.
pub fn serve(domain: &Domain, listener: &Listener) -> Result<()> {
    let channel = loop {
        if let Some(channel) = listener.accept(LOOK)? {
            break channel;
        }
    };
    let mut side = Side::new(domain, channel)?;
    loop {
        match side.take() {
            Ok(()) => {}
            Err(error) if error.downcast_ref() == Some(&ChannelError::PeerDead) => return Ok(()),
            Err(error) => return Err(error),
        }
        let request = serde_json::from_slice(&side.packet);
        match request.ok().context(NONSENSE)? {
            Request::Exchange(session) => {
                side.run(session, false)?;
                let wrong = side.wrong;
                side.say(&wrong.to_le_bytes())?;
            }
            Request::OneWay(session) => one_way::send(&mut side, session)?,
        }
    }
}

/// The measuring side.
#[derive(Debug)]
pub struct Client(Side);

impl Client {
    /// Connects to the serving side in the node `place`.
    pub fn connect(domain: &Domain, place: Place) -> Result<Self> {
        let channel = domain.connect(place, PROTOCOL)?;
        Ok(Client(Side::new(domain, channel)?))
    }

    /// Carries out a session, one sample.
    pub fn measure(&mut self, session: Session) -> Result<Samples> {
        let side = self.request(Request::Exchange(session))?;
        let elapsed = side.run(session, true)?;
        side.take()?;
        let theirs = side.packet[..].try_into().map(u64::from_le_bytes);
        let theirs = theirs.ok().context(NONSENSE)?;
        let ways = if session.pingpong { 2 } else { 1 };
        let ops = u64::from(session.count) * ways;
        Ok(Samples {
            batch: ops as u32,
            samples_ns: vec![elapsed.as_nanos() as f64 / ops as f64],
            ops,
            bytes: ops * session.bytes as u64,
            elapsed_ns: elapsed.as_nanos() as u64,
            ..Samples::errors(side.wrong + theirs)
        })
    }

    /// Measures the time of packets from the serving side.
    pub fn one_way(&mut self, session: OneWay) -> Result<Samples> {
        one_way::receive(self.request(Request::OneWay(session))?, session)
    }

    fn request(&mut self, request: Request) -> Result<&mut Side> {
        let request = serde_json::to_vec(&request).ok().context(NONSENSE)?;
        self.0.say(&request)?;
        Ok(&mut self.0)
    }
}

/// One side of the exchange of messages.
#[derive(Debug)]
struct Side {
    channel: Channel,
    pair: QueuePair,
    /// Local memory for incoming long messages, and the peer's for outgoing ones.
    inbox: Region,
    outbox: RemoteRegion,
    /// Outgoing long message.
    long: Region,
    /// Outgoing short message.
    short: Vec<u8>,
    /// Last received packet.
    packet: Vec<u8>,
    /// Number of wrong messages in this session.
    wrong: u64,
}

impl Side {
    /// Exchanges the keys of the inboxes.
    fn new(domain: &Domain, mut channel: Channel) -> Result<Self> {
        let inbox = domain.alloc(INBOX as u64, Access::REMOTE_WRITE)?;
        let key = inbox.remote_key().context(NONSENSE)?;
        say(&mut channel, key.to_string().as_bytes())?;
        let mut packet = Vec::new();
        take(&mut channel, &mut packet)?;
        let key = String::from_utf8(packet).ok().context(NONSENSE)?;
        let key = key.parse().ok().context(NONSENSE)?;
        let place = domain.member().torus().place(channel.peer());
        let pair = domain.queue_pair(place.context(NONSENSE)?, 1)?;
        let outbox = domain.open(key, Access::REMOTE_WRITE)?;
        Self::of(channel, pair, inbox, outbox)
    }

    fn of(channel: Channel, pair: QueuePair, inbox: Region, outbox: RemoteRegion) -> Result<Self> {
        Ok(Side {
            channel,
            pair,
            outbox,
            inbox,
            long: Region::local(LONGEST)?,
            short: Vec::new(),
            packet: Vec::new(),
            wrong: 0,
        })
    }

    /// Takes part in a session. Returns the time of the timed messages.
    fn run(&mut self, session: Session, begins: bool) -> Result<Duration> {
        self.wrong = 0;
        let _bound = if session.bound {
            let processor = if begins {
                processor::last()
            } else {
                processor::first()
            };
            Some(Bound::new(None, processor?)?)
        } else {
            None
        };
        for number in 0..WARM_UP {
            self.exchange(session, number..number + 1, begins)?;
        }
        let numbers = WARM_UP..WARM_UP + u64::from(session.count);
        self.exchange(session, numbers, begins)
    }

    /// Exchanges messages, and looks at the last one whole.
    fn exchange(
        &mut self,
        session: Session,
        numbers: Range<u64>,
        begins: bool,
    ) -> Result<Duration> {
        self.fill(session, numbers.start)?;
        let last = numbers.end - 1;
        let start = Instant::now();
        match (session.pingpong, begins) {
            (true, true) => {
                for number in numbers {
                    self.send(session, number)?;
                    self.receive(session, number)?;
                }
            }
            (true, false) => {
                for number in numbers {
                    self.receive(session, number)?;
                    self.send(session, number)?;
                }
            }
            (false, true) => self.send_all(session, numbers)?,
            (false, false) => self.receive_all(session, numbers)?,
        }
        let elapsed = start.elapsed();
        if session.pingpong {
            self.examine(session, last)?;
        } else if begins {
            // Until the receiver's check ends, the place of the last message is not free.
            self.take()?;
        } else {
            self.examine(session, last)?;
            self.say(&[])?;
        }
        Ok(elapsed)
    }

    /// Returns when the other side has all messages.
    fn send_all(&mut self, session: Session, numbers: Range<u64>) -> Result<()> {
        let count = numbers.end - numbers.start;
        let (window, together) = (window(session.bytes), session.answered_together(count));
        let mut answers = 0;
        for (sent, number) in (0..).zip(numbers) {
            if session.is_long() && sent == u64::from(window) + answers * together {
                self.take()?;
                answers += 1;
            }
            self.send(session, number)?;
        }
        (answers..count.div_ceil(together)).try_for_each(|_| self.take())
    }

    /// Receives all messages, and answers as [`Session::answered_together`] tells.
    fn receive_all(&mut self, session: Session, numbers: Range<u64>) -> Result<()> {
        let count = numbers.end - numbers.start;
        let together = session.answered_together(count);
        for (received, number) in (1..).zip(numbers) {
            self.receive(session, number)?;
            if received % together == 0 || received == count {
                self.say(&[])?;
            }
        }
        Ok(())
    }

    /// Fills the outgoing messages with the pattern of `number`.
    fn fill(&mut self, session: Session, number: u64) -> Result<()> {
        self.short.resize(session.bytes, 0);
        pattern::fill(session.seed(number), &mut self.short[NUMBER..]);
        if session.is_long() {
            self.long.write(0, &self.short)?;
        }
        Ok(())
    }

    fn send(&mut self, session: Session, number: u64) -> Result<()> {
        if session.is_long() {
            return self.write(session, number);
        }
        self.short[..NUMBER].copy_from_slice(&number.to_le_bytes());
        say(&mut self.channel, &self.short)
    }

    fn write(&mut self, session: Session, number: u64) -> Result<()> {
        self.long.write(0, &number.to_le_bytes())?;
        let (to, len) = (session.place_of(number), session.bytes as u64);
        let write = Operation::write(&self.outbox, to, &self.long, 0..len);
        self.pair.post(number, write)?;
        self.pair.flush();
        let mut done = [Completion::default()];
        while self.pair.poll(&mut done) == 0 {
            self.pair.wait(LOOK);
        }
        done[0].result?;
        self.say(&number.to_le_bytes())
    }

    fn receive(&mut self, session: Session, number: u64) -> Result<()> {
        self.take()?;
        let mut expected = self.packet.starts_with(&number.to_le_bytes());
        if session.is_long() {
            let mut arrived = [0; NUMBER];
            self.inbox.read(session.place_of(number), &mut arrived)?;
            expected &= arrived == number.to_le_bytes();
        } else {
            expected &= self.packet.len() == session.bytes;
        }
        self.wrong += u64::from(!expected);
        Ok(())
    }

    /// Checks all bytes of the last received message.
    fn examine(&mut self, session: Session, number: u64) -> Result<()> {
        if session.is_long() {
            self.packet.resize(session.bytes, 0);
            self.inbox
                .read(session.place_of(number), &mut self.packet)?;
        }
        let seed = session.seed(number);
        let is_whole = |bytes| pattern::matches(seed, bytes);
        let whole = self.packet.get(NUMBER..).is_some_and(is_whole);
        self.wrong += u64::from(!whole);
        Ok(())
    }

    fn say(&mut self, packet: &[u8]) -> Result<()> {
        say(&mut self.channel, packet)
    }

    fn take(&mut self) -> Result<()> {
        take(&mut self.channel, &mut self.packet)
    }
}

fn say(channel: &mut Channel, packet: &[u8]) -> Result<()> {
    loop {
        match channel.send(&[packet]) {
            Err(ChannelError::Full) => channel.wait(LOOK),
            sent => return Ok(sent?),
        }
    }
}

fn take(channel: &mut Channel, into: &mut Vec<u8>) -> Result<()> {
    while !channel.receive(into)? {
        channel.wait(LOOK);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::thread;

    use toroid_fabric::Membership;
    use toroid_fabric::link::LinkCheck;
    use toroid_fabric::provider;
    use toroid_fabric::shm::{self, ChannelEnds};
    use toroid_fabric::{Epoch, NodeId, Partition};

    use super::super::one_sided::tests::export;
    use super::*;

    const PARTITION: Partition = Partition(1);

    fn sides() -> [Side; 2] {
        let (ours, theirs) = ChannelEnds::create(RING_BYTES).unwrap();
        let side = |ends, local, peer, inbox, outbox| {
            let check = LinkCheck {
                partition: PARTITION,
                peer,
                protocol: PROTOCOL,
                since: Epoch(0),
            };
            let membership = Membership::at(Epoch(0));
            let status = Arc::default();
            let channel = shm::Channel::open(ends, local, check, membership, status, None);
            let pair = shm::QueuePair::new(peer, PARTITION, 1);
            let channel = provider::Channel::Shm(channel.unwrap());
            let channel = Channel::new(channel, Arc::default());
            let pair = QueuePair::new(provider::QueuePair::Shm(pair), Arc::default());
            Side::of(channel, pair, inbox, outbox).unwrap()
        };
        let (here, there) = (NodeId(0), NodeId(1));
        let [near, far] = [0, 1].map(|node| export(node, 1, INBOX, Access::REMOTE_WRITE));
        [
            side(ours, here, there, near.0, far.1),
            side(theirs, there, here, far.0, near.1),
        ]
    }

    fn both(of: impl Fn(&mut Side, bool) + Sync) -> u64 {
        let [mut one, mut other] = sides();
        thread::scope(|scope| {
            scope.spawn(|| of(&mut other, false));
            of(&mut one, true);
        });
        one.wrong + other.wrong
    }

    /// Sessions of both kinds with packets and long messages, `count` of each size.
    fn sessions(count: impl Fn(usize) -> u32) -> Vec<Session> {
        let of = |bytes| {
            let count = count(bytes);
            [true, false].map(|pingpong| Session {
                pingpong,
                bytes,
                count,
                bound: false,
            })
        };
        [64, PACKET, 2 * PACKET, LONGEST].map(of).concat()
    }

    /// Regression: messages of the next session overwrote a place during the check of the last
    /// message.
    #[test]
    fn all_messages_arrive_whole() {
        // More than are in flight at once, and no multiple of the messages per answer.
        for session in sessions(|bytes| 3 * window(bytes) + 1) {
            let wrong = both(|side, begins| _ = side.run(session, begins).unwrap());
            assert_eq!(wrong, 0, "{session:?}");
        }
    }

    #[test]
    fn the_receiver_times_packets() {
        for bytes in [8, 64, PACKET] {
            let time = Duration::from_millis(1);
            let session = OneWay { bytes, time };
            both(|side, begins| {
                if !begins {
                    return one_way::send(side, session).unwrap();
                }
                let samples = one_way::receive(side, session).unwrap();
                assert_eq!(samples.errors, 0, "{bytes} bytes");
                assert_eq!(samples.samples_ns.len() as u64, samples.ops);
                let longest = samples.elapsed_ns as f64;
                assert!(
                    samples
                        .samples_ns
                        .iter()
                        .all(|ns| (1.0..=longest).contains(ns))
                );
            });
        }
    }

    #[test]
    fn wrong_numbers_and_bytes_are_counted() {
        for session in sessions(|_| 2) {
            let wrong = both(|side, begins| {
                let first = if begins { 3 } else { 0 };
                side.exchange(session, first..first + 2, begins).unwrap();
            });
            // Each number is wrong, and all bytes of the last message.
            let receivers = if session.pingpong { 2 } else { 1 };
            assert_eq!(wrong, 3 * receivers, "{session:?}");
        }
    }
}
