//! Which chunks of a moving region have arrived: a byte for each, written by the agent alone.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::Ordering;

use crate::mem::mapping::Mapping;
use crate::mem::memfd::{create_memory, read_only};

/// Bytes that move at a time. Smaller ones make a first touch shorter, larger ones the whole
/// move: 64 KiB copy in about the time that asking for them takes.
pub const CHUNK: u64 = 64 * 1024;

const RESIDENT: u8 = 1;

/// Chunks of a region of `len` bytes.
pub(super) fn count(len: u64) -> u64 {
    len.div_ceil(CHUNK)
}

/// The table as every process sees it.
#[derive(Debug)]
pub(super) struct MigrationTable {
    bytes: Mapping,
    /// Device and number of its file, which no other has while this is mapped.
    file: (u64, u64),
}

impl MigrationTable {
    /// Maps the table of a region of `len` bytes.
    pub(super) fn map(memory: &File, len: usize) -> io::Result<Self> {
        let chunks = count(len as u64) as usize;
        Self::of(memory, chunks, false)
    }

    fn of(memory: &File, len: usize, writable: bool) -> io::Result<Self> {
        Ok(MigrationTable {
            bytes: Mapping::of_file(memory, len, writable)?,
            file: identity(memory)?,
        })
    }

    /// Whether this is the table in that memory.
    pub(super) fn is_in(&self, memory: &File) -> io::Result<bool> {
        Ok(self.file == identity(memory)?)
    }

    /// Whether a chunk has arrived: then it is in the new memory, and only there.
    pub(super) fn is_resident(&self, chunk: u64) -> bool {
        // Acquire: pairs with the Release in `set_resident`, so that the chunk's bytes are there. What
        // lies outside of the table never arrives.
        self.byte(chunk, Ordering::Acquire)
    }

    /// Whether all chunks have arrived.
    pub(super) fn is_all_resident(&self) -> bool {
        (0..self.bytes.len() as u64).all(|chunk| self.is_resident(chunk))
    }

    fn byte(&self, index: u64, order: Ordering) -> bool {
        let byte = self.bytes.byte(index);
        byte.is_some_and(|byte| byte.load(order) == RESIDENT)
    }
}

fn identity(memory: &File) -> io::Result<(u64, u64)> {
    let metadata = memory.metadata()?;
    Ok((metadata.dev(), metadata.ino()))
}

/// The table as the agent sees it. Behind the chunks it has one byte more: whether any may be
/// copied yet. So memory and table together are all that there is to know about a move.
#[derive(Debug)]
pub(super) struct MigrationTableWriter {
    table: MigrationTable,
    memory: File,
    chunks: u64,
}

impl MigrationTableWriter {
    /// The table of a new move.
    pub(super) fn create(len: u64) -> io::Result<Self> {
        Self::resume(create_memory(count(len) + 1)?, len)
    }

    /// The table of a move that another agent has begun.
    pub(super) fn resume(memory: File, len: u64) -> io::Result<Self> {
        let chunks = count(len);
        let table = MigrationTable::of(&memory, chunks as usize + 1, true)?;
        Ok(MigrationTableWriter {
            table,
            memory,
            chunks,
        })
    }

    /// What others map: they cannot write there.
    pub(super) fn hand_out(&self) -> io::Result<File> {
        read_only(&self.memory)
    }

    /// For another agent to go on with.
    pub(super) fn memory(&self) -> &File {
        &self.memory
    }

    pub(super) fn chunks(&self) -> u64 {
        self.chunks
    }

    pub(super) fn is_resident(&self, chunk: u64) -> bool {
        chunk < self.chunks && self.table.is_resident(chunk)
    }

    pub(super) fn set_resident(&self, chunk: u64) {
        // Release: pairs with the Acquire in `is_resident`.
        self.set(chunk, Ordering::Release);
    }

    pub(super) fn is_released(&self) -> bool {
        // Acquire: pairs with the Release in `release`.
        self.table.byte(self.chunks, Ordering::Acquire)
    }

    pub(super) fn release(&self) {
        // Release: pairs with the Acquire in `is_released`.
        self.set(self.chunks, Ordering::Release);
    }

    fn set(&self, index: u64, order: Ordering) {
        if let Some(byte) = self.table.bytes.byte(index) {
            byte.store(RESIDENT, order);
        }
    }
}
