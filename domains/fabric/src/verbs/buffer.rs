//! Registered memory of this process, into which data is copied.

use std::io;
use std::sync::Arc;

use super::connection::access_flags;
use super::objects::{Local, Protection, Registration};
use crate::core::region::Region;
use crate::error::OpError;
use crate::key::Access;

/// Registered memory of this process.
#[derive(Debug)]
pub(super) struct Buffer {
    /// Dropped before the memory.
    registration: Registration,
    region: Region,
}

impl Buffer {
    /// A buffer of `len` bytes to which peers have `access`.
    pub(super) fn new(
        protection: &Arc<Protection>,
        len: usize,
        access: Access,
    ) -> io::Result<Self> {
        let region = Region::local(len)?;
        let mapping = region.memory().mapping();
        let flags = access_flags(access).0;
        // SAFETY: the region is dropped after the registration, and gives no references.
        let registration =
            unsafe { Registration::register(protection, mapping.start(), mapping.len(), flags)? };
        Ok(Buffer {
            registration,
            region,
        })
    }

    /// The key of the memory in requests of peers.
    pub(super) fn rkey(&self) -> u32 {
        self.registration.rkey()
    }

    /// The segment of `len` bytes at `at`.
    pub(super) fn local(&self, at: usize, len: usize) -> Local {
        Local {
            address: (self.region.memory().mapping().start() + at) as u64,
            len: len as u32,
            lkey: self.registration.lkey(),
        }
    }

    pub(super) fn read(&self, at: usize, into: &mut [u8]) -> Result<(), OpError> {
        self.region.read(at as u64, into)
    }

    pub(super) fn write(&self, at: usize, bytes: &[u8]) -> Result<(), OpError> {
        self.region.write(at as u64, bytes)
    }
}
