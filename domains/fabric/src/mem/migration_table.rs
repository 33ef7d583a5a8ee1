//! The table of resident chunks of a migrating region: a byte for each chunk, written by the agent
//! alone.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::Ordering;

use crate::mem::mapping::Mapping;
use crate::mem::memfd::{create_memory, read_only};

/// Bytes of a chunk, the unit of copying. A smaller chunk makes a first access shorter, a larger
/// one the whole migration: copying 64 KiB takes about as long as requesting them.
pub const CHUNK: u64 = 64 * 1024;

const RESIDENT: u8 = 1;

/// Number of chunks of a region of `len` bytes.
pub(super) fn count(len: u64) -> u64 {
    len.div_ceil(CHUNK)
}

/// The table as every process maps it.
#[derive(Debug)]
pub(super) struct MigrationTable {
    bytes: Mapping,
    /// Device and inode number of the file, unique while the table is mapped.
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

    /// Whether `memory` holds this table.
    pub(super) fn is_in(&self, memory: &File) -> io::Result<bool> {
        Ok(self.file == identity(memory)?)
    }

    /// Whether a chunk is resident: in the fresh memory, and only there. A chunk outside of the
    /// table is never resident.
    pub(super) fn is_resident(&self, chunk: u64) -> bool {
        // Acquire: pairs with the Release in `set`, so that the chunk's bytes are visible.
        let byte = self.bytes.byte(chunk);
        byte.is_some_and(|byte| byte.load(Ordering::Acquire) == RESIDENT)
    }

    /// Whether all chunks are resident.
    pub(super) fn is_all_resident(&self) -> bool {
        (0..self.bytes.len() as u64).all(|chunk| self.is_resident(chunk))
    }
}

fn identity(memory: &File) -> io::Result<(u64, u64)> {
    let metadata = memory.metadata()?;
    Ok((metadata.dev(), metadata.ino()))
}

/// The table as the agent maps it. One more byte follows the chunks: whether they may be copied. So
/// old memory, fresh memory and table are the whole state of a migration.
#[derive(Debug)]
pub(super) struct MigrationTableWriter {
    table: MigrationTable,
    memory: File,
    chunks: u64,
}

impl MigrationTableWriter {
    /// Creates the table of a new migration of `len` bytes.
    pub(super) fn create(len: u64) -> io::Result<Self> {
        Self::resume(create_memory(count(len) + 1)?, len)
    }

    /// Maps the table of a migration that another agent has begun.
    pub(super) fn resume(memory: File, len: u64) -> io::Result<Self> {
        let chunks = count(len);
        let table = MigrationTable::of(&memory, chunks as usize + 1, true)?;
        Ok(MigrationTableWriter {
            table,
            memory,
            chunks,
        })
    }

    /// A read-only descriptor for other processes.
    pub(super) fn hand_out(&self) -> io::Result<File> {
        read_only(&self.memory)
    }

    /// The memory of the table, with which another agent resumes the migration.
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
        self.set(chunk);
    }

    pub(super) fn is_released(&self) -> bool {
        self.table.is_resident(self.chunks)
    }

    pub(super) fn release(&self) {
        self.set(self.chunks);
    }

    fn set(&self, index: u64) {
        if let Some(byte) = self.table.bytes.byte(index) {
            // Release: pairs with the Acquire in `MigrationTable::is_resident`.
            byte.store(RESIDENT, Ordering::Release);
        }
    }
}
