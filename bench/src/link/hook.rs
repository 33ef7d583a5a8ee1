//! The cost of the code that delays, where nothing is delayed: queue pairs and channels of a
//! provider beside the same ones behind a link to their peer, as domains give them out.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use toroid_fabric::emulation;
use toroid_fabric::loopback::{Network, Node};
use toroid_fabric::provider::{self, Provider, RemoteRegion};
use toroid_fabric::{
    Access, Completion, Endpoint, NodeId, Operation, PacketChannel, Partition, Protocol, Region,
    shm,
};

use crate::stats::median;

const PARTITION: Partition = Partition(1);
const PROTOCOL: Protocol = Protocol(1);

/// Operations of a batch, and round trips. The first ones find cold caches, and do not count.
const READS: u32 = 10_000;
const ROUND_TRIPS: u32 = 2000;

/// Longest sleep in a wait, and time after which the other thread hangs.
const LOOK: Duration = Duration::from_secs(1);

/// Nanoseconds of an operation without something and with it: medians of batches in turns.
#[derive(Clone, Copy, Debug)]
pub struct Beside {
    pub without: f64,
    pub with: f64,
}

/// Two nodes in this process.
pub struct Hook {
    near: Node,
    far: Node,
    // Members until the end.
    _network: Network,
}

impl Hook {
    pub fn new() -> Self {
        let network = Network::new(PARTITION);
        Hook {
            near: network.join(NodeId(0)),
            far: network.join(NodeId(1)),
            _network: network,
        }
    }

    /// Time of a read of `bytes` bytes.
    pub fn reads(&self, bytes: usize, time: Duration) -> Result<Beside> {
        let exported = self.far.alloc(bytes, Access::REMOTE_READ)?;
        let key = exported.remote_key().context("the region has no key")?;
        let remote = RemoteRegion::Shm(self.near.open(key, Access::REMOTE_READ)?);
        let local = Region::local(bytes)?;
        let pair = || provider::QueuePair::Shm(shm::QueuePair::new(self.far.id(), PARTITION, 1));
        let mut without = pair();
        let mut with = emulation::QueuePair::new(pair(), Arc::default());
        in_turns(time, |is_with| match is_with {
            true => read(&mut with, &remote, &local),
            false => read(&mut without, &remote, &local),
        })
    }

    /// Half a round trip of packets of `bytes` bytes between two threads.
    pub fn packets(&self, bytes: usize, time: Duration) -> Result<Beside> {
        let listener = self.far.listen(PROTOCOL)?;
        let connect = || {
            let near = self.near.channel(self.far.id(), PROTOCOL)?;
            let far = listener.accept(LOOK).context("no channel came")?;
            Ok::<_, anyhow::Error>([near, far].map(provider::Channel::Shm))
        };
        // Each batch has channels of its own: where their memory lies decides more than the code does.
        let link = |end| emulation::Channel::new(end, Arc::default());
        in_turns(time, |is_with| match is_with {
            true => exchange(&mut connect()?.map(link), bytes),
            false => exchange(&mut connect()?, bytes),
        })
    }
}

/// Medians of batches without and with something, the order of which changes.
pub fn in_turns<E>(
    time: Duration,
    mut batch: impl FnMut(bool) -> Result<f64, E>,
) -> Result<Beside, E> {
    let (mut each, start) = ([Vec::new(), Vec::new()], Instant::now());
    while each[1].is_empty() || start.elapsed() < time {
        let is_with_first = each[0].len() % 2 == 1;
        for is_with in [is_with_first, !is_with_first] {
            each[usize::from(is_with)].push(batch(is_with)?);
        }
    }
    let [without, with] = each.map(|batches| median(&batches).unwrap_or_default());
    Ok(Beside { without, with })
}

/// Reads one after another. Returns the nanoseconds of one.
fn read(
    pair: &mut impl Endpoint<Remote = RemoteRegion>,
    remote: &RemoteRegion,
    local: &Region,
) -> Result<f64> {
    let (bytes, mut start) = (local.len(), Instant::now());
    let mut done = [Completion::default()];
    for number in 0..READS + READS / 10 {
        if number == READS / 10 {
            start = Instant::now();
        }
        pair.post(0, Operation::read(remote, 0, local, 0..bytes))?;
        pair.flush();
        while pair.poll(&mut done) == 0 {
            pair.wait(LOOK);
        }
        ensure!(done[0].result == Ok(bytes), "a read failed");
    }
    Ok(start.elapsed().as_nanos() as f64 / f64::from(READS))
}

/// Sends packets to and fro. Returns the nanoseconds of one way.
fn exchange<C: PacketChannel + Send>([near, far]: &mut [C; 2], bytes: usize) -> Result<f64> {
    let count = ROUND_TRIPS + ROUND_TRIPS / 10;
    thread::scope(|scope| {
        let answer = scope.spawn(move || {
            let mut packet = Vec::new();
            for _ in 0..count {
                receive(far, &mut packet)?;
                far.send(&[&packet])?;
            }
            Ok::<_, anyhow::Error>(())
        });
        let (mut packet, mut start) = (vec![0; bytes], Instant::now());
        for number in 0..count {
            if number == ROUND_TRIPS / 10 {
                start = Instant::now();
            }
            near.send(&[&packet])?;
            receive(near, &mut packet)?;
        }
        let elapsed = start.elapsed();
        ensure!(packet.len() == bytes, "a packet was cut");
        answer
            .join()
            .unwrap_or_else(|_| Err(anyhow!("the thread panicked")))?;
        Ok(elapsed.as_nanos() as f64 / f64::from(2 * ROUND_TRIPS))
    })
}

fn receive(channel: &mut impl PacketChannel, packet: &mut Vec<u8>) -> Result<()> {
    let start = Instant::now();
    while !channel.receive(packet)? {
        ensure!(start.elapsed() < LOOK, "the other thread hangs");
        std::hint::spin_loop();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_are_measured() {
        let hook = Hook::new();
        let time = Duration::ZERO;
        for measured in [hook.reads(64, time), hook.packets(64, time)] {
            let Beside { without, with } = measured.unwrap();
            assert!(without > 0.0 && with > 0.0, "{without} {with}");
        }
    }
}
