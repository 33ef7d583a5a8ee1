//! Regions of peers on `shm`: mapped.

use std::fs::File;
use std::io;
use std::sync::{Arc, OnceLock};

use crate::core::mapped::Mapped;
use crate::core::peer_link::PeerLink;
use crate::core::region;
use crate::error::OpError;
use crate::key::{Access, RemoteKey};
use crate::mem::DropGuard;
use crate::mem::copy;
use crate::mem::memory::Memory;
use crate::mem::status::Status;

/// A peer's region, mapped with the rights that the agent granted. Clones share the mapping.
#[derive(Clone, Debug)]
pub struct RemoteRegion(Arc<Grant>);

#[derive(Debug)]
struct Grant {
    memory: Arc<Memory>,
    key: RemoteKey,
    access: Access,
    /// The link to the peer, if one may be emulated.
    link: OnceLock<Arc<PeerLink>>,
    /// Dropped with the last handle.
    _guard: Option<DropGuard>,
}

impl RemoteRegion {
    /// Maps the agent's `memory`, for writing if `access` has a right that writes. `guard` is
    /// dropped with the last handle.
    ///
    /// # Errors
    /// The system's, also when the descriptor does not permit this access.
    pub fn map(
        memory: &File,
        len: usize,
        key: RemoteKey,
        access: Access,
        status: Arc<Status>,
        guard: Option<DropGuard>,
    ) -> io::Result<Self> {
        let writable = access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
        Ok(RemoteRegion(Arc::new(Grant {
            memory: Arc::new(Memory::map(memory, len, writable, status)?),
            key,
            access,
            link: OnceLock::new(),
            _guard: guard,
        })))
    }

    /// Puts the region behind the link to its peer: while that has a model, the region counts as not
    /// mapped, because reads of mapped memory take no way. Called once, before the region is used.
    pub fn emulate(&self, link: Arc<PeerLink>) {
        let _ = self.0.link.set(link);
    }

    /// Bytes of the region.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> u64 {
        self.0.memory.mapping().len() as u64
    }

    /// The key with which the region was opened.
    pub fn key(&self) -> RemoteKey {
        self.0.key
    }

    /// The rights granted.
    pub fn access(&self) -> Access {
        self.0.access
    }

    /// The memory, which the control thread migrates and whose status it ends.
    pub fn memory(&self) -> &Arc<Memory> {
        &self.0.memory
    }

    /// Replaces the word at `offset` by `desired` if it is `expected`; returns the previous value.
    ///
    /// # Errors
    /// [`OpError`], as the completion of an operation has.
    pub fn compare_and_swap(
        &self,
        offset: u64,
        expected: u64,
        desired: u64,
    ) -> Result<u64, OpError> {
        let memory = self.permit(Access::REMOTE_ATOMIC)?;
        region::compare_and_swap(memory, offset, expected, desired)
    }

    /// Adds to the word at `offset`, wrapping around; returns the previous value.
    ///
    /// # Errors
    /// [`OpError`], as the completion of an operation has.
    pub fn fetch_add(&self, offset: u64, add: u64) -> Result<u64, OpError> {
        region::fetch_add(self.permit(Access::REMOTE_ATOMIC)?, offset, add)
    }

    pub(super) fn permit(&self, needed: Access) -> Result<&Memory, OpError> {
        if self.0.access.contains(needed) {
            Ok(&self.0.memory)
        } else {
            Err(OpError::MissingRight { needed })
        }
    }

    /// # Safety
    /// `to` must be writable for `len` bytes and, unless it is another shared mapping, not
    /// accessed by anyone else.
    pub(super) unsafe fn copy_out(
        &self,
        offset: u64,
        to: *mut u8,
        len: u64,
    ) -> Result<(), OpError> {
        let memory = self.permit(Access::REMOTE_READ)?;
        let (at, len) = region::bounds(memory, offset, len)?;
        // SAFETY: `bounds` checked the range; `to` is the caller's promise. Mappings do not
        // overlap each other or memory of Rust's.
        unsafe { memory.read(at, to, len) }
    }

    /// # Safety
    /// `from` must be readable for `len` bytes and, unless it is another shared mapping, not
    /// written by anyone else.
    pub(super) unsafe fn copy_in(
        &self,
        offset: u64,
        from: *const u8,
        len: u64,
    ) -> Result<(), OpError> {
        let memory = self.permit(Access::REMOTE_WRITE)?;
        let (at, len) = region::bounds(memory, offset, len)?;
        // SAFETY: as in `copy_out`; the mapping is writable because `map` had REMOTE_WRITE.
        unsafe { memory.write(at, from, len) }
    }
}

impl Mapped for RemoteRegion {
    fn is_mapped(&self) -> bool {
        self.0.link.get().is_none_or(|link| !link.is_on())
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), OpError> {
        // SAFETY: `into` is an exclusive slice of that length.
        unsafe { self.copy_out(offset, into.as_mut_ptr(), into.len() as u64) }
    }

    fn fold<A: Clone>(
        &self,
        offset: u64,
        len: u64,
        start: A,
        each: impl Fn(&mut A, &[u8]),
    ) -> Result<A, OpError> {
        let memory = self.permit(Access::REMOTE_READ)?;
        let (at, len) = region::bounds(memory, offset, len)?;
        // SAFETY: `bounds` checked the range.
        unsafe { memory.fold(at, len, start, each) }
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), OpError> {
        // SAFETY: `bytes` is a shared slice of that length, which no thread writes meanwhile.
        unsafe { self.copy_in(offset, bytes.as_ptr(), bytes.len() as u64) }
    }

    fn fetch_ahead(&self, offset: u64) {
        if let Some(address) = self.0.memory.mapping().range(offset, 1) {
            copy::fetch_ahead(address);
        }
    }
}
