//! One-sided operations behind a link.

use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Instant;

use super::super::queue_pair;
use super::*;
use crate::core::endpoint::{Pending, PostError, Read};
use crate::core::mapped::Mapped;
use crate::model::MAX_BACKLOG;

/// On `shm`, whose operations execute at once.
fn rig(link: &Arc<PeerLink>, depth: usize) -> Rig {
    let [near, _] = pairs(link, depth);
    near
}

#[test]
fn a_write_is_seen_after_one_latency_and_complete_after_two() {
    let latency = 5 * MILLISECOND;
    for on_top in [false, true] {
        let mut way = way(after(latency));
        way.out.on_top = on_top;
        way.back.on_top = on_top;
        for rig in pairs(&link(way), 1) {
            await_write(rig, latency);
        }
        let mut way = way_of_two_stages(after(latency / 2));
        way.out.on_top = on_top;
        way.back.on_top = on_top;
        for rig in pairs(&link(way), 1) {
            await_write(rig, latency);
        }
    }
}

/// Writes, and checks that a peer sees the write after `latency` and the completion comes after two.
fn await_write(mut rig: Rig, latency: Nanos) {
    let start = monotonic();
    rig.send(rig.write(7));
    let (mut done, mut is_seen) = ([Completion::default()], false);
    loop {
        let completed = rig.pair.poll(&mut done) == 1;
        let value = rig.owner.load(0).unwrap();
        let now = monotonic() - start;
        assert!(value == 0 || now >= latency, "seen after {now} ns");
        is_seen |= value == 7;
        if completed {
            assert!(is_seen && now >= 2 * latency, "complete after {now} ns");
            break;
        }
    }
    assert_eq!(done[0].result, Ok(8));
}

#[test]
fn a_stage_is_reserved_when_a_message_reaches_it() {
    let long = Costs {
        message: 5_000 * MILLISECOND,
        ..Costs::default()
    };
    let link = link(way_of_two_stages(long));
    let free = |route: &Route| {
        let clocks = route.stages.iter().map(|stage| stage.clock);
        let way = link.way().unwrap();
        clocks.map(|clock| is_free(&way, clock)).collect::<Vec<_>>()
    };
    let way = link.way().unwrap();
    let mut one = rig(&link, 1);
    one.send(one.add());
    assert_eq!(one.pair.poll(&mut [Completion::default()]), 0);
    assert_eq!(free(&way.out), [false, true]);
    assert_eq!(free(&way.back), [true, true]);
    // The request arrives at once.
    let mut way = way_of_two_stages(long);
    let out = std::mem::take(&mut way.out);
    let back = way.back.clone();
    link.set(Some(Arc::new(way)));
    let mut one = rig(&link, 1);
    one.send(one.add());
    assert_eq!(one.pair.poll(&mut [Completion::default()]), 0);
    assert_eq!(one.owner.load(0), Ok(1));
    assert_eq!(free(&out), [true, true]);
    assert_eq!(free(&back), [false, true]);
}

#[test]
fn a_read_returns_the_memory_at_the_arrival_of_its_request() {
    let latency = 20 * MILLISECOND;
    loop {
        let mut rig = rig(&link(way(after(latency))), 1);
        let start = monotonic();
        rig.send(Operation::read(&rig.remote, 0, &rig.local, 0..8));
        let arrival = monotonic() + latency;
        rig.owner.store(0, 2).unwrap();
        if monotonic() - start >= latency {
            // This thread was not running for so long.
            continue;
        }
        let mut done = [Completion::default()];
        while monotonic() < arrival {
            assert_eq!(rig.pair.poll(&mut done), 0);
        }
        assert_eq!(rig.pair.poll(&mut done), 0);
        rig.owner.store(0, 3).unwrap();
        assert_eq!(rig.await_completion().result, Ok(8));
        assert!(monotonic() - start >= 2 * latency);
        assert_eq!(rig.local.load(0), Ok(2));
        return;
    }
}

#[test]
fn bytes_of_a_read_take_the_way_back_and_those_of_a_write_the_way_out() {
    let second = 1 << 30;
    let costs = Costs {
        rate: second,
        ..Costs::default()
    };
    let way = way(costs);
    let link = link(way);
    let mut rig = rig(&link, 4);
    let start = monotonic();
    for n in 0..2 {
        let read = Operation::read(&rig.remote, 0, &rig.local, 0..1 << 20);
        rig.pair.post(n, read).unwrap();
        let write = Operation::write(&rig.remote, 0, &rig.local, 0..1 << 20);
        rig.pair.post(n, write).unwrap();
    }
    rig.pair.flush();
    for _ in 0..4 {
        assert_eq!(rig.await_completion().result, Ok(1 << 20));
    }
    // 1/1024 s for each MiB. The second read waits for the first write on the way out, and the bytes
    // of both reads follow each other on the way back.
    assert!(monotonic() - start >= 2 * 976_562);
    assert_eq!(recorded(&link), 4);
}

#[test]
fn a_batch_is_one_round_trip_behind_earlier_operations() {
    let latency = 5 * MILLISECOND;
    for way in [way(after(latency)), way_of_two_stages(after(latency / 2))] {
        let link = link(way);
        for (n, mut rig) in (1..).zip(pairs(&link, 4)) {
            let start = monotonic();
            rig.pair.post(1, rig.write(9)).unwrap();
            let (mut words, remote) = ([[0; 8]; 8], &rig.remote);
            let reads = words.iter_mut().map(|into| Read {
                remote,
                offset: 0,
                into,
            });
            rig.pair.read_batch(&mut reads.collect::<Vec<_>>()).unwrap();
            assert!(monotonic() - start >= 2 * latency);
            assert_eq!(words, [9_u64.to_ne_bytes(); 8]);
            assert_eq!(rig.await_completion().result, Ok(8));
            assert_eq!(recorded(&link), 2 * n);
        }
    }
}

#[test]
fn jitter_and_loss_keep_the_order() {
    for mut way in [way(after(10_000)), way_of_two_stages(after(5_000))] {
        way.out.jitter = Jitter::Uniform { spread: 300_000 };
        way.back.jitter = way.out.jitter;
        (way.out.loss, way.back.loss) = (0.1, 0.1);
        for mut rig in pairs(&link(way), 16) {
            add_in_order(&mut rig, 300, |_| false);
        }
    }
}

/// Adds `count` times or, once `is_over` with the number of completions, no longer. Checks that no
/// addition is lost, repeated or out of order.
fn add_in_order(rig: &mut Rig, count: u64, is_over: impl Fn(u64) -> bool) {
    let (mut posted, mut completed) = (0, 0);
    loop {
        while posted < count && !is_over(completed) && rig.pair.post(posted, rig.add()).is_ok() {
            posted += 1;
        }
        rig.pair.flush();
        if !rig.pair.wait(FOR_EVER) {
            break;
        }
        let mut done = [Completion::default(); 5];
        let polled = rig.pair.poll(&mut done);
        for completion in &done[..polled] {
            let expected = Completion {
                id: completed,
                result: Ok(completed),
            };
            assert_eq!(*completion, expected);
            completed += 1;
        }
    }
    assert_eq!((completed, rig.owner.load(0)), (posted, Ok(posted)));
}

#[test]
fn a_route_that_loses_everything_is_slow() {
    let mut way = way(after(1_000));
    way.out.loss = 1.0;
    let mut rig = rig(&link(way), 1);
    let start = monotonic();
    rig.send(rig.add());
    assert_eq!(rig.await_completion().result, Ok(0));
    assert!(monotonic() - start >= 7 * 12_000 + 2_000);
}

#[test]
fn other_peers_are_left_alone() {
    let slow = link(way(after(10_000 * MILLISECOND)));
    let (mut to_b, mut to_c) = (rig(&slow, 1), rig(&Arc::default(), 1));
    to_b.send(to_b.add());
    to_c.send(to_c.add());
    assert_eq!(to_c.await_completion().result, Ok(0));
    assert_eq!(to_b.pair.poll(&mut [Completion::default()]), 0);
    assert!(!to_b.pair.wait(Duration::ZERO));
    assert_eq!(to_b.owner.load(0), Ok(0));
}

#[test]
fn the_depth_counts_operations_under_way() {
    let link = link(way(after(MILLISECOND)));
    let mut rig = rig(&link, 2);
    let full = Err(PostError::QueueFull { depth: 2 });
    rig.send(rig.add());
    rig.pair.post(2, rig.add()).unwrap();
    assert_eq!(rig.pair.post(3, rig.add()), full);
    rig.pair.flush();
    assert!(rig.pair.wait(FOR_EVER));
    assert_eq!(rig.pair.post(3, rig.add()), full);
    assert_eq!(rig.await_completion().result, Ok(0));
    rig.send(rig.add());
    for n in 1..3 {
        assert_eq!(rig.await_completion().result, Ok(n));
    }
    assert!(!rig.pair.wait(FOR_EVER), "nothing is under way");
}

#[test]
fn without_a_model_the_queue_pair_is_the_providers() {
    let link = Arc::<PeerLink>::default();
    let mut rig = rig(&link, 4);
    let is_direct = |rig: &Rig| queue_pair::tests::is_direct(&rig.pair);
    rig.send(rig.add());
    assert!(is_direct(&rig));
    link.set(Some(Arc::new(way(after(MILLISECOND)))));
    // One completion waits on the provider's queue pair.
    rig.send(rig.add());
    assert!(!is_direct(&rig));
    link.set(None);
    rig.send(rig.add());
    assert!(!is_direct(&rig), "an operation is under way");
    for n in 0..3 {
        assert_eq!(rig.await_completion().result, Ok(n));
    }
    rig.send(rig.add());
    assert!(is_direct(&rig));
    assert_eq!(rig.await_completion().result, Ok(3));
}

#[test]
fn a_thousand_changes_under_load_lose_and_repeat_nothing() {
    let link = Arc::<PeerLink>::default();
    for mut rig in pairs(&link, 16) {
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                let rate = Costs {
                    rate: 1 << 30,
                    ..after(2_000)
                };
                let ways = [
                    way(after(30_000)),
                    way(rate),
                    way_of_two_stages(after(5_000)),
                    way(after(0)),
                    spun(after(3_000)),
                ];
                let ways = ways.map(Arc::new);
                for way in ways.iter().cycle().take(500) {
                    link.set(Some(Arc::clone(way)));
                    thread::sleep(Duration::from_micros(100));
                    link.set(None);
                    thread::sleep(Duration::from_micros(50));
                }
                is_over.store(true, Ordering::Relaxed);
            });
            add_in_order(&mut rig, u64::MAX, |_| is_over.load(Ordering::Relaxed));
        });
    }
}

#[test]
fn a_thousand_changes_between_posts_lose_and_repeat_nothing() {
    let link = Arc::<PeerLink>::default();
    let ways = [way_of_two_stages(after(500)), spun(after(500))].map(Arc::new);
    for mut rig in pairs(&link, 16) {
        let mut done = [Completion::default()];
        let (mut posted, mut completed) = (0, 0);
        for change in 0..1_000 {
            link.set(ways.get(change % 3).map(Arc::clone));
            while rig.pair.post(posted, rig.add()).is_err() {
                completed += rig.pair.poll(&mut done) as u64;
            }
            posted += 1;
            if change % 4 == 0 {
                rig.pair.flush();
            }
        }
        rig.pair.flush();
        while rig.pair.wait(FOR_EVER) {
            completed += rig.pair.poll(&mut done) as u64;
            assert_eq!(done[0].result, Ok(completed - 1));
        }
        assert_eq!((completed, rig.owner.load(0)), (posted, Ok(1_000)));
    }
}

#[test]
fn a_write_is_executed_for_a_thread_that_does_not_look() {
    for way in [
        way(after(MILLISECOND)),
        way_of_two_stages(after(MILLISECOND / 2)),
    ] {
        for mut rig in pairs(&link(way), 4) {
            for n in 1..10 {
                rig.send(rig.write(n));
                let start = Instant::now();
                while rig.owner.load(0) != Ok(n) {
                    assert!(start.elapsed() < FOR_EVER, "nothing executes write {n}");
                    thread::yield_now();
                }
                assert_eq!(rig.await_completion().result, Ok(8));
            }
        }
    }
}

/// Each looked 20,000 times a second while a peer on `tcp` was silent.
#[test]
fn a_silent_peer_is_seldom_looked_at_by_its_queue_pair_and_the_timer() {
    let link = link(way(after(1_000)));
    let [_, mut rig] = pairs(&link, 1);
    let _theirs = rig.connect_to_silence(&link);
    rig.send(rig.add());
    let start = Instant::now();
    loop {
        assert!(start.elapsed() < FOR_EVER, "the looks become no rarer");
        let pending = rig.pair.pending(true);
        let acts_at = queue_pair::tests::acts_at(&rig.pair);
        let soon = monotonic() + MILLISECOND / 2;
        if let Pending::Event { until, .. } = pending
            && until.min(acts_at) > soon
        {
            return;
        }
        thread::yield_now();
    }
}

#[test]
fn a_revocation_ends_operations_under_way() {
    for mut rig in pairs(&link(way_of_two_stages(after(10 * MILLISECOND))), 4) {
        rig.owner.store(8, 5).unwrap();
        // The connection opens the region before.
        rig.send(rig.add());
        assert_eq!(rig.await_completion().result, Ok(0));
        rig.pair.post(1, rig.write(9)).unwrap();
        let read = Operation::read(&rig.remote, 8, &rig.local, 8..16);
        rig.pair.post(2, read).unwrap();
        rig.pair.flush();
        rig.revoke();
        for _ in 0..2 {
            assert_eq!(rig.await_completion().result, Err(OpError::Revoked));
        }
        assert_eq!(rig.owner.load(0), Ok(1));
        assert_eq!(rig.local.load(8), Ok(0));
    }
}

#[test]
fn operations_of_a_dropped_queue_pair_do_not_happen() {
    for mut rig in pairs(&link(way(after(5 * MILLISECOND))), 4) {
        let start = monotonic();
        rig.send(rig.write(1));
        drop(rig.pair);
        if monotonic() - start < 5 * MILLISECOND {
            thread::sleep(Duration::from_millis(10));
            assert_eq!(rig.owner.load(0), Ok(0));
        }
    }
}

#[test]
fn queue_pairs_are_dropped_while_the_timer_executes_their_operations() {
    let link = link(way(after(0)));
    for _ in 0..50 {
        for mut rig in pairs(&link, 16) {
            for n in 0..16 {
                rig.pair.post(n, rig.add()).unwrap();
            }
            rig.pair.flush();
            thread::sleep(Duration::from_micros(60));
            drop(rig.pair);
            assert!(rig.owner.load(0).unwrap() <= 16);
        }
    }
}

/// A store once could reuse memory of an item while the timer still read a value into it.
#[test]
fn nothing_is_read_into_memory_after_its_queue_pair_was_dropped() {
    let link = link(way(after(0)));
    for _ in 0..50 {
        let mut rig = rig(&link, 1);
        let end = rig.local.len();
        rig.owner.store(0, 7).unwrap();
        rig.owner.store(end - 8, 7).unwrap();
        rig.send(Operation::read(&rig.remote, 0, &rig.local, 0..end));
        // The timer has begun to read.
        let start = Instant::now();
        while rig.local.load(0) != Ok(7) {
            assert!(start.elapsed() < FOR_EVER, "the timer does not read");
        }
        drop(rig.pair);
        rig.local.store(end - 8, 1).unwrap();
        thread::sleep(Duration::from_millis(2));
        assert_eq!(rig.local.load(end - 8), Ok(1));
    }
}

/// A member that writes the clocks delays others, each time by a limited time.
#[test]
fn scribbled_clocks_hang_nothing() {
    let memory = SharedClocks::create().unwrap();
    let costs = Costs {
        rate: 1 << 30,
        ..after(1_000)
    };
    let link = link(way_on(&memory, costs));
    let [mut rig, _] = pairs(&link, 16);
    rig.send(rig.add());
    rig.await_completion();
    let mut bytes = vec![0; SharedClocks::LEN];
    memory.read_exact_at(&mut bytes, 0).unwrap();
    let words = bytes.chunks_exact(8).enumerate();
    let words = words.map(|(n, word)| (n as u64 * 8, u64::from_ne_bytes(word.try_into().unwrap())));
    let used = words.filter(|(_, word)| *word != 0);
    // The upper bits of a name are its kind.
    let (names, others): (Vec<_>, Vec<_>) = used.partition(|(_, word)| *word >= 1 << 60);
    assert!(names.len() == 2 && others.len() >= 2);
    let scribble = |words: &[(u64, u64)], word: u64| {
        for (at, _) in words {
            memory.write_all_at(&word.to_ne_bytes(), *at).unwrap();
        }
    };
    let is_over = AtomicBool::new(false);
    rig.owner.store(0, 0).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                let soon = (monotonic() + fastrand::u64(..MILLISECOND)) * 64;
                for word in [soon, 0, fastrand::u64(..soon), 1, soon] {
                    scribble(&others, word);
                    scribble(&names, 0);
                }
            }
        });
        add_in_order(&mut rig, 2_000, |_| false);
        is_over.store(true, Ordering::Relaxed);
    });

    let before = rig.owner.load(0);
    scribble(&others, u64::MAX);
    rig.send(rig.add());
    let due = queue_pair::tests::acts_at(&rig.pair);
    assert!(due <= monotonic() + MAX_BACKLOG + MILLISECOND);
    assert!(!rig.pair.wait(Duration::from_millis(1)));
    drop(rig.pair);
    assert_eq!(rig.owner.load(0), before);
}

#[test]
fn a_region_behind_a_model_is_not_mapped() {
    let link = Arc::<PeerLink>::default();
    let rig = rig(&link, 1);
    if let RemoteRegion::Shm(region) = &rig.remote {
        region.emulate(Arc::clone(&link));
    }
    assert!(rig.remote.is_mapped());
    link.set(Some(Arc::new(way(Costs::default()))));
    assert!(!rig.remote.is_mapped());
    // Threads that found it mapped before still read.
    rig.remote.read(0, &mut [0; 8]).unwrap();
    link.set(None);
    assert!(rig.remote.is_mapped());
}
