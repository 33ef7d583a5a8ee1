//! System calls that no library wraps, which are here because `unsafe` is this crate's.

pub mod inherited;
pub mod mounts;
pub mod thread;
