//! Messages between two nodes: to and fro, and in one direction.
//!
//! A message of up to 1 KiB is a packet, which the receiver takes into a buffer of its own. A longer
//! one is written into the receiver's memory by a one-sided operation, and a packet says that it is
//! there: the receiver has registered that memory before, and says which parts of it are free. So
//! message libraries do over adapters with buffers that were posted for it (rendezvous). Either way
//! the receiver has all of it when it has the packet.
//!
//! Each carries its number, at which every receiver looks. The first messages of a session and the
//! last are looked at whole, outside of the time.

use std::ops::Range;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use serde::{Deserialize, Serialize};
use toroid_client::member::{Domain, Listener};
use toroid_fabric::channel::ChannelError;
use toroid_fabric::link::LinkHeader;
use toroid_fabric::provider::{Channel, QueuePair, RemoteRegion};
use toroid_fabric::shm::RING_BYTES;
use toroid_fabric::{
    Access, Completion, Endpoint, Operation, PacketChannel, Place, Protocol, Region,
};

use crate::samples::Samples;
use crate::worker::pattern;

/// Bytes of the longest message.
pub const LONGEST: usize = 4 << 20;

/// Bytes of the longest message that is a packet. To copy more of them twice, into the ring and out
/// of it, takes longer than a write and a packet.
const PACKET: usize = 1 << 10;

/// Long messages of a stream that are on their way: of this many bytes together, but this many at
/// least and at most.
const UNDER_WAY: usize = RING_BYTES;
const FEWEST: usize = 4;
const MOST: usize = 64;

/// Bytes of a receiver's memory.
const INBOX: usize = FEWEST * LONGEST;

/// Messages before those that are timed.
const WARM_UP: u64 = 32;

/// Bytes of a message's number, at its start.
const NUMBER: usize = 8;

const PROTOCOL: Protocol = Protocol(0xfab1);

const NONSENSE: &str = "messages: the peer broke the protocol";

/// After so long without a word of the other side a wait looks again.
const LOOK: Duration = Duration::from_secs(1);

/// The number of messages of this size that may be under way in one direction.
pub fn window(bytes: usize) -> u32 {
    let record = (LinkHeader::LEN + bytes).next_multiple_of(8);
    match bytes {
        ..=PACKET => (RING_BYTES / record) as u32,
        _ => (UNDER_WAY / bytes).clamp(FEWEST, MOST) as u32,
    }
}

/// The next messages of the two sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Session {
    /// Whether messages go to and fro, or else in one direction.
    pub pingpong: bool,
    pub bytes: usize,
    /// Messages that are timed, in one direction.
    pub count: u32,
}

impl Session {
    fn is_long(&self) -> bool {
        self.bytes > PACKET
    }

    /// Where in the receiver's memory a long message goes. Of those to and fro, the last one of a
    /// series may be looked at while the next one comes.
    fn place_of(&self, number: u64) -> u64 {
        let places = if self.pingpong {
            2
        } else {
            u64::from(window(self.bytes))
        };
        number % places * self.bytes as u64
    }

    /// After how many messages of a stream of `count` the receiver answers: that the places of long
    /// ones are free, and at last that all have come.
    fn answered_together(&self, count: u64) -> u64 {
        if self.is_long() {
            u64::from(window(self.bytes) / 2)
        } else {
            count
        }
    }

    /// The pattern behind a message's number: the same in all that are timed, as in libfabric's program.
    fn seed(&self, number: u64) -> u64 {
        pattern::mix(self.bytes as u64) ^ number.min(WARM_UP)
    }
}

/// Listens for the side that measures.
pub fn listen(domain: &Domain) -> Result<Listener> {
    Ok(domain.listen(PROTOCOL)?)
}

/// Accepts a channel and takes part in the sessions that are asked for there, until it ends.
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
        let session = serde_json::from_slice(&side.packet);
        side.run(session.map_err(|_| anyhow!(NONSENSE))?, false)?;
        let wrong = side.wrong;
        side.say(&wrong.to_le_bytes())?;
    }
}

#[derive(Debug)]
pub struct Client(Side);

impl Client {
    /// Connects to the side that serves at a place.
    pub fn connect(domain: &Domain, place: Place) -> Result<Self> {
        let channel = domain.connect(place, PROTOCOL)?;
        Ok(Client(Side::new(domain, channel)?))
    }

    /// Does a session, which is one sample.
    pub fn measure(&mut self, session: Session) -> Result<Samples> {
        let side = &mut self.0;
        let request = serde_json::to_vec(&session).map_err(|_| anyhow!(NONSENSE))?;
        side.say(&request)?;
        let elapsed = side.run(session, true)?;
        side.take()?;
        let theirs = side.packet[..].try_into().map(u64::from_le_bytes);
        let theirs = theirs.map_err(|_| anyhow!(NONSENSE))?;
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
}

/// One of two sides that exchange messages.
#[derive(Debug)]
struct Side {
    channel: Channel,
    pair: QueuePair,
    /// Where long messages come to, and where they go to.
    inbox: Region,
    outbox: RemoteRegion,
    /// The long message that is sent.
    long: Region,
    /// The short one.
    short: Vec<u8>,
    /// The packet that came last.
    packet: Vec<u8>,
    /// Messages of this session that were not as they should be.
    wrong: u64,
}

impl Side {
    /// Each side says where its long messages go to.
    fn new(domain: &Domain, mut channel: Channel) -> Result<Self> {
        let inbox = domain.alloc(INBOX as u64, Access::REMOTE_WRITE)?;
        let key = inbox.remote_key().context(NONSENSE)?;
        say(&mut channel, key.to_string().as_bytes())?;
        let mut packet = Vec::new();
        take(&mut channel, &mut packet)?;
        let key = String::from_utf8(packet).map_err(|_| anyhow!(NONSENSE))?;
        let key = key.parse().map_err(|_| anyhow!(NONSENSE))?;
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

    /// Takes part in a session; returns the time of the messages that are timed.
    fn run(&mut self, session: Session, begins: bool) -> Result<Duration> {
        self.wrong = 0;
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
            // The place of a message that is being looked at is not free.
            self.take()?;
        } else {
            self.examine(session, last)?;
            self.say(&[])?;
        }
        Ok(elapsed)
    }

    /// Ends when the other side has all.
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

    /// Says of long messages that their places are free, and of the last one that it has come.
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

    /// Fills the messages that are sent from now on.
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

    /// Looks at the whole of the message that came last.
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
            let channel = Channel::Shm(channel.unwrap());
            Side::of(channel, QueuePair::Shm(pair), inbox, outbox).unwrap()
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

    /// Messages to and fro or in one direction, packets and long ones, `count` of each.
    fn sessions(count: impl Fn(usize) -> u32) -> Vec<Session> {
        let of = |bytes| {
            let count = count(bytes);
            [true, false].map(|pingpong| Session {
                pingpong,
                bytes,
                count,
            })
        };
        [64, PACKET, 2 * PACKET, LONGEST].map(of).concat()
    }

    /// Once a place was overwritten by the next session's messages while the last one was looked at.
    #[test]
    fn all_messages_arrive_whole() {
        // More than are on their way at once, and no multiple of what is answered together.
        for session in sessions(|bytes| 3 * window(bytes) + 1) {
            let wrong = both(|side, begins| _ = side.run(session, begins).unwrap());
            assert_eq!(wrong, 0, "{session:?}");
        }
    }

    #[test]
    fn wrong_numbers_and_wrong_bytes_are_noticed() {
        for session in sessions(|_| 2) {
            let wrong = both(|side, begins| {
                let first = if begins { 3 } else { 0 };
                side.exchange(session, first..first + 2, begins).unwrap();
            });
            // Each message has another number, and the last is looked at whole.
            let receivers = if session.pingpong { 2 } else { 1 };
            assert_eq!(wrong, 3 * receivers, "{session:?}");
        }
    }
}
