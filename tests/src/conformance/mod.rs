//! The contract of a fabric provider, the same for each of them.
//!
//! A provider has a [`Rig`]; the macro [`conformance!`](crate::conformance!) turns the suite into
//! tests on it. [`operations`] has the one-sided operations, [`queues`] their completions by one queue,
//! [`channels`] the packets. [`emulated`] puts a provider behind emulated links.

// The names of the tests say what they show.
#![allow(missing_docs)]

pub mod channels;
pub mod emulated;
pub mod operations;
pub mod queues;

use std::array;
use std::time::{Duration, Instant};

use toroid_fabric::Membership;
use toroid_fabric::link::LinkCheck;
use toroid_fabric::{
    Access, Completion, Endpoint, Epoch, NodeId, OpError, Operation, PacketChannel, Partition,
    Protocol, Region,
};

pub use channels::*;
pub use emulated::*;
pub use operations::*;
pub use queues::*;

/// Limit of all waiting: a test that reaches it has hung.
const FOR_EVER: Duration = Duration::from_secs(20);

/// The first node of a rig, whose endpoints and channels are tested.
pub const HERE: NodeId = NodeId(0);

/// The second node, the peer.
pub const THERE: NodeId = NodeId(1);

/// The partition of both nodes.
pub const PARTITION: Partition = Partition(7);

/// Link check and membership of a channel end whose peer is at `peer`.
pub fn link(peer: NodeId) -> (LinkCheck, Membership) {
    let check = LinkCheck {
        partition: PARTITION,
        peer,
        protocol: Protocol(1),
        since: Epoch(1),
    };
    (check, Membership::at(check.since))
}

/// Two connected nodes of a provider, and the actions of an agent on them.
pub trait Rig: Sync {
    /// The provider's queue pair.
    type Endpoint: Endpoint;
    /// The provider's channel.
    type Channel: PacketChannel + Send;
    /// Reads that look for a race, about a second of them.
    const LOOKS: usize = 100_000;
    /// Atomics of a peer are atomic with those of the owner's processor, not only with one another.
    const COHERENT_ATOMICS: bool = true;

    /// A new pair of nodes, in one partition.
    fn new() -> Self;
    /// Memory at the peer with these rights, and our handle to it, opened with all of them.
    fn export(&self, len: u64, rights: Access) -> (Region, Remote<Self>);
    /// Memory of a third node, for which our queue pair is the wrong one.
    fn elsewhere(&self, len: u64) -> Remote<Self>;
    /// A queue pair to the peer.
    fn endpoint(&self, depth: usize) -> Self::Endpoint;
    /// The two ends of a channel between us and the peer.
    fn channel(&self) -> (Self::Channel, Self::Channel);
    /// The peer's node leaves the partition.
    fn revoke(&self);
    /// The peer's process dies.
    fn kill_peer(&self);
}

/// A handle to a region of the peer.
pub type Remote<R> = <<R as Rig>::Endpoint as Endpoint>::Remote;

/// Makes the suite a module of tests on a [`Rig`]: with `@operations` the part without packets, with
/// `@queued` this part through a completion queue, with `@emulated` the whole behind emulated links.
#[macro_export]
macro_rules! conformance {
    ($rig:ty) => {
        $crate::conformance!(@operations $rig);
        $crate::conformance!(@queues $rig);
        $crate::conformance!(@each $rig:
            packets_arrive_whole_and_in_order
            a_full_channel_says_so_and_recovers
            a_packet_too_long_is_refused
            a_hold_arrives_with_its_packet
            a_sleeper_is_woken_by_a_packet
            a_sleeper_is_woken_by_room
            an_armed_channel_signals_its_descriptor
            a_revoked_channel_ends
            a_dead_peers_packets_can_still_be_read
        );
    };
    (@emulated $rig:ty) => {
        $crate::conformance!($crate::conformance::Emulated<$rig>);
        $crate::conformance!(@each $crate::conformance::Emulated<$rig>: nothing_is_early);
    };
    (@operations $rig:ty) => {
        $crate::conformance!(@each $rig:
            bytes_arrive_as_they_were
            scattered_bytes_arrive_as_they_were
            a_list_is_refused_as_a_whole
            every_operation_completes_once_in_order
            a_full_queue_takes_nothing_more
            a_range_outside_is_refused
            a_missing_right_is_refused
            atomics_are_atomic
            atomics_need_an_aligned_word
            a_foreign_region_is_refused
            words_are_never_torn
            a_batch_reads_in_order
            a_batch_stops_at_the_first_error
            revoked_operations_fail
            operations_on_a_dead_peer_fail
            revocation_ends_a_transfer_in_flight
        );
    };
    (@queues $rig:ty) => {
        $crate::conformance!(@each $rig:
            a_queue_has_each_completion_of_all_pairs_once
            a_queue_can_be_polled_without_a_wait
            an_armed_queue_signals_its_descriptor
            an_idle_queue_sleeps_after_the_end_of_its_peer
            a_busy_pair_in_a_queue_leaves_turns_to_others
            a_pair_that_is_used_before_each_call_completes
            a_detached_pair_keeps_its_completions
            a_queue_reports_operations_on_a_dead_peer
        );
    };
    (@queued $rig:ty) => {
        $crate::conformance!(@operations $crate::conformance::Queued<$rig>);
    };
    (@each $rig:ty: $($test:ident)*) => {
        $(
            #[test]
            fn $test() {
                $crate::conformance::$test(&<$rig as $crate::conformance::Rig>::new());
            }
        )*
    };
}

/// Bytes with a period that divides no length to which providers cut transfers.
fn pattern(len: usize, seed: u8) -> Vec<u8> {
    let period: [u8; 251] = array::from_fn(|i| (i as u8).wrapping_mul(31).wrapping_add(seed));
    let mut bytes = period.repeat(len.div_ceil(period.len()));
    bytes.truncate(len);
    bytes
}

/// Flushes and waits for `count` completions.
fn complete<E: Endpoint>(endpoint: &mut E, count: usize) -> Vec<Completion> {
    endpoint.flush();
    let mut done = Vec::new();
    let start = Instant::now();
    while done.len() < count {
        assert!(
            start.elapsed() < FOR_EVER,
            "{} of {count} completions came",
            done.len()
        );
        endpoint.wait(FOR_EVER);
        let mut some = [Completion::default(); 7];
        let polled = endpoint.poll(&mut some);
        done.extend_from_slice(&some[..polled]);
    }
    done
}

fn run<E: Endpoint>(endpoint: &mut E, operation: Operation<E::Remote>) -> Result<u64, OpError> {
    endpoint.post(1, operation).unwrap();
    complete(endpoint, 1)[0].result
}

/// One operation of each kind at `offset`: `len` bytes, or one word.
fn each_kind<R: Clone>(
    remote: &R,
    local: &Region,
    offset: u64,
    len: u64,
) -> [(Access, Operation<R>); 4] {
    [
        (
            Access::REMOTE_READ,
            Operation::read(remote, offset, local, 0..len),
        ),
        (
            Access::REMOTE_WRITE,
            Operation::write(remote, offset, local, 0..len),
        ),
        (
            Access::REMOTE_ATOMIC,
            Operation::compare_and_swap(remote, offset, 0, 1),
        ),
        (
            Access::REMOTE_ATOMIC,
            Operation::fetch_add(remote, offset, 1),
        ),
    ]
}
