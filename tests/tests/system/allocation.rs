//! Nodes are taken from those that are free, where they lie well, and given back.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::{Value, json};
use tests::cluster::{Cluster, program};
use tests::process::{eventually, run, send, stop};
use tests::user::User;

const USAGE: i32 = 2;
const NOT_FOUND: i32 = 4;
const EXISTS: i32 = 5;
const DENIED: i32 = 6;
const LIMIT: i32 = 7;

fn places(nodes: &Value) -> Vec<[u8; 3]> {
    let nodes = nodes.as_array().expect("a list");
    let place = |node: &Value| {
        let text = node.as_str().expect("text");
        let parts = text.split(',').map(|n| n.parse().expect("a number"));
        <[u8; 3]>::try_from(parts.collect::<Vec<_>>()).expect("three")
    };
    nodes.iter().map(place).collect()
}

fn free(cluster: &Cluster) -> usize {
    let nodes = cluster.ask("node ls");
    let nodes = nodes.as_array().expect("a list");
    nodes.iter().filter(|node| node["free"] == true).count()
}

#[test]
fn eight_nodes_are_a_cube() {
    let cluster = Cluster::up("4x4x4");
    let taken = cluster.ask("alloc 8 --new red --place compact");
    let places = places(&taken["nodes"]);
    for axis in 0..3 {
        let along: BTreeSet<u8> = places.iter().map(|place| place[axis]).collect();
        assert_eq!(along.len(), 2, "{taken}");
    }
    let red = cluster.ask("domain show red");
    assert_eq!((&red["size"], &red["diameter"]), (&8.into(), &3.into()));
    let mean = red["mean_hops"].as_f64().expect("a number");
    assert!((mean - 12.0 / 7.0).abs() < 1e-9, "{mean}");
    let [from, to] = [0, 7].map(|n| places[n].map(|n| n.to_string()));
    cluster.reaches(&from.join(","), &format!("{}.red", to.join("-")));
    assert_eq!(free(&cluster), 56);

    // Added nodes lie next to the present ones, and freed nodes can be allocated again.
    let more = cluster.ask("alloc 4 -d red");
    assert_eq!(more["domain"]["size"], 12);
    assert_eq!(more["domain"]["diameter"], 4);
    cluster.toroid("free @red").ok();
    let red = cluster.ask("domain show red");
    assert_eq!((&red["size"], free(&cluster)), (&0.into(), 64));
    let far = cluster.ask("alloc 2 --place spread");
    assert_eq!(far["diameter"], 6);
    assert_eq!(far["domain"], Value::Null);
    let near = cluster.ask("alloc 3 --near 0,0,0");
    let hops = self::places(&near["nodes"]);
    let hops = hops.iter().map(|place| place.map(|n| n.min(4 - n)));
    assert!(hops.map(|p| p.iter().sum::<u8>()).all(|n| n <= 1), "{near}");
    cluster.toroid("alloc 5 --place random").ok();
    assert_eq!(free(&cluster), 54);
}

#[test]
fn who_asks_for_too_much_gets_nothing() {
    let cluster = Cluster::up("2x2x1");
    let _blue = cluster.domain("blue", &["0,0,0"]);
    let toroid = |words: &str| cluster.toroid(words);
    toroid("alloc 4 --new red").fails(LIMIT, &["4 nodes", "3 are free", "toroid free"]);
    toroid("alloc 0").fails(USAGE, &["0 nodes"]);
    toroid("alloc 1 --new blue").fails(EXISTS, &["blue"]);
    toroid("alloc 1 -d red").fails(NOT_FOUND, &["red"]);
    toroid("alloc 1 -d blue --new red").fails(USAGE, &["--new"]);
    toroid("alloc 1 --place dense").fails(USAGE, &["dense", "compact, spread or random"]);
    toroid("alloc 1 --near 7,0,0").fails(NOT_FOUND, &["7,0,0"]);
    toroid("alloc 1 --near @blue --place spread").fails(USAGE, &["spread", "compact"]);
    toroid("alloc 4294967295").fails(LIMIT, &["3 are free"]);
    toroid("alloc -1").fails(USAGE, &["-1"]);
    toroid("free 1,0,0").fails(NOT_FOUND, &["1,0,0", "nobody"]);
    toroid("free 9,0,0").fails(NOT_FOUND, &["9,0,0"]);
    assert_eq!(free(&cluster), 3);
    let domains = cluster.ask("domain ls");
    assert_eq!(domains.as_array().map(Vec::len), Some(1), "{domains}");
}

#[test]
fn nodes_that_cannot_join_are_not_taken() {
    let cluster = Cluster::up("2x2x1");
    // A name that the domain's interface would need, in one node of four.
    cluster
        .exec("1,1,0", "ip link add red type veth peer name violet")
        .ok();
    let failed = cluster.toroid("alloc 4 --new red");
    assert_ne!(failed.status, 0, "{failed}");
    assert_eq!((free(&cluster), cluster.ask("domain ls")), (4, json!([])));
    cluster.exec("0,0,0", "ip link show red").fails_somehow();
    cluster.toroid("alloc 4 --new blue").ok();
    cluster.reaches("0,0,0", "1-1-0.blue");
}

#[test]
fn a_node_allocates_for_the_domain_that_it_manages() {
    let cluster = Cluster::up("2x2x1");
    let _blue = cluster.domain("blue", &["0,0,0"]);
    cluster.toroid("domain manage blue 0,0,0").ok();
    let inside = |node: &str, words: &str| cluster.toroid_in(node, words);
    let taken = inside("0,0,0", "alloc 1 -d blue --json").ok().json();
    let node = taken["nodes"][0].as_str().expect("text");
    cluster.reaches("0,0,0", &format!("{}.blue", node.replace(',', "-")));
    inside("0,0,0", "alloc 1").fails(USAGE, &["--domain"]);
    inside("0,0,0", "alloc 1 --new red").fails(USAGE, &["--domain"]);
    inside("0,0,0", "alloc 3 -d blue").fails(LIMIT, &["2 are free"]);
    inside(node, "alloc 1 -d blue").fails(DENIED, &["toroid domain manage blue"]);
    inside(node, &format!("free {node}")).fails(DENIED, &[node]);
    inside("0,0,0", &format!("free {node}")).ok();
    assert_eq!(free(&cluster), 3);
}

#[test]
fn users_take_nodes_of_a_shared_agent_and_keep_them_from_each_other() {
    let (cluster, alice, bob) = (Cluster::up("2x2x1"), User::create(), User::create());
    let by = |user: &User, words: &str| cluster.toroid_of(user, words);
    let red = by(&alice, "alloc 2 --new red --json").ok().json();
    assert_eq!(red["domain"]["owner"], alice.uid());
    let first = red["nodes"][0].as_str().expect("text");
    let nodes = cluster.ask("node ls");
    let owned = nodes.as_array().expect("a list").iter();
    let owned = owned.filter(|node| node["owner"] == alice.uid()).count();
    assert_eq!((owned, free(&cluster)), (2, 2));

    by(&bob, &format!("free {first}")).fails(DENIED, &[first]);
    by(&bob, "alloc 1 -d red").fails(NOT_FOUND, &["no domain is called red"]);
    by(&bob, "alloc 3").fails(LIMIT, &["2 are free"]);
    by(&bob, &format!("alloc 1 --near {first}")).ok();
    by(&alice, "alloc 1 -d red").ok();
    by(&alice, "free @red").ok();
    assert_eq!(free(&cluster), 3);
}

#[test]
fn who_gets_a_node_finds_nobody_there() {
    let cluster = Cluster::up("2x1x1");
    cluster.toroid("alloc 2 --new red").ok();
    let lingering = cluster.spawn("1,0,0", "sleep 1000");
    eventually("it runs", || {
        cluster.shell("1,0,0", "pgrep sleep").status == 0
    });
    cluster.toroid("free 1,0,0").ok();
    assert_eq!(lingering.wait().status, 137, "killed with its node");
    cluster.shell("1,0,0", "pgrep sleep").fails_somehow();
    cluster.toroid("alloc 1 -d red").ok();
    cluster.reaches("1,0,0", "0-0-0.red");
    cluster.reaches("0,0,0", "1-0-0.red");
}

#[test]
fn what_was_allocated_outlives_the_agent() {
    let cluster = Cluster::up("2x2x1");
    cluster.toroid("alloc 2 --new red").ok();
    let before = cluster.ask("domain show red");
    cluster.down();
    cluster.toroid("up").ok();
    assert_eq!(cluster.ask("domain show red"), before);
    assert_eq!(free(&cluster), 2);
    cluster.toroid("alloc 3").fails(LIMIT, &["2 are free"]);
}

#[test]
fn a_program_takes_and_gives_back_nodes_while_it_works() {
    let cluster = Cluster::down_yet();
    // Patient: on a loaded machine the program would be fenced by its own shrink.
    let up = "up --torus 2x2x1 --ack-timeout 10000";
    cluster.toroid(up).ok();
    let _blue = cluster.domain("blue", &["0,0,0"]);
    let elastic = program("examples/elastic");
    let elastic = elastic.to_str().expect("UTF-8");
    let denied = run(&mut cluster.in_node("0,0,0", &[elastic, "blue"])).fails_somehow();
    assert!(
        denied.stderr.contains("toroid domain manage blue 0,0,0"),
        "{denied}"
    );

    cluster.toroid("domain manage blue 0,0,0").ok();
    let told = run(&mut cluster.in_node("0,0,0", &[elastic, "blue"])).ok();
    let lines: Vec<&str> = told.text().lines().collect();
    assert_eq!(lines.len(), 10, "{told}");
    for round in lines[..9].chunks(3) {
        assert_eq!(
            (round[0], round[2]),
            ("grown to 2", "shrunk to 1"),
            "{told}"
        );
        assert!(round[1].ends_with(".blue answers: true"), "{told}");
    }
    assert!(lines[9].ends_with(", lost 0"), "{told}");
    assert_eq!(free(&cluster), 3);
}

/// A shrink waits for the acknowledgement of the process that asked for it, and other requests of
/// that process wait for the shrink. Both once waited for each other, until the process was fenced.
#[test]
fn who_changes_a_domain_may_ask_for_more_meanwhile() {
    let cluster = Cluster::down_yet();
    let up = "up --torus 2x1x1 --ack-timeout 3000";
    cluster.toroid(up).ok();
    let _blue = cluster.domain("blue", &["0,0,0"]);
    cluster.toroid("domain manage blue 0,0,0").ok();
    let manager = cluster.actor("0,0,0", "manage blue 1,0,0 30");
    assert_eq!(manager.counted(), 0);
}

/// The nodes leave their domains first. Other tenants once waited until that was complete.
#[test]
fn a_hand_over_delays_only_changes_of_its_nodes_and_their_domains() {
    let cluster = Cluster::down_yet();
    cluster.toroid("up --torus 4x1x1 --ack-timeout 60000").ok();
    let _blue = cluster.domain("blue", &["0-1,0,0"]);
    let (member, _) = cluster.owner("0,0,0");
    let pid = member.pid_in_node();
    stop(pid);
    let first = cluster.start("node chown 1,0,0 1001");
    eventually("the node has left", || {
        cluster.ask("domain show blue")["epoch"] == 2
    });
    let begun = Instant::now();
    cluster.toroid("domain create red 2,0,0").ok();
    cluster.toroid("node chown 3,0,0 1001").ok();
    let took = begun.elapsed();
    assert!(took < Duration::from_secs(10), "it took {took:?}");
    // Nothing is started in the node, and it joins no domain, before it has changed hands.
    let grow = cluster.start("domain grow red 1,0,0");
    let allocation = cluster.start("alloc 1");
    let start = cluster.toroid("exec 1,0,0 -- true");
    start.fails(DENIED, &["1,0,0 is just changing hands"]);
    let members = || {
        let red = cluster.ask("domain show red");
        red["members"].as_array().map(Vec::len)
    };
    assert_eq!(members(), Some(1));
    send(pid, Signal::SIGCONT);
    first.wait().ok();
    grow.wait().ok();
    allocation.wait().fails(LIMIT, &["free"]);
    assert_eq!(members(), Some(2));
    let nodes = cluster.ask("node ls");
    let owners = nodes.as_array().expect("a list").iter();
    let owners: Vec<&Value> = owners.map(|node| &node["owner"]).collect();
    assert_eq!(owners, [&json!(0), &json!(1001), &json!(0), &json!(1001)]);
}
