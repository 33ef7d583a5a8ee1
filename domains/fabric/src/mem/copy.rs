//! Bulk copies of memory that other processes may write at any time.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

/// Copies `len` bytes between shared memory and private memory, or between two ranges of shared
/// memory.
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

/// A vector load in the encoding that the compiler uses: mixing both encodings can be slow.
#[cfg(all(target_arch = "x86_64", target_feature = "avx", not(miri)))]
macro_rules! load_vector {
    () => {
        "vmovups {}, [{}]"
    };
}
#[cfg(all(target_arch = "x86_64", not(target_feature = "avx"), not(miri)))]
macro_rules! load_vector {
    () => {
        "movups {}, [{}]"
    };
}

/// Bytes of one [`load`]: enough vectors that the caller's work for each block hardly matters, and
/// few enough to stay in registers.
pub(crate) const BLOCK: usize = 256;

/// Loads bytes that other processes may write, 16 to a register (x86-64). A caller that only
/// computes with them copies nothing.
///
/// # Safety
/// [`BLOCK`] bytes must be mapped at `from`.
#[inline(always)]
pub(crate) unsafe fn load(from: *const u8) -> [u8; BLOCK] {
    let mut block = [0; BLOCK];
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    for (n, bytes) in block.as_chunks_mut().0.iter_mut().enumerate() {
        use std::arch::x86_64::__m128i;
        let vector: __m128i;
        // SAFETY: the caller's promise; the instruction reads 16 bytes at any address. As with
        // `copy`, the compiler neither splits nor repeats the access. Any bytes are a vector, and a
        // vector is any bytes.
        *bytes = unsafe {
            std::arch::asm!(
                load_vector!(),
                out(xmm_reg) vector,
                in(reg) from.add(16 * n),
                options(nostack, preserves_flags, readonly)
            );
            std::mem::transmute::<__m128i, [u8; 16]>(vector)
        };
    }
    #[cfg(any(not(target_arch = "x86_64"), miri))]
    // SAFETY: the caller's promise; the block is ours alone.
    unsafe {
        copy_portable(from, block.as_mut_ptr(), BLOCK);
    }
    block
}

/// Prefetches the cache line at `address`.
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
