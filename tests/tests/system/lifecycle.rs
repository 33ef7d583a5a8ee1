//! Agents come and go, by will and by force, and leave nothing behind.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::net::UnixListener;
use std::process::{Command, Stdio};
use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::{Value, json};
use tests::cluster::{Cluster, is_nightly, leaves_nothing, program};
use tests::leftovers::has_ended;
use tests::process::{Running, eventually, run, send, stop};

#[test]
fn down_leaves_everything_as_it_was() {
    leaves_nothing(|| {
        let cluster = Cluster::up("2x2x2");
        let blue = cluster.domain("blue", &["0,0,0", "1,1,1"]);
        let (pids, namespaces) = (cluster.pids(), cluster.namespaces());
        assert_eq!(pids.len(), 10, "agent, driver and eight nodes");
        assert!(
            namespaces.len() >= 24,
            "network, mounts and processes: {namespaces:?}"
        );
        cluster.exec("0,0,0", "ping -c 3 -i 0.01 1-1-1.blue").ok();
        assert_eq!(blue.show()["members"].as_array().map(Vec::len), Some(2));

        // Processes end with their node, even those that have left their session and group.
        let foreground = cluster.spawn("0,0,0", "sleep 1000");
        cluster
            .shell("1,1,1", "setsid sleep 1000 >/dev/null 2>&1 </dev/null &")
            .ok();
        cluster.down();

        assert_eq!(foreground.wait().status, 137, "it was killed with its node");
        namespaces.assert_gone();
        assert!(pids.into_iter().all(has_ended));
        assert_eq!(
            cluster.state_files(),
            BTreeSet::from(["agent.log".to_owned()])
        );
        cluster.toroid("status").fails(3, &["toroid up"]);
    });
}

/// Starts a `toroid down` and returns when it has a connection.
fn begin_down(cluster: &Cluster) -> Running {
    let down = cluster.start("down");
    let descriptors = format!("/proc/{}/fd", down.pid());
    let is_socket = |entry: fs::DirEntry| {
        let target = fs::read_link(entry.path());
        target.is_ok_and(|target| target.to_string_lossy().starts_with("socket:"))
    };
    eventually("it asks the agent", || {
        let entries = fs::read_dir(&descriptors).expect("it waits for the agent");
        entries.flatten().any(is_socket)
    });
    down
}

/// An agent once went on to make its nodes when `toroid up` was interrupted, and `toroid down`
/// failed meanwhile.
#[test]
fn an_interrupted_start_ends_the_agent() {
    leaves_nothing(|| {
        let cluster = Cluster::down_yet();
        let mut up = Command::new("env");
        // Background processes of a shell ignore SIGINT, and so might these tests.
        up.arg("--default-signal=INT").arg(program("toroid"));
        up.args(["up", "--torus", "16x8x8"]).stdin(Stdio::null());
        up.env("TOROID_STATE", cluster.state());
        up.env("TOROID_DATA", cluster.data());
        let up = Running::start(&mut up);
        let socket = cluster.state().join("agent.sock");
        eventually("the agent makes nodes", || socket.exists());
        // Which takes it less than a second.
        let agent = run(Command::new("pgrep").args(["-P", &up.pid().to_string()])).ok();
        let agent = agent.text().parse().expect("a process id");
        stop(agent);
        let down = begin_down(&cluster);
        up.signal(Signal::SIGINT);
        send(agent, Signal::SIGCONT);
        assert_eq!(up.wait().status, 128 + 2);
        down.wait().ok();
        cluster.toroid("status").fails(3, &["toroid up"]);
        let log = cluster.log();
        assert!(log.contains("interrupted while it started"), "{log}");
    });
}

#[test]
fn whoever_asks_for_the_end_second_succeeds_too() {
    leaves_nothing(|| {
        let cluster = Cluster::up("2x1x1");
        let agent = cluster.agent_pid();
        stop(agent);
        let both = [begin_down(&cluster), begin_down(&cluster)];
        send(agent, Signal::SIGCONT);
        for down in both {
            down.wait().ok();
        }
        cluster.toroid("down").fails(3, &["no agent"]);
    });
}

#[test]
fn status_and_nodes_tell_what_runs() {
    let cluster = Cluster::up("3x2x1");
    let _blue = cluster.domain("blue", &["*,0,0"]);
    let status = cluster.status();
    let expected: [(&str, Value); 9] = [
        ("state", cluster.state().to_string_lossy().into()),
        ("torus", "3x2x1".into()),
        ("nodes", 6.into()),
        ("domains", 1.into()),
        ("provider", "shm".into()),
        ("ethernet", "tap".into()),
        ("rootless", false.into()),
        ("private_users", true.into()),
        ("driver_restarts", 0.into()),
    ];
    for (key, value) in expected {
        assert_eq!(status[key], value, "{key} in {status}");
    }
    assert!(!has_ended(cluster.agent_pid()));
    assert!(
        cluster
            .driver_pid()
            .is_some_and(|driver| !has_ended(driver))
    );

    let nodes = cluster.ask("node ls");
    let nodes = nodes.as_array().expect("a list");
    let places: Vec<_> = nodes.iter().map(|node| node["place"].clone()).collect();
    assert_eq!(
        places,
        ["0,0,0", "1,0,0", "2,0,0", "0,1,0", "1,1,0", "2,1,0"]
    );
    assert_eq!(nodes[2]["domains"], json!(["blue"]));
    assert_eq!(nodes[3]["domains"], json!([]));
    assert!(cluster.node_pids().into_iter().all(|pid| !has_ended(pid)));

    // The same for people.
    let text = cluster.toroid("status").ok();
    assert!(text.text().contains("3x2x1"), "{text}");
    let text = cluster.toroid("node ls").ok();
    assert_eq!(text.text().lines().count(), 7, "{text}");
}

#[test]
fn an_agent_in_the_foreground_ends_by_a_signal() {
    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        leaves_nothing(|| {
            let cluster = Cluster::down_yet();
            let up = cluster.start("up --torus 2x1x1 --foreground");
            eventually("it is ready", || cluster.toroid("status").status == 0);
            let _blue = cluster.domain("blue", &["*,*,*"]);
            let namespaces = cluster.namespaces();
            up.signal(signal);
            up.wait().ok();
            namespaces.assert_gone();
            cluster.toroid("status").fails(3, &["no agent"]);
        });
    }
}

/// Keeps an agent busy until it dies.
const WORK: &str = r#"
for n in $(seq 1000); do
    "$0" domain create "d$1-$n" '*,*,0' || exit
    "$0" domain shrink "d$1-$n" 0,0,0 || exit
    "$0" exec 1,0,0 -- true || exit
    "$0" domain rm "d$1-$n" || exit
done
"#;

#[test]
fn an_agent_killed_at_whatever_moment_is_succeeded() {
    let kills = if is_nightly() { 100 } else { 4 };
    leaves_nothing(|| {
        let cluster = Cluster::down_yet();
        for n in 0..kills {
            cluster.toroid("up --torus 2x2x1").ok();
            let agent = cluster.agent_pid();
            let mut busy = Command::new("sh");
            busy.args(["-c", WORK])
                .arg(program("toroid"))
                .arg(n.to_string())
                .env("TOROID_STATE", cluster.state());
            let busy = Running::start(busy.stdin(Stdio::null()));
            std::thread::sleep(Duration::from_millis(n * 7 % 100));
            send(agent, Signal::SIGKILL);
            assert_ne!(busy.wait().status, 0, "the agent died under it");
        }
        cluster.toroid("up --torus 2x2x1").ok();
    });
}

#[test]
fn a_killed_driver_comes_back_and_connections_survive() {
    let kills = if is_nightly() { 20 } else { 3 };
    leaves_nothing(|| {
        let cluster = Cluster::up("2x1x1");
        let _blue = cluster.domain("blue", &["0,0,0", "1,0,0"]);
        let server = cluster.spawn("1,0,0", "iperf3 -s -1 --forceflush");
        server.says("listening");
        let iperf = "iperf3 -c 1-0-0.blue -t 0 -i 0.1 --forceflush";
        let client = cluster.spawn("0,0,0", iperf);
        eventually("bytes flow", || busy_intervals(&client) > 2);
        for kill in 1..=kills {
            cluster.kill_driver();
            assert_eq!(cluster.status()["driver_restarts"], kill);
            let before = busy_intervals(&client);
            eventually("bytes flow again", || busy_intervals(&client) > before + 2);
            cluster.reaches("0,0,0", "1-0-0.blue");
        }
        client.signal(Signal::SIGINT);
        let end = client.wait();
        assert!(end.stderr.contains("the client has terminated"), "{end}");
        drop(server.wait());
        assert!(!has_ended(cluster.agent_pid()));
    });
}

/// How many of the intervals that iperf3 has reported so far saw bytes.
fn busy_intervals(client: &Running) -> usize {
    let text = client.so_far();
    let intervals = text.lines().filter(|line| line.contains("bits/sec"));
    intervals
        .filter(|line| !line.contains(" 0.00 Bytes"))
        .count()
}

#[test]
fn a_node_whose_first_process_dies_is_made_anew() {
    let cluster = Cluster::up("2x1x1");
    let _blue = cluster.domain("blue", &["0,0,0", "1,0,0"]);
    let node = cluster.node_pids()[1];
    let lost = cluster.spawn("1,0,0", "sleep 1000");
    eventually("it runs", || {
        cluster.exec("1,0,0", "pgrep sleep").status == 0
    });
    send(node, Signal::SIGKILL);
    assert_eq!(lost.wait().status, 137, "it ended with its node");
    eventually("the node is back", || cluster.node_pids()[1] != node);
    eventually("with its interface", || {
        cluster.exec("0,0,0", "ping -c 1 -W 1 1-0-0.blue").status == 0
    });
    cluster.reaches("1,0,0", "0-0-0.blue");
}

#[test]
fn one_state_directory_has_one_agent() {
    let cluster = Cluster::up("2x1x1");
    let agent = cluster.agent_pid();
    let state = cluster.state();
    for up in ["up", "up --foreground"] {
        let names = [
            state.to_str().expect("UTF-8"),
            &agent.to_string(),
            "toroid down",
            "--state",
        ];
        cluster.toroid(up).fails(5, &names);
    }
    assert_eq!(cluster.agent_pid(), agent);
    let _blue = cluster.domain("blue", &["*,0,0"]);
    cluster.reaches("0,0,0", "1-0-0.blue");
}

#[test]
fn agents_that_start_at_once_agree_on_one() {
    leaves_nothing(|| {
        let cluster = Cluster::down_yet();
        let start = || {
            let mut up = cluster.command("toroid");
            Running::start(up.args(["up", "--torus", "1x1x1"]).stdin(Stdio::null()))
        };
        let racing: Vec<Running> = (0..5).map(|_| start()).collect();
        let mut ends: Vec<i32> = racing.into_iter().map(|up| up.wait().status).collect();
        ends.sort_unstable();
        assert_eq!(ends, [0, 5, 5, 5, 5]);
        assert_eq!(cluster.status()["nodes"], 1);
    });
}

#[test]
fn a_stale_lock_and_socket_are_no_obstacle() {
    let cluster = Cluster::down_yet();
    let state = cluster.state();
    fs::create_dir(&state).expect("it is new");
    // As after a crash of the machine: no process holds the lock or listens, and the process number
    // in it may belong to another process.
    fs::write(state.join("lock"), std::process::id().to_string()).expect("it is ours");
    drop(UnixListener::bind(state.join("agent.sock")).expect("it is ours"));
    cluster
        .toroid("status")
        .fails(3, &["no agent", "toroid up"]);
    cluster.toroid("up --torus 1x1x1").ok();
    cluster.exec("0,0,0", "true").ok();
}

#[test]
fn agents_on_two_directories_do_not_disturb_each_other() {
    leaves_nothing(|| {
        let (one, other) = (Cluster::up("2x1x1"), Cluster::up("2x1x1"));
        let here = one.domain("blue", &["0,0,0", "1,0,0"]);
        let there = other.domain("blue", &["0,0,0", "1,0,0"]);
        assert_eq!(
            here.ipv4("1,0,0"),
            there.ipv4("1,0,0"),
            "each thinks that it is alone"
        );

        // A listener of one cluster is not reached from the other, at the same address.
        let address = here.ipv4("1,0,0");
        let listener = one.listener("1,0,0", 7000);
        other.flood("0,0,0", &address, 7000).end().ok();
        listener.heard_nothing();

        one.kill_agent();
        other.exec("0,0,0", "ping -c 3 -i 0.01 1-0-0.blue").ok();
        one.toroid("up --torus 2x1x1").ok();
        one.down();
        other.exec("0,0,0", "ping -c 3 -i 0.01 1-0-0.blue").ok();
    });
}

#[test]
fn without_ethernet_there_are_no_interfaces() {
    let cluster = Cluster::down_yet();
    cluster.toroid("up --torus 2x1x1 --no-ethernet").ok();
    assert_eq!(cluster.status()["ethernet"], "none");
    assert_eq!(cluster.driver_pid(), None);
    let blue = cluster.domain("blue", &["*,0,0"]);
    assert_eq!(blue.member("0,0,0")["ifname"], Value::Null);
    cluster.exec("0,0,0", "ip link show blue").fails_somehow();
    let ping = cluster.ask("ping 0,0,0 1,0,0 -d blue");
    assert_eq!(ping["paths"].as_array().map(Vec::len), Some(1));
    assert_eq!(ping["paths"][0]["path"], "rdma");
}
