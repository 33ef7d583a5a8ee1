//! Programs of the paper, without their computation: sends and receives of one iteration.
//!
//! Sends do not wait for receives. Collectives are those of the live programs, except alltoall, in
//! which the two directions of an exchange overlap.

use std::fmt;

use anyhow::Result;
use serde::Serialize;

use crate::table;
use crate::worker::programs::collectives::{allreduce, barrier, broadcast};
use crate::worker::programs::grid::factors;
use crate::worker::programs::rank::Rank;

/// Blocks of a wavefront: a rank sends the first one before it has the last one.
const BLOCKS: usize = 4;

/// Who sends to whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pattern {
    /// A round trip between the first and the last rank.
    PingPong,
    /// A sum over all ranks.
    Allreduce,
    /// A message from each rank to each.
    Alltoall,
    Barrier,
    /// A message of the first rank to all.
    Broadcast,
    /// A message to each of six neighbours in three dimensions, as halo3d of SST's ember.
    Halo3d,
    /// Wavefronts from the four corners of a plane, as sweep3d of SST's ember.
    Sweep3d,
}

/// A pattern with the length of its messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Workload {
    pub pattern: Pattern,
    pub bytes: usize,
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&crate::report::name(self))
    }
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.pattern, table::size(self.bytes))
    }
}

impl Workload {
    /// One iteration at one rank.
    pub fn run<R: Rank>(&self, rank: &mut R) -> Result<()> {
        match self.pattern {
            Pattern::PingPong => self.ping_pong(rank),
            Pattern::Allreduce => allreduce(rank, &mut vec![0_u8; self.bytes], |a, b| a ^ b),
            Pattern::Alltoall => self.alltoall(rank),
            Pattern::Barrier => barrier(rank),
            Pattern::Broadcast => broadcast(rank, 0, &mut self.message()),
            Pattern::Halo3d => self.halo3d(rank),
            Pattern::Sweep3d => self.sweep3d(rank),
        }
    }

    fn message(&self) -> Vec<u8> {
        vec![0; self.bytes]
    }

    fn ping_pong<R: Rank>(&self, rank: &mut R) -> Result<()> {
        let (first, last) = (0, rank.ranks() - 1);
        let mut received = Vec::new();
        if rank.rank() == first {
            rank.send(last, &self.message())?;
            rank.receive(Some(last), self.bytes, &mut received)?;
        } else if rank.rank() == last {
            rank.receive(Some(first), self.bytes, &mut received)?;
            rank.send(first, &received)?;
        }
        Ok(())
    }

    fn alltoall<R: Rank>(&self, rank: &mut R) -> Result<()> {
        let (own, count) = (rank.rank(), rank.ranks());
        let (message, mut received) = (self.message(), Vec::new());
        rank.alltoall(true);
        for step in 1..count {
            rank.send((own + step) % count, &message)?;
            rank.receive(
                Some((own + count - step) % count),
                self.bytes,
                &mut received,
            )?;
        }
        rank.alltoall(false);
        Ok(())
    }

    fn halo3d<R: Rank>(&self, rank: &mut R) -> Result<()> {
        let neighbours = neighbours(rank.rank(), factors::<3>(rank.ranks()));
        let (message, mut received) = (self.message(), Vec::new());
        for neighbour in &neighbours {
            rank.send(*neighbour, &message)?;
        }
        for neighbour in neighbours {
            rank.receive(Some(neighbour), self.bytes, &mut received)?;
        }
        Ok(())
    }

    fn sweep3d<R: Rank>(&self, rank: &mut R) -> Result<()> {
        let sizes = factors::<2>(rank.ranks());
        let (message, mut received) = (self.message(), Vec::new());
        for corner in 0..4 {
            let ends = [0, 1].map(|axis| ends(rank.rank(), sizes, axis, corner >> axis & 1 == 0));
            for _ in 0..BLOCKS {
                for from in ends.iter().filter_map(|[before, _]| *before) {
                    rank.receive(Some(from), self.bytes, &mut received)?;
                }
                for to in ends.iter().filter_map(|[_, after]| *after) {
                    rank.send(to, &message)?;
                }
            }
        }
        Ok(())
    }
}

/// Ranks before and after a rank along an axis of a grid, whose first axis is the fastest.
fn ends<const N: usize>(
    rank: usize,
    sizes: [usize; N],
    axis: usize,
    is_up: bool,
) -> [Option<usize>; 2] {
    let stride: usize = sizes[..axis].iter().product();
    let place = rank / stride % sizes[axis];
    let below = (place > 0).then(|| rank - stride);
    let above = (place + 1 < sizes[axis]).then(|| rank + stride);
    match is_up {
        true => [below, above],
        false => [above, below],
    }
}

/// The neighbours of a rank in a grid without wrap.
fn neighbours<const N: usize>(rank: usize, sizes: [usize; N]) -> Vec<usize> {
    let all = (0..N).flat_map(|axis| ends(rank, sizes, axis, true));
    all.flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_are_those_of_a_grid() {
        assert_eq!(neighbours(0, [4, 2, 2]), [1, 4, 8]);
        assert_eq!(neighbours(5, [4, 2, 2]), [4, 6, 1, 13]);
        assert_eq!(ends(3, [4, 4], 0, true), [Some(2), None]);
        assert_eq!(ends(3, [4, 4], 0, false), [None, Some(2)]);
    }
}
