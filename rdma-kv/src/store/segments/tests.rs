use super::*;

const LEN: u32 = 1 << 12;

fn of_memory(memory: u64) -> Segments {
    Segments::new(memory, memory, LEN)
}

fn fill(segments: &mut Segments, queue: Queue, room: u32) -> Vec<ItemAddress> {
    let mut addresses = vec![];
    while let Some(Allocation { address, .. }) = segments.append(queue, room, 0) {
        segments.commit(address, room, 0, 0);
        addresses.push(address);
    }
    addresses
}

#[test]
fn the_whole_region_is_given_out_without_overlap() {
    let mut segments = of_memory(16 * u64::from(LEN) + 5);
    let addresses = fill(&mut segments, Queue::Young, 1024);
    let expected: Vec<ItemAddress> = (0..64).map(|n| ItemAddress(n * 64)).collect();
    assert_eq!(addresses, expected);
    assert_eq!(segments.free(), 0);
}

#[test]
fn a_segment_without_live_items_is_free_again() {
    let mut segments = of_memory(4 * u64::from(LEN));
    let addresses = fill(&mut segments, Queue::Young, 1024);
    for address in &addresses[..3] {
        segments.release(*address, 1024, 0);
    }
    assert_eq!(segments.free(), 0);
    segments.release(addresses[3], 1024, 0);
    assert_eq!(segments.free(), 1);
    // The open one stays open, and is filled from its start.
    for address in &addresses[12..] {
        segments.release(*address, 1024, 0);
    }
    assert_eq!(segments.free(), 1);
    let again = segments.append(Queue::Young, LEN, 1).unwrap();
    assert_eq!(again.address, addresses[12]);
}

#[test]
fn what_is_held_is_not_used_again() {
    let mut segments = of_memory(4 * u64::from(LEN));
    let addresses = fill(&mut segments, Queue::Young, LEN);
    segments.pin(addresses[0], LEN);
    segments.release(addresses[0], LEN, 0);
    assert_eq!(segments.free(), 0);
    segments.unpin(addresses[0], LEN);
    assert_eq!(segments.free(), 1);
    // Also by who began to clean it before.
    let (number, queue, _) = segments.victim(true).unwrap();
    segments.pin(addresses[1], LEN);
    segments.release(addresses[1], LEN, 0);
    assert!(!segments.recycle_unless_pinned(number, queue));
    assert_eq!(segments.free(), 1);
    segments.unpin(addresses[1], LEN);
    assert_eq!(segments.free(), 2);
}

#[test]
fn holes_are_filled_where_new_items_go_and_nowhere_else() {
    let mut segments = of_memory(8 * u64::from(LEN));
    let append = |segments: &mut Segments, room| {
        let address = segments.append(Queue::Young, room, 0).unwrap().address;
        segments.commit(address, room, 0, 0);
        address
    };
    let addresses: Vec<ItemAddress> = (0..3).map(|_| append(&mut segments, 1024)).collect();
    segments.release(addresses[1], 1024, 0);
    let other = append(&mut segments, 512);
    assert!(!addresses.contains(&other));
    assert_eq!(append(&mut segments, 1024), addresses[1]);
    // Somebody reads it.
    segments.pin(addresses[0], 1024);
    segments.release(addresses[0], 1024, 0);
    segments.unpin(addresses[0], 1024);
    // Not this one, which is in the next segment, but those before it.
    let next = append(&mut segments, 1024);
    segments.release(addresses[2], 1024, 0);
    assert!(
        ![&addresses[..], &[next]]
            .concat()
            .contains(&append(&mut segments, 1024))
    );
    segments.release(next, 1024, 0);
    assert_eq!(append(&mut segments, 1024), next);
    segments.release(next, 1024, 0);
    segments.clear();
    let other = segments.append(Queue::Young, 1024, 0).unwrap();
    assert_ne!(other.address, next);
}

#[test]
fn sparse_segments_are_cleaned_before_any_eviction() {
    let mut segments = of_memory(8 * u64::from(LEN));
    let addresses = fill(&mut segments, Queue::Young, 512);
    assert_eq!(segments.victim(false), None);
    segments.release(addresses[17], 512, 0);
    assert_eq!(segments.victim(false), None);
    segments.release(addresses[18], 512, 0);
    let victim = (SegmentNumber(2), Queue::Young, CleaningMode::Compact);
    assert_eq!(segments.victim(true), Some(victim));
    segments.put_back(victim.0, victim.1);
    assert_eq!(segments.victim(true), Some(victim));
    segments.recycle(victim.0);
    let oldest = (SegmentNumber(0), Queue::Young, CleaningMode::Evict);
    assert_eq!(segments.victim(true), Some(oldest));
}

#[test]
fn main_items_stay_while_young_ones_are_many() {
    use Queue::{Main, Young};
    let queues = |are_used: bool, ghosts: u64| {
        let mut segments = of_memory(8 * u64::from(LEN));
        let mut main = vec![];
        for _ in 0..4 {
            let address = segments.append(Main, LEN, 0).unwrap().address;
            segments.commit(address, LEN, 0, 0);
            main.push(address);
        }
        fill(&mut segments, Young, LEN);
        if are_used {
            let use_it = |address: ItemAddress| segments.note_use(address, LEN, 0, 1);
            main.into_iter().for_each(use_it);
        }
        segments.note_ghost(Young, ghosts * u64::from(LEN));
        let mut queues = vec![];
        while let Some((number, queue, _)) = segments.victim(true) {
            segments.recycle(number);
            queues.push(queue);
        }
        queues
    };
    assert_eq!(queues(true, 0), [Young, Young, Main, Main, Main, Young]);
    // Young ones are to be more.
    assert_eq!(queues(true, 3), [Young, Main, Main, Main, Young, Young]);
    // No main one was used since there are young ones.
    assert_eq!(queues(false, 0), [Main, Main, Main, Young, Young, Young]);
}

#[test]
fn what_was_used_most_stays_of_a_segment() {
    let mut segments = of_memory(4 * u64::from(LEN));
    let addresses: Vec<ItemAddress> = (0..16)
        .map(|_| {
            let address = segments.append(Queue::Main, LEN / 16, 0).unwrap().address;
            segments.commit(address, LEN / 16, 0, 0);
            address
        })
        .collect();
    let room = LEN / 16;
    // Six were used three times, six once; one of the former is gone, and one is used meanwhile.
    for address in &addresses[..6] {
        segments.note_use(*address, room, 0, 3);
    }
    for address in &addresses[6..12] {
        segments.note_use(*address, room, 0, 1);
    }
    segments.release(addresses[0], room, 3);
    let mut retention = segments.retention(segments.number_of(addresses[0]));
    let mut kept = |frequency, count: usize| {
        let takes = (0..count).map(|_| retention.admits(frequency, room));
        takes.filter(|is_kept| *is_kept).count()
    };
    // Nine are six tenths of sixteen.
    assert_eq!([kept(0, 4), kept(1, 4), kept(2, 1)], [0, 4, 1]);
    assert_eq!([kept(1, 2), kept(3, 5)], [0, 4]);
}

#[test]
fn what_is_reserved_is_neither_cleaned_nor_cleared() {
    let mut segments = of_memory(2 * u64::from(LEN));
    let first = segments.append(Queue::Young, LEN, 0).unwrap().address;
    let second = segments.append(Queue::Young, LEN, 0).unwrap().address;
    assert_eq!(segments.append(Queue::Young, UNIT as u32, 0), None);
    assert_eq!(segments.victim(true), None);
    segments.clear();
    assert_eq!(segments.free(), 0);
    segments.abandon(first, LEN);
    segments.commit(second, LEN, 0, 0);
    assert_eq!(segments.free(), 1);
    assert!(segments.victim(true).is_some());
}

#[test]
fn segments_with_expired_items_are_found() {
    let mut segments = of_memory(4 * u64::from(LEN));
    for exptime in [0, 9, 7, 5] {
        let address = segments.append(Queue::Young, LEN, 0).unwrap().address;
        segments.commit(address, LEN, exptime, 0);
    }
    assert_eq!(segments.stale(4), None);
    // The open one.
    assert_eq!(segments.stale(6), Some(SegmentNumber(3)));
    segments.forget_expiry(SegmentNumber(3));
    assert_eq!(segments.stale(7), Some(SegmentNumber(2)));
    segments.forget_expiry(SegmentNumber(2));
    assert_eq!(segments.stale(9), Some(SegmentNumber(1)));
}

#[test]
fn segments_beyond_the_limit_are_withheld_until_it_is_raised() {
    let mut segments = Segments::new(8 * u64::from(LEN), 12 * u64::from(LEN), LEN);
    let withhold = |segments: &mut Segments| {
        let all = std::iter::from_fn(|| segments.withhold());
        all.count()
    };
    let addresses = fill(&mut segments, Queue::Young, LEN);
    assert_eq!(addresses.len(), 8);
    assert!(segments.limit_to(5 * u64::from(LEN)));
    assert_eq!((segments.count(), withhold(&mut segments)), (5, 0));
    for address in &addresses[..5] {
        segments.release(*address, LEN, 0);
    }
    // All that are too many, and what cleaning needs stays.
    assert_eq!((segments.is_over(), segments.free()), (true, 5));
    assert_eq!((withhold(&mut segments), segments.is_over()), (3, false));
    assert_eq!(fill(&mut segments, Queue::Young, LEN).len(), 2);
    // None of these is any more than before, whatever is flushed.
    segments.clear();
    assert_eq!(segments.free(), 5);
    assert!(segments.limit_to(12 * u64::from(LEN)));
    let mut addresses = fill(&mut segments, Queue::Young, LEN);
    addresses.sort_by_key(|address| address.0);
    addresses.dedup();
    assert_eq!(addresses.len(), 12);
    // Beyond the region, or too little to clean in.
    assert!(!segments.limit_to(13 * u64::from(LEN)));
    assert!(!segments.limit_to(3 * u64::from(LEN)));
    assert_eq!(segments.count(), 12);
}

#[test]
fn at_most_one_segment_is_populated_ahead() {
    let len = u64::from(LEN);
    let mut segments = of_memory(4 * len);
    let all = |segments: &mut Segments| {
        let pieces = std::iter::from_fn(|| segments.take_unpopulated(1000));
        let pieces: Vec<_> = pieces.collect();
        assert!(pieces.iter().all(|piece| piece.end - piece.start <= 1000));
        assert!(pieces.is_sorted_by(|a, b| a.end == b.start));
        Some(pieces.first()?.start..pieces.last()?.end)
    };
    assert_eq!(all(&mut segments), None, "nothing for an empty store");
    let first = segments.append(Queue::Young, 1024, 0).unwrap().address;
    segments.commit(first, 1024, 0, 0);
    assert_eq!(all(&mut segments), Some(1024..1024 + len));
    assert_eq!(all(&mut segments), None);
    // The next item takes populated memory.
    let second = segments.append(Queue::Young, 2048, 0).unwrap().address;
    segments.commit(second, 2048, 0, 0);
    assert_eq!(all(&mut segments), Some(1024 + len..3072 + len));
    // A segment that has been in use comes before fresh memory.
    let third = segments.append(Queue::Young, LEN, 0).unwrap().address;
    segments.commit(third, LEN, 0, 0);
    segments.release(first, 1024, 0);
    segments.release(second, 2048, 0);
    assert_eq!(all(&mut segments), None);
    fill(&mut segments, Queue::Young, LEN);
    assert_eq!(all(&mut segments), None, "nothing behind the limit");
}
