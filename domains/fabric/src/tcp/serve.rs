//! One-sided operations over a connection: the serving side, which stands for the network card.

use std::fmt::Debug;
use std::io;
use std::time::Duration;

use super::secure::Connection;
use super::stream::{Cut, Stream};
use super::wire::{CHUNK, Failure, Malformed, Reply, Request, Transfer};
use super::words::{read_whole, write_whole};
use crate::core::mapped::Mapped;
use crate::core::parameters::{ConnectionParameters, RegionParameters};
use crate::error::OpError;
use crate::key::{Access, RemoteKey};
use crate::mem::DropGuard;
use crate::shm::RemoteRegion;

/// Bytes of received requests that are not yet executed: two of the longest.
const ROOM: usize = 2 * (Request::LEN + CHUNK);

/// Replies are sent once there are this many bytes, or no request is left.
const ENOUGH: usize = CHUNK;

/// The longest sleep. The socket options limit how long a connection may be silent.
const LONG: Duration = Duration::from_secs(3600);

/// A region that was opened for the other side, with a guard that is dropped when it is closed.
#[derive(Debug)]
pub struct Opened {
    region: RemoteRegion,
    _guard: Option<DropGuard>,
}

impl Opened {
    /// A region that `guard` charges to the other side.
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

/// Opens regions for the other side.
pub trait Regions {
    /// Opens a region with the rights of the other side's node.
    ///
    /// # Errors
    /// [`OpError`], which the other side gets.
    fn open(&self, key: RemoteKey, access: Access) -> Result<Opened, OpError>;

    /// Returns when a request may be executed. By default that is at once.
    fn await_turn(&self) {}

    /// Charges a request of so many bytes, with those that it reads or writes, to the other side's
    /// node. `None` if it may be executed; otherwise nothing was charged, and the request is tried
    /// again after this time. By default no request waits.
    fn take(&self, bytes: usize) -> Option<Duration> {
        let _ = bytes;
        None
    }

    /// Connects an RDMA device of this host with the other side's queue pair, which may then reach
    /// registered regions without this process. By default there is no device.
    ///
    /// # Errors
    /// The system's; `EOPNOTSUPP` where there is no device, and will be none.
    fn connect_device(&self, peer: &ConnectionParameters) -> io::Result<Box<dyn DeviceTarget>> {
        let _ = peer;
        Err(io::Error::from_raw_os_error(NO_DEVICE))
    }

    /// Charges a registration of `region` with a device, until the guard is dropped. `None` if a
    /// limit is reached.
    fn admit(&self, region: &RemoteRegion) -> Option<DropGuard> {
        let _ = region;
        None
    }
}

/// An RDMA device of this host, connected with a queue pair of the other side.
pub trait DeviceTarget: Debug {
    /// Parameters that the other side needs to connect.
    fn parameters(&self) -> ConnectionParameters;

    /// Registers the region that is open under `handle`, once `admit` has charged it.
    ///
    /// # Errors
    /// The system's; [`WouldBlock`](io::ErrorKind::WouldBlock) to try again later.
    fn register(
        &mut self,
        handle: usize,
        region: &RemoteRegion,
        admit: &mut dyn FnMut() -> Option<DropGuard>,
    ) -> io::Result<RegionParameters>;

    /// Ends the registration of the region under `handle`, if there is one.
    fn forget(&mut self, handle: usize);
}

/// Executes the requests of the other side of a connection, until that ends.
///
/// Requests are executed in order, each with the rights that its region has at that moment. The other
/// side may be malicious: a request that is not permitted gets an error. While the other side reads no
/// replies, no request is executed.
///
/// # Errors
/// [`Malformed`] when the other side breaks the protocol; the connection is cut. The
/// [fault](Connection::fault) tells of records that did not open.
pub fn serve(connection: impl Into<Connection>, regions: &impl Regions) -> Result<(), Malformed> {
    let mut server = Server {
        stream: Stream::new(connection, ROOM),
        regions,
        opened: Vec::new(),
        has_failed: false,
        device: None,
    };
    loop {
        let executed = server.execute_received();
        if executed == Err(Stop::Cut) || server.send_all() == Err(Cut) {
            return Ok(());
        }
        if executed == Err(Stop::Malformed) {
            return Err(Malformed);
        }
        if server.stream.pull_within(LONG) == Err(Cut) {
            return Ok(());
        }
    }
}

/// Why no further request is executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stop {
    /// The connection has ended.
    Cut,
    /// The other side has broken the protocol.
    Malformed,
}

struct Server<'a, R> {
    stream: Stream,
    regions: &'a R,
    /// Regions by handle; `None` is closed.
    opened: Vec<Option<Result<Opened, OpError>>>,
    /// Whether the last request failed.
    has_failed: bool,
    /// The device that the other side's queue pair is connected with.
    device: Option<Box<dyn DeviceTarget>>,
}

impl<R: Regions> Server<'_, R> {
    /// Executes requests that were received completely, until the connection has ended.
    fn execute_received(&mut self) -> Result<(), Stop> {
        loop {
            let incoming = self.stream.incoming();
            let Some((head, rest)) = incoming.split_first_chunk() else {
                return Ok(());
            };
            let request = Request::from_bytes(head).map_err(|Malformed| Stop::Malformed)?;
            if rest.len() < request.data_len() {
                return Ok(());
            }
            let bytes = Request::LEN + request.data_len() + request.wanted();
            self.await_rate(bytes).map_err(|Cut| Stop::Cut)?;
            self.regions.await_turn();
            self.execute(request);
            self.stream.consume(Request::LEN + request.data_len());
            if self.stream.unsent() >= ENOUGH {
                self.send_all().map_err(|Cut| Stop::Cut)?;
            }
        }
    }

    /// Charges a request as soon as the other side's node may go on. A side that has gone waits no
    /// longer: its request must neither delay others of the node nor have an effect late.
    fn await_rate(&mut self, bytes: usize) -> Result<(), Cut> {
        while let Some(time) = self.regions.take(bytes) {
            // Replies that wait here would let the other side time out.
            self.stream.push()?;
            if self.stream.hangs_up_within(time) {
                return Err(Cut);
            }
        }
        Ok(())
    }

    fn send_all(&mut self) -> Result<(), Cut> {
        while !self.stream.push()? {
            // Nothing is received meanwhile: a peer that reads no replies gets no more work done.
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
            Request::Close { handle } => return self.close(handle as usize),
            Request::Connect(parameters) => {
                let connected = self.connect(&parameters);
                return self.reply_with(connected);
            }
            Request::Register { handle } => {
                let registered = self.register(handle);
                return self.reply_with(registered);
            }
            Request::Disconnect => {
                self.device = None;
                return;
            }
            Request::Read(transfer) => return self.read(transfer),
            Request::Write(transfer) => self.write(transfer),
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
        // The previous region is closed first: the other side may be at a limit.
        self.close(handle);
        let opened = self.regions.open(key, access);
        let len = opened
            .as_ref()
            .map(|opened| opened.region.len())
            .map_err(|error| *error);
        self.opened[handle] = Some(opened);
        len
    }

    fn close(&mut self, handle: usize) {
        if let Some(device) = &mut self.device {
            device.forget(handle);
        }
        if let Some(slot) = self.opened.get_mut(handle) {
            *slot = None;
        }
    }

    fn connect(
        &mut self,
        peer: &ConnectionParameters,
    ) -> Result<[u8; ConnectionParameters::LEN], OpError> {
        // With its registrations.
        self.device = None;
        let device = self.regions.connect_device(peer);
        let device = self.device.insert(device.map_err(|e| failure(&e))?);
        Ok(device.parameters().to_bytes())
    }

    fn register(&mut self, handle: u32) -> Result<[u8; RegionParameters::LEN], OpError> {
        let region = self.region(handle)?.clone();
        let no_device = OpError::System { errno: NO_DEVICE };
        let device = self.device.as_mut().ok_or(no_device)?;
        let mut admit = || self.regions.admit(&region);
        let registered = device.register(handle as usize, &region, &mut admit);
        Ok(registered.map_err(|e| failure(&e))?.to_bytes())
    }

    /// Replies with parameters of a device.
    fn reply_with<const N: usize>(&mut self, parameters: Result<[u8; N], OpError>) {
        let reply = self.reply(parameters.map(|_| 0), N as u32);
        let outgoing = self.stream.outgoing();
        outgoing.extend(reply.to_bytes());
        outgoing.extend(parameters.into_iter().flatten());
    }

    /// Replies with bytes of a region, copied into the outgoing bytes.
    fn read(&mut self, transfer: Transfer) {
        let Transfer { offset, len, .. } = transfer;
        let mut outgoing = std::mem::take(self.stream.outgoing());
        let start = outgoing.len();
        let bytes = start + Reply::LEN;
        outgoing.resize(bytes + len as usize, 0);
        let result = self.region(transfer.handle).and_then(|region| {
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
    fn write(&self, transfer: Transfer) -> Result<u64, OpError> {
        let region = self.region(transfer.handle)?;
        let data = &self.stream.incoming()[Request::LEN..][..transfer.len as usize];
        write_whole(data, |bytes| region.write(transfer.offset, bytes))?;
        Ok(0)
    }
}

/// There is no device, and will be none on this connection.
const NO_DEVICE: i32 = libc::EOPNOTSUPP;

fn failure(error: &io::Error) -> OpError {
    let errno = match error.kind() {
        io::ErrorKind::WouldBlock => libc::EAGAIN,
        _ => error.raw_os_error().unwrap_or(libc::EIO),
    };
    OpError::System { errno }
}
