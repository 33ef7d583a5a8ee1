//! One-sided writes into memory of the other process, each completed before the next.
//!
//! The follower exports memory and takes no part in the writes. The leader polls completions from the
//! queue pair itself, or from a queue with further queue pairs, all idle.

use std::fmt::Debug;
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
#[cfg(feature = "verbs")]
use toroid_fabric::verbs;
use toroid_fabric::{
    Access, Completion, CompletionQueue, DropGuard, Endpoint, OpError, Operation, Place,
    QueuedCompletion, Region, RegionId, RemoteKey, shm, tcp,
};

#[cfg(feature = "verbs")]
use super::devices::Rnic;
use super::script::{SHORTEST, Wait};
use super::{NODE, PARTITION};
use crate::worker::pattern;

/// Bytes of exported memory, and of the longest write.
const MEMORY: usize = 1 << 20;

/// Longest sleep in a wait for a completion.
const LOOK: Duration = Duration::from_secs(1);

/// Exported memory, as the other process is told.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Offer {
    key: String,
    /// Port at which queue pairs are served; 0 if the agent connects them.
    port: u16,
    /// Parameters of the region at an RDMA device; empty without one.
    device: Vec<u8>,
}

/// Exported memory.
pub struct Exported {
    region: Region,
    pub offer: Offer,
    /// The registration with an RDMA device.
    _registration: Option<DropGuard>,
}

/// Memory for one-sided operations, at either side.
pub enum Memory {
    /// In nodes of a domain: our handle to it, and the node of the owner if that is the other process.
    Domain(Domain, Option<Place>),
    /// Served over the loopback interface by the other process, or by this one.
    Loopback,
    /// Registered with the owner's RDMA device: the device of this process.
    #[cfg(feature = "verbs")]
    Device(Rnic),
    /// There is none: sockets have no one-sided operations.
    None,
}

impl Memory {
    /// Exports memory of this process.
    pub fn export(&self) -> Result<Exported> {
        match self {
            Memory::Domain(domain, _) => {
                let region = domain.alloc(MEMORY as u64, Access::REMOTE_WRITE)?;
                let key = region.remote_key().ok_or(OpError::WrongKey)?;
                Ok(Exported::new(region, key, 0))
            }
            Memory::Loopback => export_over_loopback(),
            #[cfg(feature = "verbs")]
            Memory::Device(device) => export_by_device(device),
            Memory::None => bail!("this carrier has no one-sided operations"),
        }
    }

    /// Opens memory of the other process, and makes queue pairs to it, as many in a queue as asked;
    /// with 0 one without a queue.
    fn open(&self, offer: &Offer, queues: u32) -> Result<Pairs> {
        let key: RemoteKey = offer.key.parse()?;
        let count = queues.max(1);
        let connect = |_| Ok(TcpStream::connect((Ipv4Addr::LOCALHOST, offer.port))?);
        match self {
            Memory::Domain(domain, Some(place)) => {
                let region = domain.open(key, Access::REMOTE_WRITE)?;
                let pairs = (0..count).map(|_| domain.queue_pair(*place, 1));
                let pairs = pairs.collect::<Result<_, _>>()?;
                Ok(Pairs::Fabric(Writer::new(region, pairs, queues)?))
            }
            Memory::Loopback => {
                let pair = |stream: Result<TcpStream>| {
                    let stream = stream?;
                    tcp::tune::for_operations(&stream)?;
                    let (socket, status) = (OwnedFd::from(stream), Arc::default());
                    Ok(tcp::QueuePair::new(socket, NODE, PARTITION, 1, status))
                };
                let pairs = (0..count).map(connect).map(pair);
                let mut pairs = pairs.collect::<Result<Vec<_>>>()?;
                let Some(first) = pairs.first_mut() else {
                    bail!("no queue pair to open memory with");
                };
                let region = first.open(key, Access::REMOTE_WRITE, Arc::default(), None)?;
                let pairs = pairs.into_iter().map(|pair| {
                    let pair = provider::QueuePair::Tcp(Box::new(pair));
                    QueuePair::new(pair, Arc::default())
                });
                let region = RemoteRegion::Tcp(region);
                Ok(Pairs::Fabric(Writer::new(region, pairs.collect(), queues)?))
            }
            #[cfg(feature = "verbs")]
            Memory::Device(device) => {
                let streams = (0..count).map(connect).collect::<Result<Vec<_>>>()?;
                let pairs = streams.iter().map(|stream| device.queue_pair(stream));
                let pairs = pairs.collect::<Result<_>>()?;
                let region = verbs::RegionParameters::from_bytes(offer.device[..].try_into()?)?;
                let writer = Writer::new(verbs::RemoteRegion::open(region), pairs, queues)?;
                Ok(Pairs::Device {
                    writer: Box::new(writer),
                    _streams: streams,
                })
            }
            Memory::Domain(_, None) | Memory::None => bail!("the other process exports no memory"),
        }
    }
}

impl Exported {
    fn new(region: Region, key: RemoteKey, port: u16) -> Self {
        let offer = Offer {
            key: key.to_string(),
            port,
            device: Vec::new(),
        };
        Exported {
            region,
            offer,
            _registration: None,
        }
    }

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
    let key = random_key()?;
    let (memory, access) = (create_memory(MEMORY as u64)?, Access::REMOTE_WRITE);
    let region = Region::exported(&memory, MEMORY, key, Arc::default(), None)?;
    let granted = shm::RemoteRegion::map(&memory, MEMORY, key, access, Arc::default(), None)?;
    let port = listen(move |stream| {
        tcp::tune::for_serving(&stream)?;
        Ok(tcp::serve(
            OwnedFd::from(stream),
            &Granted(granted.clone()),
        )?)
    })?;
    Ok(Exported::new(region, key, port))
}

/// Registers memory with a device, whose queue pairs are connected at a port of the loopback interface.
#[cfg(feature = "verbs")]
fn export_by_device(device: &Rnic) -> Result<Exported> {
    let key = random_key()?;
    let region = Region::local(MEMORY)?;
    let registration = device.export(&region, key, Access::REMOTE_WRITE)?;
    let answering = device.clone();
    let port = listen(move |stream| answering.answer(stream))?;
    let mut exported = Exported::new(region, key, port);
    exported.offer.device = registration.parameters().to_bytes().into();
    exported._registration = Some(Arc::new(registration));
    Ok(exported)
}

fn random_key() -> Result<RemoteKey> {
    let mut secret = [0; 16];
    getrandom::fill(&mut secret)?;
    Ok(RemoteKey {
        node: NODE,
        partition: PARTITION,
        id: RegionId(0),
        secret,
    })
}

/// Serves each connection to a port of the loopback interface, until the process ends. Returns the port.
fn listen(serve: impl Fn(TcpStream) -> Result<()> + Clone + Send + 'static) -> Result<u16> {
    let listener = TcpListener::bind((IpAddr::from(Ipv4Addr::LOCALHOST), 0))?;
    let port = listener.local_addr()?.port();
    let accept = move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let serve = serve.clone();
            let serve = move || {
                // A failure ends the connection, which the user notices.
                let _ = serve(stream);
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
    Ok(port)
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
    pairs: Pairs,
    local: Region,
    /// Number of writes.
    pub count: u32,
    /// Number of completions with another result, operation or queue pair than expected.
    pub wrong: u64,
}

/// Queue pairs of a provider.
enum Pairs {
    Fabric(Writer<QueuePair>),
    #[cfg(feature = "verbs")]
    Device {
        writer: Box<Writer<verbs::QueuePair>>,
        /// The owner's device answers until these end.
        _streams: Vec<TcpStream>,
    },
}

impl Writes {
    /// Opens offered memory, with as many queue pairs in a queue as asked; with 0 one without a queue.
    pub fn new(memory: &Memory, offer: &Offer, queues: u32, contents: &[u8]) -> Result<Self> {
        let pairs = memory.open(offer, queues)?;
        let local = Region::local(MEMORY)?;
        local.write(0, contents)?;
        Ok(Writes {
            pairs,
            local,
            count: 0,
            wrong: 0,
        })
    }

    /// Writes a message of `bytes` with its number, and waits for the completion.
    pub fn write(&mut self, bytes: usize, wait: Wait) -> Result<()> {
        let number = self.count;
        self.local.write(0, &number.to_le_bytes())?;
        self.count += 1;
        let (id, bytes) = (number.into(), bytes as u64);
        let is_right = match &mut self.pairs {
            Pairs::Fabric(writer) => writer.write(id, &self.local, bytes, wait)?,
            #[cfg(feature = "verbs")]
            Pairs::Device { writer, .. } => writer.write(id, &self.local, bytes, wait)?,
        };
        self.wrong += u64::from(!is_right);
        Ok(())
    }
}

/// Queue pairs to exported memory, all but one of them idle.
struct Writer<E: Endpoint> {
    completions: Completions<E>,
    remote: E::Remote,
}

/// The way of completions.
enum Completions<E> {
    Own(E),
    /// Of the queue pair with the highest token.
    Queue(CompletionQueue<E>, u64),
}

impl<E: Endpoint + Debug + Send + Sync + 'static> Writer<E> {
    /// Takes completions through a queue, unless `queues` is 0.
    fn new(remote: E::Remote, mut pairs: Vec<E>, queues: u32) -> Result<Self> {
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
        Ok(Writer {
            completions,
            remote,
        })
    }

    /// Writes once and waits for the completion. Returns whether it is the expected one.
    fn write(&mut self, id: u64, local: &Region, bytes: u64, wait: Wait) -> Result<bool> {
        let write = Operation::write(&self.remote, 0, local, 0..bytes);
        let result = Ok(bytes);
        Ok(match &mut self.completions {
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
        })
    }
}
