//! Explanation whether two nodes may communicate, over which paths, and why not.
//!
//! Pure: derived from the descriptions that the caller gets, so it reveals no domain that the
//! caller may not see.

use std::fmt;

use serde::Serialize;
use toroid_fabric::Place;

use crate::as_text;
use crate::hosts::{Encryption, Provider, unencrypted};
use crate::info::{DomainInfo, HostInfo, HostState, MemberInfo, NodeInfo, Status};

/// Descriptions on which an explanation is based.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    /// The agent.
    pub status: &'a Status,
    /// All nodes.
    pub nodes: &'a [NodeInfo],
    /// Domains that the caller may see.
    pub domains: &'a [DomainInfo],
}

/// The answer.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Explanation {
    /// Sender.
    #[serde(with = "as_text")]
    pub from: Place,
    /// Receiver.
    #[serde(with = "as_text")]
    pub to: Place,
    /// Whether they may on any path.
    pub may: bool,
    /// For the domain asked about, or for each that both are in.
    pub domains: Vec<Verdict>,
    /// Reason of the refusal, if there is no domain to explain.
    #[serde(flatten)]
    pub objection: Option<Objection>,
}

/// Explanation for one domain.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Verdict {
    /// Name of the domain.
    pub domain: String,
    /// Whether they may on any path.
    pub may: bool,
    /// Through their interfaces.
    pub ethernet: Path,
    /// By access to memory.
    pub rdma: Path,
}

/// One of the two paths.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Path {
    /// Whether they may.
    pub may: bool,
    /// Provider.
    pub provider: Option<String>,
    /// Mechanisms that exclude other nodes.
    pub enforced_by: Vec<Guard>,
    /// Why frames pass through the driver on one host, and not through the kernel alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub without_kernel: Option<String>,
    /// Limitation to certain programs, as text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<String>,
    /// Why not.
    #[serde(flatten)]
    pub objection: Option<Objection>,
}

/// Reason of a refusal, and its remedy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Objection {
    /// A sentence.
    pub reason: String,
    /// Another.
    pub remedy: String,
}

/// Mechanism that enforces the borders of a domain on a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Guard {
    /// Memory is reached through mappings, and these need a descriptor.
    Mapping,
    /// The agent hands descriptors to members only.
    Agent,
    /// The kernel forwards frames between assigned addresses of full members, and the driver checks
    /// all others.
    Kernel,
    /// The Ethernet driver checks partition, epoch and source of every frame.
    Driver,
    /// The driver of the other host checks them again, and that the sending host carries the source.
    #[serde(rename = "far_driver")]
    RemoteDriver,
    /// The target proxy at the host of the memory checks the right of every request.
    #[serde(rename = "adapter")]
    TargetProxy,
    /// The RDMA device of that host accepts the keys of present grants only.
    RemoteKeys,
    /// The connection between the hosts is encrypted and authenticated.
    Encryption,
    /// Nothing is encrypted between the hosts: an attacker in between reads and alters it.
    Network,
    /// RDMA between the hosts is not encrypted: an attacker in between reads and alters it.
    RdmaNetwork,
    /// Packets stay within the namespaces of the node.
    Node,
    /// All nodes run as one user, so their processes could reach into each other.
    Cooperation,
}

impl fmt::Display for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Guard::Mapping => "mappings, which need a descriptor",
            Guard::Agent => "the agent, which hands those to members only",
            Guard::Kernel => {
                "the kernel, which forwards between members' addresses, and the driver, which checks \
                 every other frame"
            }
            Guard::Driver => "the driver, which checks every frame",
            Guard::RemoteDriver => "the other host's driver, which checks source and epoch again",
            Guard::TargetProxy => "the target proxy of the other host, which checks every request",
            Guard::RemoteKeys => "its RDMA device, which knows only what is granted at that moment",
            Guard::Encryption => "encryption of the connection between the hosts",
            Guard::Network => {
                "the network between the hosts, where nothing is encrypted (encryption = \"off\")"
            }
            Guard::RdmaNetwork => "the network between the hosts, where RDMA is not encrypted",
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
            without_kernel: None,
            limit: None,
            objection: None,
        }
    }

    fn no(objection: Objection) -> Self {
        Path {
            may: false,
            provider: None,
            enforced_by: Vec::new(),
            without_kernel: None,
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
        let objection = domains.is_empty().then(|| self.no_common_domain(from, to));
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
                match (self.hosts_of(from, to), self.breaks_seal(info)) {
                    (Some(_), Some(objection)) => {
                        (Path::no(objection.clone()), Path::no(objection))
                    }
                    (Some((here, there)), None) => (
                        self.remote_ethernet(here, there, &stacks),
                        self.remote_rdma(),
                    ),
                    (None, _) => {
                        let mut ethernet = self.ethernet(from == to, &stacks);
                        if ethernet.may && from != to {
                            self.pass(&mut ethernet, info, [from, to]);
                        }
                        (ethernet, self.rdma())
                    }
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

    /// Objection to both paths between hosts, which a sealed domain must not use in the clear.
    fn breaks_seal(&self, info: &DomainInfo) -> Option<Objection> {
        let (provider, encryption) = (self.status.between_hosts?, self.status.encryption?);
        let why = unencrypted(provider, encryption).filter(|_| info.sealed)?;
        Some(Objection::new(
            format!("domain {} is sealed, and the hosts have {why}", info.name),
            "change the files of all hosts, or `toroid domain set --sealed false`",
        ))
    }

    /// Objection to both paths.
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

    fn no_common_domain(&self, from: Place, to: Place) -> Objection {
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

    /// Says whether frames between two members of this host pass through the kernel alone.
    fn pass(&self, ethernet: &mut Path, info: &DomainInfo, ends: [Place; 2]) {
        let of_member = |place: Place| {
            let why = member(info, place)?.spec().without_kernel()?;
            Some(format!("{place} {why}"))
        };
        let of_domain = info.without_kernel.clone();
        ethernet.without_kernel = of_domain.or_else(|| ends.into_iter().find_map(of_member));
        if ethernet.without_kernel.is_none() {
            ethernet.provider = Some("kernel".into());
            let guards = ethernet.enforced_by.iter_mut();
            guards
                .filter(|guard| **guard == Guard::Driver)
                .for_each(|guard| *guard = Guard::Kernel);
        }
    }

    /// Ethernet path between two hosts, from driver to driver.
    fn remote_ethernet(&self, here: &str, there: &str, stacks: &[Place]) -> Path {
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
        // This agent knows its own connections only.
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
        let address = |host: &HostInfo| {
            let address = host.address.as_deref().and_then(|its| its.rsplit_once(':'));
            address.map_or_else(
                || format!("host {}", host.name),
                |(address, _)| address.into(),
            )
        };
        let by_connection = || format!("tcp, {} - {}", address(here), address(there));
        // This agent knows the paths of its own connections only.
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
        let may_be_rdma = !matches!(
            (known, self.status.between_hosts),
            (Some(Provider::Tcp), _) | (None, None | Some(Provider::Tcp))
        );
        let guards = [
            Guard::Driver,
            Guard::RemoteDriver,
            self.network(may_be_rdma),
        ];
        let guards = self.with_cooperation(&guards);
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
    fn hosts_of(&self, from: Place, to: Place) -> Option<(&str, &str)> {
        let host = |place: Place| {
            let node = self.nodes.iter().find(|node| node.place == place)?;
            node.host.as_deref()
        };
        let (here, there) = (host(from)?, host(to)?);
        (here != there).then_some((here, there))
    }

    /// RDMA path between two hosts, by the configured provider.
    fn remote_rdma(&self) -> Path {
        let provider = self.status.between_hosts.unwrap_or_default();
        let guards: &[Guard] = match provider {
            Provider::Tcp => &[Guard::TargetProxy, self.network(false)],
            Provider::Verbs => &[Guard::RemoteKeys, Guard::TargetProxy, self.network(true)],
        };
        Path::yes(&provider.to_string(), &self.with_cooperation(guards))
    }

    /// Protection of what travels between two hosts.
    fn network(&self, may_be_rdma: bool) -> Guard {
        match self.status.encryption {
            Some(Encryption::On) if may_be_rdma => Guard::RdmaNetwork,
            Some(Encryption::On) => Guard::Encryption,
            _ => Guard::Network,
        }
    }

    fn with_cooperation(&self, guards: &[Guard]) -> Vec<Guard> {
        let cooperation = (!self.status.private_users).then_some(Guard::Cooperation);
        guards.iter().copied().chain(cooperation).collect()
    }
}

/// Those of two members that have no interface of the kernel.
fn stacks(info: &DomainInfo, from: Place, to: Place) -> Vec<Place> {
    let mut both = vec![from, to];
    both.dedup();
    both.retain(|place| member(info, *place).is_some_and(|member| member.ifname.is_none()));
    both
}

/// Kind of the interfaces of two members.
fn kind(stacks: &[Place]) -> &'static str {
    if stacks.is_empty() { "tap" } else { "stack" }
}

/// Limitation of nodes without an interface of the kernel; `None` if there are none.
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
mod tests;
