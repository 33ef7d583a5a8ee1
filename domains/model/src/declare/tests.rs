//! Valid and invalid files, and the steps to them.

mod generated;

use super::*;
use crate::directory::{members, members_with};
use crate::ethernet::EthernetPath;
use crate::gateway::GatewayKind;
use crate::link::DomainLinks;
use crate::quota::Resource;

fn around() -> Surroundings<'static> {
    Surroundings {
        torus: "4x4x4".parse().unwrap(),
        hosts: BTreeMap::new(),
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

/// A mistake in the first key of domain blue.
#[track_caller]
fn in_blue(text: &str, words: &[&str]) {
    is_wrong(&format!("[domain.blue]\n{text}\n"), 2, words);
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
sealed = true
fence = 10
ethernet = "driver"
subnet = "10.64.3.0/24"
capacity = 60
mtu = 1500
owner = "alice"

[domain.blue.rate]
"0-1,0,0" = "1Gbit"
db = "125KB/s"

[domain.blue.link]
latency = "5us"
[domain.blue.link."head>db"]
rate = "1Gbit"
header = 24

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
            subnet: 13,
            capacity: 14,
            mtu: 15,
        },
        members: members(
            &places(&["0,0,0", "1,0,0", "3,3,3"]),
            &places(&["1,0,0"]),
            &places(&["3,3,3"]),
            &places(&["3,3,3"]),
            &[("0,0,0", "1Gbit"), ("1,0,0", "1Gbit"), ("3,3,3", "1Mbit")]
                .map(|(node, rate)| (place(node), rate.parse().unwrap()))
                .into(),
        ),
        managers: places(&["0,0,0"]),
        public: true,
        forward: true,
        sealed: true,
        fence: Some(10),
        ethernet: EthernetPath::Driver,
        subnet: Some("10.64.3.0/24".parse().unwrap()),
        capacity: Some(60),
        mtu: Some(1500),
        owner: Some(1000),
        links: DomainLinks {
            default: "latency=5us".parse().unwrap(),
            pairs: [(
                "0,0,0>3,3,3".parse().unwrap(),
                "rate=1Gbit header=24".parse().unwrap(),
            )]
            .into(),
        },
    };
    let empty = Declared {
        lines: DeclaredLines {
            domain: 28,
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
    assert_eq!(
        declaration.gateways,
        [("blue".into(), vec![gateway])].into()
    );
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
fn mistakes_are_reported_with_their_line() {
    in_blue("nodse = []", &["nodse", "\"nodes\"?"]);
    is_wrong("\n\n[domian.blue]\n", 3, &["domian", "\"domain\"?"]);
    is_wrong(
        "frobnicate = 1\n",
        1,
        &["frobnicate", "domain, gateway, alias"],
    );
    in_blue("nodes = \"0,0,0\"", &["list", "string"]);
    in_blue("nodes = [1]", &["text in quotes"]);
    is_wrong(
        "[domain.blue]\nnodes = [\n \"0,0,0\",\n \"9,0,0\"]\n",
        4,
        &["9,0,0", "4x4x4"],
    );
    in_blue("nodes = [\"tail\"]", &["tail", "node ls"]);
    in_blue("nodes = [\"@red\"]", &["name the nodes"]);
    in_blue("limited = [\"0,0,0\"]", &["0,0,0 is limited", "add it"]);
    in_blue("mtu = 100", &["100", "1280"]);
    in_blue("mtu = -1", &["-1"]);
    in_blue("mtu = 99999999999999999999", &["99999999999999999999"]);
    in_blue("mtu = \"9000\"", &["number"]);
    in_blue("public = 1", &["true or false"]);
    in_blue("subnet = \"10.64.0.0\"", &["a.b.c.d/len"]);
    in_blue("subnet = \"10.64.0.0/30\"", &["64 nodes"]);
    in_blue("owner = \"bob\"", &["bob"]);
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
        &["*,0,0", "name one"],
    );
    let link = |text: &str| {
        format!("[domain.blue]\nnodes = [\"0,0,0\", \"1,0,0\"]\n[domain.blue.link]\n{text}\n")
    };
    let in_link = |text: &str, words: &[&str]| is_wrong(&link(text), 4, words);
    in_link("latancy = \"5us\"", &["latancy"]);
    in_link("latency = \"5 parsecs\"", &["5 parsecs", "5us"]);
    in_link("latency = true", &["text in quotes"]);
    in_link("\"0,0,0>2,0,0\" = {}", &["2,0,0", "add it"]);
    in_link("\"0,0,0>0,0,0\" = {}", &["two different nodes"]);
    in_link("\"0,0,0>*,0,0\" = {}", &["*,0,0", "name one"]);
    in_link("\"0,0,0>1,0,0\" = 5", &["table"]);
    is_wrong(&link("jitter = \"2us\""), 3, &["jitter", "latency"]);
    is_wrong("[quota.bob]\nrings = 1\n", 1, &["bob"]);
    is_wrong("[quota.alice]\nring = 1\n", 2, &["ring", "\"rings\"?"]);
    is_wrong("[quota.alice]\nrings = \"4G\"\n", 2, &["number"]);
    is_wrong("[quota.alice]\n[quota.1000]\n", 1, &["1000", "two quotas"]);
    in_blue("nodes = [", &[]);
    in_blue("[domain.blue]", &["blue"]);
    is_wrong("\u{0}", 1, &[]);
}

#[test]
fn deeply_nested_values_are_refused() {
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

/// A gateway of domain a, as one of several.
fn one_of(node: u32, uplink: &str) -> String {
    format!("[[gateway.a]]\nnode = \"{node},0,0\"\nuplink = \"{uplink}\"\n")
}

#[test]
fn the_order_of_gateways_is_that_of_the_file() {
    let domain = "[domain.a]\nnodes = [\"0-2,0,0\"]\n";
    let file = |order: &[u32]| {
        let all = order
            .iter()
            .map(|node| one_of(*node, &format!("eth{node}")));
        domain.to_owned() + &all.collect::<String>()
    };
    let out = |node| format!("disconnect a at {node},0,0");
    let on = |node| format!("connect a at {node},0,0 to eth{node} (nat)");
    let from_to = |from: &[u32], to: &[u32]| steps(&file(from), &file(to), false);
    assert_eq!(from_to(&[0, 1], &[0, 1]), [""; 0]);
    assert_eq!(from_to(&[0], &[0, 1]), [on(1)]);
    assert_eq!(from_to(&[0, 1, 2], &[0, 2]), [out(1)]);
    assert_eq!(from_to(&[0, 1], &[1, 0]), [out(0), on(0)]);
    assert_eq!(
        from_to(&[1, 2], &[0, 1, 2]),
        [on(0), out(1), on(1), out(2), on(2)]
    );
    assert_eq!(steps(&file(&[0, 1]), domain, false), [""; 0]);
    assert_eq!(steps(&file(&[0, 1]), domain, true), [out(0), out(1)]);
    // The first ends with its membership, and comes back as the first.
    let limited = format!("{domain}limited = [\"0,0,0\"]\n");
    let turned = steps(&file(&[0, 1]), &limited, false);
    assert_eq!(turned[0], "shrink a by 0,0,0");
    assert_eq!(turned[2..], [on(0), out(1), on(1)]);
    let read = good(&file(&[2, 0]));
    assert_eq!(good(&read.to_string()).gateways, read.gateways);
}

#[test]
fn gateways_that_a_domain_cannot_have_are_refused() {
    let two = |first: String, second: &str| first + second;
    let at_one = two(one_of(0, "eth0"), &one_of(0, "eth1"));
    is_wrong(&at_one, 5, &["0,0,0", "twice"]);
    let bridge = one_of(1, "eth1") + "kind = \"bridge\"\n";
    is_wrong(&two(one_of(0, "eth0"), &bridge), 5, &["bridge", "loop"]);
    is_wrong(
        &two(one_of(0, "eth0"), &one_of(1, "eth0")),
        6,
        &["eth0", "uplink"],
    );
    // Of another host it is another one.
    let mut around = around();
    around.hosts = [(place("1,0,0"), "b".to_owned())].into();
    let same_name = two(one_of(0, "eth0"), &one_of(1, "eth0"));
    assert_eq!(parse(&same_name, &around).unwrap().gateways["a"].len(), 2);
}

#[test]
fn links_follow_the_members_and_are_given_as_a_whole() {
    let domain = "[domain.a]\nnodes = [\"0,0,0\", \"1,0,0\"]\n";
    let link =
        "[domain.a.link]\nlatency = \"5us\"\n[domain.a.link.\"0,0,0>1,0,0\"]\nloss = \"1%\"\n";
    let present = format!("{domain}{link}");
    let given = "link a: latency=5us 0,0,0>1,0,0 loss=1%";
    assert_eq!(steps(domain, &present, false), [given]);
    assert_eq!(
        steps("", &present, false),
        ["create a of 0,0,0 1,0,0", given]
    );
    assert_eq!(
        steps(&present, domain, false),
        ["link a: as the machine has it"]
    );
    assert_eq!(steps(&present, &present, false), [""; 0]);
    // The single link ends with the membership of its node.
    let limited = format!("{domain}limited = [\"1,0,0\"]\n{link}");
    let again = [
        "shrink a by 1,0,0",
        "grow a by limited members 1,0,0",
        given,
    ];
    assert_eq!(steps(&present, &limited, false), again);
}

/// Members stay in the domain. A rate that falls is one that is taken.
#[test]
fn a_rate_changes_without_a_shrink() {
    let nodes = "nodes = [\"0-3,0,0\"]\n";
    let domain = |rates: &str| format!("[domain.a]\n{nodes}[domain.a.rate]\n{rates}");
    let present = domain("\"0-1,0,0\" = \"1Gbit\"\n\"2,0,0\" = \"1Mbit\"\n");
    assert_eq!(
        steps("", &present, false),
        ["create a of 0,0,0 1,0,0 2,0,0 3,0,0 with 1Mbit for 2,0,0 with 1Gbit for 0,0,0 1,0,0"]
    );
    let wanted = domain("\"0,0,0\" = \"2Gbit\"\n\"2-3,0,0\" = \"100Kbit\"\n")
        .replace("0-3,0,0", "0-3,0-1,0");
    let changed = [
        "limit 2,0,0 3,0,0 in a to 100Kbit",
        "lift the rate of 1,0,0 in a",
        "limit 0,0,0 in a to 2Gbit",
        "grow a by 0,1,0 1,1,0 2,1,0 3,1,0",
    ];
    assert_eq!(steps(&present, &wanted, false), changed);
    assert_eq!(steps(&present, &present, true), [""; 0]);
    let limited = present.replace(nodes, &format!("{nodes}limited = [\"2,0,0\"]\n"));
    let again = [
        "shrink a by 2,0,0",
        "grow a by limited members 2,0,0 with 1Mbit",
    ];
    assert_eq!(steps(&present, &limited, false), again);
}

#[test]
fn a_rate_is_one_of_a_member() {
    let rate = |text: &str| format!("[domain.a]\nnodes = [\"0,0,0\"]\n[domain.a.rate]\n{text}\n");
    let is_wrong = |text: &str, words: &[&str]| is_wrong(&rate(text), 4, words);
    is_wrong("\"0,0,0\" = \"0Gbit\"", &["too low", "at least 64Kbit"]);
    is_wrong("\"0,0,0\" = \"7 apples\"", &["no rate", "10Gbit"]);
    is_wrong("\"0,0,0\" = 7", &["a text in quotes"]);
    is_wrong(
        "\"1,0,0\" = \"1Gbit\"",
        &["1,0,0 has a rate", "add it there"],
    );
    let twice = rate("\"0,0,0\" = \"1Gbit\"\nhead = \"2Gbit\"");
    super::tests::is_wrong(&twice, 5, &["two rates"]);
}

/// Regression: a former guest could join again before the domain was closed, and a domain grew for
/// its old owner before it changed hands.
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
fn impossible_changes_are_refused() {
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

/// Regression: mistakes of the file and impossible steps were reported in two runs.
#[test]
fn the_valid_part_of_a_file_is_read_beside_mistakes() {
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
