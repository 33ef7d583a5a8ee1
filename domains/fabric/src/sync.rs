//! The atomics that rings are built on, so that loom can stand in for them
//! (`RUSTFLAGS="--cfg loom" cargo test -p fabric --lib --release ring::`).

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
