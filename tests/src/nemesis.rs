//! Faults of hosts that share a directory on etcd, several at a time, in an order that a seed chooses.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use toroid_client::admin::Control;
use toroid_model::info::Status;

use crate::etcd::Etcd;
use crate::hosts::{Host, Hosts, Oddities};
use crate::leftovers::has_ended;
use crate::process::{eventually, send, stop};
use crate::random::Random;

/// Pause after an attempt that may soon succeed.
const PAUSE: Duration = Duration::from_millis(20);

/// Most milliseconds of a fault that lasts for some time, and once in [`LONG`] times.
const LASTS: [usize; 2] = [2500, 7000];
const LONG: usize = 8;

/// Most milliseconds until a killed process is started again.
const DEAD: usize = 600;

/// Status of a command for lack of a resource.
const FULL: i32 = 7;

/// A fault, with its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fault {
    /// The coordinator's agent is killed.
    KillCoordinator,
    /// An agent is killed.
    KillAgent,
    /// An agent is stopped for some time.
    StopAgent,
    /// The coordinator's agent is stopped for some time.
    StopCoordinator,
    /// A candidate's agent ends with its nodes, by SIGTERM. A coordinator hands over.
    EndAgent,
    /// An agent starts again in place.
    StartAgain,
    /// An Ethernet driver is killed.
    KillDriver,
    /// An fd store is killed.
    KillFdStore,
    /// A host's cable is cut.
    CutCable,
    /// No packets between two hosts.
    CutPair,
    /// No packets from one host to another one.
    CutOneWay,
    /// No packets from a host to etcd.
    CutFromEtcd,
    /// The leader of etcd's servers is killed.
    KillEtcdLeader,
    /// A server of etcd is stopped.
    StopEtcd,
    /// Two of three servers are stopped.
    LoseMajority,
    /// Etcd forgets former revisions.
    Compact,
    /// Etcd is out of space.
    Full,
}

/// Faults, and how often one comes among all. Those after which another host leads are rarer, because
/// nothing changes for some seconds.
const ALL: [(Fault, usize); 17] = [
    (Fault::KillCoordinator, 2),
    (Fault::KillAgent, 4),
    (Fault::StopAgent, 4),
    (Fault::StopCoordinator, 3),
    (Fault::EndAgent, 2),
    (Fault::StartAgain, 3),
    (Fault::KillDriver, 4),
    (Fault::KillFdStore, 4),
    (Fault::CutCable, 3),
    (Fault::CutPair, 4),
    (Fault::CutOneWay, 4),
    (Fault::CutFromEtcd, 3),
    (Fault::KillEtcdLeader, 2),
    (Fault::StopEtcd, 2),
    (Fault::LoseMajority, 1),
    (Fault::Compact, 2),
    (Fault::Full, 1),
];

/// Events of a story, which it tells when it fails.
#[derive(Debug)]
pub struct Chronicle {
    begun: Instant,
    events: Mutex<Vec<(Duration, String)>>,
}

impl Chronicle {
    /// Begins now.
    pub fn begin() -> Self {
        Chronicle {
            begun: Instant::now(),
            events: Mutex::default(),
        }
    }

    /// Time since its begin.
    pub fn now_ns(&self) -> u64 {
        let now = self.begun.elapsed().as_nanos();
        now.try_into().expect("it does not last for centuries")
    }

    /// Notes an event.
    pub fn note(&self, event: impl Into<String>) {
        let now = self.begun.elapsed();
        lock(&self.events).push((now, event.into()));
    }
}

impl Drop for Chronicle {
    fn drop(&mut self) {
        if thread::panicking() {
            for (at, event) in &*lock(&self.events) {
                eprintln!("{:9.3} s  {event}", at.as_secs_f64());
            }
        }
    }
}

/// Hosts on etcd that suffer faults.
#[derive(Debug)]
pub struct Nemesis<'a> {
    switch: &'a Hosts,
    hosts: Vec<&'a Host>,
    candidates: &'a [&'a str],
    endpoints: String,
    etcd: Mutex<Etcd>,
    /// Held by the fault of an agent, of which each host has one at a time.
    agents: Vec<Mutex<()>>,
    chronicle: &'a Chronicle,
    coordinator: Mutex<usize>,
    faults: AtomicUsize,
    counts: Mutex<BTreeMap<Fault, usize>>,
}

impl<'a> Nemesis<'a> {
    /// Starts the agents of hosts, of which some are candidates. The clock of each second host is an
    /// hour ahead.
    #[track_caller]
    pub fn start<const N: usize>(
        switch: &'a Hosts,
        candidates: &'a [&'a str],
        etcd: Etcd,
        chronicle: &'a Chronicle,
    ) -> Self {
        let nemesis = Nemesis {
            switch,
            hosts: switch.each::<N>().into(),
            candidates,
            endpoints: etcd.endpoints(),
            etcd: Mutex::new(etcd),
            agents: (0..N).map(|_| Mutex::default()).collect(),
            chronicle,
            coordinator: Mutex::default(),
            faults: AtomicUsize::new(0),
            counts: Mutex::default(),
        };
        (0..N).for_each(|host| nemesis.up(host));
        nemesis
    }

    /// Makes so many faults, some at a time, and returns after the end of the last one.
    pub fn strike(&self, seed: u64, faults: usize, at_a_time: usize) {
        let left = AtomicUsize::new(faults);
        let take = || {
            let less = |left: usize| left.checked_sub(1);
            left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less)
        };
        thread::scope(|scope| {
            for n in 0..at_a_time {
                let mut random = Random(seed.wrapping_add(n as u64));
                scope.spawn(move || {
                    while take().is_ok() {
                        // One whose victim suffers already is left out.
                        while self.inflict(choose(&mut random), &mut random).is_none() {
                            thread::sleep(PAUSE);
                        }
                    }
                });
            }
        });
    }

    /// Notes which host coordinates, as one of them says.
    pub fn note_coordinator(&self, status: &Status) {
        let leader = status.hosts.iter().find(|host| host.directory);
        let named = |host: &&Host| leader.is_some_and(|leader| leader.name == host.name());
        if let Some(host) = self.hosts.iter().position(named) {
            *lock(&self.coordinator) = host;
        }
    }

    /// Number of faults by kind.
    pub fn counts(&self) -> String {
        format!("{:?}", lock(&self.counts))
    }

    /// Makes a fault to its end, or none if its victim suffers another one.
    fn inflict(&self, fault: Fault, random: &mut Random) -> Option<()> {
        match fault {
            Fault::KillEtcdLeader
            | Fault::StopEtcd
            | Fault::LoseMajority
            | Fault::Compact
            | Fault::Full => self.strike_etcd(fault, random),
            Fault::CutCable | Fault::CutPair | Fault::CutOneWay | Fault::CutFromEtcd => {
                self.cut(fault, random);
                Some(())
            }
            _ => self.strike_agent(fault, random),
        }
    }

    /// Notes the begin of a fault. Returns its number.
    fn begin(&self, fault: Fault, victim: &str) -> usize {
        *lock(&self.counts).entry(fault).or_default() += 1;
        let number = self.faults.fetch_add(1, Ordering::Relaxed) + 1;
        self.chronicle
            .note(format!("fault {number}: {fault:?} {victim}"));
        number
    }

    /// Waits for the time of a fault, and notes that it ends.
    fn last(&self, fault: Fault, number: usize, random: &mut Random) {
        // Another host leads after some seconds.
        let is_long = fault == Fault::StopCoordinator || random.one_in(LONG);
        let most = LASTS[usize::from(is_long)];
        sleep_below(random, most);
        self.chronicle.note(format!("fault {number} ends"));
    }

    fn cut(&self, fault: Fault, random: &mut Random) {
        let from = random.below(self.hosts.len());
        let to = (from + 1 + random.below(self.hosts.len() - 1)) % self.hosts.len();
        let [from, to] = [from, to].map(|host| self.hosts[host]);
        let victim = match fault {
            Fault::CutPair | Fault::CutOneWay => format!("{} {}", from.name(), to.name()),
            _ => from.name().to_owned(),
        };
        let number = self.begin(fault, &victim);
        let name = format!("fault{number}");
        let drop_to = |from: &Host, to: &Host| {
            from.drop_sent(&name, &format!("ip daddr {}", to.ip()));
        };
        match fault {
            Fault::CutCable => self.switch.cut(from),
            Fault::CutFromEtcd => from.drop_sent(&name, "tcp dport 2379"),
            _ => drop_to(from, to),
        }
        if fault == Fault::CutPair {
            drop_to(to, from);
        }
        self.last(fault, number, random);
        match fault {
            Fault::CutCable => self.switch.mend(from),
            _ => from.drop_no_more(&name),
        }
        if fault == Fault::CutPair {
            to.drop_no_more(&name);
        }
    }

    fn strike_etcd(&self, fault: Fault, random: &mut Random) -> Option<()> {
        let mut etcd = try_lock(&self.etcd)?;
        let servers = etcd.len();
        let victim = match fault {
            Fault::KillEtcdLeader => etcd.leader()?,
            _ => random.below(servers),
        };
        let number = self.begin(fault, &victim.to_string());
        match fault {
            Fault::KillEtcdLeader => {
                etcd.kill(victim);
                sleep_below(random, DEAD);
                etcd.restart(victim);
            }
            Fault::Compact => {
                let done = etcd.compact();
                self.chronicle.note(format!("fault {number}: {done}"));
            }
            Fault::Full => {
                let done = etcd.claim_full(true);
                self.chronicle.note(format!("fault {number}: {done}"));
                self.last(fault, number, random);
                eventually("etcd has space again", || etcd.claim_full(false));
            }
            _ => {
                let others = [victim, (victim + 1) % servers];
                let count = 1 + usize::from(fault == Fault::LoseMajority);
                etcd.stop_some(others.into_iter().take(count));
                self.last(fault, number, random);
                etcd.go_on();
            }
        }
        Some(())
    }

    fn strike_agent(&self, fault: Fault, random: &mut Random) -> Option<()> {
        let victim = match fault {
            Fault::KillCoordinator | Fault::StopCoordinator => *lock(&self.coordinator),
            Fault::EndAgent => random.below(self.candidates.len()),
            _ => random.below(self.hosts.len()),
        };
        let _alone = try_lock(&self.agents[victim])?;
        let host = self.hosts[victim];
        let mut agent = 0;
        let mut driver = None;
        eventually("the agent of a host answers", || {
            let status = status(host);
            driver = status.as_ref().and_then(|status| status.driver_pid);
            agent = status.as_ref().map_or(0, |status| status.pid);
            status.is_some()
        });
        let number = self.begin(fault, host.name());
        match fault {
            Fault::StopAgent | Fault::StopCoordinator => {
                stop(agent);
                self.last(fault, number, random);
                send(agent, Signal::SIGCONT);
            }
            Fault::StartAgain => send(agent, Signal::SIGUSR1),
            Fault::KillDriver => {
                let driver = driver?;
                send(driver, Signal::SIGKILL);
                eventually("there is another driver", || {
                    let now = status(host).and_then(|status| status.driver_pid);
                    now.is_some_and(|now| now != driver)
                });
            }
            Fault::KillFdStore => host.agent.kill_fd_store(),
            _ => {
                let signal = match fault {
                    Fault::EndAgent => Signal::SIGTERM,
                    _ => Signal::SIGKILL,
                };
                send(agent, signal);
                eventually("the agent has ended", || has_ended(agent));
                sleep_below(random, DEAD);
                self.up(victim);
            }
        }
        self.chronicle.note(format!("fault {number} is over"));
        Some(())
    }

    #[track_caller]
    fn up(&self, host: usize) {
        let oddities = Oddities {
            etcd: Some(&self.endpoints),
            candidates: Some(self.candidates),
            clock_ahead: host % 2 == 1,
            ..Oddities::default()
        };
        eventually("an agent starts", || {
            let up = self.hosts[host].try_up(oddities);
            let is_up = up.status == 0;
            if !is_up {
                // It was elected, and has no nodes yet that it would leave alone.
                up.fails(FULL, &["etcd is out of space"]);
            }
            is_up
        });
    }
}

/// The state of a host's agent, if it answers.
pub fn status(host: &Host) -> Option<Status> {
    let status = Control::connect(&host.agent.state()).and_then(|mut agent| agent.status());
    if status.is_err() {
        thread::sleep(PAUSE);
    }
    status.ok()
}

fn choose(random: &mut Random) -> Fault {
    let mut left = random.below(ALL.iter().map(|(_, often)| often).sum());
    let is_it = |(_, often): &&(Fault, usize)| {
        let is_it = left < *often;
        left = left.wrapping_sub(*often);
        is_it
    };
    ALL.iter().find(is_it).expect("it is below the sum").0
}

fn sleep_below(random: &mut Random, milliseconds: usize) {
    thread::sleep(Duration::from_millis(random.below(milliseconds) as u64));
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The lock, unless it is held.
fn try_lock<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}
