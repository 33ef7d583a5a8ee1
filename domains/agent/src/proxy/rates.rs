//! Rates of members at the target proxy: what their operations and packets may take here.
//!
//! All connections of a node in a domain share one bucket. A connection waits on its own thread, so
//! it delays no other member's.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use parking_lot::{FairMutex, Mutex};
use toroid_fabric::model::{SharedClocks, TokenBucket};
use toroid_fabric::{NodeId, Partition};
use toroid_protocol::proxy::MemberRates;

/// Longest sleep before the rate is looked at again, which may have changed meanwhile.
const LONGEST_SLEEP: Duration = Duration::from_millis(20);

/// Limits of members with a rate or a connection.
#[derive(Debug, Default)]
pub(super) struct Rates(Mutex<HashMap<(Partition, NodeId), Arc<Limit>>>);

/// The limit of one member.
#[derive(Debug)]
pub(super) struct Limit {
    /// Bytes per second; 0: not limited. The rest is only used with a rate.
    rate: AtomicU64,
    bucket: Mutex<TokenBucket>,
    /// Held by the connection that is the next: the others wait in the order in which they came.
    queue: FairMutex<()>,
}

impl Rates {
    /// The limit of a member, which follows changes of its rate.
    pub(super) fn of(&self, partition: Partition, node: NodeId) -> Arc<Limit> {
        let mut limits = self.0.lock();
        if limits.len() == limits.capacity() {
            limits.retain(|_, limit| limit.is_used());
        }
        let limit = limits.entry((partition, node)).or_default();
        Arc::clone(limit)
    }

    /// Sets the rates of all members of a domain.
    pub(super) fn set(&self, partition: Partition, rates: &MemberRates) {
        let mut limits = self.0.lock();
        let mut rest: HashSet<NodeId> = limits
            .keys()
            .filter(|(of, _)| *of == partition)
            .map(|(_, node)| *node)
            .collect();
        for (rate, nodes) in rates {
            for node in nodes.iter().copied().map(NodeId) {
                rest.remove(&node);
                let limit = limits.entry((partition, node)).or_default();
                limit.rate.store(rate.0, Ordering::Relaxed);
            }
        }
        for node in rest {
            if let Some(limit) = limits.get(&(partition, node)) {
                limit.rate.store(0, Ordering::Relaxed);
            }
        }
        limits.retain(|_, limit| limit.is_used());
    }

    /// Lifts the rates of the members of all domains but these.
    pub(super) fn retain(&self, partitions: &HashSet<Partition>) {
        let limits = self.0.lock();
        for ((partition, _), limit) in limits.iter() {
            if !partitions.contains(partition) {
                limit.rate.store(0, Ordering::Relaxed);
            }
        }
    }
}

impl Limit {
    /// Charges bytes. `None` if that was possible; otherwise nothing was charged, and it may be
    /// after this time.
    pub(super) fn take(&self, bytes: usize) -> Option<Duration> {
        let rate = self.rate.load(Ordering::Relaxed);
        if rate == 0 {
            return None;
        }
        let now = SharedClocks::now();
        let mut bucket = self.bucket.lock();
        bucket.set_rate(rate, now);
        let Some(until) = bucket.held_until(now) else {
            bucket.charge(bytes as u64, now);
            return None;
        };
        Some(Duration::from_nanos(until - now).min(LONGEST_SLEEP))
    }

    /// Charges bytes, if that is possible at once and no connection waits. Returns whether it was.
    pub(super) fn try_charge(&self, bytes: usize) -> bool {
        if self.rate.load(Ordering::Relaxed) == 0 {
            return true;
        }
        let queue = self.queue.try_lock();
        queue.is_some() && self.take(bytes).is_none()
    }

    /// Charges bytes as soon as that is possible.
    pub(super) fn charge(&self, bytes: usize) {
        let _queue = self.queue.lock();
        while let Some(time) = self.take(bytes) {
            thread::sleep(time);
        }
    }

    /// Whether there is a rate, or a connection besides the table.
    fn is_used(self: &Arc<Self>) -> bool {
        self.rate.load(Ordering::Relaxed) > 0 || Arc::strong_count(self) > 1
    }
}

impl Default for Limit {
    fn default() -> Self {
        Limit {
            rate: AtomicU64::new(0),
            bucket: Mutex::new(TokenBucket::new(1, SharedClocks::now())),
            queue: FairMutex::new(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use toroid_model::link::Rate;

    use super::*;

    const BLUE: Partition = Partition(1);
    const RED: Partition = Partition(2);

    fn rates(rate: u64, nodes: &[u32]) -> MemberRates {
        [(Rate(rate), nodes.to_vec())].into()
    }

    /// As many bytes as a connection may take at once.
    fn takes(limit: &Limit) -> usize {
        (0..100).take_while(|_| limit.take(8_000).is_none()).count()
    }

    #[test]
    fn connections_of_a_member_share_its_limit_and_others_have_their_own() {
        let all = Rates::default();
        let early = all.of(BLUE, NodeId(3));
        assert_eq!(takes(&early), 100);
        all.set(BLUE, &rates(8_000, &[3]));
        let late = all.of(BLUE, NodeId(3));
        assert_eq!(takes(&late) + takes(&early), 1);
        let others = [all.of(BLUE, NodeId(4)), all.of(RED, NodeId(3))];
        assert_eq!(others.map(|other| takes(&other)), [100; 2]);
    }

    #[test]
    fn present_connections_follow_the_rate() {
        let all = Rates::default();
        let limit = all.of(BLUE, NodeId(3));
        all.set(BLUE, &rates(8_000, &[3]));
        assert_eq!(takes(&limit), 1);
        // One second is owed.
        assert_eq!(limit.take(1), Some(LONGEST_SLEEP));
        all.set(RED, &rates(8_000, &[4]));
        assert_eq!(takes(&limit), 0);
        all.set(BLUE, &MemberRates::new());
        assert_eq!(takes(&limit), 100);
        all.set(BLUE, &rates(8_000, &[3]));
        all.retain(&[RED].into());
        assert_eq!(takes(&limit), 100);
        assert_eq!(takes(&all.of(RED, NodeId(4))), 1);
    }

    #[test]
    fn a_connection_does_not_overtake_those_that_wait() {
        let all = Rates::default();
        let limit = all.of(BLUE, NodeId(3));
        assert!(limit.try_charge(1 << 40));
        all.set(BLUE, &rates(u64::MAX, &[3]));
        let next = limit.queue.lock();
        assert!(!limit.try_charge(1));
        drop(next);
        assert!(limit.try_charge(1));
        limit.charge(1);
    }

    #[test]
    fn limits_that_nobody_needs_are_forgotten() {
        let all = Rates::default();
        (0..1000).for_each(|node| drop(all.of(BLUE, NodeId(node))));
        assert!(all.0.lock().len() < 100);
        let kept = all.of(BLUE, NodeId(1));
        all.set(BLUE, &rates(8_000, &[2]));
        assert_eq!(all.0.lock().len(), 2);
        all.set(BLUE, &MemberRates::new());
        assert_eq!(all.0.lock().len(), 1);
        drop(kept);
    }
}
