//! Work in another network namespace.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::thread;

use nix::sched::{CloneFlags, setns, unshare};

const STACK_BYTES: usize = 128 * 1024;

/// Creates a network namespace, which ends with its last descriptor unless a thread is inside.
///
/// # Errors
/// The system's: no thread could be had, or the caller may create no namespace.
pub fn create() -> io::Result<File> {
    on_temporary_thread(|| {
        unshare(CloneFlags::CLONE_NEWNET)?;
        File::open("/proc/thread-self/ns/net")
    })
}

/// Calls `work` in a network namespace, on a temporary thread: a thread in a namespace keeps it
/// alive.
///
/// # Errors
/// The system's: no thread could be had, or it could not enter.
pub fn inside<R: Send>(
    namespace: impl AsFd + Send,
    work: impl FnOnce() -> R + Send,
) -> io::Result<R> {
    on_temporary_thread(|| {
        setns(namespace, CloneFlags::CLONE_NEWNET)?;
        Ok(work())
    })
}

fn on_temporary_thread<R: Send>(work: impl FnOnce() -> io::Result<R> + Send) -> io::Result<R> {
    let panicked = |_| Err(io::Error::other("the thread panicked"));
    thread::scope(|scope| {
        let builder = thread::Builder::new().name("inside".into());
        let thread = builder.stack_size(STACK_BYTES);
        let worker = thread.spawn_scoped(scope, work)?;
        worker.join().unwrap_or_else(panicked)
    })
}
