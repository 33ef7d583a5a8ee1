//! The event queue: a wheel with one slot per tick.
//!
//! A slot lists its events in the order of scheduling, so no event is ever compared with another:
//! an event is appended to its slot, and a bitmap finds the next slot in use. The order of all
//! events is by time, then by scheduling, and the same calls give the same trace.
//!
//! The wheel spans [`SPAN`] ticks. Events of later windows wait in lists, one a window; a window's
//! list is dealt to the slots when the window begins.

use std::collections::BTreeMap;

use super::Ticks;

/// Ticks of a window, 4 us. Most events of a fabric lie less than 1 us ahead.
const SPAN: u64 = 1 << SPAN_LOG2;
const SPAN_LOG2: u32 = 15;
const WORDS: usize = SPAN as usize / 64;

/// End of a list.
const NONE: u32 = u32::MAX;

/// Events in order of time. Events of one tick keep the order of their scheduling.
#[derive(Debug)]
pub struct Wheel<E> {
    now: Ticks,
    /// First tick of the window that the slots stand for, a multiple of [`SPAN`].
    window: Ticks,
    slots: Box<[List]>,
    /// Bit for each slot with events.
    used: Box<[u64]>,
    /// Bit for each word of `used` that is not 0.
    used_words: [u64; WORDS / 64],
    /// Events after the window, by the number of their window.
    later: BTreeMap<u64, List>,
    nodes: Vec<Node<E>>,
    /// First of the unused nodes.
    free: u32,
    len: usize,
}

#[derive(Clone, Copy, Debug)]
struct List {
    head: u32,
    tail: u32,
}

const EMPTY: List = List {
    head: NONE,
    tail: NONE,
};

#[derive(Clone, Copy, Debug)]
struct Node<E> {
    event: E,
    /// Tick within the window.
    slot: u32,
    next: u32,
}

impl<E: Copy> Default for Wheel<E> {
    fn default() -> Self {
        Self::new()
    }
}

impl<E: Copy> Wheel<E> {
    /// Bytes for each pending event.
    pub const MEMORY: u64 = size_of::<Node<E>>() as u64;

    /// No events, at tick 0.
    pub fn new() -> Self {
        Wheel {
            now: 0,
            window: 0,
            slots: vec![EMPTY; SPAN as usize].into(),
            used: vec![0; WORDS].into(),
            used_words: [0; WORDS / 64],
            later: BTreeMap::new(),
            nodes: Vec::new(),
            free: NONE,
            len: 0,
        }
    }

    /// Time of the last event that [`Wheel::pop`] returned.
    pub fn now(&self) -> Ticks {
        self.now
    }

    /// Events that are pending.
    pub fn pending(&self) -> usize {
        self.len
    }

    /// Adds an event. An event of the past happens now.
    pub fn schedule(&mut self, at: Ticks, event: E) {
        let at = at.max(self.now);
        let node = self.take(event, (at % SPAN) as u32);
        self.len += 1;
        if at - self.window < SPAN {
            self.append(node);
        } else {
            let list = self.later.entry(at >> SPAN_LOG2).or_insert(EMPTY);
            append(&mut self.nodes, list, node);
        }
    }

    /// Removes the earliest event, and advances to its time.
    pub fn pop(&mut self) -> Option<(Ticks, E)> {
        let slot = match self.next_slot() {
            Some(slot) => slot,
            None => {
                self.next_window()?;
                self.next_slot()?
            }
        };
        let list = &mut self.slots[slot];
        let index = list.head;
        let node = &mut self.nodes[index as usize];
        list.head = node.next;
        let event = node.event;
        node.next = self.free;
        self.free = index;
        if list.head == NONE {
            self.clear(slot);
        }
        self.len -= 1;
        self.now = self.window + slot as u64;
        Some((self.now, event))
    }

    /// The first slot with events. No slot before the current tick has any.
    fn next_slot(&self) -> Option<usize> {
        let current = (self.now.saturating_sub(self.window)) as usize / 64;
        if self.used[current] != 0 {
            return Some(current * 64 + self.used[current].trailing_zeros() as usize);
        }
        let group = (0..self.used_words.len()).find(|&group| self.used_words[group] != 0)?;
        let word = group * 64 + self.used_words[group].trailing_zeros() as usize;
        Some(word * 64 + self.used[word].trailing_zeros() as usize)
    }

    /// Deals the events of the next window that has any.
    fn next_window(&mut self) -> Option<()> {
        let (window, list) = self.later.pop_first()?;
        self.window = window << SPAN_LOG2;
        let mut index = list.head;
        while index != NONE {
            let next = self.nodes[index as usize].next;
            self.append(index);
            index = next;
        }
        Some(())
    }

    fn append(&mut self, index: u32) {
        let slot = self.nodes[index as usize].slot as usize;
        append(&mut self.nodes, &mut self.slots[slot], index);
        self.used[slot / 64] |= 1 << (slot % 64);
        self.used_words[slot / 4096] |= 1 << (slot / 64 % 64);
    }

    fn clear(&mut self, slot: usize) {
        self.used[slot / 64] &= !(1 << (slot % 64));
        if self.used[slot / 64] == 0 {
            self.used_words[slot / 4096] &= !(1 << (slot / 64 % 64));
        }
    }

    fn take(&mut self, event: E, slot: u32) -> u32 {
        let node = Node {
            event,
            slot,
            next: NONE,
        };
        let index = self.free;
        if index == NONE {
            self.nodes.push(node);
            return (self.nodes.len() - 1) as u32;
        }
        self.free = self.nodes[index as usize].next;
        self.nodes[index as usize] = node;
        index
    }
}

fn append<E>(nodes: &mut [Node<E>], list: &mut List, index: u32) {
    nodes[index as usize].next = NONE;
    match list.head {
        NONE => list.head = index,
        _ => nodes[list.tail as usize].next = index,
    }
    list.tail = index;
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Delays of the events that a test adds, and how many events it takes before each.
    fn steps() -> impl Strategy<Value = Vec<(u64, usize)>> {
        let delay = prop_oneof![0..100u64, 0..2 * SPAN, 0..50 * SPAN];
        prop::collection::vec((delay, 0..3usize), 1..300)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// The wheel returns the events of a sorted list, with equal times in order of scheduling.
        #[test]
        fn order_is_that_of_a_sorted_list(steps in steps()) {
            let (mut wheel, mut sorted) = (Wheel::new(), BTreeMap::new());
            for (number, (delay, taken)) in steps.into_iter().enumerate() {
                let at = wheel.now() + delay;
                wheel.schedule(at, number);
                sorted.insert((at, number), ());
                for _ in 0..taken {
                    let due = sorted.pop_first().map(|((at, number), ())| (at, number));
                    prop_assert_eq!(wheel.pop(), due);
                }
                prop_assert_eq!(wheel.pending(), sorted.len());
            }
            for ((at, number), ()) in sorted {
                prop_assert_eq!(wheel.pop(), Some((at, number)));
            }
            prop_assert_eq!(wheel.pop(), None);
        }
    }

    #[test]
    fn an_event_of_the_past_happens_now_and_last() {
        let mut wheel = Wheel::new();
        wheel.schedule(10, 'a');
        wheel.schedule(10, 'b');
        assert_eq!(wheel.pop(), Some((10, 'a')));
        wheel.schedule(3, 'c');
        assert_eq!(wheel.pop(), Some((10, 'b')));
        assert_eq!(wheel.pop(), Some((10, 'c')));
    }
}
