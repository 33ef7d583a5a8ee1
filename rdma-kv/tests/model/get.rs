//! Steps of a reader.

use toroid_kv::internals::layout::{Bucket, FlushEpoch, TableEpoch};

use super::{Item, Placement, SLOTS, State, Without, Word};

/// Lookups of a reader before it asks the server.
const LOOKUPS: u8 = 2;

/// A get under way.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Get {
    key: u8,
    /// Values of the key since the start of the get: bit 0 for absent, other bits by generation.
    was: u16,
    lookups: u8,
    step: Step,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Step {
    /// Reads the words of a bucket, one after the other.
    Words { words: Vec<Option<Word>> },
    /// Reads the pieces of an item.
    Item {
        at: Placement,
        /// Remaining words of the bucket; `None` if the location was cached.
        left: Option<Vec<Placement>>,
        pieces: [Option<Item>; 2],
    },
    /// Reads the slot again.
    Slot {
        at: Placement,
        left: Option<Vec<Placement>>,
        item: Item,
    },
    /// Reads the epochs after a miss.
    Epochs,
}

impl Get {
    pub fn witness(&mut self, key: u8, value: Option<u8>) {
        if key == self.key {
            self.was |= 1 << value.unwrap_or(0);
        }
    }

    pub fn may_begin_with_second(&self) -> bool {
        matches!(&self.step, Step::Item { pieces, .. } if *pieces == [None; 2])
    }

    fn item(at: Placement, left: Option<Vec<Placement>>) -> Step {
        Step::Item {
            at,
            left,
            pieces: [None; 2],
        }
    }
}

/// Continuation of a get.
enum Then {
    Step(Step),
    LookUp,
    Absent,
    Found(Item),
}

impl State {
    pub fn begin_get(&mut self, client: usize, key: u8) {
        let (now, client) = (self.now[usize::from(key)], &mut self.clients[client]);
        client.gets_left -= 1;
        let mut get = Get {
            key,
            was: 0,
            lookups: 0,
            step: match client.places[usize::from(key)] {
                Some(place) => Get::item(place, None),
                None => Step::Words { words: vec![] },
            },
        };
        get.witness(key, now);
        client.get = Some(get);
    }

    pub fn read(&mut self, client: usize, second: bool, without: Without) {
        let Some(mut get) = self.clients[client].get.take() else {
            return;
        };
        let then = match get.step.clone() {
            Step::Words { words } => self.read_word(client, get.key, words),
            Step::Item { at, left, pieces } => {
                Then::Step(self.read_piece(at, left, pieces, second))
            }
            Step::Slot { at, left, item } => {
                self.look_again(client, get.key, (at, left, item), without)
            }
            Step::Epochs => self.look_at_epochs(client, get.key, without),
        };
        match then {
            Then::Step(step) => get.step = step,
            Then::LookUp => {
                self.clients[client].places[usize::from(get.key)] = None;
                get.lookups += 1;
                get.step = Step::Words { words: vec![] };
                if get.lookups > LOOKUPS {
                    // The server answers, always correctly.
                    return;
                }
            }
            Then::Absent => return self.judge(get.was & 1 != 0),
            Then::Found(Item {
                generation, copy, ..
            }) => {
                return self.judge(generation == copy && get.was >> generation & 1 != 0);
            }
        }
        self.clients[client].get = Some(get);
    }

    fn judge(&mut self, right: bool) {
        self.wrong |= !right;
    }

    fn read_word(&self, client: usize, key: u8, mut words: Vec<Option<Word>>) -> Then {
        let first = State::bucket(self.clients[client].table, key) * SLOTS;
        words.push(self.slots[first + words.len()]);
        if words.len() < SLOTS {
            return Then::Step(Step::Words { words });
        }
        let places = (first as u8..).zip(words);
        let places = places.filter_map(|(slot, word)| Some(Placement { slot, word: word? }));
        Then::Step(next_item(places.collect()))
    }

    fn read_piece(
        &self,
        at: Placement,
        left: Option<Vec<Placement>>,
        mut pieces: [Option<Item>; 2],
        second: bool,
    ) -> Step {
        let piece = match pieces {
            [None, None] => usize::from(second),
            [None, _] => 0,
            _ => 1,
        };
        pieces[piece] = Some(self.items[usize::from(at.word.place)]);
        match pieces {
            [Some(first), Some(second)] => Step::Slot {
                at,
                left,
                item: Item {
                    copy: second.copy,
                    ..first
                },
            },
            _ => Step::Item { at, left, pieces },
        }
    }

    fn look_again(
        &mut self,
        client: usize,
        key: u8,
        (at, left, item): (Placement, Option<Vec<Placement>>, Item),
        without: Without,
    ) -> Then {
        let changed = self.slots[usize::from(at.slot)] != Some(at.word);
        if changed && without != Without::SecondLook {
            return Then::LookUp;
        }
        if item.generation != at.word.generation && without != Without::Generations {
            return Then::LookUp;
        }
        if item.key != key && without != Without::Keys {
            return match left {
                Some(left) => Then::Step(next_item(left)),
                None => Then::LookUp,
            };
        }
        self.clients[client].places[usize::from(key)] = Some(at);
        Then::Found(item)
    }

    fn look_at_epochs(&mut self, client: usize, key: u8, without: Without) -> Then {
        let client = &mut self.clients[client];
        let bucket = Bucket::main(State::bucket(client.table, key) as u32);
        let disturbed = TableEpoch(self.table).disturbs(TableEpoch(client.table), bucket);
        let flushing = FlushEpoch(self.flush).is_flushing();
        client.table = self.table;
        if disturbed && without != Without::TableEpoch || flushing && without != Without::FlushEpoch
        {
            Then::LookUp
        } else {
            Then::Absent
        }
    }
}

fn next_item(mut left: Vec<Placement>) -> Step {
    if left.is_empty() {
        Step::Epochs
    } else {
        let at = left.remove(0);
        Get::item(at, Some(left))
    }
}
