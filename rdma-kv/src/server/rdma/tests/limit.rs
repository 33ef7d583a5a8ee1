//! Changes of the memory limit while clients set, read and borrow.

use super::*;
use crate::client::view::ViewError;

const MIB: u64 = 1 << 20;

#[test]
fn values_stay_whole_while_the_limit_changes() {
    let limits = |memory| Limits {
        memory,
        item: 64 << 10,
    };
    let cluster = Cluster::within(limits(12 * MIB), limits(6 * MIB), ServerState::default());
    let store = cluster.store.clone();
    let done = AtomicBool::new(false);
    let done = &done;
    let key = |n: u32| (n % 1_000).to_le_bytes();
    let bytes = || store.with(|store| store.counters()).bytes;
    let mut most = [0, 0];
    std::thread::scope(|scope| {
        let mut writer = cluster.client(1);
        scope.spawn(move || {
            for round in (0..u32::MAX).take_while(|_| !done.load(Ordering::Relaxed)) {
                let len = [100, 5_000, 20_000, 1_000][(round % 4) as usize];
                let key = key(round.wrapping_mul(7919));
                let value = self_describing(key[0], round, len);
                writer.set(&key, round, 0, &value).unwrap();
            }
        });
        for node in 2..4 {
            let mut client = cluster.client(node);
            scope.spawn(move || {
                let (mut held, mut found) = (Vec::new(), 0);
                for n in (0..u32::MAX).take_while(|_| !done.load(Ordering::Relaxed)) {
                    let key = key(n);
                    if let Some(value) = client.get(&key).unwrap() {
                        assert_whole(key[0], value.flags, &value.data);
                        found += 1;
                    }
                    if n % 50 == 0 {
                        held.extend(client.borrow(&key).unwrap().map(|view| (key[0], view)));
                    }
                    for (key, view) in &held {
                        match view.to_vec() {
                            Ok(value) => assert_whole(*key, view.flags(), &value),
                            Err(error) => assert_eq!(error, ViewError::Recalled),
                        }
                    }
                    held.drain(..held.len().saturating_sub(10));
                }
                assert!(found > 0);
            });
        }
        for _ in 0..20 {
            for (most, memory) in most.iter_mut().zip([3 * MIB, 12 * MIB]) {
                assert!(store.limit_memory(memory));
                let sets = store.with(|store| store.counters()).total_items + 1_500;
                while store.with(|store| store.counters()).total_items < sets {
                    store.with(Store::sweep).unwrap();
                    std::thread::yield_now();
                }
                while store.with(Store::sweep).unwrap() {}
                *most = bytes().max(*most);
            }
        }
        done.store(true, Ordering::Relaxed);
    });
    assert!(most[0] < 3 * MIB && most[1] > 4 * MIB, "{most:?}");
}
