//! A rank: one of the equal processes of a parallel program.

use anyhow::Result;
use serde::{Deserialize, Serialize};

use super::collectives::barrier;
pub use crate::worker::micro::script::Nanos;

/// One of the ranks of a program, live or on a virtual clock. Programs only compute, send and
/// receive.
pub trait Rank {
    /// The number of this rank, from 0.
    fn rank(&self) -> usize;

    /// The number of ranks.
    fn ranks(&self) -> usize;

    /// The time on a clock that all ranks share.
    fn now(&self) -> Nanos;

    /// Charges computation to a virtual clock, in floating-point or memory operations; a live clock
    /// has run meanwhile.
    fn compute(&mut self, _operations: usize) {}

    /// Tells where an exchange between all ranks begins and ends: routing policies may treat its
    /// messages differently.
    fn alltoall(&mut self, _runs: bool) {}

    /// Sends a message. May wait for the receive, as a blocking send of MPI.
    fn send(&mut self, to: usize, message: &[u8]) -> Result<()>;

    /// Replaces `into` by the next message of a rank, or of any; returns the sender. The message has
    /// `bytes` bytes, otherwise the receive fails.
    fn receive(&mut self, from: Option<usize>, bytes: usize, into: &mut Vec<u8>) -> Result<usize>;
}

/// Times and messages of one rank in the measured part of a program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    pub elapsed_ns: Nanos,
    /// Time in sends and receives.
    pub communication_ns: Nanos,
    /// Sent messages and their bytes.
    pub messages: u64,
    pub bytes: u64,
}

/// A rank whose communication is counted.
pub struct Meter<'a, R> {
    inner: &'a mut R,
    usage: Usage,
}

impl<'a, R: Rank> Meter<'a, R> {
    pub fn new(inner: &'a mut R) -> Self {
        let usage = Usage::default();
        Meter { inner, usage }
    }

    /// Runs the measured part of a program, which begins together at all ranks.
    pub fn measure<T>(&mut self, work: impl FnOnce(&mut Self) -> Result<T>) -> Result<(T, Usage)> {
        barrier(self)?;
        self.usage = Usage::default();
        let start = self.now();
        let value = work(self)?;
        let elapsed_ns = self.now() - start;
        let usage = Usage {
            elapsed_ns,
            ..self.usage
        };
        Ok((value, usage))
    }

    fn timed<T>(&mut self, work: impl FnOnce(&mut R) -> Result<T>) -> Result<T> {
        let start = self.inner.now();
        let value = work(self.inner)?;
        self.usage.communication_ns += self.inner.now() - start;
        Ok(value)
    }
}

impl<R: Rank> Rank for Meter<'_, R> {
    fn rank(&self) -> usize {
        self.inner.rank()
    }

    fn ranks(&self) -> usize {
        self.inner.ranks()
    }

    fn now(&self) -> Nanos {
        self.inner.now()
    }

    fn compute(&mut self, operations: usize) {
        self.inner.compute(operations);
    }

    fn alltoall(&mut self, runs: bool) {
        self.inner.alltoall(runs);
    }

    fn send(&mut self, to: usize, message: &[u8]) -> Result<()> {
        self.usage.messages += 1;
        self.usage.bytes += message.len() as u64;
        self.timed(|inner| inner.send(to, message))
    }

    fn receive(&mut self, from: Option<usize>, bytes: usize, into: &mut Vec<u8>) -> Result<usize> {
        self.timed(|inner| inner.receive(from, bytes, into))
    }
}
