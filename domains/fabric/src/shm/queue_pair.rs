//! One-sided operations on `shm`: copies and atomics on the peer's mapped region.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use super::memory;
use super::moving::Memory;
use super::status::Status;
use crate::endpoint::{Completion, Endpoint, OpError, Operation, PostError, Read};
use crate::key::{Access, Partition, RemoteKey};
use crate::mapped::Mapped;
use crate::region::{self, Keep};
use crate::segments::Segments;
use crate::topology::NodeId;

/// A peer's region, mapped with the rights that the agent granted. Clones share the mapping.
#[derive(Clone, Debug)]
pub struct RemoteRegion(Arc<Grant>);

#[derive(Debug)]
struct Grant {
    memory: Arc<Memory>,
    key: RemoteKey,
    access: Access,
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
        Ok(RemoteRegion(Arc::new(Grant {
            memory: Arc::new(Memory::map(memory, len, writable, status)?),
            key,
            access,
            _keep: keep,
        })))
    }

    /// Bytes of the region.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> u64 {
        self.0.memory.mapping().len() as u64
    }

    /// The key that it was opened with.
    pub fn key(&self) -> RemoteKey {
        self.0.key
    }

    /// The rights granted.
    pub fn access(&self) -> Access {
        self.0.access
    }

    /// For the control thread: what it moves, and whose status it ends.
    pub fn memory(&self) -> &Arc<Memory> {
        &self.0.memory
    }

    /// Replaces the word at `offset` by `desired` if it is `expected`; returns what was there.
    ///
    /// # Errors
    /// [`OpError`], as the completion of an operation has.
    pub fn compare_and_swap(
        &self,
        offset: u64,
        expected: u64,
        desired: u64,
    ) -> Result<u64, OpError> {
        let memory = self.permit(Access::REMOTE_ATOMIC)?;
        region::compare_and_swap(memory, offset, expected, desired)
    }

    /// Adds to the word at `offset`, wrapping; returns what was there.
    ///
    /// # Errors
    /// [`OpError`], as the completion of an operation has.
    pub fn fetch_add(&self, offset: u64, add: u64) -> Result<u64, OpError> {
        region::fetch_add(self.permit(Access::REMOTE_ATOMIC)?, offset, add)
    }

    fn permit(&self, needed: Access) -> Result<&Memory, OpError> {
        if self.0.access.contains(needed) {
            Ok(&self.0.memory)
        } else {
            Err(OpError::MissingRight { needed })
        }
    }

    /// # Safety
    /// `to` must be writable for `len` bytes and, unless it is another shared mapping, not
    /// accessed by anyone else.
    unsafe fn copy_out(&self, offset: u64, to: *mut u8, len: u64) -> Result<(), OpError> {
        let memory = self.permit(Access::REMOTE_READ)?;
        let (at, len) = region::bounds(memory, offset, len)?;
        // SAFETY: `bounds` checked the range; `to` is the caller's promise. Mappings do not
        // overlap each other or memory of Rust's.
        unsafe { memory.read(at, to, len) }
    }

    /// # Safety
    /// `from` must be readable for `len` bytes and, unless it is another shared mapping, not
    /// written by anyone else.
    unsafe fn copy_in(&self, offset: u64, from: *const u8, len: u64) -> Result<(), OpError> {
        let memory = self.permit(Access::REMOTE_WRITE)?;
        let (at, len) = region::bounds(memory, offset, len)?;
        // SAFETY: as in `copy_out`; the mapping is writable because `map` had REMOTE_WRITE.
        unsafe { memory.write(at, from, len) }
    }
}

impl Mapped for RemoteRegion {
    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), OpError> {
        // SAFETY: `into` is an exclusive slice of that length.
        unsafe { self.copy_out(offset, into.as_mut_ptr(), into.len() as u64) }
    }

    fn fold<A: Clone>(
        &self,
        offset: u64,
        len: u64,
        start: A,
        each: impl Fn(&mut A, &[u8]),
    ) -> Result<A, OpError> {
        let memory = self.permit(Access::REMOTE_READ)?;
        let (at, len) = region::bounds(memory, offset, len)?;
        // SAFETY: `bounds` checked the range.
        unsafe { memory.fold(at, len, start, each) }
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), OpError> {
        // SAFETY: `bytes` is a slice of that length, and nobody writes it meanwhile.
        unsafe { self.copy_in(offset, bytes.as_ptr(), bytes.len() as u64) }
    }

    fn fetch_ahead(&self, offset: u64) {
        if let Some(address) = self.0.memory.mapping().range(offset, 1) {
            memory::fetch_ahead(address);
        }
    }
}

/// What may be a region on `shm`.
pub trait AsShm: Clone + Send + Sync + 'static {
    /// The region, if it is one.
    ///
    /// # Errors
    /// [`OpError::WrongKey`] when it is another provider's.
    fn as_shm(&self) -> Result<&RemoteRegion, OpError>;
}

impl AsShm for RemoteRegion {
    fn as_shm(&self) -> Result<&RemoteRegion, OpError> {
        Ok(self)
    }
}

/// A queue pair on `shm`, for what may be regions there.
///
/// Posting queues, flushing executes in order in the caller's thread, polling drains; so nothing
/// is in flight between calls.
#[derive(Debug)]
pub struct QueuePair<R = RemoteRegion> {
    peer: NodeId,
    partition: Partition,
    depth: usize,
    posted: VecDeque<(u64, Operation<R>)>,
    completed: VecDeque<Completion>,
}

impl<R: AsShm> QueuePair<R> {
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

    fn execute(&self, operation: &Operation<R>) -> Result<u64, OpError> {
        match operation {
            Operation::Read {
                remote,
                offset,
                into,
            } => {
                let remote = self.leads_to(remote)?;
                let right = Access::REMOTE_READ;
                transfer((remote, *offset), right, into, |from, to, len| {
                    // SAFETY: `to` is a mapping of ours of that length: `Region` gives no reference
                    // to it.
                    unsafe { remote.copy_out(from, to, len) }
                })
            }
            Operation::Write {
                remote,
                offset,
                from,
            } => {
                let remote = self.leads_to(remote)?;
                let right = Access::REMOTE_WRITE;
                transfer((remote, *offset), right, from, |to, from, len| {
                    // SAFETY: as for a read.
                    unsafe { remote.copy_in(to, from, len) }
                })
            }
            Operation::CompareAndSwap {
                remote,
                offset,
                expected,
                desired,
            } => self
                .leads_to(remote)?
                .compare_and_swap(*offset, *expected, *desired),
            Operation::FetchAdd {
                remote,
                offset,
                add,
            } => self.leads_to(remote)?.fetch_add(*offset, *add),
        }
    }

    fn leads_to<'a>(&self, remote: &'a R) -> Result<&'a RemoteRegion, OpError> {
        let remote = remote.as_shm()?;
        let key = &remote.0.key;
        let ours = key.node == self.peer && key.partition == self.partition;
        ours.then_some(remote).ok_or(OpError::WrongKey)
    }
}

/// Has `copy` move the bytes of each segment to or from what the remote region has at `offset` and
/// on, all of which are inside; returns how many.
fn transfer(
    (remote, offset): (&RemoteRegion, u64),
    needed: Access,
    segments: &Segments,
    copy: impl Fn(u64, *mut u8, u64) -> Result<(), OpError>,
) -> Result<u64, OpError> {
    if segments.as_slice().len() != 1 {
        // Before the first is copied; a single one is checked as it is.
        segments.check()?;
        let memory = remote.permit(needed)?;
        region::bounds(memory, offset, segments.len())?;
        memory.status().check()?;
    }
    let mut at = offset;
    for segment in segments.as_slice() {
        let memory = segment.region.memory();
        let local = region::address(memory, segment.offset, segment.len)?;
        copy(at, local, segment.len)?;
        // What was sent is not what was there, if the local side has ended meanwhile.
        memory.status().check()?;
        at += segment.len;
    }
    Ok(at - offset)
}

impl<R: AsShm> Endpoint for QueuePair<R> {
    type Remote = R;

    fn peer(&self) -> NodeId {
        self.peer
    }

    fn partition(&self) -> Partition {
        self.partition
    }

    fn post(&mut self, id: u64, operation: Operation<R>) -> Result<(), PostError> {
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

    fn read_batch(&mut self, reads: &mut [Read<'_, R>]) -> Result<(), OpError> {
        self.flush();
        // Cold reads wait for memory together rather than one after the other. A fetched line
        // that its writer changes meanwhile is fetched again, so the order of loads stays.
        for read in reads.iter().skip(1) {
            if let Ok(region) = read.remote.as_shm() {
                region.fetch_ahead(read.offset);
            }
        }
        for read in reads {
            let (to, len) = (read.into.as_mut_ptr(), read.into.len() as u64);
            // SAFETY: `into` is an exclusive slice of that length.
            unsafe { self.leads_to(read.remote)?.copy_out(read.offset, to, len)? };
        }
        Ok(())
    }
}
