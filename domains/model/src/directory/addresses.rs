//! IPv4 addresses of a domain whose subnet has fewer of them than the torus has nodes.

use std::collections::{BTreeMap, BTreeSet};

use toroid_fabric::NodeId;

use super::MemberSpec;

/// Indexes of nodes in the subnet of a domain. A former member keeps its index as long as others
/// are free: it has the same address when it returns, and caches of its fellows do not lead to
/// another node. The member that left first loses its index first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Addresses {
    /// Of members and former members. No two are equal.
    indexes: BTreeMap<NodeId, u32>,
    /// Epochs in which former members left.
    left: BTreeMap<NodeId, u32>,
}

impl Addresses {
    /// Indexes of the first members of a domain.
    pub(super) fn of(nodes: impl Iterator<Item = NodeId>) -> Self {
        Addresses {
            indexes: nodes.zip(0..).collect(),
            left: BTreeMap::new(),
        }
    }

    /// Indexes from records.
    ///
    /// # Errors
    /// What the mistake is: an index twice, beyond `capacity`, or missing for a member.
    pub(super) fn restore(
        indexes: BTreeMap<NodeId, u32>,
        left: BTreeMap<NodeId, u32>,
        members: &BTreeMap<NodeId, MemberSpec>,
        capacity: u32,
    ) -> Result<Self, &'static str> {
        let used: BTreeSet<u32> = indexes.values().copied().collect();
        if used.len() < indexes.len() {
            Err("gives an address to two nodes")
        } else if used.last().is_some_and(|last| *last >= capacity) {
            Err("gives an address beyond its subnet")
        } else if !members.keys().all(|node| indexes.contains_key(node)) {
            Err("has members without addresses")
        } else if !left.keys().all(|node| indexes.contains_key(node)) {
            Err("says when nodes left that have no addresses")
        } else {
            Ok(Addresses { indexes, left })
        }
    }

    /// Indexes of all nodes that have one.
    pub(super) fn indexes(&self) -> &BTreeMap<NodeId, u32> {
        &self.indexes
    }

    /// Epochs in which former members left.
    pub(super) fn left(&self) -> &BTreeMap<NodeId, u32> {
        &self.left
    }

    /// Gives indexes below `capacity` to new members, beside these members. `None` if there are too
    /// few.
    pub(super) fn admit(
        &mut self,
        joined: &BTreeSet<NodeId>,
        members: &BTreeMap<NodeId, MemberSpec>,
        capacity: u32,
    ) -> Option<()> {
        self.left.retain(|node, _| !joined.contains(node));
        let used: BTreeSet<u32> = self.indexes.values().copied().collect();
        let mut free = (0..capacity).filter(|index| !used.contains(index));
        let is_former = |node: &&NodeId| !members.contains_key(node) && !joined.contains(node);
        let former = self.indexes.keys().filter(is_former);
        let former = former.map(|node| (self.left.get(node).copied().unwrap_or_default(), *node));
        let mut former = former.collect::<BTreeSet<(u32, NodeId)>>().into_iter();
        for node in joined {
            if self.indexes.contains_key(node) {
                continue;
            }
            let index = match free.next() {
                Some(index) => index,
                None => {
                    let (_, gone) = former.next()?;
                    self.left.remove(&gone);
                    self.indexes.remove(&gone)?
                }
            };
            self.indexes.insert(*node, index);
        }
        Some(())
    }

    /// Notes that members have left in an epoch.
    pub(super) fn leave(&mut self, nodes: &BTreeSet<NodeId>, epoch: u32) {
        self.left.extend(nodes.iter().map(|node| (*node, epoch)));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use crate::directory::sample::{nodes, wanted};
    use crate::directory::{Directory, DirectoryError, Wanted};

    use super::*;

    /// With more nodes than a domain has addresses by default.
    fn directory() -> Directory {
        Directory::new("16x16x4".parse().unwrap())
    }

    /// With room for six members.
    fn small() -> Wanted {
        Wanted {
            subnet: Some("10.1.0.0/29".parse().unwrap()),
            capacity: Some(6),
            ..wanted("blue", &[])
        }
    }

    fn last_byte(directory: &Directory, node: u32) -> Option<u8> {
        let address = directory.domain("blue").unwrap().address(NodeId(node))?;
        Some(address.octets()[3])
    }

    #[test]
    fn a_domain_has_the_addresses_that_its_size_needs() {
        let mut directory = directory();
        let mut create = |name: &str, members: u32, capacity| {
            let members: Vec<u32> = (0..members).collect();
            let wanted = Wanted {
                capacity,
                ..wanted(name, &members)
            };
            let domain = directory.create(wanted).unwrap().domain;
            (domain.subnet.to_string(), domain.capacity())
        };
        assert_eq!(create("a", 2, None), ("10.64.0.0/24".into(), Some(254)));
        assert_eq!(create("b", 254, None), ("10.64.1.0/24".into(), Some(254)));
        assert_eq!(
            create("c", 255, None),
            ("10.127.254.0/23".into(), Some(510))
        );
        assert_eq!(
            create("d", 2, Some(600)),
            ("10.127.248.0/22".into(), Some(1022))
        );
        assert_eq!(create("e", 2, Some(4000)), ("10.127.240.0/21".into(), None));
        assert_eq!(create("f", 1024, None), ("10.127.232.0/21".into(), None));
        assert_eq!(create("g", 2, None), ("10.64.2.0/24".into(), Some(254)));
    }

    #[test]
    fn growth_beyond_the_addresses_is_refused_with_the_remedy() {
        let mut directory = directory();
        let first: Vec<u32> = (0..200).collect();
        directory.create(wanted("blue", &first)).unwrap();
        let more = (200..254).map(NodeId).collect();
        directory.grow("blue", &more).unwrap();
        let before = directory.records();
        let error = directory.grow("blue", &nodes(&[300, 7])).unwrap_err();
        let full = |members, capacity| DirectoryError::Full {
            domain: "blue".into(),
            capacity,
            members,
        };
        assert_eq!(error, full(255, 254));
        assert_eq!(directory.records(), before);
        let refusal = crate::refusal::Refusal::from(error);
        assert!(refusal.remedy.contains("--capacity 255"), "{refusal}");
        directory.remove("blue").unwrap();
        let wanted = Wanted {
            capacity: Some(100),
            ..wanted("blue", &first)
        };
        let before = directory.records();
        let error = directory.create(wanted).unwrap_err();
        assert_eq!(error, full(200, 100));
        assert_eq!(directory.records(), before);
    }

    #[test]
    fn a_former_member_has_its_address_again_unless_it_was_needed() {
        let mut directory = directory();
        directory.create(small()).unwrap();
        directory.grow("blue", &nodes(&[900, 7, 1023])).unwrap();
        let of = |directory: &Directory| [7, 900, 1023].map(|n| last_byte(directory, n));
        assert_eq!(of(&directory), [Some(1), Some(2), Some(3)]);
        directory.shrink("blue", &nodes(&[900])).unwrap();
        directory.shrink("blue", &nodes(&[7])).unwrap();
        directory.grow("blue", &nodes(&[10, 11, 12])).unwrap();
        assert_eq!(
            [10, 11, 12].map(|n| last_byte(&directory, n)),
            [4, 5, 6].map(Some)
        );
        directory.grow("blue", &nodes(&[7])).unwrap();
        assert_eq!(of(&directory), [Some(1), Some(2), Some(3)]);
        // Only the address of 900 is left.
        directory.grow("blue", &nodes(&[13])).unwrap();
        assert_eq!(last_byte(&directory, 13), Some(2));
        assert_eq!(last_byte(&directory, 900), None);
        directory.shrink("blue", &nodes(&[10, 11])).unwrap();
        directory.shrink("blue", &nodes(&[7])).unwrap();
        directory.grow("blue", &nodes(&[900])).unwrap();
        assert_eq!(
            last_byte(&directory, 900),
            Some(4),
            "the first of the first"
        );
    }

    #[derive(Clone, Debug)]
    enum Step {
        Grow(BTreeSet<u32>),
        Shrink(BTreeSet<u32>),
        Reload,
    }

    fn step() -> impl Strategy<Value = Step> {
        let set = || prop::collection::btree_set(0..12_u32, 1..5);
        prop_oneof![
            4 => set().prop_map(Step::Grow),
            4 => set().prop_map(Step::Shrink),
            1 => Just(Step::Reload),
        ]
    }

    proptest! {
        /// Members have one address each, inside the subnet, as long as they are members.
        #[test]
        fn a_member_keeps_an_address_of_its_own(steps in prop::collection::vec(step(), 0..40)) {
            let mut directory = directory();
            directory.create(small()).unwrap();
            for step in steps {
                let before = directory.domain("blue").unwrap().clone();
                let numbers = |set: BTreeSet<u32>| set.into_iter().map(NodeId).collect();
                match step {
                    Step::Grow(set) => {
                        let nodes: BTreeSet<NodeId> = numbers(set);
                        let members = (&before.nodes() | &nodes).len();
                        let grown = directory.grow("blue", &nodes);
                        prop_assert_eq!(grown.is_ok(), members <= 6);
                    }
                    Step::Shrink(set) => drop(directory.shrink("blue", &numbers(set))),
                    Step::Reload => {
                        let records = directory.records();
                        directory = Directory::from_records(&records).unwrap();
                        prop_assert_eq!(directory.records(), records);
                    }
                }
                let now = directory.domain("blue").unwrap();
                let all: BTreeSet<_> = now.members.keys().map(|n| now.address(*n).unwrap()).collect();
                prop_assert_eq!(all.len(), now.members.len());
                prop_assert!(all.iter().all(|a| (1..=6).contains(&a.octets()[3])));
                for node in now.members.keys().filter(|node| before.members.contains_key(node)) {
                    prop_assert_eq!(now.address(*node), before.address(*node));
                }
            }
        }
    }
}
