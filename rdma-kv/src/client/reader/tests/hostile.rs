//! False claims of a server.

use super::*;

/// False locations from a server once made clients allocate memory, and fail for good.
#[test]
fn invalid_locations_are_not_cached() {
    let store = testing::shared(LIMITS);
    let real = store.set(b"key", 0, 0, b"value").unwrap();
    let mut reader = reader(&store, Order::Forward);
    let [index, items] = store.regions().map(|region| region.len());
    let slot = Slot((index / 8) as u32);
    let last = ItemAddress((items / UNIT as u64) as u32 - 1);
    let word = SlotWord::new(hash(SEED, b"key"), real.len, last, real.generation);
    for location in [
        Location {
            len: u32::MAX,
            ..real
        },
        Location {
            len: LIMITS.item + 1,
            ..real
        },
        Location { slot, ..real },
        Location {
            word,
            len: 65,
            ..real
        },
    ] {
        reader.remember(b"key", real);
        reader.remember(b"key", location);
        assert_eq!(reader.locations.peek(hash(SEED, b"key")), None);
        assert_eq!(
            value_of(reader.get(b"key").unwrap()),
            Some(b"value".to_vec())
        );
        assert!(reader.item.len() <= LIMITS.item as usize);
    }
}

#[test]
fn reads_are_bounded_by_the_largest_item() {
    let limits = Limits {
        memory: 8 << 20,
        ..LIMITS
    };
    let store = testing::shared(limits);
    let real = store.set(b"key", 0, 0, b"value").unwrap();
    let mut reader = reader(&store, Order::Forward);
    let [index, _] = store.regions();
    let largest = real.word.0 | 0x7f << 49;
    index.store(real.slot.offset(), largest).unwrap();
    assert_eq!(
        value_of(reader.get(b"key").unwrap()),
        Some(b"value".to_vec())
    );
    assert_eq!(reader.item.len(), limits.item as usize);
}

/// A region may be shorter than announced.
#[test]
fn a_location_outside_of_the_region_is_dropped() {
    let store = testing::shared(LIMITS);
    let real = store.set(b"key", 0, 0, b"value").unwrap();
    let [index, items] = store.regions();
    let (index_len, items_len) = (index.len(), items.len());
    let (index, items) = ((index, index_len), (items, items_len + (1 << 20)));
    let geometry = store.geometry().unwrap();
    let mut reader = Reader::new(Adversary::new(Order::Forward), index, items, &geometry)
        .unwrap()
        .read_apart_beyond(0);
    let end = ItemAddress((items_len / UNIT as u64) as u32);
    let word = SlotWord::new(hash(SEED, b"key"), real.len, end, real.generation);
    let mut into = [0; 5];
    for straight in [false, true] {
        reader.remember(b"key", Location { word, ..real });
        if straight {
            let found = reader.get_into(b"key", &mut into);
            assert_eq!(found, Ok(Lookup::Found((0, 5))));
            reader.remember(b"key", Location { word, ..real });
            let mut many = vec![];
            let each = |_, lookup: Lookup<ValueRef<'_>>| many.push(value_of(lookup));
            reader.get_many(&[b"key"], each).unwrap();
            assert_eq!(many, [Some(b"value".to_vec())]);
        } else {
            assert_eq!(
                value_of(reader.get(b"key").unwrap()),
                Some(b"value".to_vec())
            );
        }
        let location = reader.locations.peek(hash(SEED, b"key"));
        assert_eq!(location, Some(real));
    }
}

proptest::proptest! {
    /// A reader survives any bytes in the server's regions.
    #[test]
    fn a_hostile_server_cannot_harm_a_reader(
        bytes in proptest::collection::vec((0u64..8192, proptest::prelude::any::<u64>()), 0..600),
        small in proptest::bool::ANY,
        locations in proptest::collection::vec(proptest::prelude::any::<(u32, u64, u64, u32)>(), 3),
    ) {
        let store = testing::shared(LIMITS);
        set(&store, b"key", 1);
        let mut reader = reader(&store, Order::Forward);
        value_of(reader.get(b"key").unwrap());
        for region in store.regions() {
            for (word, value) in &bytes {
                let value = if small { value & 0xff_ffff } else { *value };
                region.store(word * 8, value).unwrap();
            }
        }
        let mut into = [0; 64];
        for (key, location) in [&b"key"[..], b"other", b"third"].into_iter().zip(locations) {
            let (slot, word, generation, len) = location;
            let (slot, len) = if small { (slot & 0xffff, len & 0xffff) } else { (slot, len) };
            let location = Location {
                slot: Slot(slot),
                word: SlotWord(if small { word & 0xfff_ffff } else { word }),
                generation,
                len,
            };
            for remembered in [false, true] {
                if remembered {
                    reader.remember(key, location);
                }
                let _ = reader.get_into(key, &mut into);
                if remembered {
                    reader.remember(key, location);
                }
                let _ = reader.get(key);
                if remembered {
                    reader.remember(key, location);
                }
                let _ = reader.get_many(&[key, b"key"], |_, _| ());
                proptest::prop_assert!(reader.item.len() <= LIMITS.item as usize);
            }
        }
    }
}
