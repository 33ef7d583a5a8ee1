//! One-sided operations over a connection: the initiating side.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::batch;
use super::handles::Handles;
use super::region::{Grant, RemoteRegion};
use super::stream::{Cut, Cutter, Stream};
use super::wire::{CHUNK, Malformed, Reply, Request};
use super::words::{read_whole, write_whole};
use crate::core::endpoint::{Completion, Endpoint, Operation, PostError, Read};
#[cfg(feature = "verbs")]
use crate::core::parameters::{ConnectionParameters, RegionParameters};
use crate::error::OpError;
use crate::key::{Access, Partition, RemoteKey};
use crate::mem::DropGuard;
use crate::mem::Status;
use crate::topology::NodeId;

/// How long a reply may take without a byte of any. It is longer than the far side waits for its
/// agent when it opens a region.
const PATIENCE: Duration = Duration::from_secs(15);

/// Room for replies that were received and not yet used: two of the longest.
const ROOM: usize = 2 * (Reply::LEN + CHUNK);

/// What is to be sent is sent when it is so much.
const ENOUGH: usize = CHUNK;

/// A queue pair over a connection to the peer's host.
///
/// Flushing sends what was posted, and takes what has come meanwhile when the connection is full.
/// Regions are opened on the connection when they are first used on it. Once it is cut, all ends
/// with [`OpError::Unreachable`], or with what the status says.
#[derive(Debug)]
pub struct QueuePair {
    pub(super) stream: Stream,
    peer: NodeId,
    partition: Partition,
    depth: usize,
    status: Arc<Status>,
    handles: Handles<Grant>,
    posted: VecDeque<(u64, Result<Operation<RemoteRegion>, OpError>)>,
    in_flight: VecDeque<InFlight>,
    /// Those of `in_flight` that end in a completion.
    operations: usize,
    completed: VecDeque<Completion>,
    /// Bytes of the region that was opened last, or why it was not.
    opened: Result<u64, OpError>,
    /// What was asked for last that is no operation, or why it is not there.
    #[cfg(feature = "verbs")]
    answer: Result<Vec<u8>, OpError>,
    /// Since when no reply has come, although some are due.
    silent: Instant,
    broken: Option<OpError>,
}

/// What waits for replies, or for those before it.
#[derive(Debug)]
enum InFlight {
    Operation(Sent),
    Open {
        handle: u32,
    },
    /// Something of the other side's device.
    #[cfg(feature = "verbs")]
    Question,
    /// It was never sent.
    Failed {
        id: u64,
        error: OpError,
    },
}

/// An operation that was sent, in parts of at most [`CHUNK`] bytes.
#[derive(Debug)]
struct Sent {
    id: u64,
    operation: Operation<RemoteRegion>,
    handle: u32,
    parts: u64,
    answered: u64,
    result: Result<u64, OpError>,
}

impl QueuePair {
    /// A queue pair to `peer` in `partition` for up to `depth` operations that are posted or not
    /// yet polled, over a connection to who [serves](super::serve::serve) there. When `status`
    /// ends, so does everything here.
    pub fn new(
        socket: impl Into<Arc<OwnedFd>>,
        peer: NodeId,
        partition: Partition,
        depth: usize,
        status: Arc<Status>,
    ) -> Self {
        QueuePair {
            stream: Stream::new(socket, ROOM),
            peer,
            partition,
            depth,
            status,
            handles: Handles::new(),
            posted: VecDeque::with_capacity(depth),
            in_flight: VecDeque::with_capacity(depth),
            operations: 0,
            completed: VecDeque::with_capacity(depth),
            opened: Ok(0),
            #[cfg(feature = "verbs")]
            answer: Ok(Vec::new()),
            silent: Instant::now(),
            broken: None,
        }
    }

    /// What ends it.
    pub fn status(&self) -> &Arc<Status> {
        &self.status
    }

    /// For the control thread: ends the connection, after the status has.
    pub fn cutter(&self) -> Cutter {
        self.stream.cutter()
    }

    /// Opens a region of the peer, and waits for the answer. `status` ends its use; `guard` is
    /// dropped with the last handle.
    ///
    /// # Errors
    /// What the far side says, and how the connection ended.
    pub fn open(
        &mut self,
        key: RemoteKey,
        access: Access,
        status: Arc<Status>,
        guard: Option<DropGuard>,
    ) -> Result<RemoteRegion, OpError> {
        if key.node != self.peer || key.partition != self.partition {
            return Err(OpError::WrongKey);
        }
        self.flush();
        let handle = self.send_open(key, access);
        self.settle();
        if let Some(error) = self.broken {
            return Err(error);
        }
        let grant = Arc::new(Grant {
            key,
            access,
            len: self.opened?,
            status,
            _guard: guard,
        });
        self.handles.assign(handle, &grant);
        Ok(RemoteRegion(grant))
    }

    /// Posts an operation, or what is to end with an error in its turn.
    pub(crate) fn post_checked(
        &mut self,
        id: u64,
        operation: Result<Operation<RemoteRegion>, OpError>,
    ) -> Result<(), PostError> {
        if self.posted.len() + self.operations + self.completed.len() >= self.depth {
            return Err(PostError::QueueFull { depth: self.depth });
        }
        self.posted.push_back((id, operation));
        Ok(())
    }

    /// Sends an operation; what cannot be sent is to end in its turn.
    fn launch(&mut self, id: u64, operation: Result<Operation<RemoteRegion>, OpError>) {
        self.operations += 1;
        let prepared = operation.and_then(|operation| {
            let handle = self.prepare(&operation)?;
            Ok((operation, handle))
        });
        match prepared {
            Ok((operation, handle)) => {
                let parts = parts(&operation);
                self.in_flight.push_back(InFlight::Operation(Sent {
                    id,
                    operation,
                    handle,
                    parts,
                    answered: 0,
                    result: Ok(0),
                }));
                self.send_parts(parts);
            }
            Err(error) => self.in_flight.push_back(InFlight::Failed { id, error }),
        }
    }

    /// Checks what this side knows; returns the handle of the region.
    fn prepare(&mut self, operation: &Operation<RemoteRegion>) -> Result<u32, OpError> {
        let (remote, offset, len) = target(operation);
        if let Operation::Read { into: local, .. } | Operation::Write { from: local, .. } =
            operation
        {
            local.check()?;
        }
        self.reach(remote, offset, len)
    }

    /// The handle of a region, which is opened when it is not yet.
    pub(super) fn reach(
        &mut self,
        remote: &RemoteRegion,
        offset: u64,
        len: u64,
    ) -> Result<u32, OpError> {
        let grant = &remote.0;
        if grant.key.node != self.peer || grant.key.partition != self.partition {
            return Err(OpError::WrongKey);
        }
        self.status.check()?;
        grant.status.check()?;
        self.broken.map_or(Ok(()), Err)?;
        if len > CHUNK as u64 {
            // The far side sees each part by itself, and a part must not be done when the whole
            // cannot be.
            within(offset, len, grant.len)?;
        }
        if let Some(handle) = self.handles.find(grant) {
            return Ok(handle);
        }
        let handle = self.send_open(grant.key, grant.access);
        self.handles.assign(handle, grant);
        Ok(handle)
    }

    fn send_open(&mut self, key: RemoteKey, access: Access) -> u32 {
        let outgoing = self.stream.outgoing();
        let handle = self
            .handles
            .vacate(|handle| outgoing.extend(Request::Close { handle }.to_bytes()));
        let open = Request::Open {
            handle,
            access,
            key,
        };
        outgoing.extend(open.to_bytes());
        self.in_flight.push_back(InFlight::Open { handle });
        handle
    }

    /// Sends the operation that was launched last.
    fn send_parts(&mut self, parts: u64) {
        for part in 0..parts {
            let Some(InFlight::Operation(sent)) = self.in_flight.back_mut() else {
                return;
            };
            if let Err(error) = sent.append_part(part, self.stream.outgoing()) {
                // The local side has ended. What was not sent will not be answered.
                sent.parts = part;
                sent.result = sent.result.and(Err(error));
                return;
            }
            if self.stream.unsent() >= ENOUGH {
                self.push_out();
            }
        }
    }

    /// Sends all that waits, and takes what comes meanwhile.
    pub(super) fn push_out(&mut self) {
        loop {
            match self.stream.push() {
                Ok(true) => return,
                Ok(false) => self.await_bytes(PATIENCE),
                Err(Cut) => {
                    // What came before may say more.
                    while self.pull() && !self.stream.is_full() {}
                    self.fail(OpError::Unreachable);
                }
            }
            if self.broken.is_some() {
                return;
            }
        }
    }

    /// Waits until all that is in flight has ended.
    pub(super) fn settle(&mut self) {
        self.push_out();
        self.take_replies();
        while !self.in_flight.is_empty() {
            self.await_bytes(PATIENCE);
        }
    }

    /// Takes what has come; if that is nothing, sleeps for a while.
    pub(super) fn await_bytes(&mut self, timeout: Duration) {
        if !self.pull() && self.broken.is_none() {
            let left = PATIENCE.saturating_sub(self.silent.elapsed());
            self.stream.sleep(true, timeout.min(left));
            if !self.pull() && self.silent.elapsed() >= PATIENCE {
                self.fail(OpError::Unreachable);
            }
        }
    }

    /// Takes what has come; returns whether that was anything.
    fn pull(&mut self) -> bool {
        if self.broken.is_some() {
            return false;
        }
        match self.stream.pull() {
            Ok(0) => false,
            Ok(_) => {
                self.silent = Instant::now();
                self.take_replies();
                true
            }
            Err(Cut) => {
                self.fail(OpError::Unreachable);
                false
            }
        }
    }

    /// Brings replies to what waits for them.
    fn take_replies(&mut self) {
        if let Err(Malformed) = self.try_take_replies() {
            self.fail(OpError::Corrupt);
        }
    }

    fn try_take_replies(&mut self) -> Result<(), Malformed> {
        loop {
            self.complete_answered();
            let Some(first) = self.in_flight.front_mut() else {
                return Ok(());
            };
            let Some((reply, data)) = split_reply(self.stream.incoming())? else {
                return Ok(());
            };
            let used = Reply::LEN + data.len();
            match first {
                InFlight::Operation(sent) => sent.answer(reply, data)?,
                InFlight::Open { handle } => {
                    let handle = *handle;
                    self.opened = region_len(reply)?;
                    if self.opened.is_err() {
                        self.handles.forget(handle);
                    }
                    self.in_flight.pop_front();
                }
                #[cfg(feature = "verbs")]
                InFlight::Question => {
                    self.answer = answered(reply, data)?;
                    self.in_flight.pop_front();
                }
                InFlight::Failed { .. } => {}
            }
            self.stream.consume(used);
        }
    }

    /// Completes what is first and waits for nothing.
    fn complete_answered(&mut self) {
        while let Some(first) = self.in_flight.front() {
            let (id, result) = match first {
                InFlight::Operation(sent) if sent.answered < sent.parts => return,
                InFlight::Operation(sent) => (sent.id, sent.outcome(&self.status)),
                InFlight::Failed { id, error } => (*id, Err(*error)),
                InFlight::Open { .. } => return,
                #[cfg(feature = "verbs")]
                InFlight::Question => return,
            };
            self.in_flight.pop_front();
            self.complete(id, result);
        }
    }

    fn complete(&mut self, id: u64, result: Result<u64, OpError>) {
        self.operations -= 1;
        self.completed.push_back(Completion { id, result });
    }

    /// Ends the connection and all that waits for it.
    pub(super) fn fail(&mut self, error: OpError) {
        let error = self.status.check().err().unwrap_or(error);
        let error = *self.broken.get_or_insert(error);
        self.stream.cutter().cut();
        self.stream.forget_outgoing();
        while let Some(first) = self.in_flight.pop_front() {
            match first {
                InFlight::Operation(sent) => self.complete(sent.id, sent.result.and(Err(error))),
                InFlight::Failed { id, error } => self.complete(id, Err(error)),
                InFlight::Open { .. } => {}
                #[cfg(feature = "verbs")]
                InFlight::Question => {}
            }
        }
    }

    /// How the connection has ended, if it has.
    pub(crate) fn end(&self) -> Result<(), OpError> {
        self.status.check()?;
        self.broken.map_or(Ok(()), Err)
    }

    /// Reads of anything that leads to a region of ours, see [`Endpoint::read_batch`].
    pub(crate) fn read_each<R>(
        &mut self,
        reads: &mut [Read<'_, R>],
        region: impl Fn(&R) -> Result<&RemoteRegion, OpError>,
    ) -> Result<(), OpError> {
        self.flush();
        self.settle();
        batch::read(self, reads, region)
    }
}

/// What concerns the other side's RDMA device.
#[cfg(feature = "verbs")]
impl QueuePair {
    pub(crate) fn peer_and_partition(&self) -> (NodeId, Partition) {
        (self.peer, self.partition)
    }

    pub(crate) fn depth(&self) -> usize {
        self.depth
    }

    /// Whether the right to do something has ended.
    pub(crate) fn end_of(&self, operation: &Operation<RemoteRegion>) -> Result<(), OpError> {
        self.status.check()?;
        target(operation).0.0.status.check()
    }

    /// Connects the other side's device with a queue pair of ours, and waits for the answer.
    pub(crate) fn connect(
        &mut self,
        ours: ConnectionParameters,
    ) -> Result<ConnectionParameters, OpError> {
        let answer = self.ask(Request::Connect(ours))?;
        let theirs = answer.first_chunk().map(ConnectionParameters::from_bytes);
        match theirs {
            Some(Ok(theirs)) if answer.len() == ConnectionParameters::LEN => Ok(theirs),
            _ => Err(self.breach()),
        }
    }

    /// Under which handle a region is open at the other side, if it is.
    pub(crate) fn handle_of(&self, remote: &RemoteRegion) -> Option<u32> {
        self.handles.find(&remote.0)
    }

    /// Lets that queue pair use a region, and waits for the answer.
    pub(crate) fn register(&mut self, remote: &RemoteRegion) -> Result<RegionParameters, OpError> {
        self.flush();
        let handle = self.reach(remote, 0, 0)?;
        let answer = self.ask(Request::Register { handle })?;
        let told = answer.first_chunk().map(RegionParameters::from_bytes);
        match told {
            Some(Ok(told))
                if answer.len() == RegionParameters::LEN
                    && (told.key, told.len) == (remote.key(), remote.len())
                    && remote.access().contains(told.access) =>
            {
                Ok(told)
            }
            _ => Err(self.breach()),
        }
    }

    /// Has that queue pair reach nothing more, before anything that is sent from now on is executed.
    pub(crate) fn disconnect(&mut self) {
        if self.broken.is_none() {
            let bytes = Request::Disconnect.to_bytes();
            self.stream.outgoing().extend(bytes);
            self.push_out();
        }
    }

    fn ask(&mut self, request: Request) -> Result<Vec<u8>, OpError> {
        self.flush();
        self.end()?;
        self.stream.outgoing().extend(request.to_bytes());
        self.in_flight.push_back(InFlight::Question);
        self.settle();
        self.end()?;
        std::mem::replace(&mut self.answer, Ok(Vec::new()))
    }

    fn breach(&mut self) -> OpError {
        self.fail(OpError::Corrupt);
        OpError::Corrupt
    }
}

impl Endpoint for QueuePair {
    type Remote = RemoteRegion;

    fn peer(&self) -> NodeId {
        self.peer
    }

    fn partition(&self) -> Partition {
        self.partition
    }

    fn post(&mut self, id: u64, operation: Operation<RemoteRegion>) -> Result<(), PostError> {
        self.post_checked(id, Ok(operation))
    }

    fn flush(&mut self) {
        if self.in_flight.is_empty() {
            self.silent = Instant::now();
        }
        while let Some((id, operation)) = self.posted.pop_front() {
            self.launch(id, operation);
        }
        self.push_out();
        self.take_replies();
    }

    fn poll(&mut self, into: &mut [Completion]) -> usize {
        if self.completed.is_empty() && !self.in_flight.is_empty() {
            self.await_bytes(Duration::ZERO);
        }
        let count = into.len().min(self.completed.len());
        for (slot, completion) in into.iter_mut().zip(self.completed.drain(..count)) {
            *slot = completion;
        }
        count
    }

    fn wait(&mut self, timeout: Duration) -> bool {
        let start = Instant::now();
        while self.completed.is_empty() && !self.in_flight.is_empty() {
            let left = timeout.saturating_sub(start.elapsed());
            self.await_bytes(left);
            if left.is_zero() {
                break;
            }
        }
        !self.completed.is_empty()
    }

    fn read_batch(&mut self, reads: &mut [Read<'_, RemoteRegion>]) -> Result<(), OpError> {
        self.read_each(reads, |remote| Ok(remote))
    }
}

impl Sent {
    /// Bytes of the whole.
    fn len(&self) -> u64 {
        target(&self.operation).2
    }

    /// Appends a part to what is to be sent.
    fn append_part(&self, part: u64, outgoing: &mut Vec<u8>) -> Result<(), OpError> {
        outgoing.extend(self.request(part).to_bytes());
        let Operation::Write { from, .. } = &self.operation else {
            return Ok(());
        };
        let start = outgoing.len();
        let (first, len) = (part * CHUNK as u64, part_len(self.len(), part));
        let mut pieces = from.part(first, len as u64);
        let copied = pieces.try_for_each(|(region, offset, len)| {
            let end = outgoing.len();
            outgoing.resize(end + len as usize, 0);
            read_whole(&mut outgoing[end..], |bytes| region.read(offset, bytes))
        });
        copied.inspect_err(|_| outgoing.truncate(start - Request::LEN))
    }

    fn request(&self, part: u64) -> Request {
        let handle = self.handle;
        let skipped = part * CHUNK as u64;
        match self.operation {
            Operation::Read { offset, .. } => Request::Read {
                handle,
                offset: offset + skipped,
                len: part_len(self.len(), part) as u32,
                is_linked: part > 0,
            },
            Operation::Write { offset, .. } => Request::Write {
                handle,
                offset: offset + skipped,
                len: part_len(self.len(), part) as u32,
                is_linked: part > 0,
            },
            Operation::CompareAndSwap {
                offset,
                expected,
                desired,
                ..
            } => Request::CompareAndSwap {
                handle,
                offset,
                expected,
                desired,
            },
            Operation::FetchAdd { offset, add, .. } => Request::FetchAdd {
                handle,
                offset,
                add,
            },
        }
    }

    /// Takes the reply to the next part.
    fn answer(&mut self, reply: Reply, data: &[u8]) -> Result<(), Malformed> {
        let part = self.answered;
        self.answered += 1;
        match reply {
            Reply::Done { value, .. } => self.done(part, value, data),
            Reply::Failed(failure) if data.is_empty() => {
                let (_, offset, len) = target(&self.operation);
                self.result = self.result.and(Err(failure.error(offset, len)));
                Ok(())
            }
            Reply::Skipped if self.result.is_err() => Ok(()),
            _ => Err(Malformed),
        }
    }

    fn done(&mut self, part: u64, value: u64, data: &[u8]) -> Result<(), Malformed> {
        match &self.operation {
            Operation::Read { into, .. } if data.len() == part_len(self.len(), part) => {
                let mut rest = data;
                let mut pieces = into.part(part * CHUNK as u64, data.len() as u64);
                let copied = pieces.try_for_each(|(region, offset, len)| {
                    let (piece, behind) = rest.split_at(len as usize);
                    rest = behind;
                    write_whole(piece, |bytes| region.write(offset, bytes))
                });
                self.result = self.result.and(copied.map(|()| self.len()));
            }
            Operation::Write { .. } if data.is_empty() => {
                self.result = self.result.and(Ok(self.len()));
            }
            Operation::CompareAndSwap { .. } | Operation::FetchAdd { .. } if data.is_empty() => {
                self.result = self.result.and(Ok(value));
            }
            _ => return Err(Malformed),
        }
        Ok(())
    }

    /// What came of it. It is no success if the right has ended meanwhile.
    fn outcome(&self, status: &Status) -> Result<u64, OpError> {
        status.check()?;
        target(&self.operation).0.0.status.check()?;
        self.result
    }
}

/// The first reply in these bytes, and what follows it, if all of it is there.
pub(super) fn split_reply(bytes: &[u8]) -> Result<Option<(Reply, &[u8])>, Malformed> {
    let Some((head, rest)) = bytes.split_first_chunk() else {
        return Ok(None);
    };
    let reply = Reply::from_bytes(head)?;
    Ok(rest.get(..reply.data_len()).map(|data| (reply, data)))
}

#[cfg(feature = "verbs")]
fn answered(reply: Reply, data: &[u8]) -> Result<Result<Vec<u8>, OpError>, Malformed> {
    match reply {
        Reply::Done { value: 0, .. } => Ok(Ok(data.to_vec())),
        Reply::Failed(failure) => Ok(Err(failure.error(0, 0))),
        _ => Err(Malformed),
    }
}

fn region_len(reply: Reply) -> Result<Result<u64, OpError>, Malformed> {
    match reply {
        Reply::Done { value, len: 0 } => Ok(Ok(value)),
        Reply::Failed(failure) => Ok(Err(failure.error(0, 0))),
        _ => Err(Malformed),
    }
}

/// The region, the first byte and the bytes of an operation.
fn target(operation: &Operation<RemoteRegion>) -> (&RemoteRegion, u64, u64) {
    match operation {
        Operation::Read {
            remote,
            offset,
            into: local,
        }
        | Operation::Write {
            remote,
            offset,
            from: local,
        } => (remote, *offset, local.len()),
        Operation::CompareAndSwap { remote, offset, .. }
        | Operation::FetchAdd { remote, offset, .. } => (remote, *offset, 8),
    }
}

/// How many requests an operation takes.
fn parts(operation: &Operation<RemoteRegion>) -> u64 {
    target(operation).2.div_ceil(CHUNK as u64).max(1)
}

/// Bytes of a part of `len` bytes.
pub(super) fn part_len(len: u64, part: u64) -> usize {
    let left = len.saturating_sub(part * CHUNK as u64);
    left.min(CHUNK as u64) as usize
}

fn within(offset: u64, len: u64, limit: u64) -> Result<(), OpError> {
    if offset.checked_add(len).is_some_and(|end| end <= limit) {
        Ok(())
    } else {
        Err(OpError::OutOfBounds { offset, len, limit })
    }
}
