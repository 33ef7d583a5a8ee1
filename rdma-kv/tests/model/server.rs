//! Steps of the server.

use toroid_kv::internals::layout::{FlushEpoch, TableEpoch};

use super::{Action, Item, PLACES, Placement, SLOTS, State, Without, Word};

/// Operation of the server, and its next step.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Job {
    Set {
        client: u8,
        key: u8,
        word: Word,
        step: u8,
    },
    Flush,
    Grow {
        step: u8,
    },
}

/// A part of a set.
enum Part {
    First,
    Second,
    Publishing,
}

impl Part {
    fn order(without: Without) -> [Part; 3] {
        match without {
            Without::WritingFirst => [Part::Publishing, Part::First, Part::Second],
            _ => [Part::First, Part::Second, Part::Publishing],
        }
    }
}

impl State {
    pub fn serves(&self, by: usize) -> bool {
        matches!(self.job, Some(Job::Set { client, .. }) if usize::from(client) == by)
    }

    pub fn offer_changes(&self, actions: &mut Vec<Action>) {
        let idle = (0..2).filter(|client| self.clients[*client].get.is_none());
        for client in idle {
            for key in [0, 1] {
                actions.push(Action::Set { client, key });
                if self.now[usize::from(key)].is_some() {
                    actions.push(Action::Delete { client, key });
                }
            }
        }
        actions.push(Action::Flush);
    }

    pub fn begin_set(&mut self, client: usize, key: u8, without: Without) {
        self.changes_left -= 1;
        self.generation += 1;
        let is_free = |place: &u8| !self.slots.iter().flatten().any(|word| word.place == *place);
        let old = self.slot_of(key).and_then(|slot| self.slots[slot]);
        let place = match old {
            Some(old) if without == Without::UnlinkingFirst => Some(old.place),
            _ => (0..PLACES as u8).find(is_free),
        };
        self.job = Some(Job::Set {
            client: client as u8,
            key,
            word: Word {
                place: place.expect("there are more places than keys"),
                generation: match without {
                    Without::Generations => 0,
                    _ => self.generation,
                },
            },
            step: 0,
        });
    }

    /// One step: the slot is cleared.
    pub fn delete(&mut self, client: usize, key: u8) {
        self.changes_left -= 1;
        self.clients[client].places[usize::from(key)] = None;
        if let Some(slot) = self.slot_of(key) {
            self.slots[slot] = None;
        }
        self.become_now(key, None);
    }

    pub fn begin_flush(&mut self) {
        self.changes_left -= 1;
        self.flush = FlushEpoch(self.flush).next().0;
        self.job = Some(Job::Flush);
    }

    pub fn begin_growth(&mut self) {
        self.job = Some(Job::Grow { step: 0 });
    }

    pub fn serve(&mut self, without: Without) {
        match self.job.take() {
            Some(Job::Set {
                client,
                key,
                word,
                step,
            }) => {
                match Part::order(without)[usize::from(step)] {
                    Part::Publishing => self.publish(client.into(), key, word),
                    Part::First => {
                        let item = &mut self.items[usize::from(word.place)];
                        (item.generation, item.key) = (self.generation, key);
                    }
                    Part::Second => self.items[usize::from(word.place)].copy = self.generation,
                }
                if step < 2 {
                    let step = step + 1;
                    self.job = Some(Job::Set {
                        client,
                        key,
                        word,
                        step,
                    });
                }
            }
            Some(Job::Flush) => self.flush_one(),
            Some(Job::Grow { step }) => self.grow(step),
            None => {}
        }
    }

    fn publish(&mut self, client: usize, key: u8, word: Word) {
        let bucket = State::bucket(self.table, key) * SLOTS;
        let vacant = (bucket..bucket + SLOTS).find(|slot| self.slots[*slot].is_none());
        let slot = self.slot_of(key).or(vacant).expect("two keys have room");
        self.slots[slot] = Some(word);
        let slot = slot as u8;
        self.clients[client].places[usize::from(key)] = Some(Placement { slot, word });
        self.become_now(key, Some(self.generation));
    }

    /// Clears a slot. Without one left the flush takes effect, and ends.
    fn flush_one(&mut self) {
        if let Some(slot) = self.slots.iter_mut().find(|slot| slot.is_some()) {
            *slot = None;
            self.job = Some(Job::Flush);
            return;
        }
        self.flush = FlushEpoch(self.flush).next().0;
        self.become_now(0, None);
        self.become_now(1, None);
    }

    /// The second key goes to the second bucket, and the first one to the start of the first.
    fn grow(&mut self, step: u8) {
        let second = (0..SLOTS).find(|slot| self.holds(*slot, 1));
        match step {
            0 => self.slots[SLOTS] = second.and_then(|slot| self.slots[slot]),
            1 => self.table = TableEpoch::new(2, true).0,
            2 => {
                if let Some(slot) = second {
                    self.slots[slot] = None;
                }
            }
            3 => self.slots[0] = self.slots[0].or(self.slots[1]),
            4 => self.slots[1] = None,
            _ => self.table = TableEpoch::new(2, false).0,
        }
        if step < 5 {
            self.job = Some(Job::Grow { step: step + 1 });
        }
    }

    /// The slot in which the server finds a key.
    fn slot_of(&self, key: u8) -> Option<usize> {
        let first = State::bucket(self.table, key) * SLOTS;
        (first..first + SLOTS).find(|slot| self.holds(*slot, key))
    }

    fn holds(&self, slot: usize, key: u8) -> bool {
        let item = |word: Word| -> Item { self.items[usize::from(word.place)] };
        self.slots[slot].is_some_and(|word| item(word).key == key)
    }
}
