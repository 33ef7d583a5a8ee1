//! Throttle: members with a rate, whose frames wait in their own queues.
//!
//! A member that has sent more than its rate allows is not read until that is paid. The switch
//! stops waiting for its port meanwhile, so a full queue wakes nobody and delays no other member.
//! The queue is that of the member's interface or stack socket: its kernel drops what has no room
//! there, and a stack socket is full for its process.

use std::collections::{BTreeSet, HashMap};

use toroid_fabric::model::{Nanos, TokenBucket};
use toroid_fabric::{Partition, Place};
use toroid_model::link::Rate;

use crate::offload::Offload;

/// Least time for which a member is not read: at higher rates, packets are read several at a time.
/// Less than [`TokenBucket::BURST`], so the rate is kept.
const LEAST_PAUSE: Nanos = 200_000;

/// Time until another attempt to wait for a port.
const RETRY_PAUSE: Nanos = 100_000_000;

/// Least bytes of a frame on Ethernet, without its checksum.
const LEAST_FRAME: usize = 60;

/// Bytes charged for a packet of this length: the frame without its offloads, padded as on
/// Ethernet. A GSO packet counts as one frame.
pub(super) fn cost(packet_len: usize) -> u64 {
    packet_len.saturating_sub(Offload::LEN).max(LEAST_FRAME) as u64
}

/// A member.
type Key = (Partition, Place);

/// Members with a rate.
#[derive(Debug, Default)]
pub(super) struct Throttle {
    members: HashMap<Key, Limited>,
    /// Members that are not read, by the time when they are again.
    paused: BTreeSet<(Nanos, Key)>,
}

#[derive(Debug)]
struct Limited {
    bucket: TokenBucket,
    paused_until: Option<Nanos>,
}

impl Throttle {
    /// The bucket of a member with this rate.
    pub(super) fn bucket(&mut self, key: Key, rate: Rate, now: Nanos) -> &mut TokenBucket {
        let limited = self.members.entry(key).or_insert_with(|| Limited {
            bucket: TokenBucket::new(rate.0, now),
            paused_until: None,
        });
        limited.bucket.set_rate(rate.0, now);
        &mut limited.bucket
    }

    /// Pauses a member that owes something. Returns whether that is so: then its port must not be
    /// waited for.
    pub(super) fn pause(&mut self, key: Key, now: Nanos) -> bool {
        self.unpause(key);
        let Some(limited) = self.members.get_mut(&key) else {
            return false;
        };
        let Some(held_until) = limited.bucket.held_until(now) else {
            return false;
        };
        let until = held_until.max(now.saturating_add(LEAST_PAUSE));
        limited.paused_until = Some(until);
        self.paused.insert((until, key));
        true
    }

    /// Pauses a member whose port cannot be waited for at present, without a debt.
    pub(super) fn postpone(&mut self, key: Key, now: Nanos) {
        self.unpause(key);
        let until = now.saturating_add(RETRY_PAUSE);
        let limited = self.members.entry(key).or_insert_with(|| Limited {
            bucket: TokenBucket::new(1, now),
            paused_until: None,
        });
        limited.paused_until = Some(until);
        self.paused.insert((until, key));
    }

    /// When the next member is to be read again.
    pub(super) fn next_resume(&self) -> Option<Nanos> {
        self.paused.first().map(|(time, _)| *time)
    }

    /// A member that is to be read again.
    pub(super) fn resume(&mut self, now: Nanos) -> Option<Key> {
        let (_, key) = *self.paused.first().filter(|(time, _)| *time <= now)?;
        self.unpause(key);
        Some(key)
    }

    /// Ends the pause of a member; returns whether it was paused.
    pub(super) fn unpause(&mut self, key: Key) -> bool {
        let limited = self.members.get_mut(&key);
        let until = limited.and_then(|limited| limited.paused_until.take());
        until.is_some_and(|until| self.paused.remove(&(until, key)))
    }

    /// Forgets a member; returns whether it was paused.
    pub(super) fn forget(&mut self, key: Key) -> bool {
        let was_paused = self.unpause(key);
        self.members.remove(&key);
        was_paused
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLOW: Rate = Rate(8_000);
    const KEY: Key = (Partition(7), Place { x: 1, y: 0, z: 0 });
    const OTHER: Key = (Partition(8), Place { x: 1, y: 0, z: 0 });

    /// Messages of a stack may be empty, and were free.
    #[test]
    fn a_packet_costs_its_frame_padded_as_on_ethernet() {
        let costs = [0, 10, 11, 70, 71, 1524].map(cost);
        assert_eq!(costs, [60, 60, 60, 60, 61, 1514]);
    }

    #[test]
    fn members_are_paused_and_resumed_in_the_order_of_their_debts() {
        let mut throttle = Throttle::default();
        assert!(!throttle.pause(KEY, 0));
        throttle.bucket(KEY, SLOW, 0).charge(16_000, 0);
        throttle.bucket(OTHER, SLOW, 0).charge(8_000, 0);
        assert!(throttle.pause(KEY, 0) && throttle.pause(OTHER, 0));
        assert_eq!(throttle.next_resume(), Some(1_000_000_000));
        assert_eq!(throttle.resume(999_999_999), None);
        assert_eq!(throttle.resume(3_000_000_000), Some(OTHER));
        assert_eq!(throttle.resume(3_000_000_000), Some(KEY));
        assert_eq!(throttle.resume(3_000_000_000), None);
        assert!(!throttle.pause(KEY, 3_000_000_000));
    }

    #[test]
    fn a_pause_is_not_shorter_than_a_wake_up_is_worth() {
        let mut throttle = Throttle::default();
        throttle.bucket(KEY, Rate(1 << 40), 0).charge(1, 0);
        throttle.bucket(KEY, Rate(1 << 40), 0).charge(1 << 31, 0);
        let now = throttle
            .bucket(KEY, Rate(1 << 40), 0)
            .held_until(0)
            .unwrap()
            - 1;
        assert!(throttle.pause(KEY, now));
        assert_eq!(throttle.next_resume(), Some(now + LEAST_PAUSE));
    }

    /// A failure to wait for its port once silenced a member for good.
    #[test]
    fn a_member_whose_port_cannot_be_waited_for_is_tried_again() {
        let mut throttle = Throttle::default();
        throttle.bucket(KEY, SLOW, 0).charge(8_000, 0);
        assert!(throttle.pause(KEY, 0));
        assert_eq!(throttle.resume(1_000_000_000), Some(KEY));
        for (key, now) in [(KEY, 1_000_000_000), (OTHER, 2_000_000_000)] {
            throttle.postpone(key, now);
            assert_eq!(throttle.resume(now), None);
            assert_eq!(throttle.next_resume(), Some(now + RETRY_PAUSE));
            assert_eq!(throttle.resume(now + RETRY_PAUSE), Some(key));
            assert_eq!(throttle.next_resume(), None);
        }
    }

    #[test]
    fn a_changed_or_forgotten_member_is_read_at_once() {
        let mut throttle = Throttle::default();
        throttle.bucket(KEY, SLOW, 0).charge(16_000, 0);
        assert!(throttle.pause(KEY, 0));
        // Again, because of another event of its port.
        assert!(throttle.pause(KEY, 0));
        assert!(throttle.unpause(KEY) && !throttle.unpause(KEY));
        assert_eq!(throttle.next_resume(), None);
        // Still in debt.
        assert!(throttle.pause(KEY, 0));
        assert!(throttle.forget(KEY) && !throttle.forget(KEY));
        assert!(throttle.next_resume().is_none() && throttle.members.is_empty());
    }
}
