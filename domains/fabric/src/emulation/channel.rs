//! Channels that delay packets.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::own_time::{Exit, OwnTime};
use super::timer::{self, Due, NEVER};
use super::{PeerLink, SOON, await_event, end_of, guard, learn_guard, poll_clock, spin};
use crate::core::channel::{ChannelError, PacketChannel};
use crate::core::hold::Hold;
use crate::core::peer_link::{first_clock, latency};
use crate::key::Partition;
use crate::mem::waker::Waker;
use crate::model::{Nanos, Path};
use crate::os::thread::{monotonic, precisely, sleep_on};
use crate::provider;
use crate::topology::NodeId;

/// A channel of a provider, behind the link to its peer.
///
/// The sender computes the time before which the receiver does not see a packet. The receiver
/// respects it also without a model of its own.
#[derive(Debug)]
pub struct Channel {
    inner: provider::Channel,
    link: Arc<PeerLink>,
    sending: Sending,
    /// The end of the hold of `packet`, while the packet waits for it.
    held: Option<Nanos>,
    packet: Vec<u8>,
    /// Whether the last `receive` found nothing, so that a packet after its time is late.
    is_awaited: bool,
    alarm: Option<Arc<Alarm>>,
    exit: Exit,
    /// Processor time of waiting since the last record.
    spent: Nanos,
}

#[derive(Debug, Default)]
struct Sending {
    /// The last arrival: order is kept.
    last: Nanos,
    /// Length and arrival of a packet that found no room: the next attempt reserves no way.
    refused: Option<(u64, Nanos)>,
    own_time: OwnTime,
    random: fastrand::Rng,
}

/// Wakes a receiver that sleeps in poll(2) when a packet is due.
#[derive(Debug)]
struct Alarm {
    at: AtomicU64,
    waker: Waker,
}

impl Due for Alarm {
    fn at(&self) -> Nanos {
        self.at.load(Ordering::SeqCst)
    }

    fn act(&self) {
        self.at.store(NEVER, Ordering::SeqCst);
        self.waker.wake();
    }
}

impl Channel {
    /// Puts a channel behind the link to its peer.
    pub fn new(inner: provider::Channel, link: Arc<PeerLink>) -> Self {
        Channel {
            inner,
            link,
            sending: Sending::default(),
            held: None,
            packet: Vec::new(),
            is_awaited: false,
            alarm: None,
            exit: Exit::default(),
            spent: 0,
        }
    }

    /// The channel of the provider, for relays: they pass holds on. A packet that waits here is lost,
    /// so nothing may have been received.
    pub fn into_provider(self) -> provider::Channel {
        self.inner
    }

    fn send_delayed(&mut self, parts: &[&[u8]], hold: Hold) -> Result<(), ChannelError> {
        let mut now = monotonic();
        let Some(way) = self.link.way() else {
            return self.inner.send_held(parts, hold);
        };
        let bytes = parts.iter().map(|part| part.len() as u64).sum();
        let sending = &mut self.sending;
        if way.spin.is_some() && sending.refused.is_none_or(|(len, _)| len != bytes) {
            // A channel that has ended charges nothing.
            self.inner.observe()?;
            now = spin(&self.link, bytes, now);
        }
        let arrival = match sending.refused {
            Some((len, arrival)) if len == bytes => arrival,
            _ => {
                let arrival = way.carry_out(now, bytes, &mut sending.random);
                let own_time = if way.out.on_top {
                    sending.own_time.of(bytes)
                } else {
                    0
                };
                arrival.saturating_add(own_time)
            }
        };
        let arrival = arrival.max(sending.last).max(now + hold.left(now));
        let sent = self.inner.send_held(parts, Hold::until(arrival, now));
        match sent {
            Ok(()) => {
                (sending.last, sending.refused) = (arrival, None);
                sending.own_time.learn(bytes, monotonic() - now);
            }
            Err(ChannelError::Full) => sending.refused = Some((bytes, arrival)),
            Err(_) => {}
        }
        sent
    }

    /// Keeps a packet until its time, or returns it if that has passed.
    fn hold(&mut self, into: &mut Vec<u8>, hold: Hold) -> Result<Option<Hold>, ChannelError> {
        let now = monotonic();
        match hold.left(now) {
            0 => {
                self.record(hold.passed(now));
                Ok(Some(Hold::NONE))
            }
            left => {
                let due = now + left;
                self.held = Some(due);
                std::mem::swap(into, &mut self.packet);
                self.release(into, due)
            }
        }
    }

    /// Returns the packet that is kept, if its time has come.
    fn release(&mut self, into: &mut Vec<u8>, due: Nanos) -> Result<Option<Hold>, ChannelError> {
        let returns = due.saturating_sub(self.exit.get());
        let mut now = monotonic();
        if now < returns && returns <= now + SOON {
            now = poll_clock(returns);
        }
        // Packets that arrived before another end of the channel are received.
        if self.inner.observe() == Err(ChannelError::Revoked) {
            self.held = None;
            into.clear();
            return Err(ChannelError::Revoked);
        }
        if now < returns {
            into.clear();
            self.is_awaited = true;
            return Ok(None);
        }
        self.held = None;
        std::mem::swap(into, &mut self.packet);
        self.record(now - returns);
        self.exit.learn(now);
        Ok(Some(Hold::NONE))
    }

    /// Records how late a packet came to a receiver that waited.
    fn record(&mut self, late: Nanos) {
        let late = if std::mem::take(&mut self.is_awaited) {
            late
        } else {
            0
        };
        if let Some(way) = self.link.way()
            && let Some(clock) = first_clock(&way.back)
        {
            let spent = std::mem::take(&mut self.spent);
            let took = latency(&way.back);
            way.clocks.record(clock, Path::Rdma, late, took, spent);
        }
    }

    /// Lets the timer signal the descriptor shortly before `due`.
    fn set_alarm(&mut self, due: Nanos) -> io::Result<()> {
        let alarm = match &self.alarm {
            Some(alarm) => alarm,
            None => {
                let alarm = Arc::new(Alarm {
                    at: AtomicU64::new(NEVER),
                    waker: self.inner.waker()?,
                });
                timer::register(&alarm)?;
                self.alarm.insert(alarm)
            }
        };
        let at = due.saturating_sub(guard());
        alarm.at.store(at, Ordering::SeqCst);
        timer::announce(at);
        Ok(())
    }
}

impl PacketChannel for Channel {
    fn peer(&self) -> NodeId {
        self.inner.peer()
    }

    fn partition(&self) -> Partition {
        self.inner.partition()
    }

    #[inline]
    fn send_held(&mut self, parts: &[&[u8]], hold: Hold) -> Result<(), ChannelError> {
        if self.link.is_on() {
            self.send_delayed(parts, hold)
        } else {
            self.inner.send_held(parts, hold)
        }
    }

    #[inline]
    fn receive_held(&mut self, into: &mut Vec<u8>) -> Result<Option<Hold>, ChannelError> {
        if let Some(due) = self.held {
            return self.release(into, due);
        }
        match self.inner.receive_held(into)? {
            None => {
                self.is_awaited = true;
                Ok(None)
            }
            Some(Hold::NONE) => Ok(Some(Hold::NONE)),
            Some(hold) => self.hold(into, hold),
        }
    }

    fn observe(&mut self) -> Result<(), ChannelError> {
        self.inner.observe()
    }

    fn wait(&mut self, timeout: Duration) {
        let Some(due) = self.held else {
            return self.inner.wait(timeout);
        };
        // The rest of the time, `receive` polls the clock.
        let end = end_of(timeout).min(due.saturating_sub(SOON));
        let (mut now, guard) = (monotonic(), guard());
        if end.saturating_sub(now) > guard {
            // Without a place for another packet. Ends early when there is room, or the channel ends.
            if self.inner.arm_for(false) {
                let left = Duration::from_nanos(end - now - guard);
                precisely(|| sleep_on(self.inner.wake_fd(), left));
                now = monotonic();
                learn_guard((now + guard).saturating_sub(end));
            }
            self.inner.disarm();
        }
        if end.saturating_sub(now) <= guard {
            self.spent += await_event(end, now);
        }
    }

    fn wake_fd(&self) -> BorrowedFd<'_> {
        self.inner.wake_fd()
    }

    fn arm_for(&mut self, packets: bool) -> bool {
        let Some(due) = self.held.filter(|_| packets) else {
            return self.inner.arm_for(packets);
        };
        // For so short a time the caller does not sleep.
        let is_soon = due <= monotonic() + guard();
        !is_soon && self.inner.arm_for(false) && self.set_alarm(due).is_ok()
    }

    fn disarm(&mut self) {
        if let Some(alarm) = &self.alarm {
            alarm.at.store(NEVER, Ordering::SeqCst);
        }
        self.inner.disarm();
    }
}
