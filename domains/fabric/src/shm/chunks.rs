//! Which chunks of a moving region have arrived: a byte for each, written by the agent alone.

use std::fs::File;
use std::io;
use std::sync::atomic::Ordering;

use super::control::{create_memory, read_only};
use super::memory::Mapping;

/// Bytes that move at a time. Smaller ones make a first touch shorter, larger ones the whole
/// move: 64 KiB copy in about the time that asking for them takes.
pub const CHUNK: u64 = 64 * 1024;

const ARRIVED: u8 = 1;

/// Chunks of a region of `len` bytes.
pub(super) fn count(len: u64) -> u64 {
    len.div_ceil(CHUNK)
}

/// The table as every process sees it.
#[derive(Debug)]
pub(super) struct Table(Mapping);

impl Table {
    /// Maps the table of a region of `len` bytes.
    pub(super) fn map(memory: &File, len: usize) -> io::Result<Self> {
        let chunks = count(len as u64) as usize;
        Ok(Table(Mapping::of_file(memory, chunks, false)?))
    }

    /// The table of a new move, and the descriptor to hand out.
    pub(super) fn create(len: u64) -> io::Result<(TableWriter, File)> {
        let memory = create_memory(count(len))?;
        let mapping = Mapping::of_file(&memory, count(len) as usize, true)?;
        Ok((TableWriter(Table(mapping)), read_only(&memory)?))
    }

    /// Whether a chunk has arrived: then it is in the new memory, and only there.
    pub(super) fn has_arrived(&self, chunk: u64) -> bool {
        // Acquire: pairs with the Release in `arrived`, so that the chunk's bytes are there. What
        // lies outside of the table never arrives.
        let arrived = self.0.byte(chunk);
        arrived.is_some_and(|byte| byte.load(Ordering::Acquire) == ARRIVED)
    }
}

/// The table as the agent sees it.
#[derive(Debug)]
pub(super) struct TableWriter(Table);

impl TableWriter {
    pub(super) fn has_arrived(&self, chunk: u64) -> bool {
        self.0.has_arrived(chunk)
    }

    pub(super) fn arrived(&self, chunk: u64) {
        if let Some(byte) = self.0.0.byte(chunk) {
            // Release: pairs with the Acquire in `has_arrived`.
            byte.store(ARRIVED, Ordering::Release);
        }
    }
}
