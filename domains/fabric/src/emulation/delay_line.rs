//! Operations under way: requests, then operations that execute, then completions.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::time::Duration;

use super::own_time::{Exit, LONG, OwnTime};
use super::timer::{self, Due, NEVER, announce};
use super::transit::{Arrived, Journey, Transit};
use super::{PeerLink, SOON, Way, await_event, end_of, guard, poll_clock};
use crate::core::endpoint::{Completion, Endpoint, Operation, Pending, PostError, Read};
use crate::core::peer_link::{Freight, Leg, first_clock, latency};
use crate::error::OpError;
use crate::model::{Nanos, Path};
use crate::os::thread::{lock, monotonic};
use crate::provider::{QueuePair, RemoteRegion};

/// Time after an event for which the thread of the queue pair may act itself.
const GRACE: Nanos = 50_000;

/// The time of an operation after which its peer counts as silent: longer than any operation takes
/// whose time is learned.
const SILENCE: Nanos = 10_000_000;

/// The time between two looks at a provider whose peer is silent.
const SELDOM: Nanos = 1_000_000;

/// The longest time between a post and the flush after it for which the operation counts as sent by
/// the post.
const POSTING: Nanos = 1_000;

/// Bytes of the words that an atomic sends and gets back.
pub(super) const WORDS: [u64; 2] = [16, 8];

/// A queue pair whose operations take the times of a link, shared with the timer.
#[derive(Debug)]
pub(super) struct DelayLine {
    /// The time at which the timer acts.
    at: AtomicU64,
    link: Arc<PeerLink>,
    state: Mutex<Delayed>,
}

#[derive(Debug, Default)]
struct Delayed {
    /// `None` after the queue pair has been taken back.
    pair: Option<QueuePair>,
    /// Operations on `pair` that were posted without a model.
    before: usize,
    /// The time of the last post.
    posted_at: Nanos,
    requests: Transit<Request>,
    executing: VecDeque<Executing>,
    answers: Transit<Answer>,
    own_time: OwnTime,
    exit: Exit,
    random: fastrand::Rng,
    /// Whether the last look found no completion, so the thread is waiting for one.
    is_awaited: bool,
    /// Processor time of waiting since the last record.
    spent: Nanos,
}

/// A request on its way.
#[derive(Debug)]
struct Request {
    id: u64,
    operation: Operation<RemoteRegion>,
    posted: Nanos,
}

/// An operation on the provider's queue pair.
#[derive(Debug)]
struct Executing {
    way: Option<Arc<Way>>,
    posted: Nanos,
    due: Nanos,
    arrival: Nanos,
    started: Nanos,
    /// Bytes of the answer of a read or an atomic; `None` for a write.
    answer: Option<u64>,
}

/// A completion before its time.
#[derive(Debug)]
struct Answer {
    completion: Completion,
    posted: Nanos,
    /// Nanoseconds by which the execution began too late.
    late: Nanos,
}

/// The next step of a waiting thread.
enum Step {
    /// There is a completion to poll.
    Ready,
    /// Nothing is in flight.
    Idle,
    /// Nothing happens before this time.
    Until(Nanos),
    /// The provider executes an operation, or nothing happens before this time.
    Executing(Nanos),
}

impl DelayLine {
    /// A line for a queue pair, with the operations that are on it.
    pub(super) fn new(link: Arc<PeerLink>, pair: QueuePair) -> Arc<Self> {
        let (_, before) = pair.room();
        let line = Arc::new(DelayLine {
            at: AtomicU64::new(NEVER),
            link,
            state: Mutex::new(Delayed {
                pair: Some(pair),
                before,
                posted_at: monotonic(),
                ..Delayed::default()
            }),
        });
        // Without the timer, operations execute when the application looks.
        let _ = timer::register(&line);
        line.publish(&line.lock(), true);
        line
    }

    /// Gives the queue pair back if nothing is under way.
    pub(super) fn take(&self) -> Option<QueuePair> {
        self.lock().take()
    }

    /// Drops the queue pair. The timer executes nothing from now on.
    pub(super) fn end(&self) {
        self.lock().pair = None;
    }

    fn lock(&self) -> MutexGuard<'_, Delayed> {
        lock(&self.state)
    }

    /// Publishes the time at which the timer has to act; `is_new` if that may be earlier than before.
    fn publish(&self, delayed: &Delayed, is_new: bool) {
        let at = delayed.acts_at();
        if self.at.load(Ordering::Relaxed) != at {
            // SeqCst: see `Due::at`.
            self.at.store(at, Ordering::SeqCst);
            if is_new {
                announce(at);
            }
        }
    }

    /// Executes what is due; returns the locked state and the time.
    fn advance(&self) -> (MutexGuard<'_, Delayed>, Nanos) {
        let mut delayed = self.lock();
        let now = delayed.advance();
        self.publish(&delayed, false);
        (delayed, now)
    }
}

/// The methods of [`Endpoint`].
impl DelayLine {
    /// Notes the time of a post.
    ///
    /// # Errors
    /// There is no room beside `posted` operations.
    pub(super) fn before_post(&self, posted: usize) -> Result<(), PostError> {
        let now = monotonic();
        let mut delayed = self.lock();
        delayed.posted_at = now;
        let (depth, _) = delayed.pair.as_ref().map_or((0, 0), QueuePair::room);
        if posted + delayed.used() < depth {
            Ok(())
        } else {
            Err(PostError::QueueFull { depth })
        }
    }

    /// Sends posted operations by the present way.
    pub(super) fn flush(&self, posted: impl Iterator<Item = (Operation<RemoteRegion>, u64)>) {
        let now = monotonic();
        let mut delayed = self.lock();
        delayed.flush(posted, self.link.way().as_ref(), now);
        self.publish(&delayed, true);
    }

    #[cold]
    pub(super) fn poll(&self, into: &mut [Completion]) -> usize {
        let (mut delayed, mut now) = self.advance();
        let exit = delayed.exit.get();
        let returns = delayed.answers.due().saturating_sub(exit);
        if now < returns && returns <= now + SOON && !into.is_empty() {
            now = poll_clock(returns);
        }
        let count = delayed.poll(into, now + exit);
        if count == 1 {
            delayed.exit.learn(now);
        }
        count
    }

    #[cold]
    pub(super) fn wait(&self, timeout: Duration) -> bool {
        let (end, mut spent) = (end_of(timeout), 0);
        loop {
            let (mut delayed, now) = self.advance();
            delayed.spent += std::mem::take(&mut spent);
            match delayed.step(now) {
                Step::Ready => return true,
                Step::Idle => return false,
                _ if now >= end => return false,
                Step::Executing(next) => delayed.wait_for_provider(next.min(end), now),
                Step::Until(next) => {
                    drop(delayed);
                    spent = await_event(next.min(end), now);
                }
            }
        }
    }

    pub(super) fn pending(&self, sleeps: bool) -> Pending {
        let (mut delayed, now) = self.advance();
        // Whoever asks does not wait yet.
        let is_awaited = delayed.is_awaited;
        let step = delayed.step(now);
        delayed.is_awaited = is_awaited;
        let next = match step {
            Step::Ready => return Pending::Look,
            Step::Idle => return Pending::Nothing,
            Step::Until(next) => return Pending::Time(next),
            Step::Executing(next) if next <= now + guard() => return Pending::Time(next),
            // Later, the timer may have taken the provider's completion, without an event.
            Step::Executing(next) => (next - guard()).min(now + delayed.look_interval(now)),
        };
        match delayed.pair.as_mut().map(|pair| pair.pending(sleeps)) {
            Some(Pending::Event { fd, until }) => Pending::Event {
                fd,
                until: until.min(next),
            },
            Some(Pending::Time(due)) => Pending::Time(due.min(next)),
            // The provider's completions have no event at present.
            Some(Pending::Look) => Pending::Time(next.min(now + GRACE)),
            Some(Pending::Nothing) | None => Pending::Time(next),
        }
    }

    /// One request, and one answer with all bytes. No operation is posted.
    pub(super) fn read_batch(&self, reads: &mut [Read<'_, RemoteRegion>]) -> Result<(), OpError> {
        let (posted, way) = (monotonic(), self.link.way());
        let bytes = reads.iter().map(|read| read.into.len() as u64).sum();
        let freight = Freight::get(bytes);
        let request = self.lock().journey(way.as_ref(), Leg::Out, posted, freight);
        let (mut delayed, due, started) = self.travel(request, [0; 2]);
        let (late, exit) = (started - due, delayed.exit.get());
        let (result, answer, floor) = delayed.read_batch(reads, way.as_ref(), due);
        drop(delayed);
        let (mut delayed, due, now) = self.travel(answer, [exit, floor]);
        delayed.record(way.as_deref(), posted, late, due, now);
        result
    }
}

impl DelayLine {
    /// Executes requests until a message has arrived behind all that were sent before, less `lead`
    /// and not before `floor`. Returns the locked state, the time when that was due, and the present
    /// time.
    fn travel(
        &self,
        mut journey: Journey,
        [lead, floor]: [Nanos; 2],
    ) -> (MutexGuard<'_, Delayed>, Nanos, Nanos) {
        let mut spent = 0;
        loop {
            let (mut delayed, now) = self.advance();
            delayed.spent += std::mem::take(&mut spent);
            delayed.is_awaited = true;
            let reach = journey.advance(now);
            let before = match journey.leg() {
                Leg::Out => delayed.requests.end(),
                Leg::Back => delayed.answers.end(),
            };
            let arrival = journey.arrival.max(floor).max(before);
            let due = if arrival == NEVER {
                NEVER
            } else {
                arrival - lead
            };
            if due <= now {
                return (delayed, due, now);
            }
            let next = due.min(reach).min(delayed.next_step());
            drop(delayed);
            spent = await_event(next, now);
        }
    }
}

impl Due for DelayLine {
    fn at(&self) -> Nanos {
        self.at.load(Ordering::SeqCst)
    }

    fn act(&self) {
        // The holder of the lock acts.
        let mut delayed = match self.state.try_lock() {
            Ok(delayed) => delayed,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        delayed.advance();
        self.publish(&delayed, false);
    }
}

impl Delayed {
    /// Takes the queue pair back if nothing is under way.
    fn take(&mut self) -> Option<QueuePair> {
        if self.used() == 0 {
            self.pair.take()
        } else {
            None
        }
    }

    /// Operations that are under way or not yet polled.
    fn used(&self) -> usize {
        let executing = self.before + self.executing.len();
        self.requests.len() + executing + self.answers.len()
    }

    fn is_executing(&self) -> bool {
        self.before + self.executing.len() > 0
    }

    fn journey(
        &mut self,
        way: Option<&Arc<Way>>,
        leg: Leg,
        ready: Nanos,
        freight: Freight,
    ) -> Journey {
        Journey::new(way, leg, ready, freight, &mut self.random)
    }

    fn flush(
        &mut self,
        posted: impl Iterator<Item = (Operation<RemoteRegion>, u64)>,
        way: Option<&Arc<Way>>,
        now: Nanos,
    ) {
        if let Some(pair) = &mut self.pair
            && self.before > 0
        {
            pair.flush();
        }
        let sent = self.posted_at.max(now.saturating_sub(POSTING));
        for (operation, id) in posted {
            let freight = match &operation {
                Operation::Write { from, .. } => Freight::of(from.len()),
                Operation::Read { into, .. } => Freight::get(into.len()),
                Operation::CompareAndSwap { .. } | Operation::FetchAdd { .. } => {
                    Freight::of(WORDS[0])
                }
            };
            let times = self.execution(way, sent, freight.bytes);
            let journey = self.journey(way, Leg::Out, sent, freight);
            let request = Request {
                id,
                operation,
                posted: sent,
            };
            self.requests.send(request, journey, times, now);
        }
    }

    /// Nanoseconds before the arrival of a request at which its execution begins, and the earliest
    /// time: bytes of a long write are written while they arrive.
    fn execution(&self, way: Option<&Arc<Way>>, posted: Nanos, bytes: u64) -> [Nanos; 2] {
        let (own, short) = (self.own_time.of(bytes), self.own_time.of(0));
        match way {
            None => [0, posted],
            Some(way) if way.out.on_top => {
                let floor = posted.saturating_add(latency(&way.out));
                [own.saturating_sub(short), floor]
            }
            // A peer sees an operation in the middle of the time that a short one takes.
            Some(_) => [own.saturating_sub(short / 2), posted],
        }
    }

    /// Executes operations whose requests have arrived, and takes completions of the provider.
    /// Returns the time.
    fn advance(&mut self) -> Nanos {
        let mut now = monotonic();
        self.take_completions(now);
        loop {
            self.requests.advance(now);
            self.answers.advance(now);
            match self.requests.take(now) {
                Some(request) => self.execute(request, now),
                None => return now,
            }
            now = monotonic();
            self.take_completions(now);
        }
    }

    fn execute(&mut self, request: Arrived<Request>, now: Nanos) {
        let Request {
            id,
            operation,
            posted,
        } = request.content;
        let answer = match &operation {
            Operation::Write { .. } => None,
            Operation::Read { into, .. } => Some(into.len()),
            Operation::CompareAndSwap { .. } | Operation::FetchAdd { .. } => Some(WORDS[1]),
        };
        if let Some(pair) = &mut self.pair {
            // There is room: the queue is as deep, and holds no more operations.
            let _ = pair.post(id, operation);
            pair.flush();
        }
        self.executing.push_back(Executing {
            way: request.way,
            posted,
            due: request.due,
            arrival: request.arrival,
            started: now,
            answer,
        });
    }

    fn take_completions(&mut self, now: Nanos) {
        let mut some = [Completion::default(); 16];
        while self.is_executing()
            && let Some(pair) = &mut self.pair
        {
            let count = pair.poll(&mut some);
            for completion in &some[..count] {
                self.complete(*completion, now);
            }
            if count < some.len() {
                return;
            }
        }
    }

    /// Sends the answer of an executed operation.
    fn complete(&mut self, completion: Completion, now: Nanos) {
        let executed = match self.before {
            0 => self.executing.pop_front(),
            _ => None,
        };
        let Some(executed) = executed else {
            self.before = self.before.saturating_sub(1);
            let journey = self.journey(None, Leg::Back, now, Freight::of(0));
            let answer = Answer {
                completion,
                posted: now,
                late: 0,
            };
            return self.answers.send(answer, journey, [0; 2], now);
        };
        let way = executed.way.as_ref();
        let took = self.exit.without_clock(now - executed.started);
        if let Ok(bytes) = completion.result
            && (executed.answer.is_none() || bytes < LONG)
        {
            self.own_time.learn(bytes, took);
        }
        let bytes = completion.result.and(Ok(executed.answer.unwrap_or(0)));
        let bytes = bytes.unwrap_or(0);
        let (ready, floor) = match way {
            None => (now, 0),
            Some(way) if way.back.on_top => self.on_top(way, executed.due, took, bytes),
            Some(_) => (executed.arrival, 0),
        };
        let journey = self.journey(way, Leg::Back, ready, Freight::of(bytes));
        let answer = Answer {
            completion,
            posted: executed.posted,
            late: executed.started - executed.due,
        };
        self.answers.send(answer, journey, [0, floor], now);
    }

    /// The time from which on an answer of `bytes` is sent, and its earliest arrival, if the
    /// execution was due at `due` and took `took`. The bytes of a long answer are sent while they are
    /// read.
    fn on_top(&self, way: &Way, due: Nanos, took: Nanos, bytes: u64) -> (Nanos, Nanos) {
        let end = due + took;
        let ready = if bytes < LONG {
            end
        } else {
            end.min(due + self.own_time.of(0))
        };
        (ready, end.saturating_add(latency(&way.back)))
    }

    /// Moves completions that are due to `into`.
    fn poll(&mut self, into: &mut [Completion], now: Nanos) -> usize {
        let mut count = 0;
        while count < into.len()
            && let Some(answer) = self.answers.take(now)
        {
            let Answer {
                completion,
                posted,
                late,
            } = answer.content;
            into[count] = completion;
            count += 1;
            self.record(answer.way.as_deref(), posted, late, answer.due, now);
        }
        self.is_awaited = count == 0;
        count
    }

    /// Records how late an operation was executed, or its completion seen by a thread that waited.
    fn record(&mut self, way: Option<&Way>, posted: Nanos, late: Nanos, due: Nanos, now: Nanos) {
        let seen_late = if self.is_awaited { now - due } else { 0 };
        if let Some(way) = way
            && let Some(clock) = first_clock(&way.out)
        {
            let (late, took) = (late.max(seen_late), due.saturating_sub(posted));
            let spent = std::mem::take(&mut self.spent);
            way.clocks.record(clock, Path::Rdma, late, took, spent);
        }
    }

    /// Executes a batch of reads whose request arrived at `arrival`. Returns the result, and the
    /// answer with its earliest arrival.
    fn read_batch(
        &mut self,
        reads: &mut [Read<'_, RemoteRegion>],
        way: Option<&Arc<Way>>,
        arrival: Nanos,
    ) -> (Result<(), OpError>, Journey, Nanos) {
        let started = monotonic();
        let result = match &mut self.pair {
            Some(pair) => pair.read_batch(reads),
            None => Err(OpError::PeerDead),
        };
        let bytes = match result {
            Ok(()) => reads.iter().map(|read| read.into.len() as u64).sum(),
            Err(_) => 0,
        };
        let took = self.exit.without_clock(monotonic() - started);
        let (ready, floor) = match way {
            Some(way) if way.back.on_top => self.on_top(way, arrival, took, bytes),
            _ => (arrival, 0),
        };
        let answer = self.journey(way, Leg::Back, ready, Freight::of(bytes));
        (result, answer, floor)
    }

    /// The time at which the timer acts for a thread that does not look.
    fn acts_at(&self) -> Nanos {
        let next = self.next_step().saturating_add(GRACE);
        if !self.is_executing() {
            return next;
        }
        let now = monotonic();
        next.min(now + self.look_interval(now))
    }

    /// The time until the next look at the provider, which executes an operation. A silent peer costs
    /// few looks.
    fn look_interval(&self, now: Nanos) -> Nanos {
        let executing = self.executing.front();
        let started = executing.map_or(self.posted_at, |executing| executing.started);
        if now.saturating_sub(started) < SILENCE {
            GRACE
        } else {
            SELDOM
        }
    }

    /// The time at which the next request takes effect, or a message reaches a stage.
    fn next_step(&self) -> Nanos {
        let reach = self.requests.reach().min(self.answers.reach());
        self.requests.due().min(reach)
    }

    fn step(&mut self, now: Nanos) -> Step {
        let ready = self.answers.due().saturating_sub(SOON);
        if ready <= now {
            return Step::Ready;
        }
        self.is_awaited = true;
        match self.next_step() {
            next if self.is_executing() => Step::Executing(ready.min(next)),
            NEVER if self.answers.len() == 0 => Step::Idle,
            next => Step::Until(ready.min(next)),
        }
    }

    /// Waits for the provider until shortly before `next`.
    fn wait_for_provider(&mut self, next: Nanos, now: Nanos) {
        let far = next.saturating_sub(now).saturating_sub(guard());
        if let Some(pair) = &mut self.pair
            && far > 0
        {
            pair.wait(Duration::from_nanos(far));
        }
    }
}
