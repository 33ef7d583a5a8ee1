//! A live host: real messages on a real clock, with bytes that are checked.
//!
//! A message begins with its number, which the receiver checks; a pattern follows, which the receiver
//! checks in the last message of a script.

use std::mem;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

use super::connections::{Another, Connections};
use super::exchange::{Count, Host, follow, lead};
use super::message_layer::MessageLayer;
use super::script::{
    Gather, Layer, MOST_SEGMENTS, Message, Nanos, Pattern, SHORTEST, Script, Wait,
};
use super::writes::{Exported, Memory, Writes};
use crate::samples::Samples;
use crate::worker::pattern;

/// The peer of the connection in use; all others are idle.
const PEER: usize = 0;

const NONSENSE: &str = "micro-benchmark: the peer broke the protocol";

/// A request to the follower.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Request {
    script: Script,
    count: Count,
}

/// One of two connected hosts.
pub struct LiveHost {
    connections: Connections,
    /// The layer above the connections, if the script asks for it.
    layer: Option<MessageLayer>,
    /// The peer from which the layer receives, or any.
    from: Option<usize>,
    /// Memory for one-sided operations.
    shared: Memory,
    /// Our exported memory, from the first script with writes on.
    exported: Option<Exported>,
    /// Our writes in this script.
    writes: Option<Writes>,
    /// Memory of outgoing messages.
    memory: Vec<u8>,
    /// Outgoing message, packed.
    packed: Vec<u8>,
    /// Memory of the last received message.
    packet: Vec<u8>,
    /// The last received message in that memory.
    last: Message,
    /// Place of the next message, emptied by a look in vain.
    next: Vec<u8>,
    sent: u32,
    received: u32,
    wrong: u64,
    start: Instant,
}

impl LiveHost {
    pub fn new(another: Another, shared: Memory) -> Result<Self> {
        Ok(LiveHost {
            connections: Connections::new(another)?,
            layer: None,
            from: None,
            shared,
            exported: None,
            writes: None,
            memory: Vec::new(),
            packed: Vec::new(),
            packet: Vec::new(),
            last: Message::of(SHORTEST),
            next: Vec::new(),
            sent: 0,
            received: 0,
            wrong: 0,
            start: Instant::now(),
        })
    }

    /// Carries out a script with the other side as the follower.
    pub fn measure(&mut self, script: &Script, count: Count) -> Result<Samples> {
        let script = *script;
        let request = Request { script, count };
        let wire = self.connections.wire(PEER)?;
        wire.send(&[&serde_json::to_vec(&request)?])?;
        self.prepare(&script, true)?;
        let start = Instant::now();
        let samples_ns = lead(self, &script, count)?;
        let elapsed_ns = start.elapsed().as_nanos() as u64;
        self.check_last();
        self.receive_request()?;
        let theirs = self.packet[..].try_into().map(u64::from_le_bytes);
        let (sent, wrong) = match &self.writes {
            Some(writes) => (writes.count, writes.wrong),
            None => (self.sent, 0),
        };
        let ops = u64::from(sent);
        Ok(Samples {
            batch: count.batch,
            ops,
            bytes: ops * script.message.bytes as u64,
            elapsed_ns,
            samples_ns,
            ..Samples::errors(self.wrong + wrong + theirs.ok().context(NONSENSE)?)
        })
    }

    /// Follows scripts of the other side. Returns the error with which the connection ends.
    pub fn serve(&mut self) -> Result<()> {
        loop {
            self.receive_request()?;
            let request: Request = serde_json::from_slice(&self.packet).context(NONSENSE)?;
            self.prepare(&request.script, false)?;
            follow(self, &request.script, request.count)?;
            self.check_last();
            self.check_written(&request)?;
            let wrong = self.wrong.to_le_bytes();
            self.connections.wire(PEER)?.send(&[&wrong])?;
        }
    }

    /// Receives a message outside of scripts, which no layer carries.
    fn receive_request(&mut self) -> Result<()> {
        let wire = self.connections.wire(PEER)?;
        wire.receive(&mut self.packet, Wait::SpinThenBlock)
    }

    /// Opens idle connections, and fills the memory of outgoing messages.
    fn prepare(&mut self, script: &Script, leads: bool) -> Result<()> {
        self.connect(script, leads)?;
        let message = Message {
            reuse: 0,
            ..script.message
        };
        (self.sent, self.received, self.wrong) = (0, 0, 0);
        self.packed = contents(message.bytes);
        self.share(script, leads)?;
        self.memory.clear();
        self.memory.resize(message.memory(), 0);
        for number in 0..message.pages {
            let mut from = &self.packed[..];
            for place in message.places(number) {
                let (segment, rest) = from.split_at(place.len());
                self.memory[place].copy_from_slice(segment);
                from = rest;
            }
        }
        Ok(())
    }

    fn connect(&mut self, script: &Script, leads: bool) -> Result<()> {
        let idle = script.idle as usize;
        self.connections.truncate(1 + idle);
        self.layer = None;
        if let Layer::Message { eager, any_source } = script.layer {
            self.from = (!any_source).then_some(PEER);
            let mut layer = MessageLayer::new(eager, script.wait);
            layer.greet(&mut self.connections, 1..1 + idle, leads)?;
            self.layer = Some(layer);
        } else {
            self.connections.wire(idle)?;
        }
        Ok(())
    }

    /// Exports memory to a leader that writes, or opens that of the follower.
    fn share(&mut self, script: &Script, leads: bool) -> Result<()> {
        self.writes = None;
        if script.pattern != Pattern::Write {
            return Ok(());
        }
        if leads {
            self.receive_request()?;
            let offer = serde_json::from_slice(&self.packet).context(NONSENSE)?;
            let writes = Writes::new(&self.shared, &offer, script.queues, &self.packed)?;
            self.writes = Some(writes);
            return Ok(());
        }
        let exported = match &self.exported {
            Some(exported) => exported,
            None => self.exported.insert(self.shared.export()?),
        };
        let offer = serde_json::to_vec(&exported.offer)?;
        self.connections.wire(PEER)?.send(&[&offer])
    }

    /// Checks all bytes of the last write of the other side.
    fn check_written(&mut self, request: &Request) -> Result<()> {
        let Request { script, count } = request;
        if let Some(exported) = &self.exported
            && script.pattern == Pattern::Write
        {
            let last = (count.samples * count.batch).wrapping_sub(1);
            let is_right = exported.has(script.message.bytes, last)?;
            self.wrong += u64::from(!is_right);
        }
        Ok(())
    }

    /// Counts a received message, which is in `packet`.
    fn accept(&mut self, message: &Message) {
        let number = self.received.to_le_bytes();
        self.last = *message;
        if self.layer.is_none() {
            // The fabric delivers all segments in one piece.
            self.last = Message::of(message.bytes);
        }
        let is_whole = self.layer.is_some() || self.packet.len() == message.bytes;
        let is_right = is_whole && self.packet.starts_with(&number);
        self.wrong += u64::from(!is_right);
        self.received += 1;
    }

    /// Checks all bytes of the last received message.
    fn check_last(&mut self) {
        let places = self.last.places(0).map(|place| self.packet.get(place));
        let segments: Option<Vec<&[u8]>> = places.collect();
        let whole = segments.map(|segments| segments.concat());
        let is_whole = whole.is_some_and(|whole| {
            let rest = whole.get(SHORTEST..);
            rest.is_some_and(|rest| pattern::matches(whole.len() as u64, rest))
        });
        self.wrong += u64::from(!is_whole);
    }
}

/// A message without its number.
fn contents(bytes: usize) -> Vec<u8> {
    let mut contents = vec![0; bytes];
    pattern::fill(bytes as u64, &mut contents[SHORTEST..]);
    contents
}

impl Host for LiveHost {
    fn now(&self) -> Nanos {
        self.start.elapsed().as_nanos() as Nanos
    }

    fn compute(&mut self, time: Nanos) {
        let end = self.now() + time;
        while self.now() < end {
            std::hint::spin_loop();
        }
    }

    fn send(&mut self, message: &Message) -> Result<()> {
        let number = self.sent;
        self.sent += 1;
        if let Some(first) = message.places(number).next() {
            let head = &mut self.memory[first][..SHORTEST];
            head.copy_from_slice(&number.to_le_bytes());
        }
        if let Some(layer) = &mut self.layer {
            let places = message.places(number);
            return layer.send(&mut self.connections, PEER, &self.memory, places);
        }
        let mut count = 0;
        let mut parts: [&[u8]; MOST_SEGMENTS] = [&[]; MOST_SEGMENTS];
        for (part, place) in parts.iter_mut().zip(message.places(number)) {
            *part = &self.memory[place];
            count += 1;
        }
        if message.gather == Gather::Native || count == 1 {
            return self.connections.wire(PEER)?.send(&parts[..count]);
        }
        let mut into = &mut self.packed[..];
        for part in &parts[..count] {
            let (segment, rest) = into.split_at_mut(part.len());
            segment.copy_from_slice(part);
            into = rest;
        }
        self.connections.wire(PEER)?.send(&[&self.packed])
    }

    fn receive(&mut self, message: &Message, wait: Wait) -> Result<()> {
        if let Some(layer) = &mut self.layer {
            let places = message.places(0);
            layer.receive(&mut self.connections, self.from, &mut self.packet, places)?;
        } else {
            let wire = self.connections.wire(PEER)?;
            wire.receive(&mut self.packet, wait)?;
        }
        self.accept(message);
        Ok(())
    }

    fn poll(&mut self, message: &Message, _is_expected: bool) -> Result<bool> {
        ensure!(self.layer.is_none(), "no looks through the message layer");
        let has_come = self.connections.wire(PEER)?.poll(&mut self.next)?;
        if has_come {
            mem::swap(&mut self.packet, &mut self.next);
            self.accept(message);
        }
        Ok(has_come)
    }

    fn write(&mut self, message: &Message, wait: Wait) -> Result<()> {
        let writes = self.writes.as_mut().context(NONSENSE)?;
        writes.write(message.bytes, wait)
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener, TcpStream};
    use std::sync::mpsc::channel;
    use std::thread;

    use toroid_fabric::channel::ChannelError;
    use toroid_fabric::link::LinkCheck;
    use toroid_fabric::shm::{self, ChannelEnds, RING_BYTES};
    use toroid_fabric::{Epoch, Membership, NodeId, Partition, Protocol, emulation, provider};

    use super::super::script::Pattern;
    use super::super::wire::{Socket, Wire};
    use super::*;

    const COUNT: Count = Count {
        samples: 2,
        batch: 3,
    };

    fn shared_memory() -> [Wire; 2] {
        let (ours, theirs) = ChannelEnds::create(RING_BYTES).unwrap();
        let side = |ends, local, peer| {
            let check = LinkCheck {
                partition: Partition(1),
                peer,
                protocol: Protocol(1),
                since: Epoch(0),
            };
            let membership = Membership::at(Epoch(0));
            let channel =
                shm::Channel::open(ends, local, check, membership, Default::default(), None);
            let channel = provider::Channel::Shm(channel.unwrap());
            let channel = emulation::Channel::new(channel, Default::default());
            Wire::Channel(Box::new(channel))
        };
        [
            side(ours, NodeId(0), NodeId(1)),
            side(theirs, NodeId(1), NodeId(0)),
        ]
    }

    fn sockets() -> [Wire; 2] {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let theirs = listener.accept().unwrap().0;
        [ours, theirs].map(|stream| Wire::Socket(Socket::new(stream).unwrap()))
    }

    /// Two hosts; the second one opens connections of this kind for both.
    fn hosts(connect: fn() -> [Wire; 2]) -> [LiveHost; 2] {
        let (sender, receiver) = channel();
        let follower = Box::new(move || {
            let [ours, theirs] = connect();
            sender.send(theirs)?;
            Ok(ours)
        });
        let follower = LiveHost::new(follower, Memory::Loopback);
        let leader = LiveHost::new(Box::new(move || Ok(receiver.recv()?)), Memory::Loopback);
        [follower.unwrap(), leader.unwrap()]
    }

    fn scripts() -> Vec<Script> {
        let patterns = [
            Pattern::PingPong,
            Pattern::Delayed { delay: 1000 },
            Pattern::Burst { count: 50 },
            Pattern::Sends { count: 4 },
            Pattern::Counting {
                time: 1_000_000,
                messages: 20,
            },
        ];
        let mut scripts = Vec::new();
        for pattern in patterns {
            for (bytes, wait) in [
                (4, Wait::Poll),
                (9000, Wait::SpinThenBlock),
                (64, Wait::Block),
            ] {
                let script = Script::new(pattern, bytes);
                scripts.push(Script { wait, ..script });
            }
            let base = Script::new(pattern, 1024);
            scripts.push(Script { idle: 5, ..base });
            for (segments, pages, gather) in [
                (32, 1, Gather::Native),
                (7, 3, Gather::Pack),
                (1, 9, Gather::Native),
            ] {
                let message = Message {
                    segments,
                    pages,
                    gather,
                    ..base.message
                };
                scripts.push(Script { message, ..base });
            }
        }
        for (queues, wait) in [
            (0, Wait::Poll),
            (1, Wait::Block),
            (9, Wait::Poll),
            (9, Wait::Block),
        ] {
            let script = Script::new(Pattern::Write, 4000);
            scripts.push(Script {
                queues,
                wait,
                ..script
            });
        }
        scripts.extend(message_scripts());
        scripts
    }

    fn message_scripts() -> Vec<Script> {
        let mut scripts = Vec::new();
        for any_source in [false, true] {
            let layer = Layer::Message {
                eager: 1000,
                any_source,
            };
            for wait in [Wait::Poll, Wait::Block, Wait::SpinThenBlock] {
                for (bytes, segments, idle) in [(4, 1, 0), (1000, 7, 5), (9000, 1, 2), (9000, 9, 0)]
                {
                    for pattern in [Pattern::PingPong, Pattern::Burst { count: 50 }] {
                        let script = Script::new(pattern, bytes);
                        let message = Message {
                            segments,
                            ..script.message
                        };
                        scripts.push(Script {
                            message,
                            wait,
                            idle,
                            layer,
                            ..script
                        });
                    }
                }
            }
        }
        scripts
    }

    #[test]
    fn every_script_ends_without_a_wrong_message() {
        for connect in [shared_memory, sockets] {
            let [mut follower, mut leader] = hosts(connect);
            let following = thread::spawn(move || follower.serve());
            for script in scripts() {
                let samples = leader.measure(&script, COUNT).unwrap();
                assert_eq!(samples.errors, 0, "{script:?}");
                assert_eq!(samples.samples_ns.len(), 2);
                let is_lost = matches!(script.pattern, Pattern::Counting { .. });
                assert!(is_lost || samples.samples_ns.iter().all(|&time| time > 0.0));
            }
            // Only an agent tells the end of a channel in shared memory.
            if matches!(leader.connections.wire(PEER), Ok(Wire::Socket(_))) {
                drop(leader);
                let end = following.join().unwrap().unwrap_err();
                assert_eq!(end.downcast_ref(), Some(&ChannelError::PeerDead));
            }
        }
    }

    #[test]
    fn a_wrong_byte_and_a_wrong_number_are_counted() {
        for (at, wrong) in [(0, 1), (70, 1)] {
            let [mut follower, mut leader] = hosts(shared_memory);
            let script = Script::new(Pattern::PingPong, 100);
            follower.prepare(&script, false).unwrap();
            leader.prepare(&script, true).unwrap();
            leader.memory[70] ^= u8::from(at == 70);
            leader.sent += u32::from(at == 0);
            leader.send(&script.message).unwrap();
            follower.receive(&script.message, Wait::Poll).unwrap();
            follower.check_last();
            assert_eq!(follower.wrong, wrong, "byte {at}");
        }
    }

    #[test]
    fn a_wrong_byte_and_a_lost_write_are_counted() {
        for (writes, bytes, wrong) in [(6, 100, 0), (5, 100, 1), (6, 99, 1)] {
            let [mut follower, mut leader] = hosts(shared_memory);
            let script = Script::new(Pattern::Write, 100);
            follower.prepare(&script, false).unwrap();
            leader.prepare(&script, true).unwrap();
            (0..writes).for_each(|_| leader.write(&Message::of(bytes), Wait::Poll).unwrap());
            let count = COUNT;
            follower.check_written(&Request { script, count }).unwrap();
            assert_eq!(follower.wrong, wrong, "{writes} writes of {bytes} bytes");
        }
    }
}
