//! Members of domains on five hosts with a directory on etcd, as clients change and see them while faults
//! strike agents, drivers, fd stores, cables and etcd, several at a time.
//!
//! A change is answered when it is in effect on all hosts with members, and changes are decided one
//! after another. So, for each node and domain, the answers to changes are linearizable, and so are
//! changes and the reads at any one host that always has a member. Reads at two hosts are not: during a
//! change they may differ.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use tests::cluster::{is_nightly, leaves_nothing};
use tests::etcd::Etcd;
use tests::hosts::{Host, Hosts};
use tests::linearizability::membership::{Call, Operation, check};
use tests::nemesis::{Chronicle, Nemesis};
use tests::process::{eventually, now_ns};
use tests::random::Random;
use toroid_client::admin::{ClientError, Control};
use toroid_model::directory::revision::Revision;
use toroid_model::info::DomainInfo;
use toroid_model::refusal::RefusalKind;

const HOSTS: [&str; 5] = ["a", "b", "c", "d", "e"];
const CANDIDATES: [&str; 3] = ["a", "b", "c"];

/// Domains that change, and the hosts whose first node is always a member.
const DOMAINS: [(&str, &[usize]); 3] = [
    ("red", &[0, 1, 2, 3, 4]),
    ("green", &[0, 1]),
    ("white", &[2, 3, 4]),
];

/// Nodes that join these domains and leave them.
const NODES: [&str; 4] = ["1,0,0", "1,1,0", "1,2,0", "1,3,0"];

/// Faults of a round, and how many strike at a time.
const FAULTS: usize = 25;
const AT_A_TIME: usize = 4;

/// Clients of each host. Many of their changes wait for a host that a fault has struck.
const CLIENTS: u64 = 3;

/// Longest pause of a client between two changes, and pause between two looks, in milliseconds.
const THINKING: usize = 200;
const LOOKING: u64 = 100;

/// Outcome of a change.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Outcome {
    /// In effect on all hosts that it concerns.
    Done,
    /// Made, and not in effect on these hosts.
    DoneExcept(Vec<usize>),
    /// The node was no member.
    Absent,
    /// Nothing was changed.
    Refused,
    /// Made, made later, or not made.
    Unknown,
}

impl Outcome {
    fn of(error: &ClientError) -> Self {
        let text = error.to_string();
        let lacks = |host: &usize| text.contains(&format!("on host {}: ", HOSTS[*host]));
        match error {
            ClientError::Refused(_) if text.contains("is unknown") => Outcome::Unknown,
            ClientError::Refused(_) if text.contains("the change is made, durable") => {
                Outcome::DoneExcept((0..HOSTS.len()).filter(lacks).collect())
            }
            ClientError::Refused(why) if why.kind == RefusalKind::NotFound => Outcome::Absent,
            ClientError::Refused(_)
            | ClientError::NoAgent { .. }
            | ClientError::Orphaned { .. }
            | ClientError::Silent => Outcome::Refused,
            _ => Outcome::Unknown,
        }
    }
}

/// A change that a client has asked for.
#[derive(Debug)]
struct Change {
    host: usize,
    domain: usize,
    node: usize,
    is_grow: bool,
    begin_ns: u64,
    end_ns: u64,
    outcome: Outcome,
    answer: String,
}

impl Change {
    /// The call as its answer describes the decision, in which all hosts share.
    fn decision(&self) -> Option<Call> {
        match self.outcome {
            Outcome::Absent => Some(self.call(Operation::Found(false), true)),
            Outcome::Refused => None,
            _ => Some(self.call(self.operation(), self.outcome != Outcome::Unknown)),
        }
    }

    /// The same with the effect on a host that it concerns.
    fn effect(&self, host: usize) -> Option<Call> {
        match &self.outcome {
            Outcome::Absent | Outcome::Refused => None,
            Outcome::DoneExcept(hosts) => Some(self.call(self.operation(), !hosts.contains(&host))),
            outcome => Some(self.call(self.operation(), *outcome == Outcome::Done)),
        }
    }

    fn operation(&self) -> Operation {
        if self.is_grow {
            Operation::Join
        } else {
            Operation::Leave
        }
    }

    fn call(&self, operation: Operation, has_ended: bool) -> Call {
        let verb = if self.is_grow { "grow" } else { "shrink" };
        Call {
            operation,
            begin_ns: self.begin_ns,
            end_ns: has_ended.then_some(self.end_ns),
            origin: format!("{verb} at host {}: {}", HOSTS[self.host], self.answer),
        }
    }
}

/// A domain as a host has shown it.
#[derive(Debug)]
struct Sight {
    host: usize,
    domain: usize,
    begin_ns: u64,
    end_ns: u64,
    epoch: u32,
    members: [bool; NODES.len()],
}

impl Sight {
    fn call(&self, node: usize) -> Call {
        Call {
            operation: Operation::Found(self.members[node]),
            begin_ns: self.begin_ns,
            end_ns: Some(self.end_ns),
            origin: format!("show at host {}, epoch {}", HOSTS[self.host], self.epoch),
        }
    }
}

/// All that clients have done and seen.
#[derive(Debug, Default)]
struct Record {
    changes: Mutex<Vec<Change>>,
    /// In the order in which each host has shown them.
    sights: Mutex<Vec<Sight>>,
    revisions: Mutex<Vec<(usize, Revision)>>,
}

/// A story on five hosts.
struct Story<'a> {
    hosts: [&'a Host; HOSTS.len()],
    chronicle: &'a Chronicle,
    nemesis: &'a Nemesis<'a>,
    record: Record,
}

impl Story<'_> {
    /// Makes changes at a host until it `is_over`.
    fn change(&self, host: usize, mut random: Random, is_over: &AtomicBool) {
        let mut connection = None;
        while !is_over.load(Ordering::Relaxed) {
            thread::sleep(Duration::from_millis(random.below(THINKING) as u64));
            let (domain, node) = (random.below(DOMAINS.len()), random.below(NODES.len()));
            let (name, nodes) = (DOMAINS[domain].0, [NODES[node].to_owned()]);
            let is_grow = random.one_in(2);
            let begin_ns = self.chronicle.now_ns();
            let asked = self
                .connect(host, &mut connection)
                .and_then(|agent| match is_grow {
                    true => agent.grow(name, &nodes).map(drop),
                    false => agent.shrink(name, &nodes).map(drop),
                });
            let (outcome, answer) = match &asked {
                Ok(()) => (Outcome::Done, "done".into()),
                Err(error) => (Outcome::of(error), error.to_string()),
            };
            if !matches!(asked, Ok(()) | Err(ClientError::Refused(_))) {
                connection = None;
            }
            let end_ns = self.chronicle.now_ns();
            lock(&self.record.changes).push(Change {
                host,
                domain,
                node,
                is_grow,
                begin_ns,
                end_ns,
                outcome,
                answer,
            });
        }
    }

    /// Looks at the copy of a host until it `is_over`.
    fn watch(&self, host: usize, is_over: &AtomicBool) {
        let mut connection = None;
        while !is_over.load(Ordering::Relaxed) {
            let looked = self.connect(host, &mut connection);
            if looked.and_then(|agent| self.look(host, agent)).is_err() {
                connection = None;
            }
            thread::sleep(Duration::from_millis(LOOKING));
        }
    }

    fn look(&self, host: usize, agent: &mut Control) -> Result<(), ClientError> {
        let status = agent.status()?;
        self.nemesis.note_coordinator(&status);
        let revision = status.revision.expect("there are several hosts");
        lock(&self.record.revisions).push((host, revision));
        for (domain, (name, _)) in DOMAINS.iter().enumerate() {
            let begin_ns = self.chronicle.now_ns();
            let info = agent.show(name)?;
            let end_ns = self.chronicle.now_ns();
            lock(&self.record.sights).push(Sight {
                host,
                domain,
                begin_ns,
                end_ns,
                epoch: info.epoch,
                members: NODES.map(|node| has(&info, node)),
            });
        }
        Ok(())
    }

    fn connect<'c>(
        &self,
        host: usize,
        connection: &'c mut Option<Control>,
    ) -> Result<&'c mut Control, ClientError> {
        if connection.is_none() {
            *connection = Some(Control::connect(&self.hosts[host].agent.state())?);
        }
        Ok(connection.as_mut().expect("it was just made"))
    }

    /// Lets faults strike while clients work, and waits until all hosts agree.
    fn round(&self, seed: u64) {
        let is_over = &AtomicBool::new(false);
        let healed = thread::scope(|scope| {
            let _over = Over(is_over);
            for host in 0..HOSTS.len() {
                for client in 0..CLIENTS {
                    let random = Random(seed ^ (1 + client + CLIENTS * host as u64) << 32);
                    scope.spawn(move || self.change(host, random, is_over));
                }
                scope.spawn(move || self.watch(host, is_over));
            }
            self.nemesis.strike(seed, FAULTS, AT_A_TIME);
            self.chronicle.note("all faults are over");
            let healed = self.chronicle.now_ns();
            let is_new = |its: &Change| its.begin_ns > healed && its.outcome == Outcome::Done;
            for host in 0..HOSTS.len() {
                eventually("each host makes changes", || {
                    let changes = lock(&self.record.changes);
                    changes.iter().any(|its| its.host == host && is_new(its))
                });
            }
            healed
        });
        let changed = self.chronicle.now_ns();
        self.chronicle.note("all clients have ended");
        eventually("all hosts agree", || {
            let views = self.hosts.map(view);
            views.iter().all(|view| view.is_some() && *view == views[0])
        });
        let agreed = self.chronicle.now_ns();
        self.chronicle.note("all agree");
        eprintln!(
            "after the last fault all hosts make changes in {:.1} s, and then agree in {:.1} s",
            (changed - healed) as f64 / 1e9,
            (agreed - changed) as f64 / 1e9
        );
        for (host, its) in self.hosts.iter().enumerate() {
            let mut agent = Control::connect(&its.agent.state()).expect("its agent runs");
            self.look(host, &mut agent).expect("it answers");
            its.agent.goes_on();
        }
    }

    /// Checks all that was seen.
    fn judge(&self) {
        let changes = lock(&self.record.changes);
        let sights = lock(&self.record.sights);
        let mut outcomes = BTreeMap::<String, usize>::new();
        for change in &*changes {
            let outcome = format!("{:?}", change.outcome);
            let kind = outcome.split('(').next().unwrap_or_default();
            *outcomes.entry(kind.to_owned()).or_default() += 1;
        }
        eprintln!("{} looks, changes: {outcomes:?}", sights.len());
        for (domain, (name, hosts)) in DOMAINS.iter().enumerate() {
            for (node, place) in NODES.iter().enumerate() {
                let its = |change: &&Change| (change.domain, change.node) == (domain, node);
                let what = format!("node {place} in domain {name}");
                let decisions = changes.iter().filter(its).filter_map(Change::decision);
                is_linearizable(&format!("answers about {what}"), decisions.collect());
                for host in *hosts {
                    let its_sights = sights.iter();
                    let its_sights =
                        its_sights.filter(|its| (its.domain, its.host) == (domain, *host));
                    let effects = changes.iter().filter(its);
                    let effects = effects.filter_map(|change| change.effect(*host));
                    let calls = effects.chain(its_sights.map(|sight| sight.call(node)));
                    let what = format!("{what} at host {}", HOSTS[*host]);
                    is_linearizable(&what, calls.collect());
                }
            }
            for (host, who) in HOSTS.iter().enumerate() {
                let its = sights
                    .iter()
                    .filter(|its| (its.domain, its.host) == (domain, host));
                let epochs: Vec<u32> = its.map(|its| its.epoch).collect();
                let rises = epochs.is_sorted();
                assert!(rises, "epochs of {name} at host {who}: {epochs:?}");
            }
        }
        let of = |wanted: &str| outcomes.get(wanted).copied().unwrap_or_default();
        assert!(of("Done") > 100, "{outcomes:?}");
        check_revisions(&lock(&self.record.revisions));
    }
}

/// Each host's revision only rises, and in the order of revisions one term follows another one.
fn check_revisions(seen: &[(usize, Revision)]) {
    let mut last: [Option<Revision>; HOSTS.len()] = [None; HOSTS.len()];
    let mut terms = BTreeMap::new();
    for (host, now) in seen {
        if let Some(before) = last[*host].replace(*now) {
            let rises = before.number <= now.number && before.term.number <= now.term.number;
            assert!(rises, "host {}: {before:?}, then {now:?}", HOSTS[*host]);
            assert_eq!(before.fabric, now.fabric);
        }
        let term = terms.entry(now.number).or_insert(now.term);
        assert_eq!(*term, now.term, "two terms have revision {}", now.number);
    }
    let terms: Vec<_> = terms.values().collect();
    for two in terms.windows(2) {
        let [before, after] = [two[0], two[1]];
        let follows = before.number < after.number || before == after;
        assert!(follows, "{before:?}, then {after:?}");
    }
    let newest = terms.last().map_or(0, |term| term.number);
    eprintln!("{} revisions seen, the last in term {newest}", terms.len());
}

#[track_caller]
fn is_linearizable(what: &str, mut calls: Vec<Call>) {
    calls.sort_by_key(|call| call.begin_ns);
    let Err(wrong) = check(&calls) else {
        return;
    };
    let mut text = String::new();
    // Those around it, and earlier ones that may explain them.
    let (begin, end) = (
        calls[wrong].begin_ns,
        calls[wrong].end_ns.unwrap_or_default(),
    );
    let near = begin.saturating_sub(15_000_000_000);
    let shown = calls.iter().enumerate();
    for (n, call) in
        shown.filter(|(_, its)| its.begin_ns <= end && its.end_ns.is_none_or(|end| end >= near))
    {
        let mark = if n == wrong { "->" } else { "  " };
        let seconds = |ns: u64| ns as f64 / 1e9;
        let end = call
            .end_ns
            .map_or("?".into(), |end| format!("{:.4}", seconds(end)));
        let _ = writeln!(
            text,
            "{mark} {:.4} to {end}: {:?}: {}",
            seconds(call.begin_ns),
            call.operation,
            call.origin
        );
    }
    panic!("{what}: no order of these calls explains the one marked\n{text}");
}

fn has(info: &DomainInfo, node: &str) -> bool {
    let mut members = info.members.iter();
    members.any(|member| member.node.to_string() == node)
}

/// A host's copy of the directory, if its agent answers.
fn view(host: &Host) -> Option<(Vec<DomainInfo>, Revision)> {
    let mut agent = Control::connect(&host.agent.state()).ok()?;
    let domains = agent.list().ok()?;
    Some((domains, agent.status().ok()?.revision?))
}

/// Tells threads, when it is dropped, that they may end.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().expect("no thread has panicked")
}

#[test]
fn hosts_nemesis_membership_is_linearizable_whatever_fails() {
    let seed = std::env::var("TOROID_TEST_SEED");
    let seed: u64 = seed.map_or(now_ns(), |seed| seed.parse().expect("a number"));
    let rounds = if is_nightly() { 80 } else { 8 };
    leaves_nothing(|| {
        eprintln!("TOROID_TEST_SEED={seed}");
        let chronicle = Chronicle::begin();
        let hosts = Hosts::down_yet(HOSTS.len());
        let etcd = Etcd::start(&hosts, 3);
        let nemesis = Nemesis::start::<{ HOSTS.len() }>(&hosts, &CANDIDATES, etcd, &chronicle);
        hosts.coordinator();
        let story = Story {
            hosts: hosts.each(),
            chronicle: &chronicle,
            nemesis: &nemesis,
            record: Record::default(),
        };
        let last = story.hosts[HOSTS.len() - 1];
        for (name, hosts) in DOMAINS {
            let nodes: Vec<String> = hosts.iter().map(|host| format!("0,{host},0")).collect();
            let nodes: Vec<&str> = nodes.iter().map(String::as_str).collect();
            last.agent.domain(name, &nodes);
        }
        // No client changes this one.
        let [owner, member] = ["0,4,0", "1,4,0"];
        last.agent.domain("blue", &[owner, member]);
        hosts.agree();
        let (memory, key) = last.agent.owner(owner);
        let tally = last.agent.peer(member, "tally", owner, &key);
        for round in 0..rounds {
            chronicle.note(format!("round {round}"));
            story.round(Random(seed.wrapping_add(round)).number());
        }
        eprintln!("faults: {}", nemesis.counts());
        let count = tally.counted();
        assert!(count > 0 && memory.counted() == count, "{count} additions");
        story.judge();
    });
}
