//! Memory that other processes may write at any time.
//!
//! Everything that touches such bytes is in this file: bulk copies through [`copy`], words
//! through atomics. No reference to the bytes themselves is ever made, so a peer that writes
//! while we read can give us wrong bytes but no undefined behaviour.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

/// A mapped range, shared with other processes or private, unmapped on drop.
#[derive(Debug)]
pub(crate) struct Mapping {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping belongs to the process, not to a thread; all access to its bytes goes
// through `copy` and atomics, which tolerate concurrent access.
unsafe impl Send for Mapping {}
// SAFETY: as above; no method hands out a reference to the bytes.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `len` bytes of `file` from its start. A shorter file is refused, because touching
    /// what it lacks would be a signal.
    pub(crate) fn of_file(file: &File, len: usize, writable: bool) -> io::Result<Self> {
        if file.metadata()?.len() < len as u64 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let protection = libc::PROT_READ | if writable { libc::PROT_WRITE } else { 0 };
        Self::map(len, protection, libc::MAP_SHARED, file.as_raw_fd())
    }

    /// Maps `len` zero bytes that only this process sees.
    pub(crate) fn private(len: usize) -> io::Result<Self> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        Self::map(len, protection, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1)
    }

    fn map(len: usize, protection: i32, flags: i32, fd: i32) -> io::Result<Self> {
        // SAFETY: a new mapping at an address that the kernel chooses aliases nothing.
        let address = unsafe { libc::mmap(std::ptr::null_mut(), len, protection, flags, fd, 0) };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(address.cast()).ok_or(io::ErrorKind::AddrNotAvailable)?;
        Ok(Mapping { base, len })
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The address of `len` bytes at `offset`, or `None` if they are not all inside.
    pub(crate) fn range(&self, offset: u64, len: usize) -> Option<NonNull<u8>> {
        let offset = usize::try_from(offset).ok()?;
        if offset.checked_add(len)? > self.len {
            return None;
        }
        // SAFETY: `offset <= self.len`, so the result is inside the mapping or one past its end.
        Some(unsafe { self.base.add(offset) })
    }

    /// The word at `offset`, or `None` if it is outside or `offset` is no multiple of 8.
    pub(crate) fn word(&self, offset: u64) -> Option<&AtomicU64> {
        if !offset.is_multiple_of(8) {
            return None;
        }
        let address = self.range(offset, 8)?.cast::<AtomicU64>();
        // SAFETY: 8 mapped bytes (`range`), aligned because mappings are page-aligned and
        // `offset` is a multiple of 8, alive while `self` is; atomics may be shared with other
        // processes.
        Some(unsafe { address.as_ref() })
    }

    /// The atomics that the mapping starts with.
    ///
    /// # Panics
    /// When the mapping is shorter than `T`, which its makers rule out.
    #[cfg(not(loom))]
    pub(crate) fn atomics<T: Atomics>(&self) -> &T {
        assert!(size_of::<T>() <= self.len && align_of::<T>() <= 4096);
        // SAFETY: inside the mapping and aligned (checked above; mappings are page-aligned),
        // alive while `self` is; `Atomics` promises that any bytes are a valid value and that
        // all access is atomic.
        unsafe { self.base.cast().as_ref() }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: base and len are those of a successful mmap, and every pointer derived from
        // them borrows or lives no longer than `self`.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

/// A type made of atomic integers and nothing else.
///
/// # Safety
/// Every byte string of the type's size must be a valid value, and every field that a peer may
/// write must be an atomic.
#[cfg(not(loom))]
pub(crate) unsafe trait Atomics {}

// SAFETY: integers that are atomic, and padding.
#[cfg(not(loom))]
unsafe impl Atomics for crate::ring::Control {}

/// Copies `len` bytes between memory that other processes may write and memory of ours, or
/// between two ranges of the former.
///
/// Transfers of up to 64 bytes whose ends are multiples of 8 move word by word, each word whole;
/// longer ones use a string instruction that the compiler cannot see through (x86-64), or
/// word-sized relaxed atomics.
///
/// # Safety
/// Both ranges must be mapped for `len` bytes and must not overlap, and `to` must be writable.
/// Private memory on one side must not be accessed by another thread meanwhile.
pub(crate) unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
    let aligned = (from as usize | to as usize | len).is_multiple_of(8);
    if aligned && len <= 64 {
        // SAFETY: the caller's promise, and alignment checked above.
        return unsafe { copy_words(from.cast(), to.cast(), len / 8) };
    }
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: the caller's promise; `rep movsb` reads `len` bytes at rsi and writes them at rdi,
    // and the ABI keeps the direction flag clear. The compiler must assume that the block reads
    // and writes any memory, so it neither splits nor repeats the access.
    unsafe {
        std::arch::asm!(
            "rep movsb",
            inout("rcx") len => _,
            inout("rsi") from => _,
            inout("rdi") to => _,
            options(nostack, preserves_flags)
        );
    }
    #[cfg(any(not(target_arch = "x86_64"), miri))]
    // SAFETY: the caller's promise.
    unsafe {
        copy_portable(from, to, len);
    }
}

/// Asks the processor to fetch the cache line at `address`.
pub(crate) fn fetch_ahead(address: NonNull<u8>) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a hint that neither reads nor faults, whatever the address; SSE is part of x86-64.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(address.as_ptr().cast());
    }
    #[cfg(any(not(target_arch = "x86_64"), miri))]
    let _ = address;
}

/// # Safety
/// As [`copy`], with both ends aligned to 8.
unsafe fn copy_words(from: *const u64, to: *mut u64, words: usize) {
    for i in 0..words {
        // SAFETY: the caller promises `words` mapped, aligned words on both sides.
        unsafe {
            let word = AtomicU64::from_ptr(from.add(i).cast_mut()).load(Ordering::Relaxed);
            AtomicU64::from_ptr(to.add(i)).store(word, Ordering::Relaxed);
        }
    }
}

/// # Safety
/// As [`copy`].
#[cfg(any(not(target_arch = "x86_64"), miri))]
unsafe fn copy_portable(from: *const u8, to: *mut u8, len: usize) {
    use std::sync::atomic::AtomicU8;
    let head = if (from as usize) % 8 == (to as usize) % 8 {
        from.align_offset(8).min(len)
    } else {
        len
    };
    let words = (len - head) / 8;
    // SAFETY: the three ranges are parts of what the caller promises; after `head` bytes both
    // ends are aligned to 8, because they are congruent.
    unsafe {
        let bytes = |start: usize, end: usize| {
            for i in start..end {
                let byte = AtomicU8::from_ptr(from.add(i).cast_mut()).load(Ordering::Relaxed);
                AtomicU8::from_ptr(to.add(i)).store(byte, Ordering::Relaxed);
            }
        };
        bytes(0, head);
        copy_words(from.add(head).cast(), to.add(head).cast(), words);
        bytes(head + 8 * words, len);
    }
}
