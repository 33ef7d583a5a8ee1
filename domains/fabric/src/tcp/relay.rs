//! Packets between a process of this host and one of another, carried from a connection to a channel
//! of this host and back.

use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::channel::{Channel, HEAD};
use super::wire::End;
use crate::core::busy_poll::BusyPoll;
use crate::core::channel::{ChannelError, PacketChannel};
use crate::core::hold::Hold;
use crate::shm;

/// Time that a process may take for the last packets of a peer that has gone.
const LINGER: Timespec = Timespec {
    tv_sec: 60,
    tv_nsec: 0,
};

/// Packets that are carried in one direction before the other has its turn.
const TURN: usize = 64;

/// The end of a channel to a process of another host.
pub trait RemoteEnd: PacketChannel {
    /// As [`PacketChannel::arm_for`], for callers that neither receive nor send: only for events of
    /// the channel itself, until it has ended. By default there are none.
    fn arm_for_itself(&mut self) -> bool {
        true
    }

    /// Whether the other side sends nothing more than the bytes received so far.
    fn has_hung_up(&self) -> bool;

    /// Announces the end of the channel to the other side, behind all packets. Waits up to a few
    /// seconds for a side that does not read.
    fn finish(&mut self, end: End);
}

impl RemoteEnd for Channel {
    fn has_hung_up(&self) -> bool {
        Channel::has_hung_up(self)
    }

    fn finish(&mut self, end: End) {
        Channel::finish(self, end);
    }
}

/// Direction of packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// From the other host.
    Inward,
    /// To the other host.
    Outward,
}

/// Decides when packets may be carried.
pub trait Turns {
    /// Returns when some packets may be carried.
    fn await_turn(&self);

    /// Charges a packet of so many bytes with its headers. `None` if it may be carried; otherwise
    /// nothing was charged, and the packet is tried again after this time. By default no packet waits.
    fn take(&self, way: Way, bytes: usize) -> Option<Duration> {
        let _ = (way, bytes);
        None
    }

    /// Ends the wait of all packets: the channel has ended.
    fn leave(&self) {}
}

/// Turns that only wait.
impl<F: Fn()> Turns for F {
    fn await_turn(&self) {
        self();
    }
}

/// Carries packets until one side has ended, and announces that to the other.
///
/// Packets sent before the end still arrive, unless the node has left the domain. While one side has
/// no room, the other is not read, so each side sees the pace of the other. So it is while a packet
/// awaits its turn, which delays only later packets in this direction.
pub fn relay(mut near: shm::Channel, mut remote: impl RemoteEnd, turns: &impl Turns) {
    let (mut inward, mut outward) = (Direction::default(), Direction::default());
    let (mut busy_poll, mut since) = (BusyPoll::default(), Instant::now());
    loop {
        turns.await_turn();
        let (came, went) = (
            inward.carry(&mut remote, &mut near, |len| turns.take(Way::Inward, len)),
            outward.carry(&mut near, &mut remote, |len| turns.take(Way::Outward, len)),
        );
        match (came, went) {
            (_, Carried::SourceEnded(error)) => {
                turns.leave();
                return remote.finish(end_of(error));
            }
            // The drop tells the process of this host.
            (Carried::SourceEnded(_), _) => return drop(near),
            _ if inward.is_closed && outward.is_closed => return,
            (Carried::Packets, _) | (_, Carried::Packets) => {
                busy_poll.count_news();
                since = Instant::now();
            }
            _ if inward.is_hungry() && outward.is_hungry() && busy_poll.keeps_polling(since) => {}
            _ => {
                let has_moved = sleep(&mut near, &mut remote, &inward, &outward);
                if !has_moved && inward.is_held && remote.has_hung_up() {
                    return;
                }
                busy_poll.record_wait(since);
                since = Instant::now();
            }
        }
    }
}

/// The end as the other side gets it. A failure here is not the fault of that process.
fn end_of(error: ChannelError) -> End {
    match error {
        ChannelError::Revoked => End::Revoked,
        _ => End::PeerDead,
    }
}

/// One direction of a relay.
#[derive(Default)]
struct Direction {
    packet: Vec<u8>,
    /// The time before which the receiver does not see the packet.
    hold: Hold,
    /// Whether the packet waits for its turn or for room.
    is_held: bool,
    /// Time until the packet may have its turn; `None` if it has had it.
    awaits_turn: Option<Duration>,
    /// Whether the target has ended.
    is_closed: bool,
}

/// The result of a turn.
enum Carried {
    /// There may be more.
    Packets,
    /// There is nothing at present, or no room for it.
    Nothing,
    /// There will be nothing more.
    SourceEnded(ChannelError),
}

impl Direction {
    fn carry(
        &mut self,
        from: &mut impl PacketChannel,
        to: &mut impl PacketChannel,
        take: impl Fn(usize) -> Option<Duration>,
    ) -> Carried {
        for count in 0..TURN {
            if self.is_closed {
                return Carried::Nothing;
            }
            if !self.is_held {
                match from.receive_held(&mut self.packet) {
                    Ok(Some(hold)) => self.hold = hold,
                    Ok(None) if count > 0 => return Carried::Packets,
                    Ok(None) => return Carried::Nothing,
                    Err(error) => return Carried::SourceEnded(error),
                }
            }
            if !self.is_held || self.awaits_turn.is_some() {
                self.awaits_turn = take(HEAD + self.packet.len());
            }
            if self.awaits_turn.is_some() {
                self.is_held = true;
                return Carried::Nothing;
            }
            self.is_held = match to.send_held(&[&self.packet], self.hold) {
                Ok(()) => false,
                Err(ChannelError::Full) => {
                    self.is_held = true;
                    return Carried::Nothing;
                }
                // The other direction reports how it ended, after its last packets.
                Err(_) => {
                    self.is_closed = true;
                    false
                }
            };
        }
        Carried::Packets
    }

    /// Whether this direction waits for its source.
    fn is_hungry(&self) -> bool {
        !self.is_held && !self.is_closed
    }

    /// Whether this direction waits for room at its target.
    fn needs_room(&self) -> bool {
        self.is_held && self.awaits_turn.is_none()
    }
}

/// Sleeps until there is a packet to carry, room for one or the turn of one. Returns false if none
/// came within [`LINGER`].
fn sleep(
    near: &mut shm::Channel,
    remote: &mut impl RemoteEnd,
    inward: &Direction,
    outward: &Direction,
) -> bool {
    let mut has_moved = true;
    // A side that has neither to give nor to take is not armed: the same news would wake it again.
    let near_sleeps = match (outward.is_hungry(), inward.needs_room()) {
        (true, _) => near.arm(),
        (false, true) => near.arm_for(false),
        (false, false) => true,
    };
    let remote_sleeps = match (inward.is_hungry(), outward.needs_room()) {
        (true, _) => remote.arm_for(true),
        (false, true) => remote.arm_for(false),
        (false, false) => remote.arm_for_itself(),
    };
    if near_sleeps && remote_sleeps {
        let fds = [near.wake_fd(), remote.wake_fd()];
        let [near, remote] = &fds;
        let turn = [inward.awaits_turn, outward.awaits_turn];
        let turn = turn.into_iter().flatten().min();
        let turn = turn.map(|time| Timespec {
            tv_sec: time.as_secs().cast_signed(),
            tv_nsec: time.subsec_nanos().into(),
        });
        let timeout = turn.as_ref().or(inward.is_held.then_some(&LINGER));
        // An interrupted sleep is one that ends early.
        let woken = poll(
            &mut [
                PollFd::new(near, PollFlags::IN),
                PollFd::new(remote, PollFlags::IN),
            ],
            timeout,
        );
        has_moved = turn.is_some() || woken != Ok(0);
    }
    near.disarm();
    remote.disarm();
    has_moved
}
