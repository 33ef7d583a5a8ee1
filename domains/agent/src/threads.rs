//! Threads with small stacks.

use std::io;
use std::thread::{Builder, JoinHandle};

/// Bytes of a stack.
const STACK_BYTES: usize = 256 * 1024;

/// Starts a thread. An agent has a thread for each connection and several for each node, so none
/// gets the default stack of 2 MiB.
pub(crate) fn start<T: Send + 'static>(
    run: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    Builder::new().stack_size(STACK_BYTES).spawn(run)
}

/// Starts a thread that `ps -L` and debuggers show by this name.
pub(crate) fn start_named(
    name: &str,
    run: impl FnOnce() + Send + 'static,
) -> io::Result<JoinHandle<()>> {
    let builder = Builder::new().name(name.into());
    builder.stack_size(STACK_BYTES).spawn(run)
}
