//! One-sided operations over a connection: the serving side, which is the target's network card.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use super::stream::{Cut, Stream};
use super::wire::{CHUNK, Failure, Malformed, Reply, Request};
use super::words::{read_whole, write_whole};
use crate::core::mapped::Mapped;
use crate::core::parameters::{ConnectionParameters, RegionParameters};
use crate::error::OpError;
use crate::key::{Access, RemoteKey};
use crate::mem::DropGuard;
use crate::shm::RemoteRegion;

/// Room for requests that were received and not yet executed: two of the longest.
const ROOM: usize = 2 * (Request::LEN + CHUNK);

/// Replies are sent when they are so many bytes, or nothing more is asked.
const ENOUGH: usize = CHUNK;

/// The longest that one sleep lasts. The system knows how long a connection may be silent.
const LONG: Duration = Duration::from_secs(3600);

/// A region that was opened for the other side, and what is dropped when that has closed it.
#[derive(Debug)]
pub struct Opened {
    region: RemoteRegion,
    _guard: Option<DropGuard>,
}

impl Opened {
    /// One that is accounted for by `guard`.
    pub fn new(region: RemoteRegion, guard: DropGuard) -> Self {
        Opened {
            region,
            _guard: Some(guard),
        }
    }
}

impl From<RemoteRegion> for Opened {
    fn from(region: RemoteRegion) -> Self {
        Opened {
            region,
            _guard: None,
        }
    }
}

/// Who opens regions for the other side.
pub trait Regions {
    /// Opens a region as the node of the other side may, or says why it may not.
    ///
    /// # Errors
    /// [`OpError`], which the other side gets.
    fn open(&self, key: RemoteKey, access: Access) -> Result<Opened, OpError>;

    /// The RDMA device by which the other side may reach them as well, if there is one.
    #[cfg(feature = "verbs")]
    fn device(&self) -> Option<Arc<crate::verbs::Device>> {
        None
    }

    /// Takes account of a region that is about to be registered with it, until what is returned is
    /// dropped; nothing if that would be too much now.
    #[cfg(feature = "verbs")]
    fn admit(&self, region: &RemoteRegion) -> Option<DropGuard> {
        let _ = region;
        None
    }
}

/// Executes what the other side of a connection asks for, until it ends the connection.
///
/// Requests are executed in order, each under the right that its region has at that moment. The
/// other side may be anybody: it gets an error for each request that it may not make. While it
/// takes no replies, nothing more is executed.
///
/// # Errors
/// [`Malformed`] when the other side breaks the protocol; the connection is cut.
pub fn serve(socket: impl Into<Arc<OwnedFd>>, regions: &impl Regions) -> Result<(), Malformed> {
    let mut server = Server {
        stream: Stream::new(socket, ROOM),
        regions,
        opened: Vec::new(),
        has_failed: false,
        #[cfg(feature = "verbs")]
        answering: None,
    };
    loop {
        let executed = server.execute_received();
        if server.send_all() == Err(Cut) {
            return Ok(());
        }
        executed?;
        match server.stream.pull() {
            Ok(0) => server.stream.sleep(true, LONG),
            Ok(_) => {}
            Err(Cut) => return Ok(()),
        }
    }
}

struct Server<'a, R> {
    stream: Stream,
    regions: &'a R,
    /// By handle; `None` is not open.
    opened: Vec<Option<Result<Opened, OpError>>>,
    /// Whether the last request was not done.
    has_failed: bool,
    /// What the other side's device may reach.
    #[cfg(feature = "verbs")]
    answering: Option<crate::failover::queue_pair::Answerer>,
}

impl<R: Regions> Server<'_, R> {
    /// Executes the requests that are there as a whole.
    fn execute_received(&mut self) -> Result<(), Malformed> {
        loop {
            let incoming = self.stream.incoming();
            let Some((head, rest)) = incoming.split_first_chunk() else {
                return Ok(());
            };
            let request = Request::from_bytes(head)?;
            if rest.len() < request.data_len() {
                return Ok(());
            }
            self.execute(request);
            self.stream.consume(Request::LEN + request.data_len());
            if self.stream.unsent() >= ENOUGH && self.send_all() == Err(Cut) {
                return Ok(());
            }
        }
    }

    fn send_all(&mut self) -> Result<(), Cut> {
        while !self.stream.push()? {
            // Nothing is received meanwhile: who takes no replies is not to ask for more.
            self.stream.sleep(false, LONG);
        }
        Ok(())
    }

    /// Executes the request at the front.
    fn execute(&mut self, request: Request) {
        if request.is_linked() && self.has_failed {
            return self.stream.outgoing().extend(Reply::Skipped.to_bytes());
        }
        let result = match request {
            Request::Open {
                handle,
                access,
                key,
            } => self.open(handle, key, access),
            Request::Close { handle } => return self.close(handle),
            Request::Connect(parameters) => {
                let told = self.connect(&parameters);
                return self.tell(told);
            }
            Request::Register { handle } => {
                let told = self.register(handle);
                return self.tell(told);
            }
            Request::Disconnect => return self.disconnect(),
            Request::Read {
                handle,
                offset,
                len,
                ..
            } => return self.read(handle, offset, len),
            Request::Write { handle, offset, .. } => self.write(handle, offset, request.data_len()),
            Request::CompareAndSwap {
                handle,
                offset,
                expected,
                desired,
            } => self
                .region(handle)
                .and_then(|region| region.compare_and_swap(offset, expected, desired)),
            Request::FetchAdd {
                handle,
                offset,
                add,
            } => self
                .region(handle)
                .and_then(|region| region.fetch_add(offset, add)),
        };
        let reply = self.reply(result, 0);
        self.stream.outgoing().extend(reply.to_bytes());
    }

    fn reply(&mut self, result: Result<u64, OpError>, len: u32) -> Reply {
        self.has_failed = result.is_err();
        match result {
            Ok(value) => Reply::Done { value, len },
            Err(error) => Reply::Failed(Failure::of(error)),
        }
    }

    fn region(&self, handle: u32) -> Result<&RemoteRegion, OpError> {
        match self.opened.get(handle as usize) {
            Some(Some(Ok(opened))) => Ok(&opened.region),
            Some(Some(Err(error))) => Err(*error),
            _ => Err(OpError::WrongKey),
        }
    }

    fn open(&mut self, handle: u32, key: RemoteKey, access: Access) -> Result<u64, OpError> {
        let handle = handle as usize;
        if self.opened.len() <= handle {
            self.opened.resize_with(handle + 1, || None);
        }
        // What was there is given back first: the other side may be at a limit.
        self.vacate(handle);
        let opened = self.regions.open(key, access);
        let len = opened
            .as_ref()
            .map(|opened| opened.region.len())
            .map_err(|error| *error);
        self.opened[handle] = Some(opened);
        len
    }

    fn close(&mut self, handle: u32) {
        self.vacate(handle as usize);
    }

    fn vacate(&mut self, handle: usize) {
        #[cfg(feature = "verbs")]
        if let Some(answering) = &mut self.answering {
            answering.forget(handle);
        }
        if let Some(slot) = self.opened.get_mut(handle) {
            *slot = None;
        }
    }

    /// Replies with what is to be known of a device.
    fn tell<const N: usize>(&mut self, told: Result<[u8; N], OpError>) {
        let reply = self.reply(told.map(|_| 0), N as u32);
        let outgoing = self.stream.outgoing();
        outgoing.extend(reply.to_bytes());
        outgoing.extend(told.into_iter().flatten());
    }
}

/// What is for who has an RDMA device.
#[cfg(feature = "verbs")]
impl<R: Regions> Server<'_, R> {
    fn connect(&mut self, peer: &ConnectionParameters) -> Result<ToldConnection, OpError> {
        // Its regions are its own.
        self.answering = None;
        let device = self.regions.device().ok_or(NO_DEVICE)?;
        let answering = crate::failover::queue_pair::Answerer::new(&device, peer);
        let answering = self.answering.insert(answering.map_err(|e| failure(&e))?);
        Ok(answering.parameters().to_bytes())
    }

    fn register(&mut self, handle: u32) -> Result<ToldRegion, OpError> {
        let region = self.region(handle)?.clone();
        let answering = self.answering.as_mut().ok_or(NO_DEVICE)?;
        let admit = || self.regions.admit(&region);
        let registered = answering.register(handle as usize, &region, admit);
        Ok(registered.map_err(|e| failure(&e))?.to_bytes())
    }

    fn disconnect(&mut self) {
        self.answering = None;
    }
}

/// Everything else is done without.
#[cfg(not(feature = "verbs"))]
impl<R: Regions> Server<'_, R> {
    fn connect(&self, _: &ConnectionParameters) -> Result<ToldConnection, OpError> {
        Err(NO_DEVICE)
    }

    fn register(&self, _: u32) -> Result<ToldRegion, OpError> {
        Err(NO_DEVICE)
    }

    fn disconnect(&self) {}
}

type ToldConnection = [u8; ConnectionParameters::LEN];
type ToldRegion = [u8; RegionParameters::LEN];

/// There is no device, and will be none on this connection.
const NO_DEVICE: OpError = OpError::System {
    errno: libc::EOPNOTSUPP,
};

#[cfg(feature = "verbs")]
fn failure(error: &std::io::Error) -> OpError {
    let errno = match error.kind() {
        std::io::ErrorKind::WouldBlock => libc::EAGAIN,
        _ => error.raw_os_error().unwrap_or(libc::EIO),
    };
    OpError::System { errno }
}

impl<R: Regions> Server<'_, R> {
    /// Replies with bytes, which are copied to where they are sent from.
    fn read(&mut self, handle: u32, offset: u64, len: u32) {
        let mut outgoing = std::mem::take(self.stream.outgoing());
        let start = outgoing.len();
        let bytes = start + Reply::LEN;
        outgoing.resize(bytes + len as usize, 0);
        let result = self.region(handle).and_then(|region| {
            let into = &mut outgoing[bytes..];
            read_whole(into, |into| region.read(offset, into))
        });
        if result.is_err() {
            outgoing.truncate(bytes);
        }
        let reply = self.reply(result.map(|()| 0), len);
        outgoing[start..bytes].copy_from_slice(&reply.to_bytes());
        *self.stream.outgoing() = outgoing;
    }

    /// Writes the bytes that follow the request at the front.
    fn write(&self, handle: u32, offset: u64, len: usize) -> Result<u64, OpError> {
        let region = self.region(handle)?;
        let data = &self.stream.incoming()[Request::LEN..][..len];
        write_whole(data, |bytes| region.write(offset, bytes))?;
        Ok(0)
    }
}
