//! Links between members: set, shown, declared, refused, kept when processes die, and slow.

use std::fs;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tests::actor::StoreClient;
use tests::cluster::Cluster;
use tests::user::User;
use toroid_model::link::Rate;

const USAGE: i32 = 2;
const NOT_FOUND: i32 = 4;
const EXISTS: i32 = 5;

/// Properties of links in the answer of `toroid domain show`.
fn links(cluster: &Cluster) -> Value {
    cluster.existing("blue").show()["links"].clone()
}

#[test]
fn links_are_set_shown_and_ended() {
    let cluster = Cluster::up("2x2x1");
    let blue = cluster.domain("blue", &["0,0,0", "1,0,0", "0,1,0"]);
    let toroid = |words: &str| cluster.toroid(words).ok();
    assert_eq!(links(&cluster), Value::Null);
    toroid("link set -d blue --latency 200us --rate 100Mbit");
    toroid("link set -d blue --rate 1Gbit --limit 64KiB");
    let all = json!({"latency": "200us", "rate": "1Gbit", "limit": "64KiB"});
    assert_eq!(links(&cluster), json!({"default": all}));

    toroid("link set -d blue 0,0,0 1,0,0 --loss 0.1%");
    toroid("link set -d blue 0,0,0 1,0,0 --one-way --latency +1ms --jitter 20us");
    let there = json!({"latency": "+1ms", "jitter": "20us", "loss": "0.1%"});
    let single = json!({"0,0,0>1,0,0": there, "1,0,0>0,0,0": {"loss": "0.1%"}});
    assert_eq!(links(&cluster), json!({"default": all, "pairs": single}));

    // Shown with what applies to it, and with what the machine itself takes.
    let shown = cluster.ask("link show -d blue");
    let pairs: Vec<&Value> = (0..3).map(|n| &shown["links"][n]["pair"]).collect();
    assert_eq!(
        pairs,
        [&Value::Null, &json!("0,0,0>1,0,0"), &json!("1,0,0>0,0,0")]
    );
    let back = &shown["links"][2];
    assert_eq!(
        back["link"],
        json!({"latency": "200us", "rate": "1Gbit", "loss": "0.1%", "limit": "64KiB"})
    );
    for base in ["rdma_base_ns", "rdma_base_rate", "ethernet_base_ns"] {
        assert!(shown[base].as_u64() > Some(0), "{shown}");
    }
    let asked = cluster.ask("link show -d blue 0,0,0 0,1,0");
    assert_eq!(asked["links"][0]["pair"], "0,0,0>0,1,0");
    assert_eq!(asked["links"][1]["link"], all);
    let text = toroid("link show -d blue");
    for part in [
        "others",
        "latency=200us",
        "0,0,0>1,0,0",
        "this machine takes, one way: rdma ",
        "; ethernet ",
        "; rdma has ",
    ] {
        assert!(text.text().contains(part), "{part}: {text}");
    }
    let events = toroid("events");
    assert!(
        events
            .text()
            .contains("link blue: latency=200us rate=100Mbit"),
        "{events}"
    );

    toroid("link rm -d blue 0,0,0 1,0,0 --one-way");
    assert_eq!(
        links(&cluster)["pairs"],
        json!({"1,0,0>0,0,0": {"loss": "0.1%"}})
    );
    // A single link ends with a member.
    blue.shrink(&["1,0,0"]);
    blue.grow(&["1,0,0"]);
    assert_eq!(links(&cluster), json!({"default": all}));
    toroid("link rm -d blue");
    assert_eq!(links(&cluster), Value::Null);
    cluster.reaches("0,0,0", "1-0-0.blue");

    // A share is one of what the machine has.
    toroid("link set -d blue --rate 50%");
    let rate = links(&cluster)["default"]["rate"].clone();
    let rate: Rate = serde_json::from_value(rate).expect("a rate");
    assert_eq!(
        Some(rate.0),
        shown["rdma_base_rate"].as_u64().map(|all| all / 2)
    );
}

#[test]
fn links_of_a_file_come_back_from_a_dump_and_a_restart() {
    let cluster = Cluster::up("2x1x1");
    let file = cluster.files().join("file.toml");
    let apply = |text: &str| {
        fs::write(&file, text).expect("there is room");
        let applied = cluster.toroid(&format!("apply {}", file.display())).ok();
        applied.text().to_owned()
    };
    let domain = "[domain.blue]\nnodes = [\"*,0,0\"]\n";
    let gateway = "gateway = \"1ms,1Gbit\"\ndirect-above = \"8Mbit\"\nidle = \"2s\"\n";
    let text = format!(
        "{domain}[domain.blue.link]\nlatency = \"+1ms\"\nheader = 24\nmode = \"spin\"\n{gateway}\
         [domain.blue.link.\"0,0,0>1,0,0\"]\nrate = \"10Mbit\"\nlimit = 3000\n"
    );
    let step = "link blue: latency=+1ms header=24 mode=spin gateway=1ms,1Gbit direct-above=8Mbit idle=2s \
         0,0,0>1,0,0 rate=10Mbit limit=3000";
    let applied = apply(&text);
    assert!(applied.contains(step), "{applied}");
    let before = links(&cluster);
    let dump = cluster.toroid("dump").ok();
    assert_eq!(apply(dump.text()), "nothing to change");
    let as_json = cluster.ask("dump")["domain"]["blue"]["link"].clone();
    let expected = json!({
        "latency": "+1ms", "header": "24", "mode": "spin",
        "gateway": "1ms,1Gbit", "direct-above": "8Mbit", "idle": "2s",
        "0,0,0>1,0,0": {"rate": "10Mbit", "limit": before["pairs"]["0,0,0>1,0,0"]["limit"]},
    });
    assert_eq!(as_json, expected);

    for kills in [false, true] {
        if kills {
            cluster.kill_agent();
        } else {
            cluster.down();
        }
        cluster.toroid("up").ok();
        assert_eq!(links(&cluster), before);
        assert_eq!(apply(dump.text()), "nothing to change");
    }
    assert_eq!(apply(domain), "link blue: as the machine has it");
    assert_eq!(links(&cluster), Value::Null);
}

#[test]
fn links_that_cannot_be_are_refused() {
    let cluster = Cluster::up("2x2x1");
    let _blue = cluster.domain("blue", &["0,0,0", "1,0,0"]);
    let cases: &[(&str, i32, &[&str])] = &[
        ("link set -d blue", USAGE, &["--latency", "--rate"]),
        ("link set --latency 1ms", USAGE, &["--domain"]),
        ("link set -d blue --rate 0", USAGE, &["'0'", "10Gbit"]),
        ("link set -d blue --rate 0Gbit", USAGE, &["too low"]),
        ("link set -d blue --rate 10Gb", USAGE, &["10Gb", "10Gbit"]),
        ("link set -d blue --rate 0%", USAGE, &["too low"]),
        ("link set -d blue --rate 101%", USAGE, &["101%", "100%"]),
        ("link set -d red --rate 40%", NOT_FOUND, &["red"]),
        ("link set -d blue --latency 5", USAGE, &["'5'", "5us"]),
        (
            "link set -d blue --latency 5parsecs",
            USAGE,
            &["5parsecs", "us"],
        ),
        ("link set -d blue --latency 1h", USAGE, &["1h", "us"]),
        ("link set -d blue --loss 101%", USAGE, &["101%", "100%"]),
        ("link set -d blue --loss 5", USAGE, &["'5'", "0.1%"]),
        (
            "link set -d blue --jitter sine:5us",
            USAGE,
            &["sine", "normal:"],
        ),
        ("link set -d blue --limit many", USAGE, &["many", "64KiB"]),
        ("link set -d blue --header 70000", USAGE, &["70000"]),
        (
            "link set -d blue --latency 1ms --jitter 2ms",
            USAGE,
            &["jitter of 2ms", "at least 2ms"],
        ),
        ("link set -d blue --limit 1500B", USAGE, &["rate"]),
        (
            "link set -d blue --mode pad",
            USAGE,
            &["pad", "delay or spin"],
        ),
        (
            "link set -d blue --latency 1ms --mode spin",
            USAGE,
            &["spin", "set +1ms"],
        ),
        (
            "link set -d blue --gateway 500us",
            USAGE,
            &["'500us'", "500us,5Gbit"],
        ),
        (
            "link set -d blue --gateway 1ms,0Gbit",
            USAGE,
            &["0bit", "too low"],
        ),
        (
            "link set -d blue --direct-above 0Gbit",
            USAGE,
            &["0bit", "too low"],
        ),
        (
            "link set -d blue --direct-above 1Gbit --idle 1s",
            USAGE,
            &["direct-above", "set a gateway"],
        ),
        (
            "link set -d blue --idle 1s",
            USAGE,
            &["idle", "set a gateway"],
        ),
        (
            "link set -d blue --gateway 1ms,1Gbit --idle 1s",
            USAGE,
            &["direct-above", "200Mbit"],
        ),
        (
            "link set -d blue --gateway 1ms,1Gbit --direct-above 1Gbit",
            USAGE,
            &["idle", "100ms"],
        ),
        (
            "link set -d blue --gateway 1ms,1Gbit --direct-above 1Gbit --idle 0s",
            USAGE,
            &["idle time of 0", "100ms"],
        ),
        (
            "link set -d blue --latency 1ns",
            USAGE,
            &["1ns", "this machine takes", "+1ns"],
        ),
        ("link set -d blue 0,0,0 --loss 1%", USAGE, &["<B>"]),
        (
            "link set -d blue 0,0,0 0,0,0 --loss 1%",
            USAGE,
            &["two different nodes"],
        ),
        (
            "link set -d blue *,0,0 0,0,0 --loss 1%",
            USAGE,
            &["*,0,0", "one node"],
        ),
        ("link set -d blue --one-way --loss 1%", USAGE, &["<A>"]),
        (
            "link set -d blue 0,0,0 1,1,0 --loss 1%",
            NOT_FOUND,
            &["1,1,0", "blue", "toroid domain show blue"],
        ),
        (
            "link set -d blue 0,0,0 9,0,0 --loss 1%",
            NOT_FOUND,
            &["9,0,0"],
        ),
        (
            "link set -d red --loss 1%",
            NOT_FOUND,
            &["red", "toroid domain ls"],
        ),
        ("link show -d red", NOT_FOUND, &["red", "toroid domain ls"]),
        (
            "link show -d blue 0,0,0 1,1,0",
            NOT_FOUND,
            &["1,1,0", "blue"],
        ),
        (
            "link rm -d blue",
            NOT_FOUND,
            &["blue", "toroid link show -d blue"],
        ),
        (
            "link rm -d blue 0,0,0 1,0,0",
            NOT_FOUND,
            &["0,0,0 1,0,0", "toroid link show"],
        ),
    ];
    for (words, status, parts) in cases {
        cluster.toroid(words).fails(*status, parts);
    }
    assert_eq!(links(&cluster), Value::Null);
}

/// Only the owner of a domain and administrators change its links.
#[test]
fn links_of_anothers_domain_are_out_of_reach() {
    let (alice, bob) = (User::create(), User::create());
    let cluster = Cluster::up("2x2x1");
    let give = |nodes: &str, user: &User| {
        cluster
            .toroid(&format!("node chown {nodes} {}", user.uid()))
            .ok();
    };
    give("0,*,0", &alice);
    give("1,0,0", &bob);
    cluster
        .toroid_of(&alice, "domain create blue 0,0,0 0,1,0")
        .ok();
    cluster.toroid_of(&alice, "link set -d blue --loss 1%").ok();
    cluster
        .toroid_of(&bob, "link set -d blue --loss 2%")
        .fails(NOT_FOUND, &["blue"]);
    // A member of it, too.
    cluster.toroid_of(&bob, "node consent 1,0,0 -d blue").ok();
    cluster.toroid_of(&alice, "domain grow blue 1,0,0").ok();
    for words in ["link set -d blue --loss 2%", "link rm -d blue"] {
        cluster
            .toroid_of(&bob, words)
            .fails(6, &["blue", "ask its owner"]);
    }
    let shown = cluster
        .toroid_of(&bob, "link show -d blue --json")
        .ok()
        .json();
    assert_eq!(shown["links"][0]["link"], json!({"loss": "1%"}));
    cluster.toroid("link rm -d blue").ok();
}

#[test]
fn a_fabric_has_all_links_until_its_agent_ends() {
    let cluster = Cluster::down_yet();
    let mine = cluster.files().join("mine.toml");
    fs::write(&mine, "name = \"mine\"\nrate = \"1GB/s\"\nhop = \"1ms\"\n").expect("there is room");
    let up = |profile: &str| cluster.toroid(&format!("up --torus 2x1x1 --fabric {profile}"));
    up("/nowhere").fails(USAGE, &["/nowhere", "bgp"]);
    up("bgp --fabric bgp").fails(USAGE, &["--fabric", "multiple"]);
    let wrong = cluster.files().join("wrong.toml");
    fs::write(&wrong, "name = \"wrong\"\nrate = 5\nhop = \"70\"\n").expect("there is room");
    let lines = ["wrong.toml:2: ", "wrong.toml:3: "];
    up(&wrong.display().to_string()).fails(USAGE, &lines);

    up(&mine.display().to_string()).ok();
    assert_eq!(cluster.status()["fabric"], "mine");
    let _blue = cluster.domain("blue", &["*,0,0"]);
    cluster.reaches("0,0,0", "1-0-0.blue");
    cluster
        .toroid("link set -d blue --loss 1%")
        .fails(USAGE, &["fabric mine", "without --fabric"]);
    let shown = cluster.ask("link show -d blue");
    assert_eq!(shown["fabric"], "mine");
    up("bgp").fails(EXISTS, &["runs already"]);

    // The next agent goes on with it, and with no other.
    cluster.kill_agent();
    up("bgp").fails(EXISTS, &["fabric mine", "not bgp", "toroid down"]);
    cluster.toroid("up").ok();
    assert_eq!(cluster.status()["fabric"], "mine");
    cluster.down();
    cluster.toroid("up").ok();
    assert_eq!(cluster.status()["fabric"], Value::Null);
    cluster.toroid("link set -d blue --loss 1%").ok();
    cluster.down();
    up("bgp").fails(EXISTS, &["domain blue", "toroid link rm"]);
}

/// The shortest of some times.
fn shortest(times: usize, mut work: impl FnMut()) -> Duration {
    let time = || {
        let start = Instant::now();
        work();
        start.elapsed()
    };
    let all = std::iter::repeat_with(time).take(times);
    all.min().unwrap_or_default()
}

/// Shortest round trips of Ethernet and of RDMA.
fn round_trips(cluster: &Cluster) -> [Duration; 2] {
    let ping = cluster.ask("ping 0,0,0 1,0,0 -d blue -c 20");
    let of = |path: &str| {
        let paths = ping["paths"].as_array().expect("paths are a list");
        let found = paths.iter().find(|its| its["path"] == path);
        let ns = found.and_then(|its| its["min_ns"].as_u64());
        Duration::from_nanos(ns.unwrap_or_else(|| panic!("no {path}: {ping}")))
    };
    [of("ethernet"), of("rdma")]
}

/// Operations of processes that run all the time take the times of each model. None is wrong.
#[test]
fn models_slow_both_paths_and_the_store_while_processes_run() {
    let cluster = Cluster::up("2x1x1");
    let _blue = cluster.domain("blue", &["*,0,0"]);
    let _server = cluster.store("0,0,0", "");
    let mut client = StoreClient::connect(&cluster, "1,0,0");
    client.fill(1);
    let (owner, key) = cluster.owner("0,0,0");
    let worker = cluster.peer("1,0,0", "tally", "0,0,0", &key);

    let before = round_trips(&cluster);
    let model = "link set -d blue --latency 200us --rate 100Mbit";
    cluster.toroid(model).ok();
    let slow = round_trips(&cluster);
    cluster.toroid("link rm -d blue").ok();
    let after = round_trips(&cluster);
    for n in 0..2 {
        assert!(slow[n] >= Duration::from_micros(400), "{slow:?}");
        let fast = before[n].max(after[n]);
        assert!(2 * fast < slow[n], "{before:?}, {slow:?}, {after:?}");
    }

    const LATENCY: Duration = Duration::from_millis(50);
    let mut operate = || {
        let set = shortest(3, || client.set("key", "value"));
        let get = shortest(3, || assert!(client.get("fill0").is_some()));
        let command = "toroid-kv get key";
        let command = shortest(3, || drop(cluster.exec("1,0,0", command).ok()));
        [set, get, command]
    };
    let before = operate();
    cluster.toroid("link set -d blue --latency 50ms").ok();
    let slow = operate();
    let spin = "link set -d blue --latency +50ms --mode spin";
    cluster.toroid(spin).ok();
    let [spun_set, spun_get, _] = operate();
    cluster.toroid("link rm -d blue").ok();
    let after = operate();
    // A set is a message and its answer. A get from a cached location is one batch of reads. A new
    // client greets the server, and reads bucket and item.
    for (n, trips) in [1, 1, 3].into_iter().enumerate() {
        let figures = format!("{before:?}, {slow:?}, {after:?}");
        assert!(slow[n] >= 2 * LATENCY * trips, "{figures}");
        assert!(2 * before[n].max(after[n]) < slow[n], "{figures}");
    }
    // Both ends spin for their messages, but reads have no answer of the server.
    assert!(spun_set >= 2 * LATENCY, "{spun_set:?}");
    assert!(spun_get >= LATENCY, "{spun_get:?}");
    assert!(spun_get < 2 * LATENCY, "{spun_get:?}");
    assert_eq!(worker.counted(), owner.counted());
}
