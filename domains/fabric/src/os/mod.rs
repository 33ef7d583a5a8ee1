//! System calls that no library wraps. They are in this crate because only it may use `unsafe`.

pub mod inherited;
pub mod mounts;
pub mod thread;
