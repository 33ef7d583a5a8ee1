//! One completion queue for many queue pairs.
//!
//! The queue owns its queue pairs and is used by one thread at a time, so it has no lock, and a
//! queue pair outside of a queue pays nothing. A call looks only at queue pairs that are **listed**:
//!
//! ```text
//!   idle ──── pair() ────► listed ── in flight ──► waiting ── descriptor or alarm ──► listed
//!     ▲                      │  ▲
//!     └── nothing in flight ─┘  └── may have more completions, or will within LEAD
//! ```
//!
//! A waiting queue pair has named its event by [`Endpoint::pending`]: an epoll(7) and a sorted set of
//! times find those that are due. So the time of a call grows neither with the number of idle queue
//! pairs nor with that of waiting ones.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::io;
use std::mem::{MaybeUninit, take};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{Timespec, epoll};

use super::endpoint::{Completion, Endpoint, LOOK_INTERVAL, OpError, Pending};
use crate::model::Nanos;
use crate::os::thread::{monotonic, precisely, sleep_on};

/// Completions that are taken from a queue pair before the next one has its turn.
const BATCH: usize = 16;

/// Descriptors that one system call finds readable.
const EVENTS: usize = 32;

/// Calls with listed queue pairs before another look for events and alarms.
const CALLS: u32 = 32;

/// Time before an alarm from which on its queue pair is listed: more than a wake-up takes.
const LEAD: Nanos = 100_000;

/// Polling time of a wait before it asks devices for events: about the cost of sleeping.
const SPIN: Duration = Duration::from_micros(10);

const NEVER: Nanos = Nanos::MAX;

const NOW: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 0,
};

/// The completion of an operation, and its queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueuedCompletion {
    /// The token with which the queue pair was attached.
    pub token: u64,
    /// The number that the operation was posted with.
    pub id: u64,
    /// Bytes copied by a read or write; the word's value before an atomic.
    pub result: Result<u64, OpError>,
}

/// An empty slot for [`CompletionQueue::poll`].
impl Default for QueuedCompletion {
    fn default() -> Self {
        QueuedCompletion {
            token: 0,
            id: 0,
            result: Ok(0),
        }
    }
}

/// A refused queue pair: its token is in use.
#[derive(Debug, thiserror::Error)]
#[error("a queue pair with the token {token} is attached already: detach it, or use another token")]
pub struct AttachError<E> {
    /// The token.
    pub token: u64,
    /// The queue pair, unchanged.
    pub pair: E,
}

/// A completion queue for any number of queue pairs `E`.
///
/// Each queue pair has a token, which its completions carry. Completions of one queue pair come in
/// posted order, those of different ones in any order. Errors are completions, too: of operations
/// on a revoked region, to a dead peer or over a cut connection.
///
/// A queue pair that is detached keeps the completions that were not polled. Dropping the queue
/// drops its queue pairs.
///
/// ```
/// use std::time::Duration;
/// use toroid_fabric::loopback::Network;
/// use toroid_fabric::provider::Provider;
/// use toroid_fabric::{Access, CompletionQueue, Endpoint, NodeId, Operation, Partition};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let network = Network::new(Partition(7));
/// let user = network.join(NodeId(9));
/// let mut queue = CompletionQueue::new()?;
/// let mut regions = Vec::new();
/// for node in 0..3 {
///     let owner = network.join(NodeId(node)).alloc(8, Access::all())?;
///     let key = owner.remote_key().ok_or("an exported region has a key")?;
///     regions.push((owner, user.open(key, Access::REMOTE_ATOMIC)?));
///     queue.attach(u64::from(node), user.queue_pair(NodeId(node), 4)?)?;
/// }
/// for (token, (_, remote)) in (0..).zip(&regions) {
///     let pair = queue.pair(token).ok_or("attached above")?;
///     pair.post(7, Operation::fetch_add(remote, 0, 1))?;
///     pair.flush();
/// }
/// let (mut done, mut count) = ([Default::default(); 3], 0);
/// while count < 3 {
///     queue.wait(Duration::from_secs(1));
///     count += queue.poll(&mut done[count..]);
/// }
/// assert!(done.iter().all(|completion| (completion.id, completion.result) == (7, Ok(0))));
/// let mut tokens = done.map(|completion| completion.token);
/// tokens.sort();
/// assert_eq!(tokens, [0, 1, 2]);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct CompletionQueue<E> {
    /// `None` where a queue pair was detached.
    places: Vec<Option<Attached<E>>>,
    /// Numbers of such places.
    free: Vec<usize>,
    places_of: HashMap<u64, usize>,
    /// Numbers of places to look at, the next one first.
    listed: VecDeque<usize>,
    /// Alarms of places. One that has become too early costs a look in vain.
    alarms: BTreeSet<(Nanos, usize)>,
    /// An epoll(7) with the descriptors of places.
    epoll: OwnedFd,
    /// Number of places that wait for a time only, and for a descriptor.
    waiting: [usize; 2],
    /// Calls since the last look for events and alarms.
    calls: u32,
    /// Place of the completions of one queue pair: filling a new one would take as long as a look.
    some: Box<[Completion; BATCH]>,
}

/// An attached queue pair.
#[derive(Debug)]
struct Attached<E> {
    token: u64,
    pair: E,
    state: State,
    /// Whether an event or alarm has come since the last look.
    is_signalled: bool,
    /// The time of its element of `alarms`, or [`NEVER`].
    alarm: Nanos,
    /// The descriptor in the epoll(7). Its owner keeps the number from being used again.
    watched: Option<Arc<OwnedFd>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Idle,
    Listed,
    /// Waits for a time.
    Timed,
    /// Waits for a descriptor or a time.
    Watched,
}

impl<E: Endpoint> CompletionQueue<E> {
    /// A queue without queue pairs.
    ///
    /// # Errors
    /// The system's: no descriptor left.
    pub fn new() -> io::Result<Self> {
        Ok(CompletionQueue {
            places: Vec::new(),
            free: Vec::new(),
            places_of: HashMap::new(),
            listed: VecDeque::new(),
            alarms: BTreeSet::new(),
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            waiting: [0; 2],
            calls: 0,
            some: Box::new([Completion::default(); BATCH]),
        })
    }

    /// Attaches a queue pair, whose completions then come through this queue, also those of
    /// operations that were posted before.
    ///
    /// # Errors
    /// [`AttachError`] with the queue pair when `token` is in use.
    pub fn attach(&mut self, token: u64, pair: E) -> Result<(), AttachError<E>> {
        if self.places_of.contains_key(&token) {
            return Err(AttachError { token, pair });
        }
        let attached = Some(Attached {
            token,
            pair,
            state: State::Idle,
            is_signalled: false,
            alarm: NEVER,
            watched: None,
        });
        let at = self.free.pop().unwrap_or(self.places.len());
        if at == self.places.len() {
            self.places.push(attached);
        } else {
            self.places[at] = attached;
        }
        self.places_of.insert(token, at);
        self.list(at);
        Ok(())
    }

    /// Detaches and returns the queue pair with this token, if there is one. Its operations stay in
    /// flight, and its completions that were not polled are still to be polled from it.
    pub fn detach(&mut self, token: u64) -> Option<E> {
        let at = self.places_of.remove(&token)?;
        self.listed.retain(|listed| *listed != at);
        self.set_state(at, State::Idle);
        self.unwatch(at);
        let attached = self.places.get_mut(at)?.take()?;
        self.alarms.remove(&(attached.alarm, at));
        self.free.push(at);
        Some(attached.pair)
    }

    /// The queue pair with this token, to post and flush operations. The next call of
    /// [`CompletionQueue::poll`] or [`CompletionQueue::wait`] looks at its state.
    pub fn pair(&mut self, token: u64) -> Option<&mut E> {
        let at = *self.places_of.get(&token)?;
        self.list(at);
        self.places[at].as_mut().map(|attached| &mut attached.pair)
    }

    /// Moves completions to `into`, at most 16 of each queue pair before the next, and returns their
    /// number. Never blocks, except as [`Endpoint::poll`] does.
    ///
    /// While some queue pairs always have completions or are used, every 32nd call looks for events of
    /// the others.
    pub fn poll(&mut self, into: &mut [QueuedCompletion]) -> usize {
        self.calls += 1;
        if self.listed.is_empty() || self.calls >= CALLS {
            self.collect(Duration::ZERO);
        }
        let mut count = 0;
        for _ in 0..self.listed.len() {
            let room = into.len() - count;
            let Some(at) = self.listed.front().copied().filter(|_| room > 0) else {
                break;
            };
            self.listed.pop_front();
            count += self.poll_place(at, &mut into[count..]);
        }
        count
    }

    /// Waits until there is a completion to poll, no operation is in flight, or `timeout` has
    /// passed. Returns whether there is a completion to poll. Sleeps on the kernel and devices; a
    /// link model may let it poll the clock for the last 100 us.
    pub fn wait(&mut self, timeout: Duration) -> bool {
        let start = Instant::now();
        let mut elapsed = Duration::ZERO;
        loop {
            self.collect(Duration::ZERO);
            let waiting = self.waiting;
            if self.finds_completion(elapsed >= SPIN) {
                return true;
            }
            elapsed = start.elapsed();
            if self.listed.is_empty() && self.waiting == [0; 2] {
                return false;
            }
            if elapsed >= timeout {
                // Events of queue pairs that began to wait in this look may have come before it.
                let may_have_come = self.waiting != waiting;
                if may_have_come {
                    self.collect(Duration::ZERO);
                }
                return may_have_come && self.finds_completion(false);
            }
            if self.listed.is_empty() {
                self.collect(timeout - elapsed);
            }
        }
    }

    /// A descriptor that is readable when an armed queue has news, to wait with poll(2) for the queue
    /// beside other descriptors.
    pub fn wake_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// Prepares a sleep on [`CompletionQueue::wake_fd`]. Returns how long the caller may sleep at
    /// most before the next poll: not at all if there may be a completion already, and
    /// [`Duration::MAX`] where only the descriptor brings news. Spurious wake-ups are possible.
    pub fn arm(&mut self) -> Duration {
        self.collect(Duration::ZERO);
        if self.finds_completion(true) || !self.listed.is_empty() {
            return Duration::ZERO;
        }
        // The descriptor of an ended connection would end each sleep, also when no place waits for it.
        self.take_events();
        if !self.listed.is_empty() {
            return Duration::ZERO;
        }
        let next = self.alarms.first();
        next.map_or(Duration::MAX, |(alarm, _)| {
            Duration::from_nanos(alarm.saturating_sub(monotonic()))
        })
    }

    /// Looks at the listed places until one has a completion, which then is the first.
    fn finds_completion(&mut self, sleeps: bool) -> bool {
        for _ in 0..self.listed.len() {
            if let Some(at) = self.listed.pop_front()
                && self.has_completion(at, sleeps)
            {
                self.listed.push_front(at);
                return true;
            }
        }
        false
    }

    /// Takes completions of a place that was removed from the list.
    fn poll_place(&mut self, at: usize, into: &mut [QueuedCompletion]) -> usize {
        if !self.is_worth_a_look(at, false) {
            return 0;
        }
        let Some(attached) = &mut self.places[at] else {
            return 0;
        };
        let room = into.len().min(BATCH);
        let count = attached.pair.poll(&mut self.some[..room]);
        let token = attached.token;
        for (slot, Completion { id, result }) in into.iter_mut().zip(&self.some[..count]) {
            let (id, result) = (*id, *result);
            *slot = QueuedCompletion { token, id, result };
        }
        if count == room || self.stays_listed(at, false) {
            self.listed.push_back(at);
        }
        count
    }

    /// Whether a place that was removed from the list has a completion. If so, the caller lists it.
    fn has_completion(&mut self, at: usize, sleeps: bool) -> bool {
        if !self.is_worth_a_look(at, sleeps) {
            return false;
        }
        let Some(attached) = &mut self.places[at] else {
            return false;
        };
        if attached.pair.wait(Duration::ZERO) {
            attached.is_signalled = true;
            return true;
        }
        if self.stays_listed(at, sleeps) {
            self.listed.push_back(at);
        }
        false
    }

    /// Whether to look for a completion of a place that was removed from the list. Otherwise it
    /// waits: right after a flush, a look at a connection would be a system call in vain.
    fn is_worth_a_look(&mut self, at: usize, sleeps: bool) -> bool {
        let attached = self.places[at].as_mut();
        attached.is_some_and(|attached| take(&mut attached.is_signalled))
            || self.stays_listed(at, sleeps)
    }

    /// Lets a place wait for its next completion, or be idle. Returns true if neither is possible.
    fn stays_listed(&mut self, at: usize, sleeps: bool) -> bool {
        let Some(attached) = &mut self.places[at] else {
            return false;
        };
        let (state, alarm) = match attached.pair.pending(sleeps) {
            Pending::Nothing => (State::Idle, NEVER),
            Pending::Look => return true,
            Pending::Time(due) if due <= monotonic().saturating_add(LEAD) => return true,
            Pending::Time(due) => (State::Timed, due - LEAD),
            Pending::Event { fd, until } => {
                match self.watch(at, fd) {
                    Ok(()) => (State::Watched, until),
                    // The system has no room for another watch.
                    Err(_) if !sleeps => return true,
                    Err(_) => (State::Timed, until.min(monotonic() + LOOK_INTERVAL)),
                }
            }
        };
        self.set_state(at, state);
        self.set_alarm(at, alarm);
        false
    }

    fn list(&mut self, at: usize) {
        let Some(attached) = self.places[at].as_mut() else {
            return;
        };
        if attached.state == State::Listed {
            return;
        }
        // Otherwise a program that uses the queue pair before each call would never find what has come
        // while it waited.
        attached.is_signalled |= attached.state != State::Idle;
        self.set_state(at, State::Listed);
        self.listed.push_back(at);
    }

    fn set_state(&mut self, at: usize, state: State) {
        let Some(attached) = &mut self.places[at] else {
            return;
        };
        let before = std::mem::replace(&mut attached.state, state);
        let [timed, watched] = &mut self.waiting;
        match before {
            State::Timed => *timed -= 1,
            State::Watched => *watched -= 1,
            State::Idle | State::Listed => {}
        }
        match state {
            State::Timed => *timed += 1,
            State::Watched => *watched += 1,
            State::Idle | State::Listed => {}
        }
    }

    /// Sets the alarm of a place, unless an earlier one is set.
    fn set_alarm(&mut self, at: usize, alarm: Nanos) {
        if let Some(attached) = &mut self.places[at]
            && alarm < attached.alarm
        {
            self.alarms.remove(&(attached.alarm, at));
            self.alarms.insert((alarm, at));
            attached.alarm = alarm;
        }
    }

    fn watch(&mut self, at: usize, fd: Arc<OwnedFd>) -> io::Result<()> {
        let watched = self.places[at].as_ref().and_then(|it| it.watched.as_ref());
        if watched.is_some_and(|watched| Arc::ptr_eq(watched, &fd)) {
            return Ok(());
        }
        self.unwatch(at);
        let data = epoll::EventData::new_u64(at as u64);
        epoll::add(&self.epoll, &fd, data, epoll::EventFlags::IN)?;
        if let Some(attached) = &mut self.places[at] {
            attached.watched = Some(fd);
        }
        Ok(())
    }

    fn unwatch(&mut self, at: usize) {
        let attached = self.places[at].as_mut();
        if let Some(fd) = attached.and_then(|attached| attached.watched.take()) {
            // The descriptor is open and was added.
            let _ = epoll::delete(&self.epoll, fd);
        }
    }

    /// Lists the places whose alarm or event has come; sleeps up to `timeout` if there is none.
    fn collect(&mut self, timeout: Duration) {
        self.calls = 0;
        let now = match self.alarms.first() {
            Some(_) => monotonic(),
            None => 0,
        };
        while let Some(&(alarm, at)) = self.alarms.first()
            && alarm <= now
        {
            self.alarms.pop_first();
            if let Some(attached) = &mut self.places[at] {
                attached.alarm = NEVER;
            }
            self.signal(at);
        }
        let is_sleep = self.listed.is_empty() && !timeout.is_zero();
        if is_sleep {
            // Not epoll_wait(2), whose time-outs are whole milliseconds.
            let sleep = |time| sleep_on(self.epoll.as_fd(), time);
            match self.alarms.first() {
                Some((alarm, _)) => {
                    let left = Duration::from_nanos(alarm.saturating_sub(now));
                    precisely(|| sleep(timeout.min(left)));
                }
                None => sleep(timeout),
            }
        }
        let [_, watched] = self.waiting;
        // The descriptor of a place that waits for no event may have ended the sleep.
        if watched > 0 || is_sleep {
            self.take_events();
        }
    }

    fn take_events(&mut self) {
        let mut events = [MaybeUninit::<epoll::Event>::uninit(); EVENTS];
        // Fails only for arguments that are none of these.
        let Ok((events, _)) = epoll::wait(&self.epoll, &mut events[..], Some(&NOW)) else {
            return;
        };
        for event in events.iter() {
            let at = event.data.u64() as usize;
            match self.places[at].as_ref().map(|attached| attached.state) {
                Some(State::Watched) => self.signal(at),
                // Its turn comes.
                Some(State::Listed) => {}
                // Nothing is expected there, so the connection has ended. The next operation tells.
                _ => self.unwatch(at),
            }
        }
    }

    /// Lists a place that waits.
    fn signal(&mut self, at: usize) {
        let attached = self.places[at].as_ref();
        if attached.is_some_and(|it| matches!(it.state, State::Timed | State::Watched)) {
            self.list(at);
        }
    }
}

#[cfg(test)]
mod tests;
