//! Three nodes count in one word of memory, without the owner's help, and report by packets.
//!
//! `cargo run -p toroid-fabric --example counters` runs it on the loopback provider. With the client
//! library's provider in its place the nodes may be processes of several hosts.

use std::error::Error;
use std::thread;
use std::time::Duration;

use toroid_fabric::loopback::Network;
use toroid_fabric::provider::Provider;
use toroid_fabric::{
    Access, Completion, Endpoint, NodeId, Operation, PacketChannel, Partition, Protocol, RemoteKey,
};

const OWNER: NodeId = NodeId(0);
const REPORTS: Protocol = Protocol(1);
const ROUNDS: u64 = 1000;

type Failure = Box<dyn Error + Send + Sync>;

/// Adds to the word, and reports its value before the last addition.
fn count<P>(provider: &P, key: RemoteKey) -> Result<(), Failure>
where
    P: Provider<Error: Send + Sync + 'static>,
{
    let remote = provider.open(key, Access::REMOTE_ATOMIC)?;
    let mut pair = provider.queue_pair(OWNER, 1)?;
    let mut last = 0;
    for round in 0..ROUNDS {
        pair.post(round, Operation::fetch_add(&remote, 0, 1))?;
        pair.flush();
        let mut done = [Completion::default()];
        while pair.poll(&mut done) == 0 {
            pair.wait(Duration::from_secs(1));
        }
        last = done[0].result?;
    }
    let mut channel = provider.channel(OWNER, REPORTS)?;
    Ok(channel.send(&[&last.to_le_bytes()])?)
}

fn main() -> Result<(), Failure> {
    let network = Network::new(Partition(7));
    let owner = network.join(OWNER);
    let region = owner.alloc(4096, Access::REMOTE_ATOMIC)?;
    let key = region.remote_key().ok_or("an exported region has a key")?;
    let reports = owner.listen(REPORTS)?;

    let counters = [1, 2, 3].map(|node| {
        let node = network.join(NodeId(node));
        thread::spawn(move || count(&node, key))
    });
    for counter in counters {
        counter.join().map_err(|_| "a counter panicked")??;
    }
    while let Some(mut channel) = reports.accept(Duration::ZERO) {
        let mut packet = Vec::new();
        if channel.receive(&mut packet)? {
            let value = u64::from_le_bytes(packet.as_slice().try_into()?);
            println!("{} last read {value}", channel.peer());
        }
    }
    println!("all of them counted to {}", region.load(0)?);
    Ok(())
}
