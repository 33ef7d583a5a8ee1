//! Borrowing against concurrent changes, during the borrow and afterwards.
//!
//! As for gets, an adversary changes the store before any piece of a read. The borrowed value must
//! be the key's at some moment of the borrow, and stay unchanged while it is borrowed.

use std::sync::{Arc, Mutex};

use toroid_fabric::Region;

use super::*;
use crate::client::reader::Checks;
use crate::client::reader::tests::{LIMITS, alike, reader, schedules};
use crate::client::view::{HazardPool, ViewError};
use crate::protocol::hazards::{HAZARDS, HAZARDS_LEN, RECALLED, hazard_offset, hazard_word};
use crate::protocol::layout::ItemAddress;
use crate::store::shared::Shared;
use crate::store::{Limits, Store};
use crate::testing::{self, Adversary, Order};

/// Limits of a store with 32 segments.
const SMALL: Limits = Limits {
    memory: 4 << 20,
    item: 64 << 10,
};

/// Hazard pointers that the store scans.
fn hazards(store: &Shared) -> (HazardPool<Region>, Region) {
    let region = Region::local(HAZARDS_LEN as usize).unwrap();
    let seen = Box::new(region.clone());
    store.with(|store| store.borrows().admit(seen));
    let [_, items] = store.regions();
    (HazardPool::new(region.clone(), items), region)
}

/// Borrows in the steps of a client.
fn borrow(
    reader: &mut Reader<Adversary>,
    key: &[u8],
    hazards: &mut HazardPool<Region>,
) -> Result<Lookup<View<Region>>, OpError> {
    let probed = reader.probe(key)?;
    reader.borrow(key, probed, hazards.take().unwrap())
}

/// Two keys whose items differ in the first of several pieces only.
const KEY: [u8; 200] = [b'k'; 200];
const OTHER: [u8; 200] = {
    let mut other = KEY;
    other[0] = b'o';
    other
};

fn set(store: &Shared, key: &[u8], byte: u8) {
    store.set(key, 0, 0, &[byte; 100]).unwrap();
}

fn delete(store: &Shared) {
    store.delete(&KEY).unwrap();
}

type Script = &'static [fn(&Shared)];

/// Each script would soon reuse the memory of the key's first value.
const SCRIPTS: [Script; 5] = [
    &[
        |s| set(s, &KEY, 2),
        |s| set(s, &KEY, 3),
        |s| set(s, &KEY, 4),
    ],
    &[delete, |s| set(s, &OTHER, 9), |s| set(s, &KEY, 2)],
    &[
        |s| set(s, &KEY, 2),
        |s| set(s, &OTHER, 9),
        |s| set(s, &KEY, 3),
    ],
    &[
        |s| set(s, &OTHER, 8),
        |s| s.with(Store::flush).unwrap(),
        |s| set(s, &KEY, 3),
    ],
    &[
        |s| {
            s.set(&KEY, 0, 1, &[2; 100]).unwrap();
        },
        |s| s.tick(1).unwrap(),
        |s| set(s, &OTHER, 9),
    ],
];

/// Parts of the protocol that are left out.
#[derive(Clone, Copy)]
struct Leave {
    checks: Checks,
    /// Leaves out the server's scan of hazard pointers.
    blind: bool,
}

const NOTHING: Leave = Leave {
    checks: Checks::ALL,
    blind: false,
};

/// A script that is played step by step, and the key's values so far.
struct Play {
    store: Shared,
    script: Script,
    next: usize,
    states: Vec<Option<Vec<u8>>>,
}

impl Play {
    fn step(&mut self) {
        if let Some(step) = self.script.get(self.next) {
            step(&self.store);
            self.states.push(testing::value(&self.store, &KEY));
            self.next += 1;
        }
    }
}

/// Borrows with the first steps of `script` at the moments `at`: before all, before the bucket,
/// before the hazard pointer, and before each piece of the later reads. The remaining steps follow
/// the borrow. Returns whether the value was right and stayed.
fn is_well(script: Script, at: &[usize], order: Order, leave: Leave) -> bool {
    let store = testing::shared_that_reuses(SMALL);
    if leave.blind {
        store.with(|store| store.borrows().go_blind());
    }
    set(&store, &KEY, 1);
    let (mut hazards, _) = hazards(&store);
    let mut reader = reader(&store, order).with_checks(leave.checks);
    let play = Arc::new(Mutex::new(Play {
        store: store.clone(),
        script,
        next: 0,
        states: vec![],
    }));
    let step_at = |moment: usize| {
        let steps = at.iter().filter(|at| **at == moment);
        steps.for_each(|_| play.lock().unwrap().step());
    };
    step_at(0);
    play.lock().unwrap().states = vec![testing::value(&store, &KEY)];
    let (moments, amid) = (at.to_vec(), play.clone());
    reader.endpoint_mut().before_piece(move |piece| {
        let moment = piece + if piece == 0 { 1 } else { 2 };
        let steps = moments.iter().filter(|at| **at == moment);
        steps.for_each(|_| amid.lock().unwrap().step());
    });
    let probed = reader.probe(&KEY).unwrap();
    step_at(2);
    let hazard = hazards.take().unwrap();
    let lookup = reader.borrow(&KEY, probed, hazard).unwrap();
    let mut play = play.lock().unwrap();
    let view = match lookup {
        Lookup::Found(view) => view,
        Lookup::Absent => return play.states.contains(&None),
        // The client asks the server.
        Lookup::Retry => return true,
    };
    let value = view.to_vec().unwrap();
    let was = play.states.contains(&Some(value.clone()));
    let stays = (0..script.len()).all(|_| {
        play.step();
        view.to_vec() == Ok(value.clone())
    });
    let churned = (10..14).all(|byte| {
        set(&store, &KEY, byte);
        set(&store, &OTHER, byte + 10);
        view.to_vec() == Ok(value.clone())
    });
    was && stays && churned
}

/// Whether a schedule goes wrong.
fn goes_wrong(leave: Leave) -> bool {
    let orders = [Order::Forward, Order::Backward, Order::Inside];
    let all = SCRIPTS.into_iter().flat_map(|script| {
        let schedules = schedules(script.len(), 9).into_iter();
        schedules.map(move |at| (script, at))
    });
    all.into_iter().any(|(script, at)| {
        let mut orders = orders.into_iter();
        orders.any(|order| !is_well(script, &at, order, leave))
    })
}

#[test]
fn a_borrowed_value_was_the_keys_and_does_not_change() {
    assert!(!goes_wrong(NOTHING));
}

#[test]
fn the_read_of_the_slot_is_needed_to_borrow() {
    let checks = Checks {
        slot: false,
        ..Checks::ALL
    };
    assert!(goes_wrong(Leave { checks, ..NOTHING }));
}

#[test]
fn the_hazard_pointer_must_precede_the_read_of_the_slot() {
    let checks = Checks {
        hazard_first: false,
        ..Checks::ALL
    };
    assert!(goes_wrong(Leave { checks, ..NOTHING }));
}

#[test]
fn the_servers_scan_of_hazards_is_needed() {
    let blind = true;
    assert!(goes_wrong(Leave { blind, ..NOTHING }));
}

#[test]
fn the_whole_key_is_needed_to_borrow() {
    let (first, second) = alike();
    let store = testing::shared(LIMITS);
    let (mut hazards, _) = hazards(&store);
    set(&store, &second, 2);
    let checks = Checks {
        key: false,
        ..Checks::ALL
    };
    let mut reckless = reader(&store, Order::Forward).with_checks(checks);
    let wrong = borrow(&mut reckless, &first, &mut hazards).unwrap();
    assert!(matches!(wrong, Lookup::Found(_)));
    let mut reader = reader(&store, Order::Forward);
    let mut borrow = |key: &[u8]| borrow(&mut reader, key, &mut hazards).unwrap();
    assert!(matches!(borrow(&first), Lookup::Absent));
    set(&store, &first, 1);
    for (key, byte) in [(&first, 1), (&second, 2), (&first, 1)] {
        let Lookup::Found(view) = borrow(key) else {
            panic!("it is there");
        };
        assert_eq!(view.to_vec(), Ok(vec![byte; 100]));
    }
}

#[test]
fn a_relaxed_get_is_never_older_than_a_borrowed_value() {
    let store = testing::shared(LIMITS);
    let (mut hazards, _) = hazards(&store);
    let mut reader = reader(&store, Order::Forward);
    reader.set_consistency(Consistency::Relaxed);
    let got = |reader: &mut Reader<_>| reader.get(b"key").unwrap().map(|value| value.data.to_vec());
    store.set(b"key", 0, 0, b"old").unwrap();
    assert_eq!(got(&mut reader), Lookup::Found(b"old".to_vec()));
    store.set(b"key", 0, 0, b"new").unwrap();
    let borrowed = borrow(&mut reader, b"key", &mut hazards).unwrap();
    assert!(matches!(borrowed, Lookup::Found(view) if view.to_vec() == Ok(b"new".to_vec())));
    assert_eq!(got(&mut reader), Lookup::Found(b"new".to_vec()));
    store.delete(b"key").unwrap();
    let borrowed = borrow(&mut reader, b"key", &mut hazards).unwrap();
    assert!(matches!(borrowed, Lookup::Absent));
    assert_eq!(got(&mut reader), Lookup::Absent);
    // A strict borrow caches no location that a later relaxed get could use.
    store.set(b"key", 0, 0, b"old").unwrap();
    reader.set_consistency(Consistency::Strict);
    assert_eq!(got(&mut reader), Lookup::Found(b"old".to_vec()));
    store.set(b"key", 0, 0, b"new").unwrap();
    borrow(&mut reader, b"key", &mut hazards).unwrap();
    reader.set_consistency(Consistency::Relaxed);
    assert_eq!(got(&mut reader), Lookup::Found(b"new".to_vec()));
}

#[test]
fn views_are_read_in_pieces() {
    let store = testing::shared(LIMITS);
    let (mut hazards, _) = hazards(&store);
    let mut reader = reader(&store, Order::Forward);
    for len in [0usize, 1, 4095, 4096, 4097, 100_000] {
        let value: Vec<u8> = (0..len).map(|n| n as u8).collect();
        store.set(b"key", 5, 0, &value).unwrap();
        let lookup = borrow(&mut reader, b"key", &mut hazards).unwrap();
        let Lookup::Found(view) = lookup else {
            panic!("it is there");
        };
        assert_eq!((view.flags(), view.len()), (5, len));
        assert_eq!(view.is_empty(), len == 0);
        let mut pieces = vec![0; len];
        for (n, piece) in pieces.chunks_mut(1000).enumerate() {
            view.read(1000 * n, piece).unwrap();
        }
        assert!(pieces == value && view.to_vec() == Ok(value.clone()));
        let folded = view.fold(Vec::new(), |all, block| all.extend(block));
        assert_eq!(folded, Ok(value));
        let mut byte = [0];
        assert!(view.read(len, &mut []).is_ok());
        for offset in [len, len + 1, usize::MAX] {
            let (offset_u64, limit) = (offset as u64, len as u64);
            let outside = OpError::OutOfBounds {
                offset: offset_u64,
                len: 1,
                limit,
            };
            assert_eq!(view.read(offset, &mut byte), Err(outside.into()));
        }
    }
}

/// Sets and deletes enough to reuse all memory several times.
fn churn(store: &Shared, mut check: impl FnMut()) {
    let mut state = 7u64;
    for n in 0..4000u32 {
        state = crate::protocol::hash::hash(state, b"next");
        let len = (state % 60_000) as usize >> (state >> 32 & 3);
        let key = (state >> 40) as u8;
        store.set(&[key], 0, 0, &vec![n as u8; len]).unwrap();
        if n % 3 == 0 {
            store.delete(&[key ^ 1]).unwrap();
        }
        if n % 50 == 0 {
            check();
        }
    }
    check();
}

/// Checks that all memory is reusable after the views are dropped.
fn assert_all_memory_is_there(store: &Shared) {
    store.with(Store::flush).unwrap();
    store.with(|store| store.set_may_evict(false));
    for n in 0..60u32 {
        store.set(&n.to_le_bytes(), 0, 0, &[3; 50_000]).unwrap();
    }
}

#[test]
fn eviction_and_compaction_keep_borrowed_values() {
    let store = testing::shared(SMALL);
    let (mut hazards, _) = hazards(&store);
    let mut reader = reader(&store, Order::Forward);
    let views: Vec<_> = (0..6u8)
        .map(|n| {
            let len = 100 + usize::from(n) * 11_000;
            store.set(&[b'k', n], 0, 0, &vec![n; len]).unwrap();
            let lookup = borrow(&mut reader, &[b'k', n], &mut hazards).unwrap();
            let Lookup::Found(view) = lookup else {
                panic!("it is there");
            };
            store.delete(&[b'k', n]).unwrap();
            churn(&store, || {});
            (view, vec![n; len])
        })
        .collect();
    churn(&store, || {
        for (view, value) in &views {
            assert!(view.to_vec().as_ref() == Ok(value));
        }
    });
    drop(views);
    assert_all_memory_is_there(&store);
}

/// Hazard pointers with an address in each segment.
fn borrow_everywhere(region: &Region) {
    for number in 0..HAZARDS {
        let location = u64::from(number) * SMALL.memory / u64::from(HAZARDS) / 16;
        let word = hazard_word(ItemAddress(location as u32));
        region.store(hazard_offset(number), word).unwrap();
    }
}

#[test]
fn a_greedy_borrower_is_recalled_and_others_keep_their_views() {
    let store = testing::shared(SMALL);
    let (mut honest, _) = hazards(&store);
    let (mut greedy, everything) = hazards(&store);
    let mut reader = reader(&store, Order::Forward);
    store.set(b"key", 0, 0, &[1; 1000]).unwrap();
    let mut borrow =
        |hazards: &mut HazardPool<Region>| match borrow(&mut reader, b"key", hazards).unwrap() {
            Lookup::Found(view) => view,
            _ => panic!("it is there"),
        };
    let (mine, theirs) = (borrow(&mut honest), borrow(&mut greedy));
    borrow_everywhere(&everything);
    store.delete(b"key").unwrap();
    churn(&store, || assert_eq!(mine.to_vec(), Ok(vec![1; 1000])));
    assert_eq!(everything.load(RECALLED), Ok(1));
    assert_eq!(theirs.to_vec(), Err(ViewError::Recalled));
    let folded = theirs.fold(0, |len, block| *len += block.len());
    assert_eq!(folded, Err(ViewError::Recalled));
    drop(mine);
    assert_all_memory_is_there(&store);
}

/// In a store that may not evict, the borrowed memory is the only memory left.
#[test]
fn borrowed_memory_causes_no_refusal_of_sets() {
    for limits in [SMALL, LIMITS] {
        let store = testing::shared(limits);
        store.with(|store| store.set_may_evict(false));
        let (mut hazards, _) = hazards(&store);
        let mut reader = reader(&store, Order::Forward);
        let len = limits.item as usize * 9 / 10;
        for round in 0..40u8 {
            store.set(b"key", 0, 0, &vec![round; len]).unwrap();
            if hazards.is_recalled() != Ok(false) {
                hazards = self::hazards(&store).0;
            }
            let lookup = borrow(&mut reader, b"key", &mut hazards).unwrap();
            let Lookup::Found(view) = lookup else {
                panic!("it is there");
            };
            assert!(view.to_vec() == Ok(vec![round; len]));
            store.delete(b"key").unwrap();
            let mut stored = 0u32;
            for n in 0..limits.memory as u32 / 4000 / 2 {
                store.set(&n.to_le_bytes(), 0, 0, &[3; 4000]).unwrap();
                stored += 1;
            }
            for n in 0..stored {
                store.delete(&n.to_le_bytes()).unwrap();
            }
            match view.to_vec() {
                Ok(value) => assert!(value == vec![round; len]),
                Err(error) => assert_eq!(error, ViewError::Recalled),
            }
        }
    }
}

proptest::proptest! {
    /// A borrower survives any bytes in the server's regions.
    #[test]
    fn a_hostile_server_cannot_harm_a_borrower(
        bytes in proptest::collection::vec((0u64..8192, proptest::prelude::any::<u64>()), 0..600),
        small in proptest::bool::ANY,
    ) {
        let store = testing::shared(LIMITS);
        set(&store, &KEY, 1);
        let mut reader = reader(&store, Order::Forward);
        for _ in 0..2 {
            let (mut hazards, _) = hazards(&store);
            for region in store.regions() {
                for (word, value) in &bytes {
                    let value = if small { value & 0xff_ffff } else { *value };
                    region.store(word * 8, value).unwrap();
                }
            }
            if let Ok(Lookup::Found(view)) = borrow(&mut reader, &KEY, &mut hazards) {
                proptest::prop_assert!(view.len() <= LIMITS.item as usize);
                let _ = view.to_vec();
            }
        }
    }
}
