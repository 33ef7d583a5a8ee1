//! Requests that were sent and wait for replies.

use super::region::RemoteRegion;
use super::wire::{CHUNK, Malformed, Reply, Request, Transfer};
use super::words::{read_whole, write_whole};
use crate::core::endpoint::Operation;
use crate::error::OpError;
use crate::mem::Status;

/// A request that waits for replies, or for requests before it.
#[derive(Debug)]
pub(super) enum InFlight {
    Operation(Sent),
    Open {
        handle: u32,
    },
    /// A question about the device of the other side.
    Question,
    /// An operation that was not sent.
    Failed {
        id: u64,
        error: OpError,
    },
}

/// An operation that was sent, in parts of at most [`CHUNK`] bytes.
#[derive(Debug)]
pub(super) struct Sent {
    pub(super) id: u64,
    pub(super) operation: Operation<RemoteRegion>,
    pub(super) handle: u32,
    pub(super) parts: u64,
    pub(super) answered: u64,
    pub(super) result: Result<u64, OpError>,
}

impl Sent {
    /// Bytes of the operation.
    fn len(&self) -> u64 {
        target(&self.operation).2
    }

    /// Appends a part to the outgoing bytes.
    pub(super) fn append_part(&self, part: u64, outgoing: &mut Vec<u8>) -> Result<(), OpError> {
        outgoing.extend(self.request(part).to_bytes());
        let Operation::Write { from, .. } = &self.operation else {
            return Ok(());
        };
        let start = outgoing.len();
        let (first, len) = (part * CHUNK as u64, part_len(self.len(), part));
        let mut pieces = from.part(first, len as u64);
        let copied = pieces.try_for_each(|(region, offset, len)| {
            let end = outgoing.len();
            outgoing.resize(end + len as usize, 0);
            read_whole(&mut outgoing[end..], |bytes| region.read(offset, bytes))
        });
        copied.inspect_err(|_| outgoing.truncate(start - Request::LEN))
    }

    fn request(&self, part: u64) -> Request {
        let handle = self.handle;
        let transfer = |offset| Transfer {
            handle,
            offset: offset + part * CHUNK as u64,
            len: part_len(self.len(), part) as u32,
            is_linked: part > 0,
        };
        match self.operation {
            Operation::Read { offset, .. } => Request::Read(transfer(offset)),
            Operation::Write { offset, .. } => Request::Write(transfer(offset)),
            Operation::CompareAndSwap {
                offset,
                expected,
                desired,
                ..
            } => Request::CompareAndSwap {
                handle,
                offset,
                expected,
                desired,
            },
            Operation::FetchAdd { offset, add, .. } => Request::FetchAdd {
                handle,
                offset,
                add,
            },
        }
    }

    /// Takes the reply to the next part.
    pub(super) fn answer(&mut self, reply: Reply, data: &[u8]) -> Result<(), Malformed> {
        let part = self.answered;
        self.answered += 1;
        match reply {
            Reply::Done { value, .. } => self.done(part, value, data),
            Reply::Failed(failure) if data.is_empty() => {
                let (_, offset, len) = target(&self.operation);
                self.result = self.result.and(Err(failure.error(offset, len)));
                Ok(())
            }
            Reply::Skipped if self.result.is_err() => Ok(()),
            _ => Err(Malformed),
        }
    }

    fn done(&mut self, part: u64, value: u64, data: &[u8]) -> Result<(), Malformed> {
        match &self.operation {
            Operation::Read { into, .. } if data.len() == part_len(self.len(), part) => {
                let mut rest = data;
                let mut pieces = into.part(part * CHUNK as u64, data.len() as u64);
                let copied = pieces.try_for_each(|(region, offset, len)| {
                    let (piece, behind) = rest.split_at(len as usize);
                    rest = behind;
                    write_whole(piece, |bytes| region.write(offset, bytes))
                });
                self.result = self.result.and(copied.map(|()| self.len()));
            }
            Operation::Write { .. } if data.is_empty() => {
                self.result = self.result.and(Ok(self.len()));
            }
            Operation::CompareAndSwap { .. } | Operation::FetchAdd { .. } if data.is_empty() => {
                self.result = self.result.and(Ok(value));
            }
            _ => return Err(Malformed),
        }
        Ok(())
    }

    /// The result: no success if the right has ended meanwhile.
    pub(super) fn outcome(&self, status: &Status) -> Result<u64, OpError> {
        status.check()?;
        target(&self.operation).0.0.status.check()?;
        self.result
    }
}

/// The first reply in `bytes` and its data, if both are complete.
pub(super) fn split_reply(bytes: &[u8]) -> Result<Option<(Reply, &[u8])>, Malformed> {
    let Some((head, rest)) = bytes.split_first_chunk() else {
        return Ok(None);
    };
    let reply = Reply::from_bytes(head)?;
    Ok(rest.get(..reply.data_len()).map(|data| (reply, data)))
}

pub(super) fn answer(reply: Reply, data: &[u8]) -> Result<Result<Vec<u8>, OpError>, Malformed> {
    match reply {
        Reply::Done { value: 0, .. } => Ok(Ok(data.to_vec())),
        Reply::Failed(failure) => Ok(Err(failure.error(0, 0))),
        _ => Err(Malformed),
    }
}

pub(super) fn region_len(reply: Reply) -> Result<Result<u64, OpError>, Malformed> {
    match reply {
        Reply::Done { value, len: 0 } => Ok(Ok(value)),
        Reply::Failed(failure) => Ok(Err(failure.error(0, 0))),
        _ => Err(Malformed),
    }
}

/// The region, the first byte and the bytes of an operation.
pub(super) fn target(operation: &Operation<RemoteRegion>) -> (&RemoteRegion, u64, u64) {
    match operation {
        Operation::Read {
            remote,
            offset,
            into: local,
        }
        | Operation::Write {
            remote,
            offset,
            from: local,
        } => (remote, *offset, local.len()),
        Operation::CompareAndSwap { remote, offset, .. }
        | Operation::FetchAdd { remote, offset, .. } => (remote, *offset, 8),
    }
}

/// Number of requests of an operation.
pub(super) fn parts(operation: &Operation<RemoteRegion>) -> u64 {
    target(operation).2.div_ceil(CHUNK as u64).max(1)
}

/// Bytes of a part of `len` bytes.
pub(super) fn part_len(len: u64, part: u64) -> usize {
    let left = len.saturating_sub(part * CHUNK as u64);
    left.min(CHUNK as u64) as usize
}

pub(super) fn within(offset: u64, len: u64, limit: u64) -> Result<(), OpError> {
    if offset.checked_add(len).is_some_and(|end| end <= limit) {
        Ok(())
    } else {
        Err(OpError::OutOfBounds { offset, len, limit })
    }
}
