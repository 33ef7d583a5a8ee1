//! Clocks in shared memory.

use std::fs::File;
use std::sync::atomic::{AtomicU64, Ordering};

use proptest::prelude::*;

use super::*;
use crate::mem::mapping::Mapping;

fn table() -> (File, SharedClocks) {
    let memory = SharedClocks::create().unwrap();
    let clocks = SharedClocks::map(&memory).unwrap();
    (memory, clocks)
}

/// A table as a process with its memory sees it, and the offsets of all words other than 0.
fn used_words(memory: &File) -> (Mapping, Vec<u64>) {
    let mapping = Mapping::of_file(memory, SharedClocks::LEN, true).unwrap();
    let offsets = (0..SharedClocks::LEN as u64).step_by(8);
    let is_used = |offset: &u64| word(&mapping, *offset).load(Ordering::Relaxed) != 0;
    let used = offsets.filter(is_used).collect();
    (mapping, used)
}

fn word(mapping: &Mapping, offset: u64) -> &AtomicU64 {
    mapping.word(offset).unwrap()
}

fn clock(n: u32) -> ClockId {
    ClockId::endpoint(NodeId(n), 0)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn shared_clocks_compute_as_local_ones(route in any_route(), messages in any_messages()) {
        let ((_, shared), local) = (table(), LocalClocks::default());
        for (now, bytes) in ready(&messages) {
            let times = carry(&route, &shared, now, bytes, 0);
            prop_assert_eq!(times, carry(&route, &local, now, bytes, 0));
        }
    }

    /// A process that writes any number to any used word delays others by the longest backlog at
    /// most.
    #[test]
    fn a_scribbled_table_delays_no_message_longer_than_the_longest_backlog(
        scribble: u64,
        at: prop::sample::Index,
        now in 0..1_u64 << 50,
    ) {
        let (memory, clocks) = table();
        let route = link(costs(GIGABYTE, 5_000));
        carry(&route, &clocks, 0, 1_000, 0);
        let (mapping, used) = used_words(&memory);
        word(&mapping, *at.get(&used)).store(scribble, Ordering::Relaxed);
        let times = carry(&route, &clocks, now, 1_000, 0);
        prop_assert!(times.start >= now);
        prop_assert!(times.start <= now + MAX_BACKLOG);
        // The start is rounded down, the arrival up.
        prop_assert!((6_000..=6_001).contains(&(times.arrival - times.start)));
    }
}

#[test]
fn a_clock_out_of_range_is_clamped_and_counted() {
    let (memory, clocks) = table();
    let route = link(costs(GIGABYTE, 0));
    carry(&route, &clocks, 0, 1_000, 0);
    let (mapping, used) = used_words(&memory);
    let is_clock = |at: &&u64| word(&mapping, **at).load(Ordering::Relaxed) == 1_000 * TICKS;
    let free_at = word(&mapping, *used.iter().find(is_clock).unwrap());
    let clamped = || record_of(&clocks, Path::Rdma, [route.stages[0].clock]).clamped;
    assert_eq!(clamped(), 0);
    free_at.store(u64::MAX, Ordering::Relaxed);
    let arrival = carry(&route, &clocks, 0, 1_000, 0).arrival;
    assert_eq!((arrival, clamped()), (MAX_BACKLOG + 1_000, 1));
    // The clock is right again when the longest backlog has passed.
    let later = 2 * MAX_BACKLOG;
    let arrival = carry(&route, &clocks, later, 1_000, 0).arrival;
    assert_eq!((arrival, clamped()), (later + 1_000, 1));

    // Messages that do not wait are lost until then.
    free_at.store(u64::MAX, Ordering::Relaxed);
    let limited = Route {
        limit: Some(10_000),
        ..route.clone()
    };
    let arrives = |now| carry_or_drop(&limited, &clocks, now, 1_000, 0).is_ok();
    assert!(!arrives(later));
    assert_eq!(clamped(), 2);
    assert!(arrives(later + MAX_BACKLOG));
    assert_eq!(clamped(), 2);
}

/// A point that threads leave together, to within a few nanoseconds, any number of times.
#[derive(Default)]
struct Line(AtomicU64);

impl Line {
    fn meet(&self, threads: u64) {
        let came = self.0.fetch_add(1, Ordering::Relaxed);
        let all = (came / threads + 1) * threads;
        while self.0.load(Ordering::Relaxed) < all {
            // Other tests may have the processors.
            std::thread::yield_now();
        }
    }
}

/// No reservation is lost, and no two overlap.
#[test]
fn threads_reserve_one_after_another() {
    const THREADS: u64 = 4;
    const EACH: u64 = 100_000;
    let (memory, clocks) = table();
    let line = Line::default();
    let mut starts: Vec<u64> = std::thread::scope(|scope| {
        let start = |_| {
            scope.spawn(|| {
                // As another process maps the table.
                let clocks = SharedClocks::map(&memory).unwrap();
                line.meet(THREADS);
                let reserve = |_| clocks.reserve(clock(1), 0, 7, u64::MAX).unwrap();
                (0..EACH).map(reserve).collect::<Vec<_>>()
            })
        };
        let threads: Vec<_> = (0..THREADS).map(start).collect();
        let joined = threads.into_iter().map(|thread| thread.join().unwrap());
        joined.flatten().collect()
    });
    starts.sort_unstable();
    let due = (0..THREADS * EACH).map(|n| n * 7);
    assert!(starts.iter().copied().eq(due));
    let next = clocks.reserve(clock(1), 0, 7, u64::MAX);
    assert_eq!(next, Some(THREADS * EACH * 7));
}

/// Threads that meet a clock for the first time agree on its entry.
#[test]
fn threads_that_claim_the_same_clocks_share_them() {
    const THREADS: u64 = 2;
    const CLOCKS: u32 = 10_000;
    let (memory, clocks) = table();
    let line = Line::default();
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                let clocks = SharedClocks::map(&memory).unwrap();
                for n in 0..CLOCKS {
                    line.meet(THREADS);
                    clocks.reserve(clock(n), 0, 5, u64::MAX);
                }
            });
        }
    });
    for n in 0..CLOCKS {
        assert_eq!(clocks.reserve(clock(n), 0, 0, u64::MAX), Some(10), "{n}");
    }
    assert_eq!(clocks.without_clock(), 0);
}

#[test]
fn stages_beyond_a_full_table_have_no_queue() {
    const CLOCKS: u32 = 40_000;
    let (_, clocks) = table();
    let reserve = |n| clocks.reserve(clock(n), 0, 10, u64::MAX);
    assert!((0..CLOCKS).all(|n| reserve(n) == Some(0)));
    let again: Vec<_> = (0..CLOCKS).map(reserve).collect();
    let count = |start| again.iter().filter(|again| **again == Some(start)).count();
    let (queued, free) = (count(10), count(0));
    assert!(queued > 16_000, "{queued}");
    assert_eq!(queued + free, CLOCKS as usize);
    assert_eq!(clocks.without_clock(), 2 * free as u64);
}

#[test]
fn a_short_file_is_refused() {
    let memory = crate::mem::memfd::create_memory(4096).unwrap();
    assert!(SharedClocks::map(&memory).is_err());
}

#[test]
fn records_keep_the_paths_and_clocks_apart() {
    let (memory, clocks) = table();
    for n in 1..=100 {
        clocks.record(clock(1), Path::Rdma, n * 100, 1_000_000, 7);
    }
    clocks.record(clock(1), Path::Ethernet, 40, 1_000, 0);
    clocks.record(clock(2), Path::Rdma, 1_001, 1_000, 0);
    let other = SharedClocks::map(&memory).unwrap();
    let rdma = record_of(&other, Path::Rdma, [clock(1)]);
    // 1 % of 1 ms is 10 us, which none passes.
    assert_eq!((rdma.transfers, rdma.late, rdma.cpu), (100, 0, 700));
    // A percentile is the upper end of its bucket, and a bucket a quarter of a power of two.
    assert!((5_000..=6_250).contains(&rdma.p50), "{}", rdma.p50);
    assert!((9_900..=12_375).contains(&rdma.p99), "{}", rdma.p99);
    let ethernet = record_of(&other, Path::Ethernet, [clock(1), clock(2)]);
    assert_eq!((ethernet.transfers, ethernet.late), (1, 0));
    let both = record_of(&other, Path::Rdma, [clock(1), clock(2)]);
    assert_eq!((both.transfers, both.late), (101, 1));
    let none = record_of(&other, Path::Rdma, [clock(3)]);
    assert_eq!(none, ClockRecord::default());
}

#[test]
fn frames_of_flows_are_counted_by_path() {
    let (_, clocks) = table();
    let record = |path| record_of(&clocks, path, [clock(1), clock(2), clock(3)]);
    clocks.record_flow(clock(1), FlowPath::Gateway, 5, false);
    clocks.record_flow(clock(1), FlowPath::Gateway, 1, true);
    clocks.record_flow(clock(2), FlowPath::Direct, 40, false);
    let flows = FlowRecord {
        gateway: 6,
        direct: 40,
        switches: 1,
    };
    let expected = ClockRecord {
        flows,
        ..ClockRecord::default()
    };
    // Percentiles of no transfers are 0.
    assert_eq!(record(Path::Ethernet), expected);
    assert_eq!(record(Path::Rdma), ClockRecord::default());
}
