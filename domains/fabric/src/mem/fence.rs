//! Fences: an agent ends the access of a process without the help of that process. A process that
//! was stopped during a change of membership sees the fence at its next operation.
//!
//! A fence is a page of words, written by the agent and mapped read-only by the process. Each word
//! stands for the grants of the process in one partition, and is 0 until the agent fences.

use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::thread::{MembarrierCommand, membarrier};

use crate::mem::mapping::{Mapping, PAGE};
use crate::mem::memfd::{create_memory, read_only};
use crate::test_knob::TestKnob;

/// The page as the process maps it, read-only.
#[derive(Debug)]
pub struct FencePage(Mapping);

impl FencePage {
    /// Words of a page.
    pub const SLOTS: u32 = (PAGE / 8) as u32;

    /// Maps the page in the agent's memory.
    ///
    /// # Errors
    /// The system's.
    pub fn map(memory: &File) -> io::Result<Self> {
        // The call fails on kernels without this command; `settle` uses the other one there.
        let _ = membarrier(MembarrierCommand::RegisterGlobalExpedited);
        Ok(FencePage(Mapping::of_file(memory, PAGE, false)?))
    }

    /// Whether the agent has set the fence; a slot out of range counts as set.
    #[inline]
    pub fn is_set(&self, slot: u32) -> bool {
        // Acquire: pairs with the Release in `Fence::set`.
        match word(&self.0, slot) {
            Some(word) => word.load(Ordering::Acquire) != 0,
            None => true,
        }
    }
}

/// The page as the agent maps it, for writing.
#[derive(Debug)]
pub struct Fence {
    page: Mapping,
    memory: File,
}

impl Fence {
    /// Creates a page without fences.
    ///
    /// # Errors
    /// The system's.
    pub fn create() -> io::Result<Self> {
        Self::of(create_memory(PAGE as u64)?)
    }

    /// Maps an existing page, which keeps its fences.
    ///
    /// # Errors
    /// The system's.
    pub fn of(memory: File) -> io::Result<Self> {
        let page = Mapping::of_file(&memory, PAGE, true)?;
        Ok(Fence { page, memory })
    }

    /// The memory of the page, for the agent that takes over.
    pub fn memory(&self) -> &File {
        &self.memory
    }

    /// A read-only descriptor for the process.
    ///
    /// # Errors
    /// The system's.
    pub fn hand_out(&self) -> io::Result<File> {
        read_only(&self.memory)
    }

    /// Ends all grants of this slot. [`settle`] must follow before the caller relies on it.
    pub fn set(&self, slot: u32) {
        if let Some(word) = word(&self.page, slot)
            && !TestKnob::WithoutFence.is_set()
        {
            // Release: pairs with the Acquire in `FencePage::is_set`.
            word.store(1, Ordering::Release);
        }
    }

    /// Clears the fence of a slot that has no grants.
    pub fn clear(&self, slot: u32) {
        if let Some(word) = word(&self.page, slot) {
            word.store(0, Ordering::Release);
        }
    }
}

fn word(page: &Mapping, slot: u32) -> Option<&AtomicU64> {
    page.word(u64::from(slot) * 8)
}

/// Waits until every processor sees the fences set by this thread and has finished its earlier
/// stores. Afterwards every operation has either happened or sees the fences.
///
/// Without this barrier a fenced process could write to old memory, miss the fence and report
/// success, while its bytes are in flight and the agent copies the previous bytes.
///
/// # Errors
/// The system's.
pub fn settle() -> io::Result<()> {
    // A kernel without ticks on some processors (`nohz_full`) refuses the first command. The second
    // reaches the processes that have mapped a fence.
    let settled = membarrier(MembarrierCommand::Global);
    Ok(settled.or_else(|_| membarrier(MembarrierCommand::GlobalExpedited))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fence_ends_its_slot_and_no_other() {
        let fence = Fence::create().unwrap();
        let page = FencePage::map(&fence.hand_out().unwrap()).unwrap();
        fence.set(7);
        settle().unwrap();
        // The command for kernels that refuse the other one.
        membarrier(MembarrierCommand::GlobalExpedited).unwrap();
        let set: Vec<u32> = (0..FencePage::SLOTS).filter(|n| page.is_set(*n)).collect();
        assert_eq!(set, [7]);
        assert!(page.is_set(FencePage::SLOTS), "there is no such slot");
        assert!(Mapping::of_file(&fence.hand_out().unwrap(), PAGE, true).is_err());
    }
}
