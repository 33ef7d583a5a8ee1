//! Work without pause, which shows the pauses of remaining members and of operations in flight.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Result, anyhow, bail};
use nix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use toroid_client::member::Domain;
use toroid_fabric::emulation::QueuePair;
use toroid_fabric::provider::{Provider, RemoteRegion};
use toroid_fabric::{Completion, Endpoint, OpError, Operation, Read, Region, RemoteKey};

use super::member::{WATCHED, rights};
use super::traffic::Repeating;
use crate::samples::Samples;
use crate::worker::sampler::{BATCH, Pace, Work, sample};

/// Bytes of an operation of a remaining member.
const SHORT: u64 = 64;

/// Bytes of an operation long enough to be caught in flight.
const LONG: u64 = 1 << 20;

/// Distance of two operations in bytes; successive operations touch all pages of a region.
const STRIDE: u64 = 4096 + SHORT;

/// Longest wait for the failure of an operation.
const PATIENCE: Duration = Duration::from_secs(10);

/// Duration of the measurement of reads.
const READ: Duration = Duration::from_millis(100);

/// Time in nanoseconds of a clock that all processes of the machine share.
pub fn now_ns() -> u64 {
    let time = clock_gettime(ClockId::CLOCK_MONOTONIC).unwrap_or(Duration::ZERO.into());
    Duration::from(time).as_nanos() as u64
}

/// The disturbance of the operations of a remaining member.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pause {
    /// Longest time between the ends of two successful operations, in nanoseconds.
    pub longest_ns: u64,
    /// Number of failed operations.
    pub failed: u64,
}

/// A thread that works until drop.
#[derive(Debug)]
pub struct Hammer {
    shared: Arc<Shared>,
    _thread: Repeating,
}

#[derive(Debug, Default)]
struct Shared {
    longest_ns: AtomicU64,
    failed: AtomicU64,
}

impl Hammer {
    /// Works on the peer's memory of a key, or on local memory without a key.
    pub fn start(domain: &Domain, key: Option<RemoteKey>, writable: bool) -> Result<Self> {
        let shared = Arc::new(Shared::default());
        let thread = match key {
            None => {
                let region = Region::local(4096)?;
                shared.repeat(move |n| region.store(n % 512 * 8, n))?
            }
            Some(key) => {
                let mut peer = Peer::open(domain, key, writable)?;
                shared.repeat(move |n| peer.operate(n))?
            }
        };
        Ok(Hammer {
            shared,
            _thread: thread,
        })
    }

    /// The disturbance since the last call.
    pub fn pause(&self) -> Pause {
        Pause {
            longest_ns: self.shared.longest_ns.swap(0, Ordering::Relaxed),
            failed: self.shared.failed.swap(0, Ordering::Relaxed),
        }
    }
}

impl Shared {
    fn repeat(
        self: &Arc<Self>,
        mut operation: impl FnMut(u64) -> Result<(), OpError> + Send + 'static,
    ) -> io::Result<Repeating> {
        let (shared, mut last, mut n) = (Arc::clone(self), now_ns(), 0);
        Repeating::start(move || {
            n += 1;
            if operation(n).is_err() {
                shared.failed.fetch_add(1, Ordering::Relaxed);
                return;
            }
            let now = now_ns();
            shared.longest_ns.fetch_max(now - last, Ordering::Relaxed);
            last = now;
        })
    }
}

/// A peer's memory, and a queue pair to it.
struct Peer {
    remote: RemoteRegion,
    pair: QueuePair,
    local: Region,
    writable: bool,
}

impl Peer {
    fn open(domain: &Domain, key: RemoteKey, writable: bool) -> Result<Self> {
        let local = Region::local(LONG as usize)?;
        // Not zeros: a migration does not copy pages of zeros.
        local.write(0, &[0xa5; SHORT as usize])?;
        Ok(Peer {
            remote: domain.open(key, rights(writable))?,
            pair: Provider::queue_pair(domain, key.node, 1)?,
            local,
            writable,
        })
    }

    /// A short operation behind the watched bytes.
    fn operate(&mut self, n: u64) -> Result<(), OpError> {
        let room = self.remote.len() - WATCHED - SHORT;
        let offset = WATCHED + n * STRIDE % room / 8 * 8;
        let operation = if self.writable && n.is_multiple_of(2) {
            Operation::write(&self.remote, offset, &self.local, 0..SHORT)
        } else {
            Operation::read(&self.remote, offset, &self.local, SHORT..2 * SHORT)
        };
        self.complete(operation)
    }

    fn read_long(&mut self, n: u64) -> Result<(), OpError> {
        let len = LONG.min(self.remote.len());
        let offset = n * len % (self.remote.len() - len + 1);
        self.complete(Operation::read(&self.remote, offset, &self.local, 0..len))
    }

    fn complete(&mut self, operation: Operation<RemoteRegion>) -> Result<(), OpError> {
        // The queue has room: the last operation was completed.
        let _ = self.pair.post(0, operation);
        self.pair.flush();
        self.pair.wait(PATIENCE);
        let mut done = [Completion::default()];
        self.pair.poll(&mut done);
        done[0].result.map(drop)
    }
}

/// A thread with long reads until a read fails.
#[derive(Debug)]
pub struct InFlight(JoinHandle<Result<u64>>);

impl InFlight {
    pub fn start(domain: &Domain, key: RemoteKey) -> Result<Self> {
        let mut peer = Peer::open(domain, key, false)?;
        let read_on = move || {
            let deadline = now_ns() + PATIENCE.as_nanos() as u64;
            for n in 0.. {
                match peer.read_long(n) {
                    Ok(()) if now_ns() > deadline => break,
                    Ok(()) => {}
                    Err(OpError::Revoked) => return Ok(now_ns()),
                    Err(other) => bail!("reading failed otherwise: {other}"),
                }
            }
            bail!("reading did not fail within {PATIENCE:?}")
        };
        Ok(InFlight(thread::Builder::new().spawn(read_on)?))
    }

    /// Time of the failure, of [`now_ns`].
    pub fn failed(self) -> Result<u64> {
        let panicked = |_| Err(anyhow!("the thread panicked"));
        self.0.join().unwrap_or_else(panicked)
    }
}

/// Measures reads of [`SHORT`] bytes.
pub fn read(domain: &Domain, key: RemoteKey) -> Result<Samples> {
    let pace = Pace {
        time: READ,
        batch: Some(BATCH),
    };
    sample(&mut Peer::open(domain, key, false)?, pace)
}

impl Work for Peer {
    fn bytes(&self) -> u64 {
        SHORT
    }

    fn run(&mut self, at: u32) -> Result<()> {
        let read = Read {
            remote: &self.remote,
            offset: WATCHED + u64::from(at) * SHORT,
            into: &mut [0; SHORT as usize],
        };
        Ok(self.pair.read_batch(&mut [read])?)
    }

    fn check(&mut self) -> Result<u64> {
        Ok(0)
    }
}
