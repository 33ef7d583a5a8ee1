//! Actions of a host whose copy of the directory becomes another one, perhaps after missed
//! versions.

use std::collections::BTreeSet;
use std::sync::Arc;

use toroid_fabric::NodeId;

use super::domains::Difference;
use super::{Change, Directory, Domain, MemberSpec, Ownership};

/// Actions from one directory to another, in their order.
#[derive(Debug)]
pub struct Transition {
    /// First: leaving members. Some may join again with another kind.
    pub leaving: Vec<Change>,
    /// Directory after they have left. Given nodes keep their former owners, which must stay
    /// recorded until the nodes have been emptied.
    pub meanwhile: Directory,
    /// Then joining members. After them, the directory is the new one.
    pub joining: Vec<Change>,
    /// Domains whose routes, rates or paths differ.
    pub altered: Vec<Domain>,
    /// Domains whose links differ.
    pub relinked: Vec<Domain>,
    /// Nodes with another owner.
    pub given: BTreeSet<NodeId>,
    /// Nodes with other aliases, and their fellow members.
    pub renamed: BTreeSet<NodeId>,
    /// Nodes that another host carries than before.
    pub moved: BTreeSet<NodeId>,
}

/// The other directory is older than the known one, or was begun anew.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "domain {domain} has had epoch {known} here, from which the directory there does not go on"
)]
pub struct Backwards {
    /// The domain.
    pub domain: String,
    /// Known epoch of the domain.
    pub known: u32,
}

impl Transition {
    /// Transition from `old` to `new`. The cost depends on the differences.
    pub fn between(old: &Directory, new: &Directory) -> Result<Self, Backwards> {
        let mut transition = Transition {
            leaving: Vec::new(),
            meanwhile: new.clone(),
            joining: Vec::new(),
            altered: Vec::new(),
            relinked: Vec::new(),
            given: new.given_since(old),
            renamed: new.renamed_since(old),
            moved: new.moved_since(old),
        };
        let mut missing = BTreeSet::new();
        for Difference {
            name,
            old: before,
            new: after,
        } in new.domains.differences(&old.domains)
        {
            if let Some(before) = before {
                transition.leave(before, new)?;
            }
            let meanwhile = match before.map(|before| rest(before, new)) {
                Some(Some(rest)) => {
                    let nodes = rest.nodes();
                    transition.meanwhile.domains.put(rest);
                    Some(nodes)
                }
                _ => {
                    transition.meanwhile.domains.take(name);
                    missing.insert(name);
                    None
                }
            };
            if let Some(after) = after {
                transition.join(after, meanwhile);
            }
            if let (Some(before), Some(after)) = (before, after) {
                transition.alter(before, after);
            }
        }
        let Transition {
            meanwhile,
            joining,
            given,
            ..
        } = &mut transition;
        if !joining.is_empty() || !given.is_empty() {
            // Its records lie between the two revisions.
            meanwhile.revision = old.revision;
            meanwhile.ended_terms = Arc::clone(&old.ended_terms);
            meanwhile.is_partial = old.revision.is_some();
            meanwhile.moved.clone_from(&old.moved);
        }
        meanwhile.leave_owners(given, old);
        meanwhile.forget_domains(&missing);
        Ok(transition)
    }

    fn leave(&mut self, before: &Domain, new: &Directory) -> Result<(), Backwards> {
        let next = same(before, new);
        let stays = next.map_or_else(BTreeSet::new, |next| stayed(before, next));
        let left = &before.nodes() - &stays;
        check_age(before, next.is_some() && left.is_empty(), new)?;
        match next {
            Some(next) if next.epoch > before.epoch => {
                self.leaving.push(leave(restricted(next, &stays), left));
            }
            Some(_) => {}
            None => {
                let mut end = restricted(before, &BTreeSet::new());
                end.epoch = end.epoch.saturating_add(1);
                self.leaving.push(leave(end, left));
            }
        }
        Ok(())
    }

    fn join(&mut self, domain: &Domain, present: Option<BTreeSet<NodeId>>) {
        let is_new = present.is_none();
        let joined = &domain.nodes() - &present.unwrap_or_default();
        if is_new || !joined.is_empty() {
            self.joining.push(Change {
                domain: domain.clone(),
                joined,
                left: BTreeSet::new(),
            });
        }
    }

    fn alter(&mut self, before: &Domain, after: &Domain) {
        // New members have their rates from the beginning.
        let has_other_rate = |(node, spec): (&NodeId, &MemberSpec)| {
            let next = after.members.get(node);
            next.is_some_and(|next| next.rate != spec.rate)
        };
        let of_ports = |domain: &Domain| (domain.forward, domain.without_kernel());
        let is_same = before.gateways == after.gateways && of_ports(before) == of_ports(after);
        if !is_same || before.members.iter().any(has_other_rate) {
            self.altered.push(after.clone());
        }
        if before.links != after.links {
            self.relinked.push(after.clone());
        }
    }
}

/// A domain in another directory, with the members that stayed.
fn rest(domain: &Domain, new: &Directory) -> Option<Domain> {
    let next = same(domain, new)?;
    Some(restricted(next, &stayed(domain, next)))
}

impl Directory {
    /// Takes the administrator and default limits of another directory.
    pub fn administered_as(mut self, other: &Directory) -> Self {
        self.administrator = other.administrator;
        self.default_bytes = other.default_bytes;
        self
    }

    /// Restores the owners that nodes have in another directory.
    fn leave_owners(&mut self, nodes: &BTreeSet<NodeId>, other: &Directory) {
        for node in nodes {
            let ownership = other.ownerships.get(node).cloned().unwrap_or_default();
            self.amend(&[*node].into(), |its| *its = ownership.clone());
        }
    }

    /// Removes consents to domains that are absent.
    fn forget_domains(&mut self, missing: &BTreeSet<&str>) {
        let is_missing = |name: &String| missing.contains(name.as_str());
        let consents = |its: &Ownership| its.consents.iter().any(is_missing);
        let nodes = self.ownerships.iter().filter(|(_, its)| consents(its));
        let nodes: BTreeSet<NodeId> = nodes.map(|(node, _)| *node).collect();
        self.amend(&nodes, |ownership| {
            ownership.consents.retain(|name| !is_missing(name));
        });
    }

    /// The epoch that a number has come to.
    fn epoch_of(&self, id: u16) -> Option<u32> {
        let freed = self
            .freed_at
            .get(&id)
            .and_then(|order| self.freed.get(order));
        let present = || self.domain_by_id(id.into()).map(|domain| domain.epoch);
        freed.map(|(_, epoch)| *epoch).or_else(present)
    }
}

/// Processes would ignore events with an epoch lower than a known one. Members leave with a higher
/// epoch, so a lower one is another history, without these members.
fn check_age(domain: &Domain, all_stay: bool, new: &Directory) -> Result<(), Backwards> {
    match new.epoch_of(domain.id) {
        Some(epoch) if epoch > domain.epoch || all_stay && epoch == domain.epoch => Ok(()),
        _ => Err(Backwards {
            domain: domain.name.clone(),
            known: domain.epoch,
        }),
    }
}

/// The same domain in another directory, recognized by its fixed properties.
fn same<'d>(domain: &Domain, new: &'d Directory) -> Option<&'d Domain> {
    let next = new.domain(&domain.name).ok();
    let fixed = |domain: &Domain| (domain.id, domain.subnet, domain.mtu);
    next.filter(|next| fixed(next) == fixed(domain))
}

/// Members that stayed all the time, with the same kind.
fn stayed(domain: &Domain, next: &Domain) -> BTreeSet<NodeId> {
    let stays = |(node, spec): &(&NodeId, &MemberSpec)| {
        let since = next.since.get(node);
        let is_same = |next: &MemberSpec| next.is_same_kind(**spec);
        next.members.get(node).is_some_and(is_same)
            && next.address(**node) == domain.address(**node)
            && since.is_none_or(|epoch| *epoch <= domain.epoch)
    };
    let members = domain.members.iter().filter(stays);
    members.map(|(node, _)| *node).collect()
}

/// A domain with fewer members.
fn restricted(domain: &Domain, members: &BTreeSet<NodeId>) -> Domain {
    let mut rest = domain.clone();
    rest.members.retain(|node, _| members.contains(node));
    rest.since.retain(|node, _| members.contains(node));
    rest.gateways
        .retain(|gateway| members.contains(&gateway.node));
    rest.retain_links();
    rest
}

fn leave(domain: Domain, left: BTreeSet<NodeId>) -> Change {
    Change {
        domain,
        joined: BTreeSet::new(),
        left,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::directory::Wanted;
    use crate::directory::revision::FabricId;
    use crate::directory::sample::{nodes, wanted};

    fn blue() -> Directory {
        let mut directory = Directory::new("2x2x2".parse().unwrap());
        directory.create(wanted("blue", &[0, 1, 2])).unwrap();
        directory
    }

    fn between(old: &Directory, new: &Directory) -> Transition {
        let transition = Transition::between(old, new).unwrap();
        // The intermediate copy is valid, because a host may be killed at any point.
        let records = transition.meanwhile.records();
        let meanwhile = Directory::from_records(&records).unwrap();
        assert_eq!(meanwhile.records(), records);
        transition
    }

    #[test]
    fn an_equal_directory_needs_nothing() {
        let transition = between(&blue(), &blue());
        assert!(transition.leaving.is_empty() && transition.joining.is_empty());
        assert!(transition.altered.is_empty() && transition.given.is_empty());
    }

    #[test]
    fn leaving_precedes_joining() {
        let mut new = blue();
        new.shrink("blue", &nodes(&[1])).unwrap();
        new.grow("blue", &nodes(&[5])).unwrap();
        new.create(wanted("red", &[0])).unwrap();
        let transition = between(&blue(), &new);
        let [change] = &transition.leaving[..] else {
            panic!("{transition:?}")
        };
        assert_eq!((&change.left, change.domain.epoch), (&nodes(&[1]), 2));
        assert_eq!(change.domain.nodes(), nodes(&[0, 2]));
        let joining = transition.joining.iter();
        let joined: Vec<_> = joining
            .map(|change| (&*change.domain.name, change.joined.clone()))
            .collect();
        assert_eq!(joined, [("blue", nodes(&[5])), ("red", nodes(&[0]))]);
    }

    #[test]
    fn a_member_that_left_and_joined_again_has_left() {
        let mut new = blue();
        new.shrink("blue", &nodes(&[1])).unwrap();
        let limited = MemberSpec {
            limited: true,
            ..MemberSpec::default()
        };
        new.admit("blue", &nodes(&[1]), limited).unwrap();
        let transition = between(&blue(), &new);
        assert_eq!(transition.leaving[0].left, nodes(&[1]));
        assert_eq!(transition.joining[0].joined, nodes(&[1]));
        // A host that has seen this has nothing to do.
        let transition = between(&new, &new);
        assert!(transition.leaving.is_empty());
    }

    #[test]
    fn a_new_epoch_is_reported_without_known_leavers() {
        let mut new = blue();
        new.grow("blue", &nodes(&[4])).unwrap();
        new.shrink("blue", &nodes(&[4])).unwrap();
        let transition = between(&blue(), &new);
        let change = &transition.leaving[0];
        assert_eq!((change.domain.epoch, change.left.len()), (2, 0));
    }

    #[test]
    fn a_domain_that_is_gone_is_left_by_all_and_one_of_its_name_is_another() {
        let mut new = blue();
        new.remove("blue").unwrap();
        let gone = between(&blue(), &new);
        assert_eq!(gone.leaving[0].left, nodes(&[0, 1, 2]));
        assert!(gone.meanwhile.domain("blue").is_err() && gone.joining.is_empty());
        new.create(wanted("blue", &[0, 1])).unwrap();
        let anew = between(&blue(), &new);
        assert_eq!(anew.leaving[0].left, nodes(&[0, 1, 2]));
        assert_eq!(anew.joining[0].joined, nodes(&[0, 1]));
    }

    #[test]
    fn an_older_directory_is_none_to_follow() {
        let mut newer = blue();
        newer.shrink("blue", &nodes(&[1])).unwrap();
        let error = Transition::between(&newer, &blue()).unwrap_err();
        assert_eq!(error.known, 2);
        let empty = Directory::new("2x2x2".parse().unwrap());
        Transition::between(&blue(), &empty).unwrap_err();
    }

    #[test]
    fn leaving_requires_a_new_epoch() {
        // Equal epochs, but other histories.
        let other = |wanted: Wanted| {
            let mut other = Directory::new("2x2x2".parse().unwrap());
            other.create(wanted).unwrap();
            Transition::between(&blue(), &other)
        };
        let all = || wanted("blue", &[0, 1, 2]);
        assert_eq!(other(wanted("blue", &[0, 1])).unwrap_err().known, 1);
        other(wanted("red", &[0, 1, 2])).unwrap_err();
        let mtu = Some(1500);
        other(Wanted { mtu, ..all() }).unwrap_err();
        let subnet = Some("10.1.0.0/24".parse().unwrap());
        other(Wanted { subnet, ..all() }).unwrap_err();
        let mut limited = all();
        limited.members.get_mut(&NodeId(2)).unwrap().limited = true;
        other(limited).unwrap_err();
        other(all()).unwrap();
    }

    /// An agent killed after only this is durable has yet to empty the given nodes.
    #[test]
    fn given_nodes_are_known_in_every_step_of_a_transition() {
        let mut old = blue();
        old.give(&nodes(&[1, 2, 3]), Some(6));
        old.consent(&nodes(&[2, 5]), "blue", false).unwrap();
        let mut new = old.clone();
        new.shrink("blue", &nodes(&[1, 2])).unwrap();
        new.give(&nodes(&[1]), Some(7));
        new.give(&nodes(&[2]), None);
        new.create(wanted("red", &[3])).unwrap();
        let transition = between(&old, &new);
        assert_eq!(transition.given, nodes(&[1, 2]));
        assert_eq!(transition.leaving[0].left, nodes(&[1, 2]));
        let rest = between(&transition.meanwhile, &new);
        assert_eq!(rest.given, transition.given);
    }

    #[test]
    fn owners_and_gateways_are_reported() {
        let mut new = blue();
        new.give(&nodes(&[3]), Some(7));
        new.consent(&nodes(&[3]), "blue", false).unwrap();
        new.set("blue", None, Some(true), None).unwrap();
        let transition = between(&blue(), &new);
        assert_eq!(transition.given, nodes(&[3]));
        assert_eq!(transition.altered.len(), 1);
    }

    #[derive(Clone, Debug)]
    enum Step {
        Create(u8, Vec<u32>),
        Grow(u8, Vec<u32>, bool),
        Shrink(u8, Vec<u32>),
        Remove(u8),
        Consent(u8, u32),
    }

    fn step() -> impl Strategy<Value = Step> {
        let some = || proptest::collection::vec(0_u32..8, 0..4);
        prop_oneof![
            (0..3_u8, some()).prop_map(|(d, n)| Step::Create(d, n)),
            (0..3_u8, some(), any::<bool>()).prop_map(|(d, n, l)| Step::Grow(d, n, l)),
            (0..3_u8, some()).prop_map(|(d, n)| Step::Shrink(d, n)),
            (0..3_u8).prop_map(Step::Remove),
            (0..3_u8, 0..8_u32).prop_map(|(d, n)| Step::Consent(d, n)),
        ]
    }

    fn take(directory: &mut Directory, step: &Step) {
        let name = |number: &u8| format!("d{number}");
        // Refused steps change nothing.
        let _ = match step {
            Step::Create(domain, members) => {
                directory.create(wanted(&name(domain), members)).map(drop)
            }
            Step::Grow(domain, members, limited) => {
                let spec = MemberSpec {
                    limited: *limited,
                    ..MemberSpec::default()
                };
                directory
                    .admit(&name(domain), &nodes(members), spec)
                    .map(drop)
            }
            Step::Shrink(domain, left) => directory.shrink(&name(domain), &nodes(left)).map(drop),
            Step::Remove(domain) => directory.remove(&name(domain)).map(drop),
            Step::Consent(domain, node) => {
                directory.consent(&nodes(&[*node]), &name(domain), false)
            }
        };
    }

    proptest! {
        /// Exactly the members that left in between leave; the final state is the same.
        #[test]
        fn a_copy_that_missed_changes_catches_up(
            before in proptest::collection::vec(step(), 0..12),
            missed in proptest::collection::vec(step(), 0..12),
        ) {
            let mut old = Directory::new("2x2x2".parse().unwrap());
            before.iter().for_each(|step| take(&mut old, step));
            let mut new = old.clone();
            let mut gone: BTreeSet<(u16, NodeId)> = BTreeSet::new();
            for step in &missed {
                let was = new.clone();
                take(&mut new, step);
                for domain in was.domains() {
                    let next = same(domain, &new);
                    let left = domain.members.keys().filter(|node| next.is_none_or(|n| !n.members.contains_key(node)));
                    let known = old.domain_by_id(domain.id.into());
                    gone.extend(left
                        .filter(|node| known.is_some_and(|d| d.members.contains_key(node)))
                        .map(|node| (domain.id, *node)));
                }
            }
            old.begin_term(FabricId(1), 1);
            new.begin_term(FabricId(1), 2);
            let transition = between(&old, &new);
            // A copy that claims a revision has its records.
            let meanwhile = &transition.meanwhile;
            if meanwhile.is_partial() {
                prop_assert_eq!(meanwhile.revision(), old.revision());
            } else {
                prop_assert_eq!(meanwhile.records(), new.records());
            }
            let leaving = transition.leaving.iter();
            let told: BTreeSet<(u16, NodeId)> = leaving
                .flat_map(|change| change.left.iter().map(|node| (change.domain.id, *node)))
                .collect();
            prop_assert_eq!(told, gone);
            // The members of the intermediate copy and those that join are the new ones.
            let mut last = transition.meanwhile.clone();
            for change in &transition.joining {
                let before = last.domain(&change.domain.name).map(Domain::nodes);
                let both = &before.unwrap_or_default() | &change.joined;
                prop_assert_eq!(both, change.domain.nodes());
                last.domains.put(change.domain.clone());
            }
            for domain in new.domains() {
                prop_assert_eq!(last.domain(&domain.name).unwrap(), domain);
            }
            prop_assert_eq!(last.domains().count(), new.domains().count());
            // A follower reads only what has changed.
            let read = old.with(&new.changes_since(&old)).unwrap();
            prop_assert_eq!(read.records(), new.records());
            for id in 0..u16::MAX {
                prop_assert_eq!(read.epoch_of(id), new.epoch_of(id));
                if id > new.next_id { break; }
            }
            for node in (0..8).map(NodeId) {
                prop_assert!(read.domains_of(node).eq(new.domains_of(node)));
                let is_in = |domain: &&Domain| domain.members.contains_key(&node);
                prop_assert!(new.domains_of(node).eq(new.domains().filter(is_in)));
            }
            for domain in new.domains() {
                let found = read.domains.overlapping(domain.subnet).map(|found| &found.name);
                prop_assert_eq!(found, Some(&domain.name));
            }
        }
    }
}
