//! Deleting interfaces of ports that have left.
//!
//! The kernel takes 15 to 25 ms to delete an interface, most of which it waits until nobody can
//! be using it, and it does so for many at once when it is asked by many threads. So those who
//! left are collected for a moment, and then deleted together. Nobody waits for it: their packets
//! were cut, and they were [lowered](crate::interface::lower), when their ports left.
//!
//! A port that comes back within that moment finds its interface still there. So a member that
//! leaves and joins all the time costs no interface each time.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use toroid_protocol::driver::Port;
use tracing::warn;

use crate::port::tap::Tap;

/// How long nobody may have left before all who did are deleted: deleting many gets in the way of
/// lowering more.
const MOMENT: Duration = Duration::from_millis(100);

/// How long any of them waits at most.
const LONG: Duration = Duration::from_secs(1);

/// How many are deleted at a time. On two cores, 128 took 2.5 s one after another, 280 ms by 16
/// and 100 ms by 64.
const THREADS: usize = 32;

const STACK_BYTES: usize = 64 * 1024;

/// An interface that was lowered.
#[derive(Debug)]
pub struct LoweredInterface {
    /// Its port.
    pub port: Port,
    /// The inode of its network namespace.
    pub namespace_inode: u64,
    /// Its number there.
    pub index: u32,
    /// Its other end, with which it goes.
    pub tap: Tap,
}

/// Deletes interfaces in the background. Dropping it deletes those that are left, and waits.
#[derive(Debug)]
pub struct Reaper {
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
    /// With the time when each left, in that order.
    queue: VecDeque<(Instant, LoweredInterface)>,
    ending: bool,
}

impl Reaper {
    /// Starts the thread that does it.
    ///
    /// # Errors
    /// The system's.
    pub fn start() -> io::Result<Self> {
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

    /// Lets an interface be deleted before long.
    pub fn add(&self, lowered: LoweredInterface) {
        let mut queue = self.shared.lock();
        queue.queue.push_back((Instant::now(), lowered));
        self.shared.changed.notify_all();
    }

    /// Takes back an interface that this port left behind in this network namespace, if it is
    /// not being deleted yet.
    pub fn take_back(&self, port: &Port, namespace_inode: u64) -> Option<LoweredInterface> {
        let mut queue = self.shared.lock();
        let left_it = |(_, lowered): &(Instant, LoweredInterface)| {
            lowered.namespace_inode == namespace_inode && lowered.port.is_same_interface(port)
        };
        let at = queue.queue.iter().position(left_it)?;
        queue.queue.remove(at).map(|(_, lowered)| lowered)
    }
}

impl Drop for Reaper {
    fn drop(&mut self) {
        self.shared.lock().ending = true;
        self.shared.changed.notify_all();
        if let Some(worker) = self.worker.take() {
            // It has told of its panic already.
            let _ = worker.join();
        }
    }
}

impl Shared {
    /// Waits until nobody has left for a moment, or some have waited long; `None` at the end.
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
    /// How long to wait, if at all.
    fn rest(&self, now: Instant) -> Option<Duration> {
        if self.ending {
            return None;
        }
        let [Some((first, _)), Some((last, _))] = [self.queue.front(), self.queue.back()] else {
            return Some(Duration::MAX);
        };
        let due = (*last + MOMENT).min(*first + LONG);
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
            if let Err(error) = lowered.tap.delete() {
                warn!("cannot delete the interface {ifname} of node {node}: {error}");
            }
        }
    };
    thread::scope(|scope| {
        for _ in 1..threads {
            let builder = thread::Builder::new().stack_size(STACK_BYTES);
            // With fewer threads it takes longer.
            let _ = builder.spawn_scoped(scope, work);
        }
        work();
    });
}
