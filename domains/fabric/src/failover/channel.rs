//! A channel to a node of another host whose packets go by the devices of both where they can, and
//! over the connection with that host otherwise.
//!
//! It begins on the connection. By it the initiating side offers a queue pair once it is worth it, and
//! the other accepts with one of its own, which is connected then:
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
//! Packets that a side sends after its mark go by the device, and the other takes them when it has
//! taken all before the mark. So none overtakes another.
//!
//! When a device fails, each side lets nothing more arrive by it, and says how many packets have.
//! Packets stay where the device fetched them until the peer has taken them, so those that did not
//! arrive are there, and go over the connection: each packet arrives once, in its turn, whatever
//! becomes of the devices. Then another queue pair is offered, after growing pauses.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::epoll;

use super::paths::Paths;
use super::retry::{BACKOFF, LONGEST_PAUSE, Retry};
use crate::core::busy_poll::BusyPoll;
use crate::core::channel::{ChannelError, PacketChannel};
use crate::core::parameters::ConnectionParameters;
use crate::key::Partition;
use crate::mem::DropGuard;
use crate::mem::waker::sleep_on;
use crate::tcp;
use crate::tcp::channel::News;
use crate::tcp::wire::{End, Frame};
use crate::topology::NodeId;
use crate::verbs::control::{PreparedChannel, ProtectionDomain};
use crate::verbs::watch;
use crate::verbs::{self, Closer};

/// Packets in either direction before devices are used, as memory is registered for them, and between
/// looks at what is due.
const WORTH_IT: u64 = 8;

/// How long who looks at the device in vain does without a look at the connection, which is a system
/// call.
const LOOK: Duration = Duration::from_micros(100);

/// Packets that show that a device is worth trying soon again when it fails.
const MANY: usize = 1000;

/// How long who is about to end waits at most for what was sent, and how much of it for the device: one
/// that fails takes longer to say so.
const SETTLING: [Duration; 2] = [Duration::from_secs(3), Duration::from_millis(250)];

/// How long one sleep for the other side's word lasts at most, of who is about to end.
const NAP: Duration = Duration::from_millis(10);

/// What a queue pair of ours is made of.
#[derive(Debug)]
pub struct Resources {
    /// What it belongs to.
    pub domain: Arc<ProtectionDomain>,
    /// Dropped with it.
    pub account: Option<DropGuard>,
}

/// Why there are no [`Resources`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoResources {
    /// There may be some later.
    Now,
    /// There is no device.
    Ever,
}

/// Where [`Resources`] come from.
pub type ResourceSource = Box<dyn Fn() -> Result<Resources, NoResources> + Send + Sync>;

/// A channel with two paths.
pub struct Channel {
    tcp: tcp::Channel,
    /// Readable while the connection's or the device's descriptor is.
    wake: OwnedFd,
    busy_poll: BusyPoll,
    source: ResourceSource,
    /// Whether this side offers.
    initiates: bool,
    device: DevicePath,
    /// Whether packets that are sent now go by the device.
    sends_by_device: bool,
    /// Packets that the device was given, and which have to go over the connection.
    backlog: VecDeque<Vec<u8>>,
    /// Whether the last packet could not be sent because of others that are to be sent before.
    waits_for_others: bool,
    /// How long the device is left alone when it fails next.
    pause: Duration,
    /// When the connection was looked at last.
    looked: Instant,
    packets: u64,
    paths: Paths,
}

/// How far the way by the devices is.
enum DevicePath {
    Down(Retry),
    /// The other side has not answered yet.
    Offered(Box<(PreparedChannel, Resources)>),
    /// It is not known yet whether anything arrives.
    Connected(DeviceChannel),
    Up(DeviceChannel),
    /// Nothing more arrives. What has arrived is taken first, and the other side says how many packets
    /// it has got.
    Leaving {
        path: DeviceChannel,
        is_counted: bool,
    },
    /// The same of one that was never connected here.
    Refused,
    /// One of the two sides has none.
    Absent,
}

/// A connected channel of the devices, and what keeps it.
struct DeviceChannel {
    channel: Box<verbs::Channel>,
    _resources: Resources,
}

impl Channel {
    /// A channel as `tcp` is, on which nothing has been sent or received. The side that `initiates`
    /// is to be the one that has asked for the channel.
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
            looked: Instant::now(),
            packets: 0,
            paths: Paths::default(),
        })
    }

    /// Which ways the packets went that it has sent.
    pub fn paths(&self) -> Paths {
        self.paths
    }

    /// Whether packets go by the devices now, both paths.
    pub fn is_by_device(&self) -> bool {
        self.sends_by_device && self.tcp.has_mark()
    }

    /// Ends the way by the device that there is now.
    pub fn closer(&self) -> Option<Closer> {
        match &self.device {
            DevicePath::Connected(path) | DevicePath::Up(path) => Some(path.channel.closer()),
            _ => None,
        }
    }

    /// The device's channel, if there is one.
    fn channel(&mut self) -> Option<&mut verbs::Channel> {
        match &mut self.device {
            DevicePath::Connected(path)
            | DevicePath::Up(path)
            | DevicePath::Leaving { path, .. } => Some(&mut path.channel),
            _ => None,
        }
    }

    /// Does what is due: what the other side has said, what the device has come to, what waits for
    /// room on the connection.
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

    /// Counts a packet. Who always finds one does what is due now and then.
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
            // The other side has let go of the last one sooner than this one, or does not wait.
            (News::Offer(_), DevicePath::Down(_) | DevicePath::Leaving { .. })
                if !self.initiates =>
            {
                self.tcp.say(Frame::Decline { for_ever: false }, &[]);
            }
            (News::Accept(theirs), DevicePath::Offered(_)) => self.connect(&theirs),
            (News::Decline { for_ever: true }, DevicePath::Offered(_)) => {
                self.device = DevicePath::Absent;
            }
            (News::Decline { for_ever: false }, DevicePath::Offered(_)) => self.retry_later(),
            (News::Back { arrived }, DevicePath::Connected(_) | DevicePath::Up(_)) => {
                self.leave();
                self.is_counted(arrived);
            }
            (
                News::Back { arrived },
                DevicePath::Leaving {
                    is_counted: false, ..
                },
            ) => {
                self.is_counted(arrived);
            }
            (News::Back { arrived: 0 }, DevicePath::Refused) => self.retry_later(),
            _ => {
                self.broken();
            }
        }
    }

    /// The other side has broken the protocol.
    fn broken(&mut self) -> ChannelError {
        if let Some(channel) = self.channel() {
            channel.stop();
        }
        self.tcp.leave()
    }

    /// Whether the device has come to something.
    fn is_due(&mut self) -> bool {
        let (initiates, has_mark) = (self.initiates, self.tcp.has_mark());
        match &mut self.device {
            DevicePath::Down(again) => {
                let is_worth_it = initiates && self.packets >= WORTH_IT;
                // What comes later must not overtake a backlog.
                let is_ready = self.backlog.is_empty() && self.tcp.end().is_ok();
                is_worth_it && is_ready && again.is_now()
            }
            DevicePath::Connected(path) => {
                let is_ready = if initiates {
                    path.channel.has_greeted()
                } else {
                    has_mark
                };
                is_ready || path.channel.has_failed()
            }
            DevicePath::Up(path) => path.channel.has_failed(),
            DevicePath::Leaving { path, is_counted } => *is_counted && !path.channel.has_arrived(),
            DevicePath::Offered(_) | DevicePath::Refused | DevicePath::Absent => false,
        }
    }

    fn advance(&mut self) {
        let has_failed = match &mut self.device {
            DevicePath::Connected(path) | DevicePath::Up(path) => path.channel.has_failed(),
            _ => false,
        };
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

    /// Tries it again later.
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
        let decline = Frame::Decline {
            for_ever: matches!(made, Err(NoResources::Ever)),
        };
        let path = made.ok().and_then(|made| {
            let ours = made.0.parameters();
            Some((self.connected(made, theirs)?, ours))
        });
        match path {
            Some((path, ours)) => {
                self.device = DevicePath::Connected(path);
                self.tcp.say(Frame::Accept, &ours.to_bytes());
            }
            None => self.tcp.say(decline, &[]),
        }
    }

    fn connect(&mut self, theirs: &ConnectionParameters) {
        let offered = std::mem::replace(&mut self.device, DevicePath::Absent);
        let DevicePath::Offered(made) = offered else {
            return;
        };
        match self.connected(*made, theirs) {
            Some(mut path) => {
                path.channel.greet();
                self.device = DevicePath::Connected(path);
            }
            None => {
                // The other side has one that is connected, and hears so that this one is not.
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

    /// Packets go by the device from now on.
    fn begin(&mut self) {
        if let DevicePath::Connected(path) = std::mem::replace(&mut self.device, DevicePath::Absent)
        {
            self.device = DevicePath::Up(path);
            self.tcp.say(Frame::ByDevice, &[]);
            self.tcp.forget_wanted();
            self.sends_by_device = true;
            self.paths.connects += 1;
        }
    }

    /// The device has failed, here or there. Until the other side has said what it has got, nothing
    /// more can be sent.
    fn leave(&mut self) {
        let device = std::mem::replace(&mut self.device, DevicePath::Absent);
        self.device = match device {
            DevicePath::Connected(mut path) | DevicePath::Up(mut path) => {
                if path.channel.sent() >= MANY {
                    self.pause = BACKOFF[0];
                }
                let arrived = path.channel.stop();
                // Its end would wake this side for ever.
                let _ = epoll::delete(&self.wake, path.channel.wake_fd());
                self.tcp.say(Frame::Back { arrived }, &[]);
                let is_counted = false;
                DevicePath::Leaving { path, is_counted }
            }
            other => other,
        };
    }

    /// The other side has got so many packets by the device.
    fn is_counted(&mut self, arrived: u32) {
        if let DevicePath::Leaving { path, is_counted } = &mut self.device {
            *is_counted = true;
            match path.channel.lost(arrived) {
                Some(lost) => self.backlog = lost,
                None => {
                    self.broken();
                }
            }
        }
        self.sends_by_device = false;
    }

    /// Whether what the device was given has not been given to the connection yet.
    fn is_behind(&self) -> bool {
        let is_counted = !matches!(
            self.device,
            DevicePath::Leaving {
                is_counted: false,
                ..
            }
        );
        !is_counted || !self.backlog.is_empty()
    }

    fn send_backlog(&mut self) {
        while let Some(packet) = self.backlog.front()
            && self.tcp.send(&[packet]).is_ok()
        {
            self.backlog.pop_front();
        }
    }

    /// Waits until all that was sent is on its path, whatever becomes of this side.
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

    fn send_by_device(&mut self, parts: &[&[u8]]) -> Result<(), ChannelError> {
        let Some(channel) = self.channel() else {
            return Err(ChannelError::Full);
        };
        let before = channel.sent();
        let result = channel.send(parts);
        // Then it arrives, if not by the device.
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

    /// What is behind the mark.
    fn receive_by_device(&mut self, into: &mut Vec<u8>) -> Result<bool, ChannelError> {
        let has_ended = self.tcp.end().is_err();
        let Some(channel) = self.channel() else {
            return Err(self.broken());
        };
        if has_ended {
            // What has arrived until now counts.
            channel.stop();
        }
        match channel.receive(into) {
            Ok(is_there) => return Ok(is_there),
            Err(ChannelError::Revoked) => return Err(ChannelError::Revoked),
            Err(ChannelError::Corrupt) => return Err(self.broken()),
            Err(_) if has_ended => self.tcp.lift_mark(),
            Err(_) => self.leave(),
        }
        Ok(false)
    }

    fn has_news(&mut self, packets: bool) -> bool {
        let is_at_mark = self.tcp.is_at_mark();
        match &mut self.device {
            DevicePath::Up(path) => path.channel.has_news(packets && is_at_mark),
            DevicePath::Leaving { path, .. } => packets && is_at_mark && path.channel.has_arrived(),
            _ => false,
        }
    }

    /// As [`PacketChannel::arm`]; without `packets` for who has no place for one: only for room
    /// after [`ChannelError::Full`], and the end of the channel.
    pub fn arm_for(&mut self, packets: bool) -> bool {
        self.attend();
        let is_at_mark = self.tcp.is_at_mark();
        let device_sleeps = match &mut self.device {
            DevicePath::Connected(path) => path.channel.arm_for(false),
            DevicePath::Up(path) => path.channel.arm_for(packets && is_at_mark),
            _ => !self.has_news(packets),
        };
        // What comes over the connection may be what the device waits for.
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
}

impl PacketChannel for Channel {
    fn peer(&self) -> NodeId {
        self.tcp.peer()
    }

    fn partition(&self) -> Partition {
        self.tcp.partition()
    }

    fn send(&mut self, parts: &[&[u8]]) -> Result<(), ChannelError> {
        self.send_backlog();
        let result = match (self.sends_by_device, self.backlog.is_empty()) {
            (true, _) => self.send_by_device(parts),
            (false, true) => self.tcp.send(parts),
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

    fn receive(&mut self, into: &mut Vec<u8>) -> Result<bool, ChannelError> {
        loop {
            let received = if self.tcp.is_at_mark() {
                self.receive_by_device(into)
            } else {
                self.tcp.receive(into)
            };
            match received {
                Ok(true) => {
                    self.count();
                    return Ok(true);
                }
                // What it says of how the connection ended may have come behind a mark.
                Err(error) if error == ChannelError::Revoked || !self.tcp.is_at_mark() => {
                    return Err(error);
                }
                Err(error) if error == ChannelError::Corrupt => return Err(error),
                Ok(false) | Err(_) => {}
            }
            let before = self.tcp.is_at_mark();
            let is_up = matches!(self.device, DevicePath::Up(_));
            if before && is_up && self.looked.elapsed() < LOOK {
                return Ok(false);
            }
            self.looked = Instant::now();
            self.tcp.pump();
            self.attend();
            if self.tcp.is_at_mark() == before && self.tcp.end().is_ok() {
                return Ok(false);
            }
        }
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

    fn arm(&mut self) -> bool {
        self.arm_for(true)
    }

    fn disarm(&mut self) {
        self.tcp.disarm();
        if let DevicePath::Connected(path) | DevicePath::Up(path) = &mut self.device {
            path.channel.disarm();
        }
    }
}

impl tcp::RemoteEnd for Channel {
    fn arm_for(&mut self, packets: bool) -> bool {
        Channel::arm_for(self, packets)
    }

    fn arm_for_itself(&mut self) -> bool {
        self.tcp.end().is_err() || Channel::arm_for(self, false)
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
