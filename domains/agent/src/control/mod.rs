//! Control of changes: what is decided when, which follower is sent which update, and when a change
//! is answered. [`core`] decides all of it; here are the threads and channels around it.
//!
//! A thread that makes a change takes its turn, [begins](Control::begin), makes the change durable,
//! notes that ([`Underway::decided`]), brings the change into effect on this host, and
//! [waits](Underway::await_hosts) for the others. The turn ends before the thread waits for
//! processes or for other hosts. One thread for each follower carries updates there, and one
//! [keeps the time](Control::keep_time).
//!
//! Order of locks: a turn of [`crate::core::fair_queue`], then the store of [`crate::members`],
//! then the lock here.

pub(crate) mod core;
mod departure;
pub(crate) mod elected;
pub(crate) mod lease;
mod log;
pub(crate) mod publishing;
pub(crate) mod requests;
pub mod simulation;
pub(crate) mod update;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use toroid_model::directory::Directory;
use toroid_model::directory::records::{Changes, Records};
use toroid_model::directory::requests::RequestId;
use toroid_model::directory::revision::Revision;
use toroid_model::refusal::{Refusal, RefusalKind};
use toroid_model::rights::Actor;

use self::core::{Action, Answer, ChangeId, Core, Event, MAX_UNFINISHED, Reached};
use self::core::{SessionId, Update};
use self::requests::Requests;

/// The core with the channels to the threads that carry out its actions. Its lock is taken last,
/// and never held during I/O.
#[derive(Debug)]
pub(crate) struct Control {
    state: Mutex<State>,
    /// Notified when the core needs an earlier tick.
    earlier: Condvar,
    requests: Mutex<Requests>,
    /// Whether another agent leads since.
    is_deposed: AtomicBool,
}

#[derive(Debug)]
struct State {
    core: Core,
    /// Time of the tick for which [`Control::keep_time`] waits.
    wake: Option<Instant>,
    last: u64,
    changes: HashMap<ChangeId, Sender<Word>>,
    sessions: HashMap<SessionId, Sender<Update>>,
}

/// Message to the thread of a change.
#[derive(Debug)]
enum Word {
    Decide,
    Refuse,
    Reply(Reached),
}

/// A change that has begun. Dropping it ends the change, if it was refused.
#[derive(Debug)]
pub(crate) struct Underway<'a> {
    control: &'a Control,
    id: ChangeId,
    request: RequestId,
    words: Receiver<Word>,
    /// Domains that it may change, and nodes that it hands over.
    pub(crate) subjects: BTreeSet<String>,
    /// Whether no earlier change of its subjects still takes effect on this host.
    pub(crate) may_decide: bool,
}

/// Entry of a connected follower. Dropping it ends the follower's updates.
#[derive(Debug)]
pub(crate) struct FollowerEntry {
    control: Arc<Control>,
    host: String,
    session: SessionId,
}

/// Updates for a follower.
#[derive(Debug)]
pub(crate) struct Updates {
    control: Arc<Control>,
    host: String,
    session: SessionId,
    updates: Receiver<Update>,
}

impl Control {
    /// Control of a host with this name, if there are several.
    pub(crate) fn new(host: Option<String>) -> Self {
        let state = State {
            core: Core::new(host),
            wake: None,
            last: 0,
            changes: HashMap::new(),
            sessions: HashMap::new(),
        };
        Control {
            state: Mutex::new(state),
            earlier: Condvar::new(),
            requests: Mutex::default(),
            is_deposed: AtomicBool::new(false),
        }
    }

    /// Ticks when the core needs it, without an end. Changes and followers rely on a thread here if
    /// there are several hosts.
    pub(crate) fn keep_time(&self) -> ! {
        let mut state = self.state.lock();
        loop {
            state.wake = state.core.wake();
            let Some(wake) = state.wake else {
                self.earlier.wait(&mut state);
                continue;
            };
            if self.earlier.wait_until(&mut state, wake).timed_out() {
                state.handle(Event::Tick);
            }
        }
    }

    /// Sets the durable records before the first change, and their revision.
    pub(crate) fn set_records(&self, records: Records, revision: Option<Revision>) {
        self.state.lock().core.begin(records, revision);
    }

    /// Notes that followers can connect. Those of a former leader return within some seconds.
    pub(crate) fn open(&self) {
        self.handle(Event::Opened);
    }

    /// Notes that records are durable.
    pub(crate) fn note_durable(&self, changes: &Changes) {
        self.handle(Event::Durable(changes.clone()));
    }

    /// Notes that another agent leads.
    pub(crate) fn note_deposed(&self) {
        self.is_deposed.store(true, Ordering::SeqCst);
    }

    /// Whether another agent leads, so that this one knows no more what was changed.
    pub(crate) fn is_deposed(&self) -> bool {
        self.is_deposed.load(Ordering::SeqCst)
    }

    /// Admits the change of a request that has made none yet, as [`Requests::admit`] does. The
    /// caller has its turn.
    pub(crate) fn admit(
        &self,
        directory: &Directory,
        actor: Actor,
    ) -> Result<Vec<RequestId>, Refusal> {
        let is_under_way = |request| self.state.lock().core.is_under_way(request);
        let mut requests = self.requests.lock();
        requests.admit(Instant::now(), directory, actor, is_under_way)
    }

    /// Begins a change of these subjects. The caller has its turn, and keeps it only if the change
    /// [may be decided](Underway::may_decide) now. The same request of the same actor is decided after
    /// its earlier attempt has ended.
    ///
    /// # Errors
    /// [`RefusalKind::Exhausted`] if too many changes of this actor are unfinished.
    pub(crate) fn begin(
        &self,
        actor: Actor,
        request: RequestId,
        subjects: BTreeSet<String>,
    ) -> Result<Underway<'_>, Refusal> {
        let (sender, words) = channel();
        let mut state = self.state.lock();
        let id = ChangeId(state.next());
        state.changes.insert(id, sender);
        let asked = Event::Asked {
            change: id,
            actor,
            request,
            subjects: subjects.clone(),
        };
        self.note(&mut state, asked);
        drop(state);
        let mut underway = Underway {
            control: self,
            id,
            request,
            words,
            subjects,
            may_decide: false,
        };
        match underway.words.try_recv() {
            Ok(Word::Refuse) => Err(Refusal::new(
                RefusalKind::Exhausted,
                format!("{MAX_UNFINISHED} changes of {actor} are not complete yet"),
                "try again when some have been made",
            )),
            word => {
                underway.may_decide = word.is_ok();
                Ok(underway)
            }
        }
    }

    /// Adds a follower, which has a copy of this revision or none. The first update has the changes
    /// since then if the log has them, and otherwise the whole directory.
    pub(crate) fn join(
        self: &Arc<Self>,
        host: &str,
        has: Option<Revision>,
    ) -> (FollowerEntry, Updates) {
        let (sender, updates) = channel();
        let mut state = self.state.lock();
        let session = SessionId(state.next());
        state.sessions.insert(session, sender);
        let joined = Event::Joined {
            host: host.into(),
            session,
            has,
        };
        self.note(&mut state, joined);
        drop(state);
        let entry = FollowerEntry {
            control: Arc::clone(self),
            host: host.into(),
            session,
        };
        let updates = Updates {
            control: Arc::clone(self),
            host: host.into(),
            session,
            updates,
        };
        (entry, updates)
    }

    /// Sends these hosts at once what they lack, without a change that waits for them.
    pub(crate) fn hurry(&self, hosts: BTreeSet<String>) {
        self.handle(Event::Hurried(hosts));
    }

    /// Subjects of the changes that still take effect on this host.
    pub(crate) fn used(&self) -> BTreeSet<String> {
        self.state.lock().core.used()
    }

    fn handle(&self, event: Event) {
        self.note(&mut self.state.lock(), event);
    }

    /// Does the same under the lock.
    fn note(&self, state: &mut State, event: Event) {
        state.handle(event);
        let wake = state.core.wake();
        if wake.is_some_and(|at| state.wake.is_none_or(|known| at < known)) {
            self.earlier.notify_one();
        }
    }
}

impl State {
    fn next(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// Hands an event to the core, and its actions to their threads.
    fn handle(&mut self, event: Event) {
        for action in self.core.handle(Instant::now(), event) {
            // A thread that is gone has said so, or does in its next event.
            let _ = match action {
                Action::Decide(change) => self.tell(change, Word::Decide),
                Action::Refuse(change) => self.tell(change, Word::Refuse),
                Action::Reply { change, reached } => self.tell(change, Word::Reply(reached)),
                Action::Send { session, update } => {
                    let sender = self.sessions.get(&session);
                    sender.is_some_and(|sender| sender.send(update).is_ok())
                }
            };
        }
    }

    fn tell(&self, change: ChangeId, word: Word) -> bool {
        let sender = self.changes.get(&change);
        sender.is_some_and(|sender| sender.send(word).is_ok())
    }
}

impl Underway<'_> {
    /// Waits until the change may be decided. The caller has no turn.
    pub(crate) fn await_domains(&mut self) {
        self.may_decide = matches!(self.words.recv(), Ok(Word::Decide));
    }

    /// Notes that the change, or a part of it, is durable, which hosts it concerns, and where it was
    /// requested. A change that only takes members out of a fenced domain has the length of its
    /// `fence`. The caller still has its turn, so no later change is durable.
    pub(crate) fn decided(
        &self,
        concerned: BTreeSet<String>,
        asker: Option<String>,
        fence: Option<Duration>,
    ) {
        self.control.handle(Event::Decided {
            change: self.id,
            concerned,
            asker,
            fence,
        });
    }

    /// Notes that the decided change is in effect on this host. Waits until it is on the other
    /// hosts that it concerns, or until their leases are over if the domain is fenced. Returns those
    /// where it is not.
    pub(crate) fn await_hosts(self) -> Reached {
        self.control.handle(Event::InEffect(self.id));
        match self.words.recv() {
            Ok(Word::Reply(reached)) => reached,
            // The core gives a decided change no other word.
            _ => Reached::default(),
        }
    }
}

impl Drop for Underway<'_> {
    fn drop(&mut self) {
        let mut requests = self.control.requests.lock();
        requests.note_end(Instant::now(), self.request);
        drop(requests);
        let mut state = self.control.state.lock();
        state.changes.remove(&self.id);
        self.control.note(&mut state, Event::Dropped(self.id));
    }
}

impl Updates {
    /// Waits for the next update; `None` after the end of the session.
    pub(crate) fn next(&self) -> Option<Update> {
        self.updates.recv().ok()
    }

    /// Notes the result of an update.
    pub(crate) fn answer(&self, number: u64, answer: Answer) {
        self.control.handle(Event::Answered {
            host: self.host.clone(),
            session: self.session,
            number,
            answer,
        });
    }
}

impl FollowerEntry {
    /// Tells which revision the follower needs for a renewed lease; `None` after the end of the
    /// session.
    pub(crate) fn needs(&self) -> impl Fn() -> Option<Revision> + Clone + Send + 'static {
        let (control, host) = (Arc::clone(&self.control), self.host.clone());
        let session = self.session;
        move || control.state.lock().core.needs(&host, session)
    }
}

impl Drop for FollowerEntry {
    fn drop(&mut self) {
        let mut state = self.control.state.lock();
        state.sessions.remove(&self.session);
        let left = Event::Left {
            host: self.host.clone(),
            session: self.session,
        };
        self.control.note(&mut state, left);
    }
}
