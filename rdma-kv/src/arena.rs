//! Who owns which part of the items region: size classes cut out of pages.
//!
//! The region is divided into pages. A page belongs to one class, whose chunks fill it; an item
//! lives in one chunk. When a class is full it takes a page that nobody has, then one that stands
//! empty, then evicts its own items, the oldest first. A class without a page uses chunks of one
//! up to four times as large; where there is none, it takes a page from another class, in turn.
//! (A policy with recency, and pages that move for balance, come later.)
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
    /// How many pages have a class but nothing in them.
    empty: u32,
    /// The page to look at first when one is taken away.
    hand: u32,
}

#[derive(Debug, Default)]
struct Page {
    class: usize,
    chunks: Vec<Chunk>,
    free: Vec<u32>,
    reserved: u32,
}

impl Page {
    fn is_empty(&self) -> bool {
        self.free.len() == self.chunks.len()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Chunk {
    Free,
    /// Given out, its item not yet published: stays where it is.
    Reserved,
    /// In the list of its class, by age.
    Live(Neighbours),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Neighbours {
    older: Option<Link>,
    newer: Option<Link>,
}

/// A place, with room for `None`.
type Link = std::num::NonZeroU32;

fn link(place: Place) -> Option<Link> {
    Link::new(place.0 + 1)
}

fn place(link: Link) -> Place {
    Place(link.get() - 1)
}

#[derive(Debug)]
struct Class {
    units: u32,
    /// How many pages it has.
    pages: u32,
    /// Those of its pages with a free chunk.
    roomy: Vec<u32>,
    oldest: Option<Link>,
    newest: Option<Link>,
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
            empty: 0,
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
        if let Some(page) = self.unowned.pop().or_else(|| self.take_empty_page()) {
            self.give(page, class);
            return self.take_chunk(class);
        }
        let class = self.nearest_with_page(class).unwrap_or(class);
        if self.classes[class].roomy.is_empty() {
            self.make_room(class, evict)?;
        }
        self.take_chunk(class)
    }

    /// The reserved chunk at `place` now holds a live item, the newest of its class.
    pub fn publish(&mut self, at: Place) {
        let (number, chunk) = self.find(at);
        let page = &mut self.pages[number];
        page.reserved -= 1;
        let newest = self.classes[page.class].newest;
        page.chunks[chunk] = Chunk::Live(Neighbours {
            older: newest,
            newer: None,
        });
        self.classes[self.pages[number].class].newest = link(at);
        match newest {
            Some(older) => self.neighbours(place(older)).newer = link(at),
            None => self.classes[self.pages[number].class].oldest = link(at),
        }
    }

    /// The chunk at `place`, reserved or live, is free again.
    pub fn free(&mut self, at: Place) {
        let (number, chunk) = self.find(at);
        let page = &mut self.pages[number];
        match std::mem::replace(&mut page.chunks[chunk], Chunk::Free) {
            Chunk::Free => return,
            Chunk::Reserved => page.reserved -= 1,
            Chunk::Live(neighbours) => self.unlist(number, neighbours),
        }
        let page = &mut self.pages[number];
        if page.free.is_empty() {
            self.classes[page.class].roomy.push(number as u32);
        }
        page.free.push(chunk as u32);
        self.empty += u32::from(page.is_empty());
    }

    /// Takes a chunk of page `number` out of its class's list.
    fn unlist(&mut self, number: usize, Neighbours { older, newer }: Neighbours) {
        let class = self.pages[number].class;
        match newer {
            Some(newer) => self.neighbours(place(newer)).older = older,
            None => self.classes[class].newest = older,
        }
        match older {
            Some(older) => self.neighbours(place(older)).newer = newer,
            None => self.classes[class].oldest = newer,
        }
    }

    /// The neighbours of a live chunk: only live ones are in lists.
    fn neighbours(&mut self, at: Place) -> &mut Neighbours {
        let (number, chunk) = self.find(at);
        match &mut self.pages[number].chunks[chunk] {
            Chunk::Live(neighbours) => neighbours,
            other => unreachable!("{at:?} is {other:?} and in a list"),
        }
    }

    /// The page that a place is in, and the chunk in it.
    fn find(&self, at: Place) -> (usize, usize) {
        let number = (at.0 / self.page_units) as usize;
        let units = self.classes[self.pages[number].class].units;
        (number, (at.0 % self.page_units / units) as usize)
    }

    /// The class itself or a larger one that has pages, if it is not much larger: where memory is
    /// small, not every class can have a page.
    fn nearest_with_page(&self, class: usize) -> Option<usize> {
        let limit = self.classes[class].units.saturating_mul(4);
        let mut near = (class..self.classes.len()).take_while(|&n| self.classes[n].units <= limit);
        near.find(|&n| self.classes[n].pages > 0)
    }

    fn take_chunk(&mut self, class: usize) -> Option<Place> {
        let class = &mut self.classes[class];
        let number = *class.roomy.last()?;
        let page = &mut self.pages[number as usize];
        self.empty -= u32::from(page.is_empty());
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
        if let Some(oldest) = self.classes[class].oldest {
            evict(place(oldest));
            self.free(place(oldest));
            return Some(());
        }
        let count = self.pages.len() as u32;
        let mut numbers = (0..count).map(|n| (self.hand + n) % count);
        let number = numbers.find(|&n| self.pages[n as usize].reserved == 0)?;
        self.hand = (number + 1) % count;
        for at in self.live(number) {
            evict(at);
            self.free(at);
        }
        self.disown(number);
        self.give(number, class);
        Some(())
    }

    fn live(&self, number: u32) -> Vec<Place> {
        let page = &self.pages[number as usize];
        let units = self.classes[page.class].units;
        let chunks = (0u32..).zip(&page.chunks);
        chunks
            .filter(|(_, chunk)| matches!(chunk, Chunk::Live(_)))
            .map(|(n, _)| Place(number * self.page_units + n * units))
            .collect()
    }

    /// Where all live items are.
    pub fn all_live(&self) -> Vec<Place> {
        let numbers = 0..self.pages.len() as u32;
        numbers.flat_map(|number| self.live(number)).collect()
    }

    fn take_empty_page(&mut self) -> Option<u32> {
        if self.empty == 0 {
            return None;
        }
        let mut roomy = self.classes.iter().flat_map(|class| &class.roomy);
        let number = *roomy.find(|&&n| self.pages[n as usize].is_empty())?;
        self.disown(number);
        Some(number)
    }

    /// Takes an empty page away from its class.
    fn disown(&mut self, number: u32) {
        let page = std::mem::take(&mut self.pages[number as usize]);
        let class = &mut self.classes[page.class];
        class.pages -= 1;
        class.roomy.retain(|&n| n != number);
        self.empty -= 1;
    }

    fn give(&mut self, number: u32, class: usize) {
        let count = self.page_units / self.classes[class].units;
        self.pages[number as usize] = Page {
            class,
            chunks: vec![Chunk::Free; count as usize],
            free: (0..count).rev().collect(),
            reserved: 0,
        };
        self.classes[class].pages += 1;
        self.classes[class].roomy.push(number);
        self.empty += 1;
    }
}

impl Class {
    fn new(units: u32) -> Self {
        Class {
            units,
            pages: 0,
            roomy: Vec::new(),
            oldest: None,
            newest: None,
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
    fn what_is_set_into_freed_memory_is_new() {
        let mut arena = Arena::new(1 << 20, PAGE);
        let reserve = |arena: &mut Arena| {
            let mut evicted = None;
            let place = arena
                .reserve(512, &mut |place| evicted = Some(place))
                .unwrap();
            arena.publish(place);
            (place, evicted)
        };
        let first: Vec<Place> = (0..2048).map(|_| reserve(&mut arena).0).collect();
        arena.free(first[0]);
        arena.free(first[7]);
        assert_eq!(reserve(&mut arena), (first[7], None));
        assert_eq!(reserve(&mut arena), (first[0], None));
        for n in (1..7).chain(8..2048) {
            assert_eq!(reserve(&mut arena), (first[n], Some(first[n])));
        }
        assert_eq!(reserve(&mut arena), (first[7], Some(first[7])));
        assert_eq!(reserve(&mut arena), (first[0], Some(first[0])));
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
