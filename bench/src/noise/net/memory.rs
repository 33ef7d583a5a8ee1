//! One-sided reads and writes between two nodes of a domain: the path beside the sockets.
//!
//! The server exports a region in the domain of both nodes. Reads take its first half, which the
//! server has filled; writes go to the second. The server has no further part: the client checks
//! the bytes of both.

use std::io;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use toroid_client::member::{Domain, Member};
use toroid_fabric::emulation::QueuePair;
use toroid_fabric::provider::{Provider, RemoteRegion};
use toroid_fabric::{
    Access, Completion, Endpoint, OpError, Operation, Place, Region, RemoteKey, Torus,
};

use super::error::{NetError, Peer};
use super::traffic::Budget;
use super::wire::{Direction, FILL, LARGEST};
use crate::samples::Samples;

/// Bytes of each half of the region.
const HALF: u64 = LARGEST as u64;

/// Most operations in flight.
const DEPTH: u64 = 32;

/// Fewest and most reads of a run of single ones.
const READS: [u64; 2] = [3, 100_000];

/// Longest sleep in a wait for completions.
const LOOK: Duration = Duration::from_millis(200);

/// The domain of this node and the one with an address, and the place of that node.
///
/// # Errors
/// `MemberError::NotInNode` outside of nodes; there is no such domain; the agent's.
pub fn domain_with(address: IpAddr) -> Result<(Domain, Place)> {
    let (member, address) = (Member::attach()?, address.to_canonical());
    for name in member.domains()? {
        let domain = member.domain(&name)?;
        let members = domain.info()?.members;
        if let Some(member) = members.iter().find(|member| member.ipv4 == address) {
            return Ok((domain, member.node));
        }
    }
    bail!("this node is in no domain with {address}; add both nodes to one")
}

/// Exports a region in the domain of this node and the one with an address. Any member with its key
/// may use it.
///
/// # Errors
/// As [`domain_with`]; the domain's limits.
pub fn export(client: IpAddr) -> Result<Region> {
    let access = Access::REMOTE_READ | Access::REMOTE_WRITE;
    let region = domain_with(client)?.0.alloc(2 * HALF, access)?;
    region.write(0, &vec![FILL; HALF as usize])?;
    Ok(region)
}

/// The region of a server.
pub struct Memory {
    pair: QueuePair,
    remote: RemoteRegion,
    local: Region,
    server: Peer,
    /// Value of the bytes that were written last.
    written: u8,
}

impl Memory {
    /// Opens the region with a key. The server's node is at `place`.
    ///
    /// # Errors
    /// The text is no key, or one of another node; the agent refuses it.
    pub fn open(domain: &Domain, place: Place, key: &str, server: Peer) -> Result<Self> {
        let key = key_of(&domain.member().torus(), place, key, server)?;
        let remote = domain.open(key, Access::REMOTE_READ | Access::REMOTE_WRITE)?;
        if remote.len() != 2 * HALF {
            bail!("the server exports a region of {} bytes", remote.len());
        }
        Ok(Memory {
            pair: Provider::queue_pair(domain, key.node, DEPTH as usize)?,
            remote,
            local: Region::local(HALF as usize)?,
            server,
            written: 0,
        })
    }

    /// Single reads for a time.
    ///
    /// # Errors
    /// The budget's, and those of the operations.
    pub fn latency(
        &mut self,
        bytes: u32,
        time: Duration,
        budget: &Budget,
    ) -> Result<Samples, NetError> {
        let (mut samples, [fewest, most]) = (Samples::default(), READS);
        // The first one may connect devices.
        budget.spend(bytes as usize)?;
        self.read(0..bytes.into(), budget)?;
        let start = Instant::now();
        while samples.ops < fewest || (start.elapsed() < time && samples.ops < most) {
            self.fill(bytes.into(), 0)?;
            budget.spend(bytes as usize)?;
            let begin = Instant::now();
            self.read(0..bytes.into(), budget)?;
            samples.record(begin.elapsed(), bytes as usize, true);
            samples.errors += self.wrong(bytes.into(), FILL)?;
        }
        Ok(samples)
    }

    /// Writes (out) or reads (in) for a time, many in flight.
    ///
    /// # Errors
    /// As [`Memory::latency`].
    pub fn bandwidth(
        &mut self,
        direction: Direction,
        bytes: u32,
        time: Duration,
        budget: &Budget,
    ) -> Result<Samples, NetError> {
        let (bytes, is_out) = (u64::from(bytes), direction.is_out());
        let depth = (HALF / bytes).clamp(1, DEPTH);
        let all = depth * bytes;
        // Reads replace the zeros.
        let filled = if is_out {
            self.written.wrapping_add(1)
        } else {
            0
        };
        self.fill(all, filled)?;
        let (start, mut posted, mut left) = (Instant::now(), 0, 0);
        while left > 0 || start.elapsed() < time || posted < depth {
            while left < depth && (start.elapsed() < time || posted < depth) {
                let at = posted % depth * bytes;
                let local = at..at + bytes;
                let operation = if is_out {
                    Operation::write(&self.remote, HALF + at, &self.local, local)
                } else {
                    Operation::read(&self.remote, at, &self.local, local)
                };
                budget.spend(bytes as usize)?;
                self.post(operation)?;
                (posted, left) = (posted + 1, left + 1);
            }
            left -= self.complete(budget)?;
        }
        let elapsed_ns = start.elapsed().as_nanos() as u64;
        let expected = if is_out { filled } else { FILL };
        if is_out {
            self.written = filled;
            self.fill(all, 0)?;
            budget.spend(all as usize)?;
            self.read(HALF..HALF + all, budget)?;
        }
        Ok(Samples {
            batch: 1,
            ops: posted,
            bytes: posted * bytes,
            elapsed_ns,
            errors: self.wrong(all, expected)?,
            ..Samples::default()
        })
    }

    /// Reads into the beginning of the local memory. The caller has spent the bytes: the time of a
    /// read is that of the operation alone.
    fn read(&mut self, from: std::ops::Range<u64>, budget: &Budget) -> Result<(), NetError> {
        let len = from.end - from.start;
        let operation = Operation::read(&self.remote, from.start, &self.local, 0..len);
        self.post(operation)?;
        self.complete(budget).map(drop)
    }

    fn post(&mut self, operation: Operation<RemoteRegion>) -> Result<(), NetError> {
        let posted = self.pair.post(0, operation);
        posted.map_err(|error| self.failed(error))
    }

    /// Waits for completions. Returns their number.
    fn complete(&mut self, budget: &Budget) -> Result<u64, NetError> {
        let mut done = [Completion::default(); DEPTH as usize];
        self.pair.flush();
        loop {
            let count = self.pair.poll(&mut done);
            for completion in &done[..count] {
                completion.result.map_err(|error| self.failed(error))?;
            }
            if count > 0 {
                return Ok(count as u64);
            }
            // While the operations are under way, not between the end of the wait and the look at them.
            budget.check(Instant::now())?;
            self.pair.wait(LOOK);
        }
    }

    /// Fills the beginning of the local memory.
    fn fill(&self, len: u64, value: u8) -> Result<(), NetError> {
        let filled = self.local.write(0, &vec![value; len as usize]);
        filled.map_err(|error: OpError| self.failed(error))
    }

    /// 1 if the beginning of the local memory has other bytes, else 0.
    fn wrong(&self, len: u64, value: u8) -> Result<u64, NetError> {
        let mut found = vec![0; len as usize];
        let read = self.local.read(0, &mut found);
        read.map_err(|error: OpError| self.failed(error))?;
        Ok(found.iter().any(|byte| *byte != value).into())
    }

    fn failed(&self, error: impl std::error::Error + Send + Sync + 'static) -> NetError {
        NetError::System {
            action: "use the memory of",
            peer: self.server.0,
            source: io::Error::other(error),
        }
    }
}

/// The key of a region of the node at `place`: operations on another node would not measure the way to
/// the server.
fn key_of(torus: &Torus, place: Place, key: &str, server: Peer) -> Result<RemoteKey> {
    let key: RemoteKey = key.parse().context("the server sent no key of a region")?;
    if torus.node(place) == Some(key.node) {
        return Ok(key);
    }
    let other = match torus.place(key.node) {
        Some(other) => format!("node {other}"),
        None => format!("no node ({})", key.node.0),
    };
    let claim = format!("exports a region of {other}, and its address is that of node {place}");
    Err(server.lie(claim).into())
}

#[cfg(test)]
mod tests {
    use toroid_fabric::{NodeId, Partition, RegionId};

    use super::*;

    #[test]
    fn a_key_names_the_node_of_the_server() {
        let torus = Torus::new(2, 1, 1).unwrap();
        let place = "1,0,0".parse().unwrap();
        let server = Peer(([10, 0, 0, 2], 7471).into());
        let key_of = |node| {
            let key = RemoteKey {
                node: NodeId(node),
                partition: Partition(1),
                id: RegionId(1),
                secret: [7; 16],
            };
            super::key_of(&torus, place, &key.to_string(), server)
        };
        assert_eq!(key_of(1).unwrap().node, NodeId(1));
        let refused = |node| key_of(node).unwrap_err().to_string();
        assert_eq!(
            refused(0),
            "10.0.0.2:7471 lies: it exports a region of node 0,0,0, and its address is that of node 1,0,0"
        );
        assert!(refused(2).contains("no node (2)"), "{}", refused(2));
    }
}
