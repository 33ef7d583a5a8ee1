//! Gets with weaker consistency, against the adversary.

use super::*;
use crate::client::content_key;
use crate::client::reader::tests::{
    How, LIMITS, SCRIPTS, get_amid, reader, schedules, set, value_of,
};
use crate::client::reader::{Checks, Lookup};
use crate::store::shared::Shared;
use crate::testing::{self, Order};

const ORDERS: [Order; 3] = [Order::Forward, Order::Backward, Order::Inside];
const WAYS: [How; 4] = [How::Cold, How::Cached, How::Many, How::Into];

/// Whether in some schedule a relaxed get returns a value that the key never had.
fn relaxed_goes_wrong(checks: Checks) -> bool {
    SCRIPTS.into_iter().any(|script| {
        schedules(script.len(), 6).into_iter().any(|at| {
            let all = ORDERS.map(|order| WAYS.map(|how| (order, how)));
            all.into_iter().flatten().any(|(order, how)| {
                let relaxed = Consistency::Relaxed;
                let (got, states) = get_amid(script, &at, order, how, checks, relaxed);
                !states.contains(&got)
            })
        })
    })
}

#[test]
fn a_relaxed_get_returns_a_value_that_the_key_once_had() {
    assert!(!relaxed_goes_wrong(Checks::ALL));
    let without = Checks {
        slot: false,
        ..Checks::ALL
    };
    assert!(relaxed_goes_wrong(without), "the last look is needed");
}

#[test]
fn a_relaxed_get_reads_no_slot_and_sees_its_own_changes() {
    let store = testing::shared(LIMITS);
    let mut reader = reader(&store, Order::Forward);
    reader.set_consistency(Consistency::Relaxed);
    let location = store.set(b"key", 0, 0, b"old").unwrap();
    reader.remember(b"key", location);
    store.delete(b"key").unwrap();
    let mut into = [0; 3];
    for _ in 0..2 {
        assert_eq!(value_of(reader.get(b"key").unwrap()), Some(b"old".to_vec()));
        let found = reader.get_into(b"key", &mut into).unwrap();
        assert_eq!((found, &into), (Lookup::Found((0, 3)), b"old"));
    }
    reader.forget(b"key");
    assert_eq!(value_of(reader.get(b"key").unwrap()), None);
    let location = store.set(b"key", 0, 10, b"new").unwrap();
    reader.remember(b"key", location);
    assert_eq!(value_of(reader.get(b"key").unwrap()), Some(b"new".to_vec()));
    store.tick(10).unwrap();
    assert_eq!(value_of(reader.get(b"key").unwrap()), None);
}

/// Removes a content-addressed value, then reuses its memory.
const CONTENT_SCRIPT: [fn(&Shared); 3] = [
    |s| {
        s.delete(&content_key(&[1; 100])).unwrap();
    },
    |s| set(s, &content_key(&[2; 100]), 2),
    |s| set(s, &content_key(&[3; 100]), 3),
];

/// Whether in some schedule a get returns another value than the key's.
fn content_goes_wrong(checks: Checks) -> bool {
    let key = content_key(&[1; 100]);
    schedules(CONTENT_SCRIPT.len(), 6).into_iter().any(|at| {
        let all = ORDERS.map(|order| WAYS.map(|how| (order, how)));
        all.into_iter().flatten().any(|(order, how)| {
            let store = testing::shared_that_reuses(LIMITS);
            set(&store, &key, 1);
            let mut reader = reader(&store, order).with_checks(checks);
            reader.set_consistency(Consistency::ContentAddressed);
            if how != How::Cold {
                value_of(reader.get(&key).unwrap());
            }
            let at = at.clone();
            reader.endpoint_mut().before_piece(move |piece| {
                let now = CONTENT_SCRIPT
                    .iter()
                    .zip(&at)
                    .filter(|(_, at)| **at == piece);
                now.for_each(|(step, _)| step(&store));
            });
            let got = how.get(&mut reader, &key);
            got.is_some_and(|value| value != [1; 100])
        })
    })
}

#[test]
fn the_hash_decides_in_content_addressed_gets() {
    assert!(!content_goes_wrong(Checks::ALL));
    let without = Checks {
        content: false,
        key: false,
        ..Checks::ALL
    };
    assert!(content_goes_wrong(without), "the hash is needed");
}

#[test]
fn a_value_under_a_key_other_than_its_hash_is_absent() {
    let store = testing::shared(LIMITS);
    let (right, wrong) = (content_key(b"value"), content_key(b"other"));
    for key in [right, wrong] {
        store.set(&key, 0, 0, b"value").unwrap();
    }
    let mut reader = reader(&store, Order::Forward);
    reader.set_consistency(Consistency::ContentAddressed);
    let mut into = [0; 5];
    for _ in 0..2 {
        assert_eq!(
            value_of(reader.get(&right).unwrap()),
            Some(b"value".to_vec())
        );
        assert_eq!(value_of(reader.get(&wrong).unwrap()), None);
        let found = reader.get_into(&right, &mut into);
        assert_eq!(found, Ok(Lookup::Found((0, 5))));
        assert_eq!(reader.get_into(&wrong, &mut into), Ok(Lookup::Absent));
    }
    // The hash still matches after the item is removed.
    store.delete(&right).unwrap();
    assert_eq!(
        value_of(reader.get(&right).unwrap()),
        Some(b"value".to_vec())
    );
}
