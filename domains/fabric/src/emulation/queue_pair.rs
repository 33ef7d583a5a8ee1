//! Queue pairs that delay operations.

use std::sync::Arc;
use std::time::Duration;

use super::PeerLink;
use super::delay_line::DelayLine;
use crate::core::endpoint::{Completion, Endpoint, Operation, PostError, Read};
use crate::error::OpError;
use crate::key::Partition;
use crate::provider::{self, RemoteRegion};
use crate::topology::NodeId;

/// A queue pair of a provider, behind the link to its peer.
///
/// Operations that are under way when the queue pair is dropped may not happen.
#[derive(Debug)]
pub struct QueuePair {
    link: Arc<PeerLink>,
    /// Decorated from the first operation with a model until nothing is under way without one.
    pair: provider::QueuePair<Arc<DelayLine>>,
    is_delayed: bool,
}

impl QueuePair {
    /// Puts a queue pair behind the link to its peer.
    pub fn new(pair: provider::QueuePair, link: Arc<PeerLink>) -> Self {
        QueuePair {
            link,
            pair: pair.plain(),
            is_delayed: false,
        }
    }

    #[inline]
    fn look_at_link(&mut self) {
        if self.link.is_on() | self.is_delayed {
            self.change_path();
        }
    }

    /// Begins with delays when a model has come, and ends with them when it has gone.
    #[cold]
    fn change_path(&mut self) {
        match &self.pair {
            provider::QueuePair::Decorated(line) if !self.link.is_on() => {
                if let Some(pair) = line.take() {
                    self.pair = pair.plain();
                    self.is_delayed = false;
                }
            }
            provider::QueuePair::Decorated(_) => {}
            pair => {
                let line = DelayLine::new(Arc::clone(&self.link), pair.peer(), pair.partition());
                let delayed = provider::QueuePair::Decorated(Arc::clone(&line));
                if let Ok(pair) = std::mem::replace(&mut self.pair, delayed).undecorated() {
                    line.begin(pair);
                    self.is_delayed = true;
                }
            }
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

    #[inline(never)]
    fn post(&mut self, id: u64, operation: Operation<RemoteRegion>) -> Result<(), PostError> {
        self.look_at_link();
        self.pair.post(id, operation)
    }

    #[inline]
    fn flush(&mut self) {
        self.pair.flush();
    }

    #[inline]
    fn poll(&mut self, into: &mut [Completion]) -> usize {
        self.pair.poll(into)
    }

    #[inline]
    fn wait(&mut self, timeout: Duration) -> bool {
        self.pair.wait(timeout)
    }

    #[inline]
    fn read_batch(&mut self, reads: &mut [Read<'_, RemoteRegion>]) -> Result<(), OpError> {
        self.look_at_link();
        self.pair.read_batch(reads)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::emulation) fn is_direct(pair: &QueuePair) -> bool {
        !matches!(pair.pair, provider::QueuePair::Decorated(_))
    }
}
