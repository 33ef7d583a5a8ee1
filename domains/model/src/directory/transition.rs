//! Actions of a host whose copy of the directory becomes another one, perhaps after missed
//! versions.

use std::collections::BTreeSet;
use std::sync::Arc;

use toroid_fabric::NodeId;

use super::{Change, Directory, Domain, MemberSpec};

/// Actions from one directory to another, in their order.
#[derive(Debug)]
pub struct Transition {
    /// First: leaving members. Some may join again with another kind.
    pub leaving: Vec<Change>,
    /// Directory after they have left. Given nodes keep their former owners, which must stay
    /// recorded until the nodes have been emptied.
    pub meanwhile: Directory,
    /// Then joining members, and the directory after each of these changes.
    pub joining: Vec<(Change, Directory)>,
    /// Domains whose routes differ.
    pub altered: Vec<Domain>,
    /// Domains whose links differ.
    pub relinked: Vec<Domain>,
    /// Nodes with another owner.
    pub given: BTreeSet<NodeId>,
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
    /// Transition from `old` to `new`.
    pub fn between(old: &Directory, new: &Directory) -> Result<Self, Backwards> {
        let mut leaving = Vec::new();
        let mut meanwhile = new.clone();
        meanwhile.domains.clear();
        for domain in old.domains() {
            let next = same(domain, new);
            let stays = next.map_or_else(BTreeSet::new, |next| stayed(domain, next));
            let left = &domain.nodes() - &stays;
            check_age(domain, next.is_some() && left.is_empty(), new)?;
            match next {
                Some(next) => {
                    let rest = restricted(next, &stays);
                    if next.epoch > domain.epoch {
                        leaving.push(leave(rest.clone(), left));
                    }
                    meanwhile.put(rest);
                }
                None => {
                    let mut end = restricted(domain, &BTreeSet::new());
                    end.epoch = end.epoch.saturating_add(1);
                    leaving.push(leave(end, left));
                }
            }
        }
        let given = given(old, new);
        meanwhile.leave_owners(&given, old);
        meanwhile.forget_missing_domains();
        let mut transition = Transition {
            leaving,
            joining: Vec::new(),
            altered: altered(old, new, |domain| (&domain.gateway, domain.forward)),
            relinked: altered(old, new, |domain| &domain.links),
            given,
            meanwhile,
        };
        transition.join(new);
        Ok(transition)
    }

    fn join(&mut self, new: &Directory) {
        let mut directory = self.meanwhile.clone();
        for domain in new.domains() {
            let present = directory.domain(&domain.name).map(Domain::nodes);
            let joined = &domain.nodes() - present.as_ref().unwrap_or(&BTreeSet::new());
            if present.is_ok() && joined.is_empty() {
                continue;
            }
            directory.put(domain.clone());
            let change = Change {
                domain: domain.clone(),
                joined,
                left: BTreeSet::new(),
            };
            self.joining.push((change, directory.clone()));
        }
    }
}

impl Directory {
    /// Takes the administrator and default limits of another directory.
    pub fn administered_as(mut self, other: &Directory) -> Self {
        self.administrator = other.administrator;
        self.default_bytes = other.default_bytes;
        self
    }

    fn put(&mut self, domain: Domain) {
        self.domains.insert(domain.name.clone(), Arc::new(domain));
    }

    /// Restores the owners that nodes have in another directory.
    fn leave_owners(&mut self, nodes: &BTreeSet<NodeId>, other: &Directory) {
        for node in nodes {
            let ownership = other.ownerships.get(node).cloned().unwrap_or_default();
            self.amend(&[*node].into(), |its| *its = ownership.clone());
        }
    }

    /// Removes consents to absent domains.
    fn forget_missing_domains(&mut self) {
        let domains = self.domains.clone();
        let nodes: BTreeSet<NodeId> = self.ownerships.keys().copied().collect();
        self.amend(&nodes, |ownership| {
            ownership.consents.retain(|name| domains.contains_key(name));
        });
    }

    /// The epoch that a number has come to.
    fn epoch_of(&self, id: u16) -> Option<u32> {
        let freed = self.freed.values().find(|(freed, _)| *freed == id);
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
        next.members.get(node) == Some(*spec) && since.is_none_or(|epoch| *epoch <= domain.epoch)
    };
    let members = domain.members.iter().filter(stays);
    members.map(|(node, _)| *node).collect()
}

/// A domain with fewer members.
fn restricted(domain: &Domain, members: &BTreeSet<NodeId>) -> Domain {
    let mut rest = domain.clone();
    rest.members.retain(|node, _| members.contains(node));
    rest.since.retain(|node, _| members.contains(node));
    rest.gateway
        .take_if(|gateway| !members.contains(&gateway.node));
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

/// Present domains with another property than before.
fn altered<'d, T: PartialEq>(
    old: &'d Directory,
    new: &'d Directory,
    property: impl Fn(&'d Domain) -> T,
) -> Vec<Domain> {
    let is_altered = |domain: &&'d Domain| {
        let before = old.domain(&domain.name);
        before.is_ok_and(|before| property(before) != property(domain))
    };
    new.domains().filter(is_altered).cloned().collect()
}

fn given(old: &Directory, new: &Directory) -> BTreeSet<NodeId> {
    let all = old.ownerships.keys().chain(new.ownerships.keys());
    let is_given = |node: &&NodeId| old.owner_of(**node) != new.owner_of(**node);
    all.filter(is_given).copied().collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::directory::Wanted;
    use crate::directory::sample::{nodes, wanted};

    fn blue() -> Directory {
        let mut directory = Directory::new("2x2x2".parse().unwrap());
        directory.create(wanted("blue", &[0, 1, 2])).unwrap();
        directory
    }

    fn between(old: &Directory, new: &Directory) -> Transition {
        let transition = Transition::between(old, new).unwrap();
        // Each intermediate copy is valid, because a host may be killed at any point.
        let steps = transition.joining.iter().map(|(_, directory)| directory);
        for step in steps.chain([&transition.meanwhile]) {
            Directory::from_records(&step.records()).unwrap();
        }
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
            .map(|(change, _)| (&*change.domain.name, change.joined.clone()))
            .collect();
        assert_eq!(joined, [("blue", nodes(&[5])), ("red", nodes(&[0]))]);
        let last = &transition.joining.last().unwrap().1;
        assert_eq!(last.records(), new.records());
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
        assert_eq!(transition.joining[0].0.joined, nodes(&[1]));
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
        assert_eq!(anew.joining[0].0.joined, nodes(&[0, 1]));
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
        let joining = transition.joining.iter().map(|(_, directory)| directory);
        for step in joining.chain([&transition.meanwhile]) {
            assert_eq!(between(step, &new).given, transition.given);
        }
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
            let transition = between(&old, &new);
            let leaving = transition.leaving.iter();
            let told: BTreeSet<(u16, NodeId)> = leaving
                .flat_map(|change| change.left.iter().map(|node| (change.domain.id, *node)))
                .collect();
            prop_assert_eq!(told, gone);
            let last = transition.joining.last().map_or(&transition.meanwhile, |(_, last)| last);
            for domain in new.domains() {
                prop_assert_eq!(last.domain(&domain.name).unwrap(), domain);
            }
            prop_assert_eq!(last.domains().count(), new.domains().count());
        }
    }
}
