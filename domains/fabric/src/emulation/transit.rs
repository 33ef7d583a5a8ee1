//! Messages under way in one direction.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::Arc;

use super::Way;
use super::timer::NEVER;
use crate::core::peer_link::{Freight, Leg};
use crate::model::{Nanos, Passage, SharedClocks, StageList};
use crate::routing::Trip;

/// A message on its way, which reserves a stage when the message reaches it.
#[derive(Debug)]
pub(super) struct Journey {
    way: Option<Arc<Way>>,
    leg: Leg,
    /// The route, if routers choose it.
    trip: Option<Trip>,
    passage: Passage,
    /// Jitter and retries.
    delay: Nanos,
    /// [`NEVER`] until the last stage is reserved.
    pub(super) arrival: Nanos,
}

impl Journey {
    /// A message that is ready at `ready`; without a way it arrives then.
    pub(super) fn new(
        way: Option<&Arc<Way>>,
        leg: Leg,
        ready: Nanos,
        freight: Freight,
        random: &mut fastrand::Rng,
    ) -> Self {
        Journey {
            way: way.cloned(),
            leg,
            trip: way.and_then(|way| way.trip(leg, ready, &freight)),
            passage: Passage::new(ready, freight.bytes),
            delay: way.map_or(0, |way| way.delay(leg, random)),
            arrival: if way.is_some() { NEVER } else { ready },
        }
    }

    pub(super) fn leg(&self) -> Leg {
        self.leg
    }

    /// Reserves the stages that the message reaches until then. Returns the time at which the
    /// message reaches the next one, or [`NEVER`] behind the last one.
    pub(super) fn advance(&mut self, until: Nanos) -> Nanos {
        let Some(way) = self.way.as_ref().filter(|_| self.arrival == NEVER) else {
            return NEVER;
        };
        let (passage, delay) = (&mut self.passage, self.delay);
        let reached = match &self.trip {
            Some(trip) => pass(passage, trip, &way.clocks, until, delay),
            None => pass(passage, way.route(self.leg), &way.clocks, until, delay),
        };
        match reached {
            Reached::Stage(next) => next,
            Reached::End(arrival) => {
                self.arrival = arrival;
                if let Some(trip) = &self.trip {
                    trip.passed(&self.passage);
                }
                NEVER
            }
        }
    }
}

/// Times of a message on its way.
enum Reached {
    Stage(Nanos),
    End(Nanos),
}

fn pass(
    passage: &mut Passage,
    route: &impl StageList,
    clocks: &SharedClocks,
    until: Nanos,
    delay: Nanos,
) -> Reached {
    passage.advance(route, clocks, until);
    match passage.reaches(route) {
        Some(next) => Reached::Stage(next),
        None => Reached::End(passage.times(route, delay).arrival),
    }
}

/// Messages of one direction, which take effect in the order in which they were sent.
#[derive(Debug)]
pub(super) struct Transit<T> {
    messages: VecDeque<Message<T>>,
    /// Number of the first message.
    first: u64,
    /// Messages that reach a stage at a time, by their number.
    reaches: BinaryHeap<Reverse<(Nanos, u64)>>,
    /// The time of the last message that has taken effect.
    last: Nanos,
}

/// A message with the time at which it takes effect.
#[derive(Debug)]
struct Message<T> {
    content: T,
    journey: Journey,
    /// Nanoseconds before the arrival.
    lead: Nanos,
    /// The earliest time.
    floor: Nanos,
}

/// A message that takes effect.
#[derive(Debug)]
pub(super) struct Arrived<T> {
    pub(super) content: T,
    pub(super) way: Option<Arc<Way>>,
    /// The time at which the message takes effect.
    pub(super) due: Nanos,
    pub(super) arrival: Nanos,
}

impl<T> Default for Transit<T> {
    fn default() -> Self {
        Transit {
            messages: VecDeque::new(),
            first: 0,
            reaches: BinaryHeap::new(),
            last: 0,
        }
    }
}

impl<T> Message<T> {
    fn due(&self) -> Nanos {
        match self.journey.arrival {
            NEVER => NEVER,
            arrival => arrival.saturating_sub(self.lead).max(self.floor),
        }
    }
}

impl<T> Transit<T> {
    /// Sends a message at `now`. It takes effect `lead` before its arrival, but not before `floor`.
    pub(super) fn send(
        &mut self,
        content: T,
        journey: Journey,
        [lead, floor]: [Nanos; 2],
        now: Nanos,
    ) {
        self.messages.push_back(Message {
            content,
            journey,
            lead,
            floor,
        });
        self.advance_one(self.first + self.messages.len() as u64 - 1, now);
    }

    pub(super) fn len(&self) -> usize {
        self.messages.len()
    }

    /// Reserves the stages that messages reach until then.
    pub(super) fn advance(&mut self, until: Nanos) {
        while let Some(Reverse((time, number))) = self.reaches.peek().copied()
            && time <= until
        {
            self.reaches.pop();
            self.advance_one(number, time);
        }
    }

    fn advance_one(&mut self, number: u64, until: Nanos) {
        let next = match self.messages.get_mut((number - self.first) as usize) {
            Some(message) => message.journey.advance(until),
            None => NEVER,
        };
        if next != NEVER {
            self.reaches.push(Reverse((next, number)));
        }
    }

    /// Takes the first message if it takes effect until then.
    pub(super) fn take(&mut self, until: Nanos) -> Option<Arrived<T>> {
        let due = self.due();
        if due > until {
            return None;
        }
        let message = self.messages.pop_front()?;
        self.first += 1;
        self.last = due;
        Some(Arrived {
            content: message.content,
            way: message.journey.way,
            due,
            arrival: message.journey.arrival.max(due),
        })
    }

    /// The time at which the first message takes effect, or [`NEVER`] as long as that is unknown.
    pub(super) fn due(&self) -> Nanos {
        let first = self.messages.front();
        first.map_or(NEVER, |first| first.due().max(self.last))
    }

    /// The time at which a message reaches a stage, or [`NEVER`].
    pub(super) fn reach(&self) -> Nanos {
        let first = self.reaches.peek();
        first.map_or(NEVER, |Reverse((time, _))| *time)
    }

    /// The time at which all messages have taken effect, or [`NEVER`] as long as that is unknown.
    pub(super) fn end(&self) -> Nanos {
        let times = self.messages.iter().map(Message::due);
        times.fold(self.last, Nanos::max)
    }
}
