//! Frames under way in the switch: waiting until they are due, and their delivery.

use std::collections::HashSet;
use std::io;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollEvent, EpollFlags};
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
use toroid_fabric::model::{Nanos, SharedClocks};
use toroid_fabric::{Partition, Place};
use toroid_model::ethernet::DropReason;
use toroid_protocol::driver::Port;
use tracing::warn;

use super::Switch;
use super::event_source::{EventSource, TIMER};
use super::links::ModeledLinks;
use super::pacer::Pace;
use super::turn::{BATCH, Scratch, deliver};

/// Timer that ends a sleep of the switch. The kernel rounds the timeouts of waits, but no timers.
pub(super) struct Alarm {
    timer: TimerFd,
    set_for: Option<Nanos>,
}

impl Alarm {
    /// # Errors
    /// The system's: out of descriptors.
    pub(super) fn new(epoll: &Epoll) -> io::Result<Self> {
        let flags = TimerFlags::TFD_NONBLOCK | TimerFlags::TFD_CLOEXEC;
        let timer = TimerFd::new(ClockId::CLOCK_MONOTONIC, flags)?;
        // Once for each expiration, which is never read.
        let events = EpollFlags::EPOLLIN | EpollFlags::EPOLLET;
        epoll.add(
            &timer,
            EpollEvent::new(events, EventSource::Timer.to_data()),
        )?;
        let set_for = None;
        Ok(Alarm { timer, set_for })
    }

    /// Sets the timer.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn set(&mut self, time: Nanos) -> io::Result<()> {
        if self.set_for != Some(time) {
            let absolute = TimerSetTimeFlags::TFD_TIMER_ABSTIME;
            let time_spec = TimeSpec::from(Duration::from_nanos(time));
            self.timer.set(Expiration::OneShot(time_spec), absolute)?;
            self.set_for = Some(time);
        }
        Ok(())
    }

    /// How late a wake-up was; `None` if the timer was not the reason.
    pub(super) fn lateness(&mut self, events: &[EpollEvent]) -> Option<Nanos> {
        events.iter().find(|event| event.data() == TIMER)?;
        let set_for = self.set_for.take()?;
        Some(SharedClocks::now().saturating_sub(set_for))
    }
}

impl Switch {
    /// Sets the links of a domain; `None`: those of the machine. The switch may spend so many
    /// percent of a processor on polling before frames are due.
    pub(crate) fn set_links(
        &mut self,
        partition: Partition,
        links: Option<ModeledLinks>,
        percent: u8,
    ) {
        self.links.set(partition, links);
        self.pacer.set_share(percent.into());
    }

    /// Whether frames of a domain take the links of a model.
    pub(crate) fn has_model(&self, partition: Partition) -> bool {
        self.links.has_model(partition)
    }

    /// Forgets the links of domains that are not among these.
    pub(crate) fn retain_links(&mut self, wanted: &HashSet<Partition>) {
        self.links.retain(wanted);
    }

    /// Reads paused members again whose debts are paid.
    pub(super) fn resume_due(&mut self) {
        if self.throttle.next_resume().is_none() {
            return;
        }
        let now = SharedClocks::now();
        while let Some((partition, place)) = self.throttle.resume(now) {
            self.rewatch(partition, place);
        }
    }

    /// Replaces the port of a local member by one with the same interface.
    pub(crate) fn renew(&mut self, port: Port) {
        let key = (Partition(port.domain_id), port.place);
        let was_paused = match port.rate {
            // It pauses again if it owes something at the new rate.
            Some(_) => self.throttle.unpause(key),
            None => self.throttle.forget(key),
        };
        self.bridges.renew(port);
        if was_paused {
            let (partition, place) = key;
            self.rewatch(partition, place);
        }
    }

    /// Waits for packets of a member again, if need be later.
    fn rewatch(&mut self, partition: Partition, place: Place) {
        let ingress = self.bridges.ingress(partition, place);
        let Some(port) = ingress.and_then(|ingress| ingress.egress()) else {
            return;
        };
        match self.watch(port, EventSource::Port(partition, place)) {
            // The stack of another process is waited for already.
            Err(error) if error.raw_os_error() == Some(Errno::EEXIST as i32) => {}
            Err(error) => {
                warn!(?partition, %place, %error, "frames of a member wait for another attempt");
                self.throttle
                    .postpone((partition, place), SharedClocks::now());
            }
            Ok(()) => {}
        }
    }

    /// Sets the alarm for the end of a sleep: when frames are due or come to a stage, or a paused
    /// member is read again.
    pub(super) fn set_alarm(&mut self, pace: Option<(Nanos, Pace)>) -> io::Result<()> {
        let frames = match pace {
            Some((_, Pace::Sleep(until))) => Some(until),
            _ => None,
        };
        let times = frames.into_iter().chain(self.throttle.next_resume());
        times.min().map_or(Ok(()), |until| self.alarm.set(until))
    }

    /// The time, and what to do until the next frame is due or comes to a stage; `None` if none is
    /// under way.
    pub(super) fn pace(&mut self) -> Option<(Nanos, Pace)> {
        let (due, next_move) = (self.links.line.next_due(), self.links.line.next_move());
        if due.is_none() && next_move.is_none() {
            return None;
        }
        let now = SharedClocks::now();
        let pace = due.map(|due| self.pacer.pace(now, due));
        // Frames move ahead of time, so this wake-up may be late.
        let pace = match (pace, next_move) {
            (Some(Pace::Sleep(until)), Some(next_move)) => Pace::Sleep(until.min(next_move)),
            (Some(pace), _) => pace,
            (None, next_move) => Pace::Sleep(next_move?),
        };
        Some((now, pace))
    }

    /// Delivers frames that are due, as many as a turn may have. Returns their number.
    pub(super) fn deliver_due(&mut self, scratch: &mut Scratch) -> usize {
        if self.links.is_empty() {
            return 0;
        }
        for n in 0..BATCH {
            let now = SharedClocks::now();
            self.links.advance(now);
            let Some((link, frame)) = self.links.line.pop_due(now) else {
                return n;
            };
            let polled = self.pacer.take_polled();
            self.links.record(&link, &frame, now, polled);
            let Some(ingress) = self.bridges.ingress_at(link.partition, link.from) else {
                continue;
            };
            if ingress.has_stopped() {
                ingress.count(DropReason::Fenced);
                continue;
            }
            match ingress.reach(link.to) {
                Ok(next_hop) => {
                    let segmenter = &mut scratch.segmenter;
                    deliver(&ingress, &next_hop, &frame.packet, segmenter, &self.tunnels);
                }
                Err(reason) => ingress.count(reason),
            }
        }
        BATCH
    }
}
