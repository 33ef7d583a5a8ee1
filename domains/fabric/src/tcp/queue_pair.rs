//! One-sided operations over a connection: the initiating side.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::batch;
use super::handles::Handles;
use super::in_flight::{self, InFlight, Sent, split_reply, target};
use super::region::{Grant, RemoteRegion};
use super::secure::Connection;
use super::stream::{Cut, Cutter, Stream};
use super::wire::{CHUNK, Malformed, Reply, Request};
use crate::core::endpoint::{AsRegion, Completion, Endpoint, Operation, Pending, PostError, Read};
use crate::error::OpError;
use crate::key::{Access, Partition, RemoteKey};
use crate::mem::DropGuard;
use crate::mem::Status;
use crate::model::Nanos;
use crate::os::thread::monotonic;
use crate::topology::NodeId;

/// Reply timeout: the longest time without a byte of any reply. Longer than the peer's host waits for
/// its agent when it opens a region.
const REPLY_TIMEOUT: Duration = Duration::from_secs(15);

/// Bytes of received replies that are not yet processed: two of the longest.
const ROOM: usize = 2 * (Reply::LEN + CHUNK);

/// Outgoing bytes are sent once there are this many.
const ENOUGH: usize = CHUNK;

/// A queue pair over a connection to the peer's host.
///
/// A flush sends posted operations, and takes replies while the connection is full. A region is opened
/// on the connection when it is first used there. Once the connection is cut, all operations end with
/// [`OpError::Unreachable`], or with the error of the status.
#[derive(Debug)]
pub struct QueuePair<R = RemoteRegion> {
    pub(super) stream: Stream,
    pub(super) peer: NodeId,
    pub(super) partition: Partition,
    pub(super) depth: usize,
    pub(super) status: Arc<Status>,
    pub(super) handles: Handles<Grant>,
    posted: VecDeque<(u64, Operation<R>)>,
    pub(super) in_flight: VecDeque<InFlight>,
    /// Elements of `in_flight` that end in a completion.
    operations: usize,
    completed: VecDeque<Completion>,
    /// Bytes of the region that was opened last, or the error.
    opened: Result<u64, OpError>,
    /// The last reply to a question that is no operation, or the error.
    pub(super) answer: Result<Vec<u8>, OpError>,
    /// The last time that a byte came or no reply was due.
    silent: Instant,
    pub(super) broken: Option<OpError>,
}

impl<R> QueuePair<R> {
    /// A queue pair to `peer` in `partition` for up to `depth` operations that are posted or not
    /// yet polled, over a connection whose other end [serves](super::serve::serve) it. All operations
    /// end with `status`.
    pub fn new(
        connection: impl Into<Connection>,
        peer: NodeId,
        partition: Partition,
        depth: usize,
        status: Arc<Status>,
    ) -> Self {
        QueuePair {
            stream: Stream::new(connection, ROOM),
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
            answer: Ok(Vec::new()),
            silent: Instant::now(),
            broken: None,
        }
    }

    /// Operations that the queue holds at most, and now.
    pub(crate) fn room(&self) -> (usize, usize) {
        let used = self.posted.len() + self.operations + self.completed.len();
        (self.depth, used)
    }

    /// The status that ends the queue pair.
    pub fn status(&self) -> &Arc<Status> {
        &self.status
    }

    /// Ends the connection: for the control thread, after it has ended the status.
    pub fn cutter(&self) -> Cutter {
        self.stream.cutter()
    }
}

impl<R: AsRegion<RemoteRegion>> QueuePair<R> {
    /// Opens a region of the peer, and waits for the answer. `status` ends its use; `guard` is
    /// dropped with the last handle.
    ///
    /// # Errors
    /// That of the peer's host; how the connection ended.
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

    /// Sends an operation. One that cannot be sent ends with an error in its turn.
    fn launch(&mut self, id: u64, operation: Operation<R>) {
        self.operations += 1;
        let operation = operation.on(|remote| remote.as_region().cloned());
        let prepared = operation.and_then(|operation| {
            let handle = self.prepare(&operation)?;
            Ok((operation, handle))
        });
        match prepared {
            Ok((operation, handle)) => {
                let parts = in_flight::parts(&operation);
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

    /// Makes the checks of the initiating side; returns the handle of the region.
    fn prepare(&mut self, operation: &Operation<RemoteRegion>) -> Result<u32, OpError> {
        let (remote, offset, len) = target(operation);
        if let Operation::Read { into: local, .. } | Operation::Write { from: local, .. } =
            operation
        {
            local.check()?;
        }
        self.reach(remote, offset, len)
    }

    /// The handle of a region, which is opened first if needed.
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
            // The peer's host checks each part by itself, and no part must be executed if the whole
            // is out of bounds.
            in_flight::within(offset, len, grant.len)?;
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
                // The local region has ended. Parts that were not sent get no reply.
                sent.parts = part;
                sent.result = sent.result.and(Err(error));
                return;
            }
            if self.stream.unsent() >= ENOUGH {
                self.push_out();
            }
        }
    }

    /// Sends all outgoing bytes, and takes replies meanwhile.
    pub(super) fn push_out(&mut self) {
        loop {
            match self.stream.push() {
                Ok(true) => return,
                Ok(false) => self.await_bytes(REPLY_TIMEOUT),
                Err(Cut) => {
                    // Replies that came before may tell more.
                    while self.broken.is_none() && !self.stream.is_full() {
                        match self.stream.pull() {
                            Ok(0) => break,
                            pulled => self.take(pulled),
                        }
                    }
                    self.fail(OpError::Unreachable);
                }
            }
            if self.broken.is_some() {
                return;
            }
        }
    }

    /// Waits until nothing is in flight.
    pub(super) fn settle(&mut self) {
        self.push_out();
        self.take_replies();
        while !self.in_flight.is_empty() {
            self.await_bytes(REPLY_TIMEOUT);
        }
    }

    /// Takes replies; waits up to `timeout` if there are none.
    pub(super) fn await_bytes(&mut self, timeout: Duration) {
        if self.broken.is_some() {
            return;
        }
        let left = REPLY_TIMEOUT.saturating_sub(self.silent.elapsed());
        match self.stream.pull_within(timeout.min(left)) {
            Ok(0) if self.silent.elapsed() >= REPLY_TIMEOUT => self.fail(OpError::Unreachable),
            pulled => self.take(pulled),
        }
    }

    /// Takes what was pulled from the stream.
    fn take(&mut self, pulled: Result<usize, Cut>) {
        match pulled {
            Ok(0) => {}
            Ok(_) => {
                self.silent = Instant::now();
                self.take_replies();
            }
            Err(Cut) => {
                let has_fault = self.stream.has_fault();
                self.fail(if has_fault {
                    OpError::Corrupt
                } else {
                    OpError::Unreachable
                });
            }
        }
    }

    /// Matches replies with the requests in flight.
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
                    self.opened = in_flight::region_len(reply)?;
                    if self.opened.is_err() {
                        self.handles.forget(handle);
                    }
                    self.in_flight.pop_front();
                }
                InFlight::Question => {
                    self.answer = in_flight::answer(reply, data)?;
                    self.in_flight.pop_front();
                }
                InFlight::Failed { .. } => {}
            }
            self.stream.consume(used);
        }
    }

    /// Completes operations at the front that wait for no reply.
    fn complete_answered(&mut self) {
        while let Some(first) = self.in_flight.front() {
            let (id, result) = match first {
                InFlight::Operation(sent) if sent.answered < sent.parts => return,
                InFlight::Operation(sent) => (sent.id, sent.outcome(&self.status)),
                InFlight::Failed { id, error } => (*id, Err(*error)),
                InFlight::Open { .. } | InFlight::Question => return,
            };
            self.in_flight.pop_front();
            self.complete(id, result);
        }
    }

    fn complete(&mut self, id: u64, result: Result<u64, OpError>) {
        self.operations -= 1;
        self.completed.push_back(Completion { id, result });
    }

    /// Ends the connection and everything in flight.
    pub(super) fn fail(&mut self, error: OpError) {
        let error = self.status.check().err().unwrap_or(error);
        let error = *self.broken.get_or_insert(error);
        self.stream.cutter().cut();
        self.stream.forget_outgoing();
        while let Some(first) = self.in_flight.pop_front() {
            match first {
                InFlight::Operation(sent) => self.complete(sent.id, sent.result.and(Err(error))),
                InFlight::Failed { id, error } => self.complete(id, Err(error)),
                InFlight::Open { .. } | InFlight::Question => {}
            }
        }
    }

    /// Checks whether access or the connection has ended.
    ///
    /// # Errors
    /// How it ended.
    pub fn end(&self) -> Result<(), OpError> {
        self.status.check()?;
        self.broken.map_or(Ok(()), Err)
    }
}

impl<R: AsRegion<RemoteRegion>> Endpoint for QueuePair<R> {
    type Remote = R;

    fn peer(&self) -> NodeId {
        self.peer
    }

    fn partition(&self) -> Partition {
        self.partition
    }

    fn post(&mut self, id: u64, operation: Operation<R>) -> Result<(), PostError> {
        let (depth, used) = self.room();
        if used >= depth {
            return Err(PostError::QueueFull { depth });
        }
        self.posted.push_back((id, operation));
        Ok(())
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

    fn pending(&mut self, _sleeps: bool) -> Pending {
        if !self.completed.is_empty() {
            return Pending::Look;
        }
        if self.in_flight.is_empty() {
            return Pending::Nothing;
        }
        let left = REPLY_TIMEOUT.saturating_sub(self.silent.elapsed());
        Pending::Event {
            fd: self.stream.socket(),
            until: monotonic() + left.as_nanos() as Nanos,
        }
    }

    fn read_batch(&mut self, reads: &mut [Read<'_, R>]) -> Result<(), OpError> {
        self.flush();
        self.settle();
        batch::read(self, reads)
    }
}
