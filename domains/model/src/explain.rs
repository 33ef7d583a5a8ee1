//! May two nodes talk, over which path, by whose grace; and if not, why not?
//!
//! Pure: from what an agent tells whoever asks, so nobody learns of domains that they may not see.

use std::fmt;

use serde::Serialize;
use toroid_fabric::Place;

use crate::as_text;
use crate::hosts::Provider;
use crate::info::{DomainInfo, HostInfo, HostState, MemberInfo, NodeInfo, Status};

/// What is known.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    /// The agent.
    pub status: &'a Status,
    /// All nodes.
    pub nodes: &'a [NodeInfo],
    /// The domains that whoever asks may see.
    pub domains: &'a [DomainInfo],
}

/// The answer.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Explanation {
    /// Who talks.
    #[serde(with = "as_text")]
    pub from: Place,
    /// To whom.
    #[serde(with = "as_text")]
    pub to: Place,
    /// Whether they may on any path.
    pub may: bool,
    /// For the domain asked about, or for each that both are in.
    pub domains: Vec<Verdict>,
    /// Why not, where no domain says it.
    #[serde(flatten)]
    pub objection: Option<Objection>,
}

/// What holds in one domain.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Verdict {
    /// Its name.
    pub domain: String,
    /// Whether they may on any path.
    pub may: bool,
    /// Through their interfaces.
    pub ethernet: Path,
    /// By access to each other's memory.
    pub rdma: Path,
}

/// One of the two ways to talk.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Path {
    /// Whether they may.
    pub may: bool,
    /// What carries it.
    pub provider: Option<String>,
    /// What keeps others out.
    pub enforced_by: Vec<Guard>,
    /// Which programs may not, though others do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<String>,
    /// Why not.
    #[serde(flatten)]
    pub objection: Option<Objection>,
}

/// Why not, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Objection {
    /// A sentence.
    pub reason: String,
    /// Another.
    pub remedy: String,
}

/// What enforces a domain's borders on a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Guard {
    /// Memory is reached through mappings, and these need a descriptor.
    Mapping,
    /// The agent hands descriptors to members only.
    Agent,
    /// The Ethernet driver checks partition, epoch and source of every frame.
    Driver,
    /// That of the other host checks them again, and that the host carries the source.
    FarDriver,
    /// The process that plays the network card at the host of the memory looks at the right of every
    /// request.
    Adapter,
    /// The RDMA device of that host takes keys of what its agent has granted, until it has taken
    /// that back.
    RemoteKeys,
    /// What travels between hosts is not encrypted: whoever can alter it there could.
    Network,
    /// It stays within the node, whose namespaces hold it.
    Node,
    /// All nodes run as one user, so their processes could reach into each other.
    Cooperation,
}

impl fmt::Display for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Guard::Mapping => "mappings, which need a descriptor",
            Guard::Agent => "the agent, which hands those to members only",
            Guard::Driver => "the driver, which checks every frame",
            Guard::FarDriver => "the other host's driver, which checks source and epoch again",
            Guard::Adapter => "the adapter of the other host, which looks at every request",
            Guard::RemoteKeys => "its RDMA device, which knows only what is granted at that moment",
            Guard::Network => "the network between the hosts, where nothing is encrypted",
            Guard::Node => "the node itself",
            Guard::Cooperation => "cooperation, because nodes have no users of their own",
        })
    }
}

impl fmt::Display for Objection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}", self.reason, self.remedy)
    }
}

impl Objection {
    fn new(reason: impl Into<String>, remedy: impl Into<String>) -> Self {
        Objection {
            reason: reason.into(),
            remedy: remedy.into(),
        }
    }
}

impl Path {
    fn yes(provider: &str, enforced_by: &[Guard]) -> Self {
        Path {
            may: true,
            provider: Some(provider.into()),
            enforced_by: enforced_by.into(),
            limit: None,
            objection: None,
        }
    }

    fn no(objection: Objection) -> Self {
        Path {
            may: false,
            provider: None,
            enforced_by: Vec::new(),
            limit: None,
            objection: Some(objection),
        }
    }
}

impl Facts<'_> {
    /// Whether two nodes may talk in `domain`, or in those that both are in.
    pub fn explain(&self, from: Place, to: Place, domain: Option<&str>) -> Explanation {
        let asked = |info: &&DomainInfo| match domain {
            Some(name) => info.name == name,
            None => has_both(info, from, to),
        };
        let asked = self.domains.iter().filter(asked);
        let domains: Vec<Verdict> = asked.map(|info| self.verdict(info, from, to)).collect();
        let objection = domains.is_empty().then(|| self.strangers(from, to));
        Explanation {
            from,
            to,
            may: domains.iter().any(|verdict| verdict.may),
            domains,
            objection,
        }
    }

    fn verdict(&self, info: &DomainInfo, from: Place, to: Place) -> Verdict {
        let (ethernet, rdma) = match self.objection(info, from, to) {
            Some(objection) => (Path::no(objection.clone()), Path::no(objection)),
            None => {
                let stacks = stacks(info, from, to);
                match self.apart(from, to) {
                    Some((here, there)) => (self.far_ethernet(here, there, &stacks), self.far()),
                    None => (self.ethernet(from == to, &stacks), self.rdma()),
                }
            }
        };
        Verdict {
            domain: info.name.clone(),
            may: ethernet.may || rdma.may,
            ethernet,
            rdma,
        }
    }

    /// What forbids both paths.
    fn objection(&self, info: &DomainInfo, from: Place, to: Place) -> Option<Objection> {
        let name = &info.name;
        let (Some(a), Some(b)) = (member(info, from), member(info, to)) else {
            return Some(self.outsiders(info, from, to));
        };
        if from != to && a.limited && b.limited {
            return Some(Objection::new(
                format!("both are limited members of {name}, who may talk to full members only"),
                format!(
                    "make one a full member with `toroid domain shrink {name} {to}` and `toroid \
                     domain grow {name} {to}`"
                ),
            ));
        }
        None
    }

    fn outsiders(&self, info: &DomainInfo, from: Place, to: Place) -> Objection {
        let name = &info.name;
        let mut outside: Vec<Place> = [from, to]
            .into_iter()
            .filter(|place| member(info, *place).is_none())
            .collect();
        outside.dedup();
        let places: Vec<String> = outside.iter().map(ToString::to_string).collect();
        let places = places.join(" ");
        let reason = match outside.len() {
            1 => format!("node {places} is not a member of {name}"),
            _ => format!("nodes {places} are not members of {name}"),
        };
        let mut join = format!(
            "its owner, uid {}, can change that with `toroid domain grow {name} {places}`",
            info.owner
        );
        for (place, owner) in outside.iter().filter_map(|p| self.unconsenting(info, *p)) {
            let owner = owner.map_or_else(String::new, |owner| format!(", uid {owner},"));
            join += &format!(
                ", once the owner of {place}{owner} has run `toroid node consent {place} -d {name}`"
            );
        }
        match &self.common(from, to)[..] {
            [] => Objection::new(reason, join),
            shared => Objection::new(
                reason,
                format!("they share {}, or {join}", shared.join(" and ")),
            ),
        }
    }

    fn strangers(&self, from: Place, to: Place) -> Objection {
        let of = |place: Place| {
            let inside = self
                .domains
                .iter()
                .filter(|info| member(info, place).is_some());
            let names: Vec<&str> = inside.map(|info| &*info.name).collect();
            if names.is_empty() {
                format!("{place} is in none")
            } else {
                format!("{place} is in {}", names.join(" and "))
            }
        };
        let both = if from == to {
            of(from)
        } else {
            format!("{}, {}", of(from), of(to))
        };
        Objection::new(
            format!("they share no domain that you may see: {both}"),
            "put both into one with `toroid domain create` or `toroid domain grow`",
        )
    }

    /// A node that the domain's owner may not place there, and its owner as far as the caller may
    /// see that.
    fn unconsenting(&self, info: &DomainInfo, place: Place) -> Option<(Place, Option<u32>)> {
        let node = self.nodes.iter().find(|node| node.place == place)?;
        let is_administrator = info.owner == 0 || self.status.rootless;
        let may = is_administrator || node.owner == Some(info.owner);
        (!may && !node.consents.contains(&info.name)).then_some((place, node.owner))
    }

    fn common(&self, from: Place, to: Place) -> Vec<&str> {
        let shared = self.domains.iter().filter(|info| has_both(info, from, to));
        shared.map(|info| &*info.name).collect()
    }

    fn ethernet(&self, is_same: bool, stacks: &[Place]) -> Path {
        if self.status.ethernet == "none" {
            return Path::no(Objection::new(
                "the agent runs without Ethernet",
                "start it without --no-ethernet",
            ));
        }
        if is_same {
            return Path::yes("loopback", &[Guard::Node]);
        }
        if self.status.driver_pid.is_none() {
            return Path::no(Objection::new(
                "the Ethernet driver does not run",
                "the agent starts it again; see agent.log in its state directory",
            ));
        }
        let guards = self.with_cooperation(&[Guard::Driver]);
        Path {
            limit: no_interfaces(stacks),
            ..Path::yes(kind(stacks), &guards)
        }
    }

    /// From driver to driver.
    fn far_ethernet(&self, here: &str, there: &str, stacks: &[Place]) -> Path {
        let near = self.ethernet(false, stacks);
        if !near.may {
            return near;
        }
        let host = |name: &str| self.status.hosts.iter().find(|host| host.name == name);
        let [here, there] = match [host(here), host(there)] {
            [Some(here), Some(there)] => [here, there],
            _ => {
                return Path::no(Objection::new(
                    format!("the nodes are on hosts {here} and {there}, one of which is unknown"),
                    "compare the files for `toroid up --config` of the hosts",
                ));
            }
        };
        // Of connections between others this agent does not know.
        let is_ours = |host: &HostInfo| host.state == HostState::Here;
        let is_cut = (is_ours(here) && !there.frames) || (is_ours(there) && !here.frames);
        if is_cut {
            return Path::no(Objection::new(
                format!(
                    "the drivers of hosts {} and {} are not connected",
                    here.name, there.name
                ),
                "they connect again and again; see `toroid status` and agent.log on both hosts",
            ));
        }
        let guards = [Guard::Driver, Guard::FarDriver, Guard::Network];
        let guards = self.with_cooperation(&guards);
        let address = |host: &HostInfo| {
            let address = host.address.rsplit_once(':');
            address.map_or_else(|| host.address.clone(), |(address, _)| address.into())
        };
        let by_connection = || format!("tcp, {} - {}", address(here), address(there));
        // Of what others do at this moment this agent does not know.
        let known = match (is_ours(here), is_ours(there)) {
            (true, _) => there.frames_over,
            (_, true) => here.frames_over,
            _ => None,
        };
        let over = match (known, self.status.between_hosts) {
            (Some(Provider::Verbs), _) => "verbs".into(),
            (None, Some(Provider::Verbs)) => "verbs or tcp".into(),
            _ => by_connection(),
        };
        let provider = format!("{} over {over}", kind(stacks));
        Path {
            limit: near.limit,
            ..Path::yes(&provider, &guards)
        }
    }

    fn rdma(&self) -> Path {
        let guards = self.with_cooperation(&[Guard::Mapping, Guard::Agent]);
        Path::yes(&self.status.provider, &guards)
    }

    /// The hosts that carry two nodes, if they are two.
    fn apart(&self, from: Place, to: Place) -> Option<(&str, &str)> {
        let host = |place: Place| {
            let node = self.nodes.iter().find(|node| node.place == place)?;
            node.host.as_deref()
        };
        let (here, there) = (host(from)?, host(to)?);
        (here != there).then_some((here, there))
    }

    /// Between two hosts, by what the agents are told to use.
    fn far(&self) -> Path {
        let provider = self.status.between_hosts.unwrap_or_default();
        let guards: &[Guard] = match provider {
            Provider::Tcp => &[Guard::Adapter, Guard::Network],
            Provider::Verbs => &[Guard::RemoteKeys, Guard::Adapter, Guard::Network],
        };
        Path::yes(&provider.to_string(), &self.with_cooperation(guards))
    }

    fn with_cooperation(&self, guards: &[Guard]) -> Vec<Guard> {
        let cooperation = (!self.status.private_users).then_some(Guard::Cooperation);
        guards.iter().copied().chain(cooperation).collect()
    }
}

/// Which of two members have no interface of the kernel.
fn stacks(info: &DomainInfo, from: Place, to: Place) -> Vec<Place> {
    let mut both = vec![from, to];
    both.dedup();
    both.retain(|place| member(info, *place).is_some_and(|member| member.ifname.is_none()));
    both
}

/// What carries packets of two members, of which these have no interface.
fn kind(stacks: &[Place]) -> &'static str {
    if stacks.is_empty() { "tap" } else { "stack" }
}

/// What holds where nodes have no interface of the kernel, or nothing if there are none of these.
pub fn no_interfaces(stacks: &[Place]) -> Option<String> {
    let places: Vec<String> = stacks.iter().map(ToString::to_string).collect();
    let [node, has] = match stacks.len() {
        0 => return None,
        1 => ["node", "has no interface"],
        _ => ["nodes", "have no interfaces"],
    };
    let places = places.join(" and ");
    Some(format!(
        "{node} {places} {has} of the kernel, so only programs with sockets of `toroid_ethernet::Stack` have \
         Ethernet there"
    ))
}

fn has_both(info: &DomainInfo, a: Place, b: Place) -> bool {
    member(info, a).is_some() && member(info, b).is_some()
}

fn member(info: &DomainInfo, place: Place) -> Option<&MemberInfo> {
    info.members.iter().find(|member| member.node == place)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn place(x: u8) -> Place {
        Place { x, y: 0, z: 0 }
    }

    fn status(ethernet: &str, rootless: bool, driver_pid: Option<u32>) -> Status {
        let fields = json!({
            "pid": 1, "state": "/run/toroid", "data": "/var/lib/toroid", "torus": "4x1x1",
            "nodes": 4, "domains": 2, "provider": "shm", "ethernet": ethernet, "offload": [],
            "rootless": rootless, "private_users": !rootless, "driver_pid": driver_pid, "driver_restarts": 0, "attached": 0,
            "registered_bytes": 0, "moving_bytes": 0
        });
        serde_json::from_value(fields).unwrap()
    }

    /// Nodes 0 to 2 are in `blue`, 1 and 2 limited; 2 and 3 are in `red`.
    fn domains() -> Vec<DomainInfo> {
        let member = |x: u8, limited: bool| {
            json!({
                "node": place(x).to_string(), "limited": limited, "plain": false, "stack": false, "ifname": "blue", "mac": "",
                "ipv4": "10.64.0.1", "ipv6": "fd74::1"
            })
        };
        let domain = |name: &str, members: &[Value]| {
            let fields = json!({
                "name": name, "id": 1, "epoch": 1, "owner": 1000, "mtu": 9000,
                "subnet": "10.64.0.0/24", "public": false, "managers": [], "size": 0,
                "diameter": 0, "mean_hops": 0.0, "members": members
            });
            serde_json::from_value(fields).unwrap()
        };
        let blue = [member(0, false), member(1, true), member(2, true)];
        vec![
            domain("blue", &blue),
            domain("red", &[member(2, false), member(3, false)]),
        ]
    }

    /// All are 1000's but 3, which is 1001's.
    fn nodes() -> Vec<NodeInfo> {
        let node = |x: u8| {
            let fields = json!({
                "id": x, "place": place(x).to_string(), "aliases": [], "allocated": true,
                "owner": if x == 3 { 1001 } else { 1000 }, "free": false, "domains": [],
                "consents": [], "pid": 1
            });
            serde_json::from_value(fields).unwrap()
        };
        (0..4).map(node).collect()
    }

    fn explain(status: &Status, from: u8, to: u8, domain: Option<&str>) -> Explanation {
        let (nodes, domains) = (nodes(), domains());
        let facts = Facts {
            status,
            nodes: &nodes,
            domains: &domains,
        };
        facts.explain(place(from), place(to), domain)
    }

    fn reason(explanation: &Explanation) -> String {
        assert!(!explanation.may);
        let told = explanation.domains.first();
        let told = told.map(|verdict| verdict.rdma.objection.as_ref());
        let objection = told.unwrap_or(explanation.objection.as_ref());
        objection.unwrap().to_string()
    }

    #[test]
    fn members_may_and_hear_by_whose_grace() {
        let answer = explain(&status("tap", false, Some(7)), 0, 1, None);
        assert!(answer.may);
        let expected = json!({
            "from": "0,0,0", "to": "1,0,0", "may": true, "domains": [{
                "domain": "blue", "may": true,
                "ethernet": {"may": true, "provider": "tap", "enforced_by": ["driver"]},
                "rdma": {"may": true, "provider": "shm", "enforced_by": ["mapping", "agent"]},
            }]
        });
        assert_eq!(serde_json::to_value(&answer).unwrap(), expected);
    }

    #[test]
    fn programs_that_need_an_interface_are_told_where_there_is_none() {
        let (status, nodes, mut domains) = (status("stack", true, Some(7)), nodes(), domains());
        let mut told = |without: &[usize]| {
            for (n, member) in domains[0].members.iter_mut().enumerate() {
                let ifname = without.contains(&n).then_some(None);
                member.ifname = ifname.unwrap_or_else(|| Some("blue".into()));
            }
            let facts = Facts {
                status: &status,
                nodes: &nodes,
                domains: &domains,
            };
            let answer = facts.explain(place(0), place(1), None);
            let Path {
                provider, limit, ..
            } = answer.domains[0].ethernet.clone();
            (provider.unwrap(), limit.unwrap_or_default())
        };
        let only = "of the kernel, so only programs with sockets of `toroid_ethernet::Stack` have Ethernet there";
        assert_eq!(told(&[]), ("tap".into(), String::new()));
        let one = format!("node 1,0,0 has no interface {only}");
        assert_eq!(told(&[1]), ("stack".into(), one));
        let both = format!("nodes 0,0,0 and 1,0,0 have no interfaces {only}");
        assert_eq!(told(&[0, 1]), ("stack".into(), both));
    }

    #[test]
    fn limited_members_may_not_talk_to_each_other() {
        let answer = explain(&status("tap", false, Some(7)), 1, 2, None);
        let reason = reason(&answer);
        assert!(
            reason.contains("both are limited members of blue"),
            "{reason}"
        );
        assert!(reason.contains("toroid domain grow blue 2,0,0"), "{reason}");
    }

    #[test]
    fn a_limited_member_may_talk_to_itself() {
        let answer = explain(&status("tap", false, Some(7)), 1, 1, None);
        assert_eq!(answer.domains[0].ethernet.enforced_by, [Guard::Node]);
        assert!(answer.may);
    }

    #[test]
    fn outsiders_hear_what_they_share_and_who_can_change_it() {
        let status = status("tap", false, Some(7));
        let told = reason(&explain(&status, 0, 3, Some("blue")));
        let grow = "uid 1000, can change that with `toroid domain grow blue 3,0,0`";
        assert!(
            told.contains("node 3,0,0 is not a member of blue"),
            "{told}"
        );
        assert!(told.contains(grow), "{told}");
        let consent = "once the owner of 3,0,0, uid 1001, has run `toroid node consent 3,0,0 -d \
                       blue`";
        assert!(told.contains(consent), "{told}");
        let told = reason(&explain(&status, 0, 1, Some("red")));
        assert!(!told.contains("consent"), "{told}");
        let told = reason(&explain(&status, 2, 3, Some("blue")));
        assert!(told.contains("they share red"), "{told}");
        let told = reason(&explain(&status, 0, 3, None));
        assert!(told.contains("0,0,0 is in blue, 3,0,0 is in red"), "{told}");
    }

    #[test]
    fn frames_between_hosts_need_their_drivers_connection() {
        let told = |frames: bool, over: Option<&str>, here: &str| {
            let mut status = status("tap", false, Some(7));
            status.between_hosts = Some(Provider::Verbs);
            let host = |name: &str, state: &str, frames: bool, over: Option<&str>| {
                let fields = json!({
                    "name": name, "address": format!("10.0.0.{}:7470", name.len()), "directory": false,
                    "state": state, "frames": frames, "frames_over": over
                });
                serde_json::from_value(fields).unwrap()
            };
            status.hosts = vec![
                host("a", here, false, None),
                host("bb", "connected", frames, over),
            ];
            let (mut nodes, domains) = (nodes(), domains());
            for node in &mut nodes {
                let name = if node.id == 0 { "a" } else { "bb" };
                node.host = Some(name.into());
            }
            let facts = Facts {
                status: &status,
                nodes: &nodes,
                domains: &domains,
            };
            let answer = facts.explain(place(1), place(0), None);
            answer.domains[0].ethernet.clone()
        };
        let open = told(true, Some("tcp"), "here");
        assert_eq!(open.provider.unwrap(), "tap over tcp, 10.0.0.2 - 10.0.0.1");
        let guards = [Guard::Driver, Guard::FarDriver, Guard::Network];
        assert_eq!(open.enforced_by, guards);
        let open = told(true, Some("verbs"), "here");
        assert_eq!(open.provider.unwrap(), "tap over verbs");
        assert_eq!(open.enforced_by, guards);
        // Between two others.
        let open = told(false, None, "connected");
        assert_eq!(open.provider.unwrap(), "tap over verbs or tcp");
        let objection = told(false, None, "here").objection.unwrap();
        assert!(objection.reason.contains("bb and a are not connected"));
    }

    #[test]
    fn adapters_between_hosts_know_only_what_is_granted() {
        let told = |provider: Provider| {
            let mut status = status("tap", false, Some(7));
            status.between_hosts = Some(provider);
            let (mut nodes, domains) = (nodes(), domains());
            nodes[0].host = Some("a".into());
            nodes[1].host = Some("b".into());
            let facts = Facts {
                status: &status,
                nodes: &nodes,
                domains: &domains,
            };
            let answer = facts.explain(place(1), place(0), None);
            let rdma = answer.domains[0].rdma.clone();
            (rdma.provider.unwrap(), rdma.enforced_by)
        };
        let tcp = vec![Guard::Adapter, Guard::Network];
        assert_eq!(told(Provider::Tcp), ("tcp".into(), tcp.clone()));
        let verbs = [vec![Guard::RemoteKeys], tcp].concat();
        assert_eq!(told(Provider::Verbs), ("verbs".into(), verbs));
    }

    #[test]
    fn one_path_may_be_open_without_the_other() {
        let answer = explain(&status("none", true, None), 0, 1, None);
        let blue = &answer.domains[0];
        assert!(answer.may && !blue.ethernet.may);
        assert!(blue.rdma.enforced_by.contains(&Guard::Cooperation));
        let answer = explain(&status("tap", false, None), 0, 1, None);
        let objection = answer.domains[0].ethernet.objection.as_ref().unwrap();
        assert!(objection.reason.contains("does not run"));
    }
}
