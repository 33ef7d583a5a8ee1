//! Regions that are mapped into this process.
//!
//! A mapped region needs no queue pair: any thread reads it, and folds over blocks of it where a
//! copy of the whole would be wasteful.

use crate::core::region::{self, Region};
use crate::error::OpError;
#[cfg(any(not(target_arch = "x86_64"), miri, loom))]
use crate::sync::{Ordering, fence};

/// A mapped region: one of this process, or of a peer on the same host.
///
/// No method returns a reference to the bytes, because peers may write them at any time. A read
/// returns a copy, in memory or in registers.
pub trait Mapped: Send + Sync + 'static {
    /// Whether the region is mapped. A type over several providers also has regions of other hosts,
    /// on which reads and writes fail with [`OpError::NotMapped`]. A region behind an emulated link
    /// says that it is not mapped, and can be read and written all the same by those that began before.
    fn is_mapped(&self) -> bool {
        true
    }

    /// Copies bytes at `offset` out of the region. Later loads happen after it.
    ///
    /// # Errors
    /// [`OpError`], as in the completion of a read.
    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), OpError>;

    /// Folds `len` bytes at `offset`: calls `each` with the accumulator, which begins as `start`,
    /// and with the bytes in order, in blocks of any length. On x86-64 most blocks are in registers
    /// and not copied where `each` is inlined.
    ///
    /// A block is known to be the region's only when this returns. When it was not, as after a
    /// migration, `each` gets up to 64 KiB again, with a clone of the accumulator from before them.
    /// Clones are made every 64 KiB. So the accumulator should be small, share nothing with its
    /// clones, and be all that `each` changes. Later loads happen after those of the bytes.
    ///
    /// # Errors
    /// As [`Mapped::read`].
    fn fold<A: Clone>(
        &self,
        offset: u64,
        len: u64,
        start: A,
        each: impl Fn(&mut A, &[u8]),
    ) -> Result<A, OpError>
    where
        Self: Sized;

    /// Copies bytes into the region at `offset`. Later stores become visible after them.
    ///
    /// # Errors
    /// [`OpError`], as in the completion of a write.
    fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), OpError>;

    /// Prefetches the cache line at `offset`.
    fn fetch_ahead(&self, offset: u64) {
        let _ = offset;
    }
}

impl Mapped for Region {
    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), OpError> {
        Region::read(self, offset, into)
    }

    fn fold<A: Clone>(
        &self,
        offset: u64,
        len: u64,
        start: A,
        each: impl Fn(&mut A, &[u8]),
    ) -> Result<A, OpError> {
        let (at, len) = region::bounds(self.memory(), offset, len)?;
        // SAFETY: `bounds` checked the range.
        unsafe { self.memory().fold(at, len, start, each) }
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), OpError> {
        Region::write(self, offset, bytes)
    }

    fn fetch_ahead(&self, offset: u64) {
        Region::fetch_ahead(self, offset);
    }
}

/// Orders later loads after earlier stores: between publishing a word and loading the other side's
/// word. If both sides do so, at least one sees the word of the other.
pub fn full_fence() {
    // Pairs with the other side's `full_fence`.
    #[cfg(any(not(target_arch = "x86_64"), miri, loom))]
    fence(Ordering::SeqCst);
    // A locked instruction orders loads and stores as `mfence` does. `mfence` takes longer, because
    // it also orders other kinds of access.
    #[cfg(not(any(not(target_arch = "x86_64"), miri, loom)))]
    // SAFETY: changes no bit of a word of our own stack, be it in use or not. The compiler must
    // assume that the block reads and writes any memory, so no access moves past it.
    unsafe {
        std::arch::asm!("lock or dword ptr [rsp - 64], 0", options(nostack));
    }
}

/// Every interleaving that the memory model allows.
#[cfg(all(test, loom))]
mod loom_tests {
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicU64;
    use loom::thread;

    use super::*;

    /// Memory that one side lends and takes back, and the other side borrows.
    struct Lent {
        /// 1 while the memory may be borrowed.
        link: AtomicU64,
        /// Hazard pointer of the borrower: 1 while it reads.
        hazard: AtomicU64,
        memory: UnsafeCell<u64>,
    }

    // SAFETY: loom checks every access to the cell and fails the test on a race.
    unsafe impl Send for Lent {}
    // SAFETY: as above.
    unsafe impl Sync for Lent {}

    fn borrow(lent: &Lent) {
        lent.hazard.store(1, Ordering::Release);
        full_fence();
        if lent.link.load(Ordering::Acquire) == 1 {
            // SAFETY: loom verifies that no thread writes the cell meanwhile.
            lent.memory.with(|memory| assert_eq!(unsafe { *memory }, 7));
        }
        lent.hazard.store(0, Ordering::Release);
    }

    fn take_back(lent: &Lent) {
        lent.link.store(0, Ordering::Release);
        full_fence();
        if lent.hazard.load(Ordering::Acquire) == 0 {
            // SAFETY: loom verifies that no other thread accesses the cell meanwhile.
            lent.memory.with_mut(|memory| unsafe { *memory = 8 });
        }
    }

    #[test]
    fn borrowed_memory_is_not_reused() {
        loom::model(|| {
            let lent = Arc::new(Lent {
                link: AtomicU64::new(1),
                hazard: AtomicU64::new(0),
                memory: UnsafeCell::new(7),
            });
            let borrower = thread::spawn({
                let lent = Arc::clone(&lent);
                move || borrow(&lent)
            });
            take_back(&lent);
            borrower.join().unwrap();
        });
    }
}
