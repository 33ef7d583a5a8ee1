//! A small model of the protocol between one server and its readers, in all interleavings: two
//! clients get, set, delete and flush two keys of one tag, while the index grows.
//!
//! The server carries out one operation after another, as under its lock, in the steps that readers
//! can see. A reader reads an item in two pieces, in either order. Memory is reused as early as
//! possible. A specification beside the protocol decides correctness: each key has a value, which
//! changes at the linearization point of an operation. A get must return a value that its key had
//! between its start and end.
//!
//! Generations are small numbers here and never wrap in a slot word. In the real protocol they wrap
//! after 131,072 sets, and no get lasts as long.

mod get;
mod server;

use stateright::{Checker, Model, Property};
use toroid_kv::internals::layout::{FlushEpoch, TableEpoch};

use get::Get;
use server::Job;

/// Number of item addresses: one for each key, and one for the next item.
const PLACES: usize = 3;

/// Slots of a bucket.
const SLOTS: usize = 2;

/// Part of the protocol that is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Without {
    Nothing,
    SecondLook,
    Generations,
    Keys,
    WritingFirst,
    UnlinkingFirst,
    TableEpoch,
    FlushEpoch,
}

/// An item: its value is its generation, and its second piece is a copy of that.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Item {
    generation: u8,
    key: u8,
    copy: u8,
}

/// Content of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Word {
    place: u8,
    generation: u8,
}

/// Location of a key in a client's cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Placement {
    slot: u8,
    word: Word,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Client {
    places: [Option<Placement>; 2],
    /// The table epoch that it last saw.
    table: u64,
    get: Option<Get>,
    gets_left: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    items: [Item; PLACES],
    /// Slots of two buckets. The second bucket is used after the index has grown.
    slots: [Option<Word>; 2 * SLOTS],
    table: u64,
    flush: u64,
    generation: u8,
    job: Option<Job>,
    changes_left: u8,
    clients: [Client; 2],
    /// Current value of each key, by the specification.
    now: [Option<u8>; 2],
    /// Whether a get returned a value that its key did not have.
    wrong: bool,
}

impl State {
    /// The bucket of a key at this table epoch; after the growth the second key has the second
    /// bucket.
    fn bucket(table: u64, key: u8) -> usize {
        match TableEpoch(table).count() {
            1 => 0,
            _ => usize::from(key),
        }
    }

    /// Applies an operation at its linearization point.
    fn become_now(&mut self, key: u8, value: Option<u8>) {
        self.now[usize::from(key)] = value;
        let gets = self
            .clients
            .iter_mut()
            .filter_map(|client| client.get.as_mut());
        gets.for_each(|get| get.witness(key, value));
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Set {
        client: usize,
        key: u8,
    },
    Delete {
        client: usize,
        key: u8,
    },
    Flush,
    Grow,
    /// The server's next step.
    Serve,
    Get {
        client: usize,
        key: u8,
    },
    /// A reader's next step; of an item's pieces, the second one first.
    Read {
        client: usize,
        second: bool,
    },
}

struct Protocol {
    without: Without,
}

impl Model for Protocol {
    type State = State;
    type Action = Action;

    /// Both keys are present; the first client has cached both locations, or none.
    fn init_states(&self) -> Vec<State> {
        let word = |n: u8| Word {
            place: n,
            generation: n + 1,
        };
        let item = |n: u8| Item {
            generation: n + 1,
            key: n,
            copy: n + 1,
        };
        let table = TableEpoch::new(1, false).0;
        let client = Client {
            table,
            gets_left: 2,
            ..Client::default()
        };
        let place = |n: u8| {
            Some(Placement {
                slot: n,
                word: word(n),
            })
        };
        let knows = Client {
            places: [place(0), place(1)],
            ..client.clone()
        };
        let with = |first: &Client| State {
            items: [item(0), item(1), Item::default()],
            slots: [Some(word(0)), Some(word(1)), None, None],
            table,
            flush: FlushEpoch::default().0,
            generation: 2,
            job: None,
            changes_left: 3,
            clients: [
                first.clone(),
                Client {
                    gets_left: 0,
                    ..client.clone()
                },
            ],
            now: [Some(1), Some(2)],
            wrong: false,
        };
        vec![with(&client), with(&knows)]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        match &state.job {
            Some(_) => actions.push(Action::Serve),
            None => {
                if TableEpoch(state.table).count() == 1 {
                    actions.push(Action::Grow);
                }
                if state.changes_left > 0 {
                    state.offer_changes(actions);
                }
            }
        }
        for (client, is) in state.clients.iter().enumerate() {
            match &is.get {
                Some(get) => {
                    actions.push(Action::Read {
                        client,
                        second: false,
                    });
                    if get.may_begin_with_second() {
                        actions.push(Action::Read {
                            client,
                            second: true,
                        });
                    }
                }
                None if is.gets_left > 0 && !state.serves(client) => {
                    actions.extend([0, 1].map(|key| Action::Get { client, key }));
                }
                None => {}
            }
        }
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let mut next = state.clone();
        match action {
            Action::Set { client, key } => next.begin_set(client, key, self.without),
            Action::Delete { client, key } => next.delete(client, key),
            Action::Flush => next.begin_flush(),
            Action::Grow => next.begin_growth(),
            Action::Serve => next.serve(self.without),
            Action::Get { client, key } => next.begin_get(client, key),
            Action::Read { client, second } => next.read(client, second, self.without),
        }
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![Property::always(RIGHT, |_, state: &State| !state.wrong)]
    }
}

const RIGHT: &str = "a get returns what its key was meanwhile";

fn check(without: Without) -> impl Checker<Protocol> {
    Protocol { without }.checker().threads(2).spawn_bfs().join()
}

#[test]
fn the_protocol_is_correct() {
    let checker = check(Without::Nothing);
    checker.assert_properties();
    println!("{} states", checker.unique_state_count());
}

#[test]
fn each_part_of_the_protocol_is_needed() {
    use Without::*;
    for without in [
        SecondLook,
        Generations,
        Keys,
        WritingFirst,
        UnlinkingFirst,
        TableEpoch,
        FlushEpoch,
    ] {
        let found = check(without).discovery(RIGHT);
        assert!(found.is_some(), "{without:?} is not needed");
    }
}
