//! `toroid status`: the agent, its torus, hosts, limits and provider.

use clap::Args;
use toroid_model::hosts::{Encryption, Provider};
use toroid_model::info::{HostAdmission, HostInfo, Limits, Status as Info};

use super::{DONE, Run, Session};
use crate::failure::Failure;
use crate::output::{Show, count, counted, line};

#[derive(Debug, Args)]
pub(crate) struct Status;

impl Run for Status {
    fn run(self, session: &Session) -> Result<u8, Failure> {
        print(&session.connect()?.status()?, session.show);
        Ok(DONE)
    }
}

pub(crate) fn print(status: &Info, show: Show) {
    if show.json {
        return show.value(status);
    }
    line!("data       {}", status.data);
    let [x, y, z] = status.torus.sizes();
    line!("agent      process {} on {}", status.pid, status.state);
    let here = if status.hosts.is_empty() { "" } else { " here" };
    let nodes = count(status.nodes, "node");
    line!("torus      {x}x{y}x{z}, {nodes}{here}");
    for host in present(&status.hosts) {
        print_host(host);
    }
    if let Some(etcd) = &status.etcd {
        let problem = status.etcd_problem.as_ref();
        let problem = problem.map_or_else(String::new, |problem| format!(": {problem}"));
        line!("etcd       {etcd}{problem}");
    }
    if let Some(revision) = &status.revision {
        line!("directory  {revision}, fabric {}", revision.fabric);
    }
    if let Some(moved) = &status.moved {
        line!("moved      {moved}");
    }
    line!("domains    {}", status.domains);
    match status.between_hosts {
        None => line!("provider   {}", status.provider),
        Some(other) => line!("provider   {}, between hosts {other}", status.provider),
    }
    if let Some(encryption) = encryption(status) {
        line!("encryption {encryption}");
    }
    if let Some(fabric) = &status.fabric {
        line!("fabric     {fabric}, emulated");
    }
    match status.driver_pid {
        Some(pid) => line!("ethernet   {}, driver process {pid}", status.ethernet),
        None => line!("ethernet   {}", status.ethernet),
    }
    if let Some(no_taps) = &status.no_taps {
        line!("no TAPs    {no_taps}");
    }
    let Limits { memory, pids } = status.limits;
    let memory = memory.map(|bytes| format!("{bytes} bytes of memory"));
    let pids = pids.map(|pids| format!("{pids} processes and threads"));
    let limits: Vec<String> = memory.into_iter().chain(pids).collect();
    if !limits.is_empty() {
        line!("limits     {} for each node", limits.join(", "));
    }
    if let Some(no_limits) = &status.no_limits {
        line!("no limits  {no_limits}");
    }
    let offload: Vec<String> = status.offload.iter().map(ToString::to_string).collect();
    if offload.is_empty() {
        line!("offload    none")
    } else {
        line!("offload    {}", offload.join(" "))
    }
    line!(
        "attached   {}, {} bytes registered",
        counted(status.attached, "process", "processes"),
        status.registered_bytes
    );
    if !status.private_users {
        let label = if status.rootless { "rootless" } else { "users" };
        line!("{label:11}nodes are separated for convenience, not against malice");
    }
}

/// What is encrypted between hosts, and what is not; `None` without other hosts.
pub(super) fn encryption(status: &Info) -> Option<String> {
    let by_rdma = status.between_hosts == Some(Provider::Verbs);
    let cipher = || status.cipher.as_deref().unwrap_or("an unknown cipher");
    Some(match (status.encryption?, by_rdma) {
        (Encryption::On, false) => format!("on: all data between hosts, by {}", cipher()),
        (Encryption::On, true) => format!(
            "on: data between hosts, by {}; but what RDMA devices carry is NOT encrypted",
            cipher()
        ),
        (Encryption::Off, _) => {
            "OFF: data between hosts is not encrypted; who is on the way reads and forges it".into()
        }
    })
}

/// Hosts without those that were removed, which `toroid host ls` shows.
pub(super) fn present(hosts: &[HostInfo]) -> impl Iterator<Item = &HostInfo> {
    let is_present = |host: &&HostInfo| host.admission != HostAdmission::Removed;
    hosts.iter().filter(is_present)
}

fn print_host(host: &HostInfo) {
    let HostInfo {
        name,
        address,
        state,
        ..
    } = host;
    let directory = match (host.directory, host.candidate) {
        (true, false) => ", holds the directory",
        (true, true) => ", coordinates",
        (false, true) => ", candidate",
        (false, false) => "",
    };
    let frames = match (host.frames, host.frames_over) {
        (true, Some(Provider::Verbs)) => ", frames pass by RDMA devices",
        (true, _) => ", frames pass",
        (false, _) => "",
    };
    let problem = host.problem.as_ref();
    let problem = problem.map_or_else(String::new, |problem| format!(": {problem}"));
    let address = address.as_ref();
    let address = address.map_or("no address".into(), |address| format!("at {address}"));
    line!("host       {name} {address}, {state}{directory}{frames}{problem}");
}

#[cfg(test)]
mod tests {
    use super::*;

    /// It was once away in `toroid status` for ever, and healthy in `toroid doctor`.
    #[test]
    fn a_removed_host_is_not_present() {
        let hosts = r#"[
            {"name": "a", "directory": true, "state": "here", "admission": "admitted"},
            {"name": "b", "directory": false, "state": "away", "admission": "removed"},
            {"name": "c", "directory": false, "state": "away", "admission": "pending"}
        ]"#;
        let hosts: Vec<HostInfo> = serde_json::from_str(hosts).unwrap();
        let names: Vec<&str> = present(&hosts).map(|host| host.name.as_str()).collect();
        assert_eq!(names, ["a", "c"]);
    }
}
