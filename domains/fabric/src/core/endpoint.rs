//! One-sided operations on regions of peers.

use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use crate::core::region::Region;
use crate::core::segments::{Segment, Segments};
use crate::key::Partition;
use crate::model::Nanos;
use crate::topology::NodeId;

pub use crate::error::OpError;

/// Why an operation was not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PostError {
    /// As many operations as the queue holds are posted or wait to be polled.
    #[error("the queue pair holds {depth} operations already: poll completions first")]
    QueueFull {
        /// Operations that the queue holds.
        depth: usize,
    },
}

/// A one-sided operation on a remote region `R`.
///
/// Offsets and lengths are in bytes. They are checked when the operation executes; a failure is the
/// error of its completion.
#[derive(Clone, Debug)]
pub enum Operation<R> {
    /// Copies bytes from the remote region to local regions.
    Read {
        /// The region to read.
        remote: R,
        /// First byte in `remote`.
        offset: u64,
        /// Destination of the bytes; its length is the number of bytes read.
        into: Segments,
    },
    /// Copies bytes from local regions to the remote one.
    Write {
        /// The region to write.
        remote: R,
        /// First byte in `remote`.
        offset: u64,
        /// Source of the bytes; its length is the number of bytes written.
        from: Segments,
    },
    /// Replaces the word at `offset` by `desired` if it is `expected`.
    CompareAndSwap {
        /// The region.
        remote: R,
        /// Offset of the word, a multiple of 8.
        offset: u64,
        /// The value to compare with.
        expected: u64,
        /// The value to store.
        desired: u64,
    },
    /// Adds to the word at `offset`, wrapping around.
    FetchAdd {
        /// The region.
        remote: R,
        /// Offset of the word, a multiple of 8.
        offset: u64,
        /// The summand.
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

    /// The same operation on the region that `convert` returns for the remote region.
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

/// The result of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The number that the operation was posted with.
    pub id: u64,
    /// Bytes copied by a read or write; the word's value before an atomic.
    pub result: Result<u64, OpError>,
}

/// An empty slot for [`Endpoint::poll`].
impl Default for Completion {
    fn default() -> Self {
        Completion {
            id: 0,
            result: Ok(0),
        }
    }
}

/// The event that brings the next completion of a queue pair.
///
/// Times are in nanoseconds of the monotonic clock.
#[derive(Clone, Debug)]
pub enum Pending {
    /// None: no operation is in flight, and no completion is there.
    Nothing,
    /// A completion is there, or [`Endpoint::poll`] finds the next one without a system call, or
    /// nothing but a look tells.
    Look,
    /// No completion can be polled before this time.
    Time(Nanos),
    /// No completion can be polled before a descriptor is readable, or this time.
    Event {
        /// The descriptor.
        fd: Arc<OwnedFd>,
        /// The time, at which the caller polls without an event.
        until: Nanos,
    },
}

/// Interval of looks for a completion whose descriptor cannot be watched.
pub(crate) const LOOK_INTERVAL: Nanos = 1_000_000;

/// One element of [`Endpoint::read_batch`].
#[derive(Debug)]
pub struct Read<'a, R> {
    /// The region to read.
    pub remote: &'a R,
    /// First byte in `remote`.
    pub offset: u64,
    /// Filled whole, or with unspecified bytes when the read fails.
    pub into: &'a mut [u8],
}

/// A queue pair that leads to one peer node in one partition.
///
/// Operations execute in posted order, after [`Endpoint::flush`]. Each ends in exactly one
/// completion. A transfer of up to 64 bytes reads and writes each 8-byte word whole, if its ends on
/// both sides, and those of each segment, are multiples of 8. Other transfers may become visible in
/// pieces and in any order.
///
/// **Exception: failover between hosts.** When acknowledgements are lost until an RDMA device gives
/// up, queue pairs of `failover` execute the failed operation and all later ones again, over TCP. So
/// reads and writes may execute twice, and an earlier write may be repeated after a later one. Once
/// the last one has completed, memory is as if each had executed once, in posted order. Bytes that
/// the peer wrote meanwhile in the same place may be overwritten, so a peer must answer a write in
/// other bytes, by an atomic or by a packet. Atomics execute once.
pub trait Endpoint {
    /// A region of the peer, opened by the agent.
    type Remote: Clone + Send + Sync + 'static;

    /// The peer's node.
    fn peer(&self) -> NodeId;

    /// The partition that the queue pair belongs to.
    fn partition(&self) -> Partition;

    /// Queues an operation under a number that the caller chooses.
    ///
    /// # Errors
    /// [`PostError::QueueFull`] when no operation fits; the queue is unchanged.
    fn post(&mut self, id: u64, operation: Operation<Self::Remote>) -> Result<(), PostError>;

    /// Hands posted operations to the provider: the doorbell.
    fn flush(&mut self);

    /// Moves completions to `into`, oldest first, and returns their number.
    fn poll(&mut self, into: &mut [Completion]) -> usize;

    /// Waits until there is a completion to poll, no operation is in flight, or `timeout` has
    /// passed. Returns whether there is a completion to poll.
    fn wait(&mut self, timeout: Duration) -> bool;

    /// The event that brings the next completion, for a
    /// [`CompletionQueue`](crate::CompletionQueue). It holds until the next call of another method.
    ///
    /// With `sleeps`, the caller is about to sleep: then [`Pending::Look`] stands only for a completion
    /// that is there, and a device is asked for an event.
    fn pending(&mut self, sleeps: bool) -> Pending;

    /// Executes reads in order into the caller's memory, and waits for the last.
    ///
    /// Posted operations are flushed before. The memory of a later read is loaded after that of an
    /// earlier one.
    ///
    /// # Errors
    /// That of the first read that failed; later reads did not happen.
    fn read_batch(&mut self, reads: &mut [Read<'_, Self::Remote>]) -> Result<(), OpError>;
}
