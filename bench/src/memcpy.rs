//! The baseline of one-sided operations: `memcpy` of the same sizes in the same process.

use std::convert::Infallible;
use std::hint::black_box;

use crate::pattern::{self, Random};
use crate::sampler::{Pace, Work, sample};
use crate::stats::Slice;

/// Ordinary memory full of values to copy from, at uniform random places.
#[derive(Debug)]
pub struct Source {
    memory: Vec<u8>,
    random: Random,
}

impl Source {
    /// `len` bytes, all written, so that every page is there.
    pub fn new(len: usize) -> Self {
        let mut memory = vec![0; len];
        pattern::fill(0, &mut memory);
        Source {
            memory,
            random: Random::new(1),
        }
    }

    /// Measures copies of `bytes` bytes to a buffer that stays in the cache.
    pub fn copy(&mut self, bytes: usize, pace: Pace) -> Slice {
        let mut work = Copy {
            source: self,
            from: Vec::new(),
            into: vec![0; bytes],
        };
        let Ok(slice) = sample(&mut work, pace);
        slice
    }
}

struct Copy<'a> {
    source: &'a mut Source,
    from: Vec<usize>,
    into: Vec<u8>,
}

impl Work for Copy<'_> {
    type Error = Infallible;

    fn bytes(&self) -> u64 {
        self.into.len() as u64
    }

    fn prepare(&mut self, count: u32) -> Result<(), Infallible> {
        let (len, places) = (self.into.len(), self.source.memory.len() / self.into.len());
        let random = &mut self.source.random;
        self.from.clear();
        self.from
            .extend((0..count).map(|_| len * random.below(places as u64) as usize));
        Ok(())
    }

    fn run(&mut self, at: u32) -> Result<(), Infallible> {
        let from = self.from[at as usize];
        let len = self.into.len();
        self.into
            .copy_from_slice(black_box(&self.source.memory[from..from + len]));
        black_box(&mut self.into);
        Ok(())
    }

    fn check(&mut self) -> Result<u64, Infallible> {
        let same = self
            .from
            .last()
            .is_none_or(|&from| self.into == self.source.memory[from..from + self.into.len()]);
        Ok(u64::from(!same))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_are_counted_and_right() {
        let pace = Pace {
            time_us: 1000,
            batch: None,
        };
        for bytes in [200, 8000, 65_536] {
            let slice = Source::new(1 << 20).copy(bytes, pace);
            assert_eq!(slice.errors, 0);
            assert_eq!(slice.bytes, slice.ops * bytes as u64);
        }
    }
}
