//! Repeated shrinking and growing: duration, pause of remaining members, and leaks.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::thread;
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;
use toroid_client::admin::{ClientError, Control};

use super::report::{Export, series};
use super::{fdatasync, memory_peak, nodes};
use crate::cluster::{Cluster, ClusterError, Process, check_signals};
use crate::report::Row;
use crate::samples::Samples;
use crate::stats::quantile;
use crate::worker;
use crate::worker::hammer::{Pause, now_ns};
use crate::worker::member::Order;

/// Nodes with a process, in a domain of any size. The last node leaves.
const PROCESSES: u32 = 8;

/// Packets in flight arrive within this time, or never.
const SETTLED: Duration = Duration::from_millis(2);

/// Longest wait until datagrams or packets of the leaver arrive, before it leaves.
const HEARD: Duration = Duration::from_secs(5);

/// Longest wait until regions are in huge pages. Untouched regions and regions with held pages
/// never are, and the agent gives up soon.
const COMPACTED: Duration = Duration::from_secs(5);

/// A domain that shrinks and grows repeatedly.
#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    /// Number of members, at least 2.
    pub members: u32,
    pub export: Export,
    /// Bytes registered by one member.
    pub bytes: u64,
    /// Number of shrinks, each followed by a growth.
    pub cycles: u32,
}

impl Scenario {
    /// The row of all shrinks or all growths. `pauses_ns` has the longest time without an operation
    /// of a remaining member for each change.
    pub fn row(&self, times_ns: &[f64], pauses_ns: &[f64]) -> Row {
        let at = |values, q| quantile(values, q).unwrap_or_default();
        Row::of(&series(times_ns))
            .label("members", self.members)
            .label("registered_bytes", self.bytes)
            .label("export", self.export)
            .figure("p50_ns", at(times_ns, 0.5))
            .figure("p99_ns", at(times_ns, 0.99))
            .figure("pause_p50_ns", at(pauses_ns, 0.5))
            .figure("pause_p99_ns", at(pauses_ns, 0.99))
            .figure("cycles", times_ns.len())
    }
}

/// The result of a scenario.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    pub members: u32,
    pub shrink: Row,
    pub grow: Row,
    pub cycles: u64,
    /// Times from the shrink command to the failure of an operation in flight.
    pub in_flight_ns: Vec<f64>,
    /// Bytes leaked: written after the shrink and read by the former member, or written by that
    /// member.
    pub leaked_bytes: u64,
    /// Datagrams and packets that the former member sent after the shrink and that arrived.
    pub leaked_frames: u64,
    /// Failed operations of remaining members.
    pub failed: u64,
    /// Times of writes to the disk while members work; empty with registered memory.
    pub syncs_ns: Vec<f64>,
    /// Times of reads of 64 B before the first cycle and after the last.
    pub reads_ns: [Vec<f64>; 2],
    /// Further samples by name, such as pauses.
    pub others: Vec<(&'static str, Vec<f64>)>,
}

struct Play<'a> {
    cluster: &'a mut Cluster,
    scenario: Scenario,
    domain: String,
    /// Whether members have interfaces, by which datagrams go.
    has_interfaces: bool,
    leaver_node: String,
    /// Address and place of the remaining member that listens.
    ear: (SocketAddrV4, String),
    owner: Process,
    stayer: Process,
    leaver: Process,
    // Further members, which map the exported memory.
    _others: Vec<Process>,
    key: Option<String>,
    version: u64,
    /// Time for which the last shrink was watched for pauses.
    watched: Option<Duration>,
}

/// Plays a scenario in a cluster with enough nodes.
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
    let () = play.stayer(Order::Rest)?;
    play.settle()?;
    outcome.reads_ns[1] = play.read()?;
    for _ in 0..scenario.cycles.div_ceil(2).min(20) * u32::from(play.key.is_some()) {
        check_signals()?;
        outcome.in_flight_ns.push(play.in_flight()?);
    }
    let extra = play.extra_memory()?;
    let of = |what: &str| times.get(what).map_or(&[][..], |times| times);
    outcome.shrink = scenario.row(of("shrink"), of("pause"));
    // The machine's own pauses: those in an equally long time before each change but the first.
    if let Some(before) = quantile(of("pause before"), 0.99) {
        outcome.shrink = outcome.shrink.figure("pause_before_p99_ns", before);
    }
    // Growth of shared memory while regions migrate, in one shrink.
    if let Some(extra) = extra {
        outcome.shrink = outcome.shrink.figure("extra_bytes", extra);
    }
    outcome.grow = scenario.row(of("grow"), of("grow pause"));
    outcome.cycles = of("shrink").len() as u64;
    outcome.members = scenario.members;
    times.retain(|what, _| !["shrink", "grow"].contains(what));
    outcome.others = times.into_iter().collect();
    outcome
        .others
        .push(("in flight", outcome.in_flight_ns.clone()));
    play.end()?;
    Ok(outcome)
}

fn ask<A: DeserializeOwned>(
    cluster: &Cluster,
    process: &mut Process,
    order: Order,
) -> Result<A, ClusterError> {
    cluster.ask(process, &worker::Order::Member(order))
}

/// What `arrived` does not count within this time: datagrams, if there should be any, or packets.
fn missing(
    has_interfaces: bool,
    within: Duration,
    mut arrived: impl FnMut() -> Result<[u64; 2], ClusterError>,
) -> Result<Option<&'static str>, ClusterError> {
    let start = Instant::now();
    let mut missing = [has_interfaces, true];
    loop {
        thread::sleep(SETTLED);
        for (missing, count) in missing.iter_mut().zip(arrived()?) {
            *missing &= count == 0;
        }
        match missing {
            [false, false] => return Ok(None),
            _ if start.elapsed() <= within => {}
            [true, _] => return Ok(Some("datagram")),
            [false, true] => return Ok(Some("packet")),
        }
    }
}

impl<'a> Play<'a> {
    fn prepare(cluster: &'a mut Cluster, scenario: Scenario) -> Result<Self, ClusterError> {
        let domain = format!("bench{}", scenario.members);
        let nodes = nodes(cluster, scenario.members)?;
        let status = cluster.control()?.status()?;
        let has_interfaces = status.driver_pid.is_some() && status.no_taps.is_none();
        let info = cluster.control()?.create(&domain, &nodes, None, None)?;
        let addresses = info.members.into_iter().map(|member| member.ipv4);
        let places: Vec<(String, Ipv4Addr)> = nodes.into_iter().zip(addresses).collect();
        let [(first, _), .., (leaver_node, _)] = &places[..] else {
            return Err(ClusterError::NoServer);
        };
        // Of two members, the owner is also the remaining member.
        let (second, address) = &places[usize::from(scenario.members > 2)];
        let spawn = |cluster: &mut Cluster, node: &str| {
            let mut process = cluster.worker(node)?;
            let domain = domain.clone();
            let () = ask(cluster, &mut process, Order::Attach { domain })?;
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
            has_interfaces,
            leaver_node: leaver_node.clone(),
            ear: (SocketAddrV4::new(*address, 0), second.clone()),
            owner,
            stayer,
            leaver,
            _others: others?,
            key: None,
            version: 1,
            watched: None,
            cluster,
        };
        let port = play.stayer(Order::Listen)?;
        play.ear.0.set_port(port);
        if scenario.bytes > 0 {
            play.export()?;
        }
        Ok(play)
    }

    fn export(&mut self) -> Result<(), ClusterError> {
        let writable = self.scenario.export == Export::Rw;
        let bytes = self.scenario.bytes;
        let key: String = self.owner(Order::Export { bytes, writable })?;
        for other in &mut self._others {
            let key = key.clone();
            let () = ask(self.cluster, other, Order::Map { key, writable })?;
        }
        self.key = Some(key);
        Ok(())
    }

    fn owner<A: DeserializeOwned>(&mut self, order: Order) -> Result<A, ClusterError> {
        ask(self.cluster, &mut self.owner, order)
    }

    fn stayer<A: DeserializeOwned>(&mut self, order: Order) -> Result<A, ClusterError> {
        ask(self.cluster, &mut self.stayer, order)
    }

    fn leaver<A: DeserializeOwned>(&mut self, order: Order) -> Result<A, ClusterError> {
        ask(self.cluster, &mut self.leaver, order)
    }

    fn read(&mut self) -> Result<Vec<f64>, ClusterError> {
        match self.key.clone() {
            Some(key) => Ok(self.stayer::<Samples>(Order::Read { key })?.samples_ns),
            None => Ok(Vec::new()),
        }
    }

    fn start_hammer(&mut self) -> Result<(), ClusterError> {
        let (key, writable) = (self.key.clone(), self.scenario.export == Export::Rw);
        self.stayer(Order::Hammer { key, writable })
    }

    /// Waits for the migrations of the last shrink, for which the next shrink would wait otherwise.
    /// Then waits up to [`COMPACTED`] until memory that peers write is in huge pages.
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

    /// Waits for the end of all migrations.
    fn arrive(&mut self) -> Result<(), ClusterError> {
        while self.cluster.control()?.status()?.moving_bytes > 0 {
            thread::sleep(SETTLED);
        }
        Ok(())
    }

    fn shrink(&mut self) -> Result<f64, ClusterError> {
        self.change(Control::shrink)
    }

    fn grow(&mut self) -> Result<f64, ClusterError> {
        self.change(Control::grow)
    }

    /// Changes the membership of the leaver's node. Returns the time in nanoseconds.
    fn change<T>(
        &mut self,
        change: fn(&mut Control, &str, &[String]) -> Result<T, ClientError>,
    ) -> Result<f64, ClusterError> {
        let nodes = [self.leaver_node.clone()];
        let start = Instant::now();
        change(self.cluster.control()?, &self.domain, &nodes)?;
        Ok(start.elapsed().as_nanos() as f64)
    }

    /// Starts endless sending by the leaver.
    fn flood(&mut self) -> Result<(), ClusterError> {
        let (address, place) = self.ear.clone();
        self.leaver(Order::Flood(address, place))
    }

    /// Gives the leaver all access of a member, shrinks, looks for leaks, and grows. Returns times
    /// in nanoseconds by name.
    fn cycle(&mut self, outcome: &mut Outcome) -> Result<Vec<(&'static str, f64)>, ClusterError> {
        let writable = self.scenario.export == Export::Rw;
        if let Some(key) = self.key.clone() {
            let () = self.leaver(Order::Keep { key, writable })?;
        }
        let () = self.flood()?;
        let flooded = now_ns();
        // Without arrivals before the shrink, none afterwards would prove nothing.
        let has_interfaces = self.has_interfaces;
        let arrived = || self.stayer(Order::Arrived { after: flooded });
        if let Some(what) = missing(has_interfaces, HEARD, arrived)? {
            let message = format!("no {what} of the leaver came for {HEARD:?} before the shrink");
            return Err(self.stayer.failed(message));
        }
        self.settle()?;
        let _: Pause = self.stayer(Order::Pause)?;
        let before = match self.watched {
            Some(as_long) => {
                thread::sleep(as_long);
                Some(self.stayer::<Pause>(Order::Pause)?)
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
        let leaked: [u64; 2] = self.stayer(Order::Arrived { after: returned })?;
        outcome.leaked_frames += leaked.iter().sum::<u64>();
        let shrunk: Pause = self.stayer(Order::Pause)?;
        self.watched = Some(start.elapsed());
        let grow = self.grow()?;
        let grown: Pause = self.stayer(Order::Pause)?;
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

    /// Number of leaked bytes: the leaver must not see what the owner writes now, nor the reverse.
    fn look_for_leaks(&mut self) -> Result<u64, ClusterError> {
        self.version += 1;
        let version = self.version;
        let () = self.owner(Order::Fill { version })?;
        let seen: u64 = self.leaver(Order::Newer { version })?;
        let written: u64 = self.owner(Order::Foreign)?;
        Ok(seen + written)
    }

    fn in_flight(&mut self) -> Result<f64, ClusterError> {
        let key = self.key.clone().unwrap_or_default();
        let () = self.leaver(Order::ReadOn { key })?;
        thread::sleep(SETTLED);
        self.settle()?;
        let command = now_ns();
        self.shrink()?;
        let failed: u64 = self.leaver(Order::Failed)?;
        self.grow()?;
        Ok(failed.saturating_sub(command) as f64)
    }

    /// Growth of shared memory in bytes while a shrink migrates regions.
    fn extra_memory(&mut self) -> Result<Option<u64>, ClusterError> {
        let Some(key) = self.key.clone() else {
            return Ok(None);
        };
        let writable = self.scenario.export == Export::Rw;
        // A shrink migrates only regions that the leaver has open.
        let () = self.leaver(Order::Keep { key, writable })?;
        // Wait for the release of the last migration's old memory.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_arrivals_are_a_control_of_leaks() {
        let within = Duration::from_millis(10);
        let of = |has_interfaces, counts| missing(has_interfaces, within, || Ok(counts)).unwrap();
        assert_eq!(of(true, [0, 5]), Some("datagram"));
        assert_eq!(of(true, [5, 0]), Some("packet"));
        assert_eq!(of(false, [0, 5]), None);
        let mut counts = [[0, 0], [0, 3], [1, 0]].into_iter();
        let later = || Ok(counts.next().unwrap_or_default());
        assert_eq!(missing(true, HEARD, later).unwrap(), None);
        assert!(missing(true, within, || Err(ClusterError::NoServer)).is_err());
    }
}
