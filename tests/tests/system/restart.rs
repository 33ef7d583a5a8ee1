//! Nodes, interfaces, commands and traffic outlive a killed agent, and the next agent takes them
//! over.

use std::collections::BTreeSet;
use std::io::Write;
use std::time::Duration;

use nix::sys::signal::Signal;
use tests::actor::Event;
use tests::cluster::{Cluster, is_nightly, leaves_nothing};
use tests::leftovers::has_ended;
use tests::process::{eventually, send, within};
use tests::random::Random;
use tests::software::{goes_on, iperf3_server};

/// The time in which everything ends after agent and fd store were both killed.
const LAST_BREATH: Duration = Duration::from_secs(2);

/// Nodes and driver, the processes that outlive their agent.
fn survivors(cluster: &Cluster) -> Vec<u32> {
    let mut pids = cluster.node_pids();
    pids.extend(cluster.driver_pid());
    pids
}

#[test]
fn nodes_and_commands_outlive_a_killed_agent() {
    leaves_nothing(|| {
        let cluster = Cluster::up("2x2x1");
        let _blue = cluster.domain("blue", &["*,*,0"]);
        let before = survivors(&cluster);
        let mut cat = cluster.spawn("0,0,0", "cat");
        let mut input = cat.stdin();
        input.write_all(b"here\n").expect("it reads");
        cat.says("here");
        let script = "trap 'exit 7' USR1; echo ready; while :; do sleep 0.01; done";
        let waiting = cluster.spawn_shell("1,0,0", script);
        waiting.says("ready");

        cluster.kill_agent();
        let remedies = ["its nodes go on", "`toroid up`", "`toroid down`"];
        cluster.toroid("status").fails(3, &remedies);
        assert!(before.iter().all(|pid| !has_ended(*pid)));
        // A command is between its caller and its node.
        waiting.signal(Signal::SIGUSR1);
        assert_eq!(waiting.wait().status, 7);

        cluster.toroid("up").ok();
        assert_eq!(survivors(&cluster), before);
        assert_eq!(cluster.status()["torus"], "2x2x1");
        input.write_all(b"still here\n").expect("it reads");
        cat.says("still here");
        drop(input);
        cat.wait().ok();
        cluster.reaches("0,0,0", "1-1-0.blue");
        let _red = cluster.domain("red", &["*,0,0"]);
        cluster.reaches("0,0,0", "1-0-0.red");
        cluster.toroid("domain shrink blue 1,1,0").ok();
        cluster.existing("blue").shuts_out("1,1,0", "0,0,0");
    });
}

#[test]
fn a_stream_goes_on_while_agents_come_and_go() {
    let cluster = Cluster::up("2x1x1");
    let _blue = cluster.domain("blue", &["*,0,0"]);
    let server = iperf3_server(&cluster, "1,0,0");
    let mut client = cluster.spawn("0,0,0", "iperf3 -c 1-0-0.blue -t 600");
    for _ in 0..3 {
        goes_on(&server);
        cluster.kill_agent();
        goes_on(&server);
        cluster.toroid("up").ok();
    }
    goes_on(&server);
    assert!(!client.has_ended(), "{}", client.wait());
}

#[test]
fn down_ends_what_a_killed_agent_has_left() {
    leaves_nothing(|| {
        let cluster = Cluster::up("2x1x1");
        let (pids, namespaces) = (cluster.pids(), cluster.namespaces());
        let sleep = cluster.spawn_shell("0,0,0", "echo ready; sleep 1000");
        sleep.says("ready");
        cluster.kill_agent();
        let down = cluster.toroid("down").ok();
        assert!(down.stderr.contains("nodes have ended"), "{down}");
        let left: Vec<&u32> = pids.iter().filter(|pid| !has_ended(**pid)).collect();
        assert!(left.is_empty(), "{left:?} of {pids:?}: {}", cluster.log());
        assert_eq!(sleep.wait().status, 137);
        namespaces.assert_gone();
        let log = BTreeSet::from(["agent.log".to_owned()]);
        assert_eq!(cluster.state_files(), log);
        // Now there is nothing to end.
        cluster
            .toroid("down")
            .fails(3, &["no agent runs", "toroid up"]);
    });
}

#[test]
fn nodes_of_another_torus_are_not_taken_over() {
    let cluster = Cluster::up("2x1x1");
    let before = survivors(&cluster);
    cluster.kill_agent();
    cluster
        .toroid("up --torus 3x1x1 --fresh")
        .fails(5, &["nodes that an agent has left", "toroid down"]);
    cluster
        .toroid("up --no-ethernet")
        .fails(5, &["2x1x1 with Ethernet", "toroid down"]);
    cluster.toroid("up").ok();
    assert_eq!(survivors(&cluster), before, "no harm was done");

    cluster.kill_agent();
    cluster.down();
    cluster.toroid("up --torus 3x1x1 --fresh").ok();
    assert_eq!(cluster.status()["torus"], "3x1x1");
}

#[test]
fn a_killed_fd_store_is_replaced() {
    leaves_nothing(|| {
        let cluster = Cluster::up("2x1x1");
        let _blue = cluster.domain("blue", &["*,0,0"]);
        let before = survivors(&cluster);
        for _ in 0..3 {
            cluster.kill_fd_store();
        }
        cluster.kill_agent();
        cluster.toroid("up").ok();
        assert_eq!(survivors(&cluster), before);
        cluster.reaches("0,0,0", "1-0-0.blue");
    });
}

#[test]
fn nothing_outlives_agent_and_fd_store() {
    leaves_nothing(|| {
        let cluster = Cluster::up("2x2x1");
        for _ in 0..2 {
            let _blue = cluster.domain("blue", &["*,*,0"]);
            let (pids, namespaces) = (cluster.pids(), cluster.namespaces());
            cluster
                .shell("1,0,0", "setsid sleep 1000 >/dev/null 2>&1 </dev/null &")
                .ok();
            let fd_store = cluster.fd_store_pid().expect("there is one");
            cluster.kill_agent();
            send(fd_store, Signal::SIGKILL);
            within(LAST_BREATH, "agent, driver and nodes end", || {
                pids.iter().all(|pid| has_ended(*pid))
            });
            namespaces.assert_gone();
            cluster
                .toroid("status")
                .fails(3, &["no agent", "toroid up"]);
            // And it starts clean.
            cluster.toroid("up").ok();
            cluster.reaches("0,0,0", "1-1-0.blue");
            cluster.toroid("domain rm blue").ok();
        }
    });
}

#[test]
fn what_died_while_there_was_no_agent_is_made_anew() {
    let cluster = Cluster::up("2x1x1");
    let _blue = cluster.domain("blue", &["*,0,0"]);
    let (nodes, driver) = (cluster.node_pids(), cluster.driver_pid());
    cluster.kill_agent();
    send(nodes[1], Signal::SIGKILL);
    eventually("it is gone", || has_ended(nodes[1]));
    cluster.toroid("up").ok();
    assert_eq!(cluster.node_pids()[0], nodes[0]);
    assert_ne!(cluster.node_pids()[1], nodes[1]);
    assert_eq!(cluster.driver_pid(), driver);
    cluster.reaches("0,0,0", "1-0-0.blue");

    cluster.kill_agent();
    let driver = driver.expect("there is one");
    send(driver, Signal::SIGKILL);
    eventually("it is gone", || has_ended(driver));
    cluster.toroid("up").ok();
    assert_ne!(cluster.driver_pid(), Some(driver));
    cluster.reaches("1,0,0", "0-0-0.blue");
}

/// Kills the agent, lets everything go on without it for a moment, and starts another.
fn restart(cluster: &Cluster) {
    cluster.kill_agent();
    std::thread::sleep(Duration::from_millis(200));
    cluster.toroid("up").ok();
}

#[test]
fn memory_stays_shared_and_is_still_revoked() {
    let cluster = Cluster::up("3x1x1");
    let blue = cluster.domain("blue", &["*,0,0"]);
    let (owner, key) = cluster.owner("0,0,0");
    let count = |node: &str| cluster.counter(node, "0,0,0", &key);
    let (stayer, mut leaver) = (count("1,0,0"), count("2,0,0"));
    for _ in 0..3 {
        restart(&cluster);
        assert!(!leaver.has_ended(), "it still adds");
    }
    eventually("all three are back", || cluster.status()["attached"] == 3);
    // A grant of the agent before the last is revoked like any other, and new ones are made.
    let late = count("1,0,0");
    blue.shrink(&["2,0,0"]);
    leaver.revoked();
    cluster.open("2,0,0", &key).fails_somehow();
    cluster.open("1,0,0", &key).ok();
    owner.counted();
    for counter in [stayer, late] {
        assert_eq!(counter.failure().1, "PeerDead");
    }
}

#[test]
fn a_store_serves_on_over_both_paths() {
    let cluster = Cluster::up("3x1x1");
    let _blue = cluster.domain("blue", &["*,0,0"]);
    let _server = cluster.store("0,0,0", "");
    cluster.exec("1,0,0", "toroid-kv set key value").ok();
    let script = "while toroid-kv get key; do sleep 0.02; done";
    let mut rdma = cluster.spawn_shell("1,0,0", script);
    let script = "while memccat --servers=0-0-0.blue key; do sleep 0.02; done";
    let mut tcp = cluster.spawn_shell("2,0,0", script);
    rdma.says("value");
    tcp.says("value");
    for _ in 0..3 {
        restart(&cluster);
        let before = rdma.so_far().len();
        eventually("new clients get", || {
            rdma.has_ended() || rdma.so_far().len() > before + 25
        });
        assert!(!rdma.has_ended(), "{}", rdma.wait());
    }
    assert!(!tcp.has_ended(), "{}", tcp.wait());
    cluster.exec("2,0,0", "toroid-kv set key other").ok();
    assert_eq!(
        cluster.exec("1,0,0", "toroid-kv get key").ok().text(),
        "other"
    );
}

#[test]
fn who_ends_while_there_is_no_agent_is_detached() {
    let cluster = Cluster::up("2x1x1");
    let _blue = cluster.domain("blue", &["*,0,0"]);
    let (owner, _) = cluster.owner("0,0,0");
    assert_eq!(cluster.status()["attached"], 1);
    cluster.kill_agent();
    owner.kill();
    cluster.toroid("up").ok();
    eventually("it is forgotten", || {
        let status = cluster.status();
        status["attached"] == 0 && status["registered_bytes"] == 0
    });
}

/// Whose turn it is to be killed.
#[derive(Clone, Copy, Debug)]
enum Victim {
    Agent,
    Driver,
    FdStore,
    Member,
}

/// Kills at random points of random changes: a change has happened or has not, and all the rest
/// goes on.
#[test]
fn whoever_is_killed_whenever_domains_are_whole() {
    let kills = if is_nightly() { 1000 } else { 100 };
    leaves_nothing(|| {
        let cluster = Cluster::down_yet();
        // With a long limit: on a loaded machine a slow process would be fenced, and end.
        let up = "up --torus 3x1x1 --ack-timeout 10000";
        cluster.toroid(up).ok();
        let blue = cluster.domain("blue", &["0,0,0", "1,0,0"]);
        let (mut owner, key) = cluster.owner("0,0,0");
        let count = || cluster.actor("1,0,0", &format!("count blue 0,0,0 {key}"));
        let (mut member, mut is_in) = (count(), false);
        let mut random = Random(1);
        for n in 0..kills {
            cluster.goes_on();
            let word = if is_in { "shrink" } else { "grow" };
            let change = cluster.start(&format!("domain {word} blue 2,0,0"));
            std::thread::sleep(Duration::from_micros(random.below(1 << 15) as u64));
            let victim = match random.below(8) {
                0..=3 => Victim::Agent,
                4 => Victim::Driver,
                5 => Victim::FdStore,
                _ => Victim::Member,
            };
            match victim {
                Victim::Agent => cluster.kill_agent(),
                Victim::Driver => kill(cluster.driver_pid()),
                // Nothing outlives an agent whose fd store does not hold it yet.
                Victim::FdStore => cluster.kill_fd_store(),
                Victim::Member => member = count(),
            }
            let told = change.wait().status;
            if let Victim::Agent = victim {
                cluster.toroid(up).ok();
            }
            let members = blue.show()["members"].as_array().map(Vec::len);
            assert!(matches!(members, Some(2 | 3)), "{n}: {members:?}");
            let was = std::mem::replace(&mut is_in, members == Some(3));
            assert!(
                told != 0 || is_in != was,
                "{n} {victim:?}: it was told done, and is not"
            );
            // A frame may be lost while a driver or a node is made anew, but not for long.
            eventually("they reach each other", || {
                let ping = cluster.exec("0,0,0", "ping -c 1 -W 1 1-0-0.blue");
                ping.status == 0
            });
        }
        member.reports(&Event::Open);
        assert!(!member.has_ended() && !owner.has_ended());
        cluster.down();
    });
}

fn kill(pid: Option<u32>) {
    // A process that was just killed may not have a successor yet.
    if let Some(pid) = pid {
        send(pid, Signal::SIGKILL);
    }
}
