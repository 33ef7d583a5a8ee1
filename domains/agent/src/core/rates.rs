//! Rates of members, which the Ethernet driver and the target proxy keep them to.

use std::collections::{BTreeMap, BTreeSet};

use toroid_fabric::NodeId;
use toroid_model::directory::{Directory, DirectoryError, Domain, MemberSpec, members};
use toroid_model::info::DomainInfo;
use toroid_model::link::Rate;
use toroid_model::refusal::Refusal;
use toroid_model::rights::Actor;
use toroid_protocol::agent::NewDomain;

use super::host::Host;

impl Host {
    /// Changes the rate of members. It holds for present connections when this returns.
    pub(super) fn set_rate(
        &self,
        actor: Actor,
        name: &str,
        nodes: &[String],
        rate: Option<Rate>,
    ) -> Result<DomainInfo, Refusal> {
        let domain = self.edit(|directory| {
            actor.may_own(directory, actor.named(directory, name)?)?;
            let nodes = actor.resolve(directory, nodes)?;
            Ok(directory.set_rate(name, &nodes, rate)?)
        })?;
        self.tell_members(&domain)?;
        Ok(self.describe(&domain))
    }

    /// Updates the ports and rates of all members, and waits for the driver and the target proxy. A
    /// failure of one does not keep the other from the change.
    pub(crate) fn tell_members(&self, domain: &Domain) -> Result<(), Refusal> {
        self.tell_ports(domain);
        let rates = self.tell_rates([domain]);
        self.sync_ports(domain, |_| false).and(rates)
    }

    /// Brings the rates of these domains' members into effect at the target proxy.
    pub(super) fn tell_rates<'d>(
        &self,
        domains: impl IntoIterator<Item = &'d Domain>,
    ) -> Result<(), Refusal> {
        let proxy = self.proxy.as_ref();
        proxy.map_or(Ok(()), |proxy| proxy.set_rates(domains))
    }

    /// The same after a change that must not fail for that.
    pub(super) fn settle_rates<'d>(&self, domains: impl IntoIterator<Item = &'d Domain>) {
        if let Err(refusal) = self.tell_rates(domains) {
            tracing::warn!("{refusal}");
        }
    }
}

/// First members of a domain. The lowest rate is that of a node with several.
pub(super) fn first_members(
    actor: Actor,
    directory: &Directory,
    new: &NewDomain,
) -> Result<BTreeMap<NodeId, MemberSpec>, Refusal> {
    let mut rates = BTreeMap::new();
    for (rate, sets) in new.rates.iter().rev() {
        let nodes = actor.resolve(directory, sets)?;
        rates.extend(nodes.into_iter().map(|node| (node, *rate)));
    }
    let [nodes, limited, plain, stacks] = [&new.nodes, &new.limited, &new.plain, &new.stacks]
        .map(|sets| actor.resolve(directory, sets));
    let (nodes, limited, plain, stacks) = (nodes?, limited?, plain?, stacks?);
    let unrated = members(&nodes, &limited, &plain, &stacks, &BTreeMap::new());
    let outside = rates.keys().filter(|node| !unrated.contains_key(node));
    let outside: BTreeSet<NodeId> = outside.copied().collect();
    if !outside.is_empty() {
        let (domain, nodes) = (new.name.clone(), directory.places(&outside));
        return Err(DirectoryError::NotMembers { domain, nodes }.into());
    }
    Ok(members(&nodes, &limited, &plain, &stacks, &rates))
}
