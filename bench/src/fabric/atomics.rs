//! Additions to a word of a peer's memory, one at a time and several under way.

use toroid_client::member::Domain;
use toroid_fabric::provider::{QueuePair, RemoteRegion};
use toroid_fabric::{Access, Completion, Endpoint, Operation, Place, RemoteKey};

use super::plan::WORD;
use crate::one_sided::OneSidedError;
use crate::sampler::{BATCH, Pace, Work, sample};
use crate::stats::Slice;

/// Where the word is.
const AT: u64 = 0;

/// A peer's word that nobody else changes.
#[derive(Debug)]
pub struct Counter {
    domain: Domain,
    place: Place,
    remote: RemoteRegion,
    /// What it holds.
    value: u64,
}

impl Counter {
    /// Opens a region of the node at `place` that starts with a word of value 0.
    ///
    /// # Errors
    /// The agent's.
    pub fn open(domain: &Domain, place: Place, key: RemoteKey) -> Result<Self, OneSidedError> {
        Ok(Counter {
            place,
            remote: domain.open(key, Access::REMOTE_ATOMIC)?,
            domain: domain.clone(),
            value: 0,
        })
    }

    /// Adds 1 again and again. An addition that does not return what the word must have held is an
    /// error.
    ///
    /// # Errors
    /// [`OneSidedError`]; operations that fail are counted instead.
    pub fn measure(&mut self, depth: u32, pace: Pace) -> Result<Slice, OneSidedError> {
        let mut additions = Additions {
            pair: self.domain.queue_pair(self.place, depth as usize)?,
            completions: vec![Completion::default(); depth as usize],
            counter: self,
            in_flight: 0,
            wrong: 0,
        };
        let batch = Some(BATCH);
        sample(&mut additions, Pace { batch, ..pace })
    }

    /// What the word must hold now.
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
    type Error = OneSidedError;

    fn bytes(&self) -> u64 {
        WORD as u64
    }

    fn run(&mut self, _at: u32) -> Result<(), OneSidedError> {
        let addition = Operation::fetch_add(&self.counter.remote, AT, 1);
        self.pair.post(0, addition)?;
        self.in_flight += 1;
        if self.in_flight == self.completions.len() {
            self.drain();
        }
        Ok(())
    }

    fn check(&mut self) -> Result<u64, OneSidedError> {
        if self.in_flight > 0 {
            self.drain();
        }
        Ok(std::mem::take(&mut self.wrong))
    }
}
