//! The steps from a present to a wanted declaration. Steps that revoke precede steps that grant, so
//! no node communicates meanwhile with more nodes than before or after.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use toroid_fabric::Place;

use super::step::Places;
use super::{Declaration, Declared, DeclaredGateway, Problem, Step};
use crate::addressing::Subnet;
use crate::directory::{MemberSpec, by_rate, members_with};
use crate::link::DomainLinks;
use crate::quota::Resource;

/// The steps from `present` to `wanted`. Objects absent from `wanted` stay; with `prune`, absent
/// domains are removed.
///
/// # Errors
/// What no step can change; and `prune` with a file that names no domain at all, such as the
/// output of a command that failed.
pub fn plan(
    present: &Declaration,
    wanted: &Declaration,
    prune: bool,
) -> Result<Vec<Step>, Vec<Problem>> {
    let new_owner = |(place, owner): &(&Place, &u32)| present.owners.get(place) != Some(owner);
    let given = wanted.owners.iter().filter(new_owner);
    let mut plan = Plan {
        given: given.map(|(place, _)| *place).collect(),
        ..Plan::default()
    };
    if prune && wanted.domains.is_empty() && !present.domains.is_empty() {
        let message = format!(
            "the file names no domain, and --prune would remove all {}; remove them with `toroid \
             domain rm`",
            present.domains.len()
        );
        plan.problems.push(Problem { line: 1, message });
    }
    plan.disconnect(present, wanted, prune);
    for (name, domain) in &present.domains {
        match wanted.domains.get(name) {
            Some(wanted) => plan.change(name, domain, wanted),
            None if prune => plan.take.push(Step::Remove {
                domain: name.clone(),
            }),
            None => {
                plan.keep(name, domain);
                plan.take_members(name, domain, domain);
            }
        }
    }
    plan.own(present, wanted);
    plan.limit(present, wanted);
    // An empty file prunes nothing.
    let prunes_names = prune && !(wanted.domains.is_empty() && wanted.aliases.is_empty());
    for (alias, place) in &present.aliases {
        let stays = match wanted.aliases.get(alias) {
            Some(wanted) => wanted == place,
            None => !prunes_names,
        };
        if !stays && !plan.given.contains(place) {
            plan.name.push(Step::Unalias {
                alias: alias.clone(),
            });
        }
    }
    for (alias, place) in &wanted.aliases {
        // A node that gets another owner loses its names.
        if present.aliases.get(alias) != Some(place) || plan.given.contains(place) {
            plan.name.push(Step::Alias {
                alias: alias.clone(),
                node: *place,
            });
        }
    }
    for (name, domain) in &wanted.domains {
        if !present.domains.contains_key(name) {
            plan.create(name, domain);
        }
    }
    plan.connect(present, wanted, prune);
    if !plan.problems.is_empty() {
        return Err(plan.problems);
    }
    Ok([plan.take, plan.name, plan.give].concat())
}

#[derive(Default)]
struct Plan {
    /// Nodes that get another owner: they leave their domains.
    given: BTreeSet<Place>,
    take: Vec<Step>,
    name: Vec<Step>,
    give: Vec<Step>,
    /// Subnets in use after the steps, and their domains.
    subnets: Vec<(Subnet, String)>,
    problems: Vec<Problem>,
}

/// Members that leave a domain: for good, or to join again as another kind of member or as nodes of
/// another owner.
fn leavers(present: &Declared, wanted: &Declared, given: &BTreeSet<Place>) -> BTreeSet<Place> {
    let leaves = |(place, spec): &(&Place, &MemberSpec)| {
        let next = wanted.members.get(place);
        let stays = next.is_some_and(|next| next.is_same_kind(**spec));
        !stays || given.contains(place)
    };
    let leavers = present.members.iter().filter(leaves);
    leavers.map(|(place, _)| *place).collect()
}

/// Gateways that a domain is to have: those of the file, or without `prune` its present ones at
/// nodes that are to be members.
fn target_gateways(
    name: &str,
    present: &Declaration,
    wanted: &Declaration,
    prune: bool,
) -> Vec<DeclaredGateway> {
    if let Some(wanted) = wanted.gateways.get(name) {
        return wanted.clone();
    }
    let domain = wanted.domains.get(name).or(present.domains.get(name));
    let stays = |gateway: &&DeclaredGateway| {
        !prune && domain.is_some_and(|domain| domain.members.contains_key(&gateway.node))
    };
    let present = present.gateways.get(name).into_iter().flatten();
    present.filter(stays).cloned().collect()
}

/// Number of the first of the `target` gateways that are among those `left` in this order. The
/// others are added after them.
fn matching(left: &[DeclaredGateway], target: &[DeclaredGateway]) -> usize {
    let mut left = left.iter();
    let is_left = |gateway: &&DeclaredGateway| left.any(|other| other == *gateway);
    target.iter().take_while(is_left).count()
}

impl Plan {
    /// Gateways that are not to be as they are are disconnected, unless they end with their domain's or
    /// their node's membership.
    fn disconnect(&mut self, present: &Declaration, wanted: &Declaration, prune: bool) {
        for name in present.gateways.keys() {
            let left = self.gateways_left(name, present, wanted, prune);
            let target = target_gateways(name, present, wanted, prune);
            for gateway in left.into_iter().filter(|gateway| !target.contains(gateway)) {
                self.take.push(Step::Disconnect {
                    domain: name.clone(),
                    node: gateway.node,
                });
            }
        }
    }

    /// Connects wanted gateways, and present ones that an earlier step ended unintentionally. One of
    /// another place in the order is disconnected before, at its turn: the domain always has gateways,
    /// also if a new one fails.
    fn connect(&mut self, present: &Declaration, wanted: &Declaration, prune: bool) {
        let names = present.gateways.keys().chain(wanted.gateways.keys());
        for name in names.collect::<BTreeSet<_>>() {
            let left = self.gateways_left(name, present, wanted, prune);
            let target = target_gateways(name, present, wanted, prune);
            let there = matching(&left, &target);
            for gateway in target.into_iter().skip(there) {
                if left.contains(&gateway) {
                    self.give.push(Step::Disconnect {
                        domain: name.clone(),
                        node: gateway.node,
                    });
                }
                self.give.push(Step::Connect {
                    domain: name.clone(),
                    node: gateway.node,
                    uplink: gateway.uplink,
                    kind: gateway.kind,
                });
            }
        }
    }

    /// Gateways that remain when all members are taken that are to be taken.
    fn gateways_left(
        &self,
        name: &str,
        present: &Declaration,
        wanted: &Declaration,
        prune: bool,
    ) -> Vec<DeclaredGateway> {
        let mut left = present.gateways.get(name).cloned().unwrap_or_default();
        let Some(domain) = present.domains.get(name) else {
            return left;
        };
        let leavers = match wanted.domains.get(name) {
            Some(wanted) => leavers(domain, wanted, &self.given),
            None if prune => return Vec::new(),
            None => leavers(domain, domain, &self.given),
        };
        left.retain(|gateway| !leavers.contains(&gateway.node));
        left
    }

    fn keep(&mut self, name: &str, domain: &Declared) {
        let subnet = domain.subnet.map(|subnet| (subnet, name.into()));
        self.subnets.extend(subnet);
    }

    fn create(&mut self, name: &str, wanted: &Declared) {
        let taken =
            |(other, _): &&(Subnet, String)| wanted.subnet.is_some_and(|s| s.overlaps(other));
        if let Some((other, whose)) = self.subnets.iter().find(taken) {
            let message = format!("the subnet of domain {name} overlaps {other} of domain {whose}");
            self.problem(wanted.lines.subnet, message);
        }
        self.keep(name, wanted);
        let with =
            |is_wanted: fn(&MemberSpec) -> bool| Places(members_with(&wanted.members, is_wanted));
        let members = wanted.members.iter();
        let by_rate = by_rate(members.map(|(place, spec)| (*place, spec.rate)));
        self.give.push(Step::Create {
            domain: name.into(),
            nodes: with(|spec| !spec.limited),
            limited: with(|spec| spec.limited),
            plain: with(|spec| spec.no_offload),
            stacks: with(|spec| spec.userspace_stack),
            rates: by_rate
                .into_iter()
                .map(|(rate, places)| (rate, Places(places)))
                .collect(),
            subnet: wanted.subnet,
            capacity: wanted.capacity,
            mtu: wanted.mtu,
            public: wanted.public,
            sealed: wanted.sealed,
            fence: wanted.fence,
            ethernet: wanted.ethernet,
            owner: wanted.owner,
        });
        if wanted.forward {
            self.give.push(forward(name, true));
        }
        self.appoint(name, &Declared::default(), wanted);
        self.link(name, &DomainLinks::default(), wanted);
    }

    fn change(&mut self, name: &str, present: &Declared, wanted: &Declared) {
        self.keep(name, present);
        let at = wanted.lines;
        self.fixed(name, "subnet", present.subnet, wanted.subnet, at.subnet);
        self.fixed(name, "mtu", present.mtu, wanted.mtu, at.mtu);
        self.check_capacity(name, present, wanted);
        let public = (present.public != wanted.public).then_some(wanted.public);
        let owner = wanted.owner.filter(|owner| Some(*owner) != present.owner);
        let set = |public: Option<bool>, owner: Option<u32>| Step::Set {
            domain: name.into(),
            public,
            forward: None,
            sealed: None,
            fence: None,
            ethernet: None,
            owner,
        };
        let protect = |sealed, fence, ethernet| Step::Set {
            domain: name.into(),
            public: None,
            forward: None,
            sealed,
            fence,
            ethernet,
            owner: None,
        };
        let seal = |sealed| protect(Some(sealed), None, None);
        if present.fence != wanted.fence {
            let fence = wanted.fence.unwrap_or_default();
            self.take.push(protect(None, Some(fence), None));
        }
        if present.ethernet != wanted.ethernet {
            self.give.push(protect(None, None, Some(wanted.ethernet)));
        }
        // Before nodes join that need it.
        if wanted.sealed && !present.sealed {
            self.take.push(seal(true));
        }
        if present.sealed && !wanted.sealed {
            self.give.push(seal(false));
        }
        if present.forward && !wanted.forward {
            self.take.push(forward(name, false));
        }
        // First: otherwise the nodes taken out could join again.
        if public == Some(false) {
            self.take.push(set(public, None));
        }
        self.take_members(name, present, wanted);
        // Before nodes join that are meant for the next owner.
        if owner.is_some() {
            self.name.push(set(None, owner));
        }
        let mut members = present.members.clone();
        members.retain(|place, _| !self.given.contains(place));
        let staying = Declared {
            members,
            managers: &present.managers - &self.given,
            ..Declared::default()
        };
        self.change_rates(name, &staying, wanted);
        self.give_members(name, &staying, wanted);
        let left = leavers(present, wanted, &self.given);
        let mut links = present.links.clone();
        let pairs = &mut links.pairs;
        pairs.retain(|pair, _| !left.contains(&pair.from) && !left.contains(&pair.to));
        self.link(name, &links, wanted);
        if public == Some(true) {
            self.give.push(set(public, None));
        }
        if wanted.forward && !present.forward {
            self.give.push(forward(name, true));
        }
    }

    fn fixed<T: PartialEq + fmt::Display>(
        &mut self,
        name: &str,
        what: &str,
        present: Option<T>,
        wanted: Option<T>,
        line: usize,
    ) {
        if let (Some(present), Some(wanted)) = (present, wanted)
            && present != wanted
        {
            let message = format!(
                "domain {name} has {what} {present}, which cannot become {wanted}; remove the \
                 domain first, or leave {what} as it is"
            );
            self.problem(line, message);
        }
    }

    /// Checks that a present domain has addresses for its next members.
    fn check_capacity(&mut self, name: &str, present: &Declared, wanted: &Declared) {
        let Some(capacity) = present.capacity else {
            return;
        };
        let (members, at) = (wanted.members.len(), wanted.lines);
        let (needed, line) = match wanted.capacity {
            Some(wanted) if wanted > capacity => (wanted, at.capacity),
            _ => (u32::try_from(members).unwrap_or(u32::MAX), at.domain),
        };
        if needed > capacity {
            let message = format!(
                "domain {name} has IPv4 addresses for {capacity} members, and not for {needed}; \
                 remove the domain first, or declare fewer"
            );
            self.problem(line, message);
        }
    }

    fn take_members(&mut self, name: &str, present: &Declared, wanted: &Declared) {
        let domain = || name.to_owned();
        let staying = &wanted.managers - &self.given;
        let revoked = &present.managers - &staying;
        push(&mut self.take, revoked, |nodes| Step::Revoke {
            domain: domain(),
            nodes,
        });
        let left = leavers(present, wanted, &self.given);
        push(&mut self.take, left, |nodes| Step::Shrink {
            domain: domain(),
            nodes,
        });
    }

    /// Changes the rates of members that stay.
    fn change_rates(&mut self, name: &str, present: &Declared, wanted: &Declared) {
        let (mut lower, mut higher) = (BTreeMap::new(), BTreeMap::new());
        for (place, spec) in &present.members {
            let next = wanted.members.get(place);
            let Some(next) = next.filter(|next| next.is_same_kind(*spec)) else {
                continue;
            };
            // No rate is the highest.
            let of = |spec: &MemberSpec| spec.rate.map_or(u64::MAX, |rate| rate.0);
            let changed = match of(next).cmp(&of(spec)) {
                Ordering::Less => &mut lower,
                Ordering::Equal => continue,
                Ordering::Greater => &mut higher,
            };
            let nodes: &mut BTreeSet<Place> = changed.entry(next.rate).or_default();
            nodes.insert(*place);
        }
        for (steps, changed) in [(&mut self.take, lower), (&mut self.give, higher)] {
            for (rate, nodes) in changed {
                push(steps, nodes, |nodes| Step::Rate {
                    domain: name.into(),
                    nodes,
                    rate,
                });
            }
        }
    }

    fn give_members(&mut self, name: &str, present: &Declared, wanted: &Declared) {
        let domain = || name.to_owned();
        for bits in 0..8 {
            let [limited, no_offload, userspace_stack] = [1, 2, 4].map(|bit| bits & bit != 0);
            let kind = MemberSpec {
                limited,
                no_offload,
                userspace_stack,
                rate: None,
            };
            let members = |of: &Declared| members_with(&of.members, |its| its.is_same_kind(kind));
            let mut joined = BTreeMap::<_, BTreeSet<Place>>::new();
            for place in &members(wanted) - &members(present) {
                let rate = wanted.members.get(&place).and_then(|spec| spec.rate);
                joined.entry(rate).or_default().insert(place);
            }
            for (rate, nodes) in joined {
                push(&mut self.give, nodes, |nodes| Step::Grow {
                    domain: domain(),
                    nodes,
                    spec: MemberSpec { rate, ..kind },
                });
            }
        }
        self.appoint(name, present, wanted);
    }

    fn appoint(&mut self, name: &str, present: &Declared, wanted: &Declared) {
        let made = &wanted.managers - &present.managers;
        push(&mut self.give, made, |nodes| Step::Manage {
            domain: name.into(),
            nodes,
        });
    }

    fn link(&mut self, name: &str, present: &DomainLinks<Place>, wanted: &Declared) {
        if *present != wanted.links {
            self.give.push(Step::Link {
                domain: name.into(),
                links: wanted.links.clone(),
            });
        }
    }

    fn own(&mut self, present: &Declaration, wanted: &Declaration) {
        let owners: BTreeSet<u32> = wanted.owners.values().copied().collect();
        for owner in owners {
            let new = |(place, uid): &(&Place, &u32)| {
                **uid == owner && present.owners.get(place) != Some(&owner)
            };
            let nodes = wanted.owners.iter().filter(new).map(|(place, _)| *place);
            push(&mut self.name, nodes.collect(), |nodes| Step::Own {
                nodes,
                owner,
            });
        }
    }

    fn limit(&mut self, present: &Declaration, wanted: &Declaration) {
        for (holder, wanted) in &wanted.quotas {
            let present = present.quotas.get(holder).cloned().unwrap_or_default();
            let resources: BTreeSet<Resource> =
                present.keys().chain(wanted.keys()).copied().collect();
            let limits = resources.into_iter().filter_map(|resource| {
                let limit = wanted.get(&resource).copied();
                (limit != present.get(&resource).copied()).then_some((resource, limit))
            });
            let limits: BTreeMap<_, _> = limits.collect();
            if !limits.is_empty() {
                let holder = *holder;
                self.name.push(Step::Limit { holder, limits });
            }
        }
    }

    fn problem(&mut self, line: usize, message: String) {
        self.problems.push(Problem { line, message });
    }
}

fn forward(domain: &str, forward: bool) -> Step {
    Step::Set {
        domain: domain.into(),
        public: None,
        forward: Some(forward),
        sealed: None,
        fence: None,
        ethernet: None,
        owner: None,
    }
}

fn push(steps: &mut Vec<Step>, nodes: BTreeSet<Place>, step: impl FnOnce(Places) -> Step) {
    if !nodes.is_empty() {
        steps.push(step(Places(nodes)));
    }
}
