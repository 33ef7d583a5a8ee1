//! Rates of members at the target proxy: what their operations and packets may take here.
//!
//! All connections of a node in a domain share one bucket, and wait for it in the order in which they
//! came, operations and packets alike. A connection waits on its own thread, so it delays no other
//! member's.

use std::cell::Cell;
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use toroid_fabric::model::{Nanos, SharedClocks, TokenBucket};
use toroid_fabric::{NodeId, Partition};
use toroid_protocol::proxy::MemberRates;

/// Least sleep. Less than [`TokenBucket::BURST`], so the rate is kept.
const LEAST_SLEEP: Duration = Duration::from_micros(200);

/// Longest sleep of the first in a queue before the rate is looked at again, which may have changed
/// meanwhile. Those behind the first sleep longer.
const LONGEST_SLEEP: Duration = Duration::from_millis(20);

/// Longest sleep of others.
const LONGEST_BEHIND: Duration = Duration::from_secs(1);

/// Limits of members with a rate or a connection.
#[derive(Debug, Default)]
pub(super) struct Rates(Mutex<HashMap<(Partition, NodeId), Arc<Limit>>>);

/// The limit of one member.
#[derive(Debug)]
struct Limit {
    /// Bytes per second; 0: not limited. The rest is only used with a rate.
    rate: AtomicU64,
    queue: Mutex<Queue>,
}

#[derive(Debug)]
struct Queue {
    bucket: TokenBucket,
    /// Numbers of senders that wait, with the bytes of each.
    waiting: VecDeque<(u64, u64)>,
    /// Number of the next sender.
    next: u64,
}

/// A sender of a member: a connection for operations, or one direction of a channel. Follows changes
/// of the member's rate.
#[derive(Debug)]
pub(super) struct Sender {
    limit: Arc<Limit>,
    number: u64,
    /// Whether the sender is in the queue.
    waits: Cell<bool>,
}

impl Rates {
    /// A further sender of a member.
    pub(super) fn sender(&self, partition: Partition, node: NodeId) -> Sender {
        let mut limits = self.0.lock();
        if limits.len() == limits.capacity() {
            limits.retain(|_, limit| limit.is_used());
        }
        let limit = Arc::clone(limits.entry((partition, node)).or_default());
        let mut queue = limit.queue.lock();
        let number = queue.next;
        queue.next += 1;
        drop(queue);
        Sender {
            limit,
            number,
            waits: Cell::new(false),
        }
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

impl Sender {
    /// Charges bytes. `None` if that was possible; otherwise nothing was charged, the sender is in the
    /// queue, and tries again after this time.
    pub(super) fn take(&self, bytes: usize) -> Option<Duration> {
        self.take_at(bytes as u64, SharedClocks::now())
    }

    fn take_at(&self, bytes: u64, now: Nanos) -> Option<Duration> {
        let rate = self.limit.rate.load(Ordering::Relaxed);
        if rate == 0 {
            self.leave();
            return None;
        }
        let mut queue = self.limit.queue.lock();
        queue.bucket.set_rate(rate, now);
        let mut numbers = queue.waiting.iter().map(|(number, _)| *number);
        let ahead = numbers
            .position(|number| number == self.number)
            .unwrap_or(queue.waiting.len());
        if ahead == 0 && queue.bucket.held_until(now).is_none() {
            queue.bucket.charge(bytes, now);
            if self.waits.take() {
                queue.waiting.pop_front();
            }
            return None;
        }
        if !self.waits.replace(true) {
            queue.waiting.push_back((self.number, bytes));
        }
        Some(queue.sleep_behind(ahead, now))
    }

    /// Leaves the queue.
    pub(super) fn leave(&self) {
        if self.waits.take() {
            let mut queue = self.limit.queue.lock();
            queue.waiting.retain(|(number, _)| *number != self.number);
        }
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        self.leave();
    }
}

impl Queue {
    /// Time until the sender behind so many others may go on, if none of these gives up and the rate
    /// does not change.
    fn sleep_behind(&self, ahead: usize, now: Nanos) -> Duration {
        let mut bucket = self.bucket;
        for (_, bytes) in self.waiting.iter().take(ahead) {
            bucket.charge(*bytes, now);
        }
        let until = bucket.held_until(now).unwrap_or(now);
        let longest = LONGEST_SLEEP.saturating_mul(u32::try_from(ahead + 1).unwrap_or(u32::MAX));
        Duration::from_nanos(until - now).clamp(LEAST_SLEEP, longest.min(LONGEST_BEHIND))
    }
}

impl Limit {
    /// Whether there is a rate, or a sender besides the table.
    fn is_used(self: &Arc<Self>) -> bool {
        self.rate.load(Ordering::Relaxed) > 0 || Arc::strong_count(self) > 1
    }
}

impl Default for Limit {
    fn default() -> Self {
        Limit {
            rate: AtomicU64::new(0),
            queue: Mutex::new(Queue {
                bucket: TokenBucket::new(1, 0),
                waiting: VecDeque::new(),
                next: 0,
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use toroid_model::link::Rate;

    use super::*;

    const BLUE: Partition = Partition(1);
    const RED: Partition = Partition(2);
    const MS: Nanos = 1_000_000;
    const NOW: Nanos = 1_000 * MS;

    fn rates(rate: u64, nodes: &[u32]) -> MemberRates {
        [(Rate(rate), nodes.to_vec())].into()
    }

    /// As many packets as a sender may send at once.
    fn takes(sender: &Sender) -> usize {
        let takes = |_: &i32| sender.take_at(8_000, NOW).is_none();
        (0..100).take_while(takes).count()
    }

    #[test]
    fn senders_of_a_member_share_its_limit_and_others_have_their_own() {
        let all = Rates::default();
        let early = all.sender(BLUE, NodeId(3));
        assert_eq!(takes(&early), 100);
        all.set(BLUE, &rates(8_000, &[3]));
        let late = all.sender(BLUE, NodeId(3));
        assert_eq!(takes(&late) + takes(&early), 1);
        let others = [all.sender(BLUE, NodeId(4)), all.sender(RED, NodeId(3))];
        assert_eq!(others.map(|other| takes(&other)), [100; 2]);
    }

    #[test]
    fn present_senders_follow_the_rate() {
        let all = Rates::default();
        let sender = all.sender(BLUE, NodeId(3));
        all.set(BLUE, &rates(8_000, &[3]));
        assert_eq!(takes(&sender), 1);
        // One second is owed.
        assert_eq!(sender.take_at(1, NOW), Some(LONGEST_SLEEP));
        all.set(RED, &rates(8_000, &[4]));
        assert_eq!(takes(&sender), 0);
        all.set(BLUE, &MemberRates::new());
        assert_eq!(takes(&sender), 100);
        assert!(sender.limit.queue.lock().waiting.is_empty());
        all.set(BLUE, &rates(8_000, &[3]));
        all.retain(&[RED].into());
        assert_eq!(takes(&sender), 100);
        assert_eq!(takes(&all.sender(RED, NodeId(4))), 1);
    }

    /// Operations once starved behind a busy channel.
    #[test]
    fn senders_have_their_turns_in_the_order_in_which_they_came() {
        let all = Rates::default();
        all.set(BLUE, &rates(8_000_000, &[3]));
        let [busy, second, gone] = [(); 3].map(|()| all.sender(BLUE, NodeId(3)));
        // 5 ms are unused, and 1 ms is owed.
        assert_eq!(busy.take_at(48_000, NOW), None);
        let ms = |count| Some(Duration::from_millis(count));
        assert_eq!(second.take_at(8_000, NOW), ms(1));
        assert_eq!(gone.take_at(8_000, NOW), ms(2));
        assert_eq!(busy.take_at(80_000, NOW), ms(3));
        drop(gone);
        assert_eq!(busy.take_at(80_000, NOW), ms(2));
        assert_eq!(second.take_at(8_000, NOW + MS - 1), Some(LEAST_SLEEP));
        assert_eq!(busy.take_at(80_000, NOW + MS), ms(1));
        assert_eq!(second.take_at(8_000, NOW + MS), None);
        assert_eq!(second.take_at(8_000, NOW + 2 * MS), ms(10));
        assert_eq!(busy.take_at(80_000, NOW + 2 * MS), None);
        busy.leave();
        assert_eq!(second.take_at(8_000, NOW + 11 * MS), ms(1));
        second.leave();
        assert_eq!(busy.take_at(8_000, NOW + 12 * MS), None);
    }

    #[test]
    fn senders_behind_others_look_at_the_rate_less_often() {
        let all = Rates::default();
        all.set(BLUE, &rates(8_000, &[3]));
        let senders: Vec<_> = (0..100).map(|_| all.sender(BLUE, NodeId(3))).collect();
        assert_eq!(senders[99].take_at(1 << 20, NOW), None);
        let sleeps = senders.iter().map(|sender| sender.take_at(1 << 20, NOW));
        let sleeps: Vec<_> = sleeps.flatten().collect();
        assert_eq!(sleeps[..2], [LONGEST_SLEEP, 2 * LONGEST_SLEEP]);
        assert_eq!((sleeps.len(), sleeps[99]), (100, LONGEST_BEHIND));
    }

    #[test]
    fn unused_limits_are_forgotten() {
        let all = Rates::default();
        (0..1000).for_each(|node| drop(all.sender(BLUE, NodeId(node))));
        assert!(all.0.lock().len() < 100);
        let kept = all.sender(BLUE, NodeId(1));
        all.set(BLUE, &rates(8_000, &[2]));
        assert_eq!(all.0.lock().len(), 2);
        all.set(BLUE, &MemberRates::new());
        assert_eq!(all.0.lock().len(), 1);
        drop(kept);
    }
}
