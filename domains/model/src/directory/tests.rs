use proptest::prelude::*;
use toroid_fabric::Place;

use super::sample::{nodes, owned, wanted};
use super::*;

fn directory() -> Directory {
    Directory::new("2x2x2".parse().unwrap())
}

/// Regression: a free node that had been made a manager stayed one for its next owner.
#[test]
fn a_node_with_a_new_owner_manages_no_domain() {
    let mut directory = directory();
    directory.create(owned("blue", 7, &[0])).unwrap();
    directory.give(&nodes(&[1]), Some(7));
    directory.manage("blue", &nodes(&[0, 1]), false).unwrap();
    let managers = |directory: &Directory| directory.domain("blue").unwrap().managers.clone();
    assert_eq!(managers(&directory), nodes(&[0, 1]));
    directory.give(&nodes(&[0, 1]), Some(7));
    assert_eq!(managers(&directory), nodes(&[1]));
    directory.give(&nodes(&[1]), None);
    assert_eq!(managers(&directory), nodes(&[]));
    directory.add_alias(NodeId(1), "db").unwrap();
    directory.give(&nodes(&[1]), Some(8));
    assert_eq!(directory.aliases_of(NodeId(1)).next(), None);
    for n in 0..MAX_ALIASES {
        directory.add_alias(NodeId(1), &format!("n{n}")).unwrap();
    }
    directory.add_alias(NodeId(1), "n0").unwrap();
    let one_more = directory.add_alias(NodeId(1), "more");
    assert_eq!(
        one_more,
        Err(DirectoryError::TooManyAliases("1,0,0".into()))
    );
    let other = directory.manage("blue", &nodes(&[0, 2]), false);
    assert!(
        matches!(&other, Err(DirectoryError::NotEligible { nodes, .. }) if nodes == "0,1,0"),
        "{other:?}"
    );
    directory.manage("blue", &nodes(&[2]), true).unwrap();
}

fn named(name: &str) -> Wanted {
    wanted(name, &[])
}

fn with_subnet(name: &str, subnet: &str) -> Wanted {
    Wanted {
        subnet: Some(subnet.parse().unwrap()),
        ..named(name)
    }
}

#[test]
fn names_must_fit_an_interface_and_a_host_name() {
    let mut directory = directory();
    let bad = [
        "",
        "sixteen-letters-",
        "sixteen-letters0",
        "a/b",
        "a b",
        "a:b",
        "lo",
        ".",
        "..",
        "a.b",
        "-a",
        "a-",
        "Blue",
        "all",
        "default",
        "bl%d",
        "blü",
    ];
    for name in bad {
        let error = directory.create(named(name)).unwrap_err();
        assert_eq!(error, DirectoryError::BadName(name.into()));
    }
    for name in ["a", "fifteen-letters", "0", "blue_1"] {
        directory.create(named(name)).unwrap();
    }
    assert_eq!(
        directory.create(named("a")),
        Err(DirectoryError::DomainExists("a".into()))
    );
}

#[test]
fn aliases_are_host_names_that_are_no_places() {
    let mut directory = directory();
    for alias in ["", "1-0-0", "A", "a_b", "a-", "localhost", &"a".repeat(64)] {
        assert_eq!(
            directory.add_alias(NodeId(1), alias),
            Err(DirectoryError::BadAlias(alias.into()))
        );
    }
    directory.add_alias(NodeId(1), "head").unwrap();
    directory.add_alias(NodeId(1), "head").unwrap();
    assert_eq!(
        directory.add_alias(NodeId(2), "head"),
        Err(DirectoryError::AliasExists {
            alias: "head".into(),
            place: Place { x: 1, y: 0, z: 0 }
        })
    );
    assert_eq!(directory.resolve(&["head".into()]), Ok(nodes(&[1])));
    assert_eq!(
        directory.aliases_of(NodeId(1)).collect::<Vec<_>>(),
        ["head"]
    );
}

#[test]
fn subnets_never_overlap() {
    let mut directory = directory();
    directory
        .create(with_subnet("mine", "10.64.0.0/16"))
        .unwrap();
    let other = directory.create(named("other")).unwrap().domain;
    assert_eq!(other.subnet.to_string(), "10.65.0.0/24");
    let error = directory.create(with_subnet("third", "10.65.0.0/28"));
    assert_eq!(
        error,
        Err(DirectoryError::SubnetTaken {
            subnet: "10.65.0.0/28".parse().unwrap(),
            taken: other.subnet,
            domain: "other".into(),
        })
    );
    directory.remove("other").unwrap();
    let next = directory.create(named("next")).unwrap().domain;
    assert_eq!(next.subnet.to_string(), "10.65.1.0/24", "reused late");
}

#[test]
fn a_number_is_reused_last_and_with_a_higher_epoch() {
    let mut directory = directory();
    directory.create(named("first")).unwrap();
    directory.grow("first", &nodes(&[1, 2])).unwrap();
    directory.shrink("first", &nodes(&[1])).unwrap();
    let gone = directory.remove("first").unwrap();
    assert_eq!((gone.domain.id, gone.domain.epoch), (1, 3));
    assert_eq!(gone.left, nodes(&[2]));
    for n in 2..=u16::MAX {
        let id = directory.create(named("next")).unwrap().domain.id;
        assert_eq!(id, n);
        directory.remove("next").unwrap();
    }
    let again = directory.create(named("again")).unwrap().domain;
    assert_eq!((again.id, again.epoch), (1, 4));
}

#[test]
fn refused_changes_change_nothing() {
    let mut directory = directory();
    let missing = Err(DirectoryError::NoSuchDomain("blue".into()));
    assert_eq!(directory.grow("blue", &nodes(&[1])), missing);
    assert_eq!(directory.shrink("blue", &nodes(&[1])), missing);
    assert_eq!(directory.remove("blue"), missing);
    let too_large = Wanted {
        mtu: Some(65_522),
        ..named("blue")
    };
    assert_eq!(
        directory.create(too_large),
        Err(DirectoryError::BadMtu(65_522))
    );
    directory.create(named("blue")).unwrap();
    assert_eq!(
        directory.shrink("blue", &nodes(&[1, 7])),
        Err(DirectoryError::NotMembers {
            domain: "blue".into(),
            nodes: "1,0,0 1,1,1".into()
        })
    );
    assert_eq!(directory.domain("blue").unwrap().epoch, 1);
}

#[derive(Clone, Debug)]
enum Step {
    Create(BTreeSet<u32>),
    Grow(BTreeSet<u32>),
    Shrink(BTreeSet<u32>),
    Remove,
}

fn step() -> impl Strategy<Value = (usize, Step)> {
    let set = || prop::collection::btree_set(0..8u32, 0..5);
    let step = prop_oneof![
        set().prop_map(Step::Create),
        set().prop_map(Step::Grow),
        set().prop_map(Step::Shrink),
        Just(Step::Remove),
    ];
    (0..3usize, step)
}

proptest! {
    /// Members are those of plain sets, epochs never go back, and no two domains share a
    /// number or a subnet.
    #[test]
    fn membership_is_that_of_plain_sets(
        steps in prop::collection::vec(step(), 0..60)
    ) {
        let mut directory = directory();
        let mut model: BTreeMap<&str, BTreeSet<NodeId>> = BTreeMap::new();
        let mut epochs: BTreeMap<u16, u32> = BTreeMap::new();
        for (which, step) in steps {
            let name = ["red", "green", "blue"][which];
            let numbers = |set: &BTreeSet<u32>| set.iter().copied().map(NodeId).collect();
            let expected = match &step {
                Step::Create(set) if !model.contains_key(name) => {
                    model.insert(name, numbers(set));
                    true
                }
                Step::Grow(set) => {
                    let added: BTreeSet<NodeId> = numbers(set);
                    model.get_mut(name).map(|members| members.extend(added)).is_some()
                }
                Step::Shrink(set) => {
                    let removed: BTreeSet<NodeId> = numbers(set);
                    let members = model.get_mut(name);
                    members.is_some_and(|members| {
                        let before = members.len();
                        members.retain(|node| !removed.contains(node));
                        members.len() < before
                    })
                }
                Step::Remove => model.remove(name).is_some(),
                Step::Create(_) => false,
            };
            let result = match &step {
                Step::Create(set) => directory.create(Wanted {
                    members: full_members(numbers(set)),
                    ..named(name)
                }),
                Step::Grow(set) => directory.grow(name, &numbers(set)),
                Step::Shrink(set) => directory.shrink(name, &numbers(set)),
                Step::Remove => directory.remove(name),
            };
            prop_assert_eq!(result.is_ok(), expected, "{:?}", step);
            if let Ok(change) = result {
                let last = epochs.insert(change.domain.id, change.domain.epoch);
                let grew = last.is_none_or(|last| {
                    change.domain.epoch == last + u32::from(!matches!(step, Step::Grow(_)))
                });
                prop_assert!(grew, "epoch {} after {:?}", change.domain.epoch, last);
            }
            let domains: Vec<&Domain> = directory.domains().collect();
            let members: BTreeMap<&str, BTreeSet<NodeId>> = domains
                .iter()
                .map(|domain| (domain.name.as_str(), domain.nodes()))
                .collect();
            prop_assert_eq!(&members, &model);
            for (n, a) in domains.iter().enumerate() {
                for b in &domains[n + 1..] {
                    prop_assert!(a.id != b.id && !a.subnet.overlaps(&b.subnet));
                }
            }
        }
    }
}
