//! `toroid apply` and `toroid dump`: the declarative form.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use nix::unistd::Uid;
use serde_json::{Value, json};
use toroid_client::admin::{ClientError, Control};
use toroid_fabric::Place;
use toroid_model::declare::{
    self, Declaration, Declared, DeclaredGateway, DeclaredLines, Holder, Step, Surroundings,
};
use toroid_model::directory::Terms;
use toroid_model::info::{DomainInfo, NodeInfo, QuotaInfo};
use toroid_model::quota::Amounts;
use toroid_protocol::agent::NewDomain;

use crate::args::{self, Apply};
use crate::failure::{Failure, wrong};
use crate::names;
use crate::show::{Show, line};

/// The longest file: what names every node of the largest torus in each of many domains is shorter.
const MAX_BYTES: u64 = 64 << 20;

pub(crate) fn dump(agent: &mut Control, show: Show) -> Result<(), Failure> {
    let present = present(agent)?;
    if show.json {
        show.value(&as_json(&present))
    } else {
        print_text(&present)
    }
    Ok(())
}

fn print_text(present: &Declaration) {
    let text = present.text(&names::name);
    match text.trim_end() {
        "" => line!("# no domains, aliases, quotas, and all nodes are the agent's"),
        text => line!("{text}"),
    }
}

pub(crate) fn apply(agent: &mut Control, options: &Apply, show: Show) -> Result<(), Failure> {
    let file = &options.file;
    let text = read(file)
        .map_err(|error| Failure::usage(&format!("cannot read {}: {error}", file.display())))?;
    let mut present = present(agent)?;
    let status = agent.status()?;
    let around = Surroundings {
        torus: status.torus,
        aliases: present.aliases.clone(),
        user: &|name| args::user(name).ok(),
    };
    let (wanted, mut problems) = declare::read(&text, &around);
    let uid = Uid::effective();
    if !uid.is_root() && !status.rootless {
        // What others own is not this file's to remove.
        let ours = |domain: &Declared| domain.owner == Some(uid.as_raw());
        let named = |name: &String| wanted.domains.contains_key(name);
        present
            .domains
            .retain(|name, domain| named(name) || ours(domain));
        // Gateways are administrators' alone.
        let gateways = &mut present.gateways;
        gateways.retain(|name, _| wanted.gateways.contains_key(name));
        let owners = &present.owners;
        present.aliases.retain(|alias, place| {
            wanted.aliases.contains_key(alias) || owners.get(place) == Some(&uid.as_raw())
        });
    }
    // Of a file with mistakes what is missing may be meant to be there.
    let prune = options.prune && problems.is_empty();
    let steps = match declare::plan(&present, &wanted, prune) {
        Ok(steps) if problems.is_empty() => steps,
        Ok(_) => return Err(wrong(file, &problems)),
        Err(more) => {
            problems.extend(more);
            problems.sort();
            return Err(wrong(file, &problems));
        }
    };
    let (done, failed) = if options.dry_run {
        (0, None)
    } else {
        carry_out(agent, &steps, show)
    };
    report(options.dry_run, &steps, done, show);
    failed.map_or(Ok(()), Err)
}

fn read(file: &Path) -> io::Result<String> {
    let mut text = String::new();
    File::open(file)?
        .take(MAX_BYTES + 1)
        .read_to_string(&mut text)?;
    if text.len() as u64 <= MAX_BYTES {
        Ok(text)
    } else {
        Err(io::Error::other(format!(
            "it is longer than {MAX_BYTES} bytes"
        )))
    }
}

/// What an agent has, as far as its caller may see it.
fn present(agent: &mut Control) -> Result<Declaration, Failure> {
    let (nodes, domains) = (agent.nodes()?, agent.list()?);
    let quotas = agent.quotas(None, &[])?.into_iter();
    let quotas = quotas.filter(|quota| !quota.limits.is_empty());
    let aliases = nodes.iter().flat_map(|node| {
        let place = node.place;
        node.aliases.iter().map(move |alias| (alias.clone(), place))
    });
    let owned = |node: &NodeInfo| Some((node.place, node.owner.filter(|_| node.allocated)?));
    let owners = nodes.iter().filter_map(owned);
    let gateways = domains.iter().filter_map(|domain| {
        let gateway = domain.gateway.clone()?;
        let declared = DeclaredGateway {
            node: gateway.node,
            uplink: gateway.uplink,
            kind: gateway.kind,
        };
        Some((domain.name.clone(), declared))
    });
    Ok(Declaration {
        gateways: gateways.collect(),
        domains: domains.iter().map(declared).collect::<Result<_, _>>()?,
        aliases: aliases.collect(),
        owners: owners.collect(),
        quotas: quotas.map(limited).collect::<Result<_, _>>()?,
    })
}

fn limited(quota: QuotaInfo) -> Result<(Holder, Amounts), Failure> {
    let node = || quota.node.as_deref()?.parse().ok();
    let holder = quota
        .user
        .map(Holder::User)
        .or_else(|| node().map(Holder::Node));
    Ok((holder.ok_or_else(|| odd("quota"))?, quota.limits))
}

fn odd(what: &str) -> Failure {
    Failure::new(format!("the agent answered with the odd {what}"))
}

fn declared(info: &DomainInfo) -> Result<(String, Declared), Failure> {
    let limited = info.members.iter().filter(|member| member.limited);
    let plain = info.members.iter().filter(|member| member.plain);
    let stacks = info.members.iter().filter(|member| member.stack);
    let managers = info.managers.iter().map(|place| place.parse::<Place>());
    let domain = Declared {
        lines: DeclaredLines::default(),
        nodes: info.members.iter().map(|member| member.node).collect(),
        limited: limited.map(|member| member.node).collect(),
        plain: plain.map(|member| member.node).collect(),
        stacks: stacks.map(|member| member.node).collect(),
        managers: managers
            .collect::<Result<_, _>>()
            .map_err(|_| odd("manager"))?,
        public: info.public,
        forward: info.forward,
        subnet: Some(info.subnet.parse().map_err(|_| odd(&info.subnet))?),
        mtu: Some(info.mtu),
        owner: Some(info.owner),
    };
    Ok((info.name.clone(), domain))
}

/// Returns how many steps were taken, and why no more.
fn carry_out(agent: &mut Control, steps: &[Step], show: Show) -> (usize, Option<Failure>) {
    for (done, step) in steps.iter().enumerate() {
        if let Err(error) = take(agent, step) {
            let failure = Failure::from(error).during(&format!(
                "cannot {step} (of {} changes {done} were made)",
                steps.len()
            ));
            return (done, Some(failure));
        }
        if !show.json {
            line!("{}", names::with_names(&step.to_string()));
        }
    }
    (steps.len(), None)
}

fn take(agent: &mut Control, step: &Step) -> Result<(), ClientError> {
    match step {
        Step::Revoke { domain, nodes } => agent.manage(domain, &nodes.sets(), true).map(drop),
        Step::Shrink { domain, nodes } => agent.shrink(domain, &nodes.sets()).map(drop),
        Step::Remove { domain } => agent.remove(domain),
        Step::Own { nodes, owner } => agent.chown(&nodes.sets(), Some(*owner)),
        Step::Limit { holder, limits } => {
            let (user, nodes) = match holder {
                Holder::User(uid) => (Some(*uid), Vec::new()),
                Holder::Node(place) => (None, vec![place.to_string()]),
            };
            agent.limit(user, &nodes, limits.clone())
        }
        Step::Unalias { alias } => agent.unalias(alias),
        Step::Alias { alias, node } => agent.alias(&node.to_string(), alias),
        Step::Create {
            domain,
            nodes,
            limited,
            plain,
            stacks,
            subnet,
            mtu,
            public,
            owner,
        } => {
            let new = NewDomain {
                name: domain.clone(),
                nodes: nodes.sets(),
                limited: limited.sets(),
                plain: plain.sets(),
                stacks: stacks.sets(),
                subnet: subnet.map(|subnet| subnet.to_string()),
                mtu: *mtu,
                public: *public,
                owner: *owner,
            };
            agent.create_domain(new).map(drop)
        }
        Step::Set {
            domain,
            public,
            forward,
            owner,
        } => agent.set(domain, *public, *forward, *owner).map(drop),
        Step::Grow {
            domain,
            nodes,
            limited,
            plain,
            stack,
        } => {
            let terms = Terms {
                limited: *limited,
                plain: *plain,
                stack: *stack,
            };
            agent.admit(domain, &nodes.sets(), terms).map(drop)
        }
        Step::Manage { domain, nodes } => agent.manage(domain, &nodes.sets(), false).map(drop),
        Step::Connect {
            domain,
            node,
            uplink,
            kind,
        } => {
            let node = node.to_string();
            agent.add_gateway(&node, domain, uplink, *kind).map(drop)
        }
        Step::Disconnect { domain, node } => {
            agent.remove_gateway(&node.to_string(), domain).map(drop)
        }
    }
}

fn report(is_dry: bool, steps: &[Step], done: usize, show: Show) {
    if show.json {
        show.value(&json!({"changes": steps, "applied": done, "dry_run": is_dry}));
    } else if steps.is_empty() {
        line!("nothing to change");
    } else if is_dry {
        steps
            .iter()
            .for_each(|step| line!("would {}", names::with_names(&step.to_string())));
    }
}

fn as_json(present: &Declaration) -> Value {
    let texts = |places: &mut dyn Iterator<Item = &Place>| -> Vec<String> {
        places.map(ToString::to_string).collect()
    };
    let domain = |domain: &Declared| {
        json!({
            "nodes": texts(&mut domain.nodes.iter()),
            "limited": texts(&mut domain.limited.iter()),
            "plain": texts(&mut domain.plain.iter()),
            "stacks": texts(&mut domain.stacks.iter()),
            "managers": texts(&mut domain.managers.iter()),
            "public": domain.public,
            "forward": domain.forward,
            "subnet": domain.subnet.map(|subnet| subnet.to_string()),
            "mtu": domain.mtu,
            "owner": domain.owner,
        })
    };
    let domains = present
        .domains
        .iter()
        .map(|(name, d)| (name.clone(), domain(d)));
    let gateways = present.gateways.iter().map(|(name, gateway)| {
        let DeclaredGateway { node, uplink, kind } = gateway;
        let value = json!({"node": node.to_string(), "uplink": uplink, "kind": kind});
        (name.clone(), value)
    });
    let aliases = present.aliases.iter();
    let owners = present.owners.iter();
    let quotas = present.quotas.iter();
    json!({
        "domain": domains.collect::<BTreeMap<_, _>>(),
        "gateway": gateways.collect::<BTreeMap<_, _>>(),
        "alias": aliases.map(|(a, place)| (a, place.to_string())).collect::<BTreeMap<_, _>>(),
        "quota": quotas.map(|(holder, limits)| (holder.to_string(), limits)).collect::<BTreeMap<_, _>>(),
        "owner": owners.map(|(place, uid)| (place.to_string(), uid)).collect::<BTreeMap<_, _>>(),
    })
}
