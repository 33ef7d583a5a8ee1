//! One-sided operations that a device executes.
//!
//! Posted operations wait here for a flush. A flush posts them as requests, as many together as the
//! send queue has room for; the rest follows as requests end. A transfer longer than the longest
//! message becomes several requests. Only every 32nd request of a batch and its last are signalled:
//! requests end in order, so a completion also stands for all requests before it, and a failure
//! always has one. The completion queue has an entry for every request, so it cannot overrun.
//!
//! A device keeps the order that [`Endpoint`] promises, except behind a read or an atomic. So
//! writes are held back here until earlier reads and atomics have ended, and atomics until earlier
//! reads have. `IBV_SEND_FENCE` asks the device for this, but a request with that flag can wait for
//! ever at the emulated device of Linux 6.1, which loses a wake-up that comes during its check.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ibverbs_sys as ffi;

use super::chain::{Action, Chain, WorkRequest};
use super::completion::{Counters, operation_error, status_of};
use super::connection::{Closer, Connection};
use super::control::ProtectionDomain;
use super::objects::{CompletionQueue, Local};
use super::region::{RemoteRegion, Route};
use super::requests::{Request, Requests};
use super::steps::{Keys, Step, Steps, system};
use super::window::{Piece, Position, Window};
use crate::core::endpoint::{
    Completion, Endpoint, LOOK_INTERVAL, Operation, Pending, PostError, Read,
};
use crate::core::region::Region;
use crate::error::OpError;
use crate::key::{Access, Partition};
use crate::mem::status::Status;
use crate::model::Nanos;
use crate::os::thread::monotonic;
use crate::topology::NodeId;

/// Polling time before a sleep: about the cost of sleeping.
const SPIN: Duration = Duration::from_micros(10);

/// Bytes of the registered buffer of [`Endpoint::read_batch`].
const BOUNCE: u64 = 64 * 1024;

/// Interval of signalled requests.
const SIGNAL_EVERY: usize = 32;

/// Requests of a queue pair beyond one for each operation: for batches and parts of transfers.
const SPARE_REQUESTS: usize = 64;

/// A queue pair on `verbs`.
#[derive(Debug)]
pub struct QueuePair {
    /// First: the device uses no memory when the rest is dropped.
    connection: Connection,
    completions: CompletionQueue,
    /// A copy of its descriptor for an epoll(7), once that was asked for.
    event_fd: Option<Arc<OwnedFd>>,
    /// Whether an event was requested that nothing has taken.
    is_armed: bool,
    steps: Steps,
    status: Arc<Status>,
    depth: usize,
    /// Operations that have not been polled, oldest first.
    operations: VecDeque<Slot>,
    /// Number of the oldest.
    oldest: u64,
    /// Count of flushed operations among them.
    flushed: usize,
    /// Count of operations that need no more requests.
    handed: usize,
    /// Bytes of the next operation that requests cover.
    done: u64,
    requests: Requests,
    chain: Chain,
    scratch: Scratch,
    /// Result of all operations after a failure.
    broken: Option<OpError>,
    /// The first error of the present batch of reads.
    batch_error: Option<OpError>,
    counters: Counters,
}

/// An operation that has not been polled.
#[derive(Debug)]
struct Slot {
    id: u64,
    /// Keeps the memory that the device uses alive.
    operation: Operation<RemoteRegion>,
    result: Option<Result<u64, OpError>>,
}

impl QueuePair {
    /// A queue pair over `connection`. An error drops the connection before `completions`.
    pub(super) fn new(
        completions: CompletionQueue,
        connection: Connection,
        domain: &Arc<ProtectionDomain>,
        route: Route,
        depth: usize,
        status: Arc<Status>,
    ) -> io::Result<Self> {
        let room = Self::requests_for(depth);
        let steps = Steps {
            route,
            keys: Keys::new(domain),
            most_locals: domain.device().most_locals,
            longest: domain.device().longest_message,
        };
        Ok(QueuePair {
            scratch: Scratch::new(domain, depth)?,
            connection,
            completions,
            event_fd: None,
            is_armed: false,
            steps,
            status,
            depth,
            operations: VecDeque::with_capacity(depth),
            oldest: 0,
            flushed: 0,
            handed: 0,
            done: 0,
            requests: Requests::with_room(room),
            chain: Chain::with_capacity(room, domain.device().most_locals),
            broken: None,
            batch_error: None,
            counters: Counters::default(),
        })
    }

    /// Length of the send queue.
    pub(super) fn requests_for(depth: usize) -> usize {
        depth + SPARE_REQUESTS
    }

    /// Counters since the beginning.
    pub fn counters(&self) -> Counters {
        Counters {
            lookups: self.steps.keys.lookups,
            ..self.counters
        }
    }

    /// Ends requests in flight: for the control thread, after the status has changed.
    pub fn closer(&self) -> Closer {
        self.connection.closer()
    }

    /// Makes requests of flushed operations while there is room, and posts them together.
    fn hand_over(&mut self) {
        self.look_at_status();
        if let Some(error) = self.broken {
            while self.handed < self.flushed {
                self.ends_unasked(Err(error));
            }
            return;
        }
        while self.handed < self.flushed && self.requests.has_room() && self.broken.is_none() {
            let number = self.oldest + self.handed as u64;
            let word = self.scratch.word(self.word_of(number));
            let operation = &self.operations[self.handed].operation;
            match self.steps.next(operation, self.done, word) {
                Ok(Some(step)) if self.requests.could_be_overtaken_by(step.needed) => break,
                Ok(Some(step)) => {
                    self.ask(&step, Some(number));
                    self.done += u64::from(step.local.len());
                    if step.is_last {
                        self.next_operation();
                    }
                }
                Ok(None) => self.ends_unasked(Ok(0)),
                // The operation has not ended as long as the device uses its memory.
                Err(_) if self.requests.have_some_of(number) => break,
                Err(error) => {
                    // The memory cannot be registered, or migrates. All later operations fail, so
                    // that a caller with another path repeats all of them there.
                    if let OpError::System { .. } = error {
                        self.broken = Some(OpError::Flushed);
                    }
                    self.ends_unasked(Err(error));
                }
            }
        }
        self.ring();
    }

    /// The next operation ends without another request.
    fn ends_unasked(&mut self, result: Result<u64, OpError>) {
        let result = result.map_err(|error| self.because(error));
        self.operations[self.handed].result.get_or_insert(result);
        self.next_operation();
    }

    fn next_operation(&mut self) {
        self.handed += 1;
        self.done = 0;
    }

    /// Ends requests in flight if access has ended.
    fn look_at_status(&mut self) {
        if self.broken.is_none() && self.status.check().is_err() {
            self.broken = Some(OpError::Flushed);
            self.connection.close();
        }
    }

    /// The end of access in place of an error that it has caused.
    fn because(&self, error: OpError) -> OpError {
        self.status.check().err().unwrap_or(error)
    }

    /// Number of the word for the result of an atomic.
    fn word_of(&self, operation: u64) -> u64 {
        operation % self.depth as u64
    }

    /// Adds a request to the chain.
    fn ask(&mut self, step: &Step, operation: Option<u64>) {
        let Step {
            action,
            local,
            needed,
            is_last,
        } = *step;
        let is_inline =
            matches!(action, Action::Write(_)) && local.len() <= self.connection.inline_bytes();
        let number = self.requests.push(Request {
            operation,
            is_last,
            needed,
        });
        self.chain.push(&WorkRequest {
            number,
            action,
            local,
            inline: is_inline,
            signalled: (self.chain.len() + 1).is_multiple_of(SIGNAL_EVERY),
        });
        self.counters.inline += u64::from(is_inline);
    }

    /// Posts the chain.
    fn ring(&mut self) {
        if self.chain.is_empty() {
            return;
        }
        self.counters.doorbells += 1;
        self.counters.requests += self.chain.len() as u64;
        self.counters.signalled += self.chain.signal_last() as u64;
        if let Err(refused) = self.chain.post(&self.connection) {
            self.broken = Some(OpError::Flushed);
            self.connection.close();
            // Requests before the refused one have completions.
            let error = Err(system(&refused.error));
            while let Some(request) = self.requests.take_back(refused.first) {
                self.ends(request, error);
            }
        }
    }

    /// Takes completions, and posts requests for which there is room now.
    fn progress(&mut self) {
        self.look_at_status();
        let mut some = [ffi::ibv_wc::default(); 16];
        loop {
            let count = match self.completions.poll(&mut some) {
                Ok(count) => count,
                Err(error) => {
                    self.fail_all(system(&error));
                    0
                }
            };
            for completion in &some[..count] {
                self.take(completion);
            }
            if count < some.len() {
                break;
            }
        }
        if self.handed < self.flushed {
            self.hand_over();
        }
    }

    /// Ends all requests up to the one of a completion; those before it have succeeded.
    fn take(&mut self, completion: &ffi::ibv_wc) {
        let last = completion.wr_id();
        while let Some((number, request)) = self.requests.pop_until(last) {
            let is_well = number < last || completion.is_valid();
            let error = operation_error(status_of(completion), request.needed);
            self.ends(request, if is_well { Ok(()) } else { Err(error) });
        }
    }

    /// Ends all requests with `error` after the completion queue has failed.
    fn fail_all(&mut self, error: OpError) {
        self.connection.close();
        self.broken = Some(OpError::Flushed);
        while let Some((_, request)) = self.requests.pop_until(u64::MAX) {
            self.ends(request, Err(error));
        }
    }

    fn ends(&mut self, request: Request, result: Result<(), OpError>) {
        let result = result.map_err(|error| self.because(error));
        if result.is_err() {
            self.broken.get_or_insert(OpError::Flushed);
        }
        let Some(number) = request.operation else {
            self.batch_error = self.batch_error.or(result.err());
            return;
        };
        let word = self.word_of(number);
        // A failed operation may have been polled before its last request ends.
        let Some(index) = number.checked_sub(self.oldest) else {
            return;
        };
        let Some(slot) = self.operations.get_mut(index as usize) else {
            return;
        };
        match result {
            Err(error) => drop(slot.result.get_or_insert(Err(error))),
            Ok(()) if request.is_last => {
                let value = match &slot.operation {
                    Operation::Read { into: local, .. } | Operation::Write { from: local, .. } => {
                        Ok(local.len())
                    }
                    _ => self.scratch.load(word),
                };
                slot.result.get_or_insert(value);
            }
            Ok(()) => {}
        }
    }

    /// Waits for a completion or until `timeout` has passed.
    fn sleep(&mut self, timeout: Duration) {
        self.counters.sleeps += 1;
        let ended = self.requests.ended();
        // A device that has gone raises no event; an error here or after sleeping shows that.
        if let Err(error) = self.completions.request_event() {
            self.fail_all(system(&error));
            return;
        }
        // Earlier completions raise no event.
        self.progress();
        if self.requests.ended() == ended && !self.requests.is_empty() {
            self.completions.sleep(timeout);
        }
        if let Err(error) = self.completions.take_events() {
            self.fail_all(system(&error));
        }
    }

    /// Requests an event of the next completion, unless one is there. `None` if no operation is in
    /// flight any more.
    fn request_event(&mut self) -> io::Result<Option<Arc<OwnedFd>>> {
        self.counters.sleeps += 1;
        let fd = match &self.event_fd {
            Some(fd) => Arc::clone(fd),
            None => {
                let fd = Arc::new(self.completions.fd().try_clone_to_owned()?);
                Arc::clone(self.event_fd.insert(fd))
            }
        };
        if let Err(error) = self.completions.request_event() {
            self.fail_all(system(&error));
            return Ok(None);
        }
        self.is_armed = true;
        // Earlier completions raise no event.
        self.progress();
        Ok((!self.requests.is_empty()).then_some(fd))
    }

    fn has_completion(&self) -> bool {
        self.operations
            .front()
            .is_some_and(|slot| slot.result.is_some())
    }

    /// Waits until completions bring about `done`, or `timeout` has passed.
    fn wait_until(&mut self, timeout: Duration, done: impl Fn(&Self) -> bool) {
        let start = Instant::now();
        loop {
            self.progress();
            let elapsed = start.elapsed();
            if done(self) || elapsed >= timeout {
                return;
            }
            if elapsed < SPIN {
                std::hint::spin_loop()
            } else {
                self.sleep(timeout - elapsed)
            }
        }
    }
}

impl Endpoint for QueuePair {
    type Remote = RemoteRegion;

    fn peer(&self) -> NodeId {
        self.steps.route.peer
    }

    fn partition(&self) -> Partition {
        self.steps.route.partition
    }

    fn post(&mut self, id: u64, operation: Operation<RemoteRegion>) -> Result<(), PostError> {
        if self.operations.len() >= self.depth {
            return Err(PostError::QueueFull { depth: self.depth });
        }
        self.operations.push_back(Slot {
            id,
            operation,
            result: None,
        });
        Ok(())
    }

    fn flush(&mut self) {
        self.flushed = self.operations.len();
        self.hand_over();
    }

    fn poll(&mut self, into: &mut [Completion]) -> usize {
        self.progress();
        let mut count = 0;
        for place in into {
            let Some(result) = self.operations.front().and_then(|slot| slot.result) else {
                break;
            };
            let Some(slot) = self.operations.pop_front() else {
                break;
            };
            *place = Completion {
                id: slot.id,
                result,
            };
            self.oldest += 1;
            self.flushed -= 1;
            self.handed -= 1;
            count += 1;
        }
        count
    }

    fn wait(&mut self, timeout: Duration) -> bool {
        self.wait_until(timeout, |pair| {
            pair.has_completion() || pair.requests.is_empty()
        });
        self.has_completion()
    }

    fn pending(&mut self, sleeps: bool) -> Pending {
        if std::mem::take(&mut self.is_armed)
            && let Err(error) = self.completions.take_events()
        {
            self.fail_all(system(&error));
        }
        let event = match self.has_completion() || self.requests.is_empty() {
            false if !sleeps => return Pending::Look,
            false => self.request_event(),
            true => Ok(None),
        };
        match event {
            _ if self.has_completion() => Pending::Look,
            Ok(None) => Pending::Nothing,
            Ok(Some(fd)) => Pending::Event {
                fd,
                until: Nanos::MAX,
            },
            // No descriptor is left.
            Err(_) => Pending::Time(monotonic() + LOOK_INTERVAL),
        }
    }

    fn read_batch(&mut self, reads: &mut [Read<'_, RemoteRegion>]) -> Result<(), OpError> {
        self.read_each(reads, |remote| Ok(remote.clone()))
    }
}

impl QueuePair {
    /// As [`Endpoint::read_batch`], for reads whose remote side `region` resolves.
    pub(crate) fn read_each<R>(
        &mut self,
        reads: &mut [Read<'_, R>],
        region: impl Fn(&R) -> Result<RemoteRegion, OpError>,
    ) -> Result<(), OpError> {
        self.flush();
        let is_idle = |pair: &Self| pair.handed == pair.flushed && pair.requests.is_empty();
        self.wait_until(Duration::MAX, is_idle);
        self.batch_error = None;
        let mut from = Position::default();
        while from.read < reads.len() {
            let to = self.ask_for_window(reads, &region, from)?;
            self.ring();
            let last = self.requests.next();
            self.wait_until(Duration::MAX, |pair| pair.requests.ended() >= last);
            match self.batch_error {
                Some(error) => return Err(error),
                None => self.copy_window(reads, from, to)?,
            }
            from = to;
        }
        self.status.check()
    }

    /// Requests as much of the next read of a batch as fits. Later reads wait: their memory must be
    /// loaded after that of this read, and devices load for several requests at a time.
    fn ask_for_window<R>(
        &mut self,
        reads: &[Read<'_, R>],
        region: impl Fn(&R) -> Result<RemoteRegion, OpError>,
        from: Position,
    ) -> Result<Position, OpError> {
        let mut window = self.window(from);
        let read = &reads[from.read];
        while window.at.read == from.read
            && self.requests.has_room()
            && let Some(piece) = window.next(read.into.len() as u64)
        {
            region(read.remote)
                .and_then(|remote| self.ask_for_piece(&remote, read, &piece))
                .map_err(|error| self.because(error))?;
        }
        Ok(window.at)
    }

    fn window(&self, from: Position) -> Window {
        Window::new(from, BOUNCE, self.steps.longest)
    }

    fn ask_for_piece<R>(
        &mut self,
        remote: &RemoteRegion,
        read: &Read<'_, R>,
        piece: &Piece,
    ) -> Result<(), OpError> {
        self.look_at_status();
        if let Some(error) = self.broken {
            return Err(error);
        }
        let whole = read.into.len() as u64;
        let remote = self.steps.route.leads_to(remote)?;
        let mut target = remote.target(Access::REMOTE_READ, read.offset, whole)?;
        target.address = target.address.wrapping_add(piece.byte);
        if piece.len == 0 {
            return Ok(());
        }
        let step = Step {
            action: Action::Read(target),
            local: self.scratch.bounce(piece.bounce, piece.len as u32).into(),
            needed: Access::REMOTE_READ,
            is_last: true,
        };
        self.ask(&step, None);
        Ok(())
    }

    fn copy_window<R>(
        &self,
        reads: &mut [Read<'_, R>],
        from: Position,
        to: Position,
    ) -> Result<(), OpError> {
        let mut window = self.window(from);
        while window.at != to
            && let Some(read) = reads.get_mut(window.at.read)
            && let Some(piece) = window.next(read.into.len() as u64)
        {
            let start = piece.byte as usize;
            let into = &mut read.into[start..start + piece.len as usize];
            self.scratch.copy_out(piece.bounce, into)?;
        }
        Ok(())
    }
}

/// Registered memory of a queue pair: a word for the result of each atomic, then the buffer of
/// batches of reads.
#[derive(Debug)]
struct Scratch {
    region: Region,
    lkey: u32,
    bounce: u64,
}

impl Scratch {
    fn new(domain: &Arc<ProtectionDomain>, depth: usize) -> io::Result<Self> {
        let bounce = (depth as u64 * 8).next_multiple_of(64);
        let region = Region::local((bounce + BOUNCE) as usize)?;
        let lkey = domain.register(&region)?;
        Ok(Scratch {
            region,
            lkey,
            bounce,
        })
    }

    fn word(&self, number: u64) -> Local {
        self.local(number * 8, 8)
    }

    fn bounce(&self, offset: u64, len: u32) -> Local {
        self.local(self.bounce + offset, len)
    }

    fn local(&self, offset: u64, len: u32) -> Local {
        Local {
            address: self.region.memory().mapping().start() as u64 + offset,
            len,
            lkey: self.lkey,
        }
    }

    fn load(&self, number: u64) -> Result<u64, OpError> {
        self.region.load(number * 8)
    }

    fn copy_out(&self, offset: u64, into: &mut [u8]) -> Result<(), OpError> {
        self.region.read(self.bounce + offset, into)
    }
}
