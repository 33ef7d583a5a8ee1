//! Packet channels on `verbs`: messages into the peer's buffers, as many as it gave credits for.
//!
//! With each message comes a number:
//!
//! ```text
//!  31       30        29       16 15       0
//!  +--------+---------+----------+----------+
//!  | packet | nothing | reserved | credits  |
//!  +--------+---------+----------+----------+
//! ```
//!
//! A message with the highest bit is a packet: a link header and the payload. Every message may
//! return credits: so many packets have left their buffers. Without a packet to go with them they
//! are returned alone when they are half of all. A message for nothing shows that messages arrive, or
//! that all before it have.

use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use ibverbs_sys as ffi;

use super::chain::{Action, Asked, Chain};
use super::connection::{Closer, Connection, Room};
use super::device::Device;
use super::objects::{CompletionQueue, Local, Protection};
use super::receive::{Buffers, CREDITS, Pool};
use super::watch::Watch;
use crate::core::busy_poll::BusyPoll;
use crate::core::channel::{ChannelError, PacketChannel, total_len};
use crate::core::link::{LinkCheck, LinkHeader};
use crate::core::membership::Membership;
use crate::error::OpError;
use crate::key::{Epoch, Partition};
use crate::mem::status::Status;
use crate::mem::waker::Waker;
use crate::mem::waker::sleep_on;
use crate::topology::NodeId;

/// Messages that return credits alone, of which the device has not told that they have left.
const RETURNS: usize = 4;

/// Messages for nothing that a channel may send: at its beginning and at its end.
const GREETINGS: usize = 2;

/// Requests of a channel.
const REQUESTS: usize = CREDITS + RETURNS + GREETINGS;

/// Entries of its completion queue: a correct peer fills no more than that. One that does ends its
/// own channel.
const ENTRIES: usize = REQUESTS + 4 * CREDITS;

/// Packets that one call drops before it gives its caller a chance to do something else.
const FORGERIES: usize = 64;

/// A packet comes with it.
const PACKET: u32 = 1 << 31;

/// It is for nothing but to arrive.
const GREETING: u32 = 1 << 30;

/// Nothing yet.
const RESERVED: u32 = 0x3fff_0000;

/// Marks the numbers of what is sent among those of completions; others are those of buffers.
const SENT: u64 = 1 << 63;

/// Short packets travel within their request, if the device can.
const INLINE: u32 = 192;

/// What a channel is made of before it is connected.
#[derive(Debug)]
pub(super) struct Ends {
    pub(super) connection: Connection,
    completions: CompletionQueue,
    staging: Buffers,
    share: Share,
}

/// A channel's part of the pool.
#[derive(Debug)]
struct Share(Arc<Pool>);

impl Share {
    fn of(pool: Arc<Pool>) -> io::Result<Self> {
        pool.join()?;
        Ok(Share(pool))
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.0.leave();
    }
}

impl Ends {
    pub(super) fn new(
        device: &Arc<Device>,
        protection: &Arc<Protection>,
        pool: Arc<Pool>,
    ) -> io::Result<Self> {
        let completions = CompletionQueue::new(device.context(), ENTRIES)?;
        let room = Room {
            requests: REQUESTS,
            locals: 1,
            inline: INLINE,
        };
        let staging = Buffers::new(protection, CREDITS)?;
        let share = Share::of(pool)?;
        // Last, as nothing that it uses can go before it.
        let connection = Connection::new(protection, &completions, Some(share.0.queue()), room)?;
        Ok(Ends {
            connection,
            completions,
            staging,
            share,
        })
    }
}

/// A packet channel on `verbs`.
#[derive(Debug)]
pub struct Channel {
    /// First, so that the device uses no memory any more when the rest is dropped.
    connection: Connection,
    completions: CompletionQueue,
    /// Where packets wait until the device has sent them.
    staging: Buffers,
    share: Share,
    chain: Chain,
    check: LinkCheck,
    local: NodeId,
    status: Arc<Status>,
    membership: Membership,
    watch: Watch,
    busy_poll: BusyPoll,
    /// Packets that we may send.
    credits: usize,
    /// Packets that have left their buffers, of which the peer does not know.
    owed: usize,
    sending: Sending,
    /// Buffers with packets, in order, and their lengths.
    arrived: VecDeque<(u64, usize)>,
    /// Packets that have arrived so far.
    arrivals: u32,
    /// Messages for nothing that have arrived.
    greetings: usize,
    /// Whether what arrives from now on counts for nothing.
    is_stopped: bool,
    /// Whether the last `send` found no room.
    wants_room: bool,
    /// How it ended, if not by its status.
    end: Option<ChannelError>,
}

/// What the device was asked to send.
#[derive(Debug, Default)]
struct Sending {
    /// Whether they are packets, oldest first.
    requests: VecDeque<bool>,
    oldest: u64,
    packets: usize,
    /// Packets so far.
    total: usize,
}

impl Sending {
    /// Those that are no packets.
    fn returns(&self) -> usize {
        self.requests.len() - self.packets
    }

    fn push(&mut self, is_packet: bool) -> u64 {
        let number = self.oldest + self.requests.len() as u64;
        self.requests.push_back(is_packet);
        self.packets += usize::from(is_packet);
        self.total += usize::from(is_packet);
        number
    }

    fn left_until(&mut self, last: u64) {
        while self.oldest <= last
            && let Some(is_packet) = self.requests.pop_front()
        {
            self.oldest += 1;
            self.packets -= usize::from(is_packet);
        }
    }
}

impl Channel {
    pub(super) fn new(
        ends: Ends,
        local: NodeId,
        check: LinkCheck,
        membership: Membership,
        status: Arc<Status>,
    ) -> io::Result<Self> {
        let watch = Watch::new(ends.completions.fd())?;
        Ok(Channel {
            connection: ends.connection,
            completions: ends.completions,
            staging: ends.staging,
            share: ends.share,
            chain: Chain::with_capacity(1, 1),
            check,
            local,
            status,
            membership,
            watch,
            busy_poll: BusyPoll::default(),
            credits: CREDITS,
            owed: 0,
            sending: Sending {
                requests: VecDeque::with_capacity(REQUESTS),
                ..Sending::default()
            },
            arrived: VecDeque::with_capacity(ENTRIES),
            arrivals: 0,
            greetings: 0,
            is_stopped: false,
            wants_room: false,
            end: None,
        })
    }

    /// For the control thread: wakes this end after its status has changed.
    pub fn waker(&self) -> Waker {
        self.watch.waker()
    }

    /// For the control thread: keeps the peer from sending anything more.
    pub fn closer(&self) -> Closer {
        self.connection.closer()
    }

    fn alive(&self) -> Result<(), ChannelError> {
        let ended = self.status.check().map_err(|error| match error {
            OpError::Revoked => ChannelError::Revoked,
            _ => ChannelError::PeerDead,
        });
        match self.end {
            Some(end) if ended != Err(ChannelError::Revoked) => Err(end),
            _ => ended,
        }
    }

    fn end(&mut self, how: ChannelError) -> ChannelError {
        self.connection.close();
        *self.end.get_or_insert(how)
    }

    fn can_send(&self) -> bool {
        self.credits > 0 && self.sending.packets < CREDITS
    }

    pub(crate) fn has_news(&mut self, or_packets: bool) -> bool {
        self.take_completions();
        let has_packets = or_packets && self.has_arrived();
        self.alive().is_err() || has_packets || (self.wants_room && self.can_send())
    }

    /// As [`PacketChannel::arm`]; without `packets` for who does not want any now.
    pub(crate) fn arm_for(&mut self, packets: bool) -> bool {
        self.ask_for_event();
        // What ended before signals nothing, so it is looked for afterwards.
        !self.has_news(packets)
    }

    /// Has the device say when something ends from now on. One that has gone tells nothing more,
    /// which is noticed here.
    fn ask_for_event(&mut self) {
        let completions = &self.completions;
        let asked = completions.take_events();
        if asked.and_then(|()| completions.request_event()).is_err() {
            self.end(ChannelError::Unreachable);
        }
    }

    /// Whether a packet waits to be received.
    pub(crate) fn has_arrived(&self) -> bool {
        !self.arrived.is_empty()
    }

    /// Packets handed over so far, whether they have left or not.
    pub(crate) fn sent(&self) -> usize {
        self.sending.total
    }

    /// Sends a message for nothing before all else.
    pub(crate) fn greet(&mut self) {
        self.ask(GREETING, Local::default(), true);
    }

    /// Whether that has arrived.
    pub(crate) fn has_greeted(&mut self) -> bool {
        self.take_completions();
        self.sending.oldest > 0 && self.alive().is_ok()
    }

    /// Whether the device or the peer has ended it.
    pub(crate) fn has_failed(&mut self) -> bool {
        self.take_completions();
        self.end.is_some()
    }

    /// Waits until all that was sent has arrived at the peer's device; returns whether it has.
    pub(crate) fn settle(&mut self, timeout: Duration) -> bool {
        let start = Instant::now();
        if !self.sending.requests.is_empty() {
            self.ask(GREETING, Local::default(), true);
        }
        loop {
            self.ask_for_event();
            self.take_completions();
            let left = timeout.saturating_sub(start.elapsed());
            match self.alive().is_ok() {
                true if self.sending.requests.is_empty() => return true,
                true if !left.is_zero() => self.completions.sleep(left),
                _ => return false,
            }
        }
    }

    /// Lets nothing more arrive, and returns how many packets have so far. They can still be
    /// received.
    pub(crate) fn stop(&mut self) -> u32 {
        self.end(ChannelError::Unreachable);
        self.take_completions();
        self.is_stopped = true;
        self.arrivals
    }

    /// After it was stopped: the payloads of those packets that had not arrived when the peer had
    /// counted so many; nothing if so many cannot be true.
    pub(crate) fn lost(&self, arrived: u32) -> Option<VecDeque<Vec<u8>>> {
        let count = (self.sending.total as u32).wrapping_sub(arrived) as usize;
        if count > CREDITS.checked_sub(self.credits)? {
            return None;
        }
        let first = self.sending.total - count;
        (first..self.sending.total)
            .map(|number| self.staging.payload(number % CREDITS))
            .collect()
    }

    /// Takes what the device has to tell.
    fn take_completions(&mut self) {
        if self.is_stopped {
            return;
        }
        let mut some = [ffi::ibv_wc::default(); 16];
        loop {
            let Ok(count) = self.completions.poll(&mut some) else {
                self.end(ChannelError::PeerDead);
                return;
            };
            for completion in &some[..count] {
                match completion.wr_id() {
                    number if number & SENT != 0 => self.has_left(number & !SENT, completion),
                    buffer => self.has_come(buffer, completion),
                }
            }
            // Who sends more than it has credits for has been cut off, so this ends.
            if count < some.len() {
                return;
            }
        }
    }

    fn has_left(&mut self, number: u64, completion: &ffi::ibv_wc) {
        self.sending.left_until(number);
        if !completion.is_valid() {
            // Also a peer without a buffer is none that lies: its others may have taken what was ours.
            self.end(ChannelError::PeerDead);
        }
    }

    fn has_come(&mut self, buffer: u64, completion: &ffi::ibv_wc) {
        let immediate = completion.imm_data().map(u32::from_be);
        let Some(immediate) = immediate else {
            // Cut off, or not what a channel sends.
            self.recycle(buffer);
            self.end(if completion.is_valid() {
                ChannelError::Corrupt
            } else {
                ChannelError::PeerDead
            });
            return;
        };
        self.credits += (immediate & 0xffff) as usize;
        self.greetings += usize::from(immediate & GREETING != 0);
        match immediate & PACKET {
            0 => self.recycle(buffer),
            _ => {
                self.arrived.push_back((buffer, completion.len()));
                self.arrivals = self.arrivals.wrapping_add(1);
            }
        }
        // Messages for nothing could go on for ever.
        let is_nonsense = immediate == 0 || immediate & RESERVED != 0;
        if is_nonsense
            || self.greetings > GREETINGS
            || self.credits > CREDITS
            || self.arrived.len() + self.owed > CREDITS
        {
            self.end(ChannelError::Corrupt);
        }
    }

    fn recycle(&mut self, buffer: u64) {
        if self.share.0.recycle(buffer).is_err() {
            self.end(ChannelError::PeerDead);
        }
    }

    /// Copies the next packet out and gives its buffer back.
    fn next(&mut self, into: &mut Vec<u8>) -> Option<Option<LinkHeader>> {
        let (buffer, len) = self.arrived.pop_front()?;
        let header = self.share.0.read(buffer, len, into);
        self.recycle(buffer);
        self.owed += 1;
        if self.owed >= CREDITS / 2 && self.sending.returns() < RETURNS && self.alive().is_ok() {
            let nothing = Local::default();
            self.ask(0, nothing, true);
        }
        Some(header)
    }

    /// Sends a message, with all credits that the peer has not got back yet.
    fn ask(&mut self, kind: u32, local: Local, signalled: bool) {
        let immediate = kind | self.owed as u32;
        self.owed = 0;
        let number = self.sending.push(kind == PACKET);
        self.chain.push(&Asked {
            number: number | SENT,
            action: Action::Send { immediate },
            local: local.into(),
            inline: local.len > 0 && local.len <= self.connection.inline_bytes(),
            signalled,
        });
        if self.chain.post(&self.connection).is_err() {
            self.end(ChannelError::PeerDead);
        }
    }

    fn stage(&mut self, header: &LinkHeader, parts: &[&[u8]]) -> Result<Local, OpError> {
        let place = self.sending.total % CREDITS;
        self.staging.write(place, 0, &header.to_bytes())?;
        let mut at = LinkHeader::LEN;
        for part in parts {
            self.staging.write(place, at, part)?;
            at += part.len();
        }
        Ok(self.staging.local(place, at))
    }
}

impl PacketChannel for Channel {
    fn peer(&self) -> NodeId {
        self.check.peer
    }

    fn partition(&self) -> Partition {
        self.check.partition
    }

    fn send(&mut self, parts: &[&[u8]]) -> Result<(), ChannelError> {
        self.alive()?;
        let len = total_len(parts)?;
        if !self.can_send() {
            self.take_completions();
            self.alive()?;
        }
        if !self.can_send() {
            self.wants_room = true;
            return Err(ChannelError::Full);
        }
        let header = LinkHeader {
            partition: self.check.partition,
            // Acquire: pairs with the Release of the control thread that announces an epoch.
            epoch: Epoch(self.membership.epoch.load(Ordering::Acquire)),
            source: self.local,
            protocol: self.check.protocol,
            len: len as u32,
        };
        let Ok(local) = self.stage(&header, parts) else {
            return Err(self.end(ChannelError::PeerDead));
        };
        self.wants_room = false;
        self.credits -= 1;
        // Of those that wait for room at least one asks for a completion.
        let signalled = (self.sending.total + 1).is_multiple_of(CREDITS / 2);
        self.ask(PACKET, local, signalled);
        self.end.map_or(Ok(()), Err)
    }

    fn receive(&mut self, into: &mut Vec<u8>) -> Result<bool, ChannelError> {
        // Asked before the device is, so that the last words of a peer that then dies are found.
        let state = self.alive();
        match state {
            Err(ChannelError::Revoked) => return state.map(|()| false),
            // Whoever has the other end could go on for ever.
            Err(_) => self.connection.close(),
            Ok(()) => {}
        }
        if self.arrived.is_empty() {
            self.take_completions();
        }
        for _ in 0..FORGERIES {
            let Some(header) = self.next(into) else {
                into.clear();
                return state.map(|()| false);
            };
            let Some(header) = header else {
                into.clear();
                return Err(self.end(ChannelError::Corrupt));
            };
            match self.check.admit(&header) {
                // Asked again: this thread may have slept since, while the peer left and wrote on.
                Ok(()) if self.alive() == Err(ChannelError::Revoked) => {
                    into.clear();
                    return Err(ChannelError::Revoked);
                }
                Ok(()) => return Ok(true),
                Err(reason) => self.membership.drops.count(reason),
            }
        }
        into.clear();
        Ok(false)
    }

    fn wait(&mut self, timeout: Duration) {
        let (busy_poll, since) = (self.busy_poll, Instant::now());
        if let Some(left) = busy_poll.poll_until(since, timeout, || self.has_news(true)) {
            if self.arm() {
                sleep_on(self.watch.fd(), left);
                self.disarm();
            }
            self.busy_poll.record_wait(since);
        }
    }

    fn wake_fd(&self) -> BorrowedFd<'_> {
        self.watch.fd()
    }

    fn arm(&mut self) -> bool {
        self.arm_for(true)
    }

    fn disarm(&mut self) {
        // That the device has gone is noticed where it is asked next.
        let _ = self.completions.take_events();
        self.watch.drain();
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // What has arrived and was not received has taken buffers that others may need.
        self.connection.close();
        self.is_stopped = false;
        self.take_completions();
        while let Some((buffer, _)) = self.arrived.pop_front() {
            self.recycle(buffer);
        }
    }
}
