//! Fenced domains: members on a host that is cut off stop by themselves, so that a shrink need not
//! wait for that host.

use std::thread;

use nix::sys::signal::Signal;
use serde_json::Value;
use tests::actor::{Actor, Event};
use tests::cluster::{is_nightly, leaves_nothing};
use tests::etcd::Etcd;
use tests::hosts::{Host, Hosts, Oddities};
use tests::process::{eventually, now_ns, send, stop};

/// Length of the fence, in seconds.
const FENCE: u64 = 3;

/// A member on host b that stays, and one that leaves.
const STAYS: &str = "0,1,0";
const LEAVES: &str = "1,1,0";

/// A member on host c.
const REACHED: &str = "0,2,0";

/// Deviation of all hosts: honest processes may be slow on a busy machine.
const PATIENT: Oddities<'_> = Oddities {
    ack_timeout: Some(1000),
    ..Oddities::RIGHT
};

/// Two hosts with a fenced domain of all their nodes.
fn blue() -> Hosts {
    blue_with([PATIENT; 2], FENCE)
}

fn blue_with(oddities: [Oddities<'_>; 2], fence: u64) -> Hosts {
    let hosts = Hosts::down_yet(2);
    let [a, b] = hosts.each();
    for (host, oddities) in [a, b].into_iter().zip(oddities) {
        host.try_up(oddities).ok();
    }
    b.meets("a");
    let info = b
        .agent
        .ask(&format!("domain create blue *,*,0 --fence {fence}"));
    assert_eq!(
        (&info["fence"], &info["fence_pending"]),
        (&fence.into(), &Value::Null)
    );
    hosts.agree();
    a.trunk_to("b");
    hosts
}

/// Traffic of members on host b: a leaver that writes and sends to a member that stays, and a member
/// that uses its memory.
struct Traffic {
    owner: Actor,
    leaver: Actor,
    ear: Actor,
    mouth: Actor,
    counted: Actor,
    tally: Actor,
}

impl Traffic {
    fn start(b: &Host) -> Self {
        let (owner, key) = b.agent.owner(STAYS);
        let leaver = b.agent.peer(LEAVES, "stamp", STAYS, &key);
        let (counted, count) = b.agent.owner(STAYS);
        let tally = b.agent.peer(STAYS, "tally", STAYS, &count);
        let ear = b.agent.listener(STAYS, 7000);
        let address = b.agent.existing("blue").ipv4(STAYS);
        let mouth = b.agent.flood(LEAVES, &address, 7000);
        ear.reports(&Event::First);
        Traffic {
            owner,
            leaver,
            ear,
            mouth,
            counted,
            tally,
        }
    }

    /// Ends all, after the host was connected again. The leaver has written and sent nothing since
    /// the shrink returned, and those who stayed have lost nothing.
    fn end(self, returned: u64) {
        self.leaver.revoked();
        let newest = self.owner.counted();
        assert!(newest > 0, "it has written before");
        let late = newest.saturating_sub(returned);
        assert!(late == 0, "written {late} ns after the return");
        let mut mouth = self.mouth;
        mouth.close();
        mouth.wait().ok();
        self.ear.heard_nothing_since(returned);
        let tally = self.tally.counted();
        assert_eq!(
            self.counted.counted(),
            tally,
            "each addition is there, once"
        );
    }
}

/// Shrinks `blue` on host a while host b is cut off, and returns the time of the return.
fn shrink(a: &Host) -> u64 {
    let info = a.agent.ask(&format!("domain shrink blue {LEAVES}"));
    let returned = now_ns();
    assert_eq!(info["cut_off"][0], "b", "{info}");
    returned
}

fn is_frozen(b: &Host) {
    eventually("the nodes are frozen", || {
        let outcome = b.agent.exec(STAYS, "true");
        outcome.status != 0 && outcome.to_string().contains("frozen")
    });
}

/// Waits until host b is connected again, and its nodes go on.
fn goes_on(a: &Host, b: &Host) {
    b.meets("a");
    a.meets("b");
    eventually("the member goes on", || {
        b.agent.exec(STAYS, "true").status == 0
    });
}

#[test]
fn hosts_fence_stops_a_leaver_on_a_host_that_is_cut_off() {
    leaves_nothing(|| {
        let hosts = blue();
        let [a, b] = hosts.each();
        let nodes = b.agent.node_pids_here();
        let times = if is_nightly() { 100 } else { 2 };
        for _ in 0..times {
            let traffic = Traffic::start(b);
            hosts.cut(b);
            let returned = shrink(a);
            is_frozen(b);
            hosts.mend(b);
            goes_on(a, b);
            traffic.end(returned);
            a.agent.existing("blue").grow(&[LEAVES]);
        }
        // Nobody was killed.
        assert_eq!(b.agent.node_pids_here(), nodes);
        // Of another host: frames and memory come through as before.
        a.trunk_to("b");
        b.trunk_to("a");
        a.agent.reaches("0,0,0", "1-1-0.blue");
    });
}

/// Domains that lose a member in each round of a story.
const DOMAINS: usize = 25;

/// Pause of a leaver of one of them after a write or a frame, in microseconds: the agents need time of
/// the processors, too.
const PAUSE_US: u32 = 5000;

/// A member of one of many domains on host c, which the leaver on host b reaches all the time.
struct Target {
    domain: String,
    owner: Actor,
    ear: Actor,
    stamp: Actor,
    mouth: Actor,
}

impl Target {
    fn start(b: &Host, c: &Host, number: usize) -> Self {
        let domain = format!("blue{number}");
        let (owner, key) = c.agent.exporter(REACHED, &format!("own {domain}"));
        let port = 7000 + number;
        let ear = c.agent.ready_actor(REACHED, &format!("listen {port}"));
        let address = c.agent.existing(&domain).ipv4(REACHED);
        let stamp = b.agent.actor(
            LEAVES,
            &format!("stamp {domain} {REACHED} {key} {PAUSE_US}"),
        );
        let mouth = b
            .agent
            .actor(LEAVES, &format!("flood {address} {port} {PAUSE_US}"));
        stamp.reports(&Event::Open);
        ear.reports(&Event::First);
        Target {
            domain,
            owner,
            ear,
            stamp,
            mouth,
        }
    }

    /// Ends all. Nothing was written or sent after the shrink had returned.
    fn end(self, returned: u64) {
        let (written, _) = self.stamp.failure();
        assert!(written > 0, "it has written before");
        self.mouth.kill();
        let newest = self.owner.counted();
        let late = newest.saturating_sub(returned);
        assert!(late == 0, "written {late} ns after the return");
        self.ear.heard_nothing_since(returned);
    }
}

/// 100 shrinks, 10,000 at night. The leavers' host is cut off from the leader alone.
#[test]
fn hosts_fence_holds_for_leavers_of_many_domains() {
    leaves_nothing(|| {
        let hosts = Hosts::down_yet(3);
        let [a, b, c] = hosts.each();
        for host in [a, b, c] {
            host.try_up(PATIENT).ok();
        }
        for host in [b, c] {
            host.meets("a");
        }
        for number in 0..DOMAINS {
            a.agent.ask(&format!(
                "domain create blue{number} {LEAVES} {REACHED} --fence 4"
            ));
        }
        hosts.agree();
        b.trunk_to("c");
        let rounds = if is_nightly() { 400 } else { 4 };
        for _ in 0..rounds {
            let targets: Vec<Target> = (0..DOMAINS).map(|n| Target::start(b, c, n)).collect();
            for [from, to] in [[a, b], [b, a]] {
                from.drop_sent(to.name(), &format!("ip daddr {}", to.ip()));
            }
            let shrink = |target: &Target| {
                let words = format!("domain shrink {} {LEAVES}", target.domain);
                let info = a.agent.ask(&words);
                let returned = now_ns();
                assert_eq!(info["cut_off"][0], "b", "{info}");
                returned
            };
            let returned: Vec<u64> = thread::scope(|scope| {
                let shrinks = targets.iter().map(|its| scope.spawn(move || shrink(its)));
                let shrinks: Vec<_> = shrinks.collect();
                let returned = shrinks
                    .into_iter()
                    .map(|its| its.join().expect("it returns"));
                returned.collect()
            });
            for [from, to] in [[a, b], [b, a]] {
                from.drop_no_more(to.name());
            }
            goes_on(a, b);
            for (target, returned) in targets.into_iter().zip(returned) {
                let domain = target.domain.clone();
                target.end(returned);
                a.agent.existing(&domain).grow(&[LEAVES]);
            }
        }
    });
}

/// A lease counts on the clock of its own host.
#[test]
fn hosts_fence_does_not_mind_clocks_that_are_an_hour_apart() {
    for ahead in [[true, false], [false, true]] {
        leaves_nothing(|| {
            let hosts = blue_with(
                ahead.map(|clock_ahead| Oddities {
                    clock_ahead,
                    ..PATIENT
                }),
                FENCE,
            );
            let [a, b] = hosts.each();
            let traffic = Traffic::start(b);
            hosts.cut(b);
            let returned = shrink(a);
            is_frozen(b);
            hosts.mend(b);
            goes_on(a, b);
            traffic.end(returned);
        });
    }
}

/// Nothing on the host can rely on its agent.
#[test]
fn hosts_fence_needs_no_agent_where_members_stop() {
    leaves_nothing(|| {
        let hosts = blue();
        let [a, b] = hosts.each();
        let traffic = Traffic::start(b);
        let agent = b.agent.agent_pid();
        stop(agent);
        let returned = shrink(a);
        hosts.cut(b);
        send(agent, Signal::SIGCONT);
        is_frozen(b);
        hosts.mend(b);
        goes_on(a, b);
        traffic.end(returned);
    });
}

/// The next agent has no lease, and knows nothing of the shrink yet.
#[test]
fn hosts_fence_goes_on_when_the_agent_starts_again() {
    leaves_nothing(|| {
        let hosts = blue();
        let [a, b] = hosts.each();
        let nodes = b.agent.node_pids_here();
        let traffic = Traffic::start(b);
        hosts.cut(b);
        let returned = shrink(a);
        is_frozen(b);
        b.agent.kill_agent();
        b.try_up(PATIENT).ok();
        is_frozen(b);
        hosts.mend(b);
        goes_on(a, b);
        traffic.end(returned);
        assert_eq!(b.agent.node_pids_here(), nodes);
    });
}

/// The killed agent had kept the directory without the leaver, and held the leaver's processes. The
/// next one once let them go on before it had cut them off.
#[test]
fn hosts_fence_holds_a_leaver_when_the_agent_dies_as_it_catches_up() {
    leaves_nothing(|| {
        let slow = Oddities {
            ack_timeout: Some(20_000),
            ..Oddities::RIGHT
        };
        // Longer than the agent needs to start again, so that those who stay can come back to it.
        let hosts = blue_with([slow; 2], 10);
        let [a, b] = hosts.each();
        let traffic = Traffic::start(b);
        // The agent waits for this member before it cuts the leaver off.
        let silent = traffic.tally.pid_in_node();
        stop(silent);
        hosts.cut(b);
        let returned = shrink(a);
        is_frozen(b);
        hosts.mend(b);
        eventually("the agent has the directory without the leaver", || {
            b.agent.ask("domain show blue")["epoch"] == 2
        });
        b.agent.kill_agent();
        send(silent, Signal::SIGCONT);
        b.try_up(slow).ok();
        goes_on(a, b);
        traffic.end(returned);
    });
}

#[test]
fn hosts_fence_ends_where_it_is_switched_off() {
    let hosts = blue();
    let [a, b] = hosts.each();
    let short = a.agent.toroid("domain set blue --fence 1");
    short.fails(2, &["a fence of 1 s", "2 to 120 seconds"]);
    let word = a.agent.toroid("domain set blue --fence soon");
    word.fails(2, &["off"]);
    let explained = a.agent.toroid("domain show blue").ok();
    assert!(explained.text().contains("fence: "), "{explained}");
    let dump = a.agent.toroid("dump").ok();
    assert!(dump.text().contains("fence = 3"), "{dump}");
    a.agent.toroid("domain set blue --fence off").ok();
    hosts.cut(b);
    eventually("the leader notices", || {
        a.about("b")["state"] != "connected"
    });
    let failed = a.agent.toroid(&format!("domain shrink blue {LEAVES}"));
    failed.fails(1, &["host b", "away"]);
    b.agent.exec(STAYS, "true").ok();
    // A host that is away has no new fence, and no change counts on it.
    let pending = a.agent.toroid("domain set blue --fence 2");
    pending.fails(1, &["host b", "away"]);
    assert_eq!(a.agent.ask("domain show blue")["fence_pending"], true);
    let failed = a.agent.toroid(&format!("domain shrink blue {STAYS}"));
    failed.fails(1, &["host b", "away"]);
    hosts.mend(b);
    a.meets("b");
    b.agent.toroid("domain set blue --fence 2").ok();
    let info = a.agent.ask("domain show blue");
    assert_eq!(info["fence_pending"], Value::Null);
}

/// The former coordinator cannot renew leases, its own neither, and the next one waits for them.
#[test]
fn hosts_etcd_fence_stops_members_of_a_coordinator_that_is_cut_off() {
    leaves_nothing(|| {
        let hosts = Hosts::down_yet(3);
        let etcd = Etcd::start(&hosts, 3);
        let endpoints = etcd.endpoints();
        for host in hosts.each::<3>() {
            let on_etcd = Oddities {
                etcd: Some(&endpoints),
                ..Oddities::default()
            };
            host.try_up(on_etcd).ok();
        }
        let (leader, others) = hosts.coordinator();
        let y = leader.name().as_bytes()[0] - b'a';
        let [stays, leaves] = [0, 1].map(|x| format!("{x},{y},0"));
        let create = others[0].agent.toroid("domain create blue *,*,0 --fence 4");
        create.ok();
        hosts.agree();
        let (owner, key) = leader.agent.owner(&stays);
        let leaver = leader.agent.peer(&leaves, "stamp", &stays, &key);
        hosts.cut(leader);
        let mut info = Value::Null;
        let shrink = format!("domain shrink blue {leaves} --json");
        eventually("the next coordinator shrinks", || {
            let outcome = others[0].agent.toroid(&shrink);
            info = serde_json::from_str(outcome.text()).unwrap_or_default();
            outcome.status == 0
        });
        let returned = now_ns();
        assert_eq!(info["cut_off"][0], leader.name(), "{info}");
        hosts.mend(leader);
        hosts.coordinator();
        leaver.revoked();
        let newest = owner.counted();
        assert!(newest > 0 && newest <= returned, "{newest} {returned}");
    });
}
