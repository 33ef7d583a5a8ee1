use proptest::prelude::*;
use toroid_fabric::Place;

use super::sample::{nodes, owned, wanted};
use super::*;
use crate::link::{LinkError, LinkSpec, Pair};

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

fn link(text: &str) -> LinkSpec {
    text.parse().unwrap()
}

fn links(default: &str, pairs: &[(u32, u32, &str)]) -> DomainLinks {
    let pair = |(from, to, text): &(u32, u32, &str)| {
        let (from, to) = (NodeId(*from), NodeId(*to));
        (Pair { from, to }, link(text))
    };
    DomainLinks {
        default: link(default),
        pairs: pairs.iter().map(pair).collect(),
    }
}

fn blue_of(members: &[u32]) -> Directory {
    let mut directory = directory();
    directory.create(wanted("blue", members)).unwrap();
    directory
}

#[test]
fn properties_of_links_that_are_not_given_stay_or_end() {
    let mut directory = blue_of(&[0, 1, 2]);
    let mut set =
        |wanted: &DomainLinks, keep| directory.set_links("blue", wanted, keep).unwrap().links;
    let first = links("latency=5us rate=1Gbit", &[(0, 1, "loss=1%")]);
    assert_eq!(set(&first, true), first);
    let second = links("rate=2Gbit", &[(0, 1, "header=24"), (1, 0, "loss=2%")]);
    let both = links(
        "latency=5us rate=2Gbit",
        &[(0, 1, "loss=1% header=24"), (1, 0, "loss=2%")],
    );
    assert_eq!(set(&second, true), both);
    assert_eq!(set(&second, false), second);
    assert_eq!(set(&DomainLinks::default(), false), DomainLinks::default());
}

#[test]
fn single_links_end_alone_or_with_all() {
    let pair = |from, to| Pair {
        from: NodeId(from),
        to: NodeId(to),
    };
    let mut directory = blue_of(&[0, 1, 2]);
    let none = |pair: Option<&str>| DirectoryError::NoLink {
        domain: "blue".into(),
        pair: pair.map(Into::into),
    };
    assert_eq!(directory.remove_links("blue", &[]), Err(none(None)));
    let all = links("latency=5us", &[(0, 1, "loss=1%"), (1, 0, "loss=1%")]);
    directory.set_links("blue", &all, true).unwrap();
    let missing = directory.remove_links("blue", &[pair(0, 1), pair(2, 0)]);
    assert_eq!(missing, Err(none(Some("0,0,0 0,1,0"))), "and nothing ended");
    let rest = directory.remove_links("blue", &[pair(0, 1)]).unwrap().links;
    assert_eq!(rest, links("latency=5us", &[(1, 0, "loss=1%")]));
    assert!(
        directory
            .remove_links("blue", &[])
            .unwrap()
            .links
            .is_empty()
    );
}

#[test]
fn a_single_link_ends_with_the_membership_of_either_node() {
    let mut directory = blue_of(&[0, 1, 2]);
    let all = links(
        "latency=5us",
        &[(0, 1, "loss=1%"), (1, 2, "loss=1%"), (2, 0, "loss=1%")],
    );
    directory.set_links("blue", &all, true).unwrap();
    let rest = directory.shrink("blue", &nodes(&[0])).unwrap().domain.links;
    assert_eq!(rest, links("latency=5us", &[(1, 2, "loss=1%")]));
    directory.grow("blue", &nodes(&[0])).unwrap();
    assert_eq!(directory.domain("blue").unwrap().links, rest);
}

#[test]
fn impossible_links_are_refused() {
    let mut directory = blue_of(&[0, 1]);
    let before = directory.records();
    let mut refused = |wanted: &DomainLinks| directory.set_links("blue", wanted, true).unwrap_err();
    assert_eq!(
        refused(&links("", &[(0, 7, "loss=1%")])),
        DirectoryError::NotMembers {
            domain: "blue".into(),
            nodes: "1,1,1".into()
        }
    );
    let alone = refused(&links("", &[(1, 1, "loss=1%")]));
    assert_eq!(alone, DirectoryError::Link(LinkError::Loop));
    let jitter = refused(&links("latency=5us", &[(0, 1, "jitter=6us")]));
    let is_jitter = matches!(
        &jitter,
        DirectoryError::Link(LinkError::JitterAboveLatency { .. })
    );
    assert!(is_jitter, "{jitter}");
    assert_eq!(directory.records(), before);

    let mut directory = Directory::new("16x16x1".parse().unwrap());
    directory
        .create(wanted("blue", &(0..256).collect::<Vec<_>>()))
        .unwrap();
    let pairs =
        (0..256_u32).flat_map(|from| (0..17).map(move |n| (from, (from + n + 1) % 256, "loss=1%")));
    let many: Vec<_> = pairs.collect();
    directory
        .set_links("blue", &links("", &many[..MAX_LINKS]), true)
        .unwrap();
    let more = directory.set_links("blue", &links("", &many[MAX_LINKS..=MAX_LINKS]), true);
    assert_eq!(more, Err(DirectoryError::TooManyLinks("blue".into())));
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
