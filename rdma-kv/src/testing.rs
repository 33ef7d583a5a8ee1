//! What the tests of this crate share: a store without an agent.

use std::sync::atomic::{AtomicU64, Ordering};

use fabric::shm::control::create_memory;
use fabric::{NodeId, Partition, Region, RegionId, RemoteKey};

use crate::shared::Shared;
use crate::store::{Limits, Store};

/// When stores of tests are made.
pub const UNIX_S: i64 = 1_700_000_000;

/// Where servers of tests are.
pub const SERVER: NodeId = NodeId(0);

/// The partition of tests.
pub const PARTITION: Partition = Partition(1);

/// Memory with a key, as the agent would give it to a process of `node`.
pub fn exported(node: NodeId, len: u64) -> Region {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let id = RegionId(NEXT.fetch_add(1, Ordering::Relaxed));
    let key = RemoteKey {
        node,
        partition: PARTITION,
        id,
        secret: [0; 16],
    };
    Region::exported(&create_memory(len).unwrap(), len as usize, key, None).unwrap()
}

/// An empty store.
pub fn store(limits: Limits) -> Store {
    limits.check().unwrap();
    let (index, items) = limits.regions();
    let regions = [index, items].map(|len| exported(SERVER, len));
    let [index, items] = regions;
    Store::new(index, items, limits, [11, 22], UNIX_S).unwrap()
}

/// An empty store behind its lock.
pub fn shared(limits: Limits) -> Shared {
    Shared::new(store(limits))
}
