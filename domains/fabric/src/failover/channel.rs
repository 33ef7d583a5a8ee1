//! A channel to a node of another host that uses the RDMA devices of both hosts where they work, and
//! fails over to the connection otherwise.
//!
//! Every channel begins on the connection. After some packets the initiating side offers a queue pair.
//! The other side accepts with one of its own, and both are connected:
//!
//! ```text
//!   initiating side                                           other side
//!     offer, parameters  ------------ connection ---------->
//!                        <----------- connection -----------  acceptance, parameters
//!     a message for nothing ========== devices ==========>   (acknowledged by its device)
//!     mark               ------------ connection ---------->
//!                        <----------- connection -----------  mark
//! ```
//!
//! Packets that a side sends after its mark go by the device. The other side takes them after all packets
//! before the mark, so none overtakes another.
//!
//! When a device fails, each side stops receiving by it and says how many packets have arrived. A packet
//! stays in the send buffer until the peer has taken it, so the missing packets are still there and
//! follow on the connection: each packet arrives once and in order. Later another queue pair is offered,
//! after growing pauses.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::epoll;

use super::channel_path::{DeviceChannel, DevicePath, NoResources, ResourceSource, Resources};
use super::paths::Paths;
use super::retry::{BACKOFF, LONGEST_PAUSE, Retry};
use crate::core::busy_poll::BusyPoll;
use crate::core::channel::{ChannelError, PacketChannel};
use crate::core::hold::Hold;
use crate::core::parameters::ConnectionParameters;
use crate::key::Partition;
use crate::mem::waker::Waker;
use crate::os::thread::sleep_on;
use crate::tcp;
use crate::tcp::channel::News;
use crate::tcp::wire::{End, Frame};
use crate::topology::NodeId;
use crate::verbs::Closer;
use crate::verbs::control::PreparedChannel;
use crate::verbs::watch;

/// Packets in both directions before a device is offered, because that registers memory; and between
/// two checks for events that are due.
const WORTH_IT: u64 = 8;

/// How often a receiver that polls the device in vain also polls the connection, which takes a system
/// call.
const CONNECTION_POLL: Duration = Duration::from_micros(100);

/// Packets by a device after which its next failure has the shortest pause.
const MANY: usize = 1000;

/// The longest wait of a channel that ends for its packets to arrive, and the part of it for the
/// device: one that fails takes longer to report.
const SETTLING: [Duration; 2] = [Duration::from_secs(3), Duration::from_millis(250)];

/// The longest sleep of a channel that ends, between two checks for messages of the other side.
const NAP: Duration = Duration::from_millis(10);

/// A channel with two paths.
pub struct Channel {
    tcp: tcp::Channel,
    /// An epoll(7) that is readable while the descriptor of the connection or of the device is.
    wake: OwnedFd,
    busy_poll: BusyPoll,
    source: ResourceSource,
    /// Whether this side offers.
    initiates: bool,
    device: DevicePath,
    /// Whether packets go by the device at present.
    sends_by_device: bool,
    /// Packets of the device that did not arrive, to be sent on the connection.
    backlog: VecDeque<(Vec<u8>, Hold)>,
    /// Whether the last packet was refused because of packets that must be sent before.
    waits_for_others: bool,
    /// The pause after the next failure of the device.
    pause: Duration,
    /// The time of the last poll of the connection.
    polled: Instant,
    packets: u64,
    paths: Paths,
}

impl Channel {
    /// A channel over `tcp`, on which nothing has been sent or received. The side that asked for the
    /// channel `initiates`.
    ///
    /// # Errors
    /// The system's: no descriptor left.
    pub fn new(mut tcp: tcp::Channel, source: ResourceSource, initiates: bool) -> io::Result<Self> {
        tcp.listen();
        let wake = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        watch::add(&wake, tcp.wake_fd())?;
        Ok(Channel {
            tcp,
            wake,
            busy_poll: BusyPoll::default(),
            source,
            initiates,
            device: DevicePath::Down(Retry::at_once()),
            sends_by_device: false,
            backlog: VecDeque::new(),
            waits_for_others: false,
            pause: BACKOFF[0],
            polled: Instant::now(),
            packets: 0,
            paths: Paths::default(),
        })
    }

    /// Counts of sent packets by path.
    pub fn paths(&self) -> Paths {
        self.paths
    }

    /// Whether packets go by the devices now, both paths.
    pub fn is_by_device(&self) -> bool {
        self.sends_by_device && self.tcp.has_mark()
    }

    /// A waker that signals the descriptor of the channel.
    ///
    /// # Errors
    /// The system's: no descriptor left.
    pub(crate) fn waker(&mut self) -> io::Result<Waker> {
        self.tcp.waker()
    }

    /// Ends the way by the device that there is now.
    pub fn closer(&self) -> Option<Closer> {
        match &self.device {
            DevicePath::Connected(path) | DevicePath::Up(path) => Some(path.channel.closer()),
            _ => None,
        }
    }

    /// Processes messages of the other side and events of the device, and sends the backlog as far as
    /// there is room.
    fn attend(&mut self) {
        loop {
            while let Some(news) = self.tcp.news() {
                self.hear(news);
            }
            if self.is_due() {
                self.advance();
            }
            self.send_backlog();
            if !self.tcp.has_news_of_device() {
                return;
            }
        }
    }

    /// Counts a packet. A caller that always finds one still processes events now and then.
    fn count(&mut self) {
        self.packets += 1;
        if self.tcp.has_news_of_device() || self.packets.is_multiple_of(WORTH_IT) {
            self.attend();
        }
    }

    fn hear(&mut self, news: News) {
        match (news, &self.device) {
            (News::Offer(theirs), DevicePath::Down(again))
                if !self.initiates && again.is_almost_now() && self.backlog.is_empty() =>
            {
                self.accept(&theirs);
            }
            // The other side has dropped the last queue pair sooner than this side, or does not wait.
            (
                News::Offer(_),
                DevicePath::Down(_) | DevicePath::Leaving(_) | DevicePath::Draining(_),
            ) if !self.initiates => {
                self.tcp.say(Frame::Decline { for_ever: false }, &[]);
            }
            (News::Accept(theirs), DevicePath::Offered(_)) => self.connect(&theirs),
            (News::Decline { for_ever: true }, DevicePath::Offered(_)) => {
                self.device = DevicePath::Absent;
            }
            (News::Decline { for_ever: false }, DevicePath::Offered(_)) => self.retry_later(),
            (
                News::Back { arrived },
                DevicePath::Connected(_) | DevicePath::Up(_) | DevicePath::Leaving(_),
            ) => {
                self.leave();
                self.drain(arrived);
            }
            (News::Back { arrived: 0 }, DevicePath::Refused) => self.retry_later(),
            _ => {
                self.broken();
            }
        }
    }

    /// The other side has broken the protocol.
    fn broken(&mut self) -> ChannelError {
        if let Some(channel) = self.device.channel() {
            channel.stop();
        }
        self.tcp.leave()
    }

    /// Whether the path by the devices can advance.
    fn is_due(&mut self) -> bool {
        if self.device.has_failed() {
            return true;
        }
        match &mut self.device {
            DevicePath::Down(again) => {
                let is_worth_it = self.initiates && self.packets >= WORTH_IT;
                // Later packets must not overtake a backlog.
                let is_ready = self.backlog.is_empty() && self.tcp.end().is_ok();
                is_worth_it && is_ready && again.is_now()
            }
            DevicePath::Connected(path) if self.initiates => path.channel.has_greeted(),
            DevicePath::Connected(_) => self.tcp.has_mark(),
            DevicePath::Draining(path) => !path.channel.has_arrived(),
            _ => false,
        }
    }

    fn advance(&mut self) {
        let has_failed = self.device.has_failed();
        match &self.device {
            _ if has_failed => self.leave(),
            DevicePath::Down(_) => self.offer(),
            DevicePath::Connected(_) => self.begin(),
            _ => {
                self.tcp.lift_mark();
                self.retry_later();
            }
        }
    }

    /// Schedules the next attempt.
    fn retry_later(&mut self) {
        let longer = LONGEST_PAUSE.min(self.pause * 2);
        self.device = DevicePath::Down(Retry::later(std::mem::replace(&mut self.pause, longer)));
    }

    fn prepare(&self) -> Result<(PreparedChannel, Resources), NoResources> {
        let resources = (self.source)()?;
        let (check, membership, _) = self.tcp.terms();
        let prepared = resources.domain.prepare_channel(check, membership);
        Ok((prepared.map_err(|_| NoResources::Now)?, resources))
    }

    fn offer(&mut self) {
        match self.prepare() {
            Ok(made) => {
                self.tcp.say(Frame::Offer, &made.0.parameters().to_bytes());
                self.device = DevicePath::Offered(Box::new(made));
            }
            Err(NoResources::Now) => self.retry_later(),
            Err(NoResources::Ever) => self.device = DevicePath::Absent,
        }
    }

    fn accept(&mut self, theirs: &ConnectionParameters) {
        let made = self.prepare();
        let for_ever = matches!(made, Err(NoResources::Ever));
        let path = made.ok().and_then(|made| {
            let ours = made.0.parameters();
            Some((self.connected(made, theirs)?, ours))
        });
        match path {
            Some((path, ours)) => {
                self.device = DevicePath::Connected(path);
                self.tcp.say(Frame::Accept, &ours.to_bytes());
            }
            None => self.tcp.say(Frame::Decline { for_ever }, &[]),
        }
    }

    fn connect(&mut self, theirs: &ConnectionParameters) {
        let DevicePath::Offered(made) = std::mem::take(&mut self.device) else {
            return;
        };
        match self.connected(*made, theirs) {
            Some(mut path) => {
                path.channel.greet();
                self.device = DevicePath::Connected(path);
            }
            None => {
                // The other side is connected, and learns so that this side is not.
                self.tcp.say(Frame::Back { arrived: 0 }, &[]);
                self.device = DevicePath::Refused;
            }
        }
    }

    fn connected(
        &mut self,
        (prepared, resources): (PreparedChannel, Resources),
        theirs: &ConnectionParameters,
    ) -> Option<DeviceChannel> {
        let (_, _, status) = self.tcp.terms();
        let channel = prepared.connect(theirs, status).ok()?;
        watch::add(&self.wake, channel.wake_fd()).ok()?;
        Some(DeviceChannel {
            channel: Box::new(channel),
            _resources: resources,
        })
    }

    /// Sends the mark: packets go by the device from now on.
    fn begin(&mut self) {
        if let DevicePath::Connected(path) = std::mem::take(&mut self.device) {
            self.device = DevicePath::Up(path);
            self.tcp.say(Frame::ByDevice, &[]);
            self.tcp.forget_wanted();
            self.sends_by_device = true;
            self.paths.connects += 1;
        }
    }

    /// Stops the path by the devices after a failure on either side. Nothing can be sent until the other
    /// side has said how many packets it has received.
    fn leave(&mut self) {
        self.device = match std::mem::take(&mut self.device) {
            DevicePath::Connected(mut path) | DevicePath::Up(mut path) => {
                if path.channel.sent() >= MANY {
                    self.pause = BACKOFF[0];
                }
                let arrived = path.channel.stop();
                // The descriptor of an ended channel would wake this side for ever.
                let _ = epoll::delete(&self.wake, path.channel.wake_fd());
                self.tcp.say(Frame::Back { arrived }, &[]);
                DevicePath::Leaving(path)
            }
            other => other,
        };
    }

    /// After `leave`: the other side has received `arrived` packets by the device. The missing ones
    /// become the backlog.
    fn drain(&mut self, arrived: u32) {
        if let DevicePath::Leaving(path) = std::mem::take(&mut self.device) {
            let lost = path.channel.lost(arrived);
            self.device = DevicePath::Draining(path);
            match lost {
                Some(lost) => self.backlog = lost,
                None => {
                    self.broken();
                }
            }
        }
        self.sends_by_device = false;
    }

    /// Whether packets of the device still have to be sent on the connection.
    fn is_behind(&self) -> bool {
        matches!(self.device, DevicePath::Leaving(_)) || !self.backlog.is_empty()
    }

    fn send_backlog(&mut self) {
        while let Some((packet, hold)) = self.backlog.front()
            && self.tcp.send_held(&[packet], *hold).is_ok()
        {
            self.backlog.pop_front();
        }
    }

    /// Waits until all sent packets are in flight on a path that does not need this side.
    fn settle(&mut self) {
        let start = Instant::now();
        let left = || SETTLING[0].saturating_sub(start.elapsed());
        if let DevicePath::Up(path) = &mut self.device
            && self.tcp.end().is_ok()
            && !path.channel.settle(SETTLING[1])
        {
            self.leave();
        }
        while self.is_behind() && self.tcp.end().is_ok() && !left().is_zero() {
            self.attend();
            if self.tcp.arm_for(false) && !self.tcp.has_news_of_device() {
                sleep_on(self.tcp.wake_fd(), left().min(NAP));
            }
            self.tcp.disarm();
        }
    }

    fn send_by_device(&mut self, parts: &[&[u8]], hold: Hold) -> Result<(), ChannelError> {
        let Some(channel) = self.device.channel() else {
            return Err(ChannelError::Full);
        };
        let before = channel.sent();
        let result = channel.send_held(parts, hold);
        // A packet that was taken arrives, by the device or by the connection.
        let was_taken = channel.sent() != before;
        match result {
            Ok(()) => Ok(()),
            Err(
                error @ (ChannelError::Full | ChannelError::TooLong { .. } | ChannelError::Revoked),
            ) => Err(error),
            Err(ChannelError::Corrupt) => Err(self.broken()),
            Err(_) => {
                self.leave();
                self.tcp.end()?;
                was_taken.then_some(()).ok_or(ChannelError::Full)
            }
        }
    }

    /// Receives a packet behind the mark.
    fn receive_by_device(&mut self, into: &mut Vec<u8>) -> Result<Option<Hold>, ChannelError> {
        let has_ended = self.tcp.end().is_err();
        let Some(channel) = self.device.channel() else {
            return Err(self.broken());
        };
        if has_ended {
            // Packets that have arrived by now count.
            channel.stop();
        }
        match channel.receive_held(into) {
            Ok(received) => return Ok(received),
            Err(ChannelError::Revoked) => return Err(ChannelError::Revoked),
            Err(ChannelError::Corrupt) => return Err(self.broken()),
            Err(_) if has_ended => self.tcp.lift_mark(),
            Err(_) => self.leave(),
        }
        Ok(None)
    }

    fn has_news(&mut self, packets: bool) -> bool {
        let is_at_mark = self.tcp.is_at_mark();
        match &mut self.device {
            DevicePath::Up(path) => path.channel.has_news(packets && is_at_mark),
            DevicePath::Leaving(path) | DevicePath::Draining(path) => {
                packets && is_at_mark && path.channel.has_arrived()
            }
            _ => false,
        }
    }
}

impl PacketChannel for Channel {
    fn peer(&self) -> NodeId {
        self.tcp.peer()
    }

    fn partition(&self) -> Partition {
        self.tcp.partition()
    }

    fn send_held(&mut self, parts: &[&[u8]], hold: Hold) -> Result<(), ChannelError> {
        self.send_backlog();
        let result = match (self.sends_by_device, self.backlog.is_empty()) {
            (true, _) => self.send_by_device(parts, hold),
            (false, true) => self.tcp.send_held(parts, hold),
            (false, false) => self.tcp.end().and(Err(ChannelError::Full)),
        };
        self.waits_for_others = result == Err(ChannelError::Full) && self.is_behind();
        if result.is_ok() {
            if self.sends_by_device {
                self.paths.device += 1
            } else {
                self.paths.connection += 1
            }
            self.count();
        }
        result
    }

    fn receive_held(&mut self, into: &mut Vec<u8>) -> Result<Option<Hold>, ChannelError> {
        loop {
            let received = if self.tcp.is_at_mark() {
                self.receive_by_device(into)
            } else {
                self.tcp.receive_held(into)
            };
            match received {
                Ok(Some(hold)) => {
                    self.count();
                    return Ok(Some(hold));
                }
                // The message that tells how the connection ended may have come behind a mark.
                Err(error) if error == ChannelError::Revoked || !self.tcp.is_at_mark() => {
                    return Err(error);
                }
                Err(error) if error == ChannelError::Corrupt => return Err(error),
                Ok(None) | Err(_) => {}
            }
            let before = self.tcp.is_at_mark();
            let is_up = matches!(self.device, DevicePath::Up(_));
            if before && is_up && self.polled.elapsed() < CONNECTION_POLL {
                return Ok(None);
            }
            self.polled = Instant::now();
            self.tcp.pump();
            self.attend();
            if self.tcp.is_at_mark() == before && self.tcp.end().is_ok() {
                return Ok(None);
            }
        }
    }

    fn observe(&mut self) -> Result<(), ChannelError> {
        self.tcp.pump();
        if let DevicePath::Up(path) = &mut self.device {
            // The end of the device is not that of the channel.
            let _ = path.channel.observe();
        }
        self.attend();
        self.tcp.end()
    }

    fn wait(&mut self, timeout: Duration) {
        let (busy_poll, since) = (self.busy_poll, Instant::now());
        let left = if self.tcp.is_at_mark() {
            busy_poll.poll_until(since, timeout, || self.has_news(true))
        } else {
            Some(timeout)
        };
        if let Some(left) = left {
            if self.arm() {
                sleep_on(self.wake.as_fd(), left);
                self.disarm();
            }
            self.busy_poll.record_wait(since);
        }
    }

    fn wake_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    fn arm_for(&mut self, packets: bool) -> bool {
        self.attend();
        let is_at_mark = self.tcp.is_at_mark();
        let device_sleeps = match &mut self.device {
            DevicePath::Connected(path) => path.channel.arm_for(false),
            DevicePath::Up(path) => path.channel.arm_for(packets && is_at_mark),
            _ => !self.has_news(packets),
        };
        // The path by the devices may wait for a message on the connection.
        let sleeps = device_sleeps
            && self.tcp.arm_for(packets)
            && !self.tcp.has_news_of_device()
            && !self.is_due()
            && !self.has_news(packets)
            && (!self.waits_for_others || self.is_behind());
        if !sleeps {
            self.disarm();
        }
        sleeps
    }

    fn disarm(&mut self) {
        self.tcp.disarm();
        if let DevicePath::Connected(path) | DevicePath::Up(path) = &mut self.device {
            path.channel.disarm();
        }
    }
}

impl tcp::RemoteEnd for Channel {
    fn arm_for_itself(&mut self) -> bool {
        self.tcp.end().is_err() || self.arm_for(false)
    }

    fn has_hung_up(&self) -> bool {
        self.tcp.has_hung_up()
    }

    fn finish(&mut self, end: End) {
        if end != End::Revoked {
            self.settle();
        }
        self.tcp.finish(end);
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        self.settle();
    }
}

impl fmt::Debug for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Channel")
            .field("peer", &self.tcp.peer())
            .field("state", &self.tcp.end())
            .field("is_by_device", &self.is_by_device())
            .field("paths", &self.paths)
            .finish_non_exhaustive()
    }
}
