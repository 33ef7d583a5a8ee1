//! `toroid domain`: create, change and show domains.

mod create;
mod shrink;

use clap::{Args, Subcommand, ValueEnum};
use toroid_client::admin::{ClientError, Control, Properties};
use toroid_model::directory::{MemberSpec, by_rate};
use toroid_model::ethernet::EthernetPath;
use toroid_model::info::{DomainInfo, MemberDrops};
use toroid_model::link::Rate;
use toroid_model::refusal::RefusalKind;

use super::{DONE, Run, Session};
use crate::failure::Failure;
use crate::names;
use crate::output::{Show, count, line, name_missing, table};
use crate::values::{self, Interface, Offload, OptionalRate};
use create::Create;
use shrink::Shrink;

#[derive(Debug, Subcommand)]
pub(crate) enum Domain {
    /// Create a domain; members have names when it returns, and interfaces where there are TAPs
    ///
    /// Members have no interfaces without /dev/net/tun (see `toroid status`) or with `--interface stack`.
    Create(Create),
    /// Add nodes to a domain
    Grow(Grow),
    /// Remove nodes from a domain
    Shrink(Shrink),
    /// Let processes of nodes grow and shrink a domain
    Manage(Manage),
    /// Change access, routing and owner of a domain, or the rate of members
    Set(Set),
    /// Remove a domain
    #[command(alias = "delete", alias = "remove")]
    Rm(Rm),
    /// Count dropped frames of members, by reason
    Drops(Named),
    /// List the domains
    #[command(alias = "list")]
    Ls,
    /// Show a domain and its members
    Show(Named),
}

#[derive(Debug, Args)]
pub(crate) struct Grow {
    /// The domain
    name: String,
    /// The new members
    #[arg(required = true)]
    nodes: Vec<String>,
    #[command(flatten)]
    kind: Kind,
}

/// Kind of new members.
#[derive(Debug, Args)]
struct Kind {
    /// Add limited members, which communicate with full members only
    #[arg(long)]
    limited: bool,
    /// Segmentation and checksum offload (GSO) of their interfaces
    #[arg(
        long,
        value_name = "ON|OFF",
        default_value = "on",
        hide_possible_values = true
    )]
    offload: Offload,
    /// A TAP interface of the kernel, or none: one process at a time then uses Ethernet by
    /// `toroid_ethernet::Stack`
    #[arg(
        long,
        value_name = "TAP|STACK",
        default_value = "tap",
        hide_possible_values = true
    )]
    interface: Interface,
    /// Most that each of them may send, and read and write in memory at other hosts, such as 1Gbit
    /// or 125MB/s; of present members `toroid domain set` changes it
    #[arg(long)]
    rate: Option<Rate>,
}

impl Kind {
    fn spec(&self) -> MemberSpec {
        MemberSpec {
            limited: self.limited,
            no_offload: self.offload == Offload::Off,
            userspace_stack: self.interface == Interface::Stack,
            rate: self.rate,
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct Manage {
    /// The domain
    name: String,
    /// The nodes
    #[arg(required = true)]
    nodes: Vec<String>,
    /// Withdraw the permission
    #[arg(long)]
    revoke: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Set {
    /// The domain
    name: String,
    /// The members that get the rate
    #[arg(requires = "rate")]
    nodes: Vec<String>,
    /// Most that each of the members may send, such as 1Gbit or 125MB/s, or off
    ///
    /// The Ethernet driver holds back frames where they enter: excess waits in the member's
    /// interface, whose kernel drops what has no room there. The host of a peer holds back reads,
    /// writes and packets from other hosts. Not limited are operations on memory within one host,
    /// which are accesses of the process itself, and those of RDMA devices (provider = "verbs").
    #[arg(
        long,
        value_name = "RATE|OFF",
        value_parser = values::rate,
        requires = "nodes",
        conflicts_with_all = ["public", "forward", "sealed", "fence", "ethernet", "owner"]
    )]
    rate: Option<OptionalRate>,
    /// Whether anyone may add their own nodes
    #[arg(
        long,
        value_name = "BOOL",
        required_unless_present_any = ["rate", "owner", "forward", "sealed", "fence", "ethernet"]
    )]
    public: Option<bool>,
    /// Routing: members that are also in another such domain may forward packets between the two
    /// and send IPv6 router advertisements
    #[arg(long, value_name = "ON|OFF", hide_possible_values = true)]
    forward: Option<Forward>,
    /// Whether members of different hosts talk over encrypted connections only
    #[arg(long, value_name = "BOOL")]
    sealed: Option<bool>,
    /// Members on hosts that are cut off stop so many seconds after the last contact, and a shrink
    /// waits for that instead of failing
    #[arg(long, value_name = "SECONDS|OFF", value_parser = values::fence)]
    fence: Option<u32>,
    /// Path of frames between members of one host: the kernel alone where it keeps every promise
    /// (auto), that or a refusal (kernel), or the Ethernet driver; connections go on
    #[arg(long, value_name = "PATH")]
    ethernet: Option<EthernetPath>,
    /// New owner, by name or number (administrators only)
    #[arg(long, value_name = "USER", value_parser = values::user)]
    owner: Option<u32>,
}

/// Routing between domains.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Forward {
    /// By members that are also in another such domain.
    #[value(alias = "true")]
    On,
    /// By the gateway only.
    #[value(alias = "false")]
    Off,
}

#[derive(Debug, Args)]
pub(crate) struct Rm {
    /// The domain
    name: String,
    /// Succeed if the domain does not exist
    #[arg(long)]
    if_exists: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Named {
    /// The domain
    name: String,
}

impl Run for Domain {
    fn run(self, session: &Session) -> Result<u8, Failure> {
        let show = session.show;
        let info = match self {
            Domain::Create(create) => return create.run(session),
            Domain::Shrink(shrink) => return shrink.run(session),
            Domain::Grow(grow) => grow.call(&mut session.connect()?)?,
            Domain::Manage(Manage {
                name,
                nodes,
                revoke,
            }) => session.connect()?.manage(&name, &nodes, revoke)?,
            Domain::Set(Set {
                name,
                nodes,
                rate: Some(OptionalRate(rate)),
                ..
            }) => session.connect()?.set_rate(&name, &nodes, rate)?,
            Domain::Set(Set {
                name,
                public,
                forward,
                sealed,
                fence,
                ethernet,
                owner,
                ..
            }) => {
                let properties = Properties {
                    public,
                    forward: forward.map(|forward| forward == Forward::On),
                    sealed,
                    fence,
                    ethernet,
                    owner,
                };
                session.connect()?.set(&name, properties)?
            }
            Domain::Show(Named { name }) => session.connect()?.show(&name)?,
            Domain::Rm(rm) => {
                rm.call(&mut session.connect()?)?;
                show.done();
                return Ok(DONE);
            }
            Domain::Drops(Named { name }) => {
                let (members, missing) = session.connect()?.drops(&name)?;
                print_drops(&members, show);
                name_missing(&missing);
                return Ok(DONE);
            }
            Domain::Ls => {
                list(&session.connect()?.list()?, show);
                return Ok(DONE);
            }
        };
        print(&info, show);
        Ok(DONE)
    }
}

impl Grow {
    fn call(&self, agent: &mut Control) -> Result<DomainInfo, ClientError> {
        agent.admit(&self.name, &self.nodes, self.kind.spec())
    }
}

impl Rm {
    fn call(&self, agent: &mut Control) -> Result<(), ClientError> {
        match agent.remove(&self.name) {
            Err(error) if self.if_exists && is_missing(&error) => Ok(()),
            result => result,
        }
    }
}

/// Describes a domain, if it exists.
fn find(agent: &mut Control, name: &str) -> Result<Option<DomainInfo>, Failure> {
    match agent.show(name) {
        Err(error) if is_missing(&error) => Ok(None),
        result => Ok(Some(result?)),
    }
}

fn is_missing(error: &ClientError) -> bool {
    matches!(error, ClientError::Refused(refusal) if refusal.kind == RefusalKind::NotFound)
}

fn list(domains: &[DomainInfo], show: Show) {
    if show.json {
        return show.value(&domains);
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

pub(crate) fn print(domain: &DomainInfo, show: Show) {
    if show.json {
        return show.value(domain);
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
    if domain.sealed {
        line!("sealed: members of different hosts talk over encrypted connections only");
    }
    if let Some(fence) = domain.fence {
        line!("fence: members on hosts that are cut off stop within {fence} s");
    }
    if domain.fence_pending {
        line!(
            "not all hosts have this fence: repeat `toroid domain set {} --fence`",
            domain.name
        );
    }
    match &domain.without_kernel {
        Some(why) => line!("frames pass through the driver: {why}"),
        None => line!("frames between members of one host pass through the kernel"),
    }
    for host in &domain.cut_off {
        line!("host {host}: cut off, frozen");
    }
    if domain.forward {
        line!("forwards: members may be routers to other domains that forward");
    }
    if !domain.managers.is_empty() {
        line!("managed from {}", domain.managers.join(" "));
    }
    if !domain.links.default.is_empty() {
        line!("links: {}", domain.links.default);
    }
    for (pair, link) in &domain.links.pairs {
        line!("link {pair}: {link}");
    }
    let members = domain.members.iter();
    let rated = members.map(|member| (member.node.to_string(), member.rate));
    for (rate, nodes) in by_rate::<_, Vec<String>>(rated) {
        line!("rate of {}: {rate}", nodes.join(" "));
    }
    for gateway in &domain.gateways {
        let is_unused = gateway.in_use == Some(false);
        let unused = if is_unused { ", not in use" } else { "" };
        line!(
            "outside through {} at {} ({}{unused})",
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

fn print_drops(members: &[MemberDrops], show: Show) {
    if show.json {
        return show.value(&members);
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
