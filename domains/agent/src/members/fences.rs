//! Fences: the grants of an attached process end without its help, see
//! [`toroid_fabric::mem::fence`].

use std::collections::HashMap;
use std::fs::File;
use std::io;

use serde::{Deserialize, Serialize};
use toroid_fabric::Partition;
use toroid_fabric::mem::fence::{Fence, FencePage};

/// Kind of grants behind one word of the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Granted {
    /// Memory of its own, which a process keeps when its node leaves.
    Own,
    /// Memory shared with others: regions of peers, and channels.
    Shared,
}

/// Fence page of a process, with words for its grants in each partition.
#[derive(Debug)]
pub(crate) struct Fences {
    page: Fence,
    slots: HashMap<(Partition, Granted), u32>,
    /// Words set when its node left, each with the partition and the epoch.
    left: Vec<(Partition, u32, u32)>,
    /// Words free for reuse.
    free: Vec<u32>,
    next: u32,
}

/// Words in use by partition, and the next one: the part of the fences that the next agent needs
/// besides the page.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Words {
    #[serde(rename = "fences")]
    own: Vec<(u32, u32)>,
    #[serde(default, rename = "shared_fences")]
    shared: Vec<(u32, u32)>,
    #[serde(rename = "next_fence")]
    next: u32,
}

impl Fences {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self::on(Fence::create()?))
    }

    fn on(page: Fence) -> Self {
        Fences {
            page,
            slots: HashMap::new(),
            left: Vec::new(),
            free: Vec::new(),
            next: 0,
        }
    }

    pub(super) fn hand_out(&self) -> io::Result<File> {
        self.page.hand_out()
    }

    /// Takes over the page of a process of the predecessor.
    pub(crate) fn inherit(page: File, words: &Words) -> io::Result<Self> {
        let slots = |of: &[(u32, u32)], granted| -> Vec<_> {
            let of = of.iter();
            of.map(|(of, slot)| ((Partition(*of), granted), *slot))
                .collect()
        };
        let own = slots(&words.own, Granted::Own).into_iter();
        Ok(Fences {
            slots: own.chain(slots(&words.shared, Granted::Shared)).collect(),
            next: words.next,
            ..Self::on(Fence::of(page)?)
        })
    }

    /// The page, writable.
    pub(super) fn page(&self) -> &File {
        self.page.memory()
    }

    pub(crate) fn words(&self) -> Words {
        let of = |granted| {
            let slots = self.slots.iter().filter(|((_, of), _)| *of == granted);
            slots.map(|((of, _), slot)| (of.0, *slot)).collect()
        };
        Words {
            own: of(Granted::Own),
            shared: of(Granted::Shared),
            next: self.next,
        }
    }

    /// Word for present grants in a partition, if there is one.
    pub(crate) fn present(&self, partition: Partition, granted: Granted) -> Option<u32> {
        self.slots.get(&(partition, granted)).copied()
    }

    /// Takes a word for grants in a partition; `None` when all are used.
    pub(crate) fn add(&mut self, partition: Partition, granted: Granted) -> Option<u32> {
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None => {
                let next = self.next;
                self.next = next + u32::from(next < FencePage::SLOTS);
                Some(next).filter(|next| *next < FencePage::SLOTS)?
            }
        };
        self.page.clear(slot);
        self.slots.insert((partition, granted), slot);
        Some(slot)
    }

    /// Ends all grants.
    pub(crate) fn end_all(&mut self) {
        for (_, slot) in self.slots.drain() {
            self.page.set(slot);
        }
    }

    /// Ends grants in a partition. Later grants get another word.
    pub(crate) fn end(&mut self, partition: Partition) {
        for granted in [Granted::Own, Granted::Shared] {
            if let Some(slot) = self.slots.remove(&(partition, granted)) {
                self.page.set(slot);
            }
        }
    }

    /// Ends shared grants in a partition that its node left with this epoch.
    pub(crate) fn leave(&mut self, partition: Partition, epoch: u32) {
        if let Some(slot) = self.slots.remove(&(partition, Granted::Shared)) {
            self.page.set(slot);
            self.left.push((partition, epoch, slot));
        }
    }

    /// Notes that the process itself has ended its grants before this epoch, so their words can be
    /// reused.
    pub(crate) fn acknowledge(&mut self, partition: Partition, epoch: u32) {
        let known = |(of, since, _): &mut _| *of == partition && *since <= epoch;
        let words = self.left.extract_if(.., known);
        self.free.extend(words.map(|(_, _, slot)| slot));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_leaver_keeps_its_own_memory_and_gets_other_words_on_return() {
        let mut fences = Fences::new().unwrap();
        let page = FencePage::map(&fences.hand_out().unwrap()).unwrap();
        let of = Partition(3);
        let own = fences.add(of, Granted::Own).unwrap();
        let shared = fences.add(of, Granted::Shared).unwrap();
        fences.leave(of, 7);
        let is_set = |slot| page.is_set(slot);
        assert!(is_set(shared) && !is_set(own));
        assert_eq!(fences.present(of, Granted::Own), Some(own));
        assert_eq!(fences.present(of, Granted::Shared), None);
        let again = fences.add(of, Granted::Shared).unwrap();
        assert!(![own, shared].contains(&again));
        fences.acknowledge(of, 6);
        assert_ne!(fences.add(Partition(4), Granted::Shared), Some(shared));
        fences.acknowledge(of, 7);
        assert_eq!(fences.add(Partition(5), Granted::Shared), Some(shared));
        assert!(!is_set(shared));
    }
}
