//! Control of changes as a state machine, without threads, sockets or a clock.
//!
//! [`Core::handle`] takes an event and returns actions. The stages of a change are in this order:
//!
//! | stage | ends when |
//! |---|---|
//! | [`Stage::Queued`] | no earlier change of its subjects still takes effect on this host |
//! | [`Stage::Deciding`] | it is durable, and numbered |
//! | [`Stage::Here`] | it is in effect on this host |
//! | [`Stage::Elsewhere`] | it is in effect on the other hosts that it concerns: the reply |
//!
//! A change that takes members out of a fenced domain also ends when no host without it has a
//! [lease](super::lease) any more.
//!
//! Deciding is serial. Two changes of one subject (a domain, or a node that changes hands) take
//! effect here one after another, and on each follower in the order of their numbers. Changes of different
//! subjects wait for each other in no stage but the second. A request that is repeated while it is
//! under way waits for the end of its first attempt, and then finds the change made, or not.
//!
//! A decided change is sent at once to the hosts that it concerns, and to the one where it was
//! requested. The other hosts get it, with all others that they lack, when their turn in a *round*
//! comes: one round takes [`LAG`], or longer among hosts so many that their updates would fill a
//! processor. Rounds end when no host lacks a change. So the effort of a change does not grow with
//! the number of hosts that it does not concern, nor that of all changes.

mod follower;

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ops::Bound;
use std::sync::Arc;
use std::time::{Duration, Instant};

use toroid_model::directory::records::{Changes, Records};
use toroid_model::directory::requests::RequestId;
use toroid_model::directory::revision::Revision;
use toroid_model::rights::Actor;

use self::follower::{Follower, in_session};
use super::lease::surely_over;
use super::log::Log;
use super::update::SharedUpdate;

/// Time that a change waits for a connected host that it concerns.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(30);

/// Time that a change waits for the asking host if it does not concern that host, whose users look
/// at their host's copy afterwards.
pub(super) const COURTESY: Duration = Duration::from_secs(2);

/// Time in which the followers of a former leader come to this one, since they can connect. A change
/// waits for them, too.
const RETURN: Duration = Duration::from_secs(5);

/// Time of one round: a healthy host that a change does not concern gets it no later than this, or
/// than [`SHARE`] allows.
pub(super) const LAG: Duration = Duration::from_millis(250);

/// Steps in that time. Each is for an equal share of the followers.
const STEPS: u32 = 16;

/// Most followers of a step, or 1,024 in a second. With four times as many, updates took all of a
/// processor.
const SHARE: usize = 16;

/// Most unfinished changes of one user or node. An administrator's are not limited.
pub(super) const MAX_UNFINISHED: usize = 17;

/// Number of a change, in order of arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ChangeId(pub(super) u64);

/// Number of a follower's session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct SessionId(pub(super) u64);

/// An event.
#[derive(Debug)]
pub(super) enum Event {
    /// Followers can connect.
    Opened,
    /// A change of these subjects was requested.
    Asked {
        change: ChangeId,
        actor: Actor,
        request: RequestId,
        subjects: BTreeSet<String>,
    },
    /// Records were made durable.
    Durable(Changes),
    /// All records of a change are durable. It concerns these hosts. A change that has two parts is
    /// decided twice before it is in effect.
    Decided {
        change: ChangeId,
        concerned: BTreeSet<String>,
        /// Host where it was requested.
        asker: Option<String>,
        /// Length of the leases by which the domain is fenced, if the change only takes members out
        /// of one that is.
        fence: Option<Duration>,
    },
    /// These hosts are sent the durable records at once. Their leases do not depend on that.
    Hurried(BTreeSet<String>),
    /// A decided change is in effect on this host.
    InEffect(ChangeId),
    /// The requester needs no reply, because the change was refused.
    Dropped(ChangeId),
    /// A follower has a new session, and a complete copy of this revision or none.
    Joined {
        host: String,
        session: SessionId,
        has: Option<Revision>,
    },
    /// A follower has answered an update.
    Answered {
        host: String,
        session: SessionId,
        number: u64,
        answer: Answer,
    },
    /// A session has ended.
    Left { host: String, session: SessionId },
    /// Time has passed.
    Tick,
}

/// Result of an update at a follower.
#[derive(Clone, Debug)]
pub(crate) enum Answer {
    /// In effect.
    Done,
    /// In effect with exceptions.
    Except(String),
    /// Not in effect, and the follower's copy is as before.
    Failed(String),
}

/// An action.
#[derive(Debug)]
pub(super) enum Action {
    /// Decide the change in its turn.
    Decide(ChangeId),
    /// Refuse the change: its actor has too many unfinished ones.
    Refuse(ChangeId),
    /// Send a follower the update to this number. It has answered all others.
    Send { session: SessionId, update: Update },
    /// Reply to the requester.
    Reply { change: ChangeId, reached: Reached },
}

/// Update of a follower's directory, to the state after change `number`.
#[derive(Debug)]
pub(crate) struct Update {
    pub(crate) number: u64,
    pub(crate) directory: Arc<SharedUpdate>,
}

/// Hosts, with reasons.
pub(crate) type Lacking = BTreeMap<String, String>;

/// Hosts that a change concerns and where it is not in effect.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reached {
    /// Former members may go on there, for these reasons.
    pub(crate) lacking: Lacking,
    /// The lease of the host is over, so that the members there have stopped.
    pub(crate) fenced: BTreeSet<String>,
}

/// State of the control of changes.
#[derive(Debug)]
pub(super) struct Core {
    /// Name of this host, if there are several.
    host: Option<String>,
    log: Log,
    followers: BTreeMap<String, Follower>,
    /// Number of the last change that concerns each host, and of the begin of this log: earlier ones
    /// may concern any host.
    concerned: BTreeMap<String, u64>,
    begin: u64,
    changes: BTreeMap<ChangeId, Change>,
    /// Whether followers can connect.
    is_open: bool,
    /// End of the time in which they return, until it comes.
    returned: Option<Instant>,
    /// Time of the next step of a round, unless no follower lacks a change.
    step: Option<Instant>,
    /// The follower that was the last in the last step.
    visited: String,
}

#[derive(Debug)]
struct Change {
    actor: Actor,
    request: RequestId,
    subjects: BTreeSet<String>,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    Queued,
    Deciding,
    Here(Effect),
    Elsewhere(Effect, Instant),
}

/// Effect of a durable change on other hosts.
#[derive(Debug, Default)]
struct Effect {
    number: u64,
    concerned: BTreeSet<String>,
    asker: Option<String>,
    /// Time after which no host without the change has a lease, if the domain is fenced.
    fence: Option<Instant>,
}

impl Core {
    pub(super) fn new(host: Option<String>) -> Self {
        Core {
            host,
            log: Log::default(),
            followers: BTreeMap::new(),
            concerned: BTreeMap::new(),
            begin: 0,
            changes: BTreeMap::new(),
            is_open: false,
            returned: None,
            step: None,
            visited: String::new(),
        }
    }

    /// Sets the records before the first change, and their revision.
    pub(super) fn begin(&mut self, records: Records, revision: Option<Revision>) {
        self.log = Log::new(records, revision);
        self.begin = self.log.number();
    }

    /// Takes an event. Returns the actions that it makes possible.
    pub(super) fn handle(&mut self, now: Instant, event: Event) -> Vec<Action> {
        let mut actions = Vec::new();
        match event {
            Event::Opened => {
                self.is_open = true;
                self.returned = Some(now + RETURN);
            }
            Event::Asked {
                change,
                actor,
                request,
                subjects,
            } => self.ask(change, (actor, request), subjects, &mut actions),
            Event::Durable(changes) => {
                self.log.append(changes);
                self.begin_round(now);
            }
            Event::Decided {
                change,
                mut concerned,
                asker,
                fence,
            } => {
                concerned.retain(|host| Some(host) != self.host.as_ref());
                let number = self.log.number();
                if let Some(Change {
                    stage: Stage::Here(first),
                    ..
                }) = self.changes.get_mut(&change)
                {
                    concerned.append(&mut first.concerned);
                }
                let its = concerned.iter().map(|host| (host.clone(), number));
                self.concerned.extend(its);
                for host in concerned.iter().chain(&asker) {
                    if let Some(follower) = self.followers.get_mut(host) {
                        follower.urgent = number;
                        follower.update(now, &mut self.log, &mut actions);
                    }
                }
                if let Some(change) = self.changes.get_mut(&change) {
                    change.stage = Stage::Here(Effect {
                        number,
                        concerned,
                        asker,
                        fence: fence.map(|fence| now + surely_over(fence)),
                    });
                }
            }
            Event::Hurried(hosts) => {
                for host in &hosts {
                    if let Some(follower) = self.followers.get_mut(host) {
                        follower.update(now, &mut self.log, &mut actions);
                    }
                }
            }
            Event::InEffect(change) => {
                if let Some(change) = self.changes.get_mut(&change)
                    && let Stage::Here(effect) = &mut change.stage
                {
                    change.stage = Stage::Elsewhere(std::mem::take(effect), now);
                }
            }
            Event::Dropped(change) => _ = self.changes.remove(&change),
            Event::Joined { host, session, has } => {
                let has = has.and_then(|has| self.log.number_of(&has));
                let mut follower = Follower::new(session);
                follower.is_asked = true;
                follower.urgent = self.concerned.get(&host).copied().unwrap_or(self.begin);
                self.followers.insert(host, follower);
                // Also if it has all: by the update it learns that it does.
                actions.push(Action::Send {
                    session,
                    update: Update {
                        number: self.log.number(),
                        directory: self.log.since(has),
                    },
                });
            }
            Event::Answered {
                host,
                session,
                number,
                answer,
            } => {
                let followers = &mut self.followers;
                if let Some(follower) = in_session(followers, &host, session) {
                    follower.hear(now, number, answer);
                    if follower.has.is_none_or(|has| has < follower.urgent) {
                        follower.update(now, &mut self.log, &mut actions);
                    }
                    self.begin_round(now);
                }
            }
            Event::Left { host, session } => {
                if in_session(&mut self.followers, &host, session).is_some() {
                    self.followers.remove(&host);
                }
            }
            Event::Tick => {}
        }
        self.returned.take_if(|end| *end <= now);
        self.reply(now, &mut actions);
        self.let_decide(&mut actions);
        self.go_round(now, &mut actions);
        actions
    }

    /// Subjects of the changes that still take effect here.
    pub(super) fn used(&self) -> BTreeSet<String> {
        let changes = self.changes.values();
        let here = changes.filter(|its| !matches!(its.stage, Stage::Elsewhere(..)));
        here.flat_map(|its| its.subjects.iter().cloned()).collect()
    }

    /// Revision that a follower needs for a renewed [lease](super::lease): that of the last change
    /// that concerns it.
    pub(super) fn needs(&self, host: &str, session: SessionId) -> Option<Revision> {
        let follower = self.followers.get(host)?;
        let its = (follower.session == session).then_some(follower)?;
        self.log.revision_at(its.urgent)
    }

    /// Whether there is an attempt to make the change of a request.
    pub(super) fn is_under_way(&self, request: RequestId) -> bool {
        self.changes.values().any(|its| its.request == request)
    }

    /// Time of the next [`Event::Tick`], if one is needed.
    pub(super) fn wake(&self) -> Option<Instant> {
        let deadlines = self.changes.values().filter_map(|change| {
            let Stage::Elsewhere(effect, since) = &change.stage else {
                return None;
            };
            let has_not = |host: &String| self.has_not(host, effect.number);
            if let Some(over) = effect.fence
                && effect.concerned.iter().any(has_not)
            {
                return Some(over);
            }
            let is_late = |host: &String| self.awaits(host, effect.number);
            let timeout = if effect.concerned.iter().any(is_late) {
                TIMEOUT
            } else {
                COURTESY
            };
            self.returned.into_iter().chain([*since + timeout]).min()
        });
        self.step.into_iter().chain(deadlines).min()
    }

    fn ask(
        &mut self,
        id: ChangeId,
        (actor, request): (Actor, RequestId),
        subjects: BTreeSet<String>,
        actions: &mut Vec<Action>,
    ) {
        let is_limited = !matches!(actor, Actor::Administrator(_));
        let theirs = self.changes.values().filter(|its| its.actor == actor);
        if is_limited && theirs.count() >= MAX_UNFINISHED {
            return actions.push(Action::Refuse(id));
        }
        let change = Change {
            actor,
            request,
            subjects,
            stage: Stage::Queued,
        };
        self.changes.insert(id, change);
    }

    /// Lets changes be decided whose subjects no other change uses here, in their order, and whose
    /// request has no earlier attempt under way.
    fn let_decide(&mut self, actions: &mut Vec<Action>) {
        let here = self.changes.values();
        let here = here.filter(|its| matches!(its.stage, Stage::Deciding | Stage::Here(_)));
        let mut used: BTreeSet<String> = here.flat_map(|its| its.subjects.clone()).collect();
        let mut requests = HashSet::new();
        for (id, change) in &mut self.changes {
            let is_first = requests.insert((change.actor, change.request));
            if !is_first || !matches!(change.stage, Stage::Queued) {
                continue;
            }
            if used.is_disjoint(&change.subjects) {
                change.stage = Stage::Deciding;
                actions.push(Action::Decide(*id));
            }
            used.extend(change.subjects.iter().cloned());
        }
    }

    /// Begins a round, unless one is under way. Its first step finds out whether it is needed. A round
    /// that waits for a follower which failed does not wait any longer.
    fn begin_round(&mut self, now: Instant) {
        if !self.followers.is_empty() {
            let soon = now + LAG / STEPS;
            self.step = Some(self.step.map_or(soon, |at| at.min(soon)));
        }
    }

    /// Makes the next step of a round when its time has come.
    fn go_round(&mut self, now: Instant, actions: &mut Vec<Action>) {
        if self.step.is_none_or(|at| at > now) {
            return;
        }
        let share = self.followers.len().div_ceil(STEPS as usize).min(SHARE);
        for _ in 0..share {
            let onwards = (Bound::Excluded(&self.visited), Bound::Unbounded);
            let next = self.followers.range::<String, _>(onwards).next();
            let Some(host) = next.or_else(|| self.followers.first_key_value()) else {
                break;
            };
            self.visited = host.0.clone();
            if let Some(follower) = self.followers.get_mut(&self.visited) {
                follower.update(now, &mut self.log, actions);
            }
        }
        let number = self.log.number();
        let waits = |its: &&Follower| !its.is_asked && its.base != Some(number);
        let waiting = self.followers.values().filter(waits);
        let first = waiting.map(|its| its.retry.unwrap_or(now)).min();
        self.step = first.map(|at| at.max(now + LAG / STEPS));
    }

    /// Replies to changes that wait for no host any more.
    fn reply(&mut self, now: Instant, actions: &mut Vec<Action>) {
        let mut changes = std::mem::take(&mut self.changes);
        changes.retain(|id, change| {
            let Stage::Elsewhere(effect, since) = &change.stage else {
                return true;
            };
            let waited = now.saturating_duration_since(*since);
            let awaits = |host: &String| self.awaits(host, effect.number);
            let has_not = |host: &String| self.has_not(host, effect.number);
            let is_awaited = match effect.fence {
                Some(over) if effect.concerned.iter().any(has_not) => now < over,
                _ => {
                    waited < TIMEOUT && effect.concerned.iter().any(awaits)
                        || waited < COURTESY && effect.asker.iter().any(awaits)
                }
            };
            if !is_awaited {
                let reached = self.reached(effect);
                actions.push(Action::Reply {
                    change: *id,
                    reached,
                });
            }
            is_awaited
        });
        self.changes = changes;
    }

    /// Whether a host is connected, or may return, and may still apply a change.
    fn awaits(&self, host: &String, number: u64) -> bool {
        match self.followers.get(host) {
            Some(follower) => follower.lacks(number),
            None => !self.is_open || self.returned.is_some(),
        }
    }

    /// Whether a change is not in effect on a host, as far as is known.
    fn has_not(&self, host: &String, number: u64) -> bool {
        let follower = self.followers.get(host);
        follower.is_none_or(|its| its.has.is_none_or(|has| has < number))
    }

    fn reached(&self, effect: &Effect) -> Reached {
        let is_fenced =
            |host: &&String| effect.fence.is_some() && self.has_not(host, effect.number);
        let (fenced, others): (Vec<_>, Vec<_>) = effect.concerned.iter().partition(is_fenced);
        let why_not = |host: &String| {
            let why = match self.followers.get(host) {
                None => Some("its agent is away".into()),
                Some(follower) => follower.why_not(effect.number),
            };
            Some((host.clone(), why?))
        };
        Reached {
            lacking: others.into_iter().filter_map(why_not).collect(),
            fenced: fenced.into_iter().cloned().collect(),
        }
    }
}

#[cfg(test)]
mod tests;
