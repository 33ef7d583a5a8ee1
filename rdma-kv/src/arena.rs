//! Who owns which part of the items region: size classes cut out of pages.
//!
//! The region is divided into pages. A page belongs to one class, whose chunks fill it; an item
//! lives in one chunk. When a class is full it takes a page that nobody has, then one that stands
//! empty, then evicts its own items, the oldest first: a hand goes round the class's chunks in
//! the order in which they were filled. A class without a page uses chunks of one up to four times
//! as large; where there is none, it takes a page from another class, in turn. (A policy with
//! recency, and pages that move for balance, come later.)
//!
//! This is bookkeeping: no byte of the region is touched here.

use crate::layout::{LINE, Place};

/// Growth from one class to the next, in eighths: at most a quarter of a chunk is wasted.
const GROWTH_EIGHTHS: u64 = 10;

/// The bookkeeping of the items region.
#[derive(Debug)]
pub struct Arena {
    page_units: u32,
    pages: Vec<Page>,
    classes: Vec<Class>,
    /// Pages that no class has.
    unowned: Vec<u32>,
    /// The page to look at next when one is taken away.
    hand: u32,
}

#[derive(Debug, Default)]
struct Page {
    class: Option<u8>,
    chunks: Vec<Chunk>,
    free: Vec<u32>,
    reserved: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Chunk {
    Free,
    /// Given out, its item not yet published: stays where it is.
    Reserved,
    Live,
}

#[derive(Debug)]
struct Class {
    units: u32,
    pages: Vec<u32>,
    /// Those of `pages` with a free chunk.
    roomy: Vec<u32>,
    /// The chunk to evict next: an index into `pages`, and the chunk in that page.
    hand: (usize, usize),
}

impl Arena {
    /// Manages `len` bytes in pages of `page_len`, both rounded down to whole lines.
    pub fn new(len: u64, page_len: u32) -> Self {
        let page_units = (page_len / LINE as u32).max(1);
        let units = (len / LINE as u64).min(Place::LIMIT);
        let count = (units / u64::from(page_units)) as u32;
        Arena {
            page_units,
            pages: (0..count).map(|_| Page::default()).collect(),
            classes: class_units(page_units)
                .into_iter()
                .map(Class::new)
                .collect(),
            unowned: (0..count).rev().collect(),
            hand: 0,
        }
    }

    /// Finds room for `len` bytes. Calls `evict` for each item that must be unlinked first, all
    /// of which are free when this returns. `None` when `len` is over a page, or everything is
    /// reserved.
    ///
    /// The room is reserved: it is neither evicted nor taken until [`Arena::publish`].
    pub fn reserve(&mut self, len: usize, evict: &mut impl FnMut(Place)) -> Option<Place> {
        let units = u32::try_from(len.div_ceil(LINE)).ok()?;
        let class = self.classes.partition_point(|class| class.units < units);
        if class == self.classes.len() {
            return None;
        }
        if !self.classes[class].roomy.is_empty() {
            return self.take_chunk(class);
        }
        let page = self.unowned.pop().or_else(|| self.take_empty_page());
        if let Some(page) = page {
            self.give(page, class);
            return self.take_chunk(class);
        }
        let class = self.nearest_with_page(class).unwrap_or(class);
        if self.classes[class].roomy.is_empty() {
            self.make_room(class, evict)?;
        }
        self.take_chunk(class)
    }

    /// The reserved chunk at `place` now holds a live item.
    pub fn publish(&mut self, place: Place) {
        self.set(place, Chunk::Live);
    }

    /// The chunk at `place`, reserved or live, is free again.
    pub fn free(&mut self, place: Place) {
        self.set(place, Chunk::Free);
    }

    fn set(&mut self, place: Place, to: Chunk) {
        let number = place.0 / self.page_units;
        let page = &mut self.pages[number as usize];
        let Some(class) = page.class.map(usize::from) else {
            return;
        };
        let class = &mut self.classes[class];
        let chunk = place.0 % self.page_units / class.units;
        let before = std::mem::replace(&mut page.chunks[chunk as usize], to);
        page.reserved -= u32::from(before == Chunk::Reserved);
        if to == Chunk::Free && before != Chunk::Free {
            if page.free.is_empty() {
                class.roomy.push(number);
            }
            page.free.push(chunk);
        }
    }

    /// The class itself or a larger one that has pages, if it is not much larger: where memory is
    /// small, not every class can have a page.
    fn nearest_with_page(&self, class: usize) -> Option<usize> {
        let limit = self.classes[class].units.saturating_mul(4);
        let near = (class..self.classes.len()).take_while(|&n| self.classes[n].units <= limit);
        near.into_iter()
            .find(|&n| !self.classes[n].pages.is_empty())
    }

    fn take_chunk(&mut self, class: usize) -> Option<Place> {
        let class = &mut self.classes[class];
        let number = *class.roomy.last()?;
        let page = &mut self.pages[number as usize];
        let chunk = page.free.pop()?;
        if page.free.is_empty() {
            class.roomy.pop();
        }
        page.chunks[chunk as usize] = Chunk::Reserved;
        page.reserved += 1;
        Some(Place(number * self.page_units + chunk * class.units))
    }

    /// Evicts the oldest item of the class, or all of a page of another.
    fn make_room(&mut self, class: usize, evict: &mut impl FnMut(Place)) -> Option<()> {
        if let Some(place) = self.oldest(class) {
            evict(place);
            self.free(place);
            return Some(());
        }
        let count = self.pages.len() as u32;
        let start = self.hand;
        let number = (0..count)
            .map(|n| (start + n) % count)
            .find(|&n| self.pages[n as usize].reserved == 0)?;
        self.hand = (number + 1) % count;
        for place in self.live(number) {
            evict(place);
        }
        self.disown(number);
        self.give(number, class);
        Some(())
    }

    /// Moves the class's hand to the next live chunk.
    fn oldest(&mut self, class: usize) -> Option<Place> {
        let class = &mut self.classes[class];
        // Once round, from the middle of a page back into it.
        for _ in 0..=class.pages.len() {
            let Some(&number) = class.pages.get(class.hand.0) else {
                class.hand = (0, 0);
                continue;
            };
            let chunks = &self.pages[number as usize].chunks;
            let live = chunks
                .iter()
                .skip(class.hand.1)
                .position(|&chunk| chunk == Chunk::Live);
            if let Some(skipped) = live {
                let chunk = class.hand.1 + skipped;
                class.hand.1 = chunk + 1;
                return Some(Place(number * self.page_units + chunk as u32 * class.units));
            }
            class.hand = (class.hand.0 + 1, 0);
        }
        None
    }

    fn live(&self, number: u32) -> Vec<Place> {
        let page = &self.pages[number as usize];
        let units = page
            .class
            .map_or(0, |class| self.classes[usize::from(class)].units);
        let chunks = page.chunks.iter().enumerate();
        chunks
            .filter(|(_, chunk)| **chunk == Chunk::Live)
            .map(|(n, _)| Place(number * self.page_units + n as u32 * units))
            .collect()
    }

    fn take_empty_page(&mut self) -> Option<u32> {
        // A class's roomy pages are few in the steady state, in which this is called.
        let mut roomy = self.classes.iter().flat_map(|class| &class.roomy);
        let empty = roomy.find(|&&n| {
            let page = &self.pages[n as usize];
            page.free.len() == page.chunks.len()
        });
        let number = *empty?;
        self.disown(number);
        Some(number)
    }

    fn disown(&mut self, number: u32) {
        let page = std::mem::take(&mut self.pages[number as usize]);
        if let Some(class) = page.class {
            let class = &mut self.classes[usize::from(class)];
            class.pages.retain(|&n| n != number);
            class.roomy.retain(|&n| n != number);
        }
    }

    fn give(&mut self, number: u32, class: usize) {
        let count = self.page_units / self.classes[class].units;
        self.pages[number as usize] = Page {
            class: Some(class as u8),
            chunks: vec![Chunk::Free; count as usize],
            free: (0..count).rev().collect(),
            reserved: 0,
        };
        self.classes[class].pages.push(number);
        self.classes[class].roomy.push(number);
    }
}

impl Class {
    fn new(units: u32) -> Self {
        Class {
            units,
            pages: Vec::new(),
            roomy: Vec::new(),
            hand: (0, 0),
        }
    }
}

/// Chunk sizes, smallest first, the last a page. Each is as large as its number per page allows,
/// so that little of a page is left over.
fn class_units(page_units: u32) -> Vec<u32> {
    let mut classes = vec![];
    let mut units = 1;
    while units < page_units {
        let per_page = page_units / units;
        units = page_units / per_page;
        classes.push(units);
        let next = u64::from(units) * GROWTH_EIGHTHS / 8;
        units = u32::try_from(next).unwrap_or(u32::MAX).max(units + 1);
    }
    classes.push(page_units);
    classes.dedup();
    classes
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::{HashMap, VecDeque};

    const PAGE: u32 = 1 << 20;

    fn never(_: Place) {
        panic!("nothing had to be evicted");
    }

    #[test]
    fn classes_waste_little() {
        let classes = class_units(PAGE / 64);
        assert!(classes.len() < 100);
        assert!(classes.is_sorted_by(|a, b| a < b));
        for len in [64u32, 100, 1100, 65_600, 70_000, 300_000, 1 << 20] {
            let units = len.div_ceil(64);
            let chunk = classes[classes.partition_point(|&class| class < units)];
            let used = PAGE / 64 / chunk * units;
            // A quarter of the chunk, and what is left of the page.
            assert!(
                used * 100 >= PAGE / 64 * 60,
                "{len}: {used} units of a page"
            );
        }
    }

    #[test]
    fn the_whole_region_is_given_out_without_overlap() {
        let mut arena = Arena::new(4 << 20, PAGE);
        let mut taken = vec![false; (4 << 20) / 64];
        let mut count = 0;
        while let Some(place) = arena.reserve(500, &mut |_| ()) {
            for unit in place.0..place.0 + 8 {
                assert!(!std::mem::replace(&mut taken[unit as usize], true));
            }
            count += 1;
        }
        assert_eq!(count, 4 * 2048);
    }

    #[test]
    fn the_oldest_of_a_class_is_evicted_first() {
        let mut arena = Arena::new(2 << 20, PAGE);
        let mut published = VecDeque::new();
        for n in 0..9000 {
            let mut evicted = None;
            let place = arena
                .reserve(512, &mut |place| evicted = Some(place))
                .unwrap();
            assert_eq!(evicted, (n >= 4096).then(|| published.pop_front().unwrap()));
            arena.publish(place);
            published.push_back(place);
        }
    }

    #[test]
    fn a_class_without_a_page_takes_one_from_another() {
        let mut arena = Arena::new(2 << 20, PAGE);
        for _ in 0..4096 {
            let place = arena.reserve(512, &mut never).unwrap();
            arena.publish(place);
        }
        let mut evicted = 0;
        let large = arena.reserve(1 << 20, &mut |_| evicted += 1).unwrap();
        assert_eq!(evicted, 2048);
        arena.free(large);
        // The empty page comes back without an eviction.
        arena.reserve(512, &mut never).unwrap();
    }

    #[test]
    fn what_is_reserved_stays() {
        let mut arena = Arena::new(1 << 20, PAGE);
        let place = arena.reserve(512, &mut never).unwrap();
        assert_eq!(arena.reserve(1 << 20, &mut never), None);
        arena.publish(place);
        let mut evicted = vec![];
        assert!(
            arena
                .reserve(1 << 20, &mut |place| evicted.push(place))
                .is_some()
        );
        assert_eq!(evicted, [place]);
        assert_eq!(arena.reserve((1 << 20) + 1, &mut never), None);
    }

    proptest::proptest! {
        /// Against a map of what is live: nothing overlaps, nothing is lost.
        #[test]
        fn any_sequence_keeps_chunks_apart(
            operations in proptest::collection::vec((0u8..4, 1usize..300_000), 1..400)
        ) {
            let mut arena = Arena::new(4 << 20, PAGE);
            let mut live: HashMap<Place, usize> = HashMap::new();
            for (kind, len) in operations {
                if kind == 0 {
                    if let Some(&place) = live.keys().min_by_key(|place| place.0) {
                        live.remove(&place);
                        arena.free(place);
                    }
                    continue;
                }
                let evict = &mut |place| { live.remove(&place).unwrap(); };
                let place = arena.reserve(len, evict).unwrap();
                for (other, &other_len) in &live {
                    let apart = place.offset() + len as u64 <= other.offset()
                        || other.offset() + other_len as u64 <= place.offset();
                    proptest::prop_assert!(apart, "{place:?} and {other:?}");
                }
                match kind {
                    1 => arena.free(place),
                    _ => { arena.publish(place); live.insert(place, len); }
                }
            }
        }
    }
}
