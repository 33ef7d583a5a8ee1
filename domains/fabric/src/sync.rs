//! The atomics that rings are built on, and what a thread does between two looks at them, so that loom
//! can stand in for them
//! (`RUSTFLAGS="--cfg loom" cargo test -p fabric --lib --release ring::`).

#[cfg(loom)]
pub(crate) use loom::hint::spin_loop;
#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
#[cfg(not(loom))]
pub(crate) use std::hint::spin_loop;
#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
