//! Simulation of clusters on virtual time: a leader, whose [`Core`] is the real one, and followers
//! with their own durable copies. Each seed gives a cluster, its changes and its faults; a failing
//! seed prints its story.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Write as _;
use std::time::{Duration, Instant};

use fastrand::Rng;
use toroid_model::directory::records::{Changes, Records};
use toroid_model::rights::Actor;
use toroid_protocol::hosts::DirectoryUpdate;

use super::core::{Action, Answer, COURTESY, ChangeId, Core, Event, Lacking, SessionId};
use super::core::{MAX_UNFINISHED, Update};
use super::log::apply;

/// Key of the record with the version of the directory.
const VERSION: &str = "version";

const DOMAINS: [&str; 5] = ["slow", "red", "green", "blue", "white"];

/// Exception of a host that applies a change.
const EXCEPTION: &str = "a port is spoiled";

/// Time of a seed's changes and faults, before all faults end.
const FAULTY: Duration = Duration::from_secs(40);

/// Time after which nothing may be open any more.
const END: Duration = Duration::from_secs(200);

/// Steps after which a seed does not come to rest.
const MOST_STEPS: usize = 100_000;

/// Longest healthy steps: a message, an application, a decision and its effect on the leader.
const MESSAGE: u64 = 20;
const APPLICATION: u64 = 60;
const DECISION: u64 = 5;
const EFFECT: u64 = 40;

/// Longest time of a change without faulty hosts: it waits for one update under way at each host
/// before its own, and for earlier changes of its domain.
const HEALTHY: Duration = Duration::from_millis(1500);

/// Time after which both sides notice a cut connection.
const NOTICED: u64 = 5_000;

/// A rule that a simulation breaks, to show that the checks find it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mutant {
    /// No other host is awaited.
    NoWait,
    /// All hosts are awaited.
    WaitForAll,
    /// A follower answers before its copy is durable and in effect.
    AnswerFirst,
    /// A change is said to be in effect here when it is durable.
    Early,
    /// Changes of one domain are not ordered here.
    NoOrder,
    /// A failed update is said to be done.
    FailedIsDone,
    /// A durable change is not published.
    Unpublished,
}

/// Something that happens at its time.
#[derive(Debug)]
enum Happening {
    Request,
    Decide(ChangeId),
    InEffect(ChangeId),
    Arrive(usize, SessionId, Update),
    Applied(usize, SessionId, u64, DirectoryUpdate, u64),
    Reply(usize, SessionId, u64, Answer),
    Tick,
    Fault,
    End(usize, Fault),
    Notice(usize, SessionId),
    Connect(usize),
    Restart,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// A member process does not acknowledge.
    Stuck,
    /// The cable is cut.
    Cut,
    /// The agent is killed.
    Killed,
    /// The disk is full.
    Full,
}

/// A follower.
#[derive(Debug, Default)]
struct Follower {
    records: Records,
    session: Option<SessionId>,
    faults: Vec<Fault>,
    /// Time until which it is or was in trouble.
    trouble: Duration,
    /// Messages that a cut cable holds, to it and from it.
    held: VecDeque<Happening>,
    /// Applications that do not end while a process is stuck.
    stuck: VecDeque<Happening>,
    /// Time until which it applies an earlier update.
    busy: Duration,
    /// Number of its agent. An application of an earlier one has ended with it.
    run: u64,
    /// The agent that has the session.
    session_run: u64,
    /// Time of the last message each way.
    last: [Duration; 2],
}

/// A change that was requested.
#[derive(Clone, Debug)]
struct Asked {
    domain: usize,
    at: Duration,
    asker: Option<usize>,
    version: Option<usize>,
    concerned: BTreeSet<usize>,
    is_in_effect: bool,
}

struct World {
    rng: Rng,
    mutant: Option<Mutant>,
    story: Option<String>,
    start: Instant,
    now: Duration,
    happenings: BTreeMap<(Duration, u64), Happening>,
    last: u64,
    /// Absent while the leader is killed.
    core: Option<Core>,
    /// The leader's durable directory, and each version of it.
    records: Records,
    versions: Vec<Records>,
    deciding: VecDeque<ChangeId>,
    asked: BTreeMap<ChangeId, Asked>,
    followers: Vec<Follower>,
    replies: usize,
}

/// Runs a seed; returns the number of replies, or the broken invariant.
fn run(seed: u64, mutant: Option<Mutant>, tell: bool) -> Result<usize, String> {
    let mut world = World::new(seed, mutant, tell);
    let result = world.live();
    result
        .map(|()| world.replies)
        .map_err(|broken| format!("seed {seed}: {broken}\n{}", world.story.unwrap_or_default()))
}

impl World {
    fn new(seed: u64, mutant: Option<Mutant>, tell: bool) -> Self {
        let mut rng = Rng::with_seed(seed);
        let count = rng.usize(2..6);
        let records = Records::from([(VERSION.into(), "0".into())]);
        let mut world = World {
            mutant,
            story: tell.then(String::new),
            start: Instant::now(),
            now: Duration::ZERO,
            happenings: BTreeMap::new(),
            last: 0,
            core: None,
            versions: vec![records.clone()],
            records,
            deciding: VecDeque::new(),
            asked: BTreeMap::new(),
            followers: (0..count).map(|_| Follower::default()).collect(),
            replies: 0,
            rng,
        };
        world.start_leader();
        for _ in 0..world.rng.usize(5..40) {
            let at = world.within(FAULTY);
            world.at(at, Happening::Request);
        }
        for _ in 0..world.rng.usize(0..8) {
            let at = world.within(FAULTY);
            world.at(at, Happening::Fault);
        }
        world
    }

    fn live(&mut self) -> Result<(), String> {
        let mut steps = 0;
        while let Some(((at, _), happening)) = self.happenings.pop_first() {
            self.now = at;
            steps += 1;
            if at > END || steps > MOST_STEPS {
                return Err("it does not come to rest".into());
            }
            self.happen(happening)?;
        }
        let last = self.versions.len() - 1;
        for (n, follower) in self.followers.iter().enumerate() {
            if follower.version() != last {
                return Err(format!(
                    "host {n} has version {} of {last}",
                    follower.version()
                ));
            }
        }
        match self.asked.keys().next() {
            Some(change) => Err(format!("{change:?} got no reply")),
            None => Ok(()),
        }
    }

    fn happen(&mut self, happening: Happening) -> Result<(), String> {
        match happening {
            Happening::Request => self.request(),
            Happening::Decide(change) => self.decide(change),
            Happening::InEffect(change) => self.be_in_effect(change),
            Happening::Arrive(..) | Happening::Reply(..) => self.arrive(happening),
            Happening::Applied(host, session, number, update, run) => {
                self.apply(host, session, number, update, run)
            }
            Happening::Tick => self.handle(Event::Tick),
            Happening::Fault => self.fail(),
            Happening::End(host, fault) => self.recover(host, fault),
            Happening::Notice(host, session) => self.notice(host, session),
            Happening::Connect(host) => self.connect(host),
            Happening::Restart => {
                self.tell(|| "the leader is back".into());
                self.start_leader();
                Ok(())
            }
        }
    }

    fn at(&mut self, time: Duration, happening: Happening) {
        self.last += 1;
        self.happenings.insert((time, self.last), happening);
    }

    fn after(&mut self, most_ms: u64, happening: Happening) {
        let pause = Duration::from_millis(self.rng.u64(1..=most_ms));
        self.at(self.now + pause, happening);
    }

    fn within(&mut self, time: Duration) -> Duration {
        Duration::from_micros(self.rng.u64(0..time.as_micros() as u64))
    }

    fn tell(&mut self, what: impl FnOnce() -> String) {
        if let Some(story) = &mut self.story {
            let _ = writeln!(story, "{:9.3} s  {}", self.now.as_secs_f64(), what());
        }
    }

    fn is(&self, mutant: Mutant) -> bool {
        self.mutant == Some(mutant)
    }

    // The leader.

    fn start_leader(&mut self) {
        let mut core = Core::new(Some("leader".into()));
        core.begin(self.records.clone());
        self.core = Some(core);
        for host in 0..self.followers.len() {
            self.disturb(host, 2_000);
            self.after(200, Happening::Connect(host));
        }
    }

    fn handle(&mut self, event: Event) -> Result<(), String> {
        let Some(core) = &mut self.core else {
            return Ok(());
        };
        let actions = core.handle(self.start + self.now, event);
        let wake = core.wake();
        for action in actions {
            match action {
                Action::Decide(change) => {
                    self.deciding.push_back(change);
                    if self.deciding.len() == 1 {
                        self.after(DECISION, Happening::Decide(change));
                    }
                }
                Action::Refuse(change) => {
                    let asked = self.asked.values();
                    if asked.count() <= MAX_UNFINISHED {
                        return Err(format!("{change:?} is refused for nothing"));
                    }
                    self.asked.remove(&change);
                }
                Action::Send { session, update } => self.send(session, update)?,
                Action::Reply { change, lacking } => self.check_reply(change, &lacking)?,
            }
        }
        if let Some(wake) = wake {
            // As a thread does that sleeps until then.
            let wake = wake.saturating_duration_since(self.start).max(self.now);
            if !self.has_tick(wake) {
                self.at(wake, Happening::Tick);
            }
        }
        Ok(())
    }

    fn has_tick(&self, at: Duration) -> bool {
        let mut same = self.happenings.range((at, 0)..=(at, u64::MAX));
        same.any(|(_, happening)| matches!(happening, Happening::Tick))
    }

    fn request(&mut self) -> Result<(), String> {
        if self.core.is_none() {
            return Ok(());
        }
        self.last += 1;
        let id = ChangeId(self.last);
        let domain = self.rng.usize(0..DOMAINS.len());
        let asker = self.rng.usize(0..=self.followers.len());
        let asker = (asker < self.followers.len()).then_some(asker);
        let asked = Asked {
            domain,
            at: self.now,
            asker,
            version: None,
            concerned: BTreeSet::new(),
            is_in_effect: false,
        };
        self.tell(|| format!("{id:?} of {} asked at {asker:?}", DOMAINS[domain]));
        self.asked.insert(id, asked);
        let domains = if self.is(Mutant::NoOrder) {
            BTreeSet::new()
        } else {
            [DOMAINS[domain].to_owned()].into()
        };
        let actor = Actor::User(self.rng.u32(1..4));
        self.handle(Event::Asked {
            change: id,
            actor,
            domains,
        })
    }

    /// Decides the first change in the queue: other hosts in the domain than before.
    fn decide(&mut self, id: ChangeId) -> Result<(), String> {
        let Some(asked) = self.asked.get(&id).cloned() else {
            return Ok(());
        };
        let under_way = |other: &Asked| {
            other.domain == asked.domain && other.version.is_some() && !other.is_in_effect
        };
        if self.asked.values().any(under_way) {
            return Err(format!(
                "{id:?} is decided while one of its domain is not in effect"
            ));
        }
        let key = format!("domain/{}", DOMAINS[asked.domain]);
        let before = hosts_in(self.records.get(&key).map_or("", String::as_str));
        let all = 0..self.followers.len();
        let after: BTreeSet<usize> = all.filter(|_| self.rng.u32(0..3) == 0).collect();
        let version = self.versions.len();
        let mut changes = Changes::default();
        changes.put.insert(VERSION.into(), version.to_string());
        if after.is_empty() {
            changes.remove.insert(key);
        } else {
            let text: Vec<String> = after.iter().map(usize::to_string).collect();
            changes.put.insert(key, text.join(" "));
        }
        apply(&mut self.records, changes.clone());
        self.versions.push(self.records.clone());
        let concerned = &before | &after;
        self.tell(|| format!("{id:?} is version {version}, concerns {concerned:?}"));
        let names = |hosts: &BTreeSet<usize>| hosts.iter().map(|n| name(*n)).collect();
        let told = match self.mutant {
            Some(Mutant::NoWait) => BTreeSet::new(),
            Some(Mutant::WaitForAll) => names(&(0..self.followers.len()).collect()),
            _ => names(&concerned),
        };
        if let Some(asked) = self.asked.get_mut(&id) {
            asked.version = Some(version);
            asked.concerned = concerned;
        }
        if !self.is(Mutant::Unpublished) || self.rng.u32(0..4) > 0 {
            self.handle(Event::Durable(changes))?;
        }
        self.handle(Event::Decided {
            change: id,
            concerned: told,
            asker: asked.asker.map(name),
        })?;
        let is_slow = DOMAINS[asked.domain] == "slow" && self.rng.bool();
        let most = if is_slow { 10_000 } else { EFFECT };
        self.after(most, Happening::InEffect(id));
        if self.is(Mutant::Early) {
            self.handle(Event::InEffect(id))?;
        }
        self.deciding.pop_front();
        if let Some(next) = self.deciding.front() {
            self.after(DECISION, Happening::Decide(*next));
        }
        Ok(())
    }

    fn be_in_effect(&mut self, id: ChangeId) -> Result<(), String> {
        let Some(asked) = self.asked.get_mut(&id) else {
            return Ok(());
        };
        asked.is_in_effect = true;
        self.tell(|| format!("{id:?} is in effect at the leader"));
        self.handle(Event::InEffect(id))
    }

    /// The contract of a reply.
    fn check_reply(&mut self, id: ChangeId, lacking: &Lacking) -> Result<(), String> {
        self.tell(|| format!("{id:?} is answered, lacking {lacking:?}"));
        let asked = self.asked.remove(&id);
        let asked = asked.ok_or_else(|| format!("{id:?} is answered twice"))?;
        self.replies += 1;
        let version = asked.version.ok_or("a reply before the decision")?;
        if !asked.is_in_effect {
            return Err(format!("{id:?} is answered before it is in effect here"));
        }
        let was_troubled = |host: usize| {
            let follower = &self.followers[host];
            let is_troubled = follower.session.is_none() || !follower.faults.is_empty();
            is_troubled || follower.trouble >= asked.at
        };
        for host in &asked.concerned {
            let follower = &self.followers[*host];
            let lacks = lacking.get(&name(*host));
            if lacks.is_none() && follower.version() < version {
                return Err(format!("{id:?} is not in effect on host {host}"));
            }
            let is_excepted = lacks.is_some_and(|why| why == EXCEPTION);
            if lacks.is_some() && !is_excepted && !was_troubled(*host) {
                return Err(format!("{id:?} lacks host {host}: {lacks:?}"));
            }
        }
        let waited = self.now - asked.at;
        // Changes of the slow domain wait for each other here.
        let may_wait = DOMAINS[asked.domain] == "slow"
            || asked.concerned.iter().any(|host| was_troubled(*host));
        let courtesy = asked.asker.is_some_and(was_troubled);
        let most = HEALTHY + if courtesy { COURTESY } else { Duration::ZERO };
        if !may_wait && waited > most {
            return Err(format!(
                "{id:?} took {waited:?} for hosts that it does not concern"
            ));
        }
        Ok(())
    }

    /// Notes that a host is in trouble for some time.
    fn disturb(&mut self, host: usize, time_ms: u64) {
        let until = self.now + Duration::from_millis(time_ms);
        let trouble = &mut self.followers[host].trouble;
        *trouble = until.max(*trouble);
    }

    // Messages.

    fn host_of(&self, session: SessionId) -> Option<usize> {
        let mut followers = self.followers.iter();
        followers.position(|follower| follower.session == Some(session))
    }

    fn send(&mut self, session: SessionId, update: Update) -> Result<(), String> {
        if let Some(host) = self.host_of(session) {
            self.tell(|| format!("version {} goes to host {host}", update.number));
            self.deliver(host, 0, Happening::Arrive(host, session, update));
        }
        Ok(())
    }

    /// Delivers a message to a host (0) or from it (1), in order.
    fn deliver(&mut self, host: usize, way: usize, message: Happening) {
        let pause = Duration::from_millis(self.rng.u64(1..=MESSAGE));
        let at = self.followers[host].last[way].max(self.now + pause);
        self.followers[host].last[way] = at;
        self.at(at, message);
    }

    fn arrive(&mut self, message: Happening) -> Result<(), String> {
        let (Happening::Arrive(host, session, _) | Happening::Reply(host, session, ..)) = message
        else {
            return Ok(());
        };
        let follower = &mut self.followers[host];
        if follower.session != Some(session) {
            // It was lost with its connection.
            return Ok(());
        }
        if follower.faults.contains(&Fault::Cut) {
            follower.held.push_back(message);
            return Ok(());
        }
        if follower.session_run != follower.run && matches!(message, Happening::Arrive(..)) {
            return Ok(());
        }
        match message {
            Happening::Arrive(_, _, update) => {
                let number = update.number;
                if self.is(Mutant::AnswerFirst) {
                    self.deliver(
                        host,
                        1,
                        Happening::Reply(host, session, number, Answer::Done),
                    );
                }
                let pause = Duration::from_millis(self.rng.u64(1..=APPLICATION));
                let follower = &mut self.followers[host];
                follower.busy = follower.busy.max(self.now) + pause;
                let (run, at) = (follower.run, follower.busy);
                let applied = Happening::Applied(host, session, number, update.directory, run);
                self.at(at, applied);
                Ok(())
            }
            Happening::Reply(_, _, number, answer) => {
                self.tell(|| format!("host {host} answers {number}: {answer:?}"));
                let host = name(host);
                self.handle(Event::Answered {
                    host,
                    session,
                    number,
                    answer,
                })
            }
            _ => Ok(()),
        }
    }

    fn apply(
        &mut self,
        host: usize,
        session: SessionId,
        number: u64,
        update: DirectoryUpdate,
        run: u64,
    ) -> Result<(), String> {
        let follower = &mut self.followers[host];
        if follower.run != run {
            return Ok(());
        }
        if follower.faults.contains(&Fault::Stuck) {
            let applied = Happening::Applied(host, session, number, update, run);
            follower.stuck.push_back(applied);
            return Ok(());
        }
        let answer = if follower.faults.contains(&Fault::Full) {
            Answer::Failed("no space".into())
        } else {
            let had = follower.version();
            match update {
                DirectoryUpdate::Whole(records) => follower.records = records,
                DirectoryUpdate::Changes { put, remove } => {
                    apply(&mut follower.records, Changes { put, remove });
                }
            }
            let has = follower.version();
            if has < had {
                return Err(format!("host {host} goes back from version {had} to {has}"));
            }
            if follower.records != self.versions[has] {
                return Err(format!("host {host} has no true version {has}"));
            }
            if self.rng.u32(0..20) == 0 {
                Answer::Except(EXCEPTION.into())
            } else {
                Answer::Done
            }
        };
        let is_done = self.is(Mutant::FailedIsDone);
        let answer = if is_done { Answer::Done } else { answer };
        let version = self.followers[host].version();
        self.tell(|| format!("host {host} has version {version}: {answer:?}"));
        if self.followers[host].session == Some(session) && !self.is(Mutant::AnswerFirst) {
            self.deliver(host, 1, Happening::Reply(host, session, number, answer));
        }
        Ok(())
    }

    // Faults.

    fn fail(&mut self) -> Result<(), String> {
        let count = self.followers.len();
        let host = self.rng.usize(0..=count);
        if host == count {
            self.kill_leader();
            return Ok(());
        }
        let faults = [Fault::Stuck, Fault::Cut, Fault::Killed, Fault::Full];
        let fault = faults[self.rng.usize(0..faults.len())];
        if self.followers[host].faults.contains(&fault) {
            return Ok(());
        }
        self.tell(|| format!("host {host} is {fault:?}"));
        self.followers[host].faults.push(fault);
        let most = if fault == Fault::Stuck {
            60_000
        } else {
            20_000
        };
        self.after(most, Happening::End(host, fault));
        match fault {
            Fault::Killed => {
                let follower = &mut self.followers[host];
                follower.run += 1;
                follower.stuck.clear();
                let session = follower.session;
                // The kernel of its host ends the connection, unless the cable is cut.
                let is_cut = follower.faults.contains(&Fault::Cut);
                let notice = if is_cut { NOTICED } else { 10 };
                if let Some(session) = session {
                    self.after(notice, Happening::Notice(host, session));
                }
            }
            Fault::Cut => {
                if let Some(session) = self.followers[host].session {
                    let at = self.now + Duration::from_millis(NOTICED);
                    self.at(at, Happening::Notice(host, session));
                }
            }
            Fault::Stuck | Fault::Full => {}
        }
        Ok(())
    }

    fn recover(&mut self, host: usize, fault: Fault) -> Result<(), String> {
        self.tell(|| format!("host {host} is not {fault:?} any more"));
        // It may still have to connect, to catch up, and to wait for the next try.
        self.disturb(host, 8_000);
        let follower = &mut self.followers[host];
        follower.faults.retain(|its| *its != fault);
        match fault {
            Fault::Stuck => {
                for applied in std::mem::take(&mut follower.stuck) {
                    self.at(self.now, applied);
                }
            }
            Fault::Cut => {
                for message in std::mem::take(&mut follower.held) {
                    self.at(self.now, message);
                }
                self.after(2_000, Happening::Connect(host));
            }
            Fault::Killed => self.after(2_000, Happening::Connect(host)),
            Fault::Full => {}
        }
        Ok(())
    }

    /// Both sides notice the end of a connection, unless the cable was mended in time.
    fn notice(&mut self, host: usize, session: SessionId) -> Result<(), String> {
        let follower = &self.followers[host];
        let is_dead = follower.session_run != follower.run || follower.faults.contains(&Fault::Cut);
        if follower.session != Some(session) || !is_dead {
            return Ok(());
        }
        self.tell(|| format!("the session with host {host} has ended"));
        self.disturb(host, 8_000);
        let follower = &mut self.followers[host];
        follower.session = None;
        follower.held.clear();
        self.after(2_000, Happening::Connect(host));
        self.handle(Event::Left {
            host: name(host),
            session,
        })
    }

    fn connect(&mut self, host: usize) -> Result<(), String> {
        let follower = &self.followers[host];
        let is_away = [Fault::Cut, Fault::Killed];
        let is_away = follower.faults.iter().any(|fault| is_away.contains(fault));
        if is_away || follower.session.is_some() || self.core.is_none() {
            return Ok(());
        }
        self.last += 1;
        let session = SessionId(self.last);
        self.tell(|| format!("host {host} connects as {session:?}"));
        self.disturb(host, 1_000);
        let follower = &mut self.followers[host];
        (follower.session, follower.session_run) = (Some(session), follower.run);
        self.handle(Event::Joined {
            host: name(host),
            session,
        })
    }

    /// Everything in memory is lost, with all requests and sessions.
    fn kill_leader(&mut self) {
        if self.core.take().is_none() {
            return;
        }
        self.tell(|| "the leader is killed".into());
        self.asked.clear();
        self.deciding.clear();
        for host in 0..self.followers.len() {
            self.disturb(host, 20_000);
            let follower = &mut self.followers[host];
            follower.session = None;
            follower.held.clear();
        }
        self.after(10_000, Happening::Restart);
    }
}

impl Follower {
    fn version(&self) -> usize {
        let version = self.records.get(VERSION);
        version.map_or(0, |text| text.parse().unwrap_or(0))
    }
}

fn name(host: usize) -> String {
    format!("host{host}")
}

fn hosts_in(text: &str) -> BTreeSet<usize> {
    text.split_whitespace()
        .filter_map(|n| n.parse().ok())
        .collect()
}

/// Panics with the story of a failing seed.
#[track_caller]
fn must_hold(seed: u64) -> usize {
    run(seed, None, false).unwrap_or_else(|_| match run(seed, None, true) {
        Err(story) => panic!("{story}"),
        Ok(_) => panic!("seed {seed} failed only once"),
    })
}

#[test]
fn clusters_keep_their_contract_in_all_seeds() {
    let replies: usize = (0..4_000).map(must_hold).sum();
    assert!(replies > 40_000, "only {replies} replies");
}

#[test]
fn the_simulation_finds_every_mutant() {
    use Mutant::*;
    for mutant in [
        NoWait,
        WaitForAll,
        AnswerFirst,
        Early,
        NoOrder,
        FailedIsDone,
        Unpublished,
    ] {
        let found = (0..500).find_map(|seed| run(seed, Some(mutant), true).err());
        let story = found.unwrap_or_else(|| panic!("no seed finds {mutant:?}"));
        // Its story tells what led there.
        assert!(story.lines().count() > 3, "{mutant:?}: {story}");
    }
}
