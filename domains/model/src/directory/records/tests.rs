use super::*;
use crate::directory::MemberSpec;
use crate::directory::revision::FabricId;
use crate::directory::sample::{nodes, owned, wanted};
use crate::link::Rate;
use crate::quota::Resource;

fn directory() -> Directory {
    let mut directory = Directory::new("2x2x2".parse().unwrap());
    for name in ["blue", "red", "gone"] {
        directory.create(owned(name, 1000, &[0, 1, 7])).unwrap();
    }
    directory.shrink("red", &nodes(&[1])).unwrap();
    directory.add_alias(NodeId(7), "db").unwrap();
    for (limited, no_offload, node) in [(true, false, 2), (true, true, 3), (false, true, 5)] {
        let spec = MemberSpec {
            limited,
            no_offload,
            userspace_stack: node == 5,
            rate: (node == 3).then_some(Rate(125_000_000)),
        };
        directory.admit("red", &nodes(&[node]), spec).unwrap();
    }
    directory.manage("red", &nodes(&[0]), false).unwrap();
    directory.set("red", Some(true), Some(true), None).unwrap();
    directory.give(&nodes(&[2, 3]), Some(1001));
    directory.consent(&nodes(&[3, 7]), "blue", false).unwrap();
    directory.consent(&nodes(&[4]), "gone", false).unwrap();
    let limits = [(Resource::Bytes, Some(1 << 20))].into();
    directory.limit(&[Tenant::User(1000), Tenant::Node(NodeId(7))], &limits);
    directory.claim("a", &nodes(&[0, 1])).unwrap();
    let address = "10.0.0.1:7470".parse().unwrap();
    directory.tell_address("a", address).unwrap();
    directory.remove("gone").unwrap();
    directory.begin_term(FabricId(1 << 127), u64::MAX);
    directory
}

/// Records of gateways that a domain cannot have.
const TWO_AT_A_NODE: &str = r#""gateway":{"node":0,"uplink":"a","kind":"nat"},"further_gateways":[
    {"node":0,"uplink":"b","kind":"nat"}],"mtu""#;
const TWO_BRIDGES: &str = r#""gateway":{"node":0,"uplink":"a","kind":"nat"},"further_gateways":[
    {"node":1,"uplink":"b","kind":"bridge"}],"mtu""#;

/// Releases with one gateway for each domain wrote that form, and one gateway still has it.
#[test]
fn a_record_with_one_gateway_is_read_and_written() {
    let mut records = directory().records();
    let one = r#""mtu":9000,"subnet":"10.64.0.0/24","members":[0,1,7],"gateway":{"node":7,"uplink":"eth1","kind":"nat"}"#;
    let record = records.get_mut("domain/blue").unwrap();
    let without = one.split(r#","gateway""#).next().unwrap();
    *record = record.replace(without, one);
    let mut directory = Directory::from_records(&records).unwrap();
    assert_eq!(directory.records(), records);
    let mut second = directory.domain("blue").unwrap().gateways[0].clone();
    (second.node, second.uplink) = (NodeId(0), "eth2".into());
    directory.add_gateway("blue", second).unwrap();
    let blue = &directory.records()["domain/blue"];
    assert!(blue.contains(r#""further_gateways":[{"node":0,"uplink":"eth2","kind":"nat"}]"#));
}

/// Directories are equal if their records are.
fn assert_same(a: &Directory, b: &Directory) {
    assert_eq!(a.records(), b.records());
}

#[test]
fn a_directory_comes_back_as_it_was() {
    let before = directory();
    let mut after = Directory::from_records(&before.records()).unwrap();
    assert_same(&before, &after);
    assert_eq!(after.domain("red").unwrap().epoch, 2);
    let next = after.create(wanted("next", &[])).unwrap().domain;
    assert_eq!(
        (next.id, next.subnet.to_string()),
        (4, "10.64.3.0/24".into())
    );
}

#[test]
fn changes_are_exactly_the_differences() {
    let before = directory();
    let mut after = before.clone();
    assert!(after.changes_since(&before).is_empty());
    after.grow("blue", &nodes(&[3])).unwrap();
    let changes = after.changes_since(&before);
    assert_eq!(changes.put.keys().collect::<Vec<_>>(), ["domain/blue"]);
    assert_eq!(
        changes,
        Changes::between(&before.records(), &after.records())
    );
    after.remove("red").unwrap();
    let changes = after.changes_since(&before);
    assert_eq!(changes.remove, ["domain/red".to_owned()].into());
    assert_eq!(
        changes,
        Changes::between(&before.records(), &after.records())
    );
}

#[test]
fn invalid_records_are_refused_and_named() {
    let sound = directory().records();
    let with = |key: &str, value: &str| {
        let mut records = sound.clone();
        records.insert(key.into(), value.into());
        Directory::from_records(&records).unwrap_err()
    };
    assert_eq!(with("format", "5"), RecordError::Newer { found: 5 });
    assert_eq!(with("x/y", "1"), RecordError::Unknown("x/y".into()));
    let blue = sound["domain/blue"].clone();
    let bad = [
        ("torus", "\"2x2\""),
        ("numbers", "{}"),
        ("alias/db", "8"),
        ("alias/1-0-0", "1"),
        ("node/8", "{}"),
        ("node/3", r#"{"consents":["gone"]}"#),
        ("node/x", "{}"),
        ("quota/node/8", "{}"),
        ("quota/user/x", "{}"),
        ("host/a", "[8]"),
        ("host/b", "[0]"),
        ("host/B", "[1]"),
        ("key/a", r#"["00"]"#),
        ("key/A", "[]"),
        ("address/a", "\"10.0.0.1\""),
        ("address/A", "\"10.0.0.1:7470\""),
        (
            "domain/blue",
            &blue.replace("\"mtu\"", "\"since\":{\"2\":1},\"mtu\""),
        ),
        ("quota/user/1000", r#"{"colours":3}"#),
        ("freed/x", "[3,4]"),
        ("revision", "{}"),
        ("partial", "1"),
        ("freed/00000000000000000007", "[1,4]"),
        ("freed/00000000000000000007", "[9,4]"),
        ("domain/blue", "{"),
        ("domain/Blue", &blue.replace(":1,", ":3,")),
        ("domain/other", &blue),
        ("domain/blue", &blue.replace("[0,1,7]", "[0,8]")),
        ("domain/blue", &blue.replace("9000", "9")),
        ("domain/blue", &blue.replace("\"epoch\":1", "\"epoch\":0")),
        ("domain/blue", &blue.replace("10.64.0.0", "10.64.1.0")),
        (
            "domain/blue",
            &blue.replace("[0,1,7]", "[0],\"limited\":[1]"),
        ),
        ("domain/blue", &blue.replace("[0,1,7]", "[0],\"plain\":[1]")),
        (
            "domain/blue",
            &blue.replace("[0,1,7]", "[0],\"stacks\":[1]"),
        ),
        (
            "domain/blue",
            &blue.replace("\"mtu\"", "\"colour\":1,\"mtu\""),
        ),
        (
            "domain/blue",
            &blue.replace(
                "\"mtu\"",
                r#""gateway":{"node":2,"uplink":"eth0","kind":"nat"},"mtu""#,
            ),
        ),
        (
            "domain/blue",
            &blue.replace(
                "\"mtu\"",
                r#""gateway":{"node":0,"uplink":"a\"b","kind":"nat"},"mtu""#,
            ),
        ),
        ("domain/blue", &blue.replace("\"mtu\"", TWO_AT_A_NODE)),
        ("domain/blue", &blue.replace("\"mtu\"", TWO_BRIDGES)),
    ];
    for (key, value) in bad {
        match with(key, value) {
            // The subnet's other owner may be the one that is read second.
            RecordError::Invalid { key: found, .. } => {
                assert!(
                    found == key || value.contains("10.64.1.0"),
                    "{found}: {value}"
                );
            }
            error => panic!("{key}: {error}"),
        }
    }
    for key in ["format", "torus", "numbers"] {
        let mut records = sound.clone();
        records.remove(key);
        let error = Directory::from_records(&records).unwrap_err();
        assert!(error.to_string().contains(key), "{error}");
    }
}

/// A follower reads only what has changed.
#[test]
fn changed_records_are_checked_as_all_are() {
    let mut old = Directory::new("2x2x2".parse().unwrap());
    old.create(wanted("blue", &[0, 1])).unwrap();
    old.create(wanted("red", &[1, 2])).unwrap();
    old.create(wanted("white", &[3])).unwrap();
    old.remove("white").unwrap();
    old.claim("a", &nodes(&[0, 1])).unwrap();
    old.claim("b", &nodes(&[2, 3])).unwrap();
    old.consent(&nodes(&[5]), "red", false).unwrap();
    let records = old.records();
    let [blue, red] = ["domain/blue", "domain/red"].map(|key| records[key].as_str());
    let (freed, node) = ("freed/00000000000000000001", "node/5");
    type Puts<'a> = &'a [(&'a str, &'a str)];
    let cases: [(Puts<'_>, &[&str], bool); 15] = [
        (&[], &[], true),
        (&[("domain/blue", red), ("domain/red", blue)], &[], true),
        (&[("domain/blue", red)], &[], false),
        (&[("domain/grey", red)], &["domain/red", node], true),
        (&[("domain/grey", red)], &["domain/red"], false),
        (&[], &["domain/red"], false),
        (&[(freed, "[1,1]")], &[], false),
        (&[(freed, "[1,1]")], &["domain/blue"], true),
        (&[("host/a", "[2]")], &[], false),
        (&[("host/a", "[2,3]"), ("host/b", "[0,1]")], &[], true),
        (&[("node/6", r#"{"consents":["grey"]}"#)], &[], false),
        (
            &[("numbers", r#"{"next_id":2,"next_subnet":0}"#)],
            &[],
            false,
        ),
        (
            &[("numbers", r#"{"next_id":9,"next_subnet":0}"#)],
            &[],
            true,
        ),
        (&[("torus", "\"1x1x1\"")], &[], false),
        (&[("alias/db", "7"), ("what", "0")], &["format"], false),
    ];
    for (put, remove, is_valid) in cases {
        let put = put
            .iter()
            .map(|(key, value)| (key.to_string(), value.to_string()));
        let changes = Changes {
            put: put.collect(),
            remove: remove.iter().map(ToString::to_string).collect(),
        };
        let mut all = records.clone();
        changes.apply_to(&mut all);
        let whole = Directory::from_records(&all).map(|directory| directory.records());
        let part = old.with(&changes).map(|directory| directory.records());
        assert_eq!(
            (whole.is_ok(), part.is_ok()),
            (is_valid, is_valid),
            "{changes:?}"
        );
        assert_eq!(whole.ok(), part.ok(), "{changes:?}");
    }
}

/// Each subnet once had an address for each node of the torus.
#[test]
fn domains_of_older_releases_keep_their_addresses() {
    let older = |subnet: &str| {
        let blue = format!(
            r#"{{"id":1,"epoch":3,"owner":0,"mtu":9000,"subnet":"{subnet}","members":[0,1087]}}"#
        );
        let records = [
            ("format", "1"),
            ("torus", "\"64x17x1\""),
            ("numbers", r#"{"next_id":2,"next_subnet":1}"#),
            ("domain/blue", &blue),
        ];
        records
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into()
    };
    let records: Records = older("10.64.0.0/21");
    let mut directory = Directory::from_records(&records).unwrap();
    assert_eq!(directory.records(), records);
    let all = (0..1088).map(NodeId).collect();
    directory.grow("blue", &all).unwrap();
    let blue = directory.domain("blue").unwrap();
    let address = |node| blue.address(NodeId(node)).unwrap().to_string();
    assert_eq!(
        [0, 1, 1087].map(address),
        ["10.64.0.1", "10.64.0.2", "10.64.4.64"]
    );
    assert_eq!(blue.capacity(), None);
    let next = directory.create(wanted("next", &[0])).unwrap().domain;
    assert_eq!(next.subnet.to_string(), "10.64.8.0/24");
    // A subnet that is too small for the torus came with no older release.
    assert!(Directory::from_records(&older("10.64.0.0/24")).is_err());
}

#[test]
fn addresses_by_index_are_checked() {
    let mut directory = Directory::new("64x17x1".parse().unwrap());
    directory.create(wanted("blue", &[5, 1087])).unwrap();
    directory.shrink("blue", &nodes(&[5])).unwrap();
    let sound = directory.records();
    let again = Directory::from_records(&sound).unwrap();
    assert_eq!(again.records(), sound);
    let blue = &sound["domain/blue"];
    let addresses = r#""addresses":{"5":0,"1087":1},"left":{"5":1}"#;
    assert!(blue.contains(addresses), "{blue}");
    for (bad, why) in [
        (r#""addresses":{"5":1,"1087":1}"#, "two nodes"),
        (r#""addresses":{"1087":254}"#, "beyond its subnet"),
        (r#""addresses":{"5":0}"#, "members without"),
        (r#""addresses":{"1088":0,"1087":1}"#, "which the torus"),
        (
            r#""addresses":{"1087":1},"left":{"5":1}"#,
            "have no addresses",
        ),
    ] {
        let mut records = sound.clone();
        records.insert("domain/blue".into(), blue.replace(addresses, bad));
        let error = Directory::from_records(&records).unwrap_err();
        assert!(error.to_string().contains(why), "{error}");
    }
    let mut records = sound.clone();
    records.insert("torus".into(), "\"8x8x1\"".into());
    records.insert("domain/blue".into(), blue.replace("1087", "6"));
    let error = Directory::from_records(&records).unwrap_err();
    assert!(
        error.to_string().contains("follow from its subnet"),
        "{error}"
    );
}
