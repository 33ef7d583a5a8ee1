//! A region with an owner and peers, and the part of their agent.

use std::fs::File;
use std::sync::mpsc::Receiver;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use toroid_fabric::mem::memfd::{create_memory, read_only};
use toroid_fabric::mem::{CHUNK, Copier, Memory};
use toroid_fabric::shm::{QueuePair, RemoteRegion};
use toroid_fabric::{
    Access, Completion, Endpoint, NodeId, OpError, Operation, Partition, Read, Region, RegionId,
    RemoteKey,
};

pub const KEY: RemoteKey = RemoteKey {
    node: NodeId(1),
    partition: Partition(7),
    id: RegionId(3),
    secret: [0; 16],
};

pub const READ: Access = Access::REMOTE_READ;

/// Chunks of the region, the last of them not whole.
pub const CHUNKS: u64 = 5;
pub const LEN: u64 = CHUNKS * CHUNK - 4096 - 8;

/// Bound on waiting for an event.
pub const TIMEOUT: Duration = Duration::from_secs(60);

/// Time in which an event must not happen.
pub const SOON: Duration = Duration::from_millis(5);

/// A region, its owner, one peer that writes and one that reads.
pub struct Exported {
    pub memory: File,
    pub owner: Region,
    pub writer: RemoteRegion,
    pub reader: RemoteRegion,
}

impl Exported {
    pub fn new() -> Self {
        let memory = create_memory(LEN).unwrap();
        Exported {
            owner: Region::exported(&memory, LEN as usize, KEY, Arc::default(), None).unwrap(),
            writer: map(&memory, Access::all()),
            reader: map(&read_only(&memory).unwrap(), READ),
            memory,
        }
    }

    pub fn views(&self) -> [&Arc<Memory>; 3] {
        let (owner, writer, reader) = (&self.owner, &self.writer, &self.reader);
        [owner.memory(), writer.memory(), reader.memory()]
    }

    /// Starts the migration of all views to fresh memory; returns the copier and the requested
    /// chunks.
    pub fn start_migration(&mut self) -> (Arc<Copier>, Receiver<u64>) {
        let (asking, asked) = mpsc::channel();
        // The send fails after the test has failed.
        let copier = self.start_migration_requesting(move |chunk| _ = asking.send(chunk));
        copier.release();
        (copier, asked)
    }

    pub fn start_migration_requesting(
        &mut self,
        request: impl Fn(u64) + Clone + Send + Sync + 'static,
    ) -> Arc<Copier> {
        let copier = copier(&self.memory);
        self.memory = copier.1;
        for view in self.views() {
            let request = Box::new(request.clone());
            let table = copier.0.table().unwrap();
            let fresh = if view.is_writable() {
                self.memory.try_clone().unwrap()
            } else {
                read_only(&self.memory).unwrap()
            };
            drop(view.start_migration(&fresh, &table, request).unwrap());
        }
        copier.0
    }

    /// Migrates the region: requested chunks first, then the rest.
    pub fn migrate_once(&mut self, meanwhile: impl FnOnce(&File)) {
        let (copier, asked) = self.start_migration();
        meanwhile(&read_only(&self.memory).unwrap());
        let wake_resident = || self.views().iter().for_each(|view| view.wake_resident());
        loop {
            while let Ok(chunk) = asked.recv_timeout(Duration::from_micros(200)) {
                copier.fetch(chunk).unwrap();
                wake_resident();
            }
            if !copier.fetch_next().unwrap() {
                break;
            }
        }
        wake_resident();
        assert_eq!(copier.remaining(), 0);
        self.views().iter().for_each(|view| view.finish_migration());
        assert!(self.views().iter().all(|view| !view.is_migrating()));
    }
}

pub fn map(memory: &File, access: Access) -> RemoteRegion {
    RemoteRegion::map(memory, LEN as usize, KEY, access, Arc::default(), None).unwrap()
}

/// A copier from `old`, and the fresh memory.
pub fn copier(old: &File) -> (Arc<Copier>, File) {
    let fresh = create_memory(LEN).unwrap();
    (copier_to(old, &fresh, LEN).into(), fresh)
}

/// A copier of `len` bytes from `old` to `fresh`.
pub fn copier_to(old: &File, fresh: &File, len: u64) -> Copier {
    let copy = |file: &File| file.try_clone().unwrap();
    Copier::new(copy(old), copy(fresh), len).unwrap()
}

pub fn pair() -> QueuePair {
    QueuePair::new(KEY.node, KEY.partition, 1)
}

pub fn run(pair: &mut QueuePair, operation: Operation<RemoteRegion>) -> Result<u64, OpError> {
    pair.post(0, operation).unwrap();
    pair.flush();
    let mut done = [Completion::default()];
    assert_eq!(pair.poll(&mut done), 1);
    done[0].result
}

pub fn read(remote: &RemoteRegion, offset: u64, into: &mut [u8]) -> Result<(), OpError> {
    pair().read_batch(&mut [Read {
        remote,
        offset,
        into,
    }])
}
