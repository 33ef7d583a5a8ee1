//! Regions that the processor reaches where they are.
//!
//! On providers of one host a region is mapped, so it can be read without a queue pair, by any
//! thread, and piece by piece where a copy of the whole would be a waste.

use crate::core::region::{self, Region};
use crate::error::OpError;
#[cfg(any(not(target_arch = "x86_64"), miri, loom))]
use crate::sync::{Ordering, fence};

/// A region that the processor reaches where it is: our own, or a peer's that is mapped.
///
/// As everywhere, no reference to its bytes is given: whoever may write them can do so at any
/// time, so what is read is a copy, in memory or in registers.
pub trait Mapped: Send + Sync + 'static {
    /// Whether it is: a type for regions of several providers has others too, whose reads and writes
    /// fail with [`OpError::NotMapped`].
    fn is_mapped(&self) -> bool {
        true
    }

    /// Copies bytes at `offset` out of the region. What is loaded afterwards is loaded after them.
    ///
    /// # Errors
    /// [`OpError`], as the completion of a read has.
    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), OpError>;

    /// Folds `len` bytes at `offset`: gives them to `each`, in order and in blocks of any length, with
    /// what has come of those before, which is `start` at first. On x86-64 most blocks come in registers, and
    /// are not copied where `each` is inlined.
    ///
    /// What a block has is known to be the region's only when this returns. If it was not, as when the
    /// region has just moved, `each` gets up to 64 KiB again, with a clone of what had come of those before,
    /// which is made every 64 KiB: so it should be small, share nothing with its clones, and be all that
    /// `each` changes. What is loaded afterwards is loaded after the bytes.
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

    /// Copies bytes into the region at `offset`. What is stored afterwards is seen after them.
    ///
    /// # Errors
    /// [`OpError`], as the completion of a write has.
    fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), OpError>;

    /// Hints that the line at `offset` is about to be read.
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

/// Keeps loads that follow from going before stores that came earlier: between saying something
/// and looking what the other side says. If both sides do so, at least one sees the other's word.
pub fn full_fence() {
    // Pairs with the other side's `full_fence`.
    #[cfg(any(not(target_arch = "x86_64"), miri, loom))]
    fence(Ordering::SeqCst);
    // A locked instruction orders loads and stores as `mfence` does, which also waits for what is of no
    // concern here, and takes longer.
    #[cfg(not(any(not(target_arch = "x86_64"), miri, loom)))]
    // SAFETY: changes no bit of a word of our own stack, be it in use or not. The compiler must assume
    // that it reads and writes any memory, so it moves no access past it.
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

    /// Memory that one side lends and takes back, and the other borrows and gives back.
    struct Lent {
        /// What leads to the memory: 1 while it does.
        link: AtomicU64,
        /// What the borrower says: 1 while it reads.
        slip: AtomicU64,
        memory: UnsafeCell<u64>,
    }

    // SAFETY: loom checks every access to the cell and fails the test on a race.
    unsafe impl Send for Lent {}
    // SAFETY: as above.
    unsafe impl Sync for Lent {}

    fn borrow(lent: &Lent) {
        lent.slip.store(1, Ordering::Release);
        full_fence();
        if lent.link.load(Ordering::Acquire) == 1 {
            // SAFETY: loom verifies that nobody writes the cell meanwhile.
            lent.memory.with(|memory| assert_eq!(unsafe { *memory }, 7));
        }
        lent.slip.store(0, Ordering::Release);
    }

    fn take_back(lent: &Lent) {
        lent.link.store(0, Ordering::Release);
        full_fence();
        if lent.slip.load(Ordering::Acquire) == 0 {
            // SAFETY: loom verifies that nobody else accesses the cell meanwhile.
            lent.memory.with_mut(|memory| unsafe { *memory = 8 });
        }
    }

    #[test]
    fn nothing_that_is_borrowed_is_used_again() {
        loom::model(|| {
            let lent = Arc::new(Lent {
                link: AtomicU64::new(1),
                slip: AtomicU64::new(0),
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
