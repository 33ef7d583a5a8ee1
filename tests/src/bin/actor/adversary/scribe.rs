//! Memory that was granted once, mapped, and is used after the grant has ended.

use std::fs::File;
use std::sync::Arc;

use toroid_fabric::shm::{QueuePair, RemoteRegion};
use toroid_fabric::{
    Access, Completion, Endpoint, NodeId, Operation, Partition, Region, RegionId, RemoteKey,
};

use super::Result;

/// Any key: nothing checks it here.
const KEY: RemoteKey = RemoteKey {
    node: NodeId(0),
    partition: Partition(0),
    id: RegionId(0),
    secret: [0; 16],
};

/// Bytes written at a time, at most.
const PAPER: usize = 4096;

/// Writes to a mapping that learns of no change of membership.
pub struct Scribe {
    memory: RemoteRegion,
    pair: QueuePair,
    paper: Region,
}

impl Scribe {
    pub fn map(file: &File) -> Result<Self> {
        let len = usize::try_from(file.metadata()?.len())?;
        let memory = RemoteRegion::map(file, len, KEY, Access::all(), Arc::default(), None)?;
        Ok(Scribe {
            memory,
            pair: QueuePair::new(KEY.node, KEY.partition, 1),
            paper: Region::local(PAPER)?,
        })
    }

    pub fn len(&self) -> u64 {
        self.memory.len()
    }

    /// Writes at most [`PAPER`] bytes.
    pub fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.paper.write(0, bytes)?;
        let all = 0..bytes.len() as u64;
        let write = Operation::write(&self.memory, offset, &self.paper, all);
        self.run(write).map(drop)
    }

    /// Adds to a word and returns its value before.
    pub fn add(&mut self, offset: u64, n: u64) -> Result<u64> {
        self.run(Operation::fetch_add(&self.memory, offset, n))
    }

    fn run(&mut self, operation: Operation<RemoteRegion>) -> Result<u64> {
        self.pair.post(0, operation)?;
        self.pair.flush();
        let mut done = [Completion::default()];
        self.pair.poll(&mut done);
        Ok(done[0].result?)
    }
}
