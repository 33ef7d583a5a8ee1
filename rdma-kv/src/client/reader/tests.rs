//! One-sided gets against concurrent changes at every step.
//!
//! An adversary delivers reads in pieces, in an order of its choice, and changes the store before
//! any piece. Each test states the permitted results of a get, and shows that without one check a
//! get returns another result.

mod hostile;

use super::*;
use crate::protocol::hash::hash;
use crate::protocol::layout::{ItemAddress, Slot, UNIT};
use crate::store::Limits;
use crate::store::shared::Shared;
use crate::testing::{self, Adversary, Order, SEED};

pub(super) const LIMITS: Limits = Limits {
    memory: 2 << 20,
    item: 1 << 20,
};

pub(super) fn reader(store: &Shared, order: Order) -> Reader<Adversary> {
    let [index, items] = store.regions();
    let lens = (index.len(), items.len());
    let geometry = store.geometry().unwrap();
    Reader::new(
        Adversary::new(order),
        (index, lens.0),
        (items, lens.1),
        &geometry,
    )
    .unwrap()
}

pub(super) fn value_of(lookup: Lookup<ValueRef<'_>>) -> Option<Vec<u8>> {
    match lookup {
        Lookup::Found(value) => Some(value.data.to_vec()),
        Lookup::Absent => None,
        Lookup::Retry => panic!("changed all the time"),
    }
}

/// Changes by others during a get: each step leaves the store in a definite state.
pub(super) type Script = &'static [fn(&Shared)];

pub(super) fn set(store: &Shared, key: &[u8], byte: u8) {
    store.set(key, 0, 0, &[byte; 100]).unwrap();
}

/// Each script soon reuses the memory of the key's first value.
pub(super) const SCRIPTS: [Script; 7] = [
    &[
        |s| set(s, b"key", 2),
        |s| set(s, b"key", 3),
        |s| set(s, b"key", 4),
    ],
    &[
        |s| {
            s.delete(b"key").unwrap();
        },
        |s| set(s, b"key", 2),
    ],
    &[
        |s| {
            s.delete(b"key").unwrap();
        },
        |s| set(s, b"other", 9),
        |s| set(s, b"key", 2),
    ],
    &[
        |s| set(s, b"key", 2),
        |s| set(s, b"other", 9),
        |s| set(s, b"key", 3),
    ],
    &[
        |s| {
            s.set(b"key", 0, 0, &[2; 5000]).unwrap();
        },
        |s| set(s, b"key", 3),
    ],
    // The key always has a value here, although the first value expires.
    &[
        |s| set_for_a_second(s, b"key", 2),
        |s| set(s, b"key", 3),
        |s| s.tick(1).unwrap(),
    ],
    &[
        |s| set_for_a_second(s, b"key", 2),
        |s| s.tick(1).unwrap(),
        |s| set(s, b"key", 3),
    ],
];

fn set_for_a_second(store: &Shared, key: &[u8], byte: u8) {
    store.set(key, 0, 1, &[byte; 100]).unwrap();
}

/// Way of getting a key.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum How {
    Cold,
    Cached,
    /// The location is cached and contended.
    Contended,
    /// The location is cached, and another key is got in the same batch.
    Many,
    /// As `Many`, with a contended location.
    ContendedMany,
    /// The location is cached, and the value goes into a buffer of the caller.
    Into,
}

impl How {
    pub(super) fn get(self, reader: &mut Reader<Adversary>, key: &[u8]) -> Option<Vec<u8>> {
        match self {
            How::Many | How::ContendedMany => first_of_many(reader, key),
            How::Into => into_a_buffer(reader, key),
            How::Cold | How::Cached | How::Contended => value_of(reader.get(key).unwrap()),
        }
    }
}

fn into_a_buffer(reader: &mut Reader<Adversary>, key: &[u8]) -> Option<Vec<u8>> {
    let mut into = vec![0; 5000];
    match reader.get_into(key, &mut into).unwrap() {
        Lookup::Found((_, len)) => Some(into[..len].to_vec()),
        Lookup::Absent => None,
        Lookup::Retry => panic!("changed all the time"),
    }
}

fn first_of_many(reader: &mut Reader<Adversary>, key: &[u8]) -> Option<Vec<u8>> {
    let mut got = None;
    let each = |number, lookup: Lookup<ValueRef<'_>>| {
        if number == 0 {
            got = Some(value_of(lookup));
        }
    };
    reader.get_many(&[key, b"never there"], each).unwrap();
    got.unwrap()
}

/// Runs a get with the steps of `script` before the pieces with numbers `at`. Returns the result
/// and the permitted results: the key's value before, between and after the steps.
pub(super) fn get_amid(
    script: Script,
    at: &[usize],
    order: Order,
    how: How,
    checks: Checks,
    consistency: Consistency,
) -> (Option<Vec<u8>>, Vec<Option<Vec<u8>>>) {
    let store = testing::shared_that_reuses(LIMITS);
    set(&store, b"key", 1);
    let mut reader = reader(&store, order).with_checks(checks);
    reader.set_consistency(consistency);
    if how != How::Cold {
        value_of(reader.get(b"key").unwrap());
    }
    if matches!(how, How::Contended | How::ContendedMany) {
        reader.expect_changes(b"key");
    }
    let states = std::sync::Arc::new(std::sync::Mutex::new(vec![testing::value(&store, b"key")]));
    let (at, seen) = (at.to_vec(), states.clone());
    reader.endpoint_mut().before_piece(move |piece| {
        for (step, _) in script.iter().zip(&at).filter(|(_, at)| **at == piece) {
            step(&store);
            seen.lock().unwrap().push(testing::value(&store, b"key"));
        }
    });
    let got = how.get(&mut reader, b"key");
    let states = states.lock().unwrap().clone();
    (got, states)
}

/// All ways to put the steps of a script, in order, before one of the first `pieces` pieces.
pub(super) fn schedules(steps: usize, pieces: usize) -> Vec<Vec<usize>> {
    let mut all = vec![vec![]];
    for _ in 0..steps {
        all = all
            .into_iter()
            .flat_map(|at: Vec<usize>| {
                let first = at.last().copied().unwrap_or(0);
                (first..pieces).map(move |next| [&at[..], &[next]].concat())
            })
            .collect();
    }
    all
}

/// Number of schedules in which a get returns a value that the key did not have meanwhile.
fn wrong(checks: Checks) -> usize {
    let mut wrong = 0;
    let all = [
        How::Cold,
        How::Cached,
        How::Contended,
        How::Many,
        How::ContendedMany,
        How::Into,
    ];
    for script in SCRIPTS {
        for at in schedules(script.len(), 9) {
            for order in [Order::Forward, Order::Backward, Order::Inside] {
                for how in all {
                    let (got, states) =
                        get_amid(script, &at, order, how, checks, Consistency::Strict);
                    wrong += usize::from(!states.contains(&got));
                }
            }
        }
    }
    wrong
}

#[test]
fn a_get_returns_a_value_that_the_key_had_meanwhile() {
    assert_eq!(wrong(Checks::ALL), 0);
}

/// A contended key takes three reads in either case, instead of two (unchanged) or four (replaced).
#[test]
fn a_contended_key_takes_three_reads() {
    few_reads(|reader| value_of(reader.get(b"key").unwrap()));
}

#[test]
fn a_contended_key_takes_three_reads_in_a_batch() {
    few_reads(|reader| {
        let mut got = None;
        let each = |_, lookup: Lookup<ValueRef<'_>>| got = value_of(lookup);
        reader.get_many(&[b"key"], each).unwrap();
        got
    });
}

fn few_reads(get: fn(&mut Reader<Adversary>) -> Option<Vec<u8>>) {
    let store = testing::shared(LIMITS);
    set(&store, b"key", 0);
    let mut reader = reader(&store, Order::Forward);
    let mut reads = |is_set: bool, byte: u8| {
        if is_set {
            set(&store, b"key", byte);
        }
        let before = reader.stats().reads;
        assert_eq!(get(&mut reader), Some(vec![byte; 100]));
        reader.stats().reads - before
    };
    reads(false, 0);
    let turns = [
        (false, 0, 2),
        (true, 1, 4),
        (true, 2, 4),
        (true, 3, 3),
        (true, 4, 3),
    ];
    let after = [(false, 4, 3), (false, 4, 2), (true, 5, 4)];
    for (is_set, byte, expected) in turns.into_iter().chain(after) {
        assert_eq!(reads(is_set, byte), expected, "{byte}");
    }
}

#[test]
fn the_second_read_of_the_slot_is_needed() {
    assert!(
        wrong(Checks {
            slot: false,
            ..Checks::ALL
        }) > 0
    );
}

#[test]
fn the_read_of_the_slot_after_the_clock_is_needed() {
    assert!(
        wrong(Checks {
            slot_after_clock: false,
            ..Checks::ALL
        }) > 0
    );
}

/// Number of gets that miss a present key while the index grows.
fn missed_amid_growth(checks: Checks) -> usize {
    let mut missed = 0;
    for order in [Order::Forward, Order::Backward, Order::Inside] {
        for cached in [false, true] {
            for piece in 0..6 {
                let store = testing::shared(LIMITS);
                let keys: Vec<Vec<u8>> = (0..320u32).map(|n| n.to_le_bytes().to_vec()).collect();
                keys.iter().for_each(|key| set(&store, key, 1));
                let mut reader = reader(&store, order).with_checks(checks);
                if cached {
                    keys.iter().for_each(|key| {
                        value_of(reader.get(key).unwrap());
                    });
                }
                let mut more = 1000u32..;
                for key in &keys {
                    let mut more = more.by_ref().take(10).collect::<Vec<u32>>().into_iter();
                    let writer = store.clone();
                    reader.endpoint_mut().before_piece(move |now| {
                        if now == piece {
                            more.by_ref()
                                .for_each(|n| set(&writer, &n.to_le_bytes(), 2));
                        }
                    });
                    match reader.get(key).unwrap() {
                        Lookup::Found(value) => assert_eq!(value.data, [1; 100]),
                        Lookup::Absent => missed += 1,
                        Lookup::Retry => {}
                    }
                }
            }
        }
    }
    missed
}

#[test]
fn a_key_is_not_missed_while_the_index_grows() {
    assert_eq!(missed_amid_growth(Checks::ALL), 0);
}

#[test]
fn the_read_of_the_table_epoch_is_needed() {
    assert!(
        missed_amid_growth(Checks {
            table_epoch: false,
            ..Checks::ALL
        }) > 0
    );
}

/// Number of gets that find a flushed item after another get has missed one, while a flush clears
/// slot by slot.
fn found_after_a_flush(checks: Checks, how: How) -> usize {
    let store = testing::shared(LIMITS);
    let keys: Vec<Vec<u8>> = (0..500u32).map(|n| n.to_le_bytes().to_vec()).collect();
    keys.iter().for_each(|key| set(&store, key, 1));
    let mut reader = reader(&store, Order::Forward).with_checks(checks);
    if how == How::Cached {
        keys.iter().for_each(|key| {
            value_of(reader.get(key).unwrap());
        });
    }
    let (mut turn, mut missed, mut wrong) = (0, false, 0);
    let mut get = || {
        turn += 1;
        match reader.get(&keys[turn * 7 % keys.len()]).unwrap() {
            Lookup::Found(_) => wrong += usize::from(missed),
            Lookup::Absent => missed = true,
            // A client would ask the server, which is still flushing.
            Lookup::Retry => {}
        }
    };
    store.with(|store| store.flush_in_steps(&mut get));
    get();
    assert!(missed, "nothing is there any more");
    wrong
}

#[test]
fn a_flush_removes_all_at_one_moment() {
    let without = Checks {
        flush_epoch: false,
        ..Checks::ALL
    };
    for how in [How::Cold, How::Cached] {
        assert_eq!(found_after_a_flush(Checks::ALL, how), 0);
        assert!(found_after_a_flush(without, how) > 0);
    }
}

/// Get during which a generation recurs with the low bits of the first one in the slot word.
fn get_amid_wrapped_generations(checks: Checks) -> Option<Vec<u8>> {
    let store = testing::shared_that_reuses(LIMITS);
    store.skip_to_generation(99);
    set(&store, b"key", 1);
    let mut reader = reader(&store, Order::Backward).with_checks(checks);
    value_of(reader.get(b"key").unwrap());
    reader.endpoint_mut().before_piece(move |piece| {
        if piece == 1 {
            set(&store, b"key", 2);
            store.skip_to_generation(99 + (1 << 17));
            set(&store, b"key", 3);
        }
    });
    value_of(reader.get(b"key").unwrap())
}

#[test]
fn the_whole_generation_is_needed() {
    let torn = get_amid_wrapped_generations(Checks {
        generation: false,
        ..Checks::ALL
    });
    assert!(torn.is_some_and(|value| value.contains(&1) && value.contains(&3)));
    assert_eq!(
        get_amid_wrapped_generations(Checks::ALL),
        Some(vec![3; 100])
    );
}

/// Two keys of one bucket and one tag.
pub(super) fn alike() -> (Vec<u8>, Vec<u8>) {
    let mask = 0xff << 56 | 0x3f;
    let first = b"first".to_vec();
    let target = hash(SEED, &first) & mask;
    let mut keys = (0u64..).map(|n| n.to_le_bytes().to_vec());
    let second = keys.find(|key| hash(SEED, key) & mask == target).unwrap();
    (first, second)
}

#[test]
fn the_whole_key_is_needed() {
    let (first, second) = alike();
    let store = testing::shared(LIMITS);
    set(&store, &second, 2);
    let without = Checks {
        key: false,
        ..Checks::ALL
    };
    let mut reckless = reader(&store, Order::Forward).with_checks(without);
    assert_eq!(value_of(reckless.get(&first).unwrap()), Some(vec![2; 100]));
    let mut reader = reader(&store, Order::Forward);
    assert_eq!(value_of(reader.get(&first).unwrap()), None);
    set(&store, &first, 1);
    assert_eq!(value_of(reader.get(&first).unwrap()), Some(vec![1; 100]));
    assert_eq!(value_of(reader.get(&second).unwrap()), Some(vec![2; 100]));
}

/// A straight read of the item of `key` for a prefix of it once gave the rest of the key as the
/// start of the value.
#[test]
fn a_key_is_not_its_prefix() {
    let store = testing::shared(LIMITS);
    let location = store.set(b"key", 0, 0, b"value").unwrap();
    let mut reader = reader(&store, Order::Forward).read_apart_beyond(0);
    let mut into = [0; 100];
    for prefix in [&b"k"[..], b"ke"] {
        reader.remember(prefix, location);
        assert_eq!(reader.get_into(prefix, &mut into), Ok(Lookup::Absent));
    }
    assert_eq!(
        reader.get_into(b"key", &mut into),
        Ok(Lookup::Found((0, 5)))
    );
}

#[test]
fn chains_are_followed_and_locations_are_cached() {
    let store = testing::shared(LIMITS);
    let keys: Vec<Vec<u8>> = (0..20_000u32).map(|n| n.to_le_bytes().to_vec()).collect();
    let mut reader = reader(&store, Order::Forward);
    for key in &keys {
        store.set(key, 3, 0, key).unwrap();
    }
    for _ in 0..2 {
        for key in &keys {
            assert_eq!(value_of(reader.get(key).unwrap()).as_ref(), Some(key));
        }
    }
    let stats = reader.stats();
    assert_eq!((stats.gets, stats.asked), (40_000, 0));
    assert!(stats.cached > 19_900, "{stats:?}");
    assert_eq!(value_of(reader.get(b"absent").unwrap()), None);
}

#[test]
fn a_stale_location_leads_to_the_new_value_without_a_read_of_the_bucket() {
    let store = testing::shared(LIMITS);
    let mut into = [0; 300];
    // Item and slot, twice; in the last row also the first value by itself.
    for (apart, straight, reads) in [(2048, false, 4), (2048, true, 4), (0, true, 5)] {
        let mut reader = reader(&store, Order::Forward).read_apart_beyond(apart);
        store.set(b"key", 0, 0, b"old").unwrap();
        assert_eq!(value_of(reader.get(b"key").unwrap()).unwrap(), b"old");
        for value in [&b"new"[..], &[7; 200]] {
            store.set(b"key", 0, 0, value).unwrap();
            let before = reader.stats();
            if straight {
                let got = reader.get_into(b"key", &mut into).unwrap();
                assert_eq!(got, Lookup::Found((0, value.len())));
                assert_eq!(&into[..value.len()], value);
            } else {
                assert_eq!(value_of(reader.get(b"key").unwrap()).unwrap(), value);
            }
            let after = reader.stats();
            assert_eq!(after.cached - before.cached, 1);
            assert_eq!(after.reads - before.reads, reads);
        }
        // The bucket shows that the key is absent.
        store.delete(b"key").unwrap();
        assert_eq!(reader.get(b"key").unwrap(), Lookup::Absent);
    }
}

#[test]
fn get_many_returns_each_value_once() {
    let store = testing::shared(LIMITS);
    let mut reader = reader(&store, Order::Forward);
    let keys: Vec<Vec<u8>> = (0..300u32).map(|n| n.to_le_bytes().to_vec()).collect();
    for (n, key) in keys.iter().enumerate().filter(|(n, _)| n % 3 != 0) {
        store.set(key, n as u32, 0, &vec![n as u8; n * 10]).unwrap();
    }
    let names: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
    for round in 0..3 {
        let before = reader.stats();
        let mut got = vec![None; keys.len()];
        let each = |number: usize, lookup: Lookup<ValueRef<'_>>| {
            let value = match lookup {
                Lookup::Found(value) => Some((value.flags, value.data.to_vec())),
                Lookup::Absent => None,
                Lookup::Retry => panic!("changed all the time"),
            };
            assert_eq!(got[number].replace(value), None);
        };
        reader.get_many(&names, each).unwrap();
        for (n, got) in got.into_iter().enumerate() {
            let value = (n % 3 != 0).then(|| (n as u32, vec![n as u8; n * 10]));
            assert_eq!(got, Some(value), "round {round}");
        }
        let stats = reader.stats();
        assert_eq!(stats.gets - before.gets, 300);
        let cached = if round == 0 { 0 } else { 200 };
        assert_eq!(stats.cached - before.cached, cached);
    }
    let mut got = 0;
    reader.get_many(&[], |_, _| got += 1).unwrap();
    assert_eq!(got, 0);
}

#[test]
fn get_into_copies_values_of_all_lengths() {
    let store = testing::shared(LIMITS);
    let mut reader = reader(&store, Order::Forward);
    for len in [0usize, 1, 7, 8, 100, 4096, 100_000] {
        let value: Vec<u8> = (0..len).map(|n| n as u8).collect();
        store.set(b"key", 5, 0, &value).unwrap();
        let mut into = vec![0xff; len + 8];
        for _ in 0..2 {
            assert_eq!(
                reader.get_into(b"key", &mut into),
                Ok(Lookup::Found((5, len)))
            );
            assert_eq!(into[..len], value);
            into[..len].fill(0xff);
        }
        if len > 0 {
            let short = &mut into[..len - 1];
            assert_eq!(reader.get_into(b"key", short), Ok(Lookup::Found((5, len))));
        }
    }
}

#[test]
fn expiry_follows_the_clock_of_the_server() {
    let store = testing::shared(LIMITS);
    let mut reader = reader(&store, Order::Forward);
    store.set(b"key", 0, 10, b"value").unwrap();
    let mut into = [0; 5];
    for (now, alive) in [(9, true), (10, false)] {
        store.tick(now).unwrap();
        assert_eq!(value_of(reader.get(b"key").unwrap()).is_some(), alive);
        let found = reader.get_into(b"key", &mut into).unwrap();
        assert_eq!(
            found,
            if alive {
                Lookup::Found((0, 5))
            } else {
                Lookup::Absent
            }
        );
    }
}

#[test]
fn a_key_that_always_changes_is_left_to_the_server() {
    let store = testing::shared(LIMITS);
    set(&store, b"key", 1);
    let mut reader = reader(&store, Order::Forward);
    let writer = store.clone();
    reader
        .endpoint_mut()
        .before_piece(move |_| set(&writer, b"key", 2));
    assert_eq!(reader.get(b"key"), Ok(Lookup::Retry));
    assert_eq!(reader.stats().asked, 1);
}
