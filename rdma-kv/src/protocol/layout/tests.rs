use super::*;

fn line(words: [u64; 8]) -> Line {
    Line(words.map(u64::to_le_bytes))
}

#[test]
fn onwards_visits_each_bucket_once_and_finds_all_keys() {
    for count in 1..=130 {
        let buckets = Buckets::new(1 << 20, 200).unwrap();
        let buckets = buckets.with_count(count).unwrap();
        let (mut at, mut met) = (0, Vec::new());
        while let Some((Bucket(number), onwards)) = buckets.onwards(at) {
            for order in [at, at.midpoint(onwards), onwards - 1] {
                let hash = (order as u32).reverse_bits();
                assert_eq!(buckets.main(hash.into()), Bucket(number));
            }
            met.push(u64::from(number));
            at = onwards;
        }
        assert_eq!(at, 1 << 32);
        met.sort();
        assert!(met.into_iter().eq(0..count));
    }
}

#[test]
fn slot_words_round_trip() {
    for (len, limit) in [
        (1, 64),
        (64, 64),
        (65, 80),
        (129, 160),
        (1 << 20, 1 << 20),
        ((1 << 20) + 1, 5 << 18),
        (1 << 30, 1 << 30),
    ] {
        let address = ItemAddress(u32::MAX);
        let generation = 0x1234_5678_9abc_def0;
        let word = SlotWord::new(0xab << 56, len, address, generation);
        assert_eq!(word.len_limit(), limit);
        assert_eq!(word.address(), address);
        assert!(word.may_be(0xab << 56) && !word.may_be(0xac << 56));
        assert!(word.is_of(generation) && word.is_of(generation + (1 << 17)));
        assert!(!word.is_of(generation + 1));
    }
    assert_ne!(SlotWord::new(0, 1, ItemAddress(0), 0), SlotWord::EMPTY);
    assert!(!SlotWord::EMPTY.may_be(0));
}

#[test]
fn classes_waste_at_most_a_quarter() {
    for len in (1..100_000u32).chain((1 << 20) - 1000..(1 << 20) + 1000) {
        let limit = SlotWord::new(0, len, ItemAddress(0), 0).len_limit();
        let least = u64::from(len).next_multiple_of(UNIT as u64);
        assert!(
            (least..=(least * 5 / 4).max(64)).contains(&limit),
            "{len}: {limit}"
        );
    }
}

#[test]
fn the_control_line_round_trips_and_is_checked() {
    let control = ControlLine {
        boot_id: 7,
        table: TableEpoch(10),
        flush: FlushEpoch(3),
        clock: 9,
        capacity: 8,
    };
    let words = control.words();
    let (parsed, buckets) = ControlLine::parse(&line(words), 64 * 9).unwrap();
    assert_eq!((parsed, buckets.count()), (control, 5));
    let small = LayoutError::Geometry {
        index: 64 * 8,
        count: 1,
        capacity: 8,
    };
    assert_eq!(ControlLine::parse(&line(words), 64 * 8), Err(small));
    assert_eq!(
        ControlLine::parse(&Line::default(), 4096),
        Err(LayoutError::Magic(0))
    );
    for (word, value) in [
        (2, 0),
        (2, 1),
        (2, 18),
        (2, u64::MAX),
        (5, 0),
        (5, 1 << 32),
        (5, u64::MAX),
    ] {
        let mut words = words;
        words[word] = value;
        assert!(ControlLine::parse(&line(words), u64::MAX).is_err());
    }
}

#[test]
fn links_lead_to_overflow_buckets_only() {
    let buckets = Buckets::new(64 * (1 + 8 + 2), 8).unwrap();
    assert_eq!(buckets.linked(0), None);
    assert_eq!(buckets.linked(7), None);
    assert_eq!(buckets.linked(8), Some(Bucket(8)));
    assert_eq!(buckets.linked(9), Some(Bucket(9)));
    for link in [10, 1 << 32 | 8, u64::MAX] {
        assert_eq!(buckets.linked(link), None);
    }
    assert_eq!(buckets.overflow().count(), 2);
}

#[test]
fn growth_disturbs_two_buckets() {
    let step = |from: u64, to: u64| {
        let disturbs = |n: &u32| TableEpoch(to).disturbs(TableEpoch(from), Bucket(*n));
        (0..8).filter(disturbs).collect::<Vec<u32>>()
    };
    // From 4 buckets to 5 and 6.
    assert_eq!(step(8, 8), [0; 0]);
    assert_eq!(step(8, 11), [0, 4]);
    assert_eq!(step(8, 10), [0, 4]);
    assert_eq!(step(11, 11), [0, 4]);
    assert_eq!(step(11, 10), [0, 4]);
    assert_eq!(step(10, 10), [0; 0]);
    assert_eq!(step(8, 12), [0, 1, 4, 5]);
    assert_eq!(step(10, 8), [0, 1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(step(2, 1 << 20), [0, 1, 2, 3, 4, 5, 6, 7]);
}

/// A key is in its bucket, or in the new one that takes its share.
#[test]
fn growth_moves_keys_from_one_bucket_only() {
    let mut buckets = Buckets::new(64 * 1000, 100).unwrap();
    while let Some((grown, new, from)) = buckets.grown() {
        for hash in 0..1000u64 {
            let (old, now) = (buckets.main(hash), grown.main(hash));
            assert!(
                now == old || (old, now) == (from, new),
                "{hash} of {buckets:?}"
            );
            assert!(now.0 < grown.count);
        }
        buckets = grown;
    }
    assert_eq!(buckets.count(), 100);
}

#[test]
fn items_round_trip_and_short_ones_are_refused() {
    let header = ItemHeader {
        generation: 1 << 40,
        cas: 2 << 40,
        exptime: 3,
        flags: 4,
        value_len: 5,
        checksum: 6,
        key_len: 3,
        marks: Marks::STALE,
        accessed: 8,
    };
    let word = |at: u64| {
        let bytes = &header.to_bytes()[at as usize..][..8];
        u64::from_le_bytes(bytes.try_into().unwrap())
    };
    assert_eq!(word(ItemHeader::CAS_WORD), header.cas);
    assert_eq!(word(ItemHeader::EXPTIME_WORD), header.exptime_word());
    assert_eq!(word(ItemHeader::NOTES_WORD), header.notes_word());
    let mut item = header.to_bytes().to_vec();
    item.extend_from_slice(b"keyvaluemore");
    assert_eq!(header.item_len(), 48);
    assert_eq!(
        ItemHeader::split(&item),
        Some((header, &b"key"[..], &b"value"[..]))
    );
    for len in 0..48 {
        assert_eq!(ItemHeader::split(&item[..len]), None);
    }
    item[24..28].fill(0xff);
    assert_eq!(ItemHeader::split(&item), None);
}
