//! Threads that others wait for.

use std::io;
use std::mem::MaybeUninit;
use std::process::abort;
use std::thread::{Builder, JoinHandle};

/// Starts a thread in which no signal handler of the program runs: one might touch memory that
/// waits for this very thread, or a lock that somebody holds who does.
///
/// # Errors
/// The system's.
pub fn spawn_undisturbed<T: Send + 'static>(
    builder: Builder,
    body: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    let mut before = MaybeUninit::<libc::sigset_t>::uninit();
    let mut all = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: both calls write the sets that they are given; the second reads the one that the
    // first has filled. They cannot fail with these arguments.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
    }
    // It inherits the mask.
    let spawned = builder.spawn(body);
    // SAFETY: `before` was filled above.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), std::ptr::null_mut()) };
    spawned
}

/// Ends the process when it is dropped: by a panic, or by the return of what must not return.
#[derive(Debug)]
pub(super) struct Indispensable;

impl Drop for Indispensable {
    fn drop(&mut self) {
        abort();
    }
}
