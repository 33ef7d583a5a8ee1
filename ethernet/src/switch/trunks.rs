//! What the switch does with connections to the drivers of other hosts.

use std::collections::HashMap;
use std::io;

use nix::sys::epoll::{EpollEvent, EpollFlags};

use super::{BATCH, Desk, Switch, carry, event_of_trunk};
use crate::forward::NotHere;
use crate::trunk::{HostId, Trunk};

pub(super) type Trunks = HashMap<HostId, Connected>;

/// Tells a trunk from those to the same host before and after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrunkId {
    /// Where it leads.
    pub host: HostId,
    /// Any number.
    pub number: u64,
}

/// A trunk in use.
pub(super) struct Connected {
    pub(super) trunk: Trunk,
    number: u64,
    /// Whether its room is waited for.
    awaits_room: bool,
}

impl Switch {
    /// Connects to the driver of another host, in place of the connection before.
    ///
    /// # Errors
    /// The system's: it cannot be waited for.
    pub fn connect_trunk(&mut self, id: TrunkId, trunk: Trunk) -> io::Result<()> {
        let event = EpollEvent::new(EpollFlags::EPOLLIN, event_of_trunk(id.host));
        self.epoll.add(&trunk, event)?;
        let connected = Connected {
            trunk,
            number: id.number,
            awaits_room: false,
        };
        // The one before is closed, and so not waited for any longer.
        self.trunks.insert(id.host, connected);
        Ok(())
    }

    /// Cuts the connection to another host.
    pub fn cut_trunk(&mut self, host: HostId) {
        self.trunks.remove(&host);
    }

    /// Looks after a trunk that has brought something, or has room.
    pub(super) fn attend(&mut self, host: HostId, events: EpollFlags, desk: &mut Desk) {
        // It may have been cut after it was found ready.
        let Some(Connected { trunk, .. }) = self.trunks.get_mut(&host) else {
            return;
        };
        if events.contains(EpollFlags::EPOLLOUT) {
            trunk.has_room();
        }
        // What came before has to be taken in first.
        if events == EpollFlags::EPOLLOUT || trunk.inbox.has_packet() {
            return;
        }
        match trunk.receive() {
            Ok(_) => self.take_in(host, desk),
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => {}
                _ => self.end_trunk(host, &error),
            },
        }
    }

    /// Takes in packets that have come from another host, until there are no more or its turn ends.
    pub(super) fn take_in(&mut self, host: HostId, desk: &mut Desk) {
        let Some(Connected { trunk, .. }) = self.trunks.get_mut(&host) else {
            return;
        };
        // Looked at while others are written to, which it itself never is.
        let mut inbox = std::mem::take(&mut trunk.inbox);
        let (mut taken, mut strays) = (0, 0);
        let end = loop {
            if taken >= BATCH {
                self.unread.insert(host);
                break Ok(());
            }
            let (tag, packet) = match inbox.next_packet() {
                Ok(Some(next)) => next,
                Ok(None) => break Ok(()),
                Err(nonsense) => break Err(io::Error::other(nonsense)),
            };
            let frames = match self.segments.far(host, &tag) {
                Ok(Some(ingress)) => carry(&ingress, packet, &mut desk.segmenter, &self.trunks),
                Ok(None) => 0,
                Err(NotHere) => {
                    strays += 1;
                    0
                }
            };
            taken += frames.max(1);
        };
        if let Some(Connected { trunk, .. }) = self.trunks.get_mut(&host) {
            trunk.strays += strays;
            trunk.inbox = inbox;
        }
        if let Err(error) = end {
            self.end_trunk(host, &error);
        }
    }

    /// Sends what waits at trunks, and lets those that take no more tell when they do.
    pub(super) fn flush(&mut self) {
        let mut ended = Vec::new();
        for (host, connected) in &mut self.trunks {
            let Connected { trunk, .. } = connected;
            trunk.flush();
            if trunk.has_ended() {
                ended.push(*host);
            } else if trunk.is_stuck() != connected.awaits_room {
                connected.awaits_room = trunk.is_stuck();
                let mut awaited = EpollFlags::EPOLLIN;
                awaited.set(EpollFlags::EPOLLOUT, connected.awaits_room);
                let mut event = EpollEvent::new(awaited, event_of_trunk(*host));
                if self.epoll.modify(&*trunk, &mut event).is_err() {
                    ended.push(*host);
                }
            }
        }
        for host in ended {
            self.end_trunk(host, &io::ErrorKind::BrokenPipe.into());
        }
    }

    /// It has broken, or is of no use any more.
    fn end_trunk(&mut self, host: HostId, why: &io::Error) {
        if let Some(Connected { trunk, number, .. }) = self.trunks.remove(&host) {
            let why = match trunk.strays {
                0 => why.to_string(),
                strays => format!("{why}; {strays} packets were of domains without members here"),
            };
            // Nobody wants to know only when the driver ends.
            let _ = self.ended.send((TrunkId { host, number }, why));
        }
    }
}
