//! Limits of a node: memory, processes and threads.

use std::fs;
use std::path::PathBuf;
use std::process::Stdio;

use nix::sys::signal::Signal;
use tests::cluster::{Cluster, leaves_nothing};
use tests::leftovers::has_ended;
use tests::process::{Outcome, Running, eventually, send};
use tests::user::User;

const NODE: &str = "0,0,0";

/// The status after SIGKILL, by which the kernel ends a process over the limit of memory.
const KILLED: i32 = 128 + 9;

/// Forks until the kernel refuses, says why and how many there were, and ends them all when its input
/// ends.
const FORKS: &str = r#"
import errno, os, signal, sys, time
children = []
try:
    while len(children) < 1000:
        child = os.fork()
        if child == 0:
            time.sleep(600)
            os._exit(0)
        children.append(child)
    print("none", len(children), flush=True)
except OSError as error:
    print(errno.errorcode[error.errno], len(children), flush=True)
sys.stdin.read()
for child in children:
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
"#;

/// A process takes so much memory, such as `64M`.
fn takes(cluster: &Cluster, size: &str) -> Outcome {
    let read = format!("dd if=/dev/zero of=/dev/null bs={size} count=1");
    cluster.exec(NODE, &read)
}

fn forks(cluster: &Cluster, node: &str, input: Stdio) -> Running {
    Running::start(
        cluster
            .in_node(node, &["python3", "-c", FORKS])
            .stdin(input),
    )
}

/// Whether a node has at most 64 processes and threads, those of its first process among them.
#[track_caller]
fn has_at_most_64(cluster: &Cluster, node: &str) {
    let forked = forks(cluster, node, Stdio::null()).wait().ok();
    let (error, count) = forked.text().split_once(' ').expect("two words");
    let count: u32 = count.parse().expect("a number");
    assert_eq!(error, "EAGAIN");
    assert!((32..64).contains(&count), "{count}");
}

/// The groups that limit a process, as directories.
#[track_caller]
fn groups(pid: u32) -> Vec<PathBuf> {
    let text = fs::read_to_string(format!("/proc/{pid}/cgroup")).expect("it lives");
    let of_ours = text.lines().filter(|line| line.contains("/toroid."));
    let directory = |line: &str| {
        let [_, controllers, group] = line.splitn(3, ':').collect::<Vec<_>>()[..] else {
            panic!("{line} is no group");
        };
        let mounts = [format!("{controllers}/"), "unified/".into(), String::new()];
        let mut places = mounts
            .map(|mount| format!("/sys/fs/cgroup/{mount}{group}"))
            .into_iter();
        let found = places.find(|place| PathBuf::from(place).join("cgroup.procs").exists());
        PathBuf::from(found.expect("the host mounts its groups"))
    };
    let all: Vec<_> = of_ours.map(directory).collect();
    assert!(!all.is_empty(), "it is in none: {text}");
    all
}

/// 3,000 processes of one node once took all that other nodes and the host had left.
#[test]
fn a_node_has_no_more_processes_than_its_limit() {
    let cluster = Cluster::down_yet();
    let up = "up --torus 2x1x1 --pids 64";
    cluster.toroid(up).ok();
    assert_eq!(cluster.status()["limits"]["pids"], 64);
    let status = cluster.toroid("status").ok();
    assert!(
        status
            .text()
            .contains("64 processes and threads for each node"),
        "{status}"
    );
    cluster.toroid("alloc 2").ok();
    let before = cluster.node_pids();
    let full = forks(&cluster, NODE, Stdio::piped());
    full.says("EAGAIN");
    // Another node and the host are not affected.
    has_at_most_64(&cluster, "1,0,0");
    assert_eq!(cluster.node_pids(), before, "no node ended of it");
    // The owner of a full node empties it.
    cluster.toroid(&format!("free {}", NODE)).ok();
    full.wait().fails_somehow();
    has_at_most_64(&cluster, NODE);
}

#[test]
fn nodes_are_limited_unless_somebody_says_otherwise() {
    let cluster = Cluster::up("1x1x1");
    let limits = &cluster.status()["limits"];
    assert_eq!(limits["pids"], 4096);
    assert!(limits["memory"].is_null());
    assert!(cluster.status()["no_limits"].is_null());
}

/// Memory ends in the node that needs too much, and nowhere else.
#[test]
fn a_node_has_no_more_memory_than_its_limit() {
    let cluster = Cluster::down_yet();
    let up = "up --torus 2x1x1 --memory 128M";
    cluster.toroid(up).ok();
    assert_eq!(cluster.status()["limits"]["memory"], 128 << 20);
    let before = cluster.node_pids();
    let mut bystander = cluster.spawn(NODE, "sleep 600");
    let neighbour = cluster.spawn("1,0,0", "sleep 600");
    takes(&cluster, "64M").ok();
    takes(&cluster, "256M").fails(KILLED, &[]);

    // Files in memory count. Each place for them holds a quarter of the limit at most.
    for place in ["/dev/shm", "/tmp", "/var/tmp"] {
        let fill = format!("head -c 100M /dev/zero > {place}/full");
        let filled = cluster.shell(NODE, &fill);
        filled.fails(1, &["No space left on device"]);
        let size = cluster.exec(NODE, &format!("stat -c %s {place}/full")).ok();
        assert_eq!(size.text(), (32 << 20).to_string());
    }
    takes(&cluster, "64M").fails(KILLED, &[]);
    cluster
        .shell(NODE, "rm /dev/shm/full /tmp/full /var/tmp/full")
        .ok();
    takes(&cluster, "64M").ok();

    assert!(!bystander.has_ended());
    assert_eq!(cluster.node_pids(), before);
    bystander.kill();
    neighbour.kill();
}

#[test]
fn limits_outlive_the_agent_and_end_with_its_nodes() {
    leaves_nothing(|| {
        let cluster = Cluster::down_yet();
        let up = "up --torus 2x1x1 --pids 64 --memory 1G";
        cluster.toroid(up).ok();
        let limits = cluster.status()["limits"].clone();
        let [node, other] = cluster.node_pids()[..] else {
            panic!("two nodes");
        };
        let all: Vec<_> = [groups(node), groups(other)].concat();
        assert_ne!(groups(node), groups(other));
        cluster.kill_agent();
        cluster.toroid("up").ok();
        assert_eq!(cluster.status()["limits"], limits);
        has_at_most_64(&cluster, NODE);

        // A node that is made anew has them, too.
        send(node, Signal::SIGKILL);
        eventually("it is made anew", || cluster.node_pids()[0] != node);
        assert_eq!(
            groups(cluster.node_pids()[0]),
            groups(other)
                .iter()
                .map(|group| { group.with_file_name("0-0-0") })
                .collect::<Vec<_>>()
        );
        has_at_most_64(&cluster, NODE);

        // The next agent may have others.
        cluster.kill_agent();
        cluster.toroid("up --pids 1000").ok();
        assert_eq!(cluster.status()["limits"]["pids"], 1000);
        assert_eq!(cluster.status()["limits"]["memory"], 1 << 30);
        cluster.down();
        assert!(
            all.iter()
                .all(|group| !group.exists() && !group.parent().unwrap().exists())
        );

        // Those of an agent that is never taken over.
        cluster.toroid("up --torus 2x1x1").ok();
        let nodes = cluster.node_pids();
        let all = groups(nodes[0]);
        cluster.kill_agent();
        cluster.down();
        assert!(nodes.into_iter().all(has_ended));
        assert!(
            all.iter()
                .all(|group| !group.exists() && !group.parent().unwrap().exists())
        );
    });
}

/// An agent that is asked for a limit fails without it; otherwise it warns.
#[test]
fn where_nodes_cannot_be_limited_it_is_said() {
    let cluster = Cluster::of_user(User::create());
    for limit in ["--pids 64", "--memory 1G"] {
        let up = format!("up --torus 1x1x1 {limit}");
        cluster
            .toroid(&up)
            .fails(1, &["cannot limit the", "as root"]);
    }
    let up = cluster.toroid("up --torus 1x1x1").ok();
    assert!(
        up.stderr.contains("cannot limit the processes of nodes"),
        "{up}"
    );
    let status = cluster.status();
    assert!(status["limits"]["pids"].is_null());
    let remedy = status["no_limits"]["remedy"].as_str().expect("text");
    assert!(remedy.contains("as root"), "{remedy}");
    // Nor can those be that are there.
    cluster.kill_agent();
    let late = cluster.toroid("up --pids 64");
    late.fails(5, &["does not limit the processes of nodes", "toroid down"]);
    let up = cluster.toroid("up").ok();
    assert!(up.stderr.contains("made without a limit"), "{up}");
    cluster.down();

    for (option, value) in [
        ("--memory", "0"),
        ("--memory", "15M"),
        ("--memory", "4GG"),
        ("--memory", "-1"),
        ("--memory", "99999999999T"),
        ("--pids", "31"),
        ("--pids", "many"),
    ] {
        cluster
            .toroid(&format!("up {option}={value}"))
            .fails(2, &[option]);
    }
}
