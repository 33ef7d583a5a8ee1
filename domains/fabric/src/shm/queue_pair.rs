//! One-sided operations on `shm`: copies and atomics on the peer's mapped region.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering, fence};
use std::time::Duration;

use super::memory::{self, Mapping, copy};
use crate::endpoint::{Completion, Endpoint, OpError, Operation, PostError, Read};
use crate::key::{Access, Partition, RemoteKey};
use crate::region::{self, Keep};
use crate::topology::NodeId;

/// Long transfers look at the region's state again after this many bytes.
const RECHECK_BYTES: usize = 64 * 1024;

/// Whether a region or connection may still be used: set by the control thread of the process,
/// looked at by every operation.
#[derive(Debug, Default)]
pub struct Status(AtomicU32);

impl Status {
    const REVOKED: u32 = 1;
    const PEER_DEAD: u32 = 2;

    /// Ends everything under this status with [`OpError::Revoked`], also what is in flight.
    pub fn revoke(&self) {
        self.end(Self::REVOKED);
    }

    /// Ends everything under this status with [`OpError::PeerDead`].
    pub fn peer_died(&self) {
        self.end(Self::PEER_DEAD);
    }

    /// The first end stays: a revoked peer that dies afterwards was revoked.
    fn end(&self, how: u32) {
        // Release: pairs with the Acquire in `check`.
        let _ = self
            .0
            .compare_exchange(0, how, Ordering::Release, Ordering::Relaxed);
    }

    /// # Errors
    /// How it ended.
    pub fn check(&self) -> Result<(), OpError> {
        // Acquire: pairs with the Release in `end`.
        match self.0.load(Ordering::Acquire) {
            0 => Ok(()),
            Self::REVOKED => Err(OpError::Revoked),
            _ => Err(OpError::PeerDead),
        }
    }
}

/// A peer's region, mapped with the rights that the agent granted. Clones share the mapping.
#[derive(Clone, Debug)]
pub struct RemoteRegion(Arc<Grant>);

#[derive(Debug)]
struct Grant {
    mapping: Mapping,
    key: RemoteKey,
    access: Access,
    status: Arc<Status>,
    /// Dropped with the last handle.
    _keep: Option<Keep>,
}

impl RemoteRegion {
    /// Maps what the agent handed over: `memory` is read-only unless `access` has a right that
    /// writes. `keep` is dropped with the last handle.
    ///
    /// # Errors
    /// The system's, also when the descriptor does not allow what `access` says.
    pub fn map(
        memory: &File,
        len: usize,
        key: RemoteKey,
        access: Access,
        status: Arc<Status>,
        keep: Option<Keep>,
    ) -> io::Result<Self> {
        let writable = access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
        let mapping = Mapping::of_file(memory, len, writable)?;
        Ok(RemoteRegion(Arc::new(Grant {
            mapping,
            key,
            access,
            status,
            _keep: keep,
        })))
    }

    /// Bytes of the region.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> u64 {
        self.0.mapping.len() as u64
    }

    /// The key that it was opened with.
    pub fn key(&self) -> RemoteKey {
        self.0.key
    }

    /// The rights granted.
    pub fn access(&self) -> Access {
        self.0.access
    }

    fn check(&self, needed: Access) -> Result<&Mapping, OpError> {
        if !self.0.access.contains(needed) {
            return Err(OpError::MissingRight { needed });
        }
        self.0.status.check()?;
        Ok(&self.0.mapping)
    }

    /// Hints that the line at `offset` is about to be read.
    fn fetch_ahead(&self, offset: u64) {
        if let Some(address) = self.0.mapping.range(offset, 1) {
            memory::fetch_ahead(address);
        }
    }

    /// # Safety
    /// `to` must be writable for `len` bytes and, unless it is another shared mapping, not
    /// accessed by anyone else.
    unsafe fn read(&self, offset: u64, to: *mut u8, len: u64) -> Result<(), OpError> {
        let from = region::bounds(self.check(Access::REMOTE_READ)?, offset, len)?;
        // SAFETY: `bounds` checked `from`; `to` is the caller's promise. Mappings do not overlap
        // each other or memory of Rust's.
        unsafe { self.transfer(from, to, len as usize) }
    }

    /// # Safety
    /// `from` must be readable for `len` bytes and, unless it is another shared mapping, not
    /// written by anyone else.
    unsafe fn write(&self, offset: u64, from: *const u8, len: u64) -> Result<(), OpError> {
        let to = region::bounds(self.check(Access::REMOTE_WRITE)?, offset, len)?;
        // SAFETY: as in `read`; the mapping is writable because `map` had REMOTE_WRITE.
        unsafe { self.transfer(from, to, len as usize) }
    }

    /// Copies, looking at the status between pieces and after the last: bytes that were moved
    /// while access ended are not reported as a success.
    ///
    /// # Safety
    /// As [`copy`].
    unsafe fn transfer(&self, from: *const u8, to: *mut u8, len: usize) -> Result<(), OpError> {
        let mut done = 0;
        loop {
            let piece = (len - done).min(RECHECK_BYTES);
            // SAFETY: a part of the ranges that the caller promises.
            unsafe { copy(from.add(done), to.add(done), piece) };
            // Acquire: whatever is loaded after this piece is loaded after it. Release: whatever is
            // stored after it is seen after it. Each pairs with the other, or with a load or
            // store of a word, at the other end.
            fence(Ordering::AcqRel);
            self.0.status.check()?;
            done += piece;
            if done == len {
                return Ok(());
            }
        }
    }
}

/// A queue pair on `shm`.
///
/// Posting queues, flushing executes in order in the caller's thread, polling drains; so nothing
/// is in flight between calls.
#[derive(Debug)]
pub struct QueuePair {
    peer: NodeId,
    partition: Partition,
    depth: usize,
    posted: VecDeque<(u64, Operation<RemoteRegion>)>,
    completed: VecDeque<Completion>,
}

impl QueuePair {
    /// A queue pair to `peer` in `partition` for up to `depth` operations that are posted or not
    /// yet polled.
    pub fn new(peer: NodeId, partition: Partition, depth: usize) -> Self {
        let queue = VecDeque::with_capacity(depth);
        QueuePair {
            peer,
            partition,
            depth,
            posted: queue,
            completed: VecDeque::with_capacity(depth),
        }
    }

    fn execute(&self, operation: &Operation<RemoteRegion>) -> Result<u64, OpError> {
        match operation {
            Operation::Read {
                remote,
                offset,
                local,
                local_offset,
                len,
            } => {
                let to = region::bounds(local.mapping(), *local_offset, *len)?;
                // SAFETY: `bounds` checked `to`, which is a mapping of ours: `Region` gives no
                // reference to it.
                unsafe { self.leads_to(remote)?.read(*offset, to, *len)? };
                Ok(*len)
            }
            Operation::Write {
                remote,
                offset,
                local,
                local_offset,
                len,
            } => {
                let from = region::bounds(local.mapping(), *local_offset, *len)?;
                // SAFETY: as for a read.
                unsafe { self.leads_to(remote)?.write(*offset, from, *len)? };
                Ok(*len)
            }
            Operation::CompareAndSwap {
                remote,
                offset,
                expected,
                desired,
            } => {
                let mapping = self.leads_to(remote)?.check(Access::REMOTE_ATOMIC)?;
                region::compare_and_swap(mapping, *offset, *expected, *desired)
            }
            Operation::FetchAdd {
                remote,
                offset,
                add,
            } => {
                let mapping = self.leads_to(remote)?.check(Access::REMOTE_ATOMIC)?;
                region::fetch_add(mapping, *offset, *add)
            }
        }
    }

    fn leads_to<'a>(&self, remote: &'a RemoteRegion) -> Result<&'a RemoteRegion, OpError> {
        let key = &remote.0.key;
        let ours = key.node == self.peer && key.partition == self.partition;
        ours.then_some(remote).ok_or(OpError::WrongKey)
    }
}

impl Endpoint for QueuePair {
    type Remote = RemoteRegion;

    fn peer(&self) -> NodeId {
        self.peer
    }

    fn partition(&self) -> Partition {
        self.partition
    }

    fn post(&mut self, id: u64, operation: Operation<RemoteRegion>) -> Result<(), PostError> {
        if self.posted.len() + self.completed.len() >= self.depth {
            return Err(PostError::QueueFull { depth: self.depth });
        }
        self.posted.push_back((id, operation));
        Ok(())
    }

    fn flush(&mut self) {
        while let Some((id, operation)) = self.posted.pop_front() {
            let result = self.execute(&operation);
            self.completed.push_back(Completion { id, result });
        }
    }

    fn poll(&mut self, into: &mut [Completion]) -> usize {
        let count = into.len().min(self.completed.len());
        for (slot, completion) in into.iter_mut().zip(self.completed.drain(..count)) {
            *slot = completion;
        }
        count
    }

    fn wait(&mut self, _timeout: Duration) -> bool {
        // What was flushed has completed, so there is nothing to wait for.
        !self.completed.is_empty()
    }

    fn read_batch(&mut self, reads: &mut [Read<'_, RemoteRegion>]) -> Result<(), OpError> {
        self.flush();
        // Cold reads wait for memory together rather than one after the other. A fetched line
        // that its writer changes meanwhile is fetched again, so the order of loads stays.
        for read in reads.iter().skip(1) {
            read.remote.fetch_ahead(read.offset);
        }
        for read in reads {
            let (to, len) = (read.into.as_mut_ptr(), read.into.len() as u64);
            // SAFETY: `into` is an exclusive slice of that length.
            unsafe { self.leads_to(read.remote)?.read(read.offset, to, len)? };
        }
        Ok(())
    }
}
