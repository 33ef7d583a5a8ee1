//! A model of terms, leases and fences: two coordinators of a directory on etcd, one after the other,
//! and a host that one of them shrinks a domain on. Messages take any time or get lost, and each side
//! may be stopped between any two steps.
//!
//! The host's lease is the real [`Lease`].

use std::hash::{Hash, Hasher};

use stateright::{Checker, Model, Property};

use super::super::*;
use super::revision;

/// Length of a lease.
const FENCE: Duration = Duration::from_secs(2);

/// Seconds of the model.
const END: u64 = 4;

/// Renewals at a time.
const RENEWALS: usize = 2;

/// Rule that the model leaves out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Without {
    Nothing,
    /// The lease begins with the sending, and not with the answer.
    Sending,
    /// A coordinator answers only after it has read that it leads.
    Read,
    /// The read begins after the renewal came.
    FreshRead,
    /// A transaction compares the term.
    Compare,
    /// The shrink waits for the end of the lease.
    Wait,
    /// The lease counts only once the host has applied the change.
    Applying,
}

/// A renewal, or its answer, on its way.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Message {
    Renewal {
        to: usize,
    },
    /// The coordinator has it, and has read that it leads.
    Read {
        by: usize,
    },
    Answer {
        knows_shrink: bool,
    },
}

/// The whole world.
#[derive(Clone, Debug, PartialEq, Eq)]
struct World {
    now: u64,
    /// Index of the coordinator that leads, in etcd.
    leader: usize,
    /// Whether each coordinator knows that the shrink is in the directory.
    knows_shrink: [bool; 2],
    /// Last read of the first coordinator that it led, which counts for later renewals in a mutant.
    has_read: [bool; 2],
    committed: Option<u64>,
    has_returned: bool,
    /// Whether the host has carried the shrink out.
    has_shrunk: bool,
    lease: Lease,
    messages: Vec<(u64, Message)>,
}

impl Hash for World {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let lease = (self.lease.begin(), self.lease.early.len());
        (self.now, self.leader, self.knows_shrink, self.has_read).hash(state);
        (self.committed, self.has_returned, self.has_shrunk).hash(state);
        (lease, &self.messages).hash(state);
    }
}

impl World {
    /// Whether a leaver on the host may still write.
    fn serves_leaver(&self) -> bool {
        let begin = self.lease.begin();
        !self.has_shrunk && begin.is_some_and(|begin| seconds(self.now) < begin + FENCE)
    }
}

#[derive(Clone, Debug, PartialEq)]
enum Step {
    Tick,
    Renew { with: usize },
    Look { message: usize },
    Answer { message: usize },
    Hear { message: usize },
    Elect,
    Commit { by: usize },
    Adopt,
    Return,
}

fn seconds(time: u64) -> Duration {
    Duration::from_secs(time)
}

/// Revision of the directory without the shrink, or with it.
fn directory(has_shrink: bool) -> Revision {
    revision(1, 1, u64::from(has_shrink))
}

struct Fence(Without);

impl Model for Fence {
    type State = World;
    type Action = Step;

    fn init_states(&self) -> Vec<World> {
        let mut lease = Lease::default();
        lease.applied(directory(false));
        vec![World {
            now: 0,
            leader: 0,
            knows_shrink: [false; 2],
            has_read: [false; 2],
            committed: None,
            has_returned: false,
            has_shrunk: false,
            lease,
            messages: Vec::new(),
        }]
    }

    fn actions(&self, world: &World, steps: &mut Vec<Step>) {
        if world.now < END {
            steps.push(Step::Tick);
        }
        if world.messages.len() < RENEWALS {
            steps.extend((0..2).map(|with| Step::Renew { with }));
        }
        for (message, (_, kind)) in world.messages.iter().enumerate() {
            steps.push(match kind {
                Message::Renewal { .. } => Step::Look { message },
                Message::Read { .. } => Step::Answer { message },
                Message::Answer { .. } => Step::Hear { message },
            });
        }
        if world.leader == 0 {
            steps.push(Step::Elect);
        }
        if world.committed.is_none() {
            let may = |by: &usize| *by == world.leader || self.0 == Without::Compare;
            let coordinators = (0..2).filter(may);
            steps.extend(coordinators.map(|by| Step::Commit { by }));
        }
        if let Some(committed) = world.committed {
            steps.push(Step::Adopt);
            let waited = seconds(world.now - committed);
            let may = waited >= surely_over(FENCE) || self.0 == Without::Wait;
            if !world.has_returned && (may || world.has_shrunk) {
                steps.push(Step::Return);
            }
        }
    }

    fn next_state(&self, before: &World, step: Step) -> Option<World> {
        let mut world = before.clone();
        match step {
            Step::Tick => world.now += 1,
            Step::Renew { with } => {
                let renewal = Message::Renewal { to: with };
                world.messages.push((world.now, renewal));
            }
            Step::Look { message } => {
                let (_, kind) = &mut world.messages[message];
                let Message::Renewal { to } = *kind else {
                    return None;
                };
                let leads = world.leader == to;
                let is_believed = match self.0 {
                    Without::Read => to == 0 || leads,
                    Without::FreshRead => leads || world.has_read[to],
                    _ => leads,
                };
                *kind = Message::Read { by: to };
                world.has_read[to] |= leads && self.0 == Without::FreshRead;
                if !is_believed {
                    world.messages.remove(message);
                }
            }
            Step::Answer { message } => {
                let (_, kind) = &mut world.messages[message];
                let Message::Read { by } = *kind else {
                    return None;
                };
                let knows_shrink = world.knows_shrink[by];
                *kind = Message::Answer { knows_shrink };
            }
            Step::Hear { message } => {
                let (sent, kind) = world.messages.remove(message);
                let Message::Answer { knows_shrink } = kind else {
                    return None;
                };
                let is_late = self.0 == Without::Sending;
                let sent = if is_late { world.now } else { sent };
                let needs = knows_shrink && self.0 != Without::Applying;
                world.lease.answered(seconds(sent), directory(needs));
            }
            Step::Elect => {
                world.leader = 1;
                world.knows_shrink[1] = world.committed.is_some();
            }
            Step::Commit { by } => {
                world.committed = Some(world.now);
                world.knows_shrink[by] = true;
            }
            Step::Adopt => {
                world.has_shrunk = true;
                world.lease.applied(directory(true));
            }
            Step::Return => world.has_returned = true,
        }
        // Their order is of no meaning.
        world.messages.sort();
        Some(world)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("no leaver writes after the return", |_, world: &World| {
                !(world.has_returned && world.serves_leaver())
            }),
            Property::sometimes(
                "a host without the shrink has its time",
                |_, world: &World| {
                    world.has_returned && !world.has_shrunk && world.lease.begin().is_some()
                },
            ),
            Property::sometimes("a lease goes on after a shrink", |_, world: &World| {
                let begin = world.lease.begin();
                world.has_shrunk && begin > world.committed.map(seconds)
            }),
        ]
    }
}

#[test]
fn no_leaver_writes_after_the_return_whatever_happens() {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let checker = Fence(Without::Nothing).checker().threads(threads);
    let checker = checker.spawn_bfs().join();
    checker.assert_properties();
    println!("{} states", checker.unique_state_count());
}

#[test]
fn each_rule_is_needed() {
    for without in [
        Without::Sending,
        Without::Read,
        Without::FreshRead,
        Without::Compare,
        Without::Wait,
        Without::Applying,
    ] {
        let checker = Fence(without).checker().spawn_bfs().join();
        let found = checker.discovery("no leaver writes after the return");
        assert!(found.is_some(), "{without:?} is not needed");
    }
}
