//! Packets over a connection.
//!
//! A side may send as many bytes as it has credit for. So both sides always have room for incoming
//! bytes, find the credits among them, and a process that does not read delays only its own peer.
//!
//! Packets that RDMA devices carry meanwhile belong to [`failover::Channel`]. This module has the
//! negotiation about devices, and the mark behind which packets come by the devices.
//!
//! [`failover::Channel`]: ../../failover/struct.Channel.html

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::event::epoll;
use rustix::net::{Shutdown, shutdown};

use super::secure::Connection;
use super::stream::{Cut, Cutter, Stream};
use super::wire::{End, Frame, Malformed};
use crate::core::busy_poll::BusyPoll;
use crate::core::channel::{ChannelError, MAX_PAYLOAD, PacketChannel, total_len};
use crate::core::hold::Hold;
use crate::core::link::{LinkCheck, LinkHeader};
use crate::core::membership::Membership;
use crate::core::parameters::ConnectionParameters;
use crate::error::OpError;
use crate::key::{Epoch, Partition};
use crate::mem::DropGuard;
use crate::mem::Status;
use crate::mem::waker::{Sleeper, Waker, pipe};
use crate::os::thread::monotonic;
use crate::topology::NodeId;

/// Bytes of frames in flight in one direction: less than the default socket buffer, and more than
/// two of the longest packets.
pub const WINDOW: usize = 192 * 1024;

/// Bytes of credit that are returned at a time.
const CREDIT: usize = WINDOW / 4;

/// Bytes of a packet's frame before the payload.
pub(super) const HEAD: usize = Frame::LEN + LinkHeader::LEN;

/// Packets that one call drops before it gives its caller a chance to do something else.
const FORGERIES: usize = 64;

/// Messages about its device that a peer may send ahead of our answers: more than a correct one does.
const MOST_NEWS: usize = 4;

/// Messages about our device that may wait for a peer that does not read.
const MOST_SAID: usize = 16;

/// The longest wait for the other side to read the end of a channel.
const FAREWELL: Duration = Duration::from_secs(1);

/// A message of the other side about its RDMA device; see [`Frame`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum News {
    Offer(ConnectionParameters),
    Accept(ConnectionParameters),
    Decline { for_ever: bool },
    Back { arrived: u32 },
}

/// A packet channel over a connection.
#[derive(Debug)]
pub struct Channel {
    stream: Stream,
    /// An epoll(7) that contains the socket while the channel is armed.
    wake: OwnedFd,
    is_armed: bool,
    /// A pipe that the epoll(7) contains as well, once there is a waker.
    woken: Option<(Sleeper, Waker)>,
    check: LinkCheck,
    local: NodeId,
    membership: Membership,
    status: Arc<Status>,
    /// Bytes of whole packets at the front of the received bytes.
    whole: usize,
    /// The part of them before the mark, if the mark has come. The owner of the channel says when the
    /// rest may be taken.
    before_mark: Option<usize>,
    /// Whether packets may follow the mark on the connection.
    is_back: bool,
    /// Messages of the other side about its device, oldest first; `None` without a device here.
    news: Option<VecDeque<News>>,
    /// Messages about our device since the outgoing bytes were last empty.
    said: usize,
    /// Bytes that may be sent; at most [`WINDOW`].
    credit: usize,
    /// Bytes taken and not yet returned as credit. Together with bytes received and not taken at most
    /// [`WINDOW`].
    owed: usize,
    /// Bytes for which the last `send` had no room, and for which a wait then also waits.
    wanted: Option<usize>,
    /// How the other side or the connection ended, if it has.
    end: Option<ChannelError>,
    busy_poll: BusyPoll,
    /// Dropped with the channel.
    _guard: Option<DropGuard>,
}

impl Channel {
    /// The end of a channel of node `local` that leads to `check.peer`; `guard` is dropped with it.
    ///
    /// # Errors
    /// The system's: no descriptor left.
    pub fn open(
        connection: impl Into<Connection>,
        local: NodeId,
        check: LinkCheck,
        membership: Membership,
        status: Arc<Status>,
        guard: Option<DropGuard>,
    ) -> io::Result<Self> {
        Ok(Channel {
            // Twice as much, so that remaining bytes are seldom moved to the start.
            stream: Stream::new(connection, 2 * WINDOW),
            wake: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            is_armed: false,
            woken: None,
            check,
            local,
            membership,
            status,
            whole: 0,
            before_mark: None,
            is_back: false,
            news: None,
            said: 0,
            credit: WINDOW,
            owed: 0,
            wanted: None,
            end: None,
            busy_poll: BusyPoll::default(),
            _guard: guard,
        })
    }

    /// Ends the connection: for the control thread, after it has ended the status.
    pub fn cutter(&self) -> Cutter {
        self.stream.cutter()
    }

    /// A waker that signals the descriptor of the channel.
    ///
    /// # Errors
    /// The system's: no descriptor left.
    pub(crate) fn waker(&mut self) -> io::Result<Waker> {
        if let Some((_, waker)) = &self.woken {
            return Ok(waker.clone());
        }
        let (reader, writer, _) = pipe()?;
        let data = epoll::EventData::new_u64(0);
        epoll::add(&self.wake, &reader, data, epoll::EventFlags::IN)?;
        let waker = Waker::new(writer);
        self.woken = Some((Sleeper::new(reader), waker.clone()));
        Ok(waker)
    }

    /// Announces the end of the channel to the other side, behind all packets. Waits up to a second
    /// for a side that does not read.
    pub fn finish(&mut self, end: End) {
        let start = Instant::now();
        self.stream.outgoing().extend(Frame::End(end).to_bytes());
        while start.elapsed() < FAREWELL {
            match self.stream.push() {
                // The other side ends its side too when it has read all. Closing before that would
                // discard unread bytes.
                Ok(true) if shutdown(self.stream.fd(), Shutdown::Write).is_err() => return,
                Err(Cut) => return,
                Ok(_) => {}
            }
            match self.stream.pull() {
                Ok(count) => self.stream.consume(count),
                Err(Cut) => return,
            }
            let left = FAREWELL.saturating_sub(start.elapsed());
            self.stream.sleep(true, left);
        }
    }

    /// Checks whether access or the connection has ended, without a system call.
    ///
    /// # Errors
    /// How it ended.
    pub fn end(&self) -> Result<(), ChannelError> {
        match (self.status.check(), self.end) {
            (Err(OpError::Revoked), _) => Err(ChannelError::Revoked),
            (_, Some(end)) => Err(end),
            (Err(_), None) => Err(ChannelError::PeerDead),
            (Ok(()), None) => Ok(()),
        }
    }

    /// Sends and receives as much as is possible without blocking.
    pub fn pump(&mut self) {
        if self.end.is_some() {
            return;
        }
        let pushed = self.stream.push();
        // A send may fail before received bytes are read, which may tell why.
        let ended = match self.stream.pull() {
            Ok(0) => pushed.err().map(|Cut| ChannelError::Unreachable),
            Ok(_) => self.scan().err().map(|Malformed| ChannelError::Corrupt),
            Err(Cut) if self.stream.has_fault() => Some(ChannelError::Corrupt),
            Err(Cut) => Some(ChannelError::Unreachable),
        };
        self.end = self.end.or(ended);
        if self.end == Some(ChannelError::Corrupt) {
            self.stream.cutter().cut();
        }
    }

    /// Parses received bytes: takes credits and device messages out, and finds the end of the whole
    /// packets.
    fn scan(&mut self) -> Result<(), Malformed> {
        while self.end.is_none() {
            let bytes = &self.stream.incoming()[self.whole..];
            let Some(head) = bytes.first_chunk() else {
                return Ok(());
            };
            match Frame::from_bytes(head)? {
                Frame::Packet => {
                    if self.before_mark.is_some() && !self.is_back {
                        return Err(Malformed);
                    }
                    let Some(header) = bytes[Frame::LEN..].first_chunk() else {
                        return Ok(());
                    };
                    let header = LinkHeader::from_bytes(header);
                    let len = HEAD + payload_len(&header)?;
                    if self.owed + self.whole + len > WINDOW {
                        return Err(Malformed);
                    }
                    if bytes.len() < len {
                        return Ok(());
                    }
                    if header.hold != Hold::NONE {
                        self.start_hold(header.hold);
                    }
                    self.whole += len;
                }
                Frame::Credit { bytes } => {
                    self.credit += bytes as usize;
                    if self.credit > WINDOW {
                        return Err(Malformed);
                    }
                    self.take_out(Frame::LEN);
                }
                Frame::End(end) => self.end = Some(end.into()),
                frame @ (Frame::Offer | Frame::Accept) => {
                    let Some(parameters) = bytes[Frame::LEN..].first_chunk() else {
                        return Ok(());
                    };
                    let parameters =
                        ConnectionParameters::from_bytes(parameters).map_err(|_| Malformed)?;
                    self.take_out(Frame::LEN + ConnectionParameters::LEN);
                    self.hear(match frame {
                        Frame::Offer => News::Offer(parameters),
                        _ => News::Accept(parameters),
                    })?;
                }
                Frame::Decline { for_ever } => {
                    self.take_out(Frame::LEN);
                    self.hear(News::Decline { for_ever })?;
                }
                Frame::Back { arrived } => {
                    self.take_out(Frame::LEN);
                    self.is_back = self.before_mark.is_some();
                    self.hear(News::Back { arrived })?;
                }
                Frame::ByDevice => {
                    if self.news.is_none() || self.before_mark.is_some() {
                        return Err(Malformed);
                    }
                    self.take_out(Frame::LEN);
                    self.before_mark = Some(self.whole);
                }
            }
        }
        Ok(())
    }

    /// The hold of the packet behind the whole packets begins: replaces the duration by the end.
    fn start_hold(&mut self, duration: Hold) {
        let Hold(end) = duration.starting_at(monotonic());
        let at = self.whole + Frame::LEN;
        let field = at + LinkHeader::HOLD.start..at + LinkHeader::HOLD.end;
        self.stream.incoming_mut()[field].copy_from_slice(&end.to_le_bytes());
    }

    /// Removes bytes behind the whole packets.
    fn take_out(&mut self, count: usize) {
        self.stream.take_out(self.whole, count);
    }

    fn hear(&mut self, news: News) -> Result<(), Malformed> {
        match &mut self.news {
            Some(all) if all.len() < MOST_NEWS => all.push_back(news),
            None if matches!(news, News::Offer(_)) => {
                self.say(Frame::Decline { for_ever: true }, &[]);
            }
            _ => return Err(Malformed),
        }
        Ok(())
    }

    /// Sends a message about our RDMA device, behind all packets. A peer that provokes many of them
    /// and does not read is disconnected.
    pub fn say(&mut self, frame: Frame, data: &[u8]) {
        self.said = match self.stream.unsent() {
            0 => 1,
            _ => self.said + 1,
        };
        if self.said > MOST_SAID {
            self.leave();
            return;
        }
        let outgoing = self.stream.outgoing();
        outgoing.extend(frame.to_bytes());
        outgoing.extend_from_slice(data);
        // A failure shows when receiving.
        let _ = self.stream.push();
    }

    /// Forgets the packet that had no room: the caller sends it elsewhere.
    pub fn forget_wanted(&mut self) {
        self.wanted = None;
    }

    /// Accepts messages about the device of the other side. Without this call, offers are declined.
    pub fn listen(&mut self) {
        self.news = Some(VecDeque::with_capacity(MOST_NEWS));
    }

    /// Takes the oldest message about the device of the other side.
    pub fn news(&mut self) -> Option<News> {
        self.news.as_mut()?.pop_front()
    }

    /// Whether there is a message about the device of the other side.
    pub fn has_news_of_device(&self) -> bool {
        self.news.as_ref().is_some_and(|news| !news.is_empty())
    }

    /// Whether the mark has come: later packets of the other side come by its device.
    pub fn has_mark(&self) -> bool {
        self.before_mark.is_some()
    }

    /// Whether all packets before the mark have been taken.
    pub fn is_at_mark(&self) -> bool {
        self.before_mark == Some(0)
    }

    /// Permits to take the packets behind the mark.
    pub fn lift_mark(&mut self) {
        self.before_mark = None;
        self.is_back = false;
    }

    /// The link check, membership and status of the channel, for packets on another path.
    pub fn terms(&self) -> (LinkCheck, Membership, Arc<Status>) {
        let membership = self.membership.clone();
        (self.check, membership, Arc::clone(&self.status))
    }

    /// Ends the connection, because the other side has broken the protocol.
    pub fn leave(&mut self) -> ChannelError {
        self.stream.cutter().cut();
        *self.end.insert(ChannelError::Corrupt)
    }

    /// Takes the next whole packet.
    fn take(&mut self, into: &mut Vec<u8>) -> Option<LinkHeader> {
        into.clear();
        let whole = &self.stream.incoming()[..self.takeable()];
        let header = LinkHeader::from_bytes(whole.get(Frame::LEN..)?.first_chunk()?);
        let end = HEAD + header.len as usize;
        into.extend_from_slice(whole.get(HEAD..end)?);
        self.stream.consume(end);
        self.whole -= end;
        self.before_mark = self.before_mark.map(|before| before - end);
        self.owed += end;
        self.give_credit();
        Some(header)
    }

    /// Bytes of whole packets that may be taken.
    fn takeable(&self) -> usize {
        self.before_mark.unwrap_or(self.whole)
    }

    fn give_credit(&mut self) {
        if self.owed < CREDIT || self.end.is_some() || self.stream.push() != Ok(true) {
            return;
        }
        let bytes = self.owed as u32;
        self.owed = 0;
        let credit = Frame::Credit { bytes };
        self.stream.outgoing().extend(credit.to_bytes());
        // A failure shows when receiving.
        let _ = self.stream.push();
    }

    fn has_room(&self, len: usize) -> bool {
        self.stream.unsent() == 0 && self.credit >= len
    }

    fn has_news(&self, or_packets: bool) -> bool {
        let has_packets = or_packets && self.takeable() > 0;
        let has_room = self.wanted.is_some_and(|wanted| self.has_room(wanted));
        self.end().is_err() || has_packets || has_room
    }

    /// Whether the other side sends nothing more than the bytes received so far.
    pub fn has_hung_up(&self) -> bool {
        self.stream.has_hung_up()
    }
}

impl PacketChannel for Channel {
    fn peer(&self) -> NodeId {
        self.check.peer
    }

    fn partition(&self) -> Partition {
        self.check.partition
    }

    fn send_held(&mut self, parts: &[&[u8]], hold: Hold) -> Result<(), ChannelError> {
        self.end()?;
        let len = total_len(parts)?;
        if !self.has_room(HEAD + len) {
            self.pump();
            self.end()?;
        }
        if !self.has_room(HEAD + len) {
            self.wanted = Some(HEAD + len);
            return Err(ChannelError::Full);
        }
        let header = LinkHeader {
            partition: self.check.partition,
            // Acquire: pairs with the Release of the control thread that announces an epoch.
            epoch: Epoch(self.membership.epoch.load(Ordering::Acquire)),
            source: self.local,
            protocol: self.check.protocol,
            len: len as u32,
            hold: hold.between_hosts(),
        };
        self.wanted = None;
        self.credit -= HEAD + len;
        let outgoing = self.stream.outgoing();
        outgoing.extend(Frame::Packet.to_bytes());
        outgoing.extend(header.to_bytes());
        parts
            .iter()
            .for_each(|part| outgoing.extend_from_slice(part));
        match self.stream.push() {
            Ok(_) => Ok(()),
            Err(Cut) => {
                self.pump();
                self.end()
            }
        }
    }

    fn receive_held(&mut self, into: &mut Vec<u8>) -> Result<Option<Hold>, ChannelError> {
        // Checked before the connection is read, so that the last packets of a peer that dies
        // meanwhile are found there.
        let status = self.status.check();
        for _ in 0..FORGERIES {
            if self.takeable() == 0 {
                self.pump();
                // It may have waited for unsent bytes.
                self.give_credit();
            }
            if self.end() == Err(ChannelError::Revoked) {
                into.clear();
                return Err(ChannelError::Revoked);
            }
            let Some(header) = self.take(into) else {
                return match (self.end, status) {
                    (None, Ok(())) => Ok(None),
                    (None, Err(_)) => Err(ChannelError::PeerDead),
                    (Some(end), _) => Err(end),
                };
            };
            match self.check.admit(&header) {
                Ok(()) => return Ok(Some(header.hold)),
                Err(reason) => self.membership.drops.count(reason),
            }
        }
        into.clear();
        Ok(None)
    }

    fn observe(&mut self) -> Result<(), ChannelError> {
        self.pump();
        self.end()
    }

    fn wait(&mut self, timeout: Duration) {
        let (busy_poll, since) = (self.busy_poll, Instant::now());
        let left = busy_poll.poll_until(since, timeout, || {
            self.pump();
            self.give_credit();
            self.has_news(true)
        });
        if let Some(left) = left {
            self.stream.sleep(true, left);
            self.busy_poll.record_wait(since);
        }
    }

    fn wake_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    fn arm_for(&mut self, packets: bool) -> bool {
        self.pump();
        self.give_credit();
        if self.has_news(packets) {
            return false;
        }
        self.disarm();
        let mut events = epoll::EventFlags::IN;
        events.set(epoll::EventFlags::OUT, self.stream.unsent() > 0);
        let socket = self.stream.fd();
        // epoll is level-triggered: bytes that came since then are reported, too.
        self.is_armed =
            epoll::add(&self.wake, socket, epoll::EventData::new_u64(0), events).is_ok();
        self.is_armed
    }

    fn disarm(&mut self) {
        if std::mem::take(&mut self.is_armed) {
            // Fails when the socket has not been added.
            let _ = epoll::delete(&self.wake, self.stream.fd());
        }
        if let Some((sleeper, _)) = &mut self.woken {
            sleeper.drain();
        }
    }
}

impl Drop for Channel {
    /// Reads the remaining bytes: closing a socket with unread bytes discards sent bytes too.
    fn drop(&mut self) {
        self.stream.consume(usize::MAX);
        // One read takes a whole window.
        let _ = self.stream.pull();
    }
}

fn payload_len(header: &LinkHeader) -> Result<usize, Malformed> {
    let len = header.len as usize;
    (len <= MAX_PAYLOAD).then_some(len).ok_or(Malformed)
}
