//! A pool of entries by number, with a list of free numbers.

/// End of a list of entries.
pub const NONE: u32 = u32::MAX;

/// Entries of one type. Numbers of removed entries are used again, the last one first.
#[derive(Debug)]
pub struct Slab<E> {
    entries: Vec<E>,
    free: Vec<u32>,
}

impl<E: Copy> Slab<E> {
    pub fn new() -> Self {
        Slab {
            entries: Vec::new(),
            free: Vec::new(),
        }
    }

    pub fn insert(&mut self, entry: E) -> u32 {
        match self.free.pop() {
            Some(index) => {
                self.entries[index as usize] = entry;
                index
            }
            None => {
                self.entries.push(entry);
                (self.entries.len() - 1) as u32
            }
        }
    }

    /// Entry `index` must not be used afterwards.
    pub fn remove(&mut self, index: u32) -> E {
        self.free.push(index);
        self.entries[index as usize]
    }

    pub fn is_empty(&self) -> bool {
        self.entries.len() == self.free.len()
    }
}

impl<E> std::ops::Index<u32> for Slab<E> {
    type Output = E;

    #[inline]
    fn index(&self, index: u32) -> &E {
        &self.entries[index as usize]
    }
}

impl<E> std::ops::IndexMut<u32> for Slab<E> {
    #[inline]
    fn index_mut(&mut self, index: u32) -> &mut E {
        &mut self.entries[index as usize]
    }
}
