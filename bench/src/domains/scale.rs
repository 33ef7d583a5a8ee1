//! Large domains, and many domains.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use toroid_fabric::Torus;

use super::cycles::{self, Outcome, Scenario};
use super::nodes;
use crate::cluster::{Cluster, ClusterError, check_signals};
use crate::memory::kib_field;
use crate::report::Row;
use crate::roles;

const DOMAIN: &str = "whole";

/// Members of each of many domains.
const SIXTEEN: u32 = 16;

/// The kernel's unit of processor time (USER_HZ).
const TICKS_PER_S: f64 = 100.0;

/// Idle time long enough for the agent's work of each second.
const NOTHING: Duration = Duration::from_secs(3);

/// The row of a domain of all nodes. Times in nanoseconds: start of the agent with its nodes;
/// creation and removal of the domain; creation again while the old interfaces are still being
/// removed; end of agent, nodes and domain.
pub fn row(members: u32, ethernet: bool, [up, create, rm, again, down]: [f64; 5]) -> Row {
    Row::default()
        .label("members", members)
        .label("ethernet", ethernet)
        .figure("up_ns", up)
        .figure("create_ns", create)
        .figure("rm_ns", rm)
        .figure("create_again_ns", again)
        .figure("down_ns", down)
}

/// The row of many idle domains: their number, members of each, and nodes; the time to create all
/// in nanoseconds; processor time of agent, fd store and nodes over elapsed time; their
/// proportional memory in bytes.
pub fn idle_row([domains, members, nodes]: [u32; 3], create: f64, cpu: f64, pss: u64) -> Row {
    Row::default()
        .label("domains", domains)
        .label("members", members)
        .label("nodes", nodes)
        .figure("create_ns", create)
        .figure("cpu_share", cpu)
        .figure("pss_bytes", pss)
}

/// Measures a domain of all nodes of a torus, and plays a scenario there if given.
pub fn all_nodes(
    torus: Torus,
    ethernet: bool,
    scenario: Option<Scenario>,
) -> Result<(Row, Option<Outcome>), ClusterError> {
    let driver = ethernet.then_some(roles::DRIVER);
    let (mut cluster, up_ns) = timed(|| Cluster::start(torus, driver))?;
    let outcome = scenario.map(|scenario| cycles::play(&mut cluster, scenario));
    let outcome = outcome.transpose()?;
    let (_, create_ns) = timed(|| cluster.create_domain(DOMAIN))?;
    let ((), rm_ns) = timed(|| Ok(cluster.control()?.remove(DOMAIN)?))?;
    let (_, create_again_ns) = timed(|| cluster.create_domain(DOMAIN))?;
    let start = Instant::now();
    drop(cluster);
    let down_ns = start.elapsed().as_nanos() as f64;
    let times_ns = [up_ns, create_ns, rm_ns, create_again_ns, down_ns];
    Ok((row(torus.nodes(), ethernet, times_ns), outcome))
}

/// Creates many domains, and measures the idle agent.
pub fn many_domains(torus: Torus, domains: u32) -> Result<Row, ClusterError> {
    let mut cluster = Cluster::start(torus, None)?;
    let all = nodes(&mut cluster, torus.nodes())?;
    let start = Instant::now();
    for n in 0..domains {
        check_signals()?;
        let at = |m| all[((n * 7 + m * 5) % torus.nodes()) as usize].clone();
        let members: Vec<String> = (0..SIXTEEN).map(at).collect();
        cluster
            .control()?
            .create(&format!("d{n}"), &members, None, None)?;
    }
    let create_ns = start.elapsed().as_nanos() as f64;
    let processes = processes(&mut cluster)?;
    let begin = cpu_ticks(&processes);
    thread::sleep(NOTHING);
    let ticks = cpu_ticks(&processes).saturating_sub(begin);
    let share = ticks as f64 / TICKS_PER_S / NOTHING.as_secs_f64();
    let rollup = |pid: &u32| format!("/proc/{pid}/smaps_rollup");
    let pss_of = |pid: &u32| kib_field(rollup(pid).as_ref(), "Pss:");
    let pss = processes.iter().filter_map(pss_of).sum();
    Ok(idle_row(
        [domains, SIXTEEN, torus.nodes()],
        create_ns,
        share,
        pss,
    ))
}

/// Also returns the time of `work` in nanoseconds.
fn timed<T>(work: impl FnOnce() -> Result<T, ClusterError>) -> Result<(T, f64), ClusterError> {
    let start = Instant::now();
    let result = work()?;
    Ok((result, start.elapsed().as_nanos() as f64))
}

/// Process ids of the agent, its driver and nodes, and all their descendants.
fn processes(cluster: &mut Cluster) -> Result<BTreeSet<u32>, ClusterError> {
    let status = cluster.control()?.status()?;
    let mut ours = BTreeSet::from([status.pid]);
    ours.extend(status.driver_pid);
    ours.extend(
        cluster
            .control()?
            .nodes()?
            .iter()
            .filter_map(|node| node.pid),
    );
    ours.extend(cluster.agent_pid());
    let parents = parents();
    loop {
        let before = ours.len();
        let children = parents.iter().filter(|(_, parent)| ours.contains(parent));
        let children: Vec<u32> = children.map(|(pid, _)| *pid).collect();
        ours.extend(children);
        if ours.len() == before {
            return Ok(ours);
        }
    }
}

fn parents() -> HashMap<u32, u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter_map(|pid| Some((pid, fields(pid)?.get(1)?.parse().ok()?)))
        .collect()
}

/// Fields of `/proc/PID/stat` from the state on.
fn fields(pid: u32) -> Option<Vec<String>> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, fields) = text.rsplit_once(") ")?;
    Some(fields.split(' ').map(Into::into).collect())
}

fn cpu_ticks(processes: &BTreeSet<u32>) -> u64 {
    let of_one = |pid: &u32| {
        let fields = fields(*pid)?;
        let ticks = |at: usize| fields.get(at)?.parse::<u64>().ok();
        Some(ticks(11)? + ticks(12)?)
    };
    processes.iter().filter_map(of_one).sum()
}
