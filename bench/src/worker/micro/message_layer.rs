//! A message layer over packets, as MPI's libraries have one: eager up to a limit, then three-way.
//!
//! ```text
//!   eager      kind 4 | length 4 | message            the receiver copies the message out
//!   three-way  notification  kind 4 | length 4
//!              reply         kind 4 | length 4        once a receive waits for the message
//!              message       in pieces without header, straight to their place
//! ```
//!
//! Numbers are little-endian. Messages of a peer arrive in order. As with a blocking send of MPI, two
//! peers must not both send long messages first: a reply needs a receive.

use std::collections::VecDeque;
use std::mem;
use std::ops::Range;

use anyhow::{Context, Result, bail, ensure};

use super::script::Wait;

/// Bytes of the longest eager message by default, as in the thesis (12 KB).
pub const EAGER: usize = 12 << 10;

/// Bytes of a header.
pub const HEADER: usize = 8;

/// Bytes of the longest piece of a long message.
const PIECE: usize = 32 << 10;

/// A place of packed messages, in no page of other memory.
const PACKED: usize = 1 << 40;

/// Contents of the message that opens a connection.
const HELLO: &[u8] = b"hello";

const NONSENSE: &str = "message layer: the peer broke the protocol";

/// A piece of memory that is sent.
#[derive(Clone, Copy, Debug)]
pub struct Piece<'a> {
    pub bytes: &'a [u8],
    /// The address, for an adapter that translates it.
    pub place: usize,
}

/// Connections with numbered peers, which carry packets in order.
pub trait Links {
    /// Sends a header and a piece of memory as one packet; each may be empty. Waits only for room.
    /// The first use of a peer opens its connection.
    fn send(&mut self, peer: usize, header: &[u8], piece: Piece<'_>) -> Result<()>;

    /// Replaces `into` by the next packet of a peer, or of any connected one; returns the peer.
    fn receive(&mut self, from: Option<usize>, into: &mut Vec<u8>, wait: Wait) -> Result<usize>;

    /// Charges a copy of the layer to a virtual clock.
    fn copied(&mut self, _bytes: usize) {}

    /// Bytes of the longest piece of a long message, the same at all peers.
    fn longest(&self) -> usize {
        PIECE
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Eager = 1,
    Notification = 2,
    Reply = 3,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Header {
    kind: Kind,
    bytes: usize,
}

impl Header {
    fn encode(self) -> [u8; HEADER] {
        let words = (self.bytes as u64) << 32 | self.kind as u64;
        words.to_le_bytes()
    }

    fn decode(packet: &[u8]) -> Result<Self> {
        let words = u64::from_le_bytes(*packet.first_chunk().context(NONSENSE)?);
        let kind = match words as u32 {
            1 => Kind::Eager,
            2 => Kind::Notification,
            3 => Kind::Reply,
            _ => bail!(NONSENSE),
        };
        let bytes = (words >> 32) as usize;
        let rest = if kind == Kind::Eager { bytes } else { 0 };
        ensure!(packet.len() == HEADER + rest, NONSENSE);
        Ok(Header { kind, bytes })
    }
}

/// The state of one process. Messages are lists of places in memory: one place for contiguous data,
/// several for a strided datatype, which the layer packs and unpacks.
#[derive(Debug)]
pub struct MessageLayer {
    /// Bytes of the longest eager message.
    eager: usize,
    wait: Wait,
    /// Packets of peers that arrived before their receive.
    early: VecDeque<(usize, Vec<u8>)>,
    packet: Vec<u8>,
    packed: Vec<u8>,
}

impl MessageLayer {
    /// A layer that sends messages of up to `eager` bytes at once.
    pub fn new(eager: usize, wait: Wait) -> Self {
        MessageLayer {
            eager,
            wait,
            early: VecDeque::new(),
            packet: Vec::new(),
            packed: Vec::new(),
        }
    }

    /// Exchanges a first message with each of these peers, which opens the connections. One process
    /// begins, the other does not.
    pub fn greet(
        &mut self,
        links: &mut impl Links,
        peers: Range<usize>,
        begins: bool,
    ) -> Result<()> {
        let whole = || std::iter::once(0..HELLO.len());
        for peer in peers {
            if begins {
                self.send(links, peer, HELLO, whole())?;
            } else {
                let mut hello = Vec::new();
                self.receive(links, Some(peer), &mut hello, whole())?;
                ensure!(hello == HELLO, NONSENSE);
            }
        }
        Ok(())
    }

    /// Sends the bytes at `places` of `memory`. A long message waits for the peer's receive.
    pub fn send(
        &mut self,
        links: &mut impl Links,
        to: usize,
        memory: &[u8],
        places: impl Iterator<Item = Range<usize>> + Clone,
    ) -> Result<()> {
        let mut packed = mem::take(&mut self.packed);
        let piece = match only(&places) {
            Some(place) => Piece {
                place: place.start,
                bytes: &memory[place],
            },
            None => {
                pack(memory, places, &mut packed);
                links.copied(packed.len());
                Piece {
                    place: PACKED,
                    bytes: &packed,
                }
            }
        };
        let sent = self.send_piece(links, to, piece);
        self.packed = packed;
        sent
    }

    fn send_piece(&mut self, links: &mut impl Links, to: usize, piece: Piece<'_>) -> Result<()> {
        let bytes = piece.bytes.len();
        let header = |kind| Header { kind, bytes }.encode();
        if bytes <= self.eager {
            return links.send(to, &header(Kind::Eager), piece);
        }
        links.send(to, &header(Kind::Notification), NOTHING)?;
        self.await_reply(links, to, bytes)?;
        let longest = links.longest();
        for (at, bytes) in piece.bytes.chunks(longest).enumerate() {
            let place = piece.place + at * longest;
            links.send(to, &[], Piece { bytes, place })?;
        }
        Ok(())
    }

    fn await_reply(&mut self, links: &mut impl Links, from: usize, bytes: usize) -> Result<()> {
        loop {
            links.receive(Some(from), &mut self.packet, self.wait)?;
            let header = Header::decode(&self.packet)?;
            if header.kind == Kind::Reply {
                ensure!(header.bytes == bytes, NONSENSE);
                return Ok(());
            }
            let packet = mem::take(&mut self.packet);
            self.early.push_back((from, packet));
        }
    }

    /// Receives a message of `from`, or of any connected peer, to `places` of `into`, which grows as
    /// needed. A contiguous message replaces `into`. Returns the peer.
    pub fn receive(
        &mut self,
        links: &mut impl Links,
        from: Option<usize>,
        into: &mut Vec<u8>,
        places: impl Iterator<Item = Range<usize>> + Clone,
    ) -> Result<usize> {
        let from = self.next(links, from)?;
        let header = Header::decode(&self.packet)?;
        let room: usize = places.clone().map(|place| place.len()).sum();
        ensure!(header.bytes == room, "a message of another length");
        match header.kind {
            Kind::Eager => unpack(links, &self.packet[HEADER..], into, places),
            Kind::Notification => self.receive_long(links, from, header.bytes, into, places)?,
            Kind::Reply => bail!(NONSENSE),
        }
        Ok(from)
    }

    /// Puts the next packet that begins a message into `packet`; returns its peer.
    fn next(&mut self, links: &mut impl Links, from: Option<usize>) -> Result<usize> {
        let is_wanted = |(peer, _): &(usize, _)| from.is_none_or(|from| from == *peer);
        let early = self.early.iter().position(is_wanted);
        if let Some((peer, packet)) = early.and_then(|at| self.early.remove(at)) {
            self.packet = packet;
            return Ok(peer);
        }
        links.receive(from, &mut self.packet, self.wait)
    }

    fn receive_long(
        &mut self,
        links: &mut impl Links,
        from: usize,
        bytes: usize,
        into: &mut Vec<u8>,
        places: impl Iterator<Item = Range<usize>> + Clone,
    ) -> Result<()> {
        let (kind, longest) = (Kind::Reply, links.longest());
        links.send(from, &Header { kind, bytes }.encode(), NOTHING)?;
        if only(&places).is_some() && bytes <= longest {
            links.receive(Some(from), into, self.wait)?;
            ensure!(into.len() == bytes, NONSENSE);
            return Ok(());
        }
        let mut whole = Vec::with_capacity(bytes);
        while whole.len() < bytes {
            links.receive(Some(from), &mut self.packet, self.wait)?;
            let left = bytes - whole.len();
            ensure!(self.packet.len() == left.min(longest), NONSENSE);
            whole.extend_from_slice(&self.packet);
        }
        unpack(links, &whole, into, places);
        Ok(())
    }
}

const NOTHING: Piece<'_> = Piece {
    bytes: &[],
    place: 0,
};

/// The place of contiguous data.
fn only(places: &(impl Iterator<Item = Range<usize>> + Clone)) -> Option<Range<usize>> {
    let mut places = places.clone();
    places.next().filter(|_| places.next().is_none())
}

fn pack(memory: &[u8], places: impl Iterator<Item = Range<usize>>, into: &mut Vec<u8>) {
    into.clear();
    places.for_each(|place| into.extend_from_slice(&memory[place]));
}

/// Copies a message to its places, which have as many bytes.
fn unpack(
    links: &mut impl Links,
    message: &[u8],
    into: &mut Vec<u8>,
    places: impl Iterator<Item = Range<usize>> + Clone,
) {
    links.copied(message.len());
    if only(&places).is_some() {
        into.clear();
        into.extend_from_slice(message);
        return;
    }
    let mut rest = message;
    for place in places {
        let (segment, next) = rest.split_at(place.len());
        into.resize(into.len().max(place.end), 0);
        into[place].copy_from_slice(segment);
        rest = next;
    }
}

#[cfg(test)]
mod tests {
    use std::iter;
    use std::slice::from_ref;
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::thread;

    use super::*;

    /// Packets with their peer, between two processes of one test.
    struct Pipe {
        to: Sender<(usize, Vec<u8>)>,
        from: Receiver<(usize, Vec<u8>)>,
        other: VecDeque<(usize, Vec<u8>)>,
        sent: Vec<usize>,
        copied: usize,
    }

    impl Links for Pipe {
        fn send(&mut self, peer: usize, header: &[u8], piece: Piece<'_>) -> Result<()> {
            let packet = [header, piece.bytes].concat();
            self.sent.push(packet.len());
            Ok(self.to.send((peer, packet))?)
        }

        fn receive(&mut self, from: Option<usize>, into: &mut Vec<u8>, _: Wait) -> Result<usize> {
            let is_wanted = |(peer, _): &(usize, _)| from.is_none_or(|from| from == *peer);
            let mut at = self.other.iter().position(is_wanted);
            while at.is_none() {
                self.other.push_back(self.from.recv()?);
                at = self.other.iter().position(is_wanted);
            }
            let (peer, packet) = at.and_then(|at| self.other.remove(at)).context("none")?;
            *into = packet;
            Ok(peer)
        }

        fn copied(&mut self, bytes: usize) {
            self.copied += bytes;
        }
    }

    fn pipes() -> [Pipe; 2] {
        let (ours, theirs) = (channel(), channel());
        [(ours.0, theirs.1), (theirs.0, ours.1)].map(|(to, from)| Pipe {
            to,
            from,
            other: VecDeque::new(),
            sent: Vec::new(),
            copied: 0,
        })
    }

    fn layer() -> MessageLayer {
        MessageLayer::new(EAGER, Wait::Poll)
    }

    fn bytes(count: usize) -> Vec<u8> {
        (0..count).map(|n| (n % 251) as u8).collect()
    }

    /// Packets that the sender and the receiver send for a message, and bytes that both copy.
    fn exchange(places: &[Range<usize>]) -> (Vec<usize>, Vec<usize>, [usize; 2]) {
        let [mut ours, mut theirs] = pipes();
        let memory = bytes(places.last().unwrap().end);
        thread::scope(|scope| {
            scope.spawn(|| {
                let sent = layer().send(&mut ours, 3, &memory, places.iter().cloned());
                sent.unwrap();
            });
            let mut into = Vec::new();
            let from = layer().receive(&mut theirs, None, &mut into, places.iter().cloned());
            assert_eq!(from.unwrap(), 3);
            for place in places {
                assert_eq!(into[place.clone()], memory[place.clone()]);
            }
        });
        (ours.sent, theirs.sent, [ours.copied, theirs.copied])
    }

    #[test]
    fn short_messages_are_copied_once_and_long_ones_follow_a_reply() {
        let (sent, answers, copied) = exchange(from_ref(&(0..EAGER)));
        assert_eq!((sent, answers), (vec![HEADER + EAGER], vec![]));
        assert_eq!(copied, [0, EAGER]);
        let (sent, answers, copied) = exchange(from_ref(&(0..EAGER + 1)));
        assert_eq!((sent, answers), (vec![HEADER, EAGER + 1], vec![HEADER]));
        assert_eq!(copied, [0, 0]);
        let (sent, answers, copied) = exchange(from_ref(&(0..2 * PIECE + 9)));
        assert_eq!(sent, [HEADER, PIECE, PIECE, 9]);
        assert_eq!((answers, copied), (vec![HEADER], [0, 2 * PIECE + 9]));
    }

    #[test]
    fn strided_messages_are_packed_and_unpacked() {
        for (segment, count) in [(10, 7), (EAGER, 2), (PIECE, 3)] {
            let places = (0..count).map(|n| n * 2 * segment..(n * 2 + 1) * segment);
            let places: Vec<_> = places.collect();
            let (_, _, copied) = exchange(&places);
            assert_eq!(copied, [count * segment; 2]);
        }
    }

    /// Both begin with a message, the second with a long one: its peer meets the eager message
    /// while it waits for the reply.
    #[test]
    fn messages_before_a_reply_wait_for_their_receive() {
        let [mut ours, mut theirs] = pipes();
        let (short, long) = (bytes(5), bytes(PIECE));
        thread::scope(|scope| {
            scope.spawn(|| {
                let (mut layer, mut into) = (layer(), Vec::new());
                for _ in 0..2 {
                    let sent = layer.send(&mut ours, 0, &short, iter::once(0..5));
                    sent.unwrap();
                }
                let place = iter::once(0..PIECE);
                layer.receive(&mut ours, Some(0), &mut into, place).unwrap();
                assert_eq!(into, long);
            });
            let (mut layer, mut into) = (layer(), Vec::new());
            let sent = layer.send(&mut theirs, 0, &long, iter::once(0..PIECE));
            sent.unwrap();
            assert_eq!(layer.early.len(), 2);
            for from in [Some(0), None] {
                let place = iter::once(0..5);
                layer.receive(&mut theirs, from, &mut into, place).unwrap();
                assert_eq!(into, short);
            }
        });
    }

    #[test]
    fn a_peer_that_breaks_the_protocol_is_an_error() {
        let reply = Header {
            kind: Kind::Reply,
            bytes: 4,
        };
        let long = Header {
            kind: Kind::Eager,
            bytes: 5,
        };
        let other = "a message of another length";
        for (packet, reason) in [
            (vec![], NONSENSE),
            (vec![9; HEADER], NONSENSE),
            (reply.encode().to_vec(), NONSENSE),
            ([&long.encode()[..], b"four"].concat(), NONSENSE),
            ([&long.encode()[..], b"fives"].concat(), other),
        ] {
            let [mut ours, mut theirs] = pipes();
            let bytes = &packet;
            let sent = theirs.send(0, &[], Piece { bytes, place: 0 });
            sent.unwrap();
            let mut into = Vec::new();
            let error = layer().receive(&mut ours, None, &mut into, iter::once(0..4));
            assert_eq!(error.unwrap_err().to_string(), reason, "{packet:?}");
        }
    }
}
