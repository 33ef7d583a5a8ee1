//! The events of a network in order of time, and happenings for its program.

use std::collections::VecDeque;

use super::slab::Slab;
use super::wheel::Wheel;
use super::{Happening, Ticks};

/// Events `E` of a network, timers of its program, and happenings that the program has not seen.
#[derive(Debug)]
pub struct Agenda<E> {
    wheel: Wheel<Entry<E>>,
    /// Tokens, which are too long for an entry.
    timers: Slab<u64>,
    happenings: VecDeque<Happening>,
    events: u64,
}

#[derive(Clone, Copy, Debug)]
enum Entry<E> {
    Event(E),
    Timer(u32),
}

/// What is next.
#[derive(Clone, Copy, Debug)]
pub enum Next<E> {
    /// For the network.
    Event(E),
    /// For the program.
    Happening(Happening),
}

impl<E: Copy> Agenda<E> {
    /// Bytes for each pending event.
    pub const MEMORY: u64 = Wheel::<Entry<E>>::MEMORY;

    /// Nothing, at tick 0.
    pub fn new() -> Self {
        Agenda {
            wheel: Wheel::new(),
            timers: Slab::new(),
            happenings: VecDeque::new(),
            events: 0,
        }
    }

    /// Time of the last event or timer.
    #[inline]
    pub fn now(&self) -> Ticks {
        self.wheel.now()
    }

    /// Events and timers so far.
    pub fn events(&self) -> u64 {
        self.events
    }

    /// Adds an event.
    #[inline]
    pub fn schedule(&mut self, at: Ticks, event: E) {
        self.wheel.schedule(at, Entry::Event(event));
    }

    /// Adds a timer of the program.
    pub fn timer(&mut self, at: Ticks, token: u64) {
        let index = self.timers.insert(token);
        self.wheel.schedule(at, Entry::Timer(index));
    }

    /// Adds a happening of now, before all later events.
    #[inline]
    pub fn report(&mut self, what: Happening) {
        self.happenings.push_back(what);
    }

    /// Advances to the next event or timer once the program has seen all happenings.
    #[inline]
    pub fn next(&mut self) -> Option<Next<E>> {
        if let Some(what) = self.happenings.pop_front() {
            return Some(Next::Happening(what));
        }
        let (_, entry) = self.wheel.pop()?;
        self.events += 1;
        Some(match entry {
            Entry::Event(event) => Next::Event(event),
            Entry::Timer(index) => Next::Happening(Happening::Timer(self.timers.remove(index))),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_no_larger_than_an_event() {
        #[derive(Clone, Copy)]
        enum Event {
            _One(u32),
            _Two { _flits: u8, _channel: u32 },
        }
        assert_eq!(size_of::<Entry<Event>>(), size_of::<Event>());
    }

    #[test]
    fn the_program_sees_what_happened_before_the_next_event() {
        let mut agenda = Agenda::new();
        agenda.schedule(5, 'a');
        agenda.timer(5, 7);
        assert!(matches!(agenda.next(), Some(Next::Event('a'))));
        agenda.report(Happening::Delivered(1));
        let rest = [(); 3].map(|()| match agenda.next() {
            Some(Next::Happening(what)) => Some(what),
            _ => None,
        });
        let expected = [Happening::Delivered(1), Happening::Timer(7)];
        assert_eq!(rest[..2], expected.map(Some));
        assert_eq!((rest[2], agenda.now(), agenda.events()), (None, 5, 2));
    }
}
