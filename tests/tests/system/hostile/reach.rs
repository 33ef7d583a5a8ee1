//! Reach of a node's processes to other nodes and the agent, other than by a domain.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use nix::sys::signal::Signal;
use tests::actor::{Actor, Event};
use tests::cluster::Cluster;
use tests::leftovers::{Leftovers, processes_with};
use tests::process::{eventually, send};

use super::{up, up_again};

/// Traces, overwrites and kills all processes that it can from a node, but not in ours.
fn attack(cluster: &Cluster, node: &str) -> Event {
    let outside = fs::read_link("/proc/self/ns/pid").expect("we are in one");
    let outside = outside.to_str().expect("text");
    Event::last(cluster.exec(node, &format!("actor adversary attack {outside}")))
}

#[test]
fn processes_of_other_nodes_are_out_of_reach() {
    let cluster = up(&[]);
    let _blue = cluster.domain("blue", &["*,0,0"]);
    let (mut owner, key) = cluster.owner("0,0,0");
    let mut counter = cluster.counter("2,0,0", "0,0,0", &key);
    let all = processes_with(&["actor"]).chain(cluster.pids());
    let all: Vec<u32> = all.collect();
    assert_eq!(attack(&cluster, "1,0,0"), Event::Through(BTreeSet::new()));
    for pid in all {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("it lives");
        assert!(status.contains("TracerPid:\t0\n"), "{pid}: {status}");
    }
    assert!(!counter.has_ended() && !owner.has_ended());
    // A process in the same node is in reach.
    let (prey, _) = cluster.owner("1,0,0");
    let through = ["kill", "open memory", "read maps", "trace", "write"].map(String::from);
    let through = Event::Through(through.into());
    assert_eq!(attack(&cluster, "1,0,0"), through);
    prey.wait().fails(137, &[]);
}

/// Closing a descriptor of a file system without an answering server takes for ever, and the
/// waiting process cannot even be killed.
#[test]
fn descriptors_that_hang_on_closing_do_not_stop_the_agent() {
    let fuse = Path::new("/dev/fuse");
    assert!(
        fuse.exists(),
        "this test needs {}: load it with `modprobe fuse`",
        fuse.display()
    );
    let before = Leftovers::snapshot();
    let cluster = up(&[]);
    let file = cluster.files().join("hangs");
    fs::write(&file, "").expect("it is our directory");
    let mut hang = cluster.command("actor");
    hang.args(["adversary", "hang", "0,0,0"])
        .arg(cluster.state())
        .arg(&file);
    let mut hang = Actor::start(&mut hang, "hang");
    // The process that carried the descriptors, and the node.
    for _ in 0..2 {
        assert_eq!(hang.event(), Event::Blocked);
    }
    let runs = |node: &str| {
        let said = cluster.shell(node, "cat; exit 7").fails(7, &[]);
        assert_eq!(said.text(), "");
    };
    for _ in 0..3 {
        runs("0,0,0");
    }
    runs("1,0,0");
    cluster.kill_agent();
    up_again(&cluster);
    runs("1,0,0");
    runs("0,0,0");
    cluster.toroid("down").ok();
    up_again(&cluster);
    cluster.exec("0,0,0", "true").ok();
    // The kernel ends calls whose server has gone.
    hang.kill();
    drop(cluster);
    before.assert_none_new();
}

/// Callers that stop in the middle of handing over the descriptors of a command.
#[test]
fn callers_that_stall_end_with_the_agent() {
    let cluster = up(&[]);
    let stall = |node: &str| {
        let mut stall = cluster.command("actor");
        stall
            .args(["adversary", "stall", node])
            .arg(cluster.state());
        let mut stall = Actor::start(&mut stall, "stall");
        assert_eq!(stall.event(), Event::Blocked);
        stall
    };
    let stalled = [stall("0,0,0"), stall("0,0,0"), stall("1,0,0")];
    let porters = || -> BTreeSet<u32> {
        let agent = format!("PPid:\t{}\n", cluster.agent_pid());
        let is_its = |pid: &u32| {
            let status = fs::read_to_string(format!("/proc/{pid}/status"));
            status.is_ok_and(|status| status.contains(&agent))
        };
        processes_with(&["__fd-courier"]).filter(is_its).collect()
    };
    let waiting = porters();
    assert_eq!(waiting.len(), stalled.len());
    cluster.exec("0,0,0", "true").ok();
    cluster.toroid("down").ok();
    for porter in waiting {
        assert!(!Path::new(&format!("/proc/{porter}")).exists(), "{porter}");
    }
    for stalled in stalled {
        // Its session has ended.
        stalled.wait().ok();
    }
}

/// The limits and the time of a node's first process are its root's to take; nothing else of it is.
#[test]
fn a_root_that_starves_its_first_process_harms_its_own_node() {
    let cluster = up(&[]);
    let blue = cluster.domain("blue", &["*,0,0"]);
    let touch = "echo 1000 > /proc/1/oom_score_adj || cat /proc/1/environ || \
                 ls /proc/1/fd || chrt -f -p 1 1";
    cluster.shell("1,0,0", touch).fails_somehow();
    let starve = "kill -9 1 && kill -STOP 1 && renice 19 -p 1 && taskset -a -p 1 1 && \
                  prlimit --pid 1 --nofile=3:3 --fsize=0:0 --nproc=1:1";
    cluster.shell("1,0,0", starve).ok();
    // It has no room for the descriptors of a command.
    cluster.exec("1,0,0", "true").fails_somehow();
    cluster.exec("0,0,0", "true").ok();
    blue.shrink(&["1,0,0"]);
    cluster.reaches("0,0,0", "2-0-0.blue");
    send(cluster.node_pids()[1], Signal::SIGKILL);
    eventually("the node is made anew", || {
        cluster.exec("1,0,0", "true").status == 0
    });
}
