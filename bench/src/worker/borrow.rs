//! Borrowed values: the cost of a borrow, and of reading the value once.

use anyhow::Result;
use serde::{Deserialize, Serialize};
use toroid_kv::View;

use super::store::rdma::RdmaClient;
use super::store::{Batch, Client, KeySet};
use crate::samples::Samples;
use crate::worker::pattern;
use crate::worker::sampler::{Pace, Work, sample};

/// Bytes summed at a time.
const CHUNK: usize = 4096;

/// Operations without a check between them.
const TOGETHER: u32 = 16;

/// A way to read a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reading {
    /// Borrow and release.
    Borrow,
    /// Borrow, and sum the bytes in place.
    BorrowSum,
    /// Copy, and sum the copy's bytes.
    GetSum,
}

/// Measures `reading` of uniform random keys of `set`, all of which must be stored.
pub fn measure(
    client: &mut RdmaClient,
    reading: Reading,
    set: KeySet,
    salt: u64,
    pace: Pace,
) -> Result<Samples> {
    let mut work = ReadingWork {
        client,
        reading,
        set,
        random: fastrand::Rng::with_seed(salt),
        batch: Batch::default(),
        last: None,
        wrong: 0,
    };
    sample(&mut work, pace)
}

struct ReadingWork<'a> {
    client: &'a mut RdmaClient,
    reading: Reading,
    set: KeySet,
    random: fastrand::Rng,
    batch: Batch,
    /// Key and sum of the last operation.
    last: Option<(u64, u64)>,
    wrong: u64,
}

impl Work for ReadingWork<'_> {
    fn bytes(&self) -> u64 {
        self.set.bytes as u64
    }

    /// Several, because a check after each operation would spoil the caches.
    fn together(&self) -> u32 {
        TOGETHER
    }

    fn prepare(&mut self, count: u32) -> Result<()> {
        self.batch
            .prepare(count as usize, self.set, None, &mut self.random);
        Ok(())
    }

    fn run(&mut self, at: u32) -> Result<()> {
        let name = &self.batch.names[at as usize];
        let sum = match self.reading {
            Reading::Borrow => {
                let view = self.client.borrow(name)?;
                let is_right = view.is_some_and(|view| view.len() == self.set.bytes);
                self.wrong += u64::from(!is_right);
                return Ok(());
            }
            Reading::BorrowSum => self.client.borrow(name)?.and_then(|view| sum_of(&view)),
            Reading::GetSum => {
                let is_there = Client::get(self.client, name)?;
                is_there.then(|| sum(self.client.value()))
            }
        };
        self.wrong += u64::from(sum.is_none());
        self.last = sum.map(|sum| (self.batch.indexes[at as usize], sum));
        Ok(())
    }

    fn check(&mut self) -> Result<u64> {
        let wrong = std::mem::take(&mut self.wrong);
        let Some((index, found)) = self.last.take() else {
            return Ok(wrong);
        };
        let mut name = Vec::new();
        self.set.name(index, &mut name);
        let is_there = Client::get(self.client, &name)?;
        let value = self.client.value();
        let is_right = is_there && pattern::is_value(index, None, value) && found == sum(value);
        // A missing last value counts once.
        Ok(wrong.max(u64::from(!is_right)))
    }
}

fn sum_of(view: &View) -> Option<u64> {
    let add = |all: &mut u64, block: &[u8]| *all += sum_of_chunk(block);
    view.fold(0, add).ok()
}

fn sum(bytes: &[u8]) -> u64 {
    bytes.chunks(CHUNK).map(sum_of_chunk).sum()
}

/// Sums by words, which compile to wide instructions, so that the sum does not hide the cost of a
/// copy.
fn sum_of_chunk(chunk: &[u8]) -> u64 {
    const EVEN: u64 = 0x00ff_00ff_00ff_00ff;
    /// Words whose byte pairs sum up within 16 bits.
    const WORDS: usize = 128;
    let (words, rest) = chunk.as_chunks();
    let mut all = rest.iter().map(|byte| u64::from(*byte)).sum();
    for words in words.chunks(WORDS) {
        let lanes = words.iter().fold(0, |lanes, word| {
            let word = u64::from_le_bytes(*word);
            lanes + (word & EVEN) + (word >> 8 & EVEN)
        });
        let lane = |n: u32| lanes >> (16 * n) & 0xffff;
        all += lane(0) + lane(1) + lane(2) + lane(3);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sum_is_that_of_all_bytes() {
        for len in [0, 1, 7, 8, 1023, 1024, 4096, 4099] {
            for bytes in [vec![0xff; len], (0..len).map(|n| n as u8).collect()] {
                let each: u64 = bytes.iter().map(|byte| u64::from(*byte)).sum();
                assert_eq!(sum(&bytes), each, "{len}");
            }
        }
    }
}
