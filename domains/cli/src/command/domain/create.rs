//! `toroid domain create`.

use clap::{Args, value_parser};
use toroid_client::admin::Control;
use toroid_model::ethernet::EthernetPath;
use toroid_model::info::DomainInfo;
use toroid_model::refusal::{Refusal, RefusalKind};
use toroid_protocol::agent::NewDomain;

use super::{Kind, find, print};
use crate::command::{DONE, Run, Session};
use crate::failure::Failure;
use crate::nodes;
use crate::values;

#[derive(Debug, Args)]
pub(crate) struct Create {
    /// Name of the domain and of its interfaces, at most 15 characters
    name: String,
    /// The first members
    nodes: Vec<String>,
    #[command(flatten)]
    kind: Kind,
    /// Anyone may add their own nodes
    #[arg(long)]
    public: bool,
    /// Members of different hosts talk over encrypted connections only
    #[arg(long)]
    sealed: bool,
    /// Members on hosts that are cut off stop so many seconds after the last contact
    #[arg(long, value_name = "SECONDS", value_parser = value_parser!(u32).range(1..))]
    fence: Option<u32>,
    /// Path of frames between members of one host: the kernel alone where it keeps every promise
    /// (auto), that or a refusal (kernel), or the Ethernet driver
    #[arg(long, value_name = "PATH", default_value_t)]
    ethernet: EthernetPath,
    /// Owner of the domain, by name or number (administrators only) [default: the caller]
    #[arg(long, value_name = "USER", value_parser = values::user)]
    owner: Option<u32>,
    /// IPv4 subnet [default: the next free one of 10.64.0.0/10]
    #[arg(long, value_name = "CIDR")]
    subnet: Option<String>,
    /// Members that the domain can have [default: 254, or the first members if they are more]
    #[arg(long, value_name = "COUNT", value_parser = value_parser!(u32).range(1..))]
    capacity: Option<u32>,
    /// MTU in bytes [default: 9000]
    #[arg(long, value_name = "BYTES")]
    mtu: Option<u32>,
    /// Succeed if the domain exists with these properties and members; others may be in it
    #[arg(long)]
    may_exist: bool,
}

impl Run for Create {
    fn run(self, session: &Session) -> Result<u8, Failure> {
        let mut agent = session.connect()?;
        let may_exist = self.may_exist;
        let new = self.request();
        let info = if may_exist {
            create_unless_exists(&mut agent, new)?
        } else {
            agent.create_domain(new)?
        };
        print(&info, session.show);
        Ok(DONE)
    }
}

impl Create {
    fn request(self) -> NewDomain {
        let if_wanted = |wanted: bool| {
            if wanted {
                self.nodes.clone()
            } else {
                Vec::new()
            }
        };
        let spec = self.kind.spec();
        NewDomain {
            name: self.name,
            limited: if_wanted(spec.limited),
            plain: if_wanted(spec.no_offload),
            stacks: if_wanted(spec.userspace_stack),
            rates: spec
                .rate
                .map(|rate| (rate, self.nodes.clone()))
                .into_iter()
                .collect(),
            nodes: if_wanted(!spec.limited),
            subnet: self.subnet,
            capacity: self.capacity,
            mtu: self.mtu,
            public: self.public,
            sealed: self.sealed,
            fence: self.fence,
            ethernet: self.ethernet,
            owner: self.owner,
        }
    }
}

/// Creates a domain, or accepts an existing one with the wanted members and properties.
fn create_unless_exists(agent: &mut Control, new: NewDomain) -> Result<DomainInfo, Failure> {
    let Some(present) = find(agent, &new.name)? else {
        return Ok(agent.create_domain(new)?);
    };
    let name = &new.name;
    let exists = |with: String, remedy: String| {
        let message = format!("domain {name} exists already, {with}");
        Failure::from(Refusal::new(RefusalKind::Exists, message, remedy))
    };
    let plain = nodes::resolve(agent, &new.plain)?;
    let stacks = nodes::resolve(agent, &new.stacks)?;
    // One for all.
    let rate = new.rates.keys().next().copied();
    for (sets, limited) in [(&new.nodes, false), (&new.limited, true)] {
        for place in nodes::resolve(agent, sets)? {
            let found = present.members.iter().find(|member| member.node == place);
            let is_plain = plain.contains(&place);
            let is_stack = stacks.contains(&place);
            let add = if limited { "--limited " } else { "" };
            let without = if is_plain { "--offload off " } else { "" };
            let stack = if is_stack { "--interface stack " } else { "" };
            let with_rate = rate.map_or_else(String::new, |rate| format!("--rate {rate} "));
            let options = [add, without, stack, &with_rate].concat();
            let grow = format!("`toroid domain grow {options}{name} {place}`");
            let other = match found {
                None => return Err(exists(format!("without {place}"), format!("use {grow}"))),
                Some(member) if member.limited && !limited => "as a limited member",
                Some(member) if !member.limited && limited => "as a full member",
                Some(member) if member.plain && !is_plain => "without offload",
                Some(member) if !member.plain && is_plain => "with offload",
                Some(member) if member.stack && !is_stack => "without an interface",
                Some(member) if !member.stack && is_stack => "with an interface",
                Some(member) if rate.is_some_and(|rate| member.rate != Some(rate)) => {
                    let with = format!("with {place} without this rate");
                    let set = format!("toroid domain set {name} {place} {with_rate}");
                    return Err(exists(with, format!("use `{}`", set.trim_end())));
                }
                Some(_) => continue,
            };
            return Err(exists(
                format!("with {place} {other}"),
                format!("use `toroid domain shrink {name} {place}`, then {grow}"),
            ));
        }
    }
    if let (Some(most), Some(wanted)) = (present.capacity, new.capacity)
        && wanted > most
    {
        let with = format!("with addresses for {most} members and not for {wanted}");
        return Err(exists(
            with,
            "remove it first, or ask for what it has".into(),
        ));
    }
    for (what, present, wanted) in properties(&present, &new) {
        if wanted.as_ref().is_some_and(|wanted| *wanted != present) {
            return Err(exists(
                format!(
                    "with {what} {present} and not {}",
                    wanted.unwrap_or_default()
                ),
                "remove it first, or ask for what it has".into(),
            ));
        }
    }
    Ok(present)
}

/// Properties: name, present value, wanted value.
fn properties<'a>(present: &DomainInfo, new: &NewDomain) -> [(&'a str, String, Option<String>); 7] {
    let text = |number: u32| number.to_string();
    [
        ("subnet", present.subnet.clone(), new.subnet.clone()),
        ("mtu", text(present.mtu), new.mtu.map(text)),
        ("owner", text(present.owner), new.owner.map(text)),
        (
            "public",
            present.public.to_string(),
            new.public.then(|| true.to_string()),
        ),
        (
            "sealed",
            present.sealed.to_string(),
            new.sealed.then(|| true.to_string()),
        ),
        (
            "fence",
            present.fence.map_or_else(|| "off".into(), text),
            new.fence.map(text),
        ),
        (
            "ethernet",
            present.ethernet.to_string(),
            (!new.ethernet.is_auto()).then(|| new.ethernet.to_string()),
        ),
    ]
}
