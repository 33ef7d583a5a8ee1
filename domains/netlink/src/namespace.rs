//! Work in another network namespace.
//!
//! A namespace belongs to a thread: /proc/thread-self/net shows it, while /proc/self/net shows that
//! of the main thread.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::process;
use std::thread;

use nix::sched::{CloneFlags, setns, unshare};

const STACK_BYTES: usize = 128 * 1024;

/// The network namespace of the calling thread.
const OWN: &str = "/proc/thread-self/ns/net";

/// Creates a network namespace, which ends with its last descriptor unless a thread is inside.
///
/// # Errors
/// The system's: no thread could be had, or the caller may create no namespace.
pub fn create() -> io::Result<File> {
    on_temporary_thread(|| {
        unshare(CloneFlags::CLONE_NEWNET)?;
        File::open(OWN)
    })
}

/// Calls `work` in a network namespace, which the calling thread enters meanwhile. A thread that may
/// not return to its own namespace uses a temporary thread, which waits up to 3 ms for its first turn
/// beside busy processes.
///
/// # Errors
/// The system's: the thread could not enter, or no thread could be had.
pub fn inside<R: Send>(
    namespace: impl AsFd + Send,
    work: impl FnOnce() -> R + Send,
) -> io::Result<R> {
    let Some(_home) = Home::of_this_thread() else {
        return on_temporary_thread(|| {
            setns(namespace, CloneFlags::CLONE_NEWNET)?;
            Ok(work())
        });
    };
    setns(namespace, CloneFlags::CLONE_NEWNET)?;
    Ok(work())
}

/// The network namespace to which a thread returns.
struct Home(File);

impl Home {
    /// `None` if the thread may not enter its own namespace, as without rights in that of the host.
    fn of_this_thread() -> Option<Self> {
        let own = File::open(OWN).ok()?;
        setns(&own, CloneFlags::CLONE_NEWNET).ok()?;
        Some(Home(own))
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        // It was allowed before. All later work of this thread would be in the other namespace.
        if let Err(error) = setns(&self.0, CloneFlags::CLONE_NEWNET) {
            eprintln!("a thread cannot return to its network namespace: {error}");
            process::abort();
        }
    }
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
