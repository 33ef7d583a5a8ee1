//! Packet channels on `verbs`: messages into the peer's buffers, limited by credits.
//!
//! Each message has an immediate value:
//!
//! ```text
//!  31       30         29       16 15       0
//!  +--------+----------+----------+----------+
//!  | packet | greeting | reserved | credits  |
//!  +--------+----------+----------+----------+
//! ```
//!
//! A packet consists of a link header and the payload. Every message may return credits: the number
//! of packets that have left their buffers. Half of all credits are returned by a message of their
//! own. A greeting carries nothing: its acknowledgement shows that messages arrive, and that all
//! earlier ones have arrived.

use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use ibverbs_sys as ffi;

use super::chain::{Action, Chain, WorkRequest};
use super::connection::{Closer, Connection, Room};
use super::device::Device;
use super::objects::{CompletionQueue, Local, Protection};
use super::receive::{Buffers, CREDITS, Pool, Share};
use super::watch::Watch;
use crate::core::busy_poll::BusyPoll;
use crate::core::channel::{ChannelError, PacketChannel, total_len};
use crate::core::hold::Hold;
use crate::core::link::{LinkCheck, LinkHeader};
use crate::core::membership::Membership;
use crate::error::OpError;
use crate::key::{Epoch, Partition};
use crate::mem::status::Status;
use crate::mem::waker::Waker;
use crate::model::Nanos;
use crate::os::thread::{monotonic, sleep_on};
use crate::topology::NodeId;

/// Messages that only return credits and have not completed.
const RETURNS: usize = 4;

/// Greetings that a channel may send: at its beginning and at its end.
const GREETINGS: usize = 2;

/// Length of the send queue.
const REQUESTS: usize = CREDITS + RETURNS + GREETINGS;

/// Entries of the completion queue, more than a correct peer fills. A peer that overruns the queue
/// ends its own channel.
const ENTRIES: usize = REQUESTS + 4 * CREDITS;

/// Packets that one call drops before it gives its caller a chance to do something else.
const FORGERIES: usize = 64;

/// Bit of a packet.
const PACKET: u32 = 1 << 31;

/// Bit of a greeting.
const GREETING: u32 = 1 << 30;

/// Bits that must be zero.
const RESERVED: u32 = 0x3fff_0000;

/// Flag of `wr_id` for sends; other numbers are those of receive buffers.
const SENT: u64 = 1 << 63;

/// Bytes of the longest packet that is sent inline, if the device can.
const INLINE: u32 = 192;

/// Queues and buffers of a channel.
#[derive(Debug)]
pub(super) struct Ends {
    /// First: the device uses no memory when the rest is dropped.
    pub(super) connection: Connection,
    completions: CompletionQueue,
    /// Packets that the device sends, or repeats.
    staging: Buffers,
    share: Share,
}

impl Ends {
    pub(super) fn new(
        device: &Arc<Device>,
        protection: &Arc<Protection>,
        pool: Arc<Pool>,
    ) -> io::Result<Self> {
        let completions = CompletionQueue::new(&device.context, ENTRIES)?;
        let room = Room {
            requests: REQUESTS,
            locals: 1,
            inline: INLINE,
        };
        let staging = Buffers::new(protection, CREDITS)?;
        let share = pool.join()?;
        // Last: an error drops the connection before all that it uses.
        let connection = Connection::new(protection, &completions, Some(share.0.queue()), room)?;
        Ok(Ends {
            connection,
            completions,
            staging,
            share,
        })
    }
}

/// A packet in a receive buffer.
#[derive(Debug)]
struct Arrived {
    buffer: u64,
    len: usize,
    at: Nanos,
}

/// A packet channel on `verbs`.
#[derive(Debug)]
pub struct Channel {
    ends: Ends,
    chain: Chain,
    check: LinkCheck,
    local: NodeId,
    status: Arc<Status>,
    membership: Membership,
    watch: Watch,
    busy_poll: BusyPoll,
    /// Packets that may be sent.
    credits: usize,
    /// Packets that have left their buffers and are not returned as credits yet.
    owed: usize,
    sending: Sending,
    /// Packets in buffers, in order.
    arrived: VecDeque<Arrived>,
    /// Packets that have arrived, modulo 2^32.
    arrivals: u32,
    /// Greetings that have arrived.
    greetings: usize,
    /// Whether later arrivals are ignored.
    is_stopped: bool,
    /// Whether the last `send` found no room.
    wants_room: bool,
    /// How the channel ended, if not by its status.
    end: Option<ChannelError>,
}

/// Sends that the device has not completed.
#[derive(Debug, Default)]
struct Sending {
    /// Whether each is a packet, oldest first.
    requests: VecDeque<bool>,
    /// Number of the oldest.
    oldest: u64,
    /// Packets among them.
    packets: usize,
    /// Packets since the beginning.
    total: usize,
}

impl Sending {
    /// Sends that are no packets.
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
            ends,
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

    /// Wakes this end: for the control thread, after the status has changed.
    pub fn waker(&self) -> Waker {
        self.watch.waker()
    }

    /// Ends the connection: for the control thread. The peer can send nothing more.
    pub fn closer(&self) -> Closer {
        self.ends.connection.closer()
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
        self.ends.connection.close();
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

    /// Requests an event for later completions. A device that has gone raises none: the failure to
    /// request one ends the channel.
    fn ask_for_event(&mut self) {
        let completions = &self.ends.completions;
        let asked = completions.take_events();
        if asked.and_then(|()| completions.request_event()).is_err() {
            self.end(ChannelError::Unreachable);
        }
    }

    /// Whether a packet waits to be received.
    pub(crate) fn has_arrived(&self) -> bool {
        !self.arrived.is_empty()
    }

    /// Number of packets posted since the beginning.
    pub(crate) fn sent(&self) -> usize {
        self.sending.total
    }

    /// Sends a greeting as the first message.
    pub(crate) fn greet(&mut self) {
        self.ask(GREETING, Local::default(), true);
    }

    /// Whether the greeting has been acknowledged.
    pub(crate) fn has_greeted(&mut self) -> bool {
        self.take_completions();
        self.sending.oldest > 0 && self.alive().is_ok()
    }

    /// Whether the device or the peer has ended the channel.
    pub(crate) fn has_failed(&mut self) -> bool {
        self.take_completions();
        self.end.is_some()
    }

    /// Waits until the peer's device has acknowledged all sends; returns whether it has.
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
                true if !left.is_zero() => self.ends.completions.sleep(left),
                _ => return false,
            }
        }
    }

    /// Stops arrivals; returns the number of packets that have arrived. They can still be received.
    pub(crate) fn stop(&mut self) -> u32 {
        self.end(ChannelError::Unreachable);
        self.take_completions();
        self.is_stopped = true;
        self.arrivals
    }

    /// Payloads and holds of the sent packets that are missing when `arrived` have arrived at the
    /// peer, after [`Channel::stop`]. `None` if that number is impossible.
    pub(crate) fn lost(&self, arrived: u32) -> Option<VecDeque<(Vec<u8>, Hold)>> {
        let count = (self.sending.total as u32).wrapping_sub(arrived) as usize;
        if count > CREDITS.checked_sub(self.credits)? {
            return None;
        }
        let first = self.sending.total - count;
        (first..self.sending.total)
            .map(|number| self.ends.staging.packet(number % CREDITS))
            .collect()
    }

    /// Takes completions.
    fn take_completions(&mut self) {
        if self.is_stopped {
            return;
        }
        let mut some = [ffi::ibv_wc::default(); 16];
        loop {
            let Ok(count) = self.ends.completions.poll(&mut some) else {
                self.end(ChannelError::PeerDead);
                return;
            };
            for completion in &some[..count] {
                match completion.wr_id() {
                    number if number & SENT != 0 => self.has_left(number & !SENT, completion),
                    buffer => self.has_come(buffer, completion),
                }
            }
            // The loop ends: a peer that exceeds its credits has been disconnected.
            if count < some.len() {
                return;
            }
        }
    }

    fn has_left(&mut self, number: u64, completion: &ffi::ibv_wc) {
        self.sending.left_until(number);
        if !completion.is_valid() {
            // A peer without a buffer is not at fault: its other channels may have used them.
            self.end(ChannelError::PeerDead);
        }
    }

    fn has_come(&mut self, buffer: u64, completion: &ffi::ibv_wc) {
        let immediate = completion.imm_data().map(u32::from_be);
        let Some(immediate) = immediate else {
            // Flushed, or no message of a channel.
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
                self.arrived.push_back(Arrived {
                    buffer,
                    len: completion.len(),
                    at: monotonic(),
                });
                self.arrivals = self.arrivals.wrapping_add(1);
            }
        }
        // Empty messages could go on for ever.
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
        if self.ends.share.0.recycle(buffer).is_err() {
            self.end(ChannelError::PeerDead);
        }
    }

    /// Copies the next packet out and recycles its buffer. Returns its header, which is `None` for a
    /// malformed packet, and the time of arrival.
    fn next(&mut self, into: &mut Vec<u8>) -> Option<(Option<LinkHeader>, Nanos)> {
        let Arrived { buffer, len, at } = self.arrived.pop_front()?;
        let header = self.ends.share.0.read(buffer, len, into);
        self.recycle(buffer);
        self.owed += 1;
        if self.owed >= CREDITS / 2 && self.sending.returns() < RETURNS && self.alive().is_ok() {
            self.ask(0, Local::default(), true);
        }
        Some((header, at))
    }

    /// Sends a message that also returns all owed credits.
    fn ask(&mut self, kind: u32, local: Local, signalled: bool) {
        let immediate = kind | self.owed as u32;
        self.owed = 0;
        let number = self.sending.push(kind == PACKET);
        self.chain.push(&WorkRequest {
            number: number | SENT,
            action: Action::Send { immediate },
            local: local.into(),
            inline: local.len > 0 && local.len <= self.ends.connection.inline_bytes(),
            signalled,
        });
        if self.chain.post(&self.ends.connection).is_err() {
            self.end(ChannelError::PeerDead);
        }
    }

    fn stage(&mut self, header: &LinkHeader, parts: &[&[u8]]) -> Result<Local, OpError> {
        let place = self.sending.total % CREDITS;
        self.ends.staging.write(place, 0, &header.to_bytes())?;
        let mut at = LinkHeader::LEN;
        for part in parts {
            self.ends.staging.write(place, at, part)?;
            at += part.len();
        }
        Ok(self.ends.staging.local(place, at))
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
            hold: hold.between_hosts(),
        };
        let Ok(local) = self.stage(&header, parts) else {
            return Err(self.end(ChannelError::PeerDead));
        };
        self.wants_room = false;
        self.credits -= 1;
        // At least one packet of a full send queue is signalled.
        let signalled = (self.sending.total + 1).is_multiple_of(CREDITS / 2);
        self.ask(PACKET, local, signalled);
        self.end.map_or(Ok(()), Err)
    }

    fn receive_held(&mut self, into: &mut Vec<u8>) -> Result<Option<Hold>, ChannelError> {
        // Checked before the device is polled, so that the last packets of a peer that dies
        // meanwhile are found.
        let state = self.alive();
        match state {
            Err(ChannelError::Revoked) => return state.map(|()| None),
            // The peer could send for ever.
            Err(_) => self.ends.connection.close(),
            Ok(()) => {}
        }
        if self.arrived.is_empty() {
            self.take_completions();
        }
        for _ in 0..FORGERIES {
            let Some((header, arrival)) = self.next(into) else {
                into.clear();
                return state.map(|()| None);
            };
            let Some(header) = header else {
                into.clear();
                return Err(self.end(ChannelError::Corrupt));
            };
            match self.check.admit(&header) {
                // Checked again: the peer may have left and sent more since the first check.
                Ok(()) if self.alive() == Err(ChannelError::Revoked) => {
                    into.clear();
                    return Err(ChannelError::Revoked);
                }
                Ok(()) => return Ok(Some(header.hold.starting_at(arrival))),
                Err(reason) => self.membership.drops.count(reason),
            }
        }
        into.clear();
        Ok(None)
    }

    fn observe(&mut self) -> Result<(), ChannelError> {
        self.take_completions();
        self.alive()
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

    fn arm_for(&mut self, packets: bool) -> bool {
        self.ask_for_event();
        // Earlier completions raise no event, so the queue is polled afterwards.
        !self.has_news(packets)
    }

    fn disarm(&mut self) {
        // The next request of an event notices a device that has gone.
        let _ = self.ends.completions.take_events();
        self.watch.drain();
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // Packets that were not received occupy buffers that other channels may need.
        self.ends.connection.close();
        self.is_stopped = false;
        self.take_completions();
        while let Some(packet) = self.arrived.pop_front() {
            self.recycle(packet.buffer);
        }
    }
}
