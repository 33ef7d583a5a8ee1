//! Shrinking and growing again, many times: how long it takes, what those who stay notice of it,
//! and what still passes.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::thread;
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;

use super::hammer::{Pause, now_ns};
use super::member::Order;
use super::report::{Export, Row};
use super::{fdatasync, memory_peak, nodes};
use crate::cluster::{Cluster, ClusterError, Process, check_signals};
use crate::roles;
use crate::stats::{Slice, quantile};

/// Nodes that have a process, whatever the size of the domain; the last of them leaves.
const PROCESSES: u32 = 8;

/// What was on its way has arrived after this time, or never will.
const SETTLED: Duration = Duration::from_millis(2);

/// How long to wait until regions are in huge pages: those in which nothing is touched, or whose
/// pages somebody holds, never are, and the agent stops looking soon.
const COMPACTED: Duration = Duration::from_secs(5);

/// What to do how often.
#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    /// Members of the domain, 2 at least.
    pub members: u32,
    /// What they export.
    pub export: Export,
    /// How much of it.
    pub bytes: u64,
    /// How often to shrink and grow.
    pub cycles: u32,
}

/// What came of it.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Of the shrinks.
    pub shrink: Row,
    /// Of the growths.
    pub grow: Row,
    /// From the command to the end of what was in flight, in nanoseconds, for each cycle.
    pub in_flight_ns: Vec<f64>,
    /// Bytes that the leaver read although they were written later, or wrote.
    pub leaked_bytes: u64,
    /// Datagrams and packets that it sent later and that arrived.
    pub leaked_frames: u64,
    /// Operations of those who stay that failed.
    pub failed: u64,
    /// Writes to the disk, while those who stay and the leaver work; if nothing is registered.
    pub syncs_ns: Vec<f64>,
    /// Reads of 64 B before the first cycle, and after the last.
    pub reads_ns: [Vec<f64>; 2],
}

/// A domain with its processes.
struct Play<'a> {
    cluster: &'a mut Cluster,
    scenario: Scenario,
    domain: String,
    leaver_node: String,
    /// Where those who stay hear datagrams: address, port, and place.
    ear: (Ipv4Addr, u16, String),
    owner: Process,
    stayer: Process,
    leaver: Process,
    // They are there, and map what is exported.
    _others: Vec<Process>,
    key: Option<String>,
    version: u64,
    /// How long the last shrink was watched for pauses.
    watched: Option<Duration>,
}

/// Plays a scenario in a cluster that has as many nodes.
///
/// # Errors
/// [`ClusterError`].
pub fn play(cluster: &mut Cluster, scenario: Scenario) -> Result<Outcome, ClusterError> {
    let mut play = Play::prepare(cluster, scenario)?;
    let mut outcome = Outcome::default();
    outcome.reads_ns[0] = play.read()?;
    play.start_hammer()?;
    let mut times = BTreeMap::<&str, Vec<f64>>::new();
    for _ in 0..scenario.cycles {
        check_signals()?;
        for (what, time) in play.cycle(&mut outcome)? {
            times.entry(what).or_default().push(time);
        }
    }
    if scenario.bytes == 0 && scenario.members <= PROCESSES {
        let () = play.flood()?;
        outcome.syncs_ns = fdatasync(play.cluster)?;
    }
    let () = play.cluster.ask(&mut play.stayer, &Order::Rest)?;
    play.settle()?;
    outcome.reads_ns[1] = play.read()?;
    for _ in 0..scenario.cycles.div_ceil(2).min(20) * u32::from(play.key.is_some()) {
        check_signals()?;
        outcome.in_flight_ns.push(play.in_flight()?);
    }
    let extra = play.extra_memory()?;
    let row = |what: &str, pause: &str| {
        let times = |what| times.get(what).map_or(&[][..], |times| times);
        Row::new(scenario, times(what), times(pause))
    };
    outcome.shrink = Row {
        extra_bytes: extra,
        pause_before_p99_ns: times.get("pause before").and_then(|t| quantile(t, 0.99)),
        ..row("shrink", "pause")
    };
    outcome.grow = row("grow", "grow pause");
    play.end()?;
    Ok(outcome)
}

impl<'a> Play<'a> {
    fn prepare(cluster: &'a mut Cluster, scenario: Scenario) -> Result<Self, ClusterError> {
        let domain = format!("bench{}", scenario.members);
        let nodes = nodes(cluster, scenario.members)?;
        let info = cluster.control()?.create(&domain, &nodes, None, None)?;
        let addresses = info.members.into_iter().map(|member| member.ipv4);
        let places: Vec<(String, Ipv4Addr)> = nodes.into_iter().zip(addresses).collect();
        let [(first, _), .., (leaver_node, _)] = &places[..] else {
            return Err(ClusterError::NoServer);
        };
        // With two members, who owns is who stays.
        let (second, address) = &places[usize::from(scenario.members > 2)];
        let spawn = |cluster: &mut Cluster, node: &str| {
            let mut process = cluster.spawn(node, &[roles::MEMBER])?;
            let domain = domain.clone();
            let () = cluster.ask(&mut process, &Order::Attach { domain })?;
            Ok::<_, ClusterError>(process)
        };
        let owner = spawn(cluster, first)?;
        let stayer = spawn(cluster, second)?;
        let leaver = spawn(cluster, leaver_node)?;
        let rest = &places[..places.len() - 1];
        let others = rest.iter().skip(2).take(PROCESSES as usize - 3);
        let others: Result<Vec<_>, _> = others.map(|(node, _)| spawn(cluster, node)).collect();
        let mut play = Play {
            scenario,
            domain: domain.clone(),
            leaver_node: leaver_node.clone(),
            ear: (*address, 0, second.clone()),
            owner,
            stayer,
            leaver,
            _others: others?,
            key: None,
            version: 1,
            watched: None,
            cluster,
        };
        play.ear.1 = play.cluster.ask(&mut play.stayer, &Order::Listen)?;
        if scenario.bytes > 0 {
            play.export()?;
        }
        Ok(play)
    }

    fn export(&mut self) -> Result<(), ClusterError> {
        let writable = self.scenario.export == Export::Rw;
        let bytes = self.scenario.bytes;
        let order = Order::Export { bytes, writable };
        let key: String = self.cluster.ask(&mut self.owner, &order)?;
        for other in &mut self._others {
            let key = key.clone();
            let () = self.cluster.ask(other, &Order::Map { key, writable })?;
        }
        self.key = Some(key);
        Ok(())
    }

    fn owner<A: DeserializeOwned>(&mut self, order: &Order) -> Result<A, ClusterError> {
        self.cluster.ask(&mut self.owner, order)
    }

    fn stayer<A: DeserializeOwned>(&mut self, order: &Order) -> Result<A, ClusterError> {
        self.cluster.ask(&mut self.stayer, order)
    }

    fn leaver<A: DeserializeOwned>(&mut self, order: &Order) -> Result<A, ClusterError> {
        self.cluster.ask(&mut self.leaver, order)
    }

    fn read(&mut self) -> Result<Vec<f64>, ClusterError> {
        match self.key.clone() {
            Some(key) => Ok(self.stayer::<Slice>(&Order::Read { key })?.samples_ns),
            None => Ok(Vec::new()),
        }
    }

    fn start_hammer(&mut self) -> Result<(), ClusterError> {
        let (key, writable) = (self.key.clone(), self.scenario.export == Export::Rw);
        self.stayer(&Order::Hammer { key, writable })
    }

    /// Waits until nothing moves any more because the leaver left before: a shrink that comes
    /// sooner first waits for that itself. Then, for a while, until what others write is in huge
    /// pages.
    fn settle(&mut self) -> Result<(), ClusterError> {
        self.arrive()?;
        let arrived = Instant::now();
        while self.cluster.control()?.status()?.compacting_bytes > 0
            && arrived.elapsed() <= COMPACTED
        {
            thread::sleep(SETTLED);
        }
        Ok(())
    }

    /// Waits until nothing moves any more.
    fn arrive(&mut self) -> Result<(), ClusterError> {
        while self.cluster.control()?.status()?.moving_bytes > 0 {
            thread::sleep(SETTLED);
        }
        Ok(())
    }

    fn shrink(&mut self) -> Result<f64, ClusterError> {
        let nodes = [self.leaver_node.clone()];
        let start = Instant::now();
        self.cluster.control()?.shrink(&self.domain, &nodes)?;
        Ok(start.elapsed().as_nanos() as f64)
    }

    fn grow(&mut self) -> Result<f64, ClusterError> {
        let nodes = [self.leaver_node.clone()];
        let start = Instant::now();
        self.cluster.control()?.grow(&self.domain, &nodes)?;
        Ok(start.elapsed().as_nanos() as f64)
    }

    /// Lets the leaver send without end.
    fn flood(&mut self) -> Result<(), ClusterError> {
        let (address, port, place) = self.ear.clone();
        self.leaver(&Order::Flood {
            address,
            port,
            place,
        })
    }

    /// Lets the leaver have all that a member may have, shrinks, looks for leaks, and grows.
    fn cycle(&mut self, outcome: &mut Outcome) -> Result<Vec<(&'static str, f64)>, ClusterError> {
        let writable = self.scenario.export == Export::Rw;
        if let Some(key) = self.key.clone() {
            let () = self.leaver(&Order::Keep { key, writable })?;
        }
        let () = self.flood()?;
        thread::sleep(SETTLED);
        self.settle()?;
        let _: Pause = self.stayer(&Order::Pause)?;
        let before = match self.watched {
            Some(as_long) => {
                thread::sleep(as_long);
                Some(self.stayer::<Pause>(&Order::Pause)?)
            }
            None => None,
        };
        let start = Instant::now();
        let shrink = self.shrink()?;
        let returned = now_ns();
        if self.key.is_some() {
            outcome.leaked_bytes += self.look_for_leaks()?;
        }
        thread::sleep(SETTLED);
        let after = Order::Arrived { after: returned };
        outcome.leaked_frames += self.stayer::<u64>(&after)?;
        let shrunk: Pause = self.stayer(&Order::Pause)?;
        self.watched = Some(start.elapsed());
        let grow = self.grow()?;
        let grown: Pause = self.stayer(&Order::Pause)?;
        outcome.failed += shrunk.failed + grown.failed;
        let before = before.map(|before| ("pause before", before.longest_ns as f64));
        let found = [
            ("shrink", shrink),
            ("pause", shrunk.longest_ns as f64),
            ("grow", grow),
            ("grow pause", grown.longest_ns as f64),
        ];
        Ok(found.into_iter().chain(before).collect())
    }

    /// The owner writes something new, which the leaver must not see, and the leaver writes
    /// something, which the owner must not see.
    fn look_for_leaks(&mut self) -> Result<u64, ClusterError> {
        self.version += 1;
        let version = self.version;
        let () = self.owner(&Order::Fill { version })?;
        let seen: u64 = self.leaver(&Order::Newer { version })?;
        let written: u64 = self.owner(&Order::Foreign)?;
        Ok(seen + written)
    }

    fn in_flight(&mut self) -> Result<f64, ClusterError> {
        let key = self.key.clone().unwrap_or_default();
        let () = self.leaver(&Order::ReadOn { key })?;
        thread::sleep(SETTLED);
        self.settle()?;
        let command = now_ns();
        self.shrink()?;
        let failed: u64 = self.leaver(&Order::Failed)?;
        self.grow()?;
        Ok(failed.saturating_sub(command) as f64)
    }

    /// Shared memory that is there more than before while a shrink moves regions.
    fn extra_memory(&mut self) -> Result<Option<u64>, ClusterError> {
        let Some(key) = self.key.clone() else {
            return Ok(None);
        };
        let writable = self.scenario.export == Export::Rw;
        // Without a leaver that has it open nothing moves.
        let () = self.leaver(&Order::Keep { key, writable })?;
        // What the move before has left behind goes meanwhile.
        self.settle()?;
        let (moved, extra) = memory_peak(|| {
            self.shrink()?;
            self.arrive()
        });
        moved?;
        self.grow()?;
        Ok(extra)
    }

    fn end(self) -> Result<(), ClusterError> {
        Ok(self.cluster.control()?.remove(&self.domain)?)
    }
}

impl Row {
    fn new(scenario: Scenario, times_ns: &[f64], pauses_ns: &[f64]) -> Self {
        let at = |values, q| quantile(values, q).unwrap_or_default();
        Row {
            members: scenario.members,
            registered_bytes: scenario.bytes,
            export: scenario.export,
            p50_ns: at(times_ns, 0.5),
            p99_ns: at(times_ns, 0.99),
            pause_p99_ns: at(pauses_ns, 0.99),
            pause_p50_ns: at(pauses_ns, 0.5),
            pause_before_p99_ns: None,
            cycles: times_ns.len() as u32,
            extra_bytes: None,
        }
    }
}
