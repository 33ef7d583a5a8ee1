//! Deletion of the interfaces of former members, in batches.
//!
//! The kernel takes 15 to 25 ms to delete an interface, most of which is a grace period that many
//! threads can share. Interfaces are therefore collected for a moment and deleted together. Nothing
//! waits for that: their frames were cut, and the interfaces were
//! [lowered](crate::interface::lower), when their ports were removed.
//!
//! A port that returns within that moment gets its interface back, so a member that leaves and
//! joins all the time costs no interface each time.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use toroid_protocol::driver::Port;
use tracing::warn;

use crate::interface::Outer;
use crate::port::tap::Tap;

/// Time without new interfaces before a batch is deleted: deletion slows down the lowering of
/// others.
const QUIET: Duration = Duration::from_millis(100);

/// The longest time that an interface waits.
const LONGEST_WAIT: Duration = Duration::from_secs(1);

/// Limit of the threads that delete a batch. On two cores, 128 interfaces took 2.5 s one after
/// another, 280 ms with 16 threads and 100 ms with 64.
const THREADS: usize = 32;

const STACK_BYTES: usize = 64 * 1024;

/// A lowered interface.
#[derive(Debug)]
pub(crate) struct LoweredInterface {
    /// Its port.
    pub(crate) port: Port,
    /// Inode of its network namespace.
    pub(crate) namespace_inode: u64,
    /// Its index.
    pub(crate) index: u32,
    /// Its TAP, with which it ends.
    pub(crate) tap: Tap,
    /// Its other end, unless it is the TAP itself.
    pub(crate) outer: Option<Outer>,
}

/// Deletes interfaces in the background. Dropping it deletes the remaining ones, and waits.
#[derive(Debug)]
pub(crate) struct Reaper {
    shared: Arc<Shared>,
    worker: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Queue {
    /// Lowered interfaces and the time of each, in that order.
    queue: VecDeque<(Instant, LoweredInterface)>,
    ending: bool,
}

impl Reaper {
    /// Starts the thread.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn start() -> io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let work = Arc::clone(&shared);
        let worker = thread::Builder::new()
            .name("reaper".into())
            .stack_size(STACK_BYTES)
            .spawn(move || while work.next_batch().map(delete_all).is_some() {})?;
        Ok(Reaper {
            shared,
            worker: Some(worker),
        })
    }

    /// Hands over an interface for deletion.
    pub(crate) fn add(&self, lowered: LoweredInterface) {
        let mut queue = self.shared.lock();
        queue.queue.push_back((Instant::now(), lowered));
        self.shared.changed.notify_all();
    }

    /// Takes back the interface of this port in this network namespace, unless its deletion has
    /// begun, or it does not fit by its other end.
    pub(crate) fn take_back(
        &self,
        port: &Port,
        namespace_inode: u64,
        is_fit: impl Fn(Option<&Outer>) -> bool,
    ) -> Option<LoweredInterface> {
        let mut queue = self.shared.lock();
        let is_of_port = |(_, lowered): &(Instant, LoweredInterface)| {
            lowered.namespace_inode == namespace_inode
                && lowered.port.is_same_interface(port)
                && is_fit(lowered.outer.as_ref())
        };
        let at = queue.queue.iter().position(is_of_port)?;
        queue.queue.remove(at).map(|(_, lowered)| lowered)
    }
}

impl Drop for Reaper {
    fn drop(&mut self) {
        self.shared.lock().ending = true;
        self.shared.changed.notify_all();
        if let Some(worker) = self.worker.take() {
            // A panic has been reported already.
            let _ = worker.join();
        }
    }
}

impl Shared {
    /// Waits until a batch is due; `None` at the end.
    fn next_batch(&self) -> Option<Vec<LoweredInterface>> {
        let mut queue = self.lock();
        loop {
            queue = match queue.rest(Instant::now()) {
                None if queue.queue.is_empty() => return None,
                None => return Some(queue.queue.drain(..).map(|(_, lowered)| lowered).collect()),
                Some(rest) => {
                    let waiting = self.changed.wait_timeout(queue, rest);
                    waiting.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Queue {
    /// Time until a batch is due; `None` if it is.
    fn rest(&self, now: Instant) -> Option<Duration> {
        if self.ending {
            return None;
        }
        let [Some((first, _)), Some((last, _))] = [self.queue.front(), self.queue.back()] else {
            return Some(Duration::MAX);
        };
        let due = (*last + QUIET).min(*first + LONGEST_WAIT);
        due.checked_duration_since(now)
            .filter(|rest| !rest.is_zero())
    }
}

fn delete_all(batch: Vec<LoweredInterface>) {
    let threads = batch.len().min(THREADS);
    let rest = Mutex::new(batch);
    let next = || rest.lock().unwrap_or_else(PoisonError::into_inner).pop();
    let work = || {
        while let Some(lowered) = next() {
            let Port { node, ifname, .. } = lowered.port;
            if let Err(error) = lowered.outer.map_or(Ok(()), Outer::delete) {
                warn!("{ifname} of node {node}: {error}");
            }
            if let Err(error) = lowered.tap.delete() {
                warn!("cannot delete the interface {ifname} of node {node}: {error}");
            }
        }
    };
    thread::scope(|scope| {
        for _ in 1..threads {
            let builder = thread::Builder::new().stack_size(STACK_BYTES);
            // Fewer threads take longer.
            let _ = builder.spawn_scoped(scope, work);
        }
        work();
    });
}
