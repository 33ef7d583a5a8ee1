//! The record of a domain.

pub(super) mod parts;

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use toroid_fabric::NodeId;

use super::numbers;
use crate::addressing::Subnet;
use crate::directory::addresses::Addresses;
use crate::directory::{Directory, Domain, Fence, MAX_MTU, MIN_MTU, MemberSpec};
use crate::directory::{members, members_with, rates};
use crate::ethernet::EthernetPath;
use crate::gateway::Gateway;
use crate::link::{DomainLinks, Rate};
use crate::names::{is_domain_name, is_uplink_name};

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct DomainRecord {
    id: u16,
    epoch: u32,
    owner: u32,
    mtu: u32,
    #[serde(with = "crate::as_text")]
    subnet: Subnet,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    addresses: BTreeMap<u32, u32>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    left: BTreeMap<u32, u32>,
    members: BTreeSet<u32>,
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    limited: BTreeSet<u32>,
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    plain: BTreeSet<u32>,
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    stacks: BTreeSet<u32>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    rates: BTreeMap<u32, Rate>,
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    managers: BTreeSet<u32>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    public: bool,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    forward: bool,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    sealed: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    fence: Option<Fence>,
    #[serde(default, skip_serializing_if = "EthernetPath::is_auto")]
    ethernet: EthernetPath,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    gateway: Option<Gateway<u32>>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    further_gateways: Vec<Gateway<u32>>,
    #[serde(default, skip_serializing_if = "DomainLinks::is_empty")]
    links: DomainLinks,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    since: BTreeMap<u32, u32>,
}

impl DomainRecord {
    pub(super) fn of(domain: &Domain) -> Self {
        let with =
            |is_wanted: fn(&MemberSpec) -> bool| numbers(&members_with(&domain.members, is_wanted));
        let by_number = |all: &BTreeMap<NodeId, u32>| {
            all.iter().map(|(node, number)| (node.0, *number)).collect()
        };
        let addresses = domain.addresses.as_ref();
        let mut gateways = domain.gateways.iter().map(|gateway| Gateway {
            node: gateway.node.0,
            uplink: gateway.uplink.clone(),
            kind: gateway.kind,
        });
        DomainRecord {
            id: domain.id,
            epoch: domain.epoch,
            owner: domain.owner,
            mtu: domain.mtu,
            subnet: domain.subnet,
            addresses: addresses
                .map(|its| by_number(its.indexes()))
                .unwrap_or_default(),
            left: addresses
                .map(|its| by_number(its.left()))
                .unwrap_or_default(),
            members: numbers(&domain.nodes()),
            limited: with(|spec| spec.limited),
            plain: with(|spec| spec.no_offload),
            stacks: with(|spec| spec.userspace_stack),
            rates: rates(&domain.members)
                .into_iter()
                .map(|(node, rate)| (node.0, rate))
                .collect(),
            managers: numbers(&domain.managers),
            public: domain.public,
            forward: domain.forward,
            sealed: domain.sealed,
            fence: domain.fence,
            ethernet: domain.ethernet,
            gateway: gateways.next(),
            further_gateways: gateways.collect(),
            links: domain.links.clone(),
            since: by_number(&domain.since),
        }
    }
}

impl DomainRecord {
    /// Removes the gateways at nodes that are no members.
    fn retain_gateways(&mut self, is_member: impl Fn(u32) -> bool) {
        let all = self.gateway.take().into_iter();
        let all = all.chain(std::mem::take(&mut self.further_gateways));
        let mut left = all.filter(|gateway| is_member(gateway.node));
        self.gateway = left.next();
        self.further_gateways = left.collect();
    }
}

impl Directory {
    pub(super) fn restore_domain(
        &mut self,
        name: &str,
        record: DomainRecord,
    ) -> Result<(), String> {
        if !is_domain_name(name) {
            return Err("names no domain".into());
        }
        if !(MIN_MTU..=MAX_MTU).contains(&record.mtu) {
            return Err(format!("has an MTU of {}", record.mtu));
        }
        let fence = record.fence.map(|fence| fence.seconds);
        fence
            .map_or(Ok(()), Fence::check)
            .map_err(|error| error.to_string())?;
        self.check_number(record.id, record.epoch)?;
        let least = u32::try_from(record.members.len()).unwrap_or(u32::MAX);
        self.check_subnet(record.subnet, least)
            .map_err(|e| e.to_string())?;
        let nodes = |numbers: &BTreeSet<u32>| self.all_known(numbers);
        let further = record.further_gateways.iter();
        let gateways = record.gateway.iter().chain(further).map(|gateway| {
            Ok::<_, String>(Gateway {
                node: self.known(gateway.node)?,
                uplink: gateway.uplink.clone(),
                kind: gateway.kind,
            })
        });
        let listed = nodes(&record.members)?;
        let kind = |kind: &str, record: &BTreeSet<u32>| {
            let those = nodes(record)?;
            if those.is_subset(&listed) {
                Ok(those)
            } else {
                Err(format!("has {kind} that are no members"))
            }
        };
        let limited = kind("limited members", &record.limited)?;
        let no_offload = kind("plain members", &record.plain)?;
        let userspace_stack = kind("stacks", &record.stacks)?;
        let rates = self.numbers_of(&record.rates)?;
        if !rates.keys().all(|node| listed.contains(node)) {
            return Err("has rates of nodes that are no members".into());
        }
        let members = members(&listed, &limited, &no_offload, &userspace_stack, &rates);
        let domain = Domain {
            name: name.into(),
            id: record.id,
            epoch: record.epoch,
            owner: record.owner,
            mtu: record.mtu,
            subnet: record.subnet,
            addresses: self.restore_addresses(&record, &members)?,
            members,
            managers: nodes(&record.managers)?,
            public: record.public,
            forward: record.forward,
            sealed: record.sealed,
            fence: record.fence,
            ethernet: record.ethernet,
            gateways: gateways.collect::<Result<_, _>>()?,
            links: record.links,
            since: self.numbers_of(&record.since)?,
        };
        if !domain
            .since
            .keys()
            .all(|node| domain.members.contains_key(node))
        {
            return Err("says since when there are members that are none".into());
        }
        let is_member = |node: &NodeId| domain.members.contains_key(node);
        let mut pairs = domain.links.pairs.keys();
        if !pairs.all(|pair| is_member(&pair.from) && is_member(&pair.to)) {
            return Err("has links of nodes that are no members".into());
        }
        domain.links.check().map_err(|error| error.to_string())?;
        let is_sound = |gateway: &Gateway| {
            domain.members.contains_key(&gateway.node) && is_uplink_name(&gateway.uplink)
        };
        let gateways = &domain.gateways;
        let nodes: BTreeSet<NodeId> = gateways.iter().map(|gateway| gateway.node).collect();
        let is_alone = gateways.len() <= 1 || domain.bridge().is_none();
        if !gateways.iter().all(is_sound) || nodes.len() < gateways.len() || !is_alone {
            return Err("has a gateway that can be none".into());
        }
        self.domains.put(domain);
        Ok(())
    }

    fn restore_addresses(
        &self,
        record: &DomainRecord,
        members: &BTreeMap<NodeId, MemberSpec>,
    ) -> Result<Option<Addresses>, String> {
        let indexes = self.numbers_of(&record.addresses)?;
        let left = self.numbers_of(&record.left)?;
        if self.is_indexed(record.subnet) {
            let capacity = record.subnet.capacity();
            let addresses = Addresses::restore(indexes, left, members, capacity)?;
            Ok(Some(addresses))
        } else if indexes.is_empty() && left.is_empty() {
            Ok(None)
        } else {
            Err("has addresses that follow from its subnet".into())
        }
    }

    /// A number of each of some nodes.
    fn numbers_of<T: Copy>(&self, all: &BTreeMap<u32, T>) -> Result<BTreeMap<NodeId, T>, String> {
        let known = |(node, number): (&u32, &T)| Ok((self.known(*node)?, *number));
        all.iter().map(known).collect()
    }
}
