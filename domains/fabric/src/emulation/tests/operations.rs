//! One-sided operations behind a link.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Instant;

use super::super::queue_pair;
use super::*;
use crate::core::endpoint::{PostError, Read};
use crate::core::mapped::Mapped;

/// A region of the peer, and a queue pair behind `link`.
struct Rig {
    network: Network,
    owner: Region,
    remote: RemoteRegion,
    local: Region,
    pair: QueuePair,
}

fn rig(link: &Arc<PeerLink>, depth: usize) -> Rig {
    let network = Network::new(PARTITION);
    let (here, there) = (network.join(HERE), network.join(THERE));
    let owner = there.alloc(2 << 20, Access::all()).unwrap();
    let remote = here.open(owner.remote_key().unwrap(), Access::all());
    let pair = shm::QueuePair::new(THERE, PARTITION, depth);
    Rig {
        network,
        owner,
        remote: RemoteRegion::Shm(remote.unwrap()),
        local: Region::local(2 << 20).unwrap(),
        pair: QueuePair::new(provider::QueuePair::Shm(pair), Arc::clone(link)),
    }
}

impl Rig {
    fn send(&mut self, operation: Operation<RemoteRegion>) {
        self.pair.post(1, operation).unwrap();
        self.pair.flush();
    }

    fn write(&self, value: u64) -> Operation<RemoteRegion> {
        self.local.store(0, value).unwrap();
        Operation::write(&self.remote, 0, &self.local, 0..8)
    }

    fn add(&self) -> Operation<RemoteRegion> {
        Operation::fetch_add(&self.remote, 0, 1)
    }

    fn await_completion(&mut self) -> Completion {
        let mut done = [Completion::default()];
        while self.pair.poll(&mut done) == 0 {
            assert!(self.pair.wait(FOR_EVER), "nothing completes");
        }
        done[0]
    }
}

#[test]
fn a_write_is_seen_after_one_latency_and_complete_after_two() {
    let latency = 5 * MILLISECOND;
    for on_top in [false, true] {
        let mut way = way(after(latency));
        way.out.on_top = on_top;
        way.back.on_top = on_top;
        let mut rig = rig(&link(way), 1);
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
    let link = link(way(after(latency)));
    let mut rig = rig(&link, 4);
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
    assert_eq!(recorded(&link), 2);
}

#[test]
fn jitter_and_loss_keep_the_order() {
    let mut way = way(after(10_000));
    way.out.jitter = Jitter::Uniform { spread: 300_000 };
    way.back.jitter = way.out.jitter;
    (way.out.loss, way.back.loss) = (0.1, 0.1);
    let mut rig = rig(&link(way), 16);
    for n in 0..300 {
        while rig.pair.post(n, rig.add()).is_err() {
            rig.pair.wait(FOR_EVER);
            let mut done = [Completion::default(); 3];
            let count = rig.pair.poll(&mut done);
            for completion in &done[..count] {
                assert_eq!(completion.result, Ok(completion.id));
            }
        }
        rig.pair.flush();
    }
    while rig.pair.wait(FOR_EVER) {
        let mut done = [Completion::default()];
        rig.pair.poll(&mut done);
        assert_eq!(done[0].result, Ok(done[0].id));
    }
    assert_eq!(rig.owner.load(0), Ok(300));
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
fn changes_under_load_lose_and_repeat_nothing() {
    let link = Arc::<PeerLink>::default();
    let mut rig = rig(&link, 16);
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let rate = Costs {
                rate: 1 << 30,
                ..after(2_000)
            };
            let kinds = [after(30_000), rate, after(0)];
            for costs in kinds.iter().cycle() {
                if is_over.load(Ordering::Relaxed) {
                    break;
                }
                link.set(Some(Arc::new(way(*costs))));
                thread::sleep(Duration::from_micros(200));
                link.set(None);
                thread::sleep(Duration::from_micros(50));
            }
        });
        let (mut posted, mut completed) = (0, 0);
        while completed < 20_000 {
            while posted < 20_000 && rig.pair.post(posted, rig.add()).is_ok() {
                posted += 1;
            }
            rig.pair.flush();
            assert!(rig.pair.wait(FOR_EVER));
            let mut done = [Completion::default(); 5];
            let count = rig.pair.poll(&mut done);
            for completion in &done[..count] {
                let expected = Completion {
                    id: completed,
                    result: Ok(completed),
                };
                assert_eq!(*completion, expected);
                completed += 1;
            }
        }
        is_over.store(true, Ordering::Relaxed);
    });
    assert_eq!(rig.owner.load(0), Ok(20_000));
}

#[test]
fn a_write_is_executed_for_a_thread_that_does_not_look() {
    let mut rig = rig(&link(way(after(MILLISECOND))), 4);
    for n in 1..20 {
        rig.send(rig.write(n));
        let start = Instant::now();
        while rig.owner.load(0) != Ok(n) {
            assert!(start.elapsed() < FOR_EVER, "nothing executes write {n}");
            thread::yield_now();
        }
        assert_eq!(rig.await_completion().result, Ok(8));
    }
}

#[test]
fn a_revocation_ends_operations_under_way() {
    let mut rig = rig(&link(way(after(10 * MILLISECOND))), 4);
    rig.owner.store(8, 5).unwrap();
    rig.pair.post(1, rig.write(1)).unwrap();
    let read = Operation::read(&rig.remote, 8, &rig.local, 8..16);
    rig.pair.post(2, read).unwrap();
    rig.pair.flush();
    rig.network.leave(THERE);
    for _ in 0..2 {
        assert_eq!(rig.await_completion().result, Err(OpError::Revoked));
    }
    assert_eq!(rig.owner.load(0), Ok(0));
    assert_eq!(rig.local.load(8), Ok(0));
}

#[test]
fn operations_of_a_dropped_queue_pair_do_not_happen() {
    let mut rig = rig(&link(way(after(5 * MILLISECOND))), 4);
    let start = monotonic();
    rig.send(rig.write(1));
    drop(rig.pair);
    if monotonic() - start < 5 * MILLISECOND {
        thread::sleep(Duration::from_millis(10));
        assert_eq!(rig.owner.load(0), Ok(0));
    }
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
