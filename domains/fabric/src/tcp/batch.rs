//! [`Endpoint::read_batch`](crate::Endpoint::read_batch) over a connection: requests are sent
//! together, each linked to the one before, and replies are copied straight into the caller's memory.

use std::time::Duration;

use super::in_flight::{part_len, split_reply};
use super::queue_pair::QueuePair;
use super::region::RemoteRegion;
use super::wire::{CHUNK, Malformed, Reply, Request, Transfer};
use crate::core::endpoint::{AsRegion, Read};
use crate::error::OpError;

/// Reads whose regions are opened at a time: fewer than a connection can have open.
const WINDOW: usize = 256;

/// Requests that are sent ahead of their replies: the peer's host has room for as many even while its
/// replies are not read.
const AHEAD: u64 = 512;

/// The longest sleep; the queue pair limits the whole wait.
const LONG: Duration = Duration::from_secs(60);

/// Executes reads in order, while nothing else is in flight.
pub(super) fn read<R: AsRegion<RemoteRegion>>(
    pair: &mut QueuePair<R>,
    reads: &mut [Read<'_, R>],
) -> Result<(), OpError> {
    for window in reads.chunks_mut(WINDOW) {
        let mut handles = [0; WINDOW];
        let reached = reach(pair, window, &mut handles);
        // Reads before the first that is refused are executed all the same.
        let possible = &mut window[..reached.0];
        read_window(pair, possible, &handles)?;
        for read in possible {
            read.remote.as_region()?.status().check()?;
        }
        reached.1?;
    }
    pair.end()
}

/// Opens regions; returns the number before the first error.
fn reach<R: AsRegion<RemoteRegion>>(
    pair: &mut QueuePair<R>,
    window: &[Read<'_, R>],
    handles: &mut [u32; WINDOW],
) -> (usize, Result<(), OpError>) {
    for (n, read) in window.iter().enumerate() {
        let len = read.into.len() as u64;
        let region = read.remote.as_region();
        match region.and_then(|region| pair.reach(region, read.offset, len)) {
            Ok(handle) => handles[n] = handle,
            Err(error) => return (n, Err(error)),
        }
    }
    (window.len(), Ok(()))
}

fn read_window<R: AsRegion<RemoteRegion>>(
    pair: &mut QueuePair<R>,
    reads: &mut [Read<'_, R>],
    handles: &[u32; WINDOW],
) -> Result<(), OpError> {
    let (mut asked, mut answered) = (Cursor::default(), Cursor::default());
    let mut result = Ok(());
    while answered.read < reads.len() {
        while asked.read < reads.len() && asked.count - answered.count < AHEAD {
            let request = asked.request(&reads[asked.read], handles[asked.read]);
            pair.stream.outgoing().extend(request.to_bytes());
            asked = asked.next(reads[asked.read].into.len());
        }
        pair.settle();
        pair.end()?;
        let before = answered.count;
        if let Err(Malformed) = take(pair, reads, asked.count, &mut answered, &mut result) {
            pair.fail(OpError::Corrupt);
        } else if answered.count == before {
            pair.await_bytes(LONG);
        }
    }
    result
}

/// Takes replies.
fn take<R: AsRegion<RemoteRegion>>(
    pair: &mut QueuePair<R>,
    reads: &mut [Read<'_, R>],
    asked: u64,
    answered: &mut Cursor,
    result: &mut Result<(), OpError>,
) -> Result<(), Malformed> {
    while answered.count < asked {
        let Some((reply, data)) = split_reply(pair.stream.incoming())? else {
            return Ok(());
        };
        let used = Reply::LEN + data.len();
        let read = &mut reads[answered.read];
        let len = read.into.len();
        match reply {
            Reply::Done { .. } if result.is_ok() => {
                let start = answered.part as usize * CHUNK;
                let part = part_len(len as u64, answered.part);
                let into = read.into.get_mut(start..start + part).ok_or(Malformed)?;
                if data.len() == part {
                    into.copy_from_slice(data)
                } else {
                    return Err(Malformed);
                }
            }
            Reply::Failed(failure) if result.is_ok() => {
                *result = Err(failure.error(read.offset, len as u64));
            }
            Reply::Skipped if result.is_err() => {}
            _ => return Err(Malformed),
        }
        pair.stream.consume(used);
        *answered = answered.next(len);
    }
    Ok(())
}

/// A part of the reads of a window.
#[derive(Clone, Copy, Default)]
struct Cursor {
    read: usize,
    part: u64,
    /// Number of parts before this one.
    count: u64,
}

impl Cursor {
    fn request<R>(self, read: &Read<'_, R>, handle: u32) -> Request {
        Request::Read(Transfer {
            handle,
            offset: read.offset.saturating_add(self.part * CHUNK as u64),
            len: part_len(read.into.len() as u64, self.part) as u32,
            is_linked: self.count > 0,
        })
    }

    /// The part after this one, of a read of `len` bytes.
    fn next(self, len: usize) -> Self {
        let is_last = (self.part + 1) * CHUNK as u64 >= len as u64;
        let (read, part) = if is_last {
            (self.read + 1, 0)
        } else {
            (self.read, self.part + 1)
        };
        let count = self.count + 1;
        Cursor { read, part, count }
    }
}
