//! A stream of one-sided reads with a constant number under way, timed by its reader.

use std::time::{Duration, Instant};

use anyhow::Result;
use toroid_fabric::emulation::QueuePair;
use toroid_fabric::{Completion, Endpoint, Operation};

use super::one_sided::Peer;
use crate::samples::Samples;

/// Longest sleep in a wait for a completion.
const LOOK: Duration = Duration::from_secs(1);

/// Reads `bytes` bytes at a time for `time` with `depth` reads under way. The first completions
/// start the time, the last ones end it, and all but the first count.
pub fn measure(peer: &Peer, bytes: usize, depth: u32, time: Duration) -> Result<Samples> {
    let mut window = Window {
        peer,
        pair: peer.queue_pair(depth)?,
        bytes: bytes as u64,
        completions: vec![Completion::default(); depth as usize],
        posted: 0,
        failed: 0,
    };
    window.post(u64::from(depth))?;
    let mut under_way = depth as usize;
    let count = window.complete() as u64;
    let (first, mut ops) = (Instant::now(), 0);
    window.post(count)?;
    let mut elapsed = Duration::ZERO;
    while elapsed < time {
        let count = window.complete() as u64;
        elapsed = first.elapsed();
        ops += count;
        window.post(count)?;
    }
    while under_way > 0 {
        under_way -= window.complete();
    }
    Ok(Samples {
        batch: 1,
        ops,
        bytes: ops * bytes as u64,
        elapsed_ns: elapsed.as_nanos() as u64,
        ..Samples::errors(window.failed + window.wrong()?)
    })
}

struct Window<'a> {
    peer: &'a Peer,
    pair: QueuePair,
    bytes: u64,
    completions: Vec<Completion>,
    /// Number of posted reads.
    posted: u64,
    /// Number of failed reads.
    failed: u64,
}

impl Window<'_> {
    fn post(&mut self, count: u64) -> Result<()> {
        for number in self.posted..self.posted + count {
            let (peer, offset) = (self.peer, self.offset(number));
            let range = offset..offset + self.bytes;
            let read = Operation::read(&peer.readable, offset, &peer.local, range);
            self.pair.post(number, read)?;
        }
        self.posted += count;
        self.pair.flush();
        Ok(())
    }

    /// Number of completions, at least one.
    fn complete(&mut self) -> usize {
        loop {
            let count = self.pair.poll(&mut self.completions);
            let results = self.completions[..count].iter();
            let failed = results.filter(|one| one.result != Ok(self.bytes));
            self.failed += failed.count() as u64;
            if count > 0 {
                return count;
            }
            self.pair.wait(LOOK);
        }
    }

    /// Whether the last read brought wrong bytes, as a number.
    fn wrong(&self) -> Result<u64> {
        let offset = self.offset(self.posted - 1);
        let mut found = vec![0; self.bytes as usize];
        self.peer.local.read(offset, &mut found)?;
        // Wiped, so that the next check does not see the bytes of this read.
        self.peer.local.write(offset, &vec![0; found.len()])?;
        Ok(u64::from(!self.peer.is_readable(offset, &found)))
    }

    fn offset(&self, number: u64) -> u64 {
        number % (self.peer.local.len() / self.bytes) * self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::super::one_sided::HOT;
    use super::super::one_sided::tests::connected;
    use super::*;

    #[test]
    fn every_read_counts_once_and_the_last_is_checked() {
        let (exports, peer) = connected();
        let read = |bytes, depth| {
            let time = Duration::from_millis(1);
            measure(&peer, bytes, depth, time).unwrap()
        };
        for (bytes, depth) in [(64, 1), (4096, 64), (HOT, 4)] {
            let samples = read(bytes, depth);
            assert_eq!(samples.errors, 0, "{bytes} bytes, depth {depth}");
            assert!(samples.ops > 0 && samples.elapsed_ns >= 1_000_000);
            assert_eq!(samples.bytes, samples.ops * bytes as u64);
        }
        exports.clear();
        assert_eq!(read(4096, 4).errors, 1, "wrong bytes went unnoticed");
    }
}
