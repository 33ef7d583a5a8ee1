//! Queue pairs that delay operations.

use std::sync::Arc;
use std::time::Duration;

use super::PeerLink;
use super::delay_line::DelayLine;
use crate::core::endpoint::{Completion, Endpoint, Operation, PostError, Read};
use crate::error::OpError;
use crate::key::Partition;
use crate::provider::{self, RemoteRegion};
use crate::shm;
use crate::topology::NodeId;

/// A queue pair of a provider, behind the link to its peer.
///
/// Operations that are under way when the queue pair is dropped may not happen.
#[derive(Debug)]
pub struct QueuePair {
    link: Arc<PeerLink>,
    /// An empty one while `line` has the queue pair.
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

    /// The delay line for the next operation, if that takes one.
    #[inline]
    fn line(&mut self) -> Option<&DelayLine> {
        if self.link.is_on() | self.line.is_some() {
            self.look_at_link()
        } else {
            None
        }
    }

    /// Begins with delays when a model has come, and ends with them when it has gone.
    #[cold]
    fn look_at_link(&mut self) -> Option<&DelayLine> {
        match &self.line {
            None => {
                let empty = shm::QueuePair::new(self.peer(), self.partition(), 0);
                let empty = provider::QueuePair::Shm(empty);
                let pair = std::mem::replace(&mut self.pair, empty);
                self.line = Some(DelayLine::new(Arc::clone(&self.link), pair));
            }
            Some(line) if !self.link.is_on() => {
                if let Some(pair) = line.take() {
                    self.pair = pair;
                    self.line = None;
                }
            }
            Some(_) => {}
        }
        self.line.as_deref()
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

    #[inline]
    fn post(&mut self, id: u64, operation: Operation<RemoteRegion>) -> Result<(), PostError> {
        match self.line() {
            None => self.pair.post(id, operation),
            Some(line) => line.post(id, operation),
        }
    }

    #[inline]
    fn flush(&mut self) {
        match &self.line {
            None => self.pair.flush(),
            Some(line) => line.flush(),
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
    fn read_batch(&mut self, reads: &mut [Read<'_, RemoteRegion>]) -> Result<(), OpError> {
        match self.line() {
            None => self.pair.read_batch(reads),
            Some(line) => line.read_batch(reads),
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::emulation) fn is_direct(pair: &QueuePair) -> bool {
        pair.line.is_none()
    }
}
