//! Declared state, applied once or many times.

use std::fs;

use serde_json::{Value, json};
use tests::cluster::Cluster;
use tests::process::{Outcome, run_with};

const USAGE: i32 = 2;
const NOT_FOUND: i32 = 4;
const EXISTS: i32 = 5;

fn apply(cluster: &Cluster, text: &str, options: &str) -> Outcome {
    let file = cluster.files().join("cluster.toml");
    fs::write(&file, text).expect("it is ours");
    let name = file.to_str().expect("UTF-8");
    cluster.toroid(&format!("apply {name} {options}"))
}

fn state(cluster: &Cluster) -> [Value; 2] {
    [cluster.ask("domain ls"), cluster.ask("node ls")]
}

const FILE: &str = r#"
[domain.blue]
nodes = ["*,0,0", "db"]
limited = ["1,0,0", "db"]
managers = ["0,0,0"]
public = true
subnet = "10.64.9.0/24"
mtu = 1500

[domain.red]
nodes = ["0,1,0"]

[alias]
db = "1,1,0"

[owner]
"1,1,0" = 4711

[quota.4711]
rings = 8

[quota."0-1,0,0"]
bytes = 1_000_000
"#;

#[test]
fn a_file_becomes_what_is_and_what_is_becomes_a_file() {
    let cluster = Cluster::up("2x2x1");
    let before = state(&cluster);
    let would = apply(&cluster, FILE, "--dry-run").ok();
    assert!(
        would.text().contains("would create blue of 0,0,0"),
        "{would}"
    );
    assert_eq!(state(&cluster), before);

    apply(&cluster, FILE, "").ok();
    let blue = cluster.ask("domain show blue");
    assert_eq!((&blue["size"], &blue["mtu"]), (&3.into(), &1500.into()));
    assert_eq!(
        (&blue["public"], &blue["subnet"]),
        (&true.into(), &"10.64.9.0/24".into())
    );
    assert_eq!(blue["managers"], json!(["0,0,0"]));
    let limited = blue["members"].as_array().expect("a list");
    let limited = limited.iter().filter(|m| m["limited"] == true);
    let limited: Vec<_> = limited.map(|member| &member["node"]).collect();
    assert_eq!(limited, ["1,0,0", "1,1,0"]);
    cluster.reaches("0,0,0", "db.blue");
    let db = cluster.existing("blue").ipv4("1,1,0");
    cluster.cannot_reach("1,0,0", &db);

    // A name may move, and moves back.
    let moved = FILE.replace("db = \"1,1,0\"", "db = \"1,0,0\"");
    apply(&cluster, &moved, "").ok();
    let there = cluster.exec("0,0,0", "getent hosts db.blue").ok();
    assert!(
        there
            .text()
            .contains(&cluster.existing("blue").ipv6("1,0,0")),
        "{there}"
    );
    apply(&cluster, FILE, "").ok();

    let after = state(&cluster);
    let again = apply(&cluster, FILE, "--prune --json").ok().json();
    assert_eq!(
        again,
        json!({"changes": [], "applied": 0, "dry_run": false})
    );
    let dump = cluster.toroid("dump").ok();
    let stdin = &["apply", "/dev/stdin", "--prune"];
    let same = run_with(cluster.command("toroid").args(stdin), &dump.stdout).ok();
    assert_eq!(same.text(), "nothing to change");
    assert_eq!(state(&cluster), after);
    let dumped = cluster.ask("dump");
    assert_eq!(dumped["alias"], json!({"db": "1,1,0"}));
    assert_eq!(dumped["owner"], json!({"1,1,0": 4711}));
    let quotas = json!({
        "4711": {"rings": 8}, "0,0,0": {"bytes": 1_000_000}, "1,0,0": {"bytes": 1_000_000}
    });
    assert_eq!(dumped["quota"], quotas);
    assert_eq!(dumped["domain"]["red"]["nodes"], json!(["0,1,0"]));
}

#[test]
fn applying_takes_before_it_gives_and_removes_only_what_it_is_told_to() {
    let cluster = Cluster::up("2x2x1");
    apply(&cluster, FILE, "").ok();
    let smaller = "[domain.blue]\nnodes = [\"0,0,0\", \"1,0,0\"]\n";
    let kept = apply(&cluster, smaller, "").ok();
    let steps: Vec<&str> = kept.text().lines().collect();
    let expected = [
        "change blue, not public",
        "0,0,0 no longer manage blue",
        "shrink blue by 1,0,0 1,1,0",
        "grow blue by 1,0,0",
    ];
    assert_eq!(steps, expected);
    cluster.reaches("1,0,0", "0-0-0.blue");
    cluster.ask("domain show red");
    let pruned = apply(&cluster, smaller, "--prune").ok();
    assert_eq!(pruned.text(), "remove red\nnobody is named db");
    cluster.toroid("domain show red").fails(NOT_FOUND, &["red"]);
}

#[test]
fn a_file_with_mistakes_changes_nothing() {
    let cluster = Cluster::up("2x2x1");
    let _blue = cluster.domain("blue", &["0,0,0"]);
    let before = state(&cluster);
    let text = "[domain.red]\nnodes = [\"0,0,0\", \"7,7,7\"]\nmtv = 1500\nmtu = 1\n";
    let wrong = [
        "cluster.toml:2",
        "7,7,7",
        "cluster.toml:3",
        "\"mtu\"?",
        "cluster.toml:4",
    ];
    apply(&cluster, text, "").fails(USAGE, &wrong);
    apply(&cluster, "[domain.red\n", "").fails(USAGE, &["cluster.toml:1"]);
    let blue = "\n[domain.blue]\nnodes = []\nmtu = 1500\n";
    apply(&cluster, blue, "").fails(USAGE, &["cluster.toml:4", "9000", "1500"]);
    // All mistakes at once, also those that only the agent's state makes.
    let blue = blue.to_owned() + "owner = \"nobody-at-all\"\nsubnet = \"10.70.0.0/24\"\n";
    let all = [
        "cluster.toml:4",
        "cluster.toml:5",
        "nobody-at-all",
        "cluster.toml:6",
    ];
    apply(&cluster, &blue, "").fails(USAGE, &all);
    let missing = cluster.files().join("missing.toml");
    let missing = missing.to_str().expect("UTF-8");
    cluster
        .toroid(&format!("apply {missing}"))
        .fails(USAGE, &[missing]);
    cluster.toroid("apply /").fails(USAGE, &["directory"]);
    cluster
        .toroid("apply /dev/zero")
        .fails(USAGE, &["/dev/zero", "longer"]);
    let bytes = cluster.files().join("cluster.toml");
    fs::write(&bytes, [0xff, 0xfe]).expect("it is ours");
    cluster
        .toroid(&format!("apply {}", bytes.to_str().expect("UTF-8")))
        .fails(USAGE, &["UTF-8"]);
    assert_eq!(state(&cluster), before);
}

#[test]
fn the_first_change_that_fails_ends_it_and_is_named() {
    let cluster = Cluster::up("2x1x1");
    // A name that an interface of the node has already, which only the node can know.
    cluster
        .exec("1,0,0", "ip link add green type veth peer name violet")
        .ok();
    let text = "[domain.blue]\nnodes = [\"0,0,0\"]\n[domain.green]\nnodes = [\"1,0,0\"]\n\
                [domain.red]\nnodes = [\"0,0,0\"]\n";
    let failed = apply(&cluster, text, "");
    assert_ne!(failed.status, 0, "{failed}");
    let said = "cannot create green of 1,0,0 (of 3 changes 1 were made)";
    assert!(failed.stderr.contains(said), "{failed}");
    assert_eq!(failed.text(), "create blue of 0,0,0");
    let domains = cluster.ask("domain ls");
    assert_eq!(domains.as_array().map(Vec::len), Some(1), "{domains}");
}

#[test]
fn a_script_may_run_twice() {
    let cluster = Cluster::up("2x2x1");
    let toroid = |words: &str| cluster.toroid(words);
    for _ in 0..2 {
        toroid("domain create blue 0,0,0 1,0,0 --mtu 1500 --may-exist").ok();
    }
    let blue = cluster.ask("domain show blue");
    assert_eq!((&blue["size"], &blue["mtu"]), (&2.into(), &1500.into()));

    toroid("domain grow blue 0,1,0").ok();
    toroid("domain create blue 0,0,0 --may-exist").ok();
    toroid("domain create blue 1,1,0 --may-exist").fails(EXISTS, &["1,1,0", "domain grow"]);
    toroid("domain create blue 0,0,0 --may-exist --limited").fails(EXISTS, &["full member"]);
    let other = [
        "--mtu 9000",
        "--subnet 10.64.9.0/24",
        "--owner 4711",
        "--public",
    ];
    for option in other {
        let words = format!("domain create blue 0,0,0 --may-exist {option}");
        toroid(&words).fails(EXISTS, &["blue", "and not"]);
    }

    for _ in 0..2 {
        toroid("domain shrink blue 0,1,0 --if-exists").ok();
    }
    toroid("domain shrink blue 0,1,0 1,0,0 --if-exists").ok();
    let blue = cluster.ask("domain show blue");
    assert_eq!((&blue["size"], &blue["epoch"]), (&1.into(), &3.into()));
    toroid("domain shrink blue 7,0,0 --if-exists").fails(NOT_FOUND, &["7,0,0"]);

    for _ in 0..2 {
        toroid("domain rm blue --if-exists").ok();
    }
    toroid("domain shrink blue 0,0,0 --if-exists").ok();
    toroid("domain rm blue").fails(NOT_FOUND, &["blue"]);
}
