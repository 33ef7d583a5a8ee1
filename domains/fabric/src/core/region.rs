//! Registered memory: the owner's view.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use crate::error::OpError;
use crate::key::RemoteKey;
use crate::mem::DropGuard;
use crate::mem::copy;
use crate::mem::memory::Memory;
use crate::mem::populate::populate;
use crate::mem::status::Status;

/// Memory that operations may use: exported under a [`RemoteKey`], or local to the process.
///
/// Peers may write an exported region at any time, so bytes are copied in and out and words are
/// atomic; copy out, then validate the copy. Clones are handles to the same memory, which is
/// freed with the last of them (for peers: when the agent drops the region).
#[derive(Clone, Debug)]
pub struct Region {
    memory: Arc<Memory>,
    key: Option<RemoteKey>,
    /// Dropped with the last handle.
    _guard: Option<DropGuard>,
}

impl Region {
    /// Zeroed memory without a remote key: the local side of operations.
    ///
    /// # Errors
    /// The system's, when it has no memory or `len` is 0.
    pub fn local(len: usize) -> io::Result<Self> {
        Ok(Self::unexported(Memory::private(len)?))
    }

    /// The caller's buffer as the local side of operations, or for a device to export. The buffer
    /// consists of words, which gives atomics their alignment.
    ///
    /// # Errors
    /// `InvalidInput` for an empty buffer.
    pub fn adopt(buffer: Box<[u64]>) -> io::Result<Self> {
        if buffer.is_empty() {
            Err(io::ErrorKind::InvalidInput.into())
        } else {
            Ok(Self::unexported(Memory::adopted(buffer)))
        }
    }

    fn unexported(memory: Memory) -> Self {
        Region {
            memory: Arc::new(memory),
            key: None,
            _guard: None,
        }
    }

    /// The owner's view of an exported region: all `len` bytes of `memory`, which the agent
    /// created and sealed. `guard` is dropped with the last handle.
    ///
    /// # Errors
    /// The system's.
    pub fn exported(
        memory: &File,
        len: usize,
        key: RemoteKey,
        status: Arc<Status>,
        guard: Option<DropGuard>,
    ) -> io::Result<Self> {
        Ok(Region {
            memory: Arc::new(Memory::map(memory, len, true, status)?),
            key: Some(key),
            _guard: guard,
        })
    }

    /// The key to publish; `None` for local memory.
    pub fn remote_key(&self) -> Option<RemoteKey> {
        self.key
    }

    /// Bytes of the region; never 0.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> u64 {
        self.memory.mapping().len() as u64
    }

    /// Copies bytes at `offset` out of the region.
    ///
    /// # Errors
    /// [`OpError::OutOfBounds`]; [`OpError::Revoked`] or [`OpError::PeerDead`] when the region
    /// has ended.
    pub fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), OpError> {
        let (at, len) = bounds(&self.memory, offset, into.len() as u64)?;
        // SAFETY: `bounds` checked the mapped side; `into` is ours alone, and a mapping cannot
        // overlap a Rust slice.
        unsafe { self.memory.read(at, into.as_mut_ptr(), len) }
    }

    /// Frees the whole pages of a range of local memory: their bytes are 0 afterwards. Exported
    /// memory and adopted buffers keep their pages.
    ///
    /// # Errors
    /// [`OpError::OutOfBounds`].
    pub fn drop_pages(&self, offset: u64, len: usize) -> Result<(), OpError> {
        let (at, len) = bounds(&self.memory, offset, len as u64)?;
        self.memory.mapping().drop_private(at..at + len);
        Ok(())
    }

    /// Allocates the pages of a range before their first access, which then takes a fraction of
    /// the time. Does nothing outside of the region, or where the system has no memory.
    pub fn populate(&self, bytes: Range<u64>) {
        let len = bytes.end.saturating_sub(bytes.start);
        if let Ok((at, len)) = bounds(&self.memory, bytes.start, len) {
            populate(self.memory.mapping(), at..at + len, true);
        }
    }

    /// Appends `len` bytes at `offset` to `onto`.
    ///
    /// # Errors
    /// As [`Region::read`]; `onto` is then unchanged.
    pub fn read_onto(&self, offset: u64, len: usize, onto: &mut Vec<u8>) -> Result<(), OpError> {
        let (at, len) = bounds(&self.memory, offset, len as u64)?;
        onto.reserve(len);
        let room = onto.spare_capacity_mut();
        // SAFETY: as in `read`; there is room for `len` bytes, which `reserve` made.
        unsafe { self.memory.read(at, room.as_mut_ptr().cast(), len)? };
        // SAFETY: `len` bytes behind the others were written, within the capacity.
        unsafe { onto.set_len(onto.len() + len) };
        Ok(())
    }

    /// Copies bytes into the region at `offset`.
    ///
    /// # Errors
    /// As [`Region::read`].
    pub fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), OpError> {
        let (at, len) = bounds(&self.memory, offset, bytes.len() as u64)?;
        // SAFETY: as in `read`; the mapping is writable because regions always are.
        unsafe { self.memory.write(at, bytes.as_ptr(), len) }
    }

    /// Copies in bytes that another process will read and this one will not: on some processors,
    /// many bytes go past the caches.
    ///
    /// # Errors
    /// As [`Region::write`].
    pub fn write_to_peer(&self, offset: u64, bytes: &[u8]) -> Result<(), OpError> {
        let (at, len) = bounds(&self.memory, offset, bytes.len() as u64)?;
        // SAFETY: as in `write`.
        unsafe { self.memory.write_to_peer(at, bytes.as_ptr(), len) }
    }

    /// Loads the word at `offset`. Bytes written before the matching [`Region::store`] are visible
    /// afterwards.
    ///
    /// # Errors
    /// [`OpError::Misaligned`], and as [`Region::read`].
    pub fn load(&self, offset: u64) -> Result<u64, OpError> {
        // Acquire: pairs with the Release in `store` and in the atomics, here or at a peer.
        with_word(&self.memory, offset, |word| word.load(Ordering::Acquire))
    }

    /// Stores the word at `offset`. Bytes written before are visible after a load of this value.
    ///
    /// # Errors
    /// As [`Region::load`].
    pub fn store(&self, offset: u64, value: u64) -> Result<(), OpError> {
        // Release: pairs with the Acquire in `load` and the fence after a peer's read.
        with_word(&self.memory, offset, |word| {
            word.store(value, Ordering::Release);
        })
    }

    /// Replaces the word at `offset` by `desired` if it is `expected`; returns the previous value.
    ///
    /// # Errors
    /// As [`Region::load`].
    pub fn compare_and_swap(
        &self,
        offset: u64,
        expected: u64,
        desired: u64,
    ) -> Result<u64, OpError> {
        compare_and_swap(&self.memory, offset, expected, desired)
    }

    /// Adds to the word at `offset`, wrapping around; returns the previous value.
    ///
    /// # Errors
    /// As [`Region::load`].
    pub fn fetch_add(&self, offset: u64, add: u64) -> Result<u64, OpError> {
        fetch_add(&self.memory, offset, add)
    }

    /// Prefetches the cache line at `offset`; does nothing outside of the region.
    pub fn fetch_ahead(&self, offset: u64) {
        if let Some(address) = self.memory.mapping().range(offset, 1) {
            copy::fetch_ahead(address);
        }
    }

    /// Orders later writes after earlier ones: between unlinking an object and reusing its memory.
    pub fn release_fence(&self) {
        // Pairs with the Acquire fence between the reads of `Endpoint::read_batch`.
        fence(Ordering::Release);
    }

    /// The memory, which the control thread migrates and whose status it ends.
    pub fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }
}

/// Offset and length of a range, if the whole range is inside the memory.
pub(crate) fn bounds(memory: &Memory, offset: u64, len: u64) -> Result<(usize, usize), OpError> {
    let limit = memory.mapping().len();
    let (at, size) = (offset as usize, len as usize);
    let is_inside = |end: u64| end <= limit as u64;
    if offset.checked_add(len).is_some_and(is_inside) {
        Ok((at, size))
    } else {
        Err(OpError::OutOfBounds {
            offset,
            len,
            limit: limit as u64,
        })
    }
}

/// Address of a range, if the whole range is inside the memory.
pub(crate) fn address(memory: &Memory, offset: u64, len: u64) -> Result<*mut u8, OpError> {
    let (at, _) = bounds(memory, offset, len)?;
    Ok((memory.mapping().start() + at) as *mut u8)
}

/// Applies `what` to the word at `offset`. The result is an error if the memory ends meanwhile.
fn with_word<T>(
    memory: &Memory,
    offset: u64,
    what: impl FnOnce(&AtomicU64) -> T,
) -> Result<T, OpError> {
    if !offset.is_multiple_of(8) {
        return Err(OpError::Misaligned { offset });
    }
    bounds(memory, offset, 8)?;
    memory.status().check()?;
    let word = memory.mapping().word(offset).ok_or(OpError::PeerDead)?;
    let result = what(word);
    memory.status().check()?;
    Ok(result)
}

pub(crate) fn compare_and_swap(
    memory: &Memory,
    offset: u64,
    expected: u64,
    desired: u64,
) -> Result<u64, OpError> {
    // AcqRel: an atomic orders like a store for a later load of the word, and like a load for us.
    let order = (Ordering::AcqRel, Ordering::Acquire);
    with_word(memory, offset, |word| {
        word.compare_exchange(expected, desired, order.0, order.1)
            .unwrap_or_else(|found| found)
    })
}

pub(crate) fn fetch_add(memory: &Memory, offset: u64, add: u64) -> Result<u64, OpError> {
    // AcqRel: as in `compare_and_swap`.
    with_word(memory, offset, |word| word.fetch_add(add, Ordering::AcqRel))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_pages_of_local_memory_are_dropped() {
        let region = Region::local(5 * 4096).unwrap();
        region.write(0, &[7; 5 * 4096]).unwrap();
        region.drop_pages(4000, 3 * 4096).unwrap();
        let mut bytes = [0; 5 * 4096];
        region.read(0, &mut bytes).unwrap();
        let zeros = bytes.iter().enumerate().filter(|(_, byte)| **byte == 0);
        let zeros: Vec<usize> = zeros.map(|(at, _)| at).collect();
        assert_eq!(zeros, (4096..3 * 4096).collect::<Vec<_>>());
        assert!(region.drop_pages(4096, 5 * 4096).is_err());
        // A Rust allocation, which must stay whole until it is freed.
        let adopted = Region::adopt(vec![7; 4096].into()).unwrap();
        adopted.drop_pages(0, 8 * 4096).unwrap();
        assert_eq!(adopted.load(4096), Ok(7));
    }

    #[test]
    fn accesses_outside_of_the_region_are_refused() {
        let region = Region::local(4096).unwrap();
        let limit = 4096;
        region.write(4090, b"abcdef").unwrap();
        let mut back = [0; 6];
        region.read(4090, &mut back).unwrap();
        assert_eq!(&back, b"abcdef");
        for offset in [4091, 4096, 1 << 40, u64::MAX] {
            let outside = Err(OpError::OutOfBounds {
                offset,
                len: 6,
                limit,
            });
            assert_eq!(region.write(offset, b"abcdef"), outside);
            assert_eq!(region.read(offset, &mut back), outside);
            region.fetch_ahead(offset);
            let mut onto = vec![7];
            assert_eq!(region.read_onto(offset, 6, &mut onto), outside);
            assert_eq!(onto, [7]);
        }
        assert_eq!(
            region.load(4096),
            Err(OpError::OutOfBounds {
                offset: 4096,
                len: 8,
                limit
            })
        );
        assert_eq!(region.store(12, 1), Err(OpError::Misaligned { offset: 12 }));
        assert_eq!(region.fetch_add(8, 3), Ok(0));
        assert_eq!(region.compare_and_swap(8, 3, 9), Ok(3));
        assert_eq!(region.compare_and_swap(8, 3, 10), Ok(9));
        assert_eq!(region.load(8), Ok(9));
    }

    #[test]
    fn an_adopted_buffer_keeps_its_contents() {
        let region = Region::adopt(vec![1, 2, 3].into()).unwrap();
        assert_eq!(region.len(), 24);
        assert_eq!(region.fetch_add(16, 4), Ok(3));
        assert_eq!(region.load(16), Ok(7));
        assert_eq!(region.load(24).is_err(), region.load(8) == Ok(2));
        assert!(Region::adopt(Box::default()).is_err());
    }

    #[test]
    fn copies_of_every_length_and_alignment_are_exact() {
        let region = Region::local(4096).unwrap();
        let pattern: Vec<u8> = (0..200).map(|n| n as u8).collect();
        for start in 0..16 {
            for len in 0..150 {
                region.write(start, &pattern[..len]).unwrap();
                let mut back = vec![0; len];
                region.read(start, &mut back).unwrap();
                assert_eq!(back, pattern[..len], "offset {start}, {len} bytes");
                region.read_onto(start, len, &mut back).unwrap();
                let twice = [&pattern[..len]; 2].concat();
                assert_eq!(back, twice, "offset {start}, {len} bytes twice");
            }
        }
    }
}
