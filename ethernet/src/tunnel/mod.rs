//! Tunnels: connections to the drivers of other hosts.
//!
//! What a tunnel carries are packets as [`crate::offload`] describes them, in the byte order of these
//! machines, one behind the other, each behind a tag that says whose it is:
//!
//! ```text
//!  0        4       8        10      13     14
//!  +--------+-------+--------+-------+------+--------+
//!  | length | epoch | domain | place | zero | packet |   little endian; the length is the packet's
//!  +--------+-------+--------+-------+------+--------+
//! ```
//!
//! Where the zero is a one, no packet follows but a [notice](notice), and the rest of the tag is zeros.
//!
//! Whom a packet is for its frame says. GSO packets and frames without checksums travel as they are:
//! the driver at the other end does for each of its own ports what is to be done.
//!
//! **Nobody waits for another host.** What the connection does not take at once waits in an outbox, and
//! what does not fit there is lost, as in any network whose receiver is slow.
//!
//! Where both hosts have RDMA adapters, packets go by a [line](line) between those as long as there is one, in the
//! same form. The connection stays: it tells when the line goes up and down.

pub(crate) mod rdma_stream;
pub mod signal;

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::{self, IoSlice, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use toroid_fabric::{Epoch, Partition, Place};

use crate::headers::frame;
use crate::offload::MAX_PACKET;
use crate::offload::Offload;
use rdma_stream::LineEnd;
use signal::Notice;

/// Another host. The control path knows their names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostId(pub u32);

/// Bytes that may wait for a connection: some tens of milliseconds at a gigabit per second, after
/// which a sender had better know.
const OUTBOX: usize = 4 << 20;

/// Packets shorter than this are collected, to be sent in one call.
const SHORT: usize = 16 << 10;

/// Bytes that are read at once. A tag and a packet fit beside them, and no more shorter ones than others
/// may wait for.
const INBOX: usize = 2 * (Tag::LEN + MAX_PACKET);

/// Whose a packet is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tag {
    /// The domain.
    pub partition: Partition,
    /// Its epoch as the sender's driver knows it.
    pub epoch: Epoch,
    /// The member that has sent it.
    pub place: Place,
}

/// What came is no tag, or not of a packet: what comes behind it cannot be told apart any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it is not what drivers send each other")]
pub struct Nonsense;

impl Tag {
    /// Its bytes.
    pub const LEN: usize = 14;

    /// As it comes before a packet of so many bytes.
    pub fn to_bytes(self, len: usize) -> [u8; Self::LEN] {
        let [a, b, c, d] = (len as u32).to_le_bytes();
        let [e, f, g, h] = self.epoch.0.to_le_bytes();
        let [i, j, ..] = self.partition.0.to_le_bytes();
        let Place { x, y, z } = self.place;
        [a, b, c, d, e, f, g, h, i, j, x, y, z, 0]
    }

    /// The tag, and the length of its packet, which is one that a packet can have.
    ///
    /// # Errors
    /// [`Nonsense`].
    pub fn from_bytes(bytes: &[u8; Self::LEN]) -> Result<(Self, usize), Nonsense> {
        let [a, b, c, d, e, f, g, h, i, j, x, y, z, zero] = *bytes;
        let len = u32::from_le_bytes([a, b, c, d]) as usize;
        let possible = Offload::LEN + frame::HEADER_LEN..=MAX_PACKET;
        if zero != 0 || !possible.contains(&len) {
            return Err(Nonsense);
        }
        let tag = Tag {
            partition: Partition(u16::from_le_bytes([i, j]).into()),
            epoch: Epoch(u32::from_le_bytes([e, f, g, h])),
            place: Place { x, y, z },
        };
        Ok((tag, len))
    }
}

/// What comes before a notice instead of a tag.
const BEFORE_NOTICE: [u8; Tag::LEN] = {
    let mut bytes = [0; Tag::LEN];
    bytes[0] = Notice::LEN as u8;
    bytes[Tag::LEN - 1] = 1;
    bytes
};

/// Something that has come over a tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Item<'a> {
    /// A packet, and whose it is.
    Packet(Tag, &'a [u8]),
    /// Something about the line.
    Notice(Notice),
}

/// What has come over a tunnel and was not looked at yet.
#[derive(Debug, Default)]
pub struct Inbox {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
}

impl Inbox {
    /// Reads once; returns how many bytes there were.
    ///
    /// # Errors
    /// The system's; [`io::ErrorKind::UnexpectedEof`] when no more will come.
    pub fn fill(&mut self, mut from: impl Read) -> io::Result<usize> {
        self.bytes.resize(INBOX, 0);
        self.bytes.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
        // There is room, because what is left of all that was looked at is less than a packet.
        match from.read(&mut self.bytes[self.end..])? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            len => {
                self.end += len;
                Ok(len)
            }
        }
    }

    /// Whether all of the next item is here, or nonsense.
    pub fn has_next(&self) -> bool {
        let bytes = &self.bytes[self.start..self.end];
        bytes.first_chunk().is_some_and(|header| {
            let whole = |len| Tag::LEN + len <= bytes.len();
            Head::read(header).map_or(true, |head| whole(head.len()))
        })
    }

    /// The next item, if all of it is here.
    ///
    /// # Errors
    /// [`Nonsense`], from then on.
    pub fn next_item(&mut self) -> Result<Option<Item<'_>>, Nonsense> {
        let Some(header) = self.bytes[self.start..self.end].first_chunk() else {
            return Ok(None);
        };
        let head = Head::read(header)?;
        let from = self.start + Tag::LEN;
        if self.end - from < head.len() {
            return Ok(None);
        }
        self.start = from + head.len();
        let body = &self.bytes[from..self.start];
        Ok(Some(match head {
            Head::Packet(tag, _) => Item::Packet(tag, body),
            Head::Notice => {
                Item::Notice(Notice::from_bytes(body.try_into().map_err(|_| Nonsense)?)?)
            }
        }))
    }
}

/// What comes first of an item.
enum Head {
    Packet(Tag, usize),
    Notice,
}

impl Head {
    fn read(bytes: &[u8; Tag::LEN]) -> Result<Self, Nonsense> {
        if *bytes == BEFORE_NOTICE {
            Ok(Head::Notice)
        } else {
            Tag::from_bytes(bytes).map(|(tag, len)| Head::Packet(tag, len))
        }
    }

    /// Bytes of what follows.
    fn len(&self) -> usize {
        match self {
            Head::Packet(_, len) => *len,
            Head::Notice => Notice::LEN,
        }
    }
}

/// A connection to the driver of another host.
#[derive(Debug)]
pub struct Tunnel {
    stream: TcpStream,
    outbox: RefCell<Outbox>,
    /// What has come.
    pub inbox: Inbox,
    /// Packets for domains that have no members here.
    pub strays: u64,
    /// If packets can go by RDMA adapters.
    pub line: Option<LineEnd>,
    /// Packets that went or came by one, to this host and from it.
    by_rdma: Arc<AtomicU64>,
}

#[derive(Debug, Default)]
struct Outbox {
    bytes: VecDeque<u8>,
    /// The connection has taken less than it was given: no more is tried before it has room.
    is_stuck: bool,
    has_ended: bool,
}

impl Tunnel {
    /// Takes a connected TCP socket, and where packets by RDMA adapters are counted.
    ///
    /// # Errors
    /// The system's: it is none.
    pub fn new(socket: OwnedFd, by_rdma: Arc<AtomicU64>) -> io::Result<Self> {
        toroid_fabric::tcp::tune::for_packets(&socket)?;
        let stream = TcpStream::from(socket);
        stream.set_nonblocking(true)?;
        Ok(Tunnel {
            stream,
            outbox: RefCell::default(),
            inbox: Inbox::default(),
            strays: 0,
            line: None,
            by_rdma,
        })
    }

    /// Reads what has come into the inbox, in which no item is; returns how many bytes there were.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] when there is nothing; anything else when it has ended.
    pub fn receive(&mut self) -> io::Result<usize> {
        self.inbox.fill(&self.stream)
    }

    /// Sends a packet, or lets it wait for [`Tunnel::flush`].
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] when too many wait, [`io::ErrorKind::NotConnected`] when it has
    /// ended.
    pub fn send(&self, tag: &Tag, packet: &[u8]) -> io::Result<()> {
        let tag = tag.to_bytes(packet.len());
        match self.line.as_ref().filter(|line| line.sends) {
            Some(line) => {
                line.send(&tag, packet)?;
                self.count_by_rdma(1);
                Ok(())
            }
            None => self.outbox.borrow_mut().send(&self.stream, &tag, packet),
        }
    }

    /// Says something about the line, behind all packets so far: it waits for [`Tunnel::flush`].
    pub fn tell(&self, notice: Notice) {
        self.outbox.borrow_mut().tell(notice);
    }

    /// Counts packets that went or came by RDMA adapters.
    pub fn count_by_rdma(&self, packets: u64) {
        self.by_rdma.fetch_add(packets, Ordering::Relaxed);
    }

    /// Sends what waits, as far as the connection takes it.
    pub fn flush(&self) {
        self.outbox.borrow_mut().flush(&self.stream);
    }

    /// Tells that the connection has room.
    pub fn has_room(&self) {
        self.outbox.borrow_mut().is_stuck = false;
    }

    /// Whether it is to be told when the connection has room.
    pub fn is_stuck(&self) -> bool {
        self.outbox.borrow().is_stuck
    }

    /// Whether sending has shown that the connection is no more.
    pub fn has_ended(&self) -> bool {
        self.outbox.borrow().has_ended
    }
}

impl AsFd for Tunnel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

impl Outbox {
    fn send(&mut self, to: impl Write, tag: &[u8; Tag::LEN], packet: &[u8]) -> io::Result<()> {
        if self.has_ended {
            return Err(io::ErrorKind::NotConnected.into());
        }
        if self.bytes.len() + tag.len() + packet.len() > OUTBOX {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let mut sent = 0;
        if self.bytes.len() + packet.len() >= SHORT && !self.is_stuck {
            // Behind what waits, straight from where it is.
            sent = self.write(to, [tag, packet]);
        }
        for part in [tag, packet] {
            let gone = part.len().min(sent);
            sent -= gone;
            self.bytes.extend(&part[gone..]);
        }
        Ok(())
    }

    /// However much waits: who does not take notices is not sent many.
    fn tell(&mut self, notice: Notice) {
        self.bytes.extend(notice.to_item());
    }

    fn flush(&mut self, to: impl Write) {
        if !self.bytes.is_empty() && !self.is_stuck {
            self.write(to, [&[], &[]]);
        }
    }

    /// Sends what waits and these behind it, as far as it goes; returns how many bytes of these
    /// have gone.
    fn write(&mut self, mut to: impl Write, [a, b]: [&[u8]; 2]) -> usize {
        let (first, second) = self.bytes.as_slices();
        let waiting = self.bytes.len();
        let parts = [first, second, a, b].map(IoSlice::new);
        let sent = match to.write_vectored(&parts) {
            Ok(sent) => sent,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return 0,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
            Err(_) => {
                self.has_ended = true;
                0
            }
        };
        self.is_stuck = sent < waiting + a.len() + b.len();
        self.bytes.drain(..sent.min(waiting));
        sent.saturating_sub(waiting)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TAG: Tag = Tag {
        partition: Partition(7),
        epoch: Epoch(0x01020304),
        place: Place { x: 1, y: 2, z: 3 },
    };

    /// Takes so many bytes, and then so many more each time it is given room.
    #[derive(Default)]
    struct Narrow {
        room: usize,
        taken: Vec<u8>,
    }

    impl Write for &mut Narrow {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let len = bytes.len().min(self.room);
            if len == 0 && !bytes.is_empty() {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            self.room -= len;
            self.taken.extend(&bytes[..len]);
            Ok(len)
        }

        fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
            let all: Vec<u8> = parts.iter().flat_map(|part| part.to_vec()).collect();
            self.write(&all)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn packet(len: usize) -> Vec<u8> {
        (0..len).map(|n| (n * 7 + len) as u8).collect()
    }

    #[test]
    fn a_tag_is_as_drawn() {
        let bytes = TAG.to_bytes(0x0a0b);
        assert_eq!(bytes, [0x0b, 0x0a, 0, 0, 4, 3, 2, 1, 7, 0, 1, 2, 3, 0]);
        assert_eq!(Tag::from_bytes(&bytes), Ok((TAG, 0x0a0b)));
        for len in [0, 23, MAX_PACKET + 1, u32::MAX as usize] {
            assert_eq!(Tag::from_bytes(&TAG.to_bytes(len)), Err(Nonsense), "{len}");
        }
        let mut other = bytes;
        other[13] = 1;
        assert_eq!(Tag::from_bytes(&other), Err(Nonsense));
    }

    #[test]
    fn packets_come_whole_however_they_are_cut_on_the_way() {
        let lens = [
            24,
            25,
            1514,
            MAX_PACKET,
            60,
            SHORT,
            SHORT - 1,
            MAX_PACKET,
            24,
        ];
        for step in [1, 13, 4096, 100_000, usize::MAX] {
            let (mut outbox, mut narrow) = (Outbox::default(), Narrow::default());
            for len in lens {
                narrow.room = step.min(1 << 20);
                outbox.is_stuck = false;
                let packet = packet(len);
                outbox
                    .send(&mut narrow, &TAG.to_bytes(len), &packet)
                    .unwrap();
            }
            while !outbox.bytes.is_empty() {
                narrow.room = 1 << 20;
                outbox.is_stuck = false;
                outbox.flush(&mut narrow);
            }
            let (mut inbox, mut rest, mut received) = (Inbox::default(), &narrow.taken[..], vec![]);
            while !rest.is_empty() {
                let (now, later) = rest.split_at(step.min(rest.len()));
                let mut now = now;
                while !now.is_empty() {
                    inbox.fill(&mut now).unwrap();
                    while let Some(item) = inbox.next_item().unwrap() {
                        let Item::Packet(TAG, bytes) = item else {
                            panic!("{item:?}");
                        };
                        assert!(bytes == packet(bytes.len()), "{} bytes", bytes.len());
                        received.push(bytes.len());
                    }
                }
                rest = later;
            }
            assert_eq!(received, lens, "by {step}");
        }
    }

    #[test]
    fn notices_come_between_packets_and_are_known_from_them() {
        let notice = Notice {
            number: 7,
            word: signal::Word::Begin,
        };
        let packet = packet(60);
        let sent = [
            &TAG.to_bytes(60)[..],
            &packet,
            &BEFORE_NOTICE,
            &notice.to_bytes(),
            &TAG.to_bytes(60),
            &packet,
        ];
        let mut inbox = Inbox::default();
        inbox.fill(&*sent.concat()).unwrap();
        let wanted = [
            Item::Packet(TAG, &packet),
            Item::Notice(notice),
            Item::Packet(TAG, &packet),
        ];
        for item in wanted {
            assert!(inbox.has_next());
            assert_eq!(inbox.next_item(), Ok(Some(item)));
        }
        assert_eq!(inbox.next_item(), Ok(None));
        let mut changed = BEFORE_NOTICE;
        changed[5] = 1;
        let mut inbox = Inbox::default();
        inbox
            .fill(&*[&changed[..], &notice.to_bytes()].concat())
            .unwrap();
        assert_eq!(inbox.next_item(), Err(Nonsense));
    }

    #[test]
    fn what_nobody_takes_is_bounded() {
        let (mut outbox, mut narrow) = (Outbox::default(), Narrow::default());
        let mut send = || outbox.send(&mut narrow, &TAG.to_bytes(9000), &packet(9000));
        let taken = (0..1000).take_while(|_| send().is_ok()).count();
        assert_eq!(taken, OUTBOX / (9000 + Tag::LEN));
        let full = send().unwrap_err();
        assert_eq!(full.kind(), io::ErrorKind::WouldBlock);
    }

    #[test]
    fn a_connection_that_has_ended_is_noticed() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        drop(listener.accept().unwrap());
        let mut tunnel = Tunnel::new(ours.into(), Arc::default()).unwrap();
        let ended = (0..1000).any(|_| {
            std::thread::sleep(std::time::Duration::from_millis(1));
            tunnel.send(&TAG, &packet(SHORT)).is_err()
        });
        assert!(ended && tunnel.has_ended());
        let end = tunnel.receive().unwrap_err();
        assert_ne!(end.kind(), io::ErrorKind::WouldBlock);
    }
}
