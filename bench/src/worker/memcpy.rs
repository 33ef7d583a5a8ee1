//! The baseline of one-sided operations: `memcpy` of the same sizes in the same process.

use std::hint::black_box;

use anyhow::Result;

use crate::samples::Samples;
use crate::worker::pattern;
use crate::worker::sampler::{Pace, Work, sample};

/// Memory full of values, copied from at uniform random places.
#[derive(Debug)]
pub struct Source {
    memory: Vec<u8>,
    /// Bytes per place, and shuffled lines that each lead to a place.
    lines: (usize, Vec<Line>),
    random: fastrand::Rng,
}

/// An offset in a cache line of its own.
#[derive(Clone, Debug)]
#[repr(align(64))]
struct Line(usize);

impl Source {
    /// Memory of `len` bytes, all written, so that every page is present.
    pub fn new(len: usize) -> Self {
        let mut memory = vec![0; len];
        pattern::fill(0, &mut memory);
        Source {
            memory,
            lines: (0, Vec::new()),
            random: fastrand::Rng::with_seed(1),
        }
    }

    /// Measures copies of `bytes` bytes to a buffer in the cache. With `found` each copy waits
    /// for the copy before and reads its location from a random line, as any lookup must.
    pub fn copy(&mut self, bytes: usize, found: bool, pace: Pace) -> Result<Samples> {
        if found && self.lines.0 != bytes {
            self.lines = (bytes, self.lines_to(self.memory.len() / bytes, bytes));
        }
        if found {
            sample(&mut Copy::<true>::new(self, bytes), pace)
        } else {
            sample(&mut Copy::<false>::new(self, bytes), pace)
        }
    }

    /// A line for each place, in random order.
    fn lines_to(&mut self, places: usize, bytes: usize) -> Vec<Line> {
        let mut lines: Vec<Line> = (0..places).map(|place| Line(place * bytes)).collect();
        for last in (1..places).rev() {
            let other = self.random.u64(..last as u64 + 1) as usize;
            lines.swap(last, other);
        }
        lines
    }
}

/// Copies from places that are known or, if `FOUND`, read from a line each.
struct Copy<'a, const FOUND: bool> {
    source: &'a mut Source,
    /// Offsets to copy from, or indexes of lines.
    from: Vec<usize>,
    into: Vec<u8>,
    /// 0, unknown to the compiler. The lookup adds these bits of the last value, and so waits for
    /// the copy before.
    none: usize,
}

impl<'a, const FOUND: bool> Copy<'a, FOUND> {
    fn new(source: &'a mut Source, bytes: usize) -> Self {
        Copy {
            source,
            from: Vec::new(),
            into: vec![0; bytes],
            none: black_box(0),
        }
    }

    fn place(&self, at: usize) -> usize {
        if FOUND {
            self.source.lines.1[self.from[at]].0
        } else {
            self.from[at]
        }
    }
}

impl<const FOUND: bool> Work for Copy<'_, FOUND> {
    fn bytes(&self) -> u64 {
        self.into.len() as u64
    }

    fn prepare(&mut self, count: u32) -> Result<()> {
        let places = self.source.memory.len() / self.into.len();
        let len = if FOUND { 1 } else { self.into.len() };
        let random = &mut self.source.random;
        self.from.clear();
        self.from
            .extend((0..count).map(|_| len * random.u64(..places as u64) as usize));
        Ok(())
    }

    fn run(&mut self, at: u32) -> Result<()> {
        let len = self.into.len();
        let after = if FOUND {
            usize::from(self.into[len - 1]) & self.none
        } else {
            0
        };
        let from = self.place(at as usize + after);
        self.into
            .copy_from_slice(black_box(&self.source.memory[from..from + len]));
        black_box(&mut self.into);
        Ok(())
    }

    fn check(&mut self) -> Result<u64> {
        let same = self.from.len().checked_sub(1).is_none_or(|last| {
            let from = self.place(last);
            self.into == self.source.memory[from..from + self.into.len()]
        });
        Ok(u64::from(!same))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_are_counted_and_right() {
        let pace = Pace::of(std::time::Duration::from_millis(1));
        for bytes in [200, 8000, 65_536] {
            let mut source = Source::new(1 << 20);
            for samples in [false, true].map(|found| source.copy(bytes, found, pace).unwrap()) {
                assert_eq!(samples.errors, 0);
                assert_eq!(samples.bytes, samples.ops * bytes as u64);
            }
        }
    }
}
