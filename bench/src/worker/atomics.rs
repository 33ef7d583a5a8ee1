//! Additions to a word of a peer's memory, one at a time and several under way.

use anyhow::Result;
use toroid_fabric::provider::{QueuePair, RemoteRegion};
use toroid_fabric::{Completion, Endpoint, Operation, shm};

use super::sampler::{BATCH, Pace, Work, sample};
use crate::samples::Samples;

/// Bytes of a word.
pub const WORD: usize = 8;

/// A peer's word, at the start of a region, that no other process changes.
#[derive(Debug)]
pub struct Counter {
    remote: RemoteRegion,
    /// The value that the word must have.
    value: u64,
}

impl Counter {
    /// A region that starts with a word of value 0.
    pub fn of(remote: RemoteRegion) -> Self {
        Counter { remote, value: 0 }
    }

    /// Adds 1 again and again. An addition is an error if it fails or does not return the value
    /// before it.
    pub fn measure(&mut self, depth: u32, pace: Pace) -> Result<Samples> {
        let key = self.remote.key();
        let pair = shm::QueuePair::new(key.node, key.partition, depth as usize);
        let mut additions = Additions {
            pair: QueuePair::Shm(pair),
            completions: vec![Completion::default(); depth as usize],
            counter: self,
            in_flight: 0,
            wrong: 0,
        };
        let batch = Some(BATCH);
        sample(&mut additions, Pace { batch, ..pace })
    }

    /// The value that the word must have now.
    pub fn value(&self) -> u64 {
        self.value
    }
}

struct Additions<'a> {
    counter: &'a mut Counter,
    pair: QueuePair,
    completions: Vec<Completion>,
    in_flight: usize,
    wrong: u64,
}

impl Additions<'_> {
    /// Rings the doorbell and takes every completion.
    fn drain(&mut self) {
        self.pair.flush();
        let count = self.pair.poll(&mut self.completions);
        for completion in &self.completions[..count] {
            self.wrong += u64::from(completion.result != Ok(self.counter.value));
            self.counter.value += 1;
        }
        self.in_flight = 0;
    }
}

impl Work for Additions<'_> {
    type Error = anyhow::Error;

    fn bytes(&self) -> u64 {
        WORD as u64
    }

    fn run(&mut self, _at: u32) -> Result<()> {
        let addition = Operation::fetch_add(&self.counter.remote, 0, 1);
        self.pair.post(0, addition)?;
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
        Ok(std::mem::take(&mut self.wrong))
    }
}
