//! Operations under way: requests, then operations that execute, then completions.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::time::Duration;

use super::own_time::OwnTime;
use super::timer::{self, Due, NEVER, announce};
use super::{GUARD, PeerLink, Way, await_event, end_of};
use crate::core::endpoint::{Completion, Endpoint, Operation, PostError, Read};
use crate::core::peer_link::first_clock;
use crate::error::OpError;
use crate::model::{Nanos, Path};
use crate::os::thread::{lock, monotonic};
use crate::provider::{QueuePair, RemoteRegion};

/// Time after an event for which the thread of the queue pair may act itself.
const GRACE: Nanos = 50_000;

/// Bytes of the words that an atomic sends and gets back.
const WORDS: [u64; 2] = [16, 8];

/// Writes of at least this many bytes begin while the bytes still arrive, so that the last one is
/// written when the last one arrives.
const LONG: u64 = 4096;

/// A queue pair whose operations take the times of a link, shared with the timer.
#[derive(Debug)]
pub(super) struct DelayLine {
    /// The time at which the timer acts.
    at: AtomicU64,
    link: Arc<PeerLink>,
    state: Mutex<Delayed>,
}

#[derive(Debug, Default)]
pub(super) struct Delayed {
    /// `None` after the queue pair has been taken back.
    pair: Option<QueuePair>,
    /// Operations on `pair` that were posted without a model.
    before: usize,
    posted: VecDeque<(u64, Operation<RemoteRegion>)>,
    requests: VecDeque<Request>,
    executing: VecDeque<Executing>,
    answers: VecDeque<Answer>,
    /// The last arrival of a request and of an answer: order is kept.
    last: [Nanos; 2],
    own_time: OwnTime,
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
    /// The time to begin with the execution.
    start: Nanos,
    times: Trip,
}

/// Times of an operation, with its way unless there is no model any more.
#[derive(Debug)]
pub(super) struct Trip {
    pub(super) way: Option<Arc<Way>>,
    pub(super) posted: Nanos,
    pub(super) arrival: Nanos,
    /// Nanoseconds by which the execution began too late.
    pub(super) late: Nanos,
}

/// An operation on the provider's queue pair.
#[derive(Debug)]
struct Executing {
    times: Trip,
    started: Nanos,
    /// Bytes of the answer of a read or an atomic; `None` for a write.
    answer: Option<u64>,
}

/// A completion before its time.
#[derive(Debug)]
struct Answer {
    completion: Completion,
    times: Trip,
    due: Nanos,
}

/// The next step of a waiting thread.
pub(super) enum Step {
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

    fn lock(&self) -> MutexGuard<'_, Delayed> {
        lock(&self.state)
    }

    /// Publishes the time at which the timer has to act; `is_new` if that may be earlier than before.
    fn publish(&self, delayed: &Delayed, is_new: bool) {
        let at = delayed.next_execution().saturating_add(GRACE);
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
    #[cold]
    pub(super) fn post(
        &self,
        id: u64,
        operation: Operation<RemoteRegion>,
    ) -> Result<(), PostError> {
        self.lock().post(id, operation)
    }

    /// Sends posted operations by the present way.
    #[cold]
    pub(super) fn flush(&self) {
        let mut delayed = self.lock();
        delayed.flush(self.link.way());
        self.publish(&delayed, true);
    }

    #[cold]
    pub(super) fn poll(&self, into: &mut [Completion]) -> usize {
        let (mut delayed, now) = self.advance();
        delayed.poll(into, now)
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

    /// One request, and one answer with all bytes.
    #[cold]
    pub(super) fn read_batch(&self, reads: &mut [Read<'_, RemoteRegion>]) -> Result<(), OpError> {
        self.flush();
        let (way, posted) = (self.link.way(), monotonic());
        let arrival = self.lock().send(way.as_deref(), posted, 0);
        let (mut delayed, now) = self.work_until(arrival);
        let (result, due) = delayed.read_batch(reads, way.as_deref(), arrival);
        drop(delayed);
        let times = Trip {
            way,
            posted,
            arrival,
            late: now - arrival,
        };
        let (mut delayed, now) = self.work_until(due);
        delayed.record(&times, due, now);
        result
    }
}

impl DelayLine {
    /// Executes requests until `time`; returns the locked state and the time then.
    fn work_until(&self, time: Nanos) -> (MutexGuard<'_, Delayed>, Nanos) {
        let mut spent = 0;
        loop {
            let (mut delayed, now) = self.advance();
            delayed.spent += std::mem::take(&mut spent);
            delayed.is_awaited = true;
            if now >= time {
                return (delayed, now);
            }
            let next = delayed.next_request().min(time);
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
    pub(super) fn take(&mut self) -> Option<QueuePair> {
        let is_idle = self.posted.is_empty() && !self.is_in_flight() && self.answers.is_empty();
        if is_idle { self.pair.take() } else { None }
    }

    pub(super) fn post(
        &mut self,
        id: u64,
        operation: Operation<RemoteRegion>,
    ) -> Result<(), PostError> {
        let (depth, _) = self.pair.as_ref().map_or((0, 0), QueuePair::room);
        let under_way = self.before + self.requests.len() + self.executing.len();
        if self.posted.len() + under_way + self.answers.len() >= depth {
            return Err(PostError::QueueFull { depth });
        }
        self.posted.push_back((id, operation));
        Ok(())
    }

    fn flush(&mut self, way: Option<Arc<Way>>) {
        if let Some(pair) = &mut self.pair
            && self.before > 0
        {
            pair.flush();
        }
        let posted = monotonic();
        while let Some((id, operation)) = self.posted.pop_front() {
            let (bytes, is_write) = match &operation {
                Operation::Write { from, .. } => (from.len(), true),
                Operation::Read { .. } => (0, false),
                Operation::CompareAndSwap { .. } | Operation::FetchAdd { .. } => (WORDS[0], false),
            };
            let arrival = self.send(way.as_deref(), posted, bytes);
            let is_inside = way.as_ref().is_some_and(|way| !way.out.on_top);
            let start = if is_write && bytes >= LONG && is_inside {
                arrival.saturating_sub(self.own_time.of(bytes)).max(posted)
            } else {
                arrival
            };
            self.requests.push_back(Request {
                id,
                operation,
                start,
                times: Trip {
                    way: way.clone(),
                    posted,
                    arrival,
                    late: 0,
                },
            });
        }
    }

    /// The arrival of a request of `bytes` that is sent now, behind all earlier ones.
    pub(super) fn send(&mut self, way: Option<&Way>, now: Nanos, bytes: u64) -> Nanos {
        let arrival = way.map_or(now, |way| way.carry_out(now, bytes, &mut self.random));
        self.last[0] = self.last[0].max(arrival);
        self.last[0]
    }

    /// The arrival of an answer of `bytes`, behind all earlier ones.
    pub(super) fn answer(&mut self, way: Option<&Way>, ready: Nanos, bytes: u64) -> Nanos {
        let arrival = way.map_or(ready, |way| way.carry_back(ready, bytes, &mut self.random));
        self.last[1] = self.last[1].max(arrival);
        self.last[1]
    }

    /// Executes operations whose requests have arrived, and takes completions of the provider.
    /// Returns the time.
    fn advance(&mut self) -> Nanos {
        let mut now = monotonic();
        self.take_completions(now);
        while let Some(pair) = &mut self.pair
            && self
                .requests
                .front()
                .is_some_and(|first| first.start <= now)
            && let Some(request) = self.requests.pop_front()
        {
            let Request {
                id,
                operation,
                start,
                mut times,
            } = request;
            let answer = match &operation {
                Operation::Write { .. } => None,
                Operation::Read { into, .. } => Some(into.len()),
                Operation::CompareAndSwap { .. } | Operation::FetchAdd { .. } => Some(WORDS[1]),
            };
            times.late = now - start;
            // There is room: the queue is as deep, and holds no more operations.
            let _ = pair.post(id, operation);
            pair.flush();
            self.executing.push_back(Executing {
                times,
                started: now,
                answer,
            });
            now = monotonic();
            self.take_completions(now);
        }
        now
    }

    fn take_completions(&mut self, now: Nanos) {
        let mut some = [Completion::default(); 16];
        while self.before + self.executing.len() > 0
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
            let times = Trip {
                way: None,
                posted: now,
                arrival: now,
                late: 0,
            };
            let due = self.answer(None, now, 0);
            return self.answers.push_back(Answer {
                completion,
                times,
                due,
            });
        };
        let Executing {
            times,
            started,
            answer,
        } = executed;
        let took = now - started;
        if let (None, Ok(bytes)) = (answer, completion.result) {
            self.own_time.learn(bytes, took);
        }
        let way = times.way.as_deref();
        let ready = match way {
            Some(way) if way.back.on_top => times.arrival + took,
            Some(_) => times.arrival,
            None => now,
        };
        let bytes = completion.result.and(Ok(answer.unwrap_or(0)));
        let due = self.answer(way, ready, bytes.unwrap_or(0));
        self.answers.push_back(Answer {
            completion,
            times,
            due,
        });
    }

    /// Moves completions that are due to `into`.
    pub(super) fn poll(&mut self, into: &mut [Completion], now: Nanos) -> usize {
        let mut count = 0;
        while count < into.len()
            && self.answers.front().is_some_and(|first| first.due <= now)
            && let Some(answer) = self.answers.pop_front()
        {
            into[count] = answer.completion;
            count += 1;
            self.record(&answer.times, answer.due, now);
        }
        self.is_awaited = count == 0;
        count
    }

    /// Records how late an operation was executed, or its completion seen by a thread that waited.
    pub(super) fn record(&mut self, times: &Trip, due: Nanos, now: Nanos) {
        let seen_late = if self.is_awaited { now - due } else { 0 };
        if let Some(way) = &times.way
            && let Some(clock) = first_clock(&way.out)
        {
            let (late, took) = (times.late.max(seen_late), due - times.posted);
            let spent = std::mem::take(&mut self.spent);
            way.clocks.record(clock, Path::Rdma, late, took, spent);
        }
    }

    /// Executes a batch of reads, whose request has arrived at `arrival`. Returns the result and the
    /// time at which the answer arrives.
    pub(super) fn read_batch(
        &mut self,
        reads: &mut [Read<'_, RemoteRegion>],
        way: Option<&Way>,
        arrival: Nanos,
    ) -> (Result<(), OpError>, Nanos) {
        let started = monotonic();
        let result = match &mut self.pair {
            Some(pair) => pair.read_batch(reads),
            None => Err(OpError::PeerDead),
        };
        let bytes = match result {
            Ok(()) => reads.iter().map(|read| read.into.len() as u64).sum(),
            Err(_) => 0,
        };
        let ready = match way {
            Some(way) if way.back.on_top => arrival + monotonic() - started,
            _ => arrival,
        };
        (result, self.answer(way, ready, bytes))
    }

    fn is_in_flight(&self) -> bool {
        self.before + self.requests.len() + self.executing.len() > 0
    }

    /// The time at which the next operation executes, or now while the provider executes some.
    fn next_execution(&self) -> Nanos {
        if self.before + self.executing.len() > 0 {
            monotonic()
        } else {
            self.next_request()
        }
    }

    /// The next request to execute, or [`NEVER`].
    pub(super) fn next_request(&self) -> Nanos {
        self.requests.front().map_or(NEVER, |request| request.start)
    }

    pub(super) fn step(&mut self, now: Nanos) -> Step {
        let answer = self.answers.front().map_or(NEVER, |answer| answer.due);
        if answer <= now {
            return Step::Ready;
        }
        self.is_awaited = true;
        match answer.min(self.next_request()) {
            next if self.before + self.executing.len() > 0 => Step::Executing(next),
            NEVER => Step::Idle,
            next => Step::Until(next),
        }
    }

    /// Waits for the provider until shortly before `next`.
    pub(super) fn wait_for_provider(&mut self, next: Nanos, now: Nanos) {
        let far = next.saturating_sub(now).saturating_sub(GUARD);
        if let Some(pair) = &mut self.pair
            && far > 0
        {
            pair.wait(Duration::from_nanos(far));
        }
    }
}
