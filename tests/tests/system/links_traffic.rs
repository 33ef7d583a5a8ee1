//! Traffic over links with a model: it slows down and recovers, also when processes are killed, links
//! change often, members misbehave, and hosts are several.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::{Value, json};
use tests::actor::Event;
use tests::cluster::{Cluster, is_nightly};
use tests::hosts::{Hosts, Oddities};
use tests::process::{Running, eventually};
use tests::software::{bytes, goes_on, iperf3, iperf3_server};
use tests::user::User;

const USAGE: i32 = 2;

/// Shortest of some round trips of ping between two nodes, in milliseconds.
#[track_caller]
fn round_trip(cluster: &Cluster, from: &str, to: &str) -> f64 {
    let words = format!("ping -q -c 3 -i 0.01 -W 10 {to}");
    let ping = cluster.exec(from, &words).ok();
    // rtt min/avg/max/mdev = 0.030/0.040/0.050/0.010 ms
    let times = ping.text().split_once("mdev = ").map(|(_, times)| times);
    let least = times.and_then(|times| times.split('/').next()?.parse().ok());
    least.unwrap_or_else(|| panic!("no times: {ping}"))
}

/// Numbers that a running ping has printed after a word.
fn fields(ping: &Running, word: &str) -> Vec<f64> {
    let text = ping.so_far();
    let field = |line: &str| {
        let (_, rest) = line.split_once(word)?;
        rest.split(' ').next()?.parse().ok()
    };
    text.lines().filter_map(field).collect()
}

/// Waits until round trips are shorter than any over links with a latency of 20 ms.
#[track_caller]
fn recovers(cluster: &Cluster, from: &str, to: &str) {
    eventually("the links are the machine's again", || {
        round_trip(cluster, from, to) < 20.0
    });
}

/// Links to a peer of 0,0,0, as `toroid link show` reports them.
fn report(cluster: &Cluster, peer: &str) -> Value {
    cluster.ask(&format!("link show -d blue 0,0,0 {peer}"))["links"][0].clone()
}

#[test]
fn stock_programs_slow_down_and_recover() {
    const RATE: f64 = 10e6;
    let cluster = Cluster::up("2x1x1");
    let _blue = cluster.domain("blue", &["*,0,0"]);
    let _server = cluster.store("0,0,0", "");
    let rate = || {
        let report = iperf3(&cluster, "1,0,0", "0,0,0", "0-0-0.blue", "-t 1");
        let seconds = report["end"]["sum_received"]["seconds"].as_f64();
        8.0 * bytes(&report, "sum_received") as f64 / seconds.expect("a number")
    };
    let memccat = || {
        let begun = Instant::now();
        let cat = cluster.exec("1,0,0", "memccat --servers=0-0-0.blue key");
        assert_eq!(cat.ok().text(), "value");
        begun.elapsed()
    };
    let file = cluster.files().join("key");
    fs::write(&file, "value").expect("there is room");
    let words = format!("memccp --servers=0-0-0.blue {}", file.display());
    cluster.exec("1,0,0", &words).ok();
    cluster
        .toroid("link set -d blue --latency 50ms --rate 10Mbit")
        .ok();
    assert!(round_trip(&cluster, "0,0,0", "1-0-0.blue") >= 100.0);
    // One round trip connects, and another one asks.
    assert!(memccat() >= Duration::from_millis(200));
    assert!(rate() <= RATE);
    let shown = report(&cluster, "1,0,0");
    assert!(shown["ethernet"]["transfers"].as_u64() > Some(0), "{shown}");

    cluster.toroid("link rm -d blue").ok();
    recovers(&cluster, "0,0,0", "1-0-0.blue");
    eventually("memccat recovers", || {
        memccat() < Duration::from_millis(200)
    });
    eventually("iperf3 recovers", || rate() > RATE);
}

#[test]
fn links_outlive_a_killed_agent_and_a_killed_driver() {
    let cluster = Cluster::up("2x1x1");
    let _blue = cluster.domain("blue", &["*,0,0"]);
    cluster.toroid("link set -d blue --latency 20ms").ok();
    let ping = cluster.spawn("0,0,0", "ping -n -i 0.01 1-0-0.blue");
    let is_slow = || {
        let before = fields(&ping, "time=").len();
        eventually("packets arrive", || {
            fields(&ping, "time=").len() > before + 5
        });
        let least = fields(&ping, "time=").into_iter().reduce(f64::min);
        assert!(least >= Some(40.0), "{least:?} ms");
    };
    is_slow();
    cluster.kill_driver();
    is_slow();
    cluster.kill_agent();
    is_slow();
    cluster.toroid("up").ok();
    is_slow();
    cluster.kill_driver();
    is_slow();
    cluster.toroid("link rm -d blue").ok();
    recovers(&cluster, "0,0,0", "1-0-0.blue");
    cluster.kill_driver();
    recovers(&cluster, "0,0,0", "1-0-0.blue");
}

#[test]
fn a_driver_that_is_killed_with_full_delay_lines_is_replaced() {
    let cluster = Cluster::up("2x1x1");
    let blue = cluster.domain("blue", &["*,0,0"]);
    cluster.toroid("link set -d blue --rate 100Mbit").ok();
    let address = blue.ipv4("1,0,0");
    let flood = format!("iperf -u -t 600 -b 1g -l 8000 -c {address}");
    let flood = cluster.spawn("0,0,0", &flood);
    // Counters begin anew with a driver.
    let fill_up = || {
        eventually("the links are full", || {
            let drops = cluster.ask("domain drops blue").to_string();
            drops.contains("queue_full")
        });
    };
    for _ in 0..3 {
        fill_up();
        cluster.kill_driver();
    }
    fill_up();
    let _ = flood.kill();
    cluster.reaches("0,0,0", "1-0-0.blue");
    let shown = report(&cluster, "1,0,0");
    assert!(shown["ethernet"]["transfers"].as_u64() > Some(0), "{shown}");
}

#[test]
fn changes_under_a_stream_lose_no_packet() {
    const CHANGES: [&str; 7] = [
        "set -d blue --latency 5ms --rate 100Mbit",
        "set -d blue --latency +1ms --jitter 1ms",
        "set -d blue 0,0,0 1,0,0 --rate 1Gbit",
        "set -d blue 0,0,0 1,0,0 --one-way --latency 2ms --jitter normal:100us",
        "rm -d blue 0,0,0 1,0,0",
        "set -d blue --rate 20Mbit --header 40",
        "rm -d blue",
    ];
    let cluster = Cluster::up("2x1x1");
    let _blue = cluster.domain("blue", &["*,0,0"]);
    let server = iperf3_server(&cluster, "1,0,0");
    // As much as no queue of the kernel loses.
    let mut client = cluster.spawn("0,0,0", "iperf3 -c 1-0-0.blue -t 3600 -b 50M");
    let ping = cluster.spawn("0,0,0", "ping -n -i 0.01 1-0-0.blue");
    let count = if is_nightly() { 1000 } else { 50 };
    for (n, change) in CHANGES.iter().cycle().take(count).enumerate() {
        cluster.toroid(&format!("link {change}")).ok();
        if n % CHANGES.len() == 0 {
            cluster.goes_on();
            goes_on(&server);
        }
    }
    goes_on(&server);
    assert!(!client.has_ended(), "{}", client.wait());
    let numbers = fields(&ping, "icmp_seq=");
    let in_order: Vec<f64> = (1..=numbers.len()).map(|n| n as f64).collect();
    assert_eq!(numbers, in_order);
    assert!(numbers.len() >= count, "{numbers:?}");
}

#[test]
fn users_change_links_of_their_own_domains_at_once() {
    let users = [User::create(), User::create()];
    let cluster = Cluster::up("2x2x1");
    let names = ["blue", "red"];
    for (n, (user, name)) in users.iter().zip(names).enumerate() {
        let chown = format!("node chown {n},*,0 {}", user.uid());
        cluster.toroid(&chown).ok();
        let create = format!("domain create {name} {n},0,0 {n},1,0");
        cluster.toroid_of(user, &create).ok();
    }
    thread::scope(|scope| {
        for (user, name) in users.iter().zip(names) {
            let cluster = &cluster;
            scope.spawn(move || {
                for latency in 1..=20 {
                    let set = format!("link set -d {name} --latency {latency}ms --loss 1%");
                    cluster.toroid_of(user, &set).ok();
                }
            });
        }
    });
    for name in names {
        let links = &cluster.existing(name).show()["links"];
        let last = json!({"default": {"latency": "20ms", "loss": "1%"}});
        assert_eq!(*links, last, "{name}");
    }
}

/// The agent makes an interrupted change or not, and none by halves.
#[test]
fn an_interrupted_change_harms_no_later_one() {
    let cluster = Cluster::up("2x1x1");
    let blue = cluster.domain("blue", &["*,0,0"]);
    for n in 1..=20_u64 {
        let change = format!("link set -d blue --latency {n}ms --loss {n}%");
        let change = cluster.start(&change);
        thread::sleep(Duration::from_micros(500 * n));
        change.signal(Signal::SIGINT);
        change.wait();
        let links = blue.show()["links"].clone();
        let made = |n: u64| {
            let (latency, loss) = (format!("{n}ms"), format!("{n}%"));
            json!({"default": {"latency": latency, "loss": loss}})
        };
        let is_whole = links.is_null() || (1..=n).any(|n| links == made(n));
        assert!(is_whole, "{links}");
    }
    cluster
        .toroid("link set -d blue --latency 30ms --loss 0%")
        .ok();
    assert!(round_trip(&cluster, "0,0,0", "1-0-0.blue") >= 60.0);
}

/// A former member has the clocks of the links, but not those of the others any more.
#[test]
fn a_member_that_writes_to_clocks_delays_others_until_it_leaves() {
    let cluster = Cluster::up("3x1x1");
    let blue = cluster.domain("blue", &["*,0,0"]);
    let scribbler = cluster.ready_actor("2,0,0", "adversary delay 0 1");
    cluster.toroid("link set -d blue --latency 1ms").ok();
    scribbler.reports(&Event::Done);
    cluster.cannot_reach("0,0,0", &blue.ipv4("1,0,0"));
    cluster.reaches("2,0,0", "1-0-0.blue");
    let clamped = report(&cluster, "1,0,0")["clamped"].as_u64();
    assert!(clamped > Some(0));
    let shown = cluster.toroid("link show -d blue").ok();
    let words = "a process has written to the clocks";
    assert!(shown.text().contains(words), "{shown}");

    blue.shrink(&["2,0,0"]);
    // Packets that were delayed are the first, for order is kept.
    let ping = "ping -c 1 -W 1 1-0-0.blue";
    eventually("later packets are in time", || {
        cluster.exec("0,0,0", ping).status == 0
    });
    assert_eq!(report(&cluster, "1,0,0")["clamped"], 0);
}

#[test]
fn links_between_hosts_delay_what_each_host_sends() {
    let hosts = Hosts::up(2);
    let [a, b] = hosts.each();
    a.agent.domain("blue", &["0,0,0", "0,1,0"]);
    b.trunk_to("a");
    hosts.agree();
    let pair = "-d blue 0,0,0 0,1,0";
    b.agent
        .toroid(&format!("link set {pair} --latency 20ms"))
        .ok();
    hosts.agree();
    assert!(round_trip(&a.agent, "0,0,0", "0-1-0.blue") >= 40.0);
    // Each host reports its own.
    let from = |cluster: &Cluster, n: usize| {
        let links = cluster.ask(&format!("link show {pair}"))["links"].clone();
        links[n]["ethernet"]["transfers"].as_u64() > Some(0)
    };
    assert!(from(&a.agent, 0) && from(&b.agent, 1));
    assert!(!from(&a.agent, 1) && !from(&b.agent, 0));
    a.agent.toroid(&format!("link rm {pair}")).ok();
    hosts.agree();
    recovers(&b.agent, "0,1,0", "0-0-0.blue");
}

#[test]
fn a_torus_over_several_hosts_is_refused() {
    let hosts = Hosts::down_yet(2);
    let [a, _] = hosts.each();
    let bgp = Oddities {
        fabric: Some("bgp"),
        ..Oddities::default()
    };
    let words = ["fabric bgp", "several hosts", "toroid link set"];
    a.try_up(bgp).fails(USAGE, &words);
    a.up();
}
