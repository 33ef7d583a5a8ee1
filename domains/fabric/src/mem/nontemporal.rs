//! Copies of bytes that another processor will read.
//!
//! An ordinary copy first takes the lines of the previous copy back from the reader's caches. Then
//! it leaves the bytes in the writer's caches, from which the reader fetches them line by line. AMD
//! processors have one last-level cache for every few cores. Between cores that share none, both
//! transfers together take 5 times as long as writing the bytes past the caches and reading them
//! from memory; between cores that share one, about as long.

use super::copy::copy;
use super::mapping::PAGE;

/// Bytes of a cache line.
#[cfg(all(target_arch = "x86_64", not(miri)))]
const LINE: usize = 64;

/// Copies as [`copy`] does, for a reader on another processor: more than a page goes past the
/// caches where that is faster. All bytes are ordered before later stores.
///
/// # Safety
/// As [`copy`].
pub(crate) unsafe fn copy_to_peer(from: *const u8, to: *mut u8, len: usize) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if len > PAGE && caches_are_split() {
        let head = to.align_offset(LINE);
        let lines = (len - head) / LINE;
        let done = head + LINE * lines;
        // SAFETY: the three ranges are parts of what the caller promises. The second begins with a
        // line, and `lines` is at least 1, because `len` is more than two lines.
        return unsafe {
            copy(from, to, head);
            copy_lines(from.add(head), to.add(head), lines);
            copy(from.add(done), to.add(done), len - done);
        };
    }
    let _ = PAGE;
    // SAFETY: the caller's promise.
    unsafe { copy(from, to, len) };
}

/// Whether this is an AMD processor, some cores of which share no cache.
#[cfg(all(target_arch = "x86_64", not(miri)))]
fn caches_are_split() -> bool {
    use std::arch::x86_64::__cpuid;
    use std::sync::OnceLock;

    static ARE_SPLIT: OnceLock<bool> = OnceLock::new();
    *ARE_SPLIT.get_or_init(|| {
        let vendor = __cpuid(0);
        let name = [vendor.ebx, vendor.edx, vendor.ecx].map(u32::to_le_bytes);
        name.concat() == b"AuthenticAMD"
    })
}

/// A vector instruction in the encoding that the compiler uses: mixing both encodings can be slow.
#[cfg(all(target_arch = "x86_64", target_feature = "avx", not(miri)))]
macro_rules! vector {
    ($instruction:literal) => {
        concat!("v", $instruction)
    };
}
#[cfg(all(target_arch = "x86_64", not(target_feature = "avx"), not(miri)))]
macro_rules! vector {
    ($instruction:literal) => {
        $instruction
    };
}

/// Copies whole lines past the caches.
///
/// # Safety
/// As [`copy`], for `lines` lines, of which there is at least one. `to` must be the start of a
/// line.
#[cfg(all(target_arch = "x86_64", not(miri)))]
unsafe fn copy_lines(from: *const u8, to: *mut u8, lines: usize) {
    // SAFETY: the caller's promise; each round reads a line at any address and writes one at an
    // address that is a multiple of 64, as the instruction demands. The compiler must assume that
    // the block reads and writes any memory. Only the fence at the end orders such stores.
    unsafe {
        std::arch::asm!(
            "2:",
            vector!("movups {a}, [{from}]"),
            vector!("movups {b}, [{from} + 16]"),
            vector!("movups {c}, [{from} + 32]"),
            vector!("movups {d}, [{from} + 48]"),
            vector!("movntps [{to}], {a}"),
            vector!("movntps [{to} + 16], {b}"),
            vector!("movntps [{to} + 32], {c}"),
            vector!("movntps [{to} + 48], {d}"),
            "add {from}, 64",
            "add {to}, 64",
            "dec {lines}",
            "jnz 2b",
            "sfence",
            a = out(xmm_reg) _,
            b = out(xmm_reg) _,
            c = out(xmm_reg) _,
            d = out(xmm_reg) _,
            from = inout(reg) from => _,
            to = inout(reg) to => _,
            lines = inout(reg) lines => _,
            options(nostack)
        );
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    #[test]
    fn copies_of_any_length_and_alignment_are_exact_and_touch_nothing_else() {
        let from: Vec<u8> = (0..3 * PAGE).map(|n| (n % 251) as u8).collect();
        for (start, at) in [(0, 0), (1, 0), (0, 1), (16, 24), (63, 65), (7, 64)] {
            for len in [
                0,
                1,
                64,
                PAGE,
                PAGE + 1,
                PAGE + 63,
                PAGE + 64,
                PAGE + 200,
                2 * PAGE + 5,
            ] {
                let mut to = vec![0xff; 3 * PAGE];
                // SAFETY: both ranges are within vectors, which do not overlap.
                unsafe { copy_to_peer(from[start..].as_ptr(), to[at..].as_mut_ptr(), len) };
                assert_eq!(
                    to[at..at + len],
                    from[start..start + len],
                    "{start} {at} {len}"
                );
                let untouched = |bytes: &[u8]| bytes.iter().all(|byte| *byte == 0xff);
                assert!(
                    untouched(&to[..at]) && untouched(&to[at + len..]),
                    "{start} {at} {len}"
                );
            }
        }
    }
}
