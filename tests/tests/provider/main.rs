//! The `verbs` provider on two devices, `rxe0` and `rxe1`, that are connected to each other:
//! `tests/verbs/vm` brings both.

mod compare;
mod counters;
mod errors;
mod failover_channel;
mod failover_queue_pair;
mod migration;
mod rdma_stream;
mod resources;
mod revocation;
mod rig;

tests::conformance!(rig::Verbs);

mod queued {
    tests::conformance!(@queued crate::rig::Verbs);
}
