//! Simulation of clusters on virtual time: a leader, whose control of changes is the real one, and
//! followers with their own durable copies. Each seed gives a cluster, its changes and its faults.
//!
//! Checked are: what a reply says is in effect; it waits for no host that it does not concern;
//! changes of a domain take effect in their order; no host goes back; in the end all hosts agree. A
//! change of a fenced domain is answered in time, and then no host without it has a lease, on its
//! own clock. An agent that loses the leader repeats its clients' requests: each is made at most
//! once, and an answered one exactly once.
//!
//! ```
//! let run = toroid_agent::simulation::run(1, None, None);
//! assert!(run.broken.is_none(), "{}", run.story);
//! ```

mod clients;
mod followers;
mod leader;
mod leases;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Write as _;
use std::time::{Duration, Instant};

use fastrand::Rng;
use toroid_model::directory::records::Records;
use toroid_model::directory::requests::RequestId;
use toroid_model::directory::revision::{FabricId, Revision, Term};
use toroid_protocol::hosts::DirectoryUpdate;

use super::core::{Answer, ChangeId, Core, Event, SessionId, Update};
use super::lease::Lease;
use clients::Client;

/// Keys of the records with the version of the directory, which is the number of its revision, and
/// with the term.
const VERSION: &str = "version";
const TERM: &str = "term";

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
pub enum Mutant {
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
    /// A follower does not say what it has.
    Silent,
    /// A leader that starts begins no term, and counts its changes anew.
    CountAnew,
    /// Nobody keeps the time.
    NoTime,
    /// A lease begins with the answer to its renewal.
    LeaseFromAnswer,
    /// The leader answers a renewal without a look at the directory.
    NoRead,
    /// A host without a change is not waited for until its lease is over.
    NoFence,
    /// The record of a request is durable after its change.
    DoneLater,
    /// A request that is repeated is answered when its change was made.
    DoneAtOnce,
    /// A request whose change has two parts is answered after the first.
    FirstIsAll,
    /// The record of a request is forgotten with the next change.
    ForgetEarly,
}

impl Mutant {
    /// All of them, with their names for users.
    pub const ALL: [(&str, Mutant); 17] = [
        ("no-wait", Mutant::NoWait),
        ("wait-for-all", Mutant::WaitForAll),
        ("answer-first", Mutant::AnswerFirst),
        ("early", Mutant::Early),
        ("no-order", Mutant::NoOrder),
        ("failed-is-done", Mutant::FailedIsDone),
        ("unpublished", Mutant::Unpublished),
        ("silent", Mutant::Silent),
        ("count-anew", Mutant::CountAnew),
        ("no-time", Mutant::NoTime),
        ("lease-from-answer", Mutant::LeaseFromAnswer),
        ("no-read", Mutant::NoRead),
        ("no-fence", Mutant::NoFence),
        ("done-later", Mutant::DoneLater),
        ("done-at-once", Mutant::DoneAtOnce),
        ("first-is-all", Mutant::FirstIsAll),
        ("forget-early", Mutant::ForgetEarly),
    ];
}

/// Something that happens at its time.
#[derive(Debug)]
enum Happening {
    Request,
    Repeat(RequestId),
    Note(RequestId, String),
    Decide(ChangeId),
    InEffect(ChangeId),
    Arrive(usize, SessionId, Update),
    Applied(usize, SessionId, u64, DirectoryUpdate, u64),
    Reply(usize, SessionId, u64, Answer),
    /// Time of the next renewal of an agent's lease.
    Renew(usize, SessionId, u64),
    /// A renewal that was sent at this time of the host's clock, and its answer.
    Renewal(usize, SessionId, Duration),
    Renewed(usize, SessionId, Duration, Revision),
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
    /// What it had at the beginning of the session, until it gets an update.
    had: Option<Revision>,
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
    /// Its lease, on its clock.
    lease: Lease,
    /// Thousandths of a second that its clock counts in a second.
    rate: u32,
    /// The last version without which it must have no lease.
    fenced: usize,
}

/// An attempt to make the change of a request.
#[derive(Clone, Debug)]
struct Asked {
    request: RequestId,
    domain: usize,
    at: Duration,
    asker: Option<usize>,
    /// Session of the asker, to which the reply goes.
    session: Option<SessionId>,
    version: Option<usize>,
    /// Time of the last decision.
    decided: Duration,
    concerned: BTreeSet<usize>,
    is_in_effect: bool,
}

struct World {
    rng: Rng,
    mutant: Option<Mutant>,
    /// What has happened, unless only the result is of interest.
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
    clients: BTreeMap<RequestId, Client>,
    followers: Vec<Follower>,
    replies: usize,
    /// Number of sessions that began with changes instead of the whole directory.
    resumed: usize,
    /// Number of requests that were answered after a repetition.
    repeated: usize,
}

/// A simulation that has ended.
#[derive(Clone, Debug)]
pub struct Run {
    /// The invariant that was broken, if any.
    pub broken: Option<String>,
    /// Changes that were answered.
    pub replies: usize,
    /// Sessions that began with changes instead of the whole directory.
    pub resumed: usize,
    /// Requests that were answered after a repetition.
    pub repeated: usize,
    /// What happened, a line for each event.
    pub story: String,
}

/// Most hosts of a simulated cluster.
pub const MAX_HOSTS: usize = 64;

/// Runs a seed, with 3 to 6 hosts or this number of them (2 to [`MAX_HOSTS`]).
pub fn run(seed: u64, hosts: Option<usize>, mutant: Option<Mutant>) -> Run {
    live(seed, hosts, mutant, true)
}

/// Does the same; tells the story of a broken invariant only.
pub fn check(seed: u64, hosts: Option<usize>, mutant: Option<Mutant>) -> Run {
    let ended = live(seed, hosts, mutant, false);
    if ended.broken.is_some() {
        run(seed, hosts, mutant)
    } else {
        ended
    }
}

fn live(seed: u64, hosts: Option<usize>, mutant: Option<Mutant>, tell: bool) -> Run {
    let mut world = World::new(seed, hosts, mutant, tell);
    let result = world.live();
    Run {
        broken: result.err(),
        replies: world.replies,
        resumed: world.resumed,
        repeated: world.repeated,
        story: world.story.unwrap_or_default(),
    }
}

impl World {
    fn new(seed: u64, hosts: Option<usize>, mutant: Option<Mutant>, tell: bool) -> Self {
        let mut rng = Rng::with_seed(seed);
        let followers = rng.usize(2..6);
        let followers = hosts.map_or(followers, |hosts| hosts.clamp(2, MAX_HOSTS) - 1);
        let records = [(VERSION, "0"), (TERM, "1")];
        let records = Records::from(records.map(|(key, value)| (key.into(), value.into())));
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
            clients: BTreeMap::new(),
            followers: Vec::new(),
            replies: 0,
            resumed: 0,
            repeated: 0,
            rng,
        };
        for _ in 0..followers {
            let rate = world.rng.u32(990..=1010);
            world.followers.push(Follower {
                rate,
                ..Follower::default()
            });
        }
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
            None => self.check_clients(),
        }
    }

    fn happen(&mut self, happening: Happening) -> Result<(), String> {
        match happening {
            Happening::Request => self.request(),
            Happening::Repeat(request) => self.repeat(request),
            Happening::Note(request, text) => self.note_later(request, text),
            Happening::Decide(change) => self.decide(change),
            Happening::InEffect(change) => self.be_in_effect(change),
            Happening::Arrive(..)
            | Happening::Reply(..)
            | Happening::Renewal(..)
            | Happening::Renewed(..) => self.arrive(happening),
            Happening::Renew(host, session, run) => self.renew(host, session, run),
            Happening::Applied(host, session, number, update, run) => {
                self.apply(host, session, number, update, run)
            }
            Happening::Tick if self.is(Mutant::NoTime) => Ok(()),
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

    /// Notes that a host is in trouble for some time.
    fn disturb(&mut self, host: usize, time_ms: u64) {
        let until = self.now + Duration::from_millis(time_ms);
        let trouble = &mut self.followers[host].trouble;
        *trouble = until.max(*trouble);
    }
}

impl Follower {
    fn version(&self) -> usize {
        number_in(&self.records, VERSION) as usize
    }
}

fn number_in(records: &Records, key: &str) -> u64 {
    let text = records.get(key);
    text.map_or(0, |text| text.parse().unwrap_or(0))
}

/// Revision of records, if they are a copy of the leader's.
fn revision_of(records: &Records) -> Option<Revision> {
    let term = number_in(records, TERM);
    (term > 0).then(|| revision(term, number_in(records, VERSION)))
}

/// Revision of the only fabric.
fn revision(term: u64, number: u64) -> Revision {
    Revision {
        fabric: FabricId(1),
        term: Term {
            number: term,
            nonce: 0,
        },
        number,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clusters_keep_their_contract_in_all_seeds() {
        let (mut replies, mut resumed, mut repeated) = (0, 0, 0);
        for seed in 0..4_000 {
            let run = check(seed, None, None);
            if let Some(broken) = run.broken {
                panic!("seed {seed}: {broken}\n{}", run.story);
            }
            replies += run.replies;
            resumed += run.resumed;
            repeated += run.repeated;
        }
        assert!(replies > 40_000, "only {replies} replies");
        assert!(resumed > 1_000, "only {resumed} resumed sessions");
        assert!(repeated > 500, "only {repeated} repeated requests");
    }

    #[test]
    fn the_simulation_finds_every_mutant() {
        for (name, mutant) in Mutant::ALL {
            let mut runs = (0..500).map(|seed| check(seed, None, Some(mutant)));
            let found = runs.find(|run| run.broken.is_some());
            let found = found.unwrap_or_else(|| panic!("no seed finds {name}"));
            // Its story tells what led there.
            assert!(found.story.lines().count() > 2, "{name}: {}", found.story);
        }
    }

    #[test]
    fn a_seed_is_the_same_story_again() {
        let [once, again] = [(); 2].map(|()| run(7, Some(9), None));
        assert_eq!(once.story, again.story);
        assert!(once.story.contains("host 7"), "{}", once.story);
        assert_eq!(check(7, Some(9), None).replies, once.replies);
    }
}
