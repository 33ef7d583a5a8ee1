//! Receive buffers, shared by all channels of a protection domain.
//!
//! Each channel adds as many buffers as it gives credits, so a correct peer always finds a buffer.
//! The channel of a peer that exceeds its credits ends.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::buffer::Buffer;
use super::objects::{Local, Protection, SharedReceive};
use crate::core::channel::MAX_PAYLOAD;
use crate::core::hold::Hold;
use crate::core::link::LinkHeader;
use crate::error::OpError;
use crate::key::Access;
use crate::os::thread::monotonic;

/// Packets that a peer may send before credits are returned.
pub(super) const CREDITS: usize = 8;

/// Buffers of a channel: for packets, for messages that return credits, and for the last message.
/// A message that returns credits returns at least half of them, so at most two are in flight.
const SHARE: usize = CREDITS + 2 + 1;

/// Bytes registered for a channel: its receive buffers, and a send buffer for each credit.
pub const CHANNEL_BYTES: u64 = ((SHARE + CREDITS) * BUFFER) as u64;

/// The most buffers of a pool, more than any use needs: room for a buffer takes about 16 bytes.
const MOST_BUFFERS: usize = 16 * 1024;

/// Bytes of a buffer: the longest packet, in whole cache lines.
pub(super) const BUFFER: usize = (LinkHeader::LEN + MAX_PAYLOAD).next_multiple_of(64);

/// The receive buffers of a protection domain.
#[derive(Debug)]
pub(super) struct Pool {
    /// Dropped before the memory of the buffers.
    queue: Arc<SharedReceive>,
    protection: Arc<Protection>,
    /// The most shares.
    most: usize,
    shares: Mutex<Shares>,
}

#[derive(Debug, Default)]
struct Shares {
    blocks: Vec<Buffers>,
    /// Number of blocks in use.
    used: usize,
}

impl Pool {
    /// An empty pool with room for up to `buffers` buffers.
    pub(super) fn new(protection: &Arc<Protection>, buffers: usize) -> io::Result<Self> {
        let most = buffers.min(MOST_BUFFERS) / SHARE;
        let buffers = u32::try_from(most * SHARE).map_err(|_| io::ErrorKind::InvalidInput)?;
        Ok(Pool {
            queue: Arc::new(SharedReceive::create(protection, buffers)?),
            protection: Arc::clone(protection),
            most,
            shares: Mutex::default(),
        })
    }

    pub(super) fn queue(&self) -> &Arc<SharedReceive> {
        &self.queue
    }

    /// Adds the buffers of a channel, or reuses those of a channel that has ended.
    pub(super) fn join(self: Arc<Self>) -> io::Result<Share> {
        let mut shares = self.shares();
        if shares.used == shares.blocks.len() {
            self.grow(&mut shares)?;
        }
        shares.used += 1;
        drop(shares);
        Ok(Share(self))
    }

    fn grow(&self, shares: &mut Shares) -> io::Result<()> {
        if shares.blocks.len() == self.most {
            return Err(io::Error::from_raw_os_error(libc::ENOBUFS));
        }
        let block = Buffers::new(&self.protection, SHARE)?;
        let first = shares.blocks.len() * SHARE;
        for number in 0..SHARE {
            let buffer = block.local(number, BUFFER);
            // SAFETY: the pool keeps the memory registered, and drops the queue before it. A number
            // is posted again only after a completion has named it.
            unsafe { self.queue.post((first + number) as u64, &buffer)? };
        }
        shares.blocks.push(block);
        Ok(())
    }

    /// Copies a packet of `len` bytes out of a buffer: returns the header and replaces `into` by
    /// the payload. `None` if the header has another length.
    pub(super) fn read(&self, number: u64, len: usize, into: &mut Vec<u8>) -> Option<LinkHeader> {
        let payload = len.checked_sub(LinkHeader::LEN)?;
        let number = usize::try_from(number).ok()?;
        let shares = self.shares();
        let block = shares.blocks.get(number / SHARE)?;
        let mut header = [0; LinkHeader::LEN];
        block.read(number % SHARE, 0, &mut header).ok()?;
        let header = LinkHeader::from_bytes(&header);
        into.resize(payload, 0);
        block.read(number % SHARE, LinkHeader::LEN, into).ok()?;
        (header.len as usize == payload).then_some(header)
    }

    /// Posts a buffer that a completion has named again.
    pub(super) fn recycle(&self, number: u64) -> io::Result<()> {
        let index = usize::try_from(number).map_err(|_| io::ErrorKind::InvalidInput)?;
        let shares = self.shares();
        let block = shares.blocks.get(index / SHARE);
        let block = block.ok_or(io::ErrorKind::InvalidInput)?;
        let buffer = block.local(index % SHARE, BUFFER);
        // SAFETY: as in `grow`.
        unsafe { self.queue.post(number, &buffer) }
    }

    fn shares(&self) -> MutexGuard<'_, Shares> {
        self.shares.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The share of a channel in the pool. Its buffers are left to the next channel when dropped.
#[derive(Debug)]
pub(super) struct Share(pub(super) Arc<Pool>);

impl Drop for Share {
    fn drop(&mut self) {
        self.0.shares().used -= 1;
    }
}

/// Registered memory of several packet buffers.
#[derive(Debug)]
pub(super) struct Buffers(Buffer);

impl Buffers {
    pub(super) fn new(protection: &Arc<Protection>, count: usize) -> io::Result<Self> {
        let buffer = Buffer::new(protection, count * BUFFER, Access::empty())?;
        Ok(Buffers(buffer))
    }

    /// The first `len` bytes of a buffer.
    pub(super) fn local(&self, number: usize, len: usize) -> Local {
        self.0.local(number * BUFFER, len.min(BUFFER))
    }

    /// Copies bytes into a buffer.
    pub(super) fn write(&self, number: usize, at: usize, bytes: &[u8]) -> Result<(), OpError> {
        self.0.write(number * BUFFER + at, bytes)
    }

    /// The payload and the hold, from now on, of a packet that this process has written to a buffer.
    pub(super) fn packet(&self, number: usize) -> Option<(Vec<u8>, Hold)> {
        let mut header = [0; LinkHeader::LEN];
        self.read(number, 0, &mut header).ok()?;
        let header = LinkHeader::from_bytes(&header);
        let mut payload = vec![0; header.len as usize];
        self.read(number, LinkHeader::LEN, &mut payload).ok()?;
        Some((payload, header.hold.starting_at(monotonic())))
    }

    fn read(&self, number: usize, at: usize, into: &mut [u8]) -> Result<(), OpError> {
        self.0.read(number * BUFFER + at, into)
    }
}
