//! One-sided operations on `shm`: copies and atomics on the peer's mapped region.

use std::collections::VecDeque;
use std::time::Duration;

use super::region::RemoteRegion;
use crate::core::endpoint::{AsRegion, Completion, Endpoint, Operation, Pending, PostError, Read};
use crate::core::mapped::Mapped;
use crate::core::region;
use crate::core::segments::Segments;
use crate::error::OpError;
use crate::key::{Access, Partition};
use crate::topology::NodeId;

/// A queue pair on `shm` for handles `R` that may lead to regions of `shm`.
///
/// `flush` executes posted operations in order in the caller's thread, so no operation is in flight
/// between calls.
#[derive(Debug)]
pub struct QueuePair<R = RemoteRegion> {
    peer: NodeId,
    partition: Partition,
    depth: usize,
    posted: VecDeque<(Operation<R>, u64)>,
    completed: VecDeque<Completion>,
}

impl<R: AsRegion<RemoteRegion>> QueuePair<R> {
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

    /// Operations that the queue holds at most, and now.
    pub(crate) fn room(&self) -> (usize, usize) {
        (self.depth, self.posted.len() + self.completed.len())
    }

    /// Takes back the posted operations, instead of a flush.
    pub(crate) fn take_posted(&mut self) -> impl Iterator<Item = (Operation<R>, u64)> {
        self.posted.drain(..)
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
        let remote = remote.as_region()?;
        let key = remote.key();
        let ours = key.node == self.peer && key.partition == self.partition;
        ours.then_some(remote).ok_or(OpError::WrongKey)
    }
}

/// Calls `copy` for each segment with its offset in the remote region, from `offset` on, its local
/// address and its length. Returns the sum of the lengths. All ranges are checked.
fn transfer(
    (remote, offset): (&RemoteRegion, u64),
    needed: Access,
    segments: &Segments,
    copy: impl Fn(u64, *mut u8, u64) -> Result<(), OpError>,
) -> Result<u64, OpError> {
    if segments.as_slice().len() != 1 {
        // All are checked before the first copy; `copy` checks a single segment itself.
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
        // If the local side has ended meanwhile, the copied bytes are not those of the segment.
        memory.status().check()?;
        at += segment.len;
    }
    Ok(at - offset)
}

impl<R: AsRegion<RemoteRegion>> Endpoint for QueuePair<R> {
    type Remote = R;

    fn peer(&self) -> NodeId {
        self.peer
    }

    fn partition(&self) -> Partition {
        self.partition
    }

    fn post(&mut self, id: u64, operation: Operation<R>) -> Result<(), PostError> {
        let (depth, used) = self.room();
        if used >= depth {
            return Err(PostError::QueueFull { depth });
        }
        self.posted.push_back((operation, id));
        Ok(())
    }

    fn flush(&mut self) {
        // In place: moving an operation takes as long as a short copy.
        while let Some((operation, id)) = self.posted.front() {
            let (id, result) = (*id, self.execute(operation));
            drop(self.posted.pop_front());
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
        // Flushed operations have completed.
        !self.completed.is_empty()
    }

    fn pending(&mut self, _sleeps: bool) -> Pending {
        match self.completed.len() {
            0 => Pending::Nothing,
            _ => Pending::Look,
        }
    }

    fn read_batch(&mut self, reads: &mut [Read<'_, R>]) -> Result<(), OpError> {
        self.flush();
        // Prefetching lets cold reads wait for memory together. A prefetched line that its writer
        // changes meanwhile is fetched again, so the order of loads stays.
        for read in reads.iter().skip(1) {
            if let Ok(region) = read.remote.as_region() {
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
