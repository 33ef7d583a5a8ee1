//! Work in another network namespace.

use std::io;
use std::os::fd::AsFd;
use std::thread;

use nix::sched::{CloneFlags, setns};

const STACK_BYTES: usize = 128 * 1024;

/// Calls `work` in a network namespace, on a temporary thread: a thread in a namespace keeps it
/// alive.
///
/// # Errors
/// The system's: no thread could be had, or it could not enter.
pub fn inside<R: Send>(
    namespace: impl AsFd + Send,
    work: impl FnOnce() -> R + Send,
) -> io::Result<R> {
    let enter_and_work = || {
        setns(namespace, CloneFlags::CLONE_NEWNET)?;
        Ok(work())
    };
    let panicked = |_| Err(io::Error::other("the thread panicked"));
    thread::scope(|scope| {
        let builder = thread::Builder::new().name("inside".into());
        let thread = builder.stack_size(STACK_BYTES);
        let worker = thread.spawn_scoped(scope, enter_and_work)?;
        worker.join().unwrap_or_else(panicked)
    })
}
