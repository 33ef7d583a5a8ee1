//! Packet channels on `shm`: a ring and a wake-up pipe in each direction.

use std::fs::File;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::control::ChannelEnds;
use super::ring::{Consumer, Control, DATA_OFFSET, Producer, RingError, Storage};
use crate::core::busy_poll::BusyPoll;
use crate::core::channel::{ChannelError, MAX_PAYLOAD, PacketChannel, total_len};
use crate::core::hold::Hold;
use crate::core::link::{LinkCheck, LinkHeader};
use crate::core::membership::Membership;
use crate::error::OpError;
use crate::key::{Epoch, Partition};
use crate::mem::DropGuard;
use crate::mem::copy::copy;
use crate::mem::mapping::Mapping;
use crate::mem::nontemporal::copy_to_peer;
use crate::mem::status::Status;
use crate::mem::waker::{Sleeper, Waker};
use crate::topology::NodeId;

/// Packets that one call of `receive` drops before it returns: a peer can forge packets faster than
/// they are dropped.
const FORGERIES: usize = 64;

/// A ring in memory shared with a peer.
#[derive(Debug)]
struct SharedRing(Mapping);

impl SharedRing {
    fn map(memory: OwnedFd) -> io::Result<Self> {
        let memory = File::from(memory);
        let len = usize::try_from(memory.metadata()?.len()).unwrap_or(usize::MAX);
        let data = len.saturating_sub(DATA_OFFSET);
        if !data.is_power_of_two() || data < 2 * MAX_PAYLOAD {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "not the memory of a ring",
            ));
        }
        Ok(SharedRing(Mapping::of_file(&memory, len, true)?))
    }
}

impl Storage for SharedRing {
    /// Longer pieces would delay the consumer. Shorter pieces cost more transfers of the cache line
    /// with the position.
    const PIECE: usize = 8192;

    fn control(&self) -> &Control {
        const { assert!(size_of::<Control>() <= DATA_OFFSET) };
        self.0.atomics()
    }

    fn capacity(&self) -> usize {
        self.0.len() - DATA_OFFSET
    }

    fn copy_in(&self, at: usize, bytes: &[u8]) {
        if let Some(to) = self.0.range((DATA_OFFSET + at) as u64, bytes.len()) {
            // SAFETY: `range` checked the mapped side; no mapping overlaps the slice `bytes`.
            unsafe { copy_to_peer(bytes.as_ptr(), to.as_ptr(), bytes.len()) };
        }
    }

    fn copy_out(&self, at: usize, into: &mut [u8]) {
        if let Some(from) = self.0.range((DATA_OFFSET + at) as u64, into.len()) {
            // SAFETY: as in `copy_in`.
            unsafe { copy(from.as_ptr(), into.as_mut_ptr(), into.len()) };
        }
    }
}

/// A packet channel on `shm`.
#[derive(Debug)]
pub struct Channel {
    check: LinkCheck,
    local: NodeId,
    outgoing: Producer<SharedRing>,
    incoming: Consumer<SharedRing>,
    wake_peer: Waker,
    wake_self: Waker,
    sleeper: Sleeper,
    busy_poll: BusyPoll,
    /// Whether the last `send` found no room, so that `wait` also waits for room.
    wants_room: bool,
    corrupt: bool,
    status: Arc<Status>,
    membership: Membership,
    /// Dropped with the channel.
    _guard: Option<DropGuard>,
}

impl Channel {
    /// Opens the end of node `local` of a channel to `check.peer`; `guard` is dropped with it.
    ///
    /// # Errors
    /// The system's, or `InvalidData` when the descriptors are not those of a channel.
    pub fn open(
        ends: ChannelEnds,
        local: NodeId,
        check: LinkCheck,
        membership: Membership,
        status: Arc<Status>,
        guard: Option<DropGuard>,
    ) -> io::Result<Self> {
        Ok(Channel {
            check,
            local,
            outgoing: Producer::new(SharedRing::map(ends.outgoing)?),
            incoming: Consumer::new(SharedRing::map(ends.incoming)?),
            wake_peer: Waker::new(ends.wake_peer),
            wake_self: Waker::new(ends.wake_self),
            sleeper: Sleeper::new(ends.woken),
            busy_poll: BusyPoll::default(),
            wants_room: false,
            corrupt: false,
            status,
            membership,
            _guard: guard,
        })
    }

    /// A waker with which the control thread wakes this end after a change of its status.
    pub fn waker(&self) -> Waker {
        self.wake_self.clone()
    }

    fn alive(&self) -> Result<(), ChannelError> {
        if self.corrupt {
            return Err(ChannelError::Corrupt);
        }
        self.status.check().map_err(|error| match error {
            OpError::Revoked => ChannelError::Revoked,
            _ => ChannelError::PeerDead,
        })
    }

    fn ring_error(&mut self, error: RingError) -> ChannelError {
        match error {
            RingError::Full => {
                self.wants_room = true;
                ChannelError::Full
            }
            RingError::Corrupt => {
                self.corrupt = true;
                ChannelError::Corrupt
            }
        }
    }

    fn has_news(&mut self) -> bool {
        self.alive().is_err()
            || self.incoming.has_news()
            || (self.wants_room && self.outgoing.has_news())
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
        let header = LinkHeader {
            partition: self.check.partition,
            // Acquire: pairs with the Release of the control thread that announces an epoch.
            epoch: Epoch(self.membership.epoch.load(Ordering::Acquire)),
            source: self.local,
            protocol: self.check.protocol,
            len: len as u32,
            hold,
        };
        let wake = self
            .outgoing
            .push(&header, parts)
            .map_err(|error| self.ring_error(error))?;
        self.wants_room = false;
        if wake {
            self.wake_peer.wake();
        }
        Ok(())
    }

    fn receive_held(&mut self, into: &mut Vec<u8>) -> Result<Option<Hold>, ChannelError> {
        // Checked before the ring, so that the last packets of a peer that dies meanwhile are
        // received.
        let state = self.alive();
        match state {
            Err(ChannelError::Revoked) => return state.map(|()| None),
            // Another holder of the ring's memory could send for ever.
            Err(_) => self.incoming.close(),
            Ok(()) => {}
        }
        for _ in 0..FORGERIES {
            let popped = self
                .incoming
                .pop(into)
                .map_err(|error| self.ring_error(error))?;
            let Some((header, wake)) = popped else {
                into.clear();
                return state.map(|()| None);
            };
            if wake {
                self.wake_peer.wake();
            }
            match self.check.admit(&header) {
                // Checked again: this thread may have been preempted, while the peer left the
                // domain and went on writing.
                Ok(()) if self.alive() == Err(ChannelError::Revoked) => {
                    into.clear();
                    return Err(ChannelError::Revoked);
                }
                Ok(()) => return Ok(Some(header.hold)),
                Err(reason) => self.membership.drops.count(reason),
            }
        }
        into.clear();
        Ok(None)
    }

    fn observe(&mut self) -> Result<(), ChannelError> {
        self.alive()
    }

    fn wait(&mut self, timeout: Duration) {
        let (busy_poll, since) = (self.busy_poll, Instant::now());
        if let Some(left) = busy_poll.poll_until(since, timeout, || self.has_news()) {
            if self.arm() {
                self.sleeper.sleep(left);
                self.disarm();
            }
            self.busy_poll.record_wait(since);
        }
    }

    fn wake_fd(&self) -> BorrowedFd<'_> {
        self.sleeper.fd()
    }

    fn arm_for(&mut self, packets: bool) -> bool {
        (!packets || self.incoming.arm())
            && (!self.wants_room || self.outgoing.arm())
            && self.alive().is_ok()
    }

    fn disarm(&mut self) {
        self.incoming.disarm();
        self.outgoing.disarm();
        self.sleeper.drain();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;

    use super::*;
    use crate::core::link::{DropReason, Protocol};
    use crate::mem::memfd::create_memory;
    use crate::shm::control::RING_BYTES;

    const HERE: NodeId = NodeId(0);
    const THERE: NodeId = NodeId(1);

    fn end(ends: ChannelEnds, local: NodeId, peer: NodeId) -> Channel {
        let check = LinkCheck {
            partition: Partition(7),
            peer,
            protocol: Protocol(1),
            since: Epoch(5),
        };
        let membership = Membership::at(Epoch(5));
        Channel::open(ends, local, check, membership, Arc::default(), None).unwrap()
    }

    /// The header of a packet from `HERE` that the other end admits.
    fn honest(len: u32) -> LinkHeader {
        LinkHeader {
            partition: Partition(7),
            epoch: Epoch(5),
            source: HERE,
            protocol: Protocol(1),
            len,
            hold: Hold::NONE,
        }
    }

    fn pair() -> (Channel, Channel) {
        let (ours, theirs) = ChannelEnds::create(RING_BYTES).unwrap();
        (end(ours, HERE, THERE), end(theirs, THERE, HERE))
    }

    #[test]
    fn forged_packets_are_dropped_and_counted_and_honest_ones_go_on() {
        let (mut forger, mut receiver) = pair();
        type Change = fn(&mut LinkHeader);
        let forgeries: [(DropReason, Change); 4] = [
            (DropReason::UnknownPartition, |h| h.partition = Partition(8)),
            (DropReason::OldEpoch, |h| h.epoch = Epoch(4)),
            (DropReason::WrongSource, |h| h.source = NodeId(2)),
            (DropReason::UnknownProtocol, |h| h.protocol = Protocol(2)),
        ];
        for (_, forge) in forgeries {
            let mut forged = honest(4);
            forge(&mut forged);
            forger.outgoing.push(&forged, &[b"evil"]).unwrap();
        }
        forger.send(&[b"good"]).unwrap();
        let mut packet = Vec::new();
        assert_eq!(receiver.receive(&mut packet), Ok(true));
        assert_eq!(packet, b"good");
        for (reason, _) in forgeries {
            assert_eq!(receiver.membership.drops.dropped(reason), 1, "{reason:?}");
        }
    }

    #[test]
    fn one_receive_drops_a_bounded_number_of_forgeries() {
        let (mut forger, mut receiver) = pair();
        let mut forged = honest(0);
        forged.source = NodeId(2);
        for _ in 0..=FORGERIES {
            forger.outgoing.push(&forged, &[]).unwrap();
        }
        let mut packet = Vec::new();
        assert_eq!(receiver.receive(&mut packet), Ok(false));
        assert!(!receiver.arm(), "another packet waits");
        assert_eq!(receiver.receive(&mut packet), Ok(false));
        assert!(receiver.arm());
    }

    /// Regression: polling did not look for room, so every wait for room took the whole polling
    /// time.
    #[test]
    fn polling_for_room_sees_it_before_the_sleep() {
        let (mut sender, mut receiver) = pair();
        while sender.send(&[&[0; 60_000]]).is_ok() {}
        assert!(!sender.has_news(), "there is no room yet");
        assert_eq!(receiver.receive(&mut Vec::new()), Ok(true));
        assert!(sender.has_news());
        assert_eq!(sender.send(&[&[0; 60_000]]), Ok(()));
        assert_eq!(receiver.receive(&mut Vec::new()), Ok(true));
        assert!(!sender.has_news(), "the sender no longer waits for room");
    }

    /// Regressions: packets sent after a revocation were delivered, because the status was checked
    /// only before the ring. And a peer that had died could not be revoked, so other processes of
    /// its node went on in its name.
    #[test]
    fn nothing_that_is_sent_after_a_revocation_is_received() {
        for round in 0..300 {
            let (mut sender, mut receiver) = pair();
            let (status, is_revoked) = (Arc::clone(&receiver.status), AtomicU32::new(0));
            if round % 2 == 1 {
                status.peer_died();
            }
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    // Long packets that are dropped: most of the time the receiver examines one.
                    sender.check.protocol = Protocol(2);
                    let long = [0; 60_000];
                    while is_revoked.load(Ordering::Acquire) == 0 {
                        let _ = sender.send(&[&long]);
                    }
                    sender.check.protocol = Protocol(1);
                    while sender.send(&[b"late"]) == Err(ChannelError::Full) {
                        if is_revoked.load(Ordering::Acquire) == 2 {
                            break;
                        }
                    }
                });
                scope.spawn(|| {
                    std::thread::sleep(Duration::from_micros(50 * (round % 5)));
                    status.revoke();
                    is_revoked.store(1, Ordering::Release);
                });
                let mut packet = Vec::new();
                let received = loop {
                    match receiver.receive(&mut packet) {
                        Ok(false) | Err(ChannelError::PeerDead) => {}
                        received => break received,
                    }
                };
                is_revoked.store(2, Ordering::Release);
                assert_eq!(received, Err(ChannelError::Revoked), "round {round}");
                assert!(packet.is_empty());
            });
        }
    }

    #[test]
    fn packets_sent_before_the_death_of_the_peer_are_received() {
        let (mut sender, mut receiver) = pair();
        sender.send(&[b"last"]).unwrap();
        receiver.status.peer_died();
        let mut packet = Vec::new();
        assert_eq!(receiver.receive(&mut packet), Ok(true));
        assert_eq!(packet, b"last");
        // Another process holds the memory of the ring.
        sender.send(&[b"more"]).unwrap();
        assert_eq!(receiver.receive(&mut packet), Err(ChannelError::PeerDead));
        receiver.status.revoke();
        assert_eq!(receiver.receive(&mut packet), Err(ChannelError::Revoked));
    }

    #[test]
    fn a_broken_ring_ends_the_channel_and_prevents_sleep() {
        let (mut breaker, mut receiver) = pair();
        breaker.outgoing.push(&honest(16), &[&[0; 16]]).unwrap();
        // The record's length now exceeds the published bytes.
        breaker.outgoing.overwrite(0, &honest(17).to_bytes());
        let mut packet = Vec::new();
        assert_eq!(receiver.receive(&mut packet), Err(ChannelError::Corrupt));
        assert_eq!(receiver.receive(&mut packet), Err(ChannelError::Corrupt));
        assert_eq!(receiver.send(&[b"x"]), Err(ChannelError::Corrupt));
        assert!(!receiver.arm());
    }

    #[test]
    fn a_peer_cannot_make_a_wake_up_block() {
        let (mut ours, theirs) = pair();
        for _ in 0..200_000 {
            theirs.wake_peer.wake();
        }
        ours.disarm();
        ours.waker().wake();
    }

    #[test]
    fn memory_of_another_size_is_refused() {
        let (ends, _) = ChannelEnds::create(RING_BYTES).unwrap();
        let mut fds = ends.into_fds();
        fds[0] = create_memory(8192).unwrap().into();
        assert!(SharedRing::map(fds[0].try_clone().unwrap()).is_err());
        assert!(ChannelEnds::create(1000).is_err());
        assert!(ChannelEnds::create(64 * 1024).is_err());
    }
}
