//! `toroid dump`: the present configuration as a file for `toroid apply`.

use std::collections::{BTreeMap, BTreeSet};

use clap::Args;
use serde_json::{Map, Value, json};
use toroid_client::admin::Control;
use toroid_fabric::Place;
use toroid_model::declare::{Declaration, Declared, DeclaredGateway, DeclaredLines, Holder};
use toroid_model::directory::{MemberSpec, members_with, rates};
use toroid_model::info::{DomainInfo, NodeInfo, QuotaInfo};
use toroid_model::link::{DomainLinks, LinkSpec};
use toroid_model::quota::Amounts;

use super::{DONE, Run, Session};
use crate::failure::Failure;
use crate::names;
use crate::output::line;

#[derive(Debug, Args)]
pub(crate) struct Dump;

impl Run for Dump {
    fn run(self, session: &Session) -> Result<u8, Failure> {
        let agent = &mut session.connect()?;
        let nodes = agent.nodes()?;
        let present = present(agent, &nodes)?;
        if session.show.json {
            session.show.value(&as_json(&present))
        } else {
            print_text(&present)
        }
        Ok(DONE)
    }
}

fn print_text(present: &Declaration) {
    let text = present.text(&names::name);
    match text.trim_end() {
        "" => line!("# no domains, aliases, quotas, and all nodes are the agent's"),
        text => line!("{text}"),
    }
}

/// The agent's configuration, as far as its caller may see it.
pub(super) fn present(agent: &mut Control, nodes: &[NodeInfo]) -> Result<Declaration, Failure> {
    let domains = agent.list()?;
    let quotas = agent.quotas(None, &[])?.0.into_iter();
    let quotas = quotas.filter(|quota| !quota.limits.is_empty());
    let aliases = nodes.iter().flat_map(|node| {
        let place = node.place;
        node.aliases.iter().map(move |alias| (alias.clone(), place))
    });
    let owned = |node: &NodeInfo| Some((node.place, node.owner.filter(|_| node.allocated)?));
    let owners = nodes.iter().filter_map(owned);
    let gateways = domains.iter().map(|domain| {
        let all = domain.gateways.iter().map(|gateway| DeclaredGateway {
            node: gateway.node,
            uplink: gateway.uplink.clone(),
            kind: gateway.kind,
        });
        (domain.name.clone(), all.collect::<Vec<_>>())
    });
    let gateways = gateways.filter(|(_, all)| !all.is_empty());
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
    let managers = info.managers.iter().map(|place| place.parse::<Place>());
    let domain = Declared {
        lines: DeclaredLines::default(),
        members: info.members.iter().map(|m| (m.node, m.spec())).collect(),
        managers: managers
            .collect::<Result<_, _>>()
            .map_err(|_| odd("manager"))?,
        public: info.public,
        forward: info.forward,
        sealed: info.sealed,
        fence: info.fence,
        ethernet: info.ethernet,
        subnet: Some(info.subnet.parse().map_err(|_| odd(&info.subnet))?),
        capacity: info.capacity,
        mtu: Some(info.mtu),
        owner: Some(info.owner),
        links: info.links.clone(),
    };
    Ok((info.name.clone(), domain))
}

/// Links, in the form of the file.
fn link(links: &DomainLinks<Place>) -> Value {
    let properties = |link: &LinkSpec| -> Map<String, Value> {
        let texts = link.properties();
        texts.map(|(key, text)| (key.into(), text.into())).collect()
    };
    let mut all = properties(&links.default);
    let single = links.pairs.iter();
    all.extend(single.map(|(pair, link)| (pair.to_string(), properties(link).into())));
    all.into()
}

fn as_json(present: &Declaration) -> Value {
    let texts = |places: BTreeSet<Place>| -> Vec<String> {
        places.iter().map(ToString::to_string).collect()
    };
    let domain = |domain: &Declared| {
        let with =
            |is_wanted: fn(&MemberSpec) -> bool| texts(members_with(&domain.members, is_wanted));
        json!({
            "nodes": with(|_| true),
            "limited": with(|spec| spec.limited),
            "plain": with(|spec| spec.no_offload),
            "stacks": with(|spec| spec.userspace_stack),
            "managers": texts(domain.managers.clone()),
            "public": domain.public,
            "forward": domain.forward,
            "sealed": domain.sealed,
            "fence": domain.fence,
            "ethernet": domain.ethernet,
            "subnet": domain.subnet.map(|subnet| subnet.to_string()),
            "capacity": domain.capacity,
            "mtu": domain.mtu,
            "owner": domain.owner,
            "rate": rates(&domain.members)
                .into_iter()
                .map(|(place, rate)| (place.to_string(), rate))
                .collect::<BTreeMap<_, _>>(),
            "link": link(&domain.links),
        })
    };
    let domains = present
        .domains
        .iter()
        .map(|(name, d)| (name.clone(), domain(d)));
    let gateway = |gateway: &DeclaredGateway| {
        let DeclaredGateway { node, uplink, kind } = gateway;
        json!({"node": node.to_string(), "uplink": uplink, "kind": kind})
    };
    let first = present.gateways.iter().filter_map(|(name, all)| {
        let first = all.first()?;
        Some((name, gateway(first)))
    });
    let gateways = present.gateways.iter().map(|(name, all)| {
        let all = all.iter().map(gateway);
        (name, all.collect::<Vec<_>>())
    });
    let aliases = present.aliases.iter();
    let owners = present.owners.iter();
    let quotas = present.quotas.iter();
    json!({
        "domain": domains.collect::<BTreeMap<_, _>>(),
        "gateway": first.collect::<BTreeMap<_, _>>(),
        "gateways": gateways.collect::<BTreeMap<_, _>>(),
        "alias": aliases.map(|(a, place)| (a, place.to_string())).collect::<BTreeMap<_, _>>(),
        "quota": quotas.map(|(holder, limits)| (holder.to_string(), limits)).collect::<BTreeMap<_, _>>(),
        "owner": owners.map(|(place, uid)| (place.to_string(), uid)).collect::<BTreeMap<_, _>>(),
    })
}
