//! Buffers for packets, shared by all channels of a protection domain.
//!
//! A peer sends only as many packets as it was given credits for, and each channel brings as many
//! buffers as it gives. So a correct peer always finds one, and one that sends more has its channel
//! ended.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::connection::access_flags;
use super::objects::{Local, Protection, Registration, SharedReceive};
use crate::core::channel::MAX_PAYLOAD;
use crate::core::link::LinkHeader;
use crate::core::region::Region;
use crate::error::OpError;
use crate::key::Access;

/// Packets that a peer may send before it hears that there is room again.
pub(super) const CREDITS: usize = 8;

/// Buffers of a channel: for packets, for the messages that return credits, and for the one that is
/// the last. Each of those that return credits returns at least half of them, so there are no more than
/// two on their way.
const SHARE: usize = CREDITS + 2 + 1;

/// Bytes that a channel has registered: its buffers, and as many as a peer may send before it hears
/// of them.
pub const CHANNEL_BYTES: u64 = ((SHARE + CREDITS) * BUFFER) as u64;

/// Room for as many channels as anybody has, which takes 16 bytes or so for each buffer.
const MOST_BUFFERS: usize = 16 * 1024;

/// Bytes of a buffer: the longest packet, in whole cache lines.
pub(super) const BUFFER: usize = (LinkHeader::LEN + MAX_PAYLOAD).next_multiple_of(64);

/// Buffers of a domain.
#[derive(Debug)]
pub(super) struct Pool {
    /// Before the memory of the buffers.
    queue: Arc<SharedReceive>,
    protection: Arc<Protection>,
    /// Shares that it can have.
    most: usize,
    shares: Mutex<Shares>,
}

#[derive(Debug, Default)]
struct Shares {
    blocks: Vec<Buffers>,
    /// How many of them are in use.
    used: usize,
}

impl Pool {
    /// A pool without buffers, with room for up to `buffers`.
    pub(super) fn new(protection: &Arc<Protection>, buffers: usize) -> io::Result<Self> {
        let most = buffers.min(MOST_BUFFERS) / SHARE;
        let buffers = u32::try_from(most * SHARE).map_err(|_| io::ErrorKind::InvalidInput)?;
        Ok(Pool {
            queue: Arc::new(SharedReceive::new(protection, buffers)?),
            protection: Arc::clone(protection),
            most,
            shares: Mutex::default(),
        })
    }

    pub(super) fn queue(&self) -> &Arc<SharedReceive> {
        &self.queue
    }

    /// Adds the buffers of a channel, or takes over those of one that has ended.
    pub(super) fn join(&self) -> io::Result<()> {
        let mut shares = self.shares();
        if shares.used == shares.blocks.len() {
            self.grow(&mut shares)?;
        }
        shares.used += 1;
        Ok(())
    }

    /// The buffers of a channel that has ended wait for the next.
    pub(super) fn leave(&self) {
        self.shares().used -= 1;
    }

    fn grow(&self, shares: &mut Shares) -> io::Result<()> {
        if shares.blocks.len() == self.most {
            return Err(io::Error::from_raw_os_error(libc::ENOBUFS));
        }
        let block = Buffers::new(&self.protection, SHARE)?;
        let first = shares.blocks.len() * SHARE;
        for number in 0..SHARE {
            let buffer = block.local(number, BUFFER);
            // SAFETY: the pool keeps the memory registered, and drops the queue before it. Nobody
            // posts a number twice before a completion has named it.
            unsafe { self.queue.post((first + number) as u64, &buffer)? };
        }
        shares.blocks.push(block);
        Ok(())
    }

    /// Copies the packet in a buffer out, `len` bytes with its header; `into` gets the rest.
    /// Nothing if that is not what it says that it is.
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

    /// Gives a buffer that a completion has named back to the device.
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

/// Registered memory for so many packets.
#[derive(Debug)]
pub(super) struct Buffers {
    /// Before the memory.
    registration: Registration,
    region: Region,
}

impl Buffers {
    pub(super) fn new(protection: &Arc<Protection>, count: usize) -> io::Result<Self> {
        let region = Region::local(count * BUFFER)?;
        let mapping = region.memory().mapping();
        let flags = access_flags(Access::empty()).0;
        // SAFETY: the region is dropped after the registration, and gives no references.
        let registration =
            unsafe { Registration::new(protection, mapping.start(), mapping.len(), flags)? };
        Ok(Buffers {
            registration,
            region,
        })
    }

    /// The first bytes of the buffer with this number.
    pub(super) fn local(&self, number: usize, len: usize) -> Local {
        let start = self.region.memory().mapping().start();
        Local {
            address: (start + number * BUFFER) as u64,
            len: len.min(BUFFER) as u32,
            lkey: self.registration.lkey(),
        }
    }

    /// Copies bytes into a buffer.
    pub(super) fn write(&self, number: usize, at: usize, bytes: &[u8]) -> Result<(), OpError> {
        self.region.write((number * BUFFER + at) as u64, bytes)
    }

    /// The payload of the packet in a buffer that we have written.
    pub(super) fn payload(&self, number: usize) -> Option<Vec<u8>> {
        let mut header = [0; LinkHeader::LEN];
        self.read(number, 0, &mut header).ok()?;
        let mut payload = vec![0; LinkHeader::from_bytes(&header).len as usize];
        self.read(number, LinkHeader::LEN, &mut payload).ok()?;
        Some(payload)
    }

    fn read(&self, number: usize, at: usize, into: &mut [u8]) -> Result<(), OpError> {
        self.region.read((number * BUFFER + at) as u64, into)
    }
}
