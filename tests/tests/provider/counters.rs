//! What an operation does not cost: memory is allocated, the kernel called and the device rung for
//! as seldom as was promised.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use toroid_fabric::{Access, Completion, Endpoint, Operation, Region, Segment, Segments};

use crate::rig::Verbs;
use tests::conformance::Rig;

struct Counting;

thread_local!(static ALLOCATIONS: Cell<u64> = const { Cell::new(0) });

// SAFETY: everything is the system's allocator's; beside it only a number of this thread changes.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(place, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// How often this thread has allocated so far.
pub fn allocations() -> u64 {
    ALLOCATIONS.get()
}

/// Polls until `count` operations have ended.
fn poll(pair: &mut impl Endpoint, count: usize) {
    let mut done = 0;
    let mut some = [Completion::default(); 16];
    while done < count {
        let polled = pair.poll(&mut some);
        assert!(some[..polled].iter().all(|one| one.result.is_ok()));
        done += polled;
    }
}

#[test]
fn a_list_is_one_request_for_eight_segments() {
    let rig = Verbs::new();
    let regions = [0; 2].map(|_| Region::local(4096).unwrap());
    let (_owner, remote) = rig.export(4096, Access::all());
    let mut pair = rig.endpoint(4);
    for (count, requests) in [(1, 1), (2, 1), (8, 1), (9, 2), (24, 3)] {
        let segment = |n: u64| Segment::new(&regions[n as usize % 2], 100 * n..100 * n + 50);
        let list: Segments = (0..count).map(segment).collect();
        let post = |pair: &mut <Verbs as Rig>::Endpoint| {
            let write = Operation::write_from(&remote, 0, list.clone());
            let read = Operation::read_into(&remote, 0, list.clone());
            pair.post(0, write).unwrap();
            pair.post(1, read).unwrap();
            pair.flush();
            poll(pair, 2);
        };
        post(&mut pair);
        let (before, allocations) = (pair.counters(), ALLOCATIONS.get());
        post(&mut pair);
        let (after, allocated) = (pair.counters(), ALLOCATIONS.get() - allocations);
        assert_eq!(after.requests - before.requests, 2 * requests, "{count}");
        assert_eq!(allocated, 0, "{count}");
    }
}

#[test]
fn a_batch_rings_once_and_asks_for_few_completions() {
    let rig = Verbs::new();
    let local = Region::local(4096).unwrap();
    let (_owner, remote) = rig.export(4096, Access::all());
    let mut pair = rig.endpoint(256);
    let post = |pair: &mut <Verbs as Rig>::Endpoint, len| {
        for n in 0..256 {
            let write = Operation::write(&remote, 0, &local, 0..len);
            pair.post(n, write).unwrap();
        }
        pair.flush();
        poll(pair, 256);
    };
    post(&mut pair, 64);
    let (before, allocations) = (pair.counters(), ALLOCATIONS.get());
    post(&mut pair, 64);
    let (after, allocated) = (pair.counters(), ALLOCATIONS.get() - allocations);
    assert_eq!(after.doorbells - before.doorbells, 1);
    assert_eq!(after.requests - before.requests, 256);
    assert_eq!(after.signalled - before.signalled, 256 / 32);
    assert_eq!(
        after.inline - before.inline,
        256,
        "short ones need no memory of ours"
    );
    assert_eq!(after.sleeps, before.sleeps, "who polls does not sleep");
    assert_eq!(after.lookups, before.lookups, "its memory is known");
    assert_eq!(allocated, 0);
    post(&mut pair, 4096);
    assert_eq!(pair.counters().inline, after.inline, "long ones do");
}

#[test]
fn an_operation_that_is_polled_for_allocates_nothing() {
    let rig = Verbs::new();
    let local = Region::local(4096).unwrap();
    let (_owner, remote) = rig.export(4096, Access::all());
    let mut pair = rig.endpoint(4);
    let round = |pair: &mut <Verbs as Rig>::Endpoint| {
        let operations = [
            Operation::read(&remote, 0, &local, 0..4096),
            Operation::write(&remote, 0, &local, 0..64),
            Operation::fetch_add(&remote, 0, 1),
            Operation::compare_and_swap(&remote, 0, 1, 2),
        ];
        for (n, operation) in operations.into_iter().enumerate() {
            pair.post(n as u64, operation).unwrap();
        }
        pair.flush();
        poll(pair, 4);
    };
    round(&mut pair);
    let (before, allocations) = (pair.counters(), ALLOCATIONS.get());
    for _ in 0..100 {
        round(&mut pair);
    }
    let after = pair.counters();
    assert_eq!(ALLOCATIONS.get(), allocations);
    assert_eq!(
        (after.sleeps, after.lookups),
        (before.sleeps, before.lookups)
    );
    // What follows a read waits for it.
    assert_eq!(after.doorbells - before.doorbells, 200);
}
