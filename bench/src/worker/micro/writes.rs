//! One-sided writes into memory of the other process, each completed before the next.
//!
//! The follower exports memory and takes no part in the writes. The leader polls completions from the
//! queue pair itself, or from a queue with further queue pairs, all idle.

use std::net::{IpAddr, Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::{Result, bail};
use serde::{Deserialize, Serialize};
use toroid_client::member::Domain;
use toroid_fabric::emulation::QueuePair;
use toroid_fabric::mem::memfd::create_memory;
use toroid_fabric::provider::{self, RemoteRegion};
use toroid_fabric::{
    Access, Completion, CompletionQueue, Endpoint, NodeId, OpError, Operation, Partition, Place,
    QueuedCompletion, Region, RegionId, RemoteKey, shm, tcp,
};

use super::script::{SHORTEST, Wait};
use crate::worker::pattern;

/// Bytes of exported memory, and of the longest write.
const MEMORY: usize = 1 << 20;

/// Longest sleep in a wait for a completion.
const LOOK: Duration = Duration::from_secs(1);

/// Number of the owner's node without an agent.
const OWNER: NodeId = NodeId(0);

/// Partition of memory without an agent.
const PARTITION: Partition = Partition(1);

/// Exported memory, as the other process is told.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Offer {
    key: String,
    /// Port at which queue pairs are served; 0 if the agent connects them.
    port: u16,
}

/// Exported memory.
pub struct Exported {
    region: Region,
    pub offer: Offer,
}

/// Memory for one-sided operations, at either side.
pub enum Memory {
    /// In nodes of a domain: our handle to it, and the node of the owner if that is the other process.
    Domain(Domain, Option<Place>),
    /// Served over the loopback interface by the other process, or by this one.
    Loopback,
    /// There is none: sockets have no one-sided operations.
    None,
}

impl Memory {
    /// Exports memory of this process.
    pub fn export(&self) -> Result<Exported> {
        match self {
            Memory::Domain(domain, _) => {
                let region = domain.alloc(MEMORY as u64, Access::REMOTE_WRITE)?;
                let key = region.remote_key().ok_or(OpError::WrongKey)?.to_string();
                let offer = Offer { key, port: 0 };
                Ok(Exported { region, offer })
            }
            Memory::Loopback => export_over_loopback(),
            Memory::None => bail!("this carrier has no one-sided operations"),
        }
    }

    /// Opens memory of the other process, and makes queue pairs to it.
    fn open(&self, offer: &Offer, count: usize) -> Result<(RemoteRegion, Vec<QueuePair>)> {
        let key: RemoteKey = offer.key.parse()?;
        match self {
            Memory::Domain(domain, Some(place)) => {
                let region = domain.open(key, Access::REMOTE_WRITE)?;
                let pairs = (0..count).map(|_| domain.queue_pair(*place, 1));
                Ok((region, pairs.collect::<Result<_, _>>()?))
            }
            Memory::Loopback => {
                let connect = || -> Result<_> {
                    let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, offer.port))?;
                    tcp::tune::for_operations(&stream)?;
                    let socket = OwnedFd::from(stream);
                    Ok(tcp::QueuePair::new(
                        socket,
                        OWNER,
                        PARTITION,
                        1,
                        Arc::default(),
                    ))
                };
                let mut pairs = (0..count).map(|_| connect()).collect::<Result<Vec<_>>>()?;
                let Some(first) = pairs.first_mut() else {
                    bail!("no queue pair to open memory with");
                };
                let region = first.open(key, Access::REMOTE_WRITE, Arc::default(), None)?;
                let pairs = pairs.into_iter().map(|pair| {
                    let pair = provider::QueuePair::Tcp(Box::new(pair));
                    QueuePair::new(pair, Arc::default())
                });
                Ok((RemoteRegion::Tcp(region), pairs.collect()))
            }
            Memory::Domain(_, None) | Memory::None => bail!("the other process exports no memory"),
        }
    }
}

impl Exported {
    /// Whether the memory has the bytes of write `number`, its first 4 bytes.
    pub fn has(&self, bytes: usize, number: u32) -> Result<bool> {
        let mut found = vec![0; bytes];
        self.region.read(0, &mut found)?;
        let (head, rest) = found.split_at(SHORTEST);
        Ok(head == number.to_le_bytes() && pattern::matches(bytes as u64, rest))
    }
}

/// Exports memory at a port of the loopback interface, as a target proxy does, until the process ends.
fn export_over_loopback() -> Result<Exported> {
    let mut secret = [0; 16];
    getrandom::fill(&mut secret)?;
    let key = RemoteKey {
        node: OWNER,
        partition: PARTITION,
        id: RegionId(0),
        secret,
    };
    let (memory, access) = (create_memory(MEMORY as u64)?, Access::REMOTE_WRITE);
    let region = Region::exported(&memory, MEMORY, key, Arc::default(), None)?;
    let granted = shm::RemoteRegion::map(&memory, MEMORY, key, access, Arc::default(), None)?;
    let listener = TcpListener::bind((IpAddr::from(Ipv4Addr::LOCALHOST), 0))?;
    let port = listener.local_addr()?.port();
    let accept = move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let granted = Granted(granted.clone());
            let serve = move || {
                // A failure ends the connection, which the user notices.
                if tcp::tune::for_serving(&stream).is_ok() {
                    let _ = tcp::serve(OwnedFd::from(stream), &granted);
                }
            };
            if thread::Builder::new()
                .name("served".into())
                .spawn(serve)
                .is_err()
            {
                return;
            }
        }
    };
    thread::Builder::new().name("server".into()).spawn(accept)?;
    let key = key.to_string();
    let offer = Offer { key, port };
    Ok(Exported { region, offer })
}

/// The region that a connection may open.
struct Granted(shm::RemoteRegion);

impl tcp::Regions for Granted {
    fn open(&self, key: RemoteKey, _: Access) -> Result<tcp::Opened, OpError> {
        let known = self.0.key() == key;
        known
            .then(|| self.0.clone().into())
            .ok_or(OpError::WrongKey)
    }
}

/// The writing side of a script.
pub struct Writes {
    completions: Completions,
    remote: RemoteRegion,
    local: Region,
    /// Number of writes.
    pub count: u32,
    /// Number of completions with another result, operation or queue pair than expected.
    pub wrong: u64,
}

/// The way of completions.
enum Completions {
    Own(QueuePair),
    /// Of the queue pair with the highest token.
    Queue(CompletionQueue<QueuePair>, u64),
}

impl Writes {
    /// Opens offered memory, with as many queue pairs in a queue as asked; with 0 one without a queue.
    pub fn new(memory: &Memory, offer: &Offer, queues: u32, contents: &[u8]) -> Result<Self> {
        let (remote, mut pairs) = memory.open(offer, queues.max(1) as usize)?;
        let local = Region::local(MEMORY)?;
        local.write(0, contents)?;
        let completions = match pairs.pop() {
            Some(pair) if queues == 0 => Completions::Own(pair),
            last => {
                let mut queue = CompletionQueue::new()?;
                for (token, pair) in (0..).zip(pairs.into_iter().chain(last)) {
                    queue.attach(token, pair)?;
                }
                Completions::Queue(queue, u64::from(queues) - 1)
            }
        };
        Ok(Writes {
            completions,
            remote,
            local,
            count: 0,
            wrong: 0,
        })
    }

    /// Writes a message of `bytes` with its number, and waits for the completion.
    pub fn write(&mut self, bytes: usize, wait: Wait) -> Result<()> {
        let (number, bytes) = (self.count, bytes as u64);
        self.local.write(0, &number.to_le_bytes())?;
        self.count += 1;
        let write = Operation::write(&self.remote, 0, &self.local, 0..bytes);
        let (id, result) = (number.into(), Ok(bytes));
        let is_right = match &mut self.completions {
            Completions::Own(pair) => {
                pair.post(id, write)?;
                pair.flush();
                let mut done = [Completion::default()];
                while pair.poll(&mut done) == 0 {
                    if wait != Wait::Poll {
                        pair.wait(LOOK);
                    }
                }
                done[0] == Completion { id, result }
            }
            Completions::Queue(queue, token) => {
                let token = *token;
                if let Some(pair) = queue.pair(token) {
                    pair.post(id, write)?;
                    pair.flush();
                }
                let mut done = [QueuedCompletion::default()];
                while queue.poll(&mut done) == 0 {
                    if wait != Wait::Poll {
                        queue.wait(LOOK);
                    }
                }
                done[0] == QueuedCompletion { token, id, result }
            }
        };
        self.wrong += u64::from(!is_right);
        Ok(())
    }
}
