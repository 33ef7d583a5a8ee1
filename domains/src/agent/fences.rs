//! What an attached process was granted ends without its help: see [`fabric::shm::fence`].

use std::collections::HashMap;
use std::fs::File;
use std::io;

use fabric::Partition;
use fabric::shm::fence::{Fence, FencePage};

/// The fence page of a process: a word for what it was granted in each partition.
#[derive(Debug)]
pub(super) struct Fences {
    page: Fence,
    slots: HashMap<Partition, u32>,
    next: u32,
}

impl Fences {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Fences {
            page: Fence::create()?,
            slots: HashMap::new(),
            next: 0,
        })
    }

    pub(super) fn hand_out(&self) -> io::Result<File> {
        self.page.hand_out()
    }

    /// The page of a process that was attached to the agent before, with the words in use.
    pub(super) fn inherit(page: File, slots: Vec<(u32, u32)>, next: u32) -> io::Result<Self> {
        let slots = slots.into_iter();
        Ok(Fences {
            page: Fence::of(page)?,
            slots: slots.map(|(of, slot)| (Partition(of), slot)).collect(),
            next,
        })
    }

    /// What the next agent needs: the page, to write there, the words in use, and the next one.
    pub(super) fn parts(&self) -> (&File, Vec<(u32, u32)>, u32) {
        let slots = self.slots.iter().map(|(of, slot)| (of.0, *slot));
        (self.page.memory(), slots.collect(), self.next)
    }

    /// The word for what is granted in a partition now, if there is one.
    pub(super) fn present(&self, partition: Partition) -> Option<u32> {
        self.slots.get(&partition).copied()
    }

    /// A word for what is granted in a partition from now on, unless all are used up.
    pub(super) fn add(&mut self, partition: Partition) -> Option<u32> {
        let slot = self.next;
        if slot >= FencePage::SLOTS {
            return None;
        }
        self.next += 1;
        self.slots.insert(partition, slot);
        Some(slot)
    }

    /// Ends all that was granted.
    pub(super) fn end_all(&mut self) {
        for (_, slot) in self.slots.drain() {
            self.page.set(slot);
        }
    }

    /// Ends what was granted in a partition; what comes later gets another word.
    pub(super) fn end(&mut self, partition: Partition) {
        if let Some(slot) = self.slots.remove(&partition) {
            self.page.set(slot);
        }
    }
}
