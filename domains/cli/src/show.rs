//! Results, for people or as JSON.

use std::fmt;
use std::io::{self, Write};

use serde::Serialize;
use serde_json::json;
use toroid_model::hosts::Provider;
use toroid_model::info::{
    DomainInfo, HostInfo, Limits, MemberDrops, MemberInfo, NodeInfo, ShrinkNeeds, Status,
};
use toroid_protocol::agent::Reply;

use crate::names;

/// Prints a line of a result. A reader that has seen enough, such as `head`, ends the program
/// quietly.
macro_rules! line {
    ($($text:tt)*) => { $crate::show::print(format_args!($($text)*)) };
}
pub(crate) use line;

pub(crate) fn print(line: fmt::Arguments<'_>) {
    match writeln!(io::stdout(), "{line}") {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => std::process::exit(0),
        Err(error) => {
            eprintln!("toroid: cannot print the result: {error}");
            std::process::exit(1);
        }
    }
}

/// How results are printed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Show {
    pub(crate) json: bool,
}

impl Show {
    /// Something that people should know and programs need not.
    pub(crate) fn note(self, text: &str) {
        if !self.json {
            eprintln!("{text}");
        }
    }

    /// The command was carried out; there is nothing to tell.
    pub(crate) fn done(self) {
        if self.json {
            self.value(&json!({}));
        }
    }

    pub(crate) fn value(self, value: &impl Serialize) {
        match serde_json::to_string(value) {
            Ok(text) => line!("{text}"),
            Err(error) => eprintln!("toroid: cannot print the result: {error}"),
        }
    }

    pub(crate) fn status(self, status: &Status) {
        if self.json {
            return self.value(status);
        }
        line!("data       {}", status.data);
        let [x, y, z] = status.torus.sizes();
        line!("agent      process {} on {}", status.pid, status.state);
        let here = if status.hosts.is_empty() { "" } else { " here" };
        let nodes = count(status.nodes, "node");
        line!("torus      {x}x{y}x{z}, {nodes}{here}");
        for host in &status.hosts {
            self.host(host);
        }
        line!("domains    {}", status.domains);
        match status.between_hosts {
            None => line!("provider   {}", status.provider),
            Some(other) => line!("provider   {}, between hosts {other}", status.provider),
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

    fn host(self, host: &HostInfo) {
        let HostInfo {
            name,
            address,
            state,
            ..
        } = host;
        let directory = if host.directory {
            ", holds the directory"
        } else {
            ""
        };
        let frames = match (host.frames, host.frames_over) {
            (true, Some(Provider::Verbs)) => ", frames pass by RDMA adapters",
            (true, _) => ", frames pass",
            (false, _) => "",
        };
        let problem = host.problem.as_ref();
        let problem = problem.map_or_else(String::new, |problem| format!(": {problem}"));
        line!("host       {name} at {address}, {state}{directory}{frames}{problem}");
    }

    pub(crate) fn nodes(self, nodes: &[NodeInfo]) {
        if self.json {
            return self.value(&nodes);
        }
        let is_alone = nodes.iter().all(|node| node.host.is_none());
        let rows = nodes.iter().map(|node| {
            let host = match &node.host {
                Some(host) => host.as_str(),
                None if is_alone => "here",
                None => "none",
            };
            [
                node.place.to_string(),
                host.to_owned(),
                match node.owner {
                    _ if node.free => "free".into(),
                    Some(owner) => names::user(owner),
                    None => "-".into(),
                },
                node.aliases.join(","),
                node.domains.join(","),
                node.pid.map_or_else(|| "-".into(), |pid| pid.to_string()),
            ]
        });
        table(["NODE", "HOST", "OWNER", "ALIASES", "DOMAINS", "PID"], rows);
    }

    pub(crate) fn domains(self, domains: &[DomainInfo]) {
        if self.json {
            return self.value(&domains);
        }
        let rows = domains.iter().map(|domain| {
            [
                domain.name.clone(),
                domain.id.to_string(),
                domain.epoch.to_string(),
                domain.members.len().to_string(),
                domain.subnet.clone(),
                domain.mtu.to_string(),
            ]
        });
        table(["NAME", "ID", "EPOCH", "MEMBERS", "SUBNET", "MTU"], rows);
    }

    pub(crate) fn domain(self, domain: &DomainInfo) {
        if self.json {
            return self.value(domain);
        }
        line!(
            "{}: id {}, epoch {}, owner {}, subnet {}, mtu {}",
            domain.name,
            domain.id,
            domain.epoch,
            names::user(domain.owner),
            domain.subnet,
            domain.mtu
        );
        let figures = &domain.figures;
        line!(
            "{}, diameter {}, mean {:.2} hops",
            count(figures.size, "member"),
            figures.diameter,
            figures.mean_hops
        );
        if domain.public {
            line!("public: whoever owns a node may join with it");
        }
        if domain.forward {
            line!("forwards: members may be routers to other domains that forward");
        }
        if !domain.managers.is_empty() {
            line!("managed from {}", domain.managers.join(" "));
        }
        if let Some(gateway) = &domain.gateway {
            line!(
                "outside through {} at {} ({})",
                gateway.uplink,
                gateway.node,
                gateway.kind
            );
            if let Some(problem) = &gateway.problem {
                line!("nothing passes: {problem}");
            }
            if let Some(warning) = &gateway.warning {
                line!("warning: {warning}");
            }
        }
        let rows = domain.members.iter().map(|member| {
            [
                member.node.to_string(),
                member.host.clone().unwrap_or_else(|| "here".into()),
                if member.limited { "limited" } else { "full" }.into(),
                if member.plain { "off" } else { "on" }.into(),
                match &member.ifname {
                    Some(name) => name.clone(),
                    None if member.stack => "(stack)".into(),
                    None => "-".into(),
                },
                member.mac.clone(),
                member.ipv4.to_string(),
                member.ipv6.to_string(),
            ]
        });
        let head = [
            "NODE",
            "HOST",
            "MEMBER",
            "OFFLOAD",
            "INTERFACE",
            "MAC",
            "IPV4",
            "IPV6",
        ];
        table(head, rows);
    }

    pub(crate) fn drops(self, members: &[MemberDrops]) {
        if self.json {
            return self.value(&members);
        }
        let rows = members.iter().flat_map(|member| {
            member.dropped.iter().map(|(reason, count)| {
                let reason = serde_json::to_value(reason).unwrap_or_default();
                let reason = reason.as_str().unwrap_or_default().replace('_', " ");
                let sender = match (member.outside, &member.host, member.node) {
                    (true, ..) => "outside".into(),
                    (_, Some(host), _) => format!("host {host}"),
                    (.., node) => node.map_or_else(String::new, |node| node.to_string()),
                };
                [sender, reason, count.to_string()]
            })
        });
        table(["NODE", "REASON", "FRAMES"], rows);
    }

    pub(crate) fn shrink_needs(self, name: &str, needs: &ShrinkNeeds) {
        if self.json {
            return self.value(needs);
        }
        line!("{name} without {}, not done yet:", needs.leaving.join(" "));
        let row = |node: &str, what: &str, count: u32, bytes: Option<u64>| {
            let bytes = bytes.map_or_else(|| "-".into(), |bytes| bytes.to_string());
            [node.into(), what.into(), count.to_string(), bytes]
        };
        let waiting = needs.acknowledging.iter();
        let waiting = waiting.map(|of| row(&of.node, "processes acknowledge", of.processes, None));
        let moving = needs.moving.iter().map(|of| {
            let what = if of.written {
                "regions move (rw)"
            } else {
                "regions move (ro)"
            };
            row(&of.node, what, of.regions, Some(of.bytes))
        });
        let ending = needs.ending.iter();
        let ending = ending.map(|of| row(&of.node, "regions end", of.regions, Some(of.bytes)));
        table(
            ["NODE", "WHAT", "COUNT", "BYTES"],
            waiting.chain(moving).chain(ending),
        );
        line!("{} packet channels end", needs.ending_channels);
        line!(
            "at most {} bytes of memory more until all has moved",
            needs.extra_bytes
        );
    }

    pub(crate) fn addresses(self, domain: &DomainInfo, member: &MemberInfo) {
        if self.json {
            return self.value(member);
        }
        let [x, y, z] = [member.node.x, member.node.y, member.node.z];
        line!("name   {x}-{y}-{z}.{}", domain.name);
        line!("ipv4   {}", member.ipv4);
        line!("ipv6   {}", member.ipv6);
        line!("mac    {}", member.mac);
        if let Some(interface) = &member.ifname {
            line!("dev    {interface}");
        }
    }

    pub(crate) fn whoami(self, reply: &Reply) {
        let Reply::Whoami {
            torus,
            node,
            place,
            domains,
        } = reply
        else {
            return;
        };
        if self.json {
            let place = place.to_string();
            let torus = torus.to_string();
            return self
                .value(&json!({"node": place, "id": node, "torus": torus, "domains": domains}));
        }
        line!("node      {place}");
        line!("torus     {torus}");
        line!("domains   {}", domains.join(" "));
    }
}

/// A number and what is counted, such as `1 member`.
fn count(number: impl Into<u64>, one: &str) -> String {
    counted(number, one, &format!("{one}s"))
}

fn counted(number: impl Into<u64>, one: &str, several: &str) -> String {
    match number.into() {
        1 => format!("1 {one}"),
        number => format!("{number} {several}"),
    }
}

/// Columns as wide as their widest cell.
pub(crate) fn table<const N: usize>(head: [&str; N], rows: impl Iterator<Item = [String; N]>) {
    let rows: Vec<_> = std::iter::once(head.map(String::from))
        .chain(rows)
        .collect();
    let width = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or(0);
    let widths: [usize; N] = std::array::from_fn(width);
    for row in &rows {
        let cells = row
            .iter()
            .zip(widths)
            .map(|(cell, width)| format!("{cell:width$}"));
        line!("{}", cells.collect::<Vec<_>>().join("  ").trim_end());
    }
}
