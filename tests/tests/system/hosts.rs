//! Several hosts, one set of domains: each host's agent carries some of the nodes, one of them holds
//! the directory.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::Value;
use tests::cluster::leaves_nothing;
use tests::hosts::{Hosts, Oddities};
use tests::process::{eventually, send, stop};

/// The exit status of a failure.
const FAILED: i32 = 1;

#[test]
fn a_domain_spans_hosts_and_is_changed_from_any_of_them() {
    leaves_nothing(|| {
        let hosts = Hosts::up(2);
        let [a, b] = hosts.each();
        let blue = a.agent.domain("blue", &["0,0,0", "0,1,0"]);
        hosts.agree();
        b.agent.toroid("domain grow blue 1,1,0 1,0,0").ok();
        hosts.agree();
        assert_eq!(blue.members().len(), 4);
        assert_eq!(blue.member("1,1,0")["host"], "b");
        b.agent.toroid("domain shrink blue 0,0,0").ok();
        blue.shrink(&["1,1,0"]);
        hosts.agree();
        assert_eq!(blue.show()["epoch"], 3);
        b.agent.toroid("domain create red 1,1,0").ok();
        b.agent.toroid("node alias 1,1,0 db").ok();
        hosts.agree();
        a.agent.toroid("domain rm red").ok();
        hosts.agree();
        // The user that asked, and its host.
        let told = a.agent.toroid("events --json").ok();
        let events = told.text().lines().map(serde_json::from_str::<Value>);
        let events: Vec<Value> = events.map(Result::unwrap).collect();
        let asked = |what: &str| events.iter().find(|event| event["what"] == what).unwrap();
        assert_eq!(asked("domain_grow")["host"], "b");
        assert_eq!(asked("domain_grow")["uid"], 0);
        assert!(asked("domain_remove")["host"].is_null());
        // A denial of the directory arrives in its own words.
        let refused = b.agent.toroid("domain create blue");
        refused.fails(5, &["exists already"]);
    });
}

#[test]
fn counts_are_of_all_hosts_or_name_those_that_are_missing() {
    let hosts = Hosts::up(3);
    let [a, b, c] = hosts.each();
    let blue = a.agent.domain("blue", &["*,*,0"]);
    hosts.agree();
    let (_owner, key) = b.agent.owner("1,1,0");
    let _counter = b.agent.counter("0,1,0", "1,1,0", &key);
    let ask = |command: &str| a.agent.toroid(&format!("{command} --json")).ok().json();
    let dry_run = "domain shrink blue 0,1,0 --dry-run";
    eventually("the shrink's work on another host is told", || {
        let needs = ask(dry_run);
        let all: Vec<_> = needs["acknowledging"]
            .as_array()
            .expect("a list")
            .iter()
            .collect();
        needs["moving"][0]["node"] == "1,1,0" && all.len() == 1 && all[0]["node"] == "1,1,0"
    });
    let [forged, to] = ["0,0,0", "1,0,0"].map(|node| blue.member(node)["ipv4"].clone());
    let (forged, to) = (forged.as_str().expect("text"), to.as_str().expect("text"));
    let script =
        format!("ip address add {forged} dev blue; ping -c 2 -i 0.2 -W 1 -I {forged} {to}");
    b.agent.shell("1,1,0", &script).fails_somehow();
    eventually("the drops of another host's member are counted", || {
        let drops = ask("domain drops blue");
        let mut members = drops.as_array().expect("a list").iter();
        let of = |member: &Value| member["dropped"]["foreign_address"].as_u64() > Some(0);
        members.any(|member| member["node"] == "1,1,0" && of(member))
    });
    eventually("the region there is told", || {
        let quotas = ask("quota show 1,1,0");
        let mut quotas = quotas.as_array().expect("a list").iter();
        quotas.any(|quota| quota["host"] == "b" && quota["used"]["regions"] == 1)
    });

    c.agent.kill_agent();
    eventually("it is known to be away", || a.about("c")["state"] == "away");
    for command in ["domain drops blue", "quota show", dry_run] {
        let told = a.agent.toroid(command).ok();
        assert!(told.stderr.contains("host c is missing"), "{told}");
    }
    c.up();
}

#[test]
fn what_is_of_another_host_says_so() {
    let hosts = Hosts::up(2);
    let [a, b] = hosts.each();
    let nodes = b.agent.ask("node ls");
    let of = |n: usize, key: &str| nodes[n][key].clone();
    assert_eq!((of(0, "host"), of(2, "host")), ("a".into(), "b".into()));
    assert!(of(0, "pid").is_null() && of(2, "pid").is_u64());
    assert_eq!(a.about("a")["state"], "here");
    assert_eq!(a.about("b")["state"], "connected");
    assert_eq!(b.about("a")["directory"], true);
    a.agent.domain("blue", &["*,*,0"]);
    b.trunk_to("a");
    let explain = |from: &str, to: &str| {
        let answer = b.agent.toroid(&format!("explain {from} {to} --json"));
        answer.json()["domains"][0].clone()
    };
    assert_eq!(explain("0,1,0", "1,1,0")["rdma"]["provider"], "shm");
    let far = explain("0,0,0", "1,1,0");
    assert_eq!(far["rdma"]["provider"], "tcp");
    assert_eq!(
        far["rdma"]["enforced_by"],
        serde_json::json!(["adapter", "encryption"])
    );
    let carrier = far["ethernet"]["provider"].as_str().unwrap();
    assert_eq!(carrier, "tap over tcp, 10.99.0.1 - 10.99.0.2");
}

#[test]
fn nodes_have_one_host_and_hosts_one_agent() {
    let hosts = Hosts::down_yet(2);
    let [a, b] = hosts.each();
    // Who is at the address of b, a knows by its file.
    let full = Oddities {
        full: true,
        ..Oddities::default()
    };
    a.try_up(full).ok();
    // No host carries it yet.
    let nowhere = a.agent.toroid("domain create red 0,1,0");
    nowhere.fails(4, &["no host carries 0,1,0 yet"]);
    let odd = |oddities: Oddities<'_>, words: &str| {
        b.try_up(oddities).ok();
        b.objects_to("a", words);
        a.objects_to("b", words);
        b.agent.down();
    };
    let other_key = "22".repeat(32);
    odd(
        Oddities {
            key: Some(&other_key),
            ..Oddities::default()
        },
        "key is another",
    );
    odd(
        Oddities {
            nodes: Some("0,*,0"),
            ..Oddities::default()
        },
        "0,0,0: carried by host a already",
    );
    b.up();
    a.meets("b");
    hosts.agree();
    assert!(a.about("b")["problem"].is_null());

    // Another history of the leader is none of the follower's.
    let anew = Oddities {
        fresh: true,
        ..full
    };
    a.agent.down();
    a.try_up(anew).ok();
    for (host, other) in [(a, "b"), (b, "a")] {
        host.objects_to(other, "host b has a directory of fabric");
    }
    b.agent.down();
    b.try_up(anew).ok();
    a.meets("b");
    hosts.agree();
}

/// The most that one host carries was once the most that all of them did.
#[test]
fn hosts_carry_more_nodes_together_than_each_may() {
    let hosts = Hosts::down_yet(2);
    let [a, b] = hosts.each();
    let with = |torus, nodes| Oddities {
        torus: Some(torus),
        nodes: Some(nodes),
        ..Oddities::default()
    };
    let all = a.try_up(with("64x17x1", "*,*,*"));
    all.fails(
        2,
        &["1088 nodes are too many for one host", "let other hosts"],
    );
    a.try_up(with("64x17x1", "0-1,0,0")).ok();
    b.try_up(with("64x17x1", "*,16,0")).ok();
    hosts.agree();
    let blue = a.agent.domain("blue", &["0,0,0", "63,16,0"]);
    hosts.agree();
    b.trunk_to("a");
    a.agent.reaches("0,0,0", "63-16-0.blue");
    b.agent.reaches("63,16,0", "0-0-0.blue");
    // By the order of the members, or of all places if there is one for each.
    assert_eq!(blue.ipv4("63,16,0"), "10.64.0.2");
    let wide = "domain create wide 0,0,0 63,16,0 --subnet 10.80.0.0/21 --capacity 1088";
    a.agent.toroid(wide).ok();
    let wide = a.agent.ask("domain show wide");
    assert_eq!(wide["members"][1]["ipv4"], "10.80.4.64");
    assert_eq!(a.agent.status()["nodes"], 2);
    assert_eq!(b.agent.status()["nodes"], 64);
}

/// Sends bytes of a stranger, and prints the number of bytes answered before the end of the
/// connection.
const STRANGER: &str = r#"
import socket, sys
host, port = sys.argv[1].split(":")
def connect():
    return socket.create_connection((host, int(port)), 60)
def answer(words):
    with connect() as s:
        s.sendall(words)
        heard = b""
        while len(heard) < 64:
            some = s.recv(64)
            if not some:
                break
            heard += some
        return heard
opening = lambda kind, lowest, highest, cipher=0: (
    b"toroid" + kind + bytes([lowest, highest, cipher]) + bytes(6 + 48))
print("version", answer(opening(b"s", 200, 201))[:9])
print("key", answer(opening(b"s", 0, 255) + bytes(96))[:7])
print("ticket", answer(opening(b"d", 0, 255, ord("a")))[:7])
print("clear", answer(opening(b"d", 0, 255))[:7])
print("cipher", answer(opening(b"d", 0, 255, ord("x")))[:7])
print("nonsense", answer(b"GET / HTTP/1.1\r\n" * 4))
idle = [connect() for _ in range(200)]
print("idle")
sys.stdin.read()
"#;

#[test]
fn strangers_get_no_further_and_keep_nobody_out() {
    let hosts = Hosts::down_yet(2);
    let [a, b] = hosts.each();
    let full = Oddities {
        full: true,
        ..Oddities::default()
    };
    a.try_up(full).ok();
    let strangers = b.spawn("python3", &["-c", STRANGER, &a.address()]);
    strangers.says("idle");
    let heard = strangers.so_far();
    // Its own versions come with the answer.
    assert!(heard.contains(r"version b'toroidv\x0c\x0c'"), "{heard}");
    assert!(heard.contains("key b'toroidw'"), "{heard}");
    assert!(heard.contains("ticket b'toroidt'"), "{heard}");
    assert!(heard.contains("clear b'toroidc'"), "{heard}");
    assert!(heard.contains("cipher b'toroidc'"), "{heard}");
    assert!(heard.contains("nonsense b''"), "{heard}");
    a.objects_to("b", "has not proven its key");
    b.up();
    a.meets("b");
    a.agent.domain("blue", &["*,*,0"]);
    hosts.agree();
}

#[test]
fn a_host_that_is_away_is_named_and_catches_up() {
    leaves_nothing(|| {
        let hosts = Hosts::up(2);
        let [a, b] = hosts.each();
        let blue = a.agent.domain("blue", &["*,*,0"]);
        let whole = "host b gets the whole directory";
        assert_eq!(a.agent.log().matches(whole).count(), 1);
        b.agent.kill_agent();
        let shrink = a.agent.toroid("domain shrink blue 0,1,0");
        shrink.fails(
            FAILED,
            &["durable", "on host b", "as soon as that agent is back"],
        );
        assert_eq!(blue.members().len(), 3);
        // So does what is asked for again.
        let grow = a.agent.toroid("domain grow blue 1,1,0");
        grow.fails(FAILED, &["on host b"]);
        b.up();
        hosts.agree();
        assert_eq!(b.agent.ask("domain show blue")["epoch"], 2);
        blue.grow(&["0,1,0"]);
        hosts.agree();
        // It got the changes that it had missed.
        assert_eq!(a.agent.log().matches(whole).count(), 1);
    });
}

/// It once ended what its host follows: nothing that was changed later came into effect there.
#[test]
fn an_interface_that_a_nodes_root_has_made_is_in_nobody_elses_way() {
    let hosts = Hosts::up(2);
    let [a, b] = hosts.each();
    b.agent
        .exec("0,1,0", "ip link add blue type veth peer name violet")
        .ok();
    let blue = a.agent.toroid("domain create blue 0,1,0 1,1,0");
    blue.fails(FAILED, &["durable", "on host b: domain blue"]);
    hosts.agree();
    a.agent.domain("red", &["0,1,0", "1,1,0"]);
    b.agent.reaches("0,1,0", "1-1-0.red");
    // Nor in that of the next agent.
    b.agent.kill_agent();
    b.up();
    a.meets("b");
    b.agent.toroid("domain shrink blue 0,1,0").ok();
    b.agent.exec("0,1,0", "ip link del blue").ok();
    b.agent.toroid("domain grow blue 0,1,0").ok();
    hosts.agree();
}

#[test]
fn nodes_outlive_the_agent_that_holds_the_directory() {
    let hosts = Hosts::up(2);
    let [a, b] = hosts.each();
    a.agent.domain("blue", &["*,*,0"]);
    a.agent.kill_agent();
    // It goes on with its copy.
    b.agent.reaches("0,1,0", "1-1-0.blue");
    let refused = b.agent.toroid("domain shrink blue 1,1,0");
    refused.fails(FAILED, &["host a cannot be reached", "nothing was changed"]);
    b.agent.kill_agent();
    b.up();
    assert_eq!(
        b.agent.ask("domain show blue")["members"]
            .as_array()
            .unwrap()
            .len(),
        4
    );
    b.agent.reaches("0,1,0", "1-1-0.blue");
    a.up();
    b.meets("a");
    b.agent.toroid("domain shrink blue 1,1,0").ok();
    hosts.agree();
}

/// The change is made on both hosts when the cable is pulled out, but one of them has not said so.
#[test]
fn a_cable_is_cut_in_the_middle_of_a_shrink() {
    let hosts = Hosts::down_yet(2);
    let [a, b] = hosts.each();
    a.up();
    b.try_up(Oddities {
        ack_timeout: Some(60_000),
        ..Oddities::default()
    })
    .ok();
    a.agent.domain("blue", &["*,*,0"]);
    let (member, _) = b.agent.owner("0,1,0");
    let pid = member.pid_in_node();
    stop(pid);
    let shrink = a.agent.start("domain shrink blue 1,1,0");
    let has_begun = || b.agent.ask("domain show blue")["epoch"] == 2;
    eventually("the far host has begun", has_begun);
    hosts.cut(b);
    shrink.wait().fails(FAILED, &["durable", "on host b"]);
    send(pid, Signal::SIGCONT);
    hosts.mend(b);
    a.meets("b");
    a.agent.toroid("domain grow blue 1,1,0").ok();
    hosts.agree();
}

/// Other tenants once waited 31 s for it.
#[test]
fn a_process_that_does_not_acknowledge_delays_its_own_domain_only() {
    leaves_nothing(|| {
        let hosts = Hosts::down_yet(3);
        let [a, b, c] = hosts.each();
        let slow = Oddities {
            ack_timeout: Some(60_000),
            ..Oddities::default()
        };
        a.try_up(slow).ok();
        b.try_up(slow).ok();
        c.up();
        a.meets("b");
        a.meets("c");
        a.agent.domain("blue", &["*,0,0", "0,1,0"]);
        a.agent.domain("red", &["1,0,0", "*,1,0"]);
        let (near, _) = a.agent.owner("0,0,0");
        let (far, _) = b.agent.owner("0,1,0");
        let pids = [near.pid_in_node(), far.pid_in_node()];
        pids.into_iter().for_each(stop);
        // One waits for a process on its own host, which is the leader; the other for one elsewhere.
        let shrinks = ["blue 1,0,0", "red 1,1,0"];
        let shrinks = shrinks.map(|what| a.agent.start(&format!("domain shrink {what}")));
        for (host, domain) in [(a, "blue"), (b, "red")] {
            let has_begun = || host.agent.ask(&format!("domain show {domain}"))["epoch"] == 2;
            eventually("the shrink has begun", has_begun);
        }
        let begun = Instant::now();
        a.agent.toroid("domain create green *,2,0").ok();
        c.agent.toroid("domain create white 0,2,0").ok();
        a.agent.toroid("domain create grey *,0,0").ok();
        a.agent.toroid("domain rm grey").ok();
        let took = begun.elapsed();
        assert!(took < Duration::from_secs(10), "it took {took:?}");
        assert_eq!(c.agent.ask("domain show green")["members"][1]["host"], "c");
        // The same node again: in this order on every host.
        let again = a.agent.start("domain grow blue 1,0,0");
        assert_eq!(a.agent.ask("domain show blue")["epoch"], 2);
        for pid in pids {
            send(pid, Signal::SIGCONT);
        }
        for shrink in shrinks {
            shrink.wait().ok();
        }
        again.wait().ok();
        hosts.agree();
        let members = |domain| a.agent.ask(&format!("domain show {domain}"))["members"].clone();
        let count = |domain| members(domain).as_array().map(Vec::len);
        assert_eq!([count("blue"), count("red")], [Some(3), Some(2)]);
    });
}

#[test]
fn three_hosts_agree() {
    let hosts = Hosts::up(3);
    let [a, b, c] = hosts.each();
    c.agent.domain("blue", &["*,*,0"]);
    hosts.agree();
    hosts.cut(c);
    let shrink = b.agent.toroid("domain shrink blue 0,0,0 0,2,0");
    shrink.fails(FAILED, &["on host c"]);
    // Changes that do not concern it succeed.
    a.agent.domain("red", &["*,0-1,0"]);
    hosts.mend(c);
    a.meets("c");
    hosts.agree();
    assert_eq!(
        c.agent.ask("domain show red")["members"]
            .as_array()
            .unwrap()
            .len(),
        4
    );
    assert_eq!(c.about("b")["state"], "unknown");
}

/// The leader's machine is lost, and comes back.
#[test]
fn another_host_becomes_the_leader() {
    leaves_nothing(|| {
        let hosts = Hosts::up(3);
        let [a, b, c] = hosts.each();
        a.agent.domain("blue", &["*,*,0"]);
        hosts.agree();
        let (owner, key) = b.agent.owner("0,1,0");
        let member = c.agent.peer("1,2,0", "tally", "0,1,0", &key);
        hosts.cut(a);
        a.agent.kill_agent();
        let led_by_b = Oddities {
            directory: Some("b"),
            ..Oddities::default()
        };
        for host in [b, c] {
            host.agent.kill_agent();
            host.try_up(led_by_b).ok();
        }
        c.meets("b");
        c.agent.domain("red", &["*,2,0"]);
        let shrink = c.agent.toroid("domain shrink blue 0,0,0");
        shrink.fails(FAILED, &["durable", "on host a: its agent is away"]);
        hosts.mend(a);
        // With its old file it leads nobody, and is refused once it has begun a term of its own.
        a.up();
        let green = a.agent.toroid("domain create green *,1,0");
        green.fails(FAILED, &["on host b: its agent is away"]);
        let open = a.agent.open("0,0,0", &key);
        open.fails(1, &["term 2, and host b of another term 2"]);
        a.agent.kill_agent();
        a.try_up(led_by_b).ok();
        b.objects_to("a", "in another term 2");
        a.agent.toroid("down").ok();
        a.try_up(Oddities {
            fresh: true,
            ..led_by_b
        })
        .ok();
        b.meets("a");
        hosts.agree();
        let count = member.counted();
        assert!(count > 0 && owner.counted() >= count);
        // The former leader may lead again.
        for host in [a, b, c] {
            host.agent.kill_agent();
            host.up();
        }
        a.meets("b");
        a.meets("c");
        b.agent.toroid("domain grow blue 0,0,0").ok();
        hosts.agree();
    });
}
