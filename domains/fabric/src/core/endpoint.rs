//! One-sided operations: what a consumer of the fabric asks of a queue pair.

use std::ops::Range;
use std::time::Duration;

use crate::core::region::Region;
use crate::core::segments::{Segment, Segments};
use crate::key::Partition;
use crate::topology::NodeId;

pub use crate::error::OpError;

/// Why an operation was not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PostError {
    /// As many operations as the queue holds are posted or wait to be polled.
    #[error("the queue pair holds {depth} operations already: poll completions first")]
    QueueFull {
        /// What the queue holds.
        depth: usize,
    },
}

/// A one-sided operation on a remote region `R`.
///
/// Offsets and lengths are in bytes. They are checked when the operation executes; what fails
/// there is the completion's error.
#[derive(Clone, Debug)]
pub enum Operation<R> {
    /// Copies bytes from the remote region to local ones.
    Read {
        /// Where to read.
        remote: R,
        /// First byte in `remote`.
        offset: u64,
        /// Where the bytes go: as many as are read.
        into: Segments,
    },
    /// Copies bytes from local regions to the remote one.
    Write {
        /// Where to write.
        remote: R,
        /// First byte in `remote`.
        offset: u64,
        /// Where the bytes come from: as many as are written.
        from: Segments,
    },
    /// Replaces the word at `offset` by `desired` if it is `expected`.
    CompareAndSwap {
        /// Where.
        remote: R,
        /// The word, a multiple of 8.
        offset: u64,
        /// What must be there.
        expected: u64,
        /// What is put there.
        desired: u64,
    },
    /// Adds to the word at `offset`, wrapping around.
    FetchAdd {
        /// Where.
        remote: R,
        /// The word, a multiple of 8.
        offset: u64,
        /// What to add.
        add: u64,
    },
}

impl<R: Clone> Operation<R> {
    /// Reads from `offset` of `remote` into the bytes `to` of `local`.
    pub fn read(remote: &R, offset: u64, local: &Region, to: Range<u64>) -> Self {
        Self::read_into(remote, offset, Segment::new(local, to))
    }

    /// Reads from `offset` of `remote` into each segment, as many bytes as they have.
    pub fn read_into(remote: &R, offset: u64, into: impl Into<Segments>) -> Self {
        Operation::Read {
            remote: remote.clone(),
            offset,
            into: into.into(),
        }
    }

    /// Writes the bytes `from` of `local` to `offset` of `remote`.
    pub fn write(remote: &R, offset: u64, local: &Region, from: Range<u64>) -> Self {
        Self::write_from(remote, offset, Segment::new(local, from))
    }

    /// Writes the bytes of each segment to `offset` of `remote`.
    pub fn write_from(remote: &R, offset: u64, from: impl Into<Segments>) -> Self {
        Operation::Write {
            remote: remote.clone(),
            offset,
            from: from.into(),
        }
    }

    /// Replaces the word at `offset` of `remote` by `desired` if it is `expected`.
    pub fn compare_and_swap(remote: &R, offset: u64, expected: u64, desired: u64) -> Self {
        Operation::CompareAndSwap {
            remote: remote.clone(),
            offset,
            expected,
            desired,
        }
    }

    /// Adds to the word at `offset` of `remote`.
    pub fn fetch_add(remote: &R, offset: u64, add: u64) -> Self {
        Operation::FetchAdd {
            remote: remote.clone(),
            offset,
            add,
        }
    }
}

impl<R> Operation<R> {
    /// The remote region.
    pub fn remote(&self) -> &R {
        match self {
            Operation::Read { remote, .. }
            | Operation::Write { remote, .. }
            | Operation::CompareAndSwap { remote, .. }
            | Operation::FetchAdd { remote, .. } => remote,
        }
    }

    /// The same on what `convert` makes of the remote region.
    pub(crate) fn on<S>(
        self,
        convert: impl FnOnce(R) -> Result<S, OpError>,
    ) -> Result<Operation<S>, OpError> {
        Ok(match self {
            Operation::Read {
                remote,
                offset,
                into,
            } => Operation::Read {
                remote: convert(remote)?,
                offset,
                into,
            },
            Operation::Write {
                remote,
                offset,
                from,
            } => Operation::Write {
                remote: convert(remote)?,
                offset,
                from,
            },
            Operation::CompareAndSwap {
                remote,
                offset,
                expected,
                desired,
            } => Operation::CompareAndSwap {
                remote: convert(remote)?,
                offset,
                expected,
                desired,
            },
            Operation::FetchAdd {
                remote,
                offset,
                add,
            } => Operation::FetchAdd {
                remote: convert(remote)?,
                offset,
                add,
            },
        })
    }
}

/// A handle that may lead to a region of the provider whose handles are `T`.
///
/// Queue pairs take any such handle, so one type can stand for the regions of several providers.
/// The choice costs one comparison.
pub trait AsRegion<T>: Clone + Send + Sync + 'static {
    /// The provider's own handle.
    ///
    /// # Errors
    /// [`OpError::WrongKey`] when the region is another provider's.
    fn as_region(&self) -> Result<&T, OpError>;
}

impl<T: Clone + Send + Sync + 'static> AsRegion<T> for T {
    #[inline]
    fn as_region(&self) -> Result<&T, OpError> {
        Ok(self)
    }
}

/// The end of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The number that the operation was posted with.
    pub id: u64,
    /// Bytes copied by a read or write; the word's value before an atomic.
    pub result: Result<u64, OpError>,
}

/// A place for a completion to be polled into.
impl Default for Completion {
    fn default() -> Self {
        Completion {
            id: 0,
            result: Ok(0),
        }
    }
}

/// One element of [`Endpoint::read_batch`].
#[derive(Debug)]
pub struct Read<'a, R> {
    /// Where to read.
    pub remote: &'a R,
    /// First byte in `remote`.
    pub offset: u64,
    /// Filled whole, or with unspecified bytes when the read fails.
    pub into: &'a mut [u8],
}

/// A queue pair that leads to one peer node in one partition.
///
/// Operations execute in the order in which they were posted, after [`Endpoint::flush`]; each
/// ends in exactly one completion. In transfers of up to 64 bytes whose ends here and there are
/// multiples of 8, those of each segment too, each 8-byte word is read and written whole; beyond
/// that a transfer may be seen in pieces, in any order.
///
/// **Exception: failover between hosts.** When acknowledgements are lost until an RDMA device gives
/// up, the queue pairs of `verbs` execute the failed operation and all later ones again, over TCP.
/// So reads and writes may execute twice, and an earlier write is repeated after a later one has
/// executed. At the completion of the last one, memory is as if each had executed once, in posted
/// order, unless the peer has written to the same bytes meanwhile: those may be overwritten. A peer
/// must therefore answer a write in other bytes, by an atomic, or by a packet. Atomics execute once.
pub trait Endpoint {
    /// A region of the peer, opened by the agent.
    type Remote: Clone + Send + Sync + 'static;

    /// The peer's node.
    fn peer(&self) -> NodeId;

    /// The partition that the queue pair belongs to.
    fn partition(&self) -> Partition;

    /// Queues an operation under a number of the caller's choice.
    ///
    /// # Errors
    /// [`PostError::QueueFull`] when nothing more fits; the queue is as before.
    fn post(&mut self, id: u64, operation: Operation<Self::Remote>) -> Result<(), PostError>;

    /// Hands what was posted to the provider: the doorbell.
    fn flush(&mut self);

    /// Moves completions to `into`, oldest first, and returns how many.
    fn poll(&mut self, into: &mut [Completion]) -> usize;

    /// Waits until [`Endpoint::poll`] has something, all is complete, or `timeout` has passed;
    /// returns whether there is something to poll.
    fn wait(&mut self, timeout: Duration) -> bool;

    /// Reads in order, in one go, straight into the caller's memory, and waits for the end.
    ///
    /// What was posted is flushed before. The memory of a later read is loaded after that of an
    /// earlier one.
    ///
    /// # Errors
    /// The first read that failed; those after it did not happen.
    fn read_batch(&mut self, reads: &mut [Read<'_, Self::Remote>]) -> Result<(), OpError>;
}
