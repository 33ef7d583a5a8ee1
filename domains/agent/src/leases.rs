//! This host's lease, and the deadlines that follow from it for members of fenced domains.
//!
//! ```text
//!   leader ──renewals── agent ──▶ deadlines in shared memory ◀── Ethernet driver: no frames after it
//!                                        ▲         ▲──────────── target proxy: no bytes after it
//!                                        └── fd store: freezes nodes, kills those that it cannot
//! ```
//!
//! The agent alone writes deadlines. Nobody needs it in order to stop: the others look at the memory
//! by themselves, also while the agent is stopped or dead. When the lease is extended, the fd store
//! lets the nodes go on.
//!
//! When a host hears again, it first [cuts off](Leases::cut) the members that have left meanwhile,
//! whose nodes it [holds](Leases::hold). The others go on before the processes are asked to
//! acknowledge the change.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex, MutexGuard};
use toroid_fabric::deadlines::{Deadlines, PAST};
use toroid_fabric::{NodeId, Partition};
use toroid_model::directory::revision::Revision;
use toroid_model::directory::{Directory, Domain};

use crate::control::lease::{EARLY, Lease};
use crate::fdstore::FdStore;
use crate::fdstore::freezer::DEADLINES;
use crate::fdstore::takeover::Takeover;

/// Interval of looks whether a wait is over.
const LOOK: Duration = Duration::from_millis(200);

/// Lease of this host.
#[derive(Debug)]
pub(crate) struct Leases {
    /// Memory of the deadlines, for driver, proxy and fd store.
    memory: Arc<File>,
    deadlines: Deadlines,
    fd_store: Arc<FdStore>,
    state: Mutex<State>,
    /// Signals other deadlines, and answers to renewals.
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    /// Whether this host decides by itself, and so needs no lease.
    decides: bool,
    lease: Lease,
    /// Fenced domains by number, and their members on this host.
    fenced: BTreeMap<u16, Fenced>,
    /// Nodes of this host; all of them if absent.
    own: Option<BTreeSet<u32>>,
    /// Former members that do not go on yet, each with the number of reasons.
    held: BTreeMap<NodeId, usize>,
    /// Domains and nodes that have a deadline, perhaps of the predecessor's.
    timed: (BTreeSet<Partition>, BTreeSet<NodeId>),
    /// Whether the deadlines are still the predecessor's.
    is_inherited: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Fenced {
    length: Duration,
    /// Time at which the fence came here before any other host counted on it.
    new_since: Option<Duration>,
    nodes: BTreeSet<NodeId>,
}

impl Leases {
    /// Takes over the predecessor's deadlines, or makes new ones. A host that `decides` by itself
    /// has none. It carries these nodes, or all.
    pub(crate) fn new(
        takeover: &mut Takeover,
        decides: bool,
        own: Option<BTreeSet<u32>>,
    ) -> io::Result<Self> {
        let kept = takeover.inherit(DEADLINES);
        let kept = kept.and_then(|kept| kept.descriptors.into_iter().next());
        let memory = kept.map_or_else(Deadlines::create, |kept| Ok(kept.into()))?;
        Self::with(memory, Arc::clone(&takeover.fd_store), decides, own)
    }

    fn with(
        memory: File,
        fd_store: Arc<FdStore>,
        decides: bool,
        own: Option<BTreeSet<u32>>,
    ) -> io::Result<Self> {
        let deadlines = Deadlines::map(&memory, true)?;
        let begin = deadlines.begin();
        let since = (begin > 0 && !decides).then(|| Duration::from_nanos(begin));
        let timed = (deadlines.domains().collect(), deadlines.nodes().collect());
        let leases = Leases {
            memory: Arc::new(memory),
            deadlines,
            fd_store,
            state: Mutex::new(State {
                decides,
                lease: Lease::since(since),
                fenced: BTreeMap::new(),
                own,
                held: BTreeMap::new(),
                timed,
                is_inherited: true,
            }),
            changed: Condvar::new(),
        };
        leases.keep();
        Ok(leases)
    }

    /// A host by itself, without an fd store.
    #[cfg(test)]
    pub(crate) fn none() -> Arc<Self> {
        let memory = Deadlines::create().expect("there is memory");
        Arc::new(Self::with(memory, Arc::default(), true, None).expect("it can be mapped"))
    }

    /// Puts the deadlines into the fd store.
    pub(crate) fn keep(&self) {
        self.fd_store.put(DEADLINES, &(), &[self.memory.as_fd()]);
    }

    /// Memory of the deadlines.
    pub(crate) fn memory(&self) -> Arc<File> {
        Arc::clone(&self.memory)
    }

    /// Present time of leases.
    pub(crate) fn now() -> Duration {
        Duration::from_nanos(Deadlines::now())
    }

    /// Adds the fences of a directory that is about to be in effect.
    pub(crate) fn include(&self, directory: &Directory) {
        let mut state = self.state.lock();
        let mut fenced = state.fenced.clone();
        for (id, added) in state.fences_of(directory) {
            let fence = fenced.entry(id).or_insert_with(|| added.clone());
            fence.nodes.extend(added.nodes);
            fence.length = added.length.min(fence.length);
        }
        self.set(&mut state, fenced);
    }

    /// Sets the fences of the directory that is in effect. These nodes are still leaving domains.
    pub(crate) fn settle(
        &self,
        directory: &Directory,
        leaving: &BTreeMap<Partition, BTreeSet<NodeId>>,
    ) {
        let mut state = self.state.lock();
        let mut fenced = state.fences_of(directory);
        for (id, before) in &state.fenced {
            let Some(leaving) = leaving.get(&Partition((*id).into())) else {
                continue;
            };
            let still = &before.nodes & leaving;
            if !still.is_empty() {
                let fence = fenced.entry(*id).or_insert_with(|| before.clone());
                fence.nodes.extend(still);
            }
        }
        self.set(&mut state, fenced);
    }

    fn set(&self, state: &mut MutexGuard<'_, State>, fenced: BTreeMap<u16, Fenced>) {
        if fenced == state.fenced && !state.is_inherited {
            return;
        }
        state.is_inherited = false;
        state.fenced = fenced;
        self.write(state);
    }

    /// Notes the answer to a renewal that was sent at this time.
    pub(crate) fn answered(&self, sent: Duration, needs: Revision) {
        self.extend(|lease| lease.answered(sent, needs));
    }

    /// Notes that former members are cut off in a directory of this revision: they have no ports
    /// any more, and their nodes have ended, go on without this domain, or are held.
    pub(crate) fn cut(&self, revision: Option<Revision>) {
        if let Some(revision) = revision {
            self.extend(|lease| lease.applied(revision));
        }
    }

    /// Notes that this host has read at this time, or later, that it leads.
    pub(crate) fn led(&self, since: Duration) {
        self.extend(|lease| *lease = Lease::since(lease.begin().max(Some(since))));
    }

    fn extend(&self, extend: impl FnOnce(&mut Lease)) {
        let mut state = self.state.lock();
        let before = state.lease.begin();
        extend(&mut state.lease);
        if state.lease.begin() != before {
            self.write(&mut state);
        }
        self.changed.notify_all();
    }

    /// Whether members of some domain have stopped on this host, or stop within this time.
    pub(crate) fn stops_within(&self, time: Duration) -> bool {
        self.state.lock().stops_within(time)
    }

    /// Whether a node has stopped.
    pub(crate) fn is_stopped(&self, node: NodeId) -> bool {
        self.deadlines.is_stopped(node)
    }

    /// Keeps nodes stopped while the others go on.
    pub(crate) fn hold(&self, nodes: &BTreeSet<NodeId>) {
        if nodes.is_empty() {
            return;
        }
        let mut state = self.state.lock();
        for node in nodes {
            *state.held.entry(*node).or_default() += 1;
        }
        self.write(&mut state);
    }

    /// Keeps nodes stopped that have stopped, or stop within this time: former members of changes
    /// that the predecessor has not completed.
    pub(crate) fn hold_stopped(&self, nodes: &BTreeSet<NodeId>, time: Duration) {
        let soon = Deadlines::now() + nanos(time);
        let stops = |node: &&NodeId| (1..=soon).contains(&self.deadlines.node(**node));
        self.hold(&nodes.iter().filter(stops).copied().collect());
    }

    /// Ends all holds.
    pub(crate) fn release_all(&self) {
        let mut state = self.state.lock();
        state.held.clear();
        self.write(&mut state);
    }

    /// Ends that.
    pub(crate) fn release(&self, nodes: &BTreeSet<NodeId>) {
        let mut state = self.state.lock();
        for node in nodes {
            if let Some(reasons) = state.held.get_mut(node) {
                *reasons -= 1;
            }
        }
        state.held.retain(|_, reasons| *reasons > 0);
        self.write(&mut state);
    }

    /// Waits until the members go on, the leader says that this host needs a later change first, or
    /// this returns true.
    pub(crate) fn await_extension(&self, is_over: impl Fn() -> bool) {
        let mut state = self.state.lock();
        while state.stops_within(Duration::ZERO) && !state.lease.is_behind() && !is_over() {
            self.changed.wait_for(&mut state, LOOK);
        }
    }

    /// Writes all deadlines.
    fn write(&self, state: &mut State) {
        let begin = state.lease.begin().filter(|_| !state.decides);
        self.deadlines.set_begin(begin.map_or(0, nanos));
        let (mut domains, mut nodes) = (BTreeMap::new(), BTreeMap::new());
        for (id, fenced) in &state.fenced {
            let at = state.deadline(fenced);
            if at > 0 {
                domains.insert(Partition((*id).into()), at);
                for node in &fenced.nodes {
                    let earliest = nodes.entry(*node).or_insert(at);
                    *earliest = at.min(*earliest);
                }
            }
        }
        nodes.extend(state.held.keys().map(|node| (*node, PAST)));
        let (timed_domains, timed_nodes) = &state.timed;
        if state.is_inherited {
            nodes.extend(timed_nodes.iter().map(|id| (*id, self.deadlines.node(*id))));
            domains.extend(
                timed_domains
                    .iter()
                    .map(|id| (*id, self.deadlines.domain(*id))),
            );
            nodes.extend(state.held.keys().map(|node| (*node, PAST)));
        }
        for gone in timed_domains
            .iter()
            .filter(|its| !domains.contains_key(its))
        {
            self.deadlines.set_domain(*gone, 0);
        }
        for gone in timed_nodes.iter().filter(|its| !nodes.contains_key(its)) {
            self.deadlines.set_node(*gone, 0);
        }
        for (domain, at) in &domains {
            self.deadlines.set_domain(*domain, *at);
        }
        for (node, at) in &nodes {
            self.deadlines.set_node(*node, *at);
        }
        let first = domains.values().min().copied();
        self.deadlines.set_first(first.unwrap_or_default());
        state.timed = (domains.into_keys().collect(), nodes.into_keys().collect());
        self.fd_store.look();
        self.changed.notify_all();
    }
}

impl State {
    /// Fences of a directory, with the members on this host.
    fn fences_of(&self, directory: &Directory) -> BTreeMap<u16, Fenced> {
        let is_own = |node: &NodeId| self.own.as_ref().is_none_or(|own| own.contains(&node.0));
        let fenced = |domain: &Domain| {
            let fence = domain.fence?;
            // Others may count on the fence of an inherited copy.
            let is_new = fence.agreed.is_none() && !self.is_inherited;
            let new_since = match self.fenced.get(&domain.id) {
                Some(before) => before.new_since,
                None => is_new.then(Leases::now),
            };
            let fenced = Fenced {
                length: Duration::from_secs(fence.seconds.into()),
                new_since,
                nodes: domain.members.keys().copied().filter(is_own).collect(),
            };
            Some((domain.id, fenced))
        };
        let all = directory.fenced_domains().filter_map(fenced);
        all.filter(|(_, fenced)| !fenced.nodes.is_empty()).collect()
    }

    /// Time at which the members of a domain stop; 0: never.
    fn deadline(&self, fenced: &Fenced) -> u64 {
        if self.decides {
            return 0;
        }
        let begin = self.lease.begin().max(fenced.new_since);
        begin.map_or(PAST, |begin| nanos(begin + fenced.length - EARLY))
    }

    fn stops_within(&self, time: Duration) -> bool {
        let now = Deadlines::now() + nanos(time);
        let mut all = self.fenced.values().map(|fenced| self.deadline(fenced));
        all.any(|at| at != 0 && at <= now)
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use toroid_model::directory::Wanted;
    use toroid_model::directory::full_members;

    use super::*;
    use crate::cluster::revisions::tests::revision;

    const NODES: [NodeId; 3] = [NodeId(0), NodeId(1), NodeId(2)];

    fn leases() -> Leases {
        let memory = Deadlines::create().unwrap();
        Leases::with(memory, Arc::default(), false, Some([0, 1].into())).unwrap()
    }

    fn directory(fence: u32) -> Directory {
        let mut directory = Directory::new("4x1x1".parse().unwrap());
        let wanted = Wanted {
            name: "blue".into(),
            members: full_members(NODES),
            ..Wanted::default()
        };
        directory.create(wanted).unwrap();
        let fenced = directory.fence("blue", Some(fence)).unwrap();
        directory.agree_on_fence(&fenced);
        directory
    }

    fn stopped(leases: &Leases) -> [bool; 3] {
        NODES.map(|node| leases.is_stopped(node))
    }

    #[test]
    fn members_of_this_host_stop_without_a_lease_and_go_on_with_one() {
        let leases = leases();
        let mut directory = directory(60);
        leases.include(&directory);
        assert_eq!(stopped(&leases), [true, true, false]);
        leases.answered(Leases::now(), revision(1, 1, 7));
        leases.cut(Some(revision(1, 1, 6)));
        assert!(leases.stops_within(Duration::ZERO));
        // A node leaves in the change that the lease needs.
        let (left, leaving) = ([NodeId(0)].into(), Partition(1));
        leases.hold(&left);
        leases.cut(Some(revision(1, 1, 7)));
        assert_eq!(stopped(&leases), [true, false, false]);
        assert!(!leases.stops_within(Duration::from_secs(50)));
        assert!(leases.stops_within(Duration::from_secs(60)));
        directory.shrink("blue", &left).unwrap();
        leases.settle(&directory, &[(leaving, left.clone())].into());
        leases.release(&left);
        assert_ne!(leases.deadlines.node(NodeId(0)), 0);
        leases.settle(&directory, &BTreeMap::new());
        assert_eq!(leases.deadlines.node(NodeId(0)), 0);
        directory.fence("blue", None).unwrap();
        leases.settle(&directory, &BTreeMap::new());
        let memory = Deadlines::map(&leases.memory, false).unwrap();
        assert_eq!(memory.domain(leaving), 0);
        assert_eq!(memory.node(NodeId(1)), 0);
    }

    #[test]
    fn a_lease_ends_half_a_second_early_and_outlives_the_agent() {
        let leases = leases();
        let (sent, now) = (Leases::now(), Leases::now());
        leases.answered(sent, revision(1, 1, 7));
        leases.cut(Some(revision(1, 1, 7)));
        leases.include(&directory(60));
        let at = leases.deadlines.node(NodeId(1));
        assert_eq!(at, nanos(sent + Duration::from_millis(59_500)));
        assert!(at > nanos(now));
        let memory = leases.memory.try_clone().unwrap();
        let next = |decides| {
            let memory = memory.try_clone().unwrap();
            Leases::with(memory, Arc::default(), decides, None).unwrap()
        };
        let follower = next(false);
        follower.include(&directory(60));
        assert_eq!(follower.deadlines.node(NodeId(1)), at);
        // A host that decided by itself has no lease as a follower.
        let leader = next(true);
        leader.include(&directory(60));
        assert_eq!(leader.deadlines.node(NodeId(1)), 0);
        let former = next(false);
        former.include(&directory(60));
        assert_eq!(former.deadlines.node(NodeId(1)), PAST);
    }

    /// No other host counts on a fence before this one has confirmed it.
    #[test]
    fn a_new_fence_stops_nobody_at_once() {
        let mut pending = directory(60);
        pending.fence("blue", None).unwrap();
        let open = pending.clone();
        let fenced = pending.fence("blue", Some(60)).unwrap();
        let mut agreed = pending.clone();
        agreed.agree_on_fence(&fenced);
        let leases = leases();
        for directory in [&open, &pending, &agreed] {
            leases.include(directory);
            leases.settle(directory, &BTreeMap::new());
            assert_eq!(stopped(&leases), [false; 3]);
        }
        // Of a copy that may be old.
        let leases = self::leases();
        for directory in [&pending, &agreed, &pending] {
            leases.include(directory);
            assert_eq!(stopped(&leases), [true, true, false]);
        }
    }
}
