//! Queue pairs that delay operations.

use std::sync::Arc;
use std::time::Duration;

use super::delay_line::{DelayLine, WORDS};
use super::{PeerLink, spin};
use crate::core::endpoint::{Completion, Endpoint, Operation, Pending, PostError, Read};
use crate::error::OpError;
use crate::key::Partition;
use crate::os::thread::monotonic;
use crate::provider::{self, RemoteRegion};
use crate::shm;
use crate::topology::NodeId;

/// A queue pair of a provider, behind the link to its peer.
///
/// Operations that are under way when the queue pair is dropped may not happen. None happens later.
#[derive(Debug)]
pub struct QueuePair {
    link: Arc<PeerLink>,
    /// While `line` has the queue pair, one that keeps posted operations until they are flushed. So
    /// all posts end in the same call: a choice between two would copy the operation first.
    pair: provider::QueuePair,
    /// From the first operation with a model until nothing is under way without one.
    line: Option<Arc<DelayLine>>,
}

impl QueuePair {
    /// Puts a queue pair behind the link to its peer.
    pub fn new(pair: provider::QueuePair, link: Arc<PeerLink>) -> Self {
        QueuePair {
            link,
            pair,
            line: None,
        }
    }

    #[inline]
    fn has_model(&self) -> bool {
        self.link.is_on() | self.line.is_some()
    }

    /// Begins with delays when a model has come, and ends with them when it has gone. Returns the
    /// delay line for the next operation, and the number of posted ones.
    #[cold]
    fn look_at_link(&mut self) -> Option<(&DelayLine, usize)> {
        let (depth, posted) = self.pair.room();
        match &self.line {
            None if !self.link.delays() => return None,
            None => {
                let keeper = shm::QueuePair::new(self.peer(), self.partition(), depth);
                let keeper = provider::QueuePair::Shm(keeper);
                let pair = std::mem::replace(&mut self.pair, keeper);
                self.line = Some(DelayLine::new(Arc::clone(&self.link), pair));
                return self.line.as_deref().map(|line| (line, 0));
            }
            Some(line) if posted == 0 && !self.link.delays() => {
                if let Some(pair) = line.take() {
                    self.pair = pair;
                    self.line = None;
                }
            }
            Some(_) => {}
        }
        self.line.as_deref().map(|line| (line, posted))
    }

    #[cold]
    fn before_post(&mut self, operation: &Operation<RemoteRegion>) -> Result<(), PostError> {
        if !self.link.spins() {
            return self.find_room();
        }
        let start = monotonic();
        self.find_room()?;
        if is_open(operation.remote()) {
            spin(&self.link, bytes_of(operation), start);
        }
        // The link may have changed.
        self.find_room()
    }

    /// Makes the next post one of the present time.
    fn find_room(&mut self) -> Result<(), PostError> {
        if let Some((line, posted)) = self.look_at_link() {
            return line.before_post(posted);
        }
        match self.pair.room() {
            (depth, used) if used >= depth => Err(PostError::QueueFull { depth }),
            _ => Ok(()),
        }
    }

    #[cold]
    fn flush_delayed(&mut self) {
        if let (Some(line), provider::QueuePair::Shm(keeper)) = (&self.line, &mut self.pair) {
            line.flush(keeper.take_posted());
        }
    }

    #[cold]
    fn read_delayed(&mut self, reads: &mut [Read<'_, RemoteRegion>]) -> Result<(), OpError> {
        self.flush();
        if self.link.spins() && reads.iter().all(|read| is_open(read.remote)) {
            let start = monotonic();
            let bytes = reads.iter().map(|read| read.into.len() as u64).sum();
            spin(&self.link, bytes, start);
        }
        match self.look_at_link() {
            Some((line, _)) => line.read_batch(reads),
            None => self.pair.read_batch(reads),
        }
    }
}

/// Whether access to a region has not ended: a revoked operation is not charged.
fn is_open(remote: &RemoteRegion) -> bool {
    match remote {
        RemoteRegion::Shm(region) => region.memory().status().check().is_ok(),
        RemoteRegion::Tcp(region) => region.status().check().is_ok(),
    }
}

/// Bytes that an operation moves in either direction.
fn bytes_of(operation: &Operation<RemoteRegion>) -> u64 {
    match operation {
        Operation::Write { from, .. } => from.len(),
        Operation::Read { into, .. } => into.len(),
        Operation::CompareAndSwap { .. } | Operation::FetchAdd { .. } => WORDS[0],
    }
}

/// Waits for the timer if it is executing an operation: the caller may reuse its memory afterwards.
impl Drop for QueuePair {
    fn drop(&mut self) {
        if let Some(line) = &self.line {
            line.end();
        }
    }
}

impl Endpoint for QueuePair {
    type Remote = RemoteRegion;

    fn peer(&self) -> NodeId {
        self.pair.peer()
    }

    fn partition(&self) -> Partition {
        self.pair.partition()
    }

    // As that of the provider.
    #[inline(never)]
    fn post(&mut self, id: u64, operation: Operation<RemoteRegion>) -> Result<(), PostError> {
        if self.has_model() {
            self.before_post(&operation)?;
        }
        self.pair.post_inlined(id, operation)
    }

    #[inline]
    fn flush(&mut self) {
        match &self.line {
            None => self.pair.flush(),
            Some(_) => self.flush_delayed(),
        }
    }

    #[inline]
    fn poll(&mut self, into: &mut [Completion]) -> usize {
        match &self.line {
            None => self.pair.poll(into),
            Some(line) => line.poll(into),
        }
    }

    #[inline]
    fn wait(&mut self, timeout: Duration) -> bool {
        match &self.line {
            None => self.pair.wait(timeout),
            Some(line) => line.wait(timeout),
        }
    }

    #[inline]
    fn pending(&mut self, sleeps: bool) -> Pending {
        match &self.line {
            None => self.pair.pending(sleeps),
            Some(line) => line.pending(sleeps),
        }
    }

    #[inline]
    fn read_batch(&mut self, reads: &mut [Read<'_, RemoteRegion>]) -> Result<(), OpError> {
        if self.has_model() {
            return self.read_delayed(reads);
        }
        self.pair.read_batch(reads)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::emulation::timer::Due;

    pub(in crate::emulation) fn is_direct(pair: &QueuePair) -> bool {
        pair.line.is_none()
    }

    /// The time at which the timer acts for a delayed queue pair.
    pub(in crate::emulation) fn acts_at(pair: &QueuePair) -> crate::model::Nanos {
        pair.line.as_ref().unwrap().at()
    }
}
