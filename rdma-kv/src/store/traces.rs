//! Hit rates on traces, each next to those of an exact LRU cache and of random replacement, which the test
//! computes.
//!
//! A client gets a key, and sets it where it finds nothing. All is in this process, in the same order each
//! time: a rate is a number of the algorithm and not of the machine.

use std::collections::HashMap;

use super::{Limits, Store};
use crate::protocol::change::Change;
use crate::protocol::layout::ItemHeader;
use crate::store::operations::{self};
use crate::store::segments::room_of;
use crate::store::shared::Shared;
use crate::testing;

const LIMITS: Limits = Limits {
    memory: 4 << 20,
    item: 1 << 10,
};

/// Bytes of a value, and of a key.
const VALUE: usize = 900;
const KEY: usize = 8;

/// Items for which the memory has room.
fn capacity() -> u64 {
    LIMITS.memory / u64::from(room_of(ItemHeader::LEN + KEY + VALUE))
}

/// Knuth's generator (MMIX), whose upper bits are good.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        let next = self.0.wrapping_mul(6_364_136_223_846_793_005);
        self.0 = next.wrapping_add(1_442_695_040_888_963_407);
        ((u128::from(self.0 >> 16) * u128::from(limit)) >> 48) as u64
    }
}

/// Draws numbers below a limit, the first ones more often than the others.
struct Zipf(Vec<f64>);

impl Zipf {
    fn new(keys: u64, exponent: f64) -> Self {
        let mut sum = 0.0;
        let sums = (1..=keys).map(|n| {
            sum += (n as f64).powf(-exponent);
            sum
        });
        Zipf(sums.collect())
    }

    fn draw(&self, random: &mut Random) -> u64 {
        let all = self.0[self.0.len() - 1];
        let at = random.below(1 << 48) as f64 / (1u64 << 48) as f64 * all;
        self.0.partition_point(|sum| *sum < at) as u64
    }
}

/// Share of a trace's gets that find something.
fn hit_rate(trace: &[u64]) -> f64 {
    let shared = testing::shared(LIMITS);
    let hits = trace.iter().filter(|key| uses(&shared, **key)).count();
    hits as f64 / trace.len() as f64
}

/// Gets a key, or sets it; returns whether it was there.
fn uses(shared: &Shared, key: u64) -> bool {
    let key = key.to_le_bytes();
    shared.with(|store: &mut Store| {
        let found = operations::get(store, &key, None).unwrap().0;
        if found.is_none() {
            operations::store_at_once(store, &Change::set(&key, false), &[7; VALUE]).unwrap();
        }
        found.is_some()
    })
}

/// Hit rate of an LRU cache with exactly the same room.
fn lru(trace: &[u64]) -> f64 {
    let (mut last, mut order) = (HashMap::new(), std::collections::VecDeque::new());
    let mut hits = 0;
    for (now, key) in trace.iter().enumerate() {
        let is_hit = last.insert(*key, now).is_some();
        order.push_back((*key, now));
        hits += usize::from(is_hit);
        while last.len() as u64 > capacity() {
            let (oldest, then) = order.pop_front().unwrap();
            if last.get(&oldest) == Some(&then) {
                last.remove(&oldest);
            }
        }
    }
    hits as f64 / trace.len() as f64
}

/// Hit rate of a cache that evicts a random item.
fn random(trace: &[u64]) -> f64 {
    let (mut positions, mut keys) = (HashMap::new(), Vec::new());
    let (mut random, mut hits) = (Random(77), 0);
    for key in trace {
        if positions.contains_key(key) {
            hits += 1;
        } else if (keys.len() as u64) < capacity() {
            positions.insert(*key, keys.len());
            keys.push(*key);
        } else {
            let at = random.below(capacity()) as usize;
            positions.remove(&keys[at]);
            positions.insert(*key, at);
            keys[at] = *key;
        }
    }
    hits as f64 / trace.len() as f64
}

/// Tenths of the store's capacity, in items.
fn tenths(of: u64) -> u64 {
    capacity() * of / 10
}

/// The store must find at least `share` of the hits of an LRU cache, and `over_random` times those of random
/// replacement.
fn expect(name: &str, trace: &[u64], share: f64, over_random: f64) {
    let [ours, lru, random] = [hit_rate, lru, random].map(|rate| rate(trace));
    assert!(
        ours >= share * lru && ours >= over_random * random,
        "{name}: {ours:.4}, LRU {lru:.4}, random {random:.4}"
    );
}

/// A working set that fills most of the memory is read three times and never again. Another one, a sixth
/// as large, was then read sixty times without one hit.
#[test]
fn a_dead_working_set_gives_way_to_a_live_one() {
    for next in [tenths(2), tenths(4), tenths(8)] {
        let shared = testing::shared(LIMITS);
        for _ in 0..3 {
            (0..tenths(9)).for_each(|key| {
                uses(&shared, key);
            });
        }
        let round = || {
            (0..next)
                .filter(|key| uses(&shared, 1 << 32 | *key))
                .count() as u64
        };
        assert_eq!(round(), 0);
        // As LRU does: all of it from the second round on.
        for _ in 0..10 {
            assert_eq!(round(), next);
        }
    }
}

#[test]
fn popular_keys_stay() {
    let trace = |keys, exponent| -> Vec<u64> {
        let (zipf, mut random) = (Zipf::new(keys, exponent), Random(7));
        (0..20 * capacity())
            .map(|_| zipf.draw(&mut random))
            .collect()
    };
    expect("zipf 0.99", &trace(tenths(100), 0.99), 1.02, 1.05);
    expect("zipf 0.7", &trace(tenths(100), 0.7), 1.1, 1.2);
    expect("zipf 0.99 of few", &trace(tenths(20), 0.99), 0.99, 1.01);
    expect("zipf 0.7 of few", &trace(tenths(20), 0.7), 0.98, 1.02);
}

#[test]
fn scans_displace_little() {
    for scans in [50, 80] {
        let (zipf, mut random) = (Zipf::new(capacity(), 0.99), Random(9));
        let mut next = 1 << 32;
        let trace: Vec<u64> = (0..20 * capacity())
            .map(|_| {
                if random.below(100) < scans {
                    next += 1;
                    next
                } else {
                    zipf.draw(&mut random)
                }
            })
            .collect();
        expect(&format!("{scans} % scans"), &trace, 1.07, 1.1);
    }
}

/// Keys in a window that moves on by one key in so many gets.
#[test]
fn a_working_set_may_slide() {
    let cases = [
        (5, 8, 0.99),
        (9, 8, 0.985),
        (9, 2, 0.98),
        (15, 8, 0.94),
        (20, 4, 0.92),
        (20, 2, 0.92),
        (40, 8, 0.92),
    ];
    for (window, gets_per_key, share) in cases {
        let mut random = Random(5);
        let trace: Vec<u64> = (0..20 * capacity())
            .map(|n| n / gets_per_key + random.below(tenths(window)))
            .collect();
        let name = format!("window of {window}/10, {gets_per_key} gets per key");
        expect(&name, &trace, share, 0.94);
    }
}

/// All keys are others after a while.
#[test]
fn a_working_set_may_be_replaced() {
    for (keys, exponent, turns) in [(7, 0.0, 4), (7, 0.0, 2), (15, 0.0, 6), (20, 0.7, 6)] {
        let (zipf, mut random) = (Zipf::new(tenths(keys), exponent), Random(3));
        let trace: Vec<u64> = (0..20 * capacity())
            .map(|n| ((n / (turns * capacity())) << 32) + zipf.draw(&mut random))
            .collect();
        let name = format!("{keys}/10 of exponent {exponent}, {turns} turns");
        expect(&name, &trace, 0.93, 1.05);
    }
}

/// A loop over more than there is room for, in which LRU finds nothing.
#[test]
fn a_loop_that_does_not_fit_is_kept_in_part() {
    let trace: Vec<u64> = (0..15).flat_map(|_| 0..tenths(12)).collect();
    expect("loop of 12/10", &trace, 1.0, 0.9);
}
