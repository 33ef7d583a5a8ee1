//! Ways to hold memory that need neither the library's mapping nor this process.

use std::fs::File;

use super::Result;
use super::child::Child;
use super::disk::Disk;
use super::faults::Faults;
use super::moved::Moved;

/// All of them on the same memory.
pub struct Grips {
    disk: Disk,
    child: Child,
    moved: Moved,
    faults: Faults,
}

impl Grips {
    pub fn new(memory: &File) -> Result<Self> {
        Ok(Grips {
            child: Child::new(memory)?,
            disk: Disk::new(memory)?,
            moved: Moved::new(memory)?,
            faults: Faults::new(memory)?,
        })
    }

    /// Does a round of those that have no thread or process of their own.
    pub fn go_on(&mut self, n: u64) -> Result<()> {
        self.moved.go_on(n)?;
        self.faults.go_on(n)
    }

    /// Rounds of the disk and of the child that have begun, and that have ended.
    pub fn rounds(&self) -> [[u64; 2]; 2] {
        [self.disk.rounds(), self.child.rounds()]
    }

    /// The counted word on the disk, for the child, and at other addresses.
    pub fn counted(&self) -> (u64, u64, [u64; 2]) {
        (self.disk.told(), self.child.told(), self.moved.counted())
    }
}
