//! One-sided operations on a peer's memory: one at a time, and pipelined.

use std::time::Duration;

use anyhow::Result;
use serde::{Deserialize, Serialize};
use toroid_client::member::Domain;
use toroid_fabric::emulation::QueuePair;
use toroid_fabric::provider::{Provider, RemoteRegion};
use toroid_fabric::{Access, Completion, Endpoint, NodeId, Operation, Region};

use crate::samples::Samples;
use crate::worker::pattern;
use crate::worker::sampler::{BATCH, Pace, Work, sample};

/// Bytes of an atomic region.
const WORDS: u64 = 4096;

/// Bytes of an exported region that fits the caches together with the local memory.
pub const HOT: usize = 256 * 1024;

/// Longest sleep in a wait for completions.
const LOOK: Duration = Duration::from_secs(1);

/// Seed of the readable region's pattern.
const READABLE_SEED: u64 = 1;

/// Direction of bytes, seen from the active process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Direction {
    /// From the peer.
    Read,
    /// To the peer.
    Write,
    /// Additions of 1 to the peer's word.
    Add,
}

/// Published keys of an owner's regions, as texts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExportedKeys {
    /// Key of the region to read.
    pub readable: String,
    /// Key of the region to write.
    pub writable: String,
    /// Key of a region with a word for atomic operations at offset 0.
    pub word: String,
}

/// Exported regions of the owner.
#[derive(Debug)]
pub struct Exports {
    readable: Region,
    writable: Region,
    word: Region,
}

impl Exports {
    /// Registers a filled region to read, a region to write, each of `len` bytes, and a word.
    pub fn new(domain: &Domain, len: usize) -> Result<Self> {
        let readable = domain.alloc(len as u64, Access::REMOTE_READ)?;
        let writable = domain.alloc(len as u64, Access::REMOTE_WRITE)?;
        let word = domain.alloc(WORDS, Access::REMOTE_ATOMIC)?;
        Self::of(readable, writable, word)
    }

    fn of(readable: Region, writable: Region, word: Region) -> Result<Self> {
        readable.write(0, &image(READABLE_SEED, readable.len()))?;
        Ok(Exports {
            readable,
            writable,
            word,
        })
    }

    /// The keys to publish; `None` for memory that was not exported.
    pub fn keys(&self) -> Option<ExportedKeys> {
        Some(ExportedKeys {
            readable: self.readable.remote_key()?.to_string(),
            writable: self.writable.remote_key()?.to_string(),
            word: self.word.remote_key()?.to_string(),
        })
    }

    /// The value of the word.
    pub fn word(&self) -> Result<u64> {
        Ok(self.word.load(0)?)
    }

    /// Number of missing or wrong writes among the first `count` of `bytes` bytes in version
    /// `salt`.
    pub fn wrong_writes(&self, bytes: usize, count: u64, salt: u64) -> Result<u64> {
        let len = self.writable.len();
        let mut found = vec![0; len as usize];
        self.writable.read(0, &mut found)?;
        let written = count.min(slots(len, bytes)) as usize;
        let expected = image(salt, len);
        let pairs = found.chunks(bytes).zip(expected.chunks(bytes));
        let wrong = pairs.take(written).filter(|(a, b)| a != b).count();
        Ok(wrong as u64)
    }
}

/// Makes queue pairs of a depth to a node.
type Connect = Box<dyn Fn(NodeId, usize) -> Result<QueuePair> + Send>;

/// An owner's memory, opened by the active process.
pub struct Peer {
    connect: Connect,
    pub(super) readable: RemoteRegion,
    pub(super) writable: RemoteRegion,
    pub(super) local: Region,
    word: RemoteRegion,
    /// Expected value of the word; no other process changes the word.
    pub added: u64,
}

impl Peer {
    /// Opens the published memory of an owner.
    pub fn open(domain: &Domain, keys: &ExportedKeys) -> Result<Self> {
        let readable = domain.open(keys.readable.parse()?, Access::REMOTE_READ)?;
        let writable = domain.open(keys.writable.parse()?, Access::REMOTE_WRITE)?;
        let word = domain.open(keys.word.parse()?, Access::REMOTE_ATOMIC)?;
        let domain = domain.clone();
        let connect = move |node, depth| Ok(Provider::queue_pair(&domain, node, depth)?);
        Self::of(Box::new(connect), readable, writable, word)
    }

    fn of(
        connect: Connect,
        readable: RemoteRegion,
        writable: RemoteRegion,
        word: RemoteRegion,
    ) -> Result<Self> {
        Ok(Peer {
            connect,
            local: Region::local(readable.len() as usize)?,
            readable,
            writable,
            word,
            added: 0,
        })
    }

    /// Measures operations of `bytes` bytes with `depth` in flight. Writes carry version `salt`. A
    /// failed operation is an error, also an addition that does not return the previous value.
    pub fn measure(
        &mut self,
        direction: Direction,
        depth: u32,
        bytes: usize,
        salt: u64,
        pace: Pace,
    ) -> Result<Samples> {
        let seed = if direction == Direction::Read {
            READABLE_SEED
        } else {
            salt
        };
        let image = image(seed, self.local.len());
        self.local.write(0, &image)?;
        let pair = self.queue_pair(depth)?;
        let mut work = OneSided {
            peer: self,
            pair,
            completions: vec![Completion::default(); depth as usize],
            direction,
            bytes: bytes as u64,
            in_flight: 0,
            next: 0,
            failed: 0,
            image,
            copy: vec![0; bytes],
        };
        // A pipeline needs a sample of several times its depth.
        let is_batched = depth > 1 || direction == Direction::Add;
        let batch = if is_batched { Some(BATCH) } else { pace.batch };
        sample(&mut work, Pace { batch, ..pace })
    }

    /// A queue pair to the owner.
    pub(super) fn queue_pair(&self, depth: u32) -> Result<QueuePair> {
        (self.connect)(self.readable.key().node, depth as usize)
    }

    /// Whether `bytes`, read from `offset`, are the owner's.
    pub(super) fn is_readable(&self, offset: u64, bytes: &[u8]) -> bool {
        let image = image(READABLE_SEED, self.local.len());
        image[offset as usize..].starts_with(bytes)
    }
}

/// A region of `len` bytes in version `salt`.
fn image(salt: u64, len: u64) -> Vec<u8> {
    let mut bytes = vec![0; len as usize];
    pattern::fill(salt, &mut bytes);
    bytes
}

/// Number of places for operations of `bytes` bytes in a region of `len` bytes.
fn slots(len: u64, bytes: usize) -> u64 {
    len / bytes as u64
}

struct OneSided<'a> {
    peer: &'a mut Peer,
    pair: QueuePair,
    completions: Vec<Completion>,
    direction: Direction,
    bytes: u64,
    in_flight: usize,
    next: u64,
    failed: u64,
    image: Vec<u8>,
    copy: Vec<u8>,
}

impl OneSided<'_> {
    /// Rings the doorbell and polls all completions.
    fn drain(&mut self) {
        self.pair.flush();
        let is_addition = self.direction == Direction::Add;
        let mut wanted = if is_addition {
            self.peer.added
        } else {
            self.bytes
        };
        loop {
            let count = self.pair.poll(&mut self.completions);
            for completion in &self.completions[..count] {
                self.failed += u64::from(completion.result != Ok(wanted));
                wanted += u64::from(is_addition);
            }
            self.in_flight -= count;
            if self.in_flight == 0 {
                break;
            }
            self.pair.wait(LOOK);
        }
        if is_addition {
            self.peer.added = wanted;
        }
    }

    fn offset(&self, number: u64) -> u64 {
        number % slots(self.peer.local.len(), self.copy.len()) * self.bytes
    }
}

impl Work for OneSided<'_> {
    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn run(&mut self, _at: u32) -> Result<()> {
        let operation = if self.direction == Direction::Add {
            Operation::fetch_add(&self.peer.word, 0, 1)
        } else {
            let (offset, local) = (self.offset(self.next), &self.peer.local);
            let range = offset..offset + self.bytes;
            match self.direction {
                Direction::Write => Operation::write(&self.peer.writable, offset, local, range),
                _ => Operation::read(&self.peer.readable, offset, local, range),
            }
        };
        self.pair.post(self.next, operation)?;
        self.next += 1;
        self.in_flight += 1;
        if self.in_flight == self.completions.len() {
            self.drain();
        }
        Ok(())
    }

    fn check(&mut self) -> Result<u64> {
        if self.in_flight > 0 {
            self.drain();
        }
        let failed = std::mem::take(&mut self.failed);
        if self.direction != Direction::Read || self.next == 0 {
            // The owner verifies its memory.
            return Ok(failed);
        }
        let offset = self.offset(self.next - 1);
        self.peer.local.read(offset, &mut self.copy)?;
        // Wiped, so that the next check does not see the bytes of this read.
        self.peer.local.write(offset, &vec![0; self.copy.len()])?;
        let expected = &self.image[offset as usize..][..self.copy.len()];
        Ok(failed.max(u64::from(self.copy != expected)))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::Arc;

    use toroid_fabric::mem::memfd::create_memory;
    use toroid_fabric::{Partition, RegionId, RemoteKey, provider, shm};

    use super::*;

    const PARTITION: Partition = Partition(1);

    fn connect(node: NodeId, depth: usize) -> Result<QueuePair> {
        let pair = shm::QueuePair::new(node, PARTITION, depth);
        let pair = provider::QueuePair::Shm(pair);
        Ok(QueuePair::new(pair, Arc::default()))
    }

    /// A region that `node` exports, and a mapping of it.
    pub(crate) fn export(node: u32, id: u64, len: usize, access: Access) -> (Region, RemoteRegion) {
        let key = RemoteKey {
            node: NodeId(node),
            partition: PARTITION,
            id: RegionId(id),
            secret: [0; 16],
        };
        let memory = create_memory(len as u64).unwrap();
        let region = Region::exported(&memory, len, key, Arc::default(), None);
        let remote = shm::RemoteRegion::map(&memory, len, key, access, Arc::default(), None);
        (region.unwrap(), RemoteRegion::Shm(remote.unwrap()))
    }

    pub(crate) fn connected() -> (Exports, Peer) {
        let (readable, remote_readable) = export(0, 1, HOT, Access::REMOTE_READ);
        let (writable, remote_writable) = export(0, 2, HOT, Access::REMOTE_WRITE);
        let (word, remote_word) = export(0, 3, HOT, Access::REMOTE_ATOMIC);
        (
            Exports::of(readable, writable, word).unwrap(),
            Peer::of(
                Box::new(connect),
                remote_readable,
                remote_writable,
                remote_word,
            )
            .unwrap(),
        )
    }

    impl Exports {
        /// Overwrites the readable region.
        pub(crate) fn clear(&self) {
            self.readable.write(0, &[0; HOT]).unwrap();
        }
    }

    const PACE: Pace = Pace {
        time: std::time::Duration::from_millis(1),
        batch: None,
    };

    #[test]
    fn reads_return_the_owners_bytes() {
        let (exports, mut peer) = connected();
        for (depth, bytes) in [(1, 200), (32, 200), (1, 131_072), (32, 8000)] {
            let samples = peer
                .measure(Direction::Read, depth, bytes, 0, PACE)
                .unwrap();
            assert_eq!(samples.errors, 0, "{bytes} bytes, depth {depth}");
            assert_eq!(samples.bytes, samples.ops * bytes as u64);
        }
        exports.clear();
        let samples = peer.measure(Direction::Read, 1, 200, 0, PACE).unwrap();
        assert!(samples.errors > 0, "wrong bytes went unnoticed");
    }

    #[test]
    fn the_owner_verifies_writes() {
        let (exports, mut peer) = connected();
        for (salt, (depth, bytes)) in (10..).zip([(1, 200), (32, 8000), (32, 131_072)]) {
            let samples = peer
                .measure(Direction::Write, depth, bytes, salt, PACE)
                .unwrap();
            assert_eq!(samples.errors, 0);
            let wrong = |salt| exports.wrong_writes(bytes, samples.ops, salt).unwrap();
            assert_eq!(wrong(salt), 0, "{bytes} bytes, depth {depth}");
            assert_ne!(wrong(salt + 1), 0, "another version went unnoticed");
        }
    }

    #[test]
    fn the_word_counts_all_additions() {
        let (exports, mut peer) = connected();
        for depth in [1, 16] {
            let samples = peer.measure(Direction::Add, depth, 8, 0, PACE).unwrap();
            assert_eq!(samples.errors, 0);
            assert_eq!(exports.word().unwrap(), peer.added);
        }
        exports.word.store(0, 0).unwrap();
        assert!(peer.measure(Direction::Add, 1, 8, 0, PACE).unwrap().errors > 0);
    }
}
