use super::*;
use crate::protocol::change::Change;
use crate::protocol::layout::ItemHeader;
use crate::store::SetError;
use crate::store::operations::{self};
use crate::store::segments::room_of;
use crate::testing::{self, TestNetwork, value};

#[test]
fn set_get_replace_delete() {
    let store = testing::shared(Limits::DEFAULT);
    assert_eq!(value(&store, b"a"), None);
    store.set(b"a", 1, 0, b"one").unwrap();
    store.set(b"b", 2, 0, b"").unwrap();
    assert_eq!(value(&store, b"a").as_deref(), Some(&b"one"[..]));
    assert_eq!(value(&store, b"b").as_deref(), Some(&b""[..]));
    store.set(b"a", 1, 0, &[7; 100_000]).unwrap();
    assert_eq!(value(&store, b"a"), Some(vec![7; 100_000]));
    assert_eq!(store.delete(b"a"), Ok(true));
    assert_eq!(store.delete(b"a"), Ok(false));
    assert_eq!(value(&store, b"a"), None);
    assert_eq!(value(&store, b"b").as_deref(), Some(&b""[..]));
}

#[test]
fn expiry_follows_the_servers_clock() {
    let store = testing::shared(Limits::DEFAULT);
    store.set(b"forever", 0, 0, b"").unwrap();
    store.set(b"ten", 0, 10, b"").unwrap();
    store.set(b"past", 0, -1, b"").unwrap();
    store
        .set(b"absolute", 0, testing::UNIX_S + 20, b"")
        .unwrap();
    store
        .set(b"long ago", 0, 60 * 60 * 24 * 30 + 1, b"")
        .unwrap();
    let alive = || {
        let keys: [&[u8]; 5] = [b"forever", b"ten", b"past", b"absolute", b"long ago"];
        keys.map(|key| value(&store, key).is_some())
    };
    assert_eq!(alive(), [true, true, false, true, false]);
    store.tick(9).unwrap();
    assert_eq!(alive(), [true, true, false, true, false]);
    store.tick(10).unwrap();
    assert_eq!(alive(), [true, false, false, true, false]);
    store.tick(20).unwrap();
    assert_eq!(alive(), [true, false, false, false, false]);
    assert_eq!(store.delete(b"absolute"), Ok(false));
}

#[test]
fn a_flush_can_be_delayed_and_cancelled() {
    let store = testing::shared(Limits::DEFAULT);
    store.set(b"a", 0, 0, b"1").unwrap();
    store
        .with(|store| store.flush_at(Some(store.now() + 2)))
        .unwrap();
    store.tick(1).unwrap();
    assert!(value(&store, b"a").is_some());
    store.tick(2).unwrap();
    assert_eq!(value(&store, b"a"), None);
    store.set(b"a", 0, 0, b"2").unwrap();
    store
        .with(|store| store.flush_at(Some(store.now() + 2)))
        .unwrap();
    store.with(|store| store.flush_at(None)).unwrap();
    store.tick(9).unwrap();
    assert!(value(&store, b"a").is_some());
    store
        .with(|store| store.flush_at(Some(store.now())))
        .unwrap();
    assert_eq!(value(&store, b"a"), None);
}

#[test]
fn a_full_store_evicts_and_never_refuses() {
    let store = testing::shared(Limits {
        memory: 16 << 20,
        item: 1 << 20,
    });
    let mut state = 1u64;
    for n in 0..3000u64 {
        state = crate::protocol::hash::hash(state, b"next");
        let len = (state % 100_000) as usize >> (state >> 32 & 7);
        let key = format!("key{n}");
        store
            .set(key.as_bytes(), 0, 0, &vec![n as u8; len])
            .unwrap();
        assert_eq!(value(&store, key.as_bytes()), Some(vec![n as u8; len]));
    }
    let kept = (0..3000u64).filter_map(|n| Some((n, value(&store, format!("key{n}").as_bytes())?)));
    let mut count = 0;
    for (n, value) in kept {
        assert!(value.iter().all(|&byte| byte == n as u8));
        count += 1;
    }
    assert!(count > 500, "{count} of 3000 kept");
}

#[test]
fn small_items_leave_with_their_segment() {
    let store = testing::shared(Limits {
        memory: 2 << 20,
        item: 1 << 20,
    });
    for n in 0..100_000u32 {
        store.set(&n.to_le_bytes(), 0, 0, b"x").unwrap();
    }
    let kept = (0..100_000u32).filter(|n| value(&store, &n.to_le_bytes()).is_some());
    let kept = kept.count();
    // 48 bytes each, in one or both of two segments.
    assert!((21_845..=43_690).contains(&kept), "{kept} kept");
    let counters = store.with(|store| store.counters());
    assert_eq!(counters.items, kept as u64);
    assert_eq!(counters.evictions, 100_000 - kept as u64);
    assert_eq!(counters.evicted_unfetched, counters.evictions);
}

const SMALL: Limits = Limits {
    memory: 4 << 20,
    item: 64 << 10,
};

/// Each size replaces and removes items of the size before: memory once used for one size serves
/// any other.
#[test]
fn changing_sizes_do_not_fragment_memory() {
    let store = testing::shared(SMALL);
    for (round, len) in [100usize, 5000, 60_000, 300, 20_000, 40, 33_000, 1200]
        .into_iter()
        .enumerate()
    {
        let count = 2 * SMALL.memory as usize / len;
        for n in 0..count {
            let key = format!("{round} {n}");
            store.set(key.as_bytes(), 0, 0, &vec![1; len]).unwrap();
            if n % 3 == 0 {
                store
                    .delete(format!("{round} {}", n / 2).as_bytes())
                    .unwrap();
            }
        }
        let bytes = store.with(|store| store.counters()).bytes;
        assert!(bytes * 10 > SMALL.memory * 6, "{bytes} of size {len}");
    }
}

#[test]
fn used_items_outlive_unused_items() {
    let store = testing::shared(SMALL);
    let key = |n: u32| format!("used {n}").into_bytes();
    for n in 0..200 {
        store.set(&key(n), 0, 0, &[1; 1000]).unwrap();
    }
    for n in 0..20_000u32 {
        store.set(&n.to_le_bytes(), 0, 0, &[2; 1000]).unwrap();
        value(&store, &key(n % 200));
    }
    let kept = (0..200).filter(|n| value(&store, &key(*n)).is_some());
    assert_eq!(kept.count(), 200);
}

/// With two segments, cleaning once tried for ever to compact the one with holes, without a
/// destination.
#[test]
fn two_segments_are_enough() {
    let store = testing::shared(Limits {
        memory: 2 << 20,
        item: 1 << 20,
    });
    for n in 0..500u32 {
        let len = [100, 300_000, 500, 1_000_000][n as usize % 4];
        store
            .set(&(n % 7).to_le_bytes(), 0, 0, &vec![6; len])
            .unwrap();
        assert_eq!(value(&store, &(n % 7).to_le_bytes()), Some(vec![6; len]));
        store.delete(&(n % 5).to_le_bytes()).unwrap();
    }
}

/// The open segment once could not be reused before it was full.
#[test]
fn an_open_segment_without_live_items_is_reused_from_its_start() {
    let store = testing::shared(Limits {
        memory: 2 << 20,
        item: 1 << 20,
    });
    store.with(|store| store.set_may_evict(false));
    store.set(b"a", 0, 0, &[1; 600_000]).unwrap();
    for _ in 0..10 {
        store.set(b"b", 0, 0, &[2; 600_000]).unwrap();
        assert_eq!(store.delete(b"b"), Ok(true));
    }
    assert_eq!(value(&store, b"a"), Some(vec![1; 600_000]));
}

/// A reader without the lock gets the pinned value, even if the key changes meanwhile.
#[test]
fn a_pinned_value_does_not_change() {
    let store = testing::shared(SMALL);
    store.set(b"key", 0, 0, &[1; 50_000]).unwrap();
    let read = |item: &Item, items: &Region| {
        store.delete(b"key").unwrap();
        for n in 0..500u32 {
            store.set(&n.to_le_bytes(), 0, 0, &[2; 50_000]).unwrap();
        }
        let mut value = vec![0; item.header.value_len as usize];
        items.read(item.value_offset(), &mut value)?;
        Ok(value)
    };
    assert_eq!(store.get(b"key", read), Ok(Some(vec![1; 50_000])));
    // The memory is reusable afterwards.
    store.with(Store::flush).unwrap();
    store.with(|store| store.set_may_evict(false));
    // Two to each segment but the one for cleaning.
    for n in 0..60u32 {
        store.set(&n.to_le_bytes(), 0, 0, &[3; 50_000]).unwrap();
    }
}

#[test]
fn a_store_that_may_not_evict_refuses_sets_and_loses_nothing() {
    let store = testing::shared(SMALL);
    store.with(|store| store.set_may_evict(false));
    let mut kept = 0u32;
    while store.set(&kept.to_le_bytes(), 0, 0, &[3; 1000]).is_ok() {
        kept += 1;
    }
    assert!(u64::from(kept) * 1000 * 10 > SMALL.memory * 8, "{kept}");
    let full = store.set(b"more", 0, 0, &[3; 1000]);
    assert_eq!(full, Err(SetError::OutOfMemory));
    for n in 0..kept {
        assert_eq!(value(&store, &n.to_le_bytes()), Some(vec![3; 1000]));
    }
    // Holes in all segments are filled.
    for n in (0..kept).filter(|n| n % 2 == 0) {
        assert_eq!(store.delete(&n.to_le_bytes()), Ok(true));
    }
    for n in 0..kept / 3 {
        store
            .set(&(1 << 20 | n).to_le_bytes(), 0, 0, &[4; 1000])
            .unwrap();
    }
    for n in (0..kept).filter(|n| n % 2 == 1) {
        assert_eq!(value(&store, &n.to_le_bytes()), Some(vec![3; 1000]));
    }
}

/// Replaced values leave holes in all segments. A store with room for all items once evicted some
/// because of them.
#[test]
fn items_that_fit_stay_while_they_are_replaced() {
    let limits = Limits {
        memory: 16 << 20,
        ..SMALL
    };
    let store = testing::shared(limits);
    let count = limits.memory * 7 / 10 / u64::from(room_of(ItemHeader::LEN + 8 + 1000));
    let mut random = 1u64;
    for n in 0..5 * count {
        random = crate::protocol::hash::hash(random, b"next");
        let key = if n < count { n } else { random % count };
        store
            .set(&key.to_le_bytes(), 0, 0, &[n as u8; 1000])
            .unwrap();
    }
    let counters = store.with(|store| store.counters());
    assert_eq!((counters.items, counters.evictions), (count, 0));
}

/// A full store removes one item and sets another, many times. Of the first 10,000 sets 9,680 were
/// once refused, until three tenths of a segment were holes.
#[test]
fn removed_items_make_room_in_a_store_that_may_not_evict() {
    let store = testing::shared(SMALL);
    store.with(|store| store.set_may_evict(false));
    let mut random = 1u64;
    let mut below = |limit: usize| {
        random = crate::protocol::hash::hash(random, b"next");
        random as usize % limit
    };
    // Items of one length, of shorter lengths, and of any length.
    for (at_least, at_most) in [(1000, 1000), (300, 1000), (10, 3000)] {
        store.with(Store::flush).unwrap();
        let (mut kept, mut next) = (Vec::new(), 0u32);
        let mut set = |kept: &mut Vec<(u32, usize)>, len: usize| {
            next += 1;
            let stored = store.set(&next.to_le_bytes(), 0, 0, &vec![next as u8; len]);
            kept.extend(stored.is_ok().then_some((next, len)));
            stored.is_ok()
        };
        while set(&mut kept, at_most) {}
        let bytes = |kept: &[(u32, usize)]| kept.iter().map(|(_, len)| len).sum::<usize>();
        let before = bytes(&kept);
        for _ in 0..2_000 {
            let mut room = 0;
            let len = at_least + below(at_most + 1 - at_least);
            while room < len {
                let (key, removed) = kept.swap_remove(below(kept.len()));
                assert_eq!(store.delete(&key.to_le_bytes()), Ok(true));
                room += removed;
            }
            assert!(set(&mut kept, len), "{len} bytes after {room} were removed");
        }
        while set(&mut kept, (at_least + at_most) / 2) {}
        let after = bytes(&kept);
        assert!(after >= before * 8 / 10, "{after} bytes of {before}");
        for (key, len) in kept {
            let expected = Some(vec![key as u8; len]);
            assert_eq!(value(&store, &key.to_le_bytes()), expected);
        }
    }
}

#[test]
fn sweeps_free_expired_items() {
    let store = testing::shared(SMALL);
    for n in 0..2000u32 {
        let exptime = if n % 2 == 0 { 10 } else { 1000 };
        store.set(&n.to_le_bytes(), 0, exptime, &[5; 1000]).unwrap();
    }
    store.set(b"touched", 0, 0, b"").unwrap();
    store.tick(10).unwrap();
    let sweep = || while store.with(Store::sweep).unwrap() {};
    sweep();
    let counters = store.with(|store| store.counters());
    // As all had come from one place.
    assert_eq!((counters.items, counters.crawler_reclaimed), (1001, 1000));
    assert_eq!(counters.expired_unfetched, 1000);
    assert_eq!((counters.evictions, counters.reclaimed), (0, 0));
    for n in (1..2000u32).step_by(2) {
        assert!(value(&store, &n.to_le_bytes()).is_some());
    }
    store.tick(1000).unwrap();
    sweep();
    assert_eq!(store.with(|store| store.counters()).items, 1);
}

/// A crawl examines all items, also those that a sweep has just examined.
#[test]
fn a_crawl_examines_every_item() {
    let store = testing::shared(SMALL);
    let set = |from: u32, exptime| {
        for n in from..from + 100 {
            store.set(&n.to_le_bytes(), 0, exptime, b"").unwrap();
        }
    };
    let counters = || store.with(|store| store.counters());
    set(0, 1);
    set(100, 2);
    set(200, 0);
    for n in (0..100u32).chain(250..260) {
        store.delete(&n.to_le_bytes()).unwrap();
    }
    store.tick(1).unwrap();
    while store.with(Store::sweep).unwrap() {}
    store.tick(2).unwrap();
    assert!(!store.with(Store::sweep).unwrap());
    let before = counters();
    store.with(Store::crawl);
    assert!(store.with(|store| store.is_crawling()));
    while store.with(Store::sweep).unwrap() {}
    assert!(!store.with(|store| store.is_crawling()));
    let after = counters();
    assert_eq!(after.crawler_reclaimed - before.crawler_reclaimed, 100);
    assert_eq!(after.swept - before.swept, 190);
    assert_eq!((after.sweeps - before.sweeps, after.items), (1, 90));
}

/// The most used items stay when the limit rises and falls.
#[test]
fn the_most_used_items_survive_a_change_of_the_limit() {
    let most = Limits {
        memory: 16 << 20,
        ..SMALL
    };
    let store = TestNetwork::new().store_within(most, SMALL);
    let key = |n: u32| n.to_le_bytes();
    let fill = |from: u32, count: u32| {
        for n in from..from + count {
            store.set(&key(n), 0, 0, &[7; 1000]).unwrap();
            // The first 100 keys are read continually.
            value(&store, &key(n % 100));
        }
    };
    let settle = || while store.with(Store::sweep).unwrap() {};
    let bytes = || store.with(|store| store.counters()).bytes;
    fill(0, 5_000);
    assert!((3 << 20..4 << 20).contains(&bytes()), "{}", bytes());
    assert!(store.limit_memory(16 << 20));
    assert_eq!(store.limits(), most);
    fill(5_000, 20_000);
    assert!((13 << 20..16 << 20).contains(&bytes()), "{}", bytes());
    assert!(store.limit_memory(1 << 20));
    settle();
    assert!((1 << 19..1 << 20).contains(&bytes()), "{}", bytes());
    let kept = (0..100).filter(|n| value(&store, &key(*n)).is_some());
    assert_eq!(kept.count(), 100);
    // Without evictions all items stay, and no more are accepted.
    store.limit_memory(4 << 20);
    fill(30_000, 5_000);
    store.with(|store| store.set_may_evict(false));
    let items = store.with(|store| store.counters()).items;
    assert!(store.limit_memory(1 << 20));
    settle();
    assert_eq!(store.with(|store| store.counters()).items, items);
    assert_eq!(
        store.set(b"another", 0, 0, &[7; 10_000]),
        Err(SetError::OutOfMemory)
    );
    // More than the region, less than two largest items, and too little for cleaning.
    for memory in [17 << 20, 100 << 10, 192 << 10] {
        assert!(!store.limit_memory(memory), "{memory}");
    }
    assert_eq!(store.limits().memory, 1 << 20);
}

#[test]
fn a_failed_set_frees_its_memory_and_removes_the_old_value() {
    let store = testing::shared(Limits {
        memory: 2 << 20,
        item: 1 << 20,
    });
    for _ in 0..10 {
        store.set(b"key", 0, 0, b"old").unwrap();
        let change = Change::set(b"key", false);
        let failed =
            operations::store_with(&store, &change, 1 << 19, |_, _| Err(SetError::NotFetched));
        assert_eq!(failed, Err(SetError::NotFetched));
        assert_eq!(value(&store, b"key"), None);
    }
    store.set(b"key", 0, 0, b"old").unwrap();
    assert_eq!(
        store.set(b"key", 0, 0, &vec![0; 1 << 20]),
        Err(SetError::TooLarge)
    );
    assert_eq!(value(&store, b"key"), None);
    assert_eq!(store.set(b"", 0, 0, b""), Err(SetError::Key(0)));
    assert_eq!(store.set(&[b'k'; 251], 0, 0, b""), Err(SetError::Key(251)));
}

proptest::proptest! {
    /// Compares with a map of the last values: each key has its last value or none, no item is
    /// counted twice, and all memory becomes reusable.
    #[test]
    fn any_sequence_of_operations_keeps_the_last_value_or_none(
        operations in proptest::collection::vec((0u8..8, 0u8..60, 0usize..60_000), 1..600)
    ) {
        let store = testing::shared(SMALL);
        let mut last = std::collections::HashMap::new();
        for (number, (kind, key, len)) in operations.into_iter().enumerate() {
            let byte = number as u8;
            match kind {
                0 => {
                    store.delete(&[key]).unwrap();
                    last.remove(&key);
                }
                1 => {
                    value(&store, &[key]);
                }
                _ => {
                    store.set(&[key], 0, 0, &vec![byte; len]).unwrap();
                    last.insert(key, vec![byte; len]);
                }
            }
            let now = value(&store, &[key]);
            proptest::prop_assert!(now.is_none() || now.as_ref() == last.get(&key));
        }
        let kept = (0..60).filter_map(|key| Some((key, value(&store, &[key])?)));
        let kept: std::collections::HashMap<u8, Vec<u8>> = kept.collect();
        proptest::prop_assert!(kept.iter().all(|(key, value)| last.get(key) == Some(value)));
        let counters = store.with(|store| store.counters());
        let bytes = kept.values().map(|value| 40 + 1 + value.len() as u64).sum::<u64>();
        proptest::prop_assert_eq!((counters.items, counters.bytes), (kept.len() as u64, bytes));
        store.with(|store| store.set_may_evict(false));
        store.with(Store::flush).unwrap();
        // One or two segments are kept for cleaning.
        for n in 0..SMALL.memory as u32 * 9 / 10 / 1100 {
            store.set(&n.to_le_bytes(), 0, 0, &[1; 1000]).unwrap();
        }
    }
}
