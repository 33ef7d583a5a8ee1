//! Packets between a process of this host and one of another: the target's network card carries
//! them from a connection to a channel of the host, and back.

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::channel::Channel;
use super::wire::End;
use crate::core::channel::{ChannelError, PacketChannel};
use crate::shm;

/// See [`sleep`].
const LINGER: Timespec = Timespec {
    tv_sec: 60,
    tv_nsec: 0,
};

/// Packets that are carried in one direction before it is the other's turn.
const TURN: usize = 64;

/// An end of a channel that leads to another host.
pub trait Far: PacketChannel {
    /// As [`PacketChannel::arm`]; without `packets` for who has no place for one: only for room
    /// after [`ChannelError::Full`], and the end of the channel.
    fn arm_for(&mut self, packets: bool) -> bool;

    /// The same for who has nothing to send either: only for what is its own business, and as long as
    /// it has not ended.
    fn arm_for_itself(&mut self) -> bool;

    /// Whether the other side will send no more than what is there.
    fn has_hung_up(&self) -> bool;

    /// Tells the other side how the channel ended, behind what was sent before. It takes up to a
    /// few seconds if the other side does not listen.
    fn finish(&mut self, end: End);
}

impl Far for Channel {
    fn arm_for(&mut self, packets: bool) -> bool {
        Channel::arm_for(self, packets)
    }

    fn arm_for_itself(&mut self) -> bool {
        true
    }

    fn has_hung_up(&self) -> bool {
        Channel::has_hung_up(self)
    }

    fn finish(&mut self, end: End) {
        Channel::finish(self, end);
    }
}

/// Carries packets until one side has ended; then tells the other how.
///
/// What a side sent before it ended still arrives, unless its node left the domain. While one side
/// has no room, the other is not read, so both see the other's pace.
pub fn relay(mut near: shm::Channel, mut far: impl Far) {
    let (mut inward, mut outward) = (Passage::default(), Passage::default());
    loop {
        let (came, went) = (
            inward.carry(&mut far, &mut near),
            outward.carry(&mut near, &mut far),
        );
        match (came, went) {
            (_, Carried::SourceEnded(error)) => return far.finish(end_of(error)),
            // Its process learns by it that this end has gone.
            (Carried::SourceEnded(_), _) => return drop(near),
            _ if inward.is_closed && outward.is_closed => return,
            (Carried::More, _) | (_, Carried::More) => {}
            _ => {
                let has_moved = sleep(&mut near, &mut far, &inward, &outward);
                if !has_moved && inward.is_held && far.has_hung_up() {
                    return;
                }
            }
        }
    }
}

/// What the process at the other side is told. What broke here is not its fault.
fn end_of(error: ChannelError) -> End {
    match error {
        ChannelError::Revoked => End::Revoked,
        _ => End::PeerDead,
    }
}

/// One direction.
#[derive(Default)]
struct Passage {
    packet: Vec<u8>,
    /// Whether the packet waits for room.
    is_held: bool,
    /// Whether the target has ended.
    is_closed: bool,
}

/// How far it came.
enum Carried {
    /// There may be more.
    More,
    /// There is nothing more at present, or no room for it.
    All,
    /// There will be nothing more.
    SourceEnded(ChannelError),
}

impl Passage {
    fn carry(&mut self, from: &mut impl PacketChannel, to: &mut impl PacketChannel) -> Carried {
        for _ in 0..TURN {
            if self.is_closed {
                return Carried::All;
            }
            if !self.is_held {
                match from.receive(&mut self.packet) {
                    Ok(true) => {}
                    Ok(false) => return Carried::All,
                    Err(error) => return Carried::SourceEnded(error),
                }
            }
            self.is_held = match to.send(&[&self.packet]) {
                Ok(()) => false,
                Err(ChannelError::Full) => return self.hold(),
                // Its own passage tells how it ended, once what it sent before has been carried.
                Err(_) => {
                    self.is_closed = true;
                    false
                }
            };
        }
        Carried::More
    }

    fn hold(&mut self) -> Carried {
        self.is_held = true;
        Carried::All
    }

    /// Whether it waits for its source.
    fn is_hungry(&self) -> bool {
        !self.is_held && !self.is_closed
    }
}

/// Sleeps until there is something to carry or room for it; returns whether that is so before the
/// time is over that a process may take for the last packets of one that has gone.
fn sleep(near: &mut shm::Channel, far: &mut impl Far, inward: &Passage, outward: &Passage) -> bool {
    let mut has_moved = true;
    // Who neither is to give nor to take anything is not asked: the same news would come again.
    let near_sleeps = match (outward.is_hungry(), inward.is_held) {
        (true, _) => near.arm(),
        (false, true) => near.arm_for_room(),
        (false, false) => true,
    };
    let far_sleeps = match (inward.is_hungry(), outward.is_held) {
        (true, _) => far.arm_for(true),
        (false, true) => far.arm_for(false),
        (false, false) => far.arm_for_itself(),
    };
    if near_sleeps && far_sleeps {
        let fds = [near.wake_fd(), far.wake_fd()];
        let [near, far] = &fds;
        let timeout = inward.is_held.then_some(&LINGER);
        // An interrupted sleep is one that ends early.
        let woken = poll(
            &mut [
                PollFd::new(near, PollFlags::IN),
                PollFd::new(far, PollFlags::IN),
            ],
            timeout,
        );
        has_moved = woken != Ok(0);
    }
    near.disarm();
    far.disarm();
    has_moved
}
