//! System calls that no library wraps. They are in this crate because only it may use `unsafe`.

use std::io;

pub mod inherited;
pub mod mounts;
pub mod thread;

/// The error of the system call that has just returned `result`, if that is -1.
pub(crate) fn checked(result: impl Into<i64>) -> io::Result<()> {
    match result.into() {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}
