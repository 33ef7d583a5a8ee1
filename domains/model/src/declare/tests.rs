//! Files good and bad, and what becomes of them.

use proptest::prelude::*;

use super::*;
use crate::directory::{members, members_with};
use crate::quota::Resource;

fn around() -> Surroundings<'static> {
    Surroundings {
        torus: "4x4x4".parse().unwrap(),
        aliases: [("head".into(), place("0,0,0"))].into(),
        user: &|name| (name == "alice").then_some(1000),
    }
}

fn place(text: &str) -> Place {
    text.parse().unwrap()
}

fn places(texts: &[&str]) -> BTreeSet<Place> {
    texts.iter().map(|text| place(text)).collect()
}

#[track_caller]
fn good(text: &str) -> Declaration {
    parse(text, &around()).unwrap_or_else(|problems| panic!("{problems:?}"))
}

fn problems(text: &str) -> Vec<String> {
    let problems = parse(text, &around()).expect_err("something is wrong");
    problems.iter().map(ToString::to_string).collect()
}

#[track_caller]
fn is_wrong(text: &str, line: usize, words: &[&str]) {
    let problems = problems(text);
    let [problem] = &problems[..] else {
        panic!("one problem was expected: {problems:#?}");
    };
    for word in words.iter().chain([&&*format!("line {line}: ")]) {
        assert!(problem.contains(word), "no \"{word}\" in {problem}");
    }
}

const FULL: &str = r#"
[domain.blue]
nodes = ["0-1,0,0", "db", "head"]
limited = ["1,0,0"]
plain = ["db"]
stacks = ["db"]
managers = ["0,0,0"]
public = true
forward = true
subnet = "10.64.3.0/24"
mtu = 1500
owner = "alice"

[domain.empty]
nodes = []

[gateway.blue]
node = "head"
uplink = "eth1"
kind = "bridge"

[alias]
db = "3,3,3"

[owner]
"*,1,0" = "alice"
"0,0,0" = 7

[quota.alice]
domains = 8
bytes = 4_294_967_296

[quota."0-1,3,0"]
rings = 0
"#;

#[test]
fn every_key_is_read() {
    let declaration = good(FULL);
    let blue = Declared {
        lines: DeclaredLines {
            domain: 2,
            subnet: 10,
            mtu: 11,
        },
        members: members(
            &places(&["0,0,0", "1,0,0", "3,3,3"]),
            &places(&["1,0,0"]),
            &places(&["3,3,3"]),
            &places(&["3,3,3"]),
        ),
        managers: places(&["0,0,0"]),
        public: true,
        forward: true,
        subnet: Some("10.64.3.0/24".parse().unwrap()),
        mtu: Some(1500),
        owner: Some(1000),
    };
    let empty = Declared {
        lines: DeclaredLines {
            domain: 14,
            ..DeclaredLines::default()
        },
        ..Declared::default()
    };
    let domains = [("blue".into(), blue), ("empty".into(), empty)].into();
    assert_eq!(declaration.domains, domains);
    let gateway = DeclaredGateway {
        node: place("0,0,0"),
        uplink: "eth1".into(),
        kind: GatewayKind::Bridge,
    };
    assert_eq!(declaration.gateways, [("blue".into(), gateway)].into());
    assert_eq!(declaration.aliases, [("db".into(), place("3,3,3"))].into());
    let owned = ["0,1,0", "1,1,0", "2,1,0", "3,1,0"].map(|text| (place(text), 1000));
    let mut owners = BTreeMap::from(owned);
    owners.insert(place("0,0,0"), 7);
    assert_eq!(declaration.owners, owners);
    let alice = Amounts::from([(Resource::Domains, 8), (Resource::Bytes, 4 << 30)]);
    let mut quotas = BTreeMap::from([(Holder::User(1000), alice)]);
    for node in ["0,3,0", "1,3,0"] {
        quotas.insert(Holder::Node(place(node)), [(Resource::Rings, 0)].into());
    }
    assert_eq!(declaration.quotas, quotas);
}

#[test]
fn the_documented_file_is_a_good_one() {
    let text = include_str!("../../../../docs/operating.md");
    let file = text.split("```toml\n").nth(1).unwrap();
    let file = good(file.split("```").next().unwrap());
    assert_eq!(file.domains["blue"].members.len(), 5);
    assert_eq!(file.owners.len(), 4);
}

#[test]
fn what_is_wrong_is_named_with_its_line() {
    is_wrong("[domain.blue]\nnodse = []\n", 2, &["nodse", "\"nodes\"?"]);
    is_wrong("\n\n[domian.blue]\n", 3, &["domian", "\"domain\"?"]);
    is_wrong(
        "frobnicate = 1\n",
        1,
        &["frobnicate", "domain, gateway, alias"],
    );
    is_wrong("[domain.blue]\nnodes = \"0,0,0\"\n", 2, &["list", "string"]);
    is_wrong("[domain.blue]\nnodes = [1]\n", 2, &["text in quotes"]);
    is_wrong(
        "[domain.blue]\nnodes = [\n \"0,0,0\",\n \"9,0,0\"]\n",
        4,
        &["9,0,0", "4x4x4"],
    );
    is_wrong(
        "[domain.blue]\nnodes = [\"tail\"]\n",
        2,
        &["tail", "node ls"],
    );
    is_wrong(
        "[domain.blue]\nnodes = [\"@red\"]\n",
        2,
        &["name the nodes"],
    );
    is_wrong(
        "[domain.blue]\nlimited = [\"0,0,0\"]\n",
        2,
        &["0,0,0 is limited", "add it"],
    );
    is_wrong("[domain.blue]\nmtu = 100\n", 2, &["100", "1280"]);
    is_wrong("[domain.blue]\nmtu = -1\n", 2, &["-1"]);
    is_wrong(
        "[domain.blue]\nmtu = 99999999999999999999\n",
        2,
        &["99999999999999999999"],
    );
    is_wrong("[domain.blue]\nmtu = \"9000\"\n", 2, &["number"]);
    is_wrong("[domain.blue]\npublic = 1\n", 2, &["true or false"]);
    is_wrong(
        "[domain.blue]\nsubnet = \"10.64.0.0\"\n",
        2,
        &["a.b.c.d/len"],
    );
    is_wrong(
        "[domain.blue]\nsubnet = \"10.64.0.0/30\"\n",
        2,
        &["64 nodes"],
    );
    is_wrong("[domain.blue]\nowner = \"bob\"\n", 2, &["bob"]);
    is_wrong("[domain.lo]\n", 1, &["\"lo\""]);
    is_wrong("[domain]\nblue = 1\n", 2, &["table"]);
    is_wrong("[alias]\n\"a b\" = \"0,0,0\"\n", 2, &["a b"]);
    is_wrong("[alias]\ndb = \"7,0,0\"\n", 2, &["7,0,0"]);
    is_wrong("[alias]\ndb = \"head\"\n", 2, &["head", "x,y,z"]);
    is_wrong(
        "[owner]\n\"0,0,0\" = 1\n\"0-1,0,0\" = 2\n",
        3,
        &["0,0,0", "two owners"],
    );
    let gateway = "[gateway.blue]\nnode = \"0,0,0\"\n";
    is_wrong(gateway, 1, &["gateway blue", "uplink"]);
    let stack = "[domain.blue]\nnodes = [\"0,0,0\"]\nstacks = [\"0,0,0\"]\n";
    let translated = format!("{stack}{gateway}uplink = \"eth1\"\n");
    is_wrong(&translated, 5, &["stack", "bridge"]);
    good(&format!("{translated}kind = \"bridge\"\n"));
    is_wrong(&format!("{gateway}uplink = \"eth*\"\n"), 3, &["eth*"]);
    is_wrong(
        &format!("{gateway}uplink = \"eth1\"\nkind = \"router\"\n"),
        4,
        &["\"nat\" or \"bridge\""],
    );
    is_wrong(
        &format!("[domain.blue]\nnodes = [\"1,0,0\"]\n{gateway}uplink = \"eth1\"\n"),
        4,
        &["0,0,0", "blue", "add it"],
    );
    is_wrong(
        &format!(
            "{gateway}uplink = \"eth1\"\n[gateway.red]\nnode = \"0,0,0\"\nuplink = \"eth1\"\n"
        ),
        6,
        &["eth1", "blue"],
    );
    is_wrong(
        "[gateway.blue]\nnode = \"*,0,0\"\nuplink = \"eth1\"\n",
        2,
        &["4 nodes"],
    );
    is_wrong("[quota.bob]\nrings = 1\n", 1, &["bob"]);
    is_wrong("[quota.alice]\nring = 1\n", 2, &["ring", "\"rings\"?"]);
    is_wrong("[quota.alice]\nrings = \"4G\"\n", 2, &["number"]);
    is_wrong("[quota.alice]\n[quota.1000]\n", 1, &["1000", "two quotas"]);
    is_wrong("[domain.blue]\nnodes = [\n", 2, &[]);
    is_wrong("[domain.blue]\n[domain.blue]\n", 2, &["blue"]);
    is_wrong("\u{0}", 1, &[]);
}

#[test]
fn what_is_nested_too_deeply_is_refused() {
    let text = format!("domain = {}", "[".repeat(100_000));
    assert_eq!(parse(&text, &around()).unwrap_err()[0].line, 1);
}

#[test]
fn all_problems_are_reported_in_order() {
    let text = "[domain.blue]\nmtu = 1\nnodes = [\"9,9,9\"]\n[own]\n";
    let lines: Vec<usize> = parse(text, &around())
        .unwrap_err()
        .iter()
        .map(|problem| problem.line)
        .collect();
    assert_eq!(lines, [2, 3, 4]);
}

fn steps(present: &str, wanted: &str, prune: bool) -> Vec<String> {
    let plan = plan(&good(present), &good(wanted), prune).unwrap();
    plan.iter().map(ToString::to_string).collect()
}

#[test]
fn taking_comes_before_giving() {
    let present = "[domain.a]\nnodes = [\"0,0,0\"]\n[domain.b]\nnodes = [\"1,0,0\", \"2,0,0\"]\n\
                   managers = [\"1,0,0\"]\n[domain.old]\nnodes = []\n";
    let wanted = "[domain.a]\nnodes = [\"0,0,0\", \"1,0,0\"]\n[domain.b]\nnodes = [\"2,0,0\"]\n\
                  limited = [\"2,0,0\"]\n[domain.new]\nnodes = [\"3,0,0\"]\nmtu = 1500\n\
                  managers = [\"3,0,0\"]\n[alias]\ndb = \"3,0,0\"\n[owner]\n\"3,0,0\" = 5\n";
    let expected = [
        "1,0,0 no longer manage b",
        "shrink b by 1,0,0 2,0,0",
        "remove old",
        "give 3,0,0 to uid 5",
        "name 3,0,0 db",
        "grow a by 1,0,0",
        "grow b by limited members 2,0,0",
        "create new of 3,0,0, mtu 1500",
        "let 3,0,0 manage new",
    ];
    assert_eq!(steps(present, wanted, true), expected);
    let without_prune = steps(present, wanted, false);
    assert!(!without_prune.iter().any(|step| step.contains("old")));
}

#[test]
fn names_move_and_are_pruned() {
    let present = "[domain.a]\nnodes = []\n[alias]\ndb = \"0,0,0\"\nweb = \"1,0,0\"\n";
    let wanted = "[domain.a]\nnodes = []\n[alias]\ndb = \"1,0,0\"\n";
    let moved = ["nobody is named db", "name 1,0,0 db"];
    assert_eq!(steps(present, wanted, false), moved);
    let pruned = ["nobody is named db", "nobody is named web", "name 1,0,0 db"];
    assert_eq!(steps(present, wanted, true), pruned);
    let only_names = "[alias]\nweb = \"1,0,0\"\n";
    assert_eq!(steps(only_names, "", true), [""; 0]);
}

#[test]
fn a_gateway_that_loses_its_node_on_the_way_is_connected_again() {
    let present = "[domain.a]\nnodes = [\"0,0,0\", \"1,0,0\"]\n[gateway.a]\nnode = \"0,0,0\"\n\
                   uplink = \"eth1\"\n";
    let domain = present.split("[gateway.a]").next().unwrap();
    assert_eq!(steps(present, domain, false), [""; 0]);
    assert_eq!(steps(present, domain, true), ["disconnect a at 0,0,0"]);
    let again = "connect a at 0,0,0 to eth1 (nat)";
    let limited = format!("{domain}limited = [\"0,0,0\"]\n");
    let turned = [
        "shrink a by 0,0,0",
        "grow a by limited members 0,0,0",
        again,
    ];
    assert_eq!(steps(present, &limited, false), turned);
    let other = present.replace("eth1", "eth2");
    let changed = ["disconnect a at 0,0,0", "connect a at 0,0,0 to eth2 (nat)"];
    assert_eq!(steps(present, &other, false), changed);
    let without = "[domain.a]\nnodes = [\"1,0,0\"]\n";
    assert_eq!(steps(present, without, false), ["shrink a by 0,0,0"]);
}

/// A guest that was taken out once could come back before the domain was closed, and a domain
/// that was to get another owner grew for the old one.
#[test]
fn a_domain_is_closed_and_given_away_before_anybody_joins() {
    let present = "[domain.a]\nnodes = [\"0,0,0\", \"1,0,0\"]\npublic = true\nowner = 5\n";
    let wanted = "[domain.a]\nnodes = [\"0,0,0\", \"2,0,0\"]\nowner = 6\n";
    let expected = [
        "change a, not public",
        "shrink a by 1,0,0",
        "change a, owner 6",
        "grow a by 2,0,0",
    ];
    assert_eq!(steps(present, wanted, false), expected);
}

/// Agents take nodes that get another owner out of everything.
#[test]
fn a_node_that_gets_another_owner_leaves_and_joins_again() {
    let present = "[domain.a]\nnodes = [\"0,0,0\", \"1,0,0\"]\nlimited = [\"1,0,0\"]\n\
                   managers = [\"1,0,0\"]\n[domain.b]\nnodes = [\"1,0,0\"]\n";
    let a = present.split("[domain.b]").next().unwrap();
    let expected = [
        "1,0,0 no longer manage a",
        "shrink a by 1,0,0",
        "shrink b by 1,0,0",
        "give 1,0,0 to uid 5",
        "grow a by limited members 1,0,0",
        "let 1,0,0 manage a",
    ];
    let wanted = format!("{a}[owner]\n\"1,0,0\" = 5\n");
    assert_eq!(steps(present, &wanted, false), expected);
}

/// `toroid dump | toroid apply --prune /dev/stdin` with a `dump` that fails once removed
/// everything.
#[test]
fn an_empty_file_prunes_nothing() {
    let present = good("[domain.a]\nnodes = [\"0,0,0\"]\n");
    let problems = plan(&present, &good(""), true).unwrap_err();
    assert!(problems[0].message.contains("--prune"), "{problems:?}");
    assert_eq!(plan(&good(""), &good(""), true).unwrap(), []);
    is_wrong(
        "[domain.a]\nmtu = 1500\n",
        1,
        &["a has no nodes", "nodes = []"],
    );
}

#[test]
fn what_no_step_can_change_is_refused() {
    let refused = |present: &str, wanted: &str, words: &[&str]| {
        let problems = plan(&good(present), &good(wanted), false).unwrap_err();
        assert_eq!(problems[0].line, 2, "that of the value");
        for word in words {
            assert!(problems[0].message.contains(word), "{problems:?}");
        }
    };
    let blue = |rest: &str| format!("[domain.blue]\n{rest}\nnodes = []\n");
    let red = |rest: &str| format!("[domain.red]\n{rest}\nnodes = []\n");
    refused(
        &blue("mtu = 9000"),
        &blue("mtu = 1500"),
        &["blue", "9000", "1500", "remove"],
    );
    let (a, b) = ("subnet = \"10.64.3.0/24\"", "subnet = \"10.64.0.0/16\"");
    refused(&blue(a), &blue(b), &["10.64.3.0/24", "10.64.0.0/16"]);
    refused(&blue(a), &red(b), &["red", "10.64.3.0/24", "blue"]);
}

/// A name that another node has moves with the file.
#[test]
fn an_alias_moves() {
    let file = good("[alias]\nhead = \"1,0,0\"\n[domain.a]\nnodes = [\"head\"]\n");
    let members = members_with(&file.domains["a"].members, |_| true);
    assert_eq!(members, places(&["1,0,0"]));
    let (before, after) = ("[alias]\nhead = \"0,0,0\"\n", "[alias]\nhead = \"1,0,0\"\n");
    let moved = ["nobody is named head", "name 1,0,0 head"];
    assert_eq!(steps(before, after, false), moved);
}

/// Mistakes of the file and what no step can do were once told in two runs.
#[test]
fn what_makes_sense_is_read_beside_what_does_not() {
    let text = "[domain.blue]\nnodes = []\nowner = \"bob\"\nmtu = 1500\n";
    let (file, problems) = read(text, &around());
    assert_eq!(problems.len(), 1);
    let present = good("[domain.blue]\nnodes = []\nmtu = 9000\n");
    let more = plan(&present, &file, false).unwrap_err();
    assert_eq!((problems[0].line, more[0].line), (3, 4));
}

#[test]
fn quotas_of_many_nodes_are_printed_together() {
    let all = good("[quota.\"*,*,*\"]\nrings = 8\n");
    assert_eq!(all.quotas.len(), 64);
    assert_eq!(all.to_string(), "[quota.\"0-3,0-3,0-3\"]\nrings = 8\n");
    let owned = good("[owner]\n\"0,0,0\" = 1000\n[quota.1000]\nrings = 8\n");
    let name = |uid| (uid == 1000).then(|| "alice".to_owned());
    let text = owned.text(&name);
    assert_eq!(
        text,
        "[owner]\n\"0,0,0\" = 1000  # alice\n\n[quota.\"1000\"]  # alice\nrings = 8\n"
    );
    assert_eq!(good(&text), owned);
}

fn declarations() -> impl Strategy<Value = Declaration> {
    let nodes = || prop::collection::btree_set(0..64u32, 0..20);
    let sets = (nodes(), nodes(), nodes(), nodes(), nodes());
    let domain = (sets, any::<bool>(), 0..4u32);
    let name = prop::sample::select(vec!["blue", "red", "a-b", "n0"]);
    let domains = prop::collection::btree_map(name.clone(), domain, 0..4);
    let aliases = prop::collection::btree_map(name, 0..64u32, 0..3);
    let owners = prop::collection::btree_map(0..64u32, 0..9u32, 0..9);
    let resources = prop::sample::select(Resource::ALL.to_vec());
    let limits = prop::collection::btree_map(resources, 0..9u64, 1..4);
    let quotas = prop::collection::btree_map((any::<bool>(), 0..64u32), limits, 0..3);
    (domains, aliases, owners, quotas).prop_map(|(domains, aliases, owners, quotas)| {
        let place = |n: u32| around().torus.place(toroid_fabric::NodeId(n)).unwrap();
        type Set = BTreeSet<u32>;
        type Parts = ((Set, Set, Set, Set, Set), bool, u32);
        let domain = |((nodes, limited, plain, stacks, managers), public, owner): Parts| Declared {
            public,
            forward: public != (owner % 2 == 0),
            owner: Some(owner),
            members: members(
                &nodes,
                &(&nodes & &limited),
                &(&nodes & &plain),
                &(&nodes & &stacks),
            )
            .into_iter()
            .map(|(n, spec)| (place(n), spec))
            .collect(),
            managers: managers.iter().map(|n| place(*n)).collect(),
            ..Declared::default()
        };
        let domains: BTreeMap<String, Declared> = domains
            .into_iter()
            .map(|(name, parts)| (name.into(), domain(parts)))
            .collect();
        let gateway = |(name, domain): (&String, &Declared)| {
            let (node, spec) = domain.members.first_key_value()?;
            let gateway = DeclaredGateway {
                node: *node,
                uplink: format!("to-{name}"),
                kind: if spec.userspace_stack {
                    GatewayKind::Bridge
                } else {
                    GatewayKind::Nat
                },
            };
            (!domain.public).then(|| (name.clone(), gateway))
        };
        Declaration {
            gateways: domains.iter().filter_map(gateway).collect(),
            domains,
            aliases: aliases
                .into_iter()
                .map(|(alias, n)| (alias.into(), place(n)))
                .collect(),
            owners: owners.into_iter().map(|(n, uid)| (place(n), uid)).collect(),
            quotas: quotas
                .into_iter()
                .map(|((is_user, n), limits)| {
                    if is_user {
                        (Holder::User(n), limits)
                    } else {
                        (Holder::Node(place(n)), limits)
                    }
                })
                .collect(),
        }
    })
}

/// What agents do with the requests that steps become.
fn carry_out(present: &mut Declaration, step: &Step) {
    match step {
        Step::Revoke { domain, nodes } => {
            let domain = present.domains.get_mut(domain).unwrap();
            domain.managers = &domain.managers - &nodes.0;
        }
        Step::Shrink { domain, nodes } => {
            let name_of = domain;
            let domain = present.domains.get_mut(domain).unwrap();
            for node in &nodes.0 {
                assert!(domain.members.remove(node).is_some());
            }
            present
                .gateways
                .retain(|name, gateway| name != name_of || !nodes.0.contains(&gateway.node));
        }
        Step::Remove { domain } => {
            assert!(present.domains.remove(domain).is_some());
            present.gateways.remove(domain);
        }
        Step::Connect {
            domain,
            node,
            uplink,
            kind,
        } => {
            assert!(present.domains[domain].members.contains_key(node));
            let gateway = DeclaredGateway {
                node: *node,
                uplink: uplink.clone(),
                kind: *kind,
            };
            assert_eq!(present.gateways.insert(domain.clone(), gateway), None);
        }
        Step::Disconnect { domain, .. } => assert!(present.gateways.remove(domain).is_some()),
        Step::Own { nodes, owner } => {
            let owned = nodes.0.iter().map(|place| (*place, *owner));
            present.owners.extend(owned);
            present.aliases.retain(|_, place| !nodes.0.contains(place));
            for domain in present.domains.values() {
                assert!(!domain.members.keys().any(|node| nodes.0.contains(node)));
                assert!(domain.managers.is_disjoint(&nodes.0));
            }
        }
        Step::Limit { holder, limits } => {
            let amounts = present.quotas.entry(*holder).or_default();
            for (resource, limit) in limits {
                match limit {
                    Some(limit) => amounts.insert(*resource, *limit),
                    None => amounts.remove(resource),
                };
            }
        }
        Step::Unalias { alias } => {
            assert!(present.aliases.remove(alias).is_some());
        }
        Step::Alias { alias, node } => {
            present.aliases.insert(alias.clone(), *node);
        }
        Step::Create {
            domain,
            nodes,
            limited,
            plain,
            stacks,
            public,
            owner,
            ..
        } => {
            let new = Declared {
                members: members(&nodes.0, &limited.0, &plain.0, &stacks.0),
                public: *public,
                owner: owner.or(Some(0)),
                ..Declared::default()
            };
            assert_eq!(present.domains.insert(domain.clone(), new), None);
        }
        Step::Set {
            domain,
            public,
            forward,
            owner,
        } => {
            let domain = present.domains.get_mut(domain).unwrap();
            domain.public = public.unwrap_or(domain.public);
            domain.forward = forward.unwrap_or(domain.forward);
            domain.owner = owner.or(domain.owner);
        }
        Step::Grow {
            domain,
            nodes,
            spec,
        } => {
            let domain = present.domains.get_mut(domain).unwrap();
            for node in &nodes.0 {
                assert_eq!(domain.members.insert(*node, *spec), None);
            }
        }
        Step::Manage { domain, nodes } => {
            let domain = present.domains.get_mut(domain).unwrap();
            domain.managers.extend(&nodes.0);
        }
    }
}

proptest! {
    #[test]
    fn the_steps_lead_there(present in declarations(), wanted in declarations()) {
        prop_assume!(!wanted.domains.is_empty());
        let mut now = present.clone();
        for step in plan(&present, &wanted, true).unwrap() {
            carry_out(&mut now, &step);
        }
        prop_assert_eq!(&now.domains, &wanted.domains);
        prop_assert_eq!(&now.gateways, &wanted.gateways);
        for (alias, place) in &wanted.aliases {
            prop_assert_eq!(now.aliases.get(alias), Some(place));
        }
        for (holder, limits) in &wanted.quotas {
            prop_assert_eq!(now.quotas.get(holder), Some(limits));
        }
        prop_assert_eq!(plan(&now, &wanted, true).unwrap(), []);
    }

    #[test]
    fn what_was_printed_is_read_again(declaration in declarations()) {
        let text = declaration.to_string();
        let mut read = good(&text);
        for domain in read.domains.values_mut() {
            domain.lines = DeclaredLines::default();
        }
        prop_assert_eq!(&read, &declaration);
        prop_assert_eq!(plan(&declaration, &read, true).unwrap(), []);
    }

    #[test]
    fn no_slip_in_a_good_file_makes_it_panic(
        at in 0..FULL.len(),
        len in 0..8usize,
        typed in "[\\PC\n]{0,4}",
    ) {
        let text: String = FULL.chars().take(at).collect();
        let rest: String = FULL.chars().skip(at + len).collect();
        if let Err(problems) = parse(&format!("{text}{typed}{rest}"), &around()) {
            prop_assert!(!problems.is_empty());
        }
    }

    #[test]
    fn no_text_makes_it_panic(text in "[\\[\\]a-z=\"0-9,@*{}.\n -]{0,80}") {
        let _ = parse(&text, &around());
    }
}
