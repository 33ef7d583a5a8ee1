//! Members with a rate: what they send, read and write on another host, and others beside them.

use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use tests::actor::{Event, Request};
use tests::hosts::{Host, Hosts};
use tests::process::{eventually, run_with, send};
use tests::software::{bytes, iperf3_server};

use crate::hosts_frames::blue;

/// The limited member and another one, on host a, and their peers on host b.
const LIMITED: &str = "0,0,0";
const OTHER: &str = "1,0,0";
const PEER: &str = "0,1,0";
const OTHER_PEER: &str = "1,1,0";

/// A rate at which 12 MiB take more than a second, in bytes per second.
const RATE: (&str, u64) = ("80Mbit", 10_000_000);

/// The lowest rate. A megabyte takes minutes, a page half a second.
const LOWEST: &str = "64Kbit";

/// What a bucket lets through at once at that rate: unused time of 5 ms, and one packet in each of
/// the buckets on the way.
const BURST: u64 = RATE.1 / 200 + 2 * 65_536;

fn limit(host: &Host, rate: &str) {
    let set = format!("domain set blue {LIMITED} --rate {rate}");
    host.agent.toroid(&set).ok();
}

/// Bytes received from a member, and the time that the transfer took.
fn sent(from: &Host, node: &str, to: &Host, peer: &str, options: &str) -> (u64, Duration) {
    let server = iperf3_server(&to.agent, peer);
    let name = peer.replace(',', "-") + ".blue";
    let command = format!("iperf3 -J -c {name} {options}");
    let report = from.agent.exec(node, &command).ok().json();
    server.wait().ok();
    let seconds = report["end"]["sum_received"]["seconds"].as_f64();
    let time = Duration::from_secs_f64(seconds.expect("a time"));
    (bytes(&report, "sum_received"), time)
}

/// Checks that a limited member gets no more through than its rate allows.
fn keeps_to_its_rate(what: &str, (carried, time): (u64, Duration)) {
    let most = (time.as_secs_f64() * RATE.1 as f64) as u64 + BURST;
    assert!(
        carried >= 4 << 20,
        "{what}: {carried} bytes are too few to tell"
    );
    assert!(
        carried <= most,
        "{what}: {carried} bytes, and at most {most}"
    );
}

#[test]
fn frames_of_a_limited_member_keep_to_its_rate_and_others_pass_it() {
    let hosts = blue();
    let [a, b] = hosts.each();
    limit(b, RATE.0);
    keeps_to_its_rate("streams", sent(a, LIMITED, b, PEER, "-n 12M -P 4"));
    // Another driver has the rate, too.
    let driver = a.agent.status()["driver_pid"].as_i64().expect("a driver");
    send(driver.try_into().unwrap(), Signal::SIGKILL);
    a.trunk_to("b");
    keeps_to_its_rate("after a restart", sent(a, LIMITED, b, PEER, "-n 8M"));

    limit(a, LOWEST);
    let server = iperf3_server(&b.agent, PEER);
    let name = PEER.replace(',', "-") + ".blue";
    let command = format!("iperf3 --forceflush -c {name} -n 8M");
    let mut slow = a.agent.spawn(LIMITED, &command);
    eventually("the slow stream begins", || {
        slow.so_far().contains("connected to")
    });
    assert!(sent(a, OTHER, b, OTHER_PEER, "-n 32M").0 >= 16 << 20);
    assert!(
        !slow.has_ended(),
        "8 MiB at {LOWEST} take a quarter of an hour"
    );
    limit(a, "off");
    slow.wait().ok();
    server.wait().ok();
}

#[test]
fn operations_on_another_hosts_memory_keep_to_the_rate_of_the_initiator() {
    let hosts = blue();
    let [a, b] = hosts.each();
    let (_owner, key) = b.agent.owner(PEER);
    let carry = |node: &str, bytes: u64, connections: u32| {
        let words = format!("carry blue {PEER} {key} {bytes} {connections}");
        a.agent.actor(node, &words)
    };
    let timed = |bytes: u64, connections: u32| {
        let carries = carry(LIMITED, bytes, connections);
        carries.reports(&Event::Open);
        let begun = Instant::now();
        (carries.counted(), begun.elapsed())
    };
    limit(a, RATE.0);
    keeps_to_its_rate("operations", timed(12 << 20, 3));
    // Another target proxy has the rate, too.
    let proxy = b.agent.status()["adapter_pid"].as_i64().expect("one");
    send(proxy.try_into().unwrap(), Signal::SIGKILL);
    eventually("another target proxy serves", || {
        let now = b.agent.status()["adapter_pid"].as_i64();
        now.is_some_and(|now| now != proxy) && a.agent.open(OTHER, &key).status == 0
    });
    keeps_to_its_rate("after a restart", timed(8 << 20, 1));

    limit(b, LOWEST);
    let mut slow = carry(LIMITED, 4 << 20, 2);
    slow.reports(&Event::Open);
    carry(OTHER, 16 << 20, 1).wait().ok();
    assert!(!slow.has_ended(), "4 MiB at {LOWEST} take minutes");
    // Its present connections as well.
    limit(b, "off");
    slow.wait().ok();
}

/// The host of the peer held them back for the rate, and must not let them through later.
#[test]
fn packets_and_operations_that_wait_when_their_member_leaves_come_to_nothing() {
    let hosts = blue();
    let [a, b] = hosts.each();
    let (mut guard, key) = b.agent.exporter(PEER, "adversary guard blue 1048576");
    limit(a, LOWEST);
    let words = format!("adversary speak blue {PEER}");
    let speaker = a.agent.actor(LIMITED, &words);
    eventually("packets have their turns", || {
        guard.tally(&Request::Heard).contains_key("pair")
    });
    let counters = [(); 2].map(|()| a.agent.counter(LIMITED, PEER, &key));
    // Behind those packets.
    eventually("operations have their turns", || {
        guard.number(&Request::Sum) >= 4
    });
    b.agent
        .toroid(&format!("domain shrink blue {LIMITED}"))
        .ok();
    let sum = guard.number(&Request::Sum);
    let counted = counters
        .map(|counter| counter.revoked())
        .iter()
        .sum::<u64>();
    assert!((counted..=counted + 2).contains(&sum), "{sum} of {counted}");
    // Not before: it had sent as much as its channel holds.
    let spoken = speaker.revoked();
    assert!(spoken > 10, "{spoken}");
    guard.tally(&Request::Heard);
    // Some turns at that rate.
    thread::sleep(Duration::from_millis(500));
    assert_eq!(guard.tally(&Request::Heard).get("pair"), None);
    assert_eq!(guard.number(&Request::Sum), sum);
    // Without a rate now, nothing that waited is ahead of the member.
    a.agent.toroid(&format!("domain grow blue {LIMITED}")).ok();
    let back = a.agent.counter(LIMITED, PEER, &key);
    eventually("the member is back", || {
        guard.number(&Request::Sum) > sum + 100
    });
    back.kill();
}

#[test]
fn a_rate_is_shown_declared_and_refused_where_it_means_nothing() {
    let hosts = Hosts::up(2);
    let [a, b] = hosts.each();
    let create = "domain create blue 0,0,0 --rate 1Gbit";
    a.agent.toroid(create).ok();
    a.agent.toroid(&format!("{create} --may-exist")).ok();
    let other = create.replace('1', "2") + " --may-exist";
    let set = ["domain set blue 0,0,0 --rate 2Gbit"];
    a.agent.toroid(&other).fails(5, &set);
    b.agent.toroid("domain grow blue 0,1,0 --rate 125MB/s").ok();
    b.agent.toroid("domain grow blue 1,1,0").ok();
    b.agent
        .toroid("domain grow blue 0,1,0 --rate 2Gbit")
        .fails(5, &["another rate", "domain set blue 0,1,0 --rate 2Gbit"]);
    hosts.agree();
    let rates = |host: &Host| {
        let blue = host.agent.ask("domain show blue");
        let members = blue["members"].as_array().expect("a list");
        let rates = members.iter().map(|member| member["rate"].clone());
        rates.collect::<Vec<_>>()
    };
    let present = [Some("1Gbit"), Some("1Gbit"), None].map(serde_json::Value::from);
    assert_eq!(rates(a), present);
    assert_eq!(rates(b), present);
    let shown = a.agent.toroid("domain show blue").ok();
    assert!(shown.text().contains("1Gbit"), "{shown}");

    for (words, status, told) in [
        ("0,0,0 --rate 0", 2, &["no rate", "10Gbit"][..]),
        ("0,0,0 --rate 0Gbit", 2, &["too low", "64Kbit"]),
        ("0,0,0 --rate 7apples", 2, &["no rate", "10Gbit"]),
        ("--rate 1Gbit", 2, &["NODES"]),
        ("0,0,0", 2, &["--rate"]),
        (
            "0,0,0 --rate off --public true",
            2,
            &["cannot be used with"],
        ),
        ("1,0,0 --rate off", 4, &["1,0,0", "domain show blue"]),
    ] {
        let refused = a.agent.toroid(&format!("domain set blue {words}"));
        refused.fails(status, told);
    }

    let dump = a.agent.toroid("dump").ok();
    let table = "[domain.blue.rate]\n\"0,0-1,0\" = \"1Gbit\"";
    assert!(dump.text().contains(table), "{dump}");
    let apply = |text: &str| {
        let mut command = a.agent.command("toroid");
        run_with(command.args(["apply", "/dev/stdin"]), text.as_bytes()).ok()
    };
    assert_eq!(apply(dump.text()).text(), "nothing to change");
    let lower = dump.text().replace("1Gbit", "1Mbit");
    let applied = apply(&lower);
    let told = "limit 0,0,0 0,1,0 in blue to 1Mbit";
    assert!(applied.text().contains(told), "{applied}");
    hosts.agree();
    assert_eq!(rates(b)[1], "1Mbit");
    let events = a.agent.toroid("events").ok();
    assert!(events.text().contains(told), "{events}");
    a.agent.toroid("domain set blue @blue --rate off").ok();
    assert!(rates(a).iter().all(serde_json::Value::is_null));
}
