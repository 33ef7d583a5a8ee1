//! Limits of nodes by control groups of version 2, as systems with systemd have them. The machines that
//! run the other stories about limits may have those of version 1.

use std::fs;

use tests::cluster::Cluster;

const NODE: &str = "0,0,0";

/// The status after SIGKILL, by which the kernel ends a process over the limit of memory.
const KILLED: i32 = 128 + 9;

/// The agent is in a group with processes, as in a session, so the groups of nodes are beside it.
#[test]
fn limits_hold_with_control_groups_of_version_2() {
    let cluster = Cluster::down_yet();
    let session = "/sys/fs/cgroup/session";
    fs::create_dir(session).unwrap();
    fs::write(format!("{session}/cgroup.procs"), "0").unwrap();
    let up = "up --torus 2x1x1 --pids 64 --memory 64M";
    cluster.toroid(up).ok();
    cluster.toroid("alloc 2").ok();
    let groups = |node: usize| {
        let text = fs::read_to_string(format!("/proc/{}/cgroup", cluster.node_pids()[node]));
        text.unwrap().trim_end().to_owned()
    };
    assert!(groups(0).starts_with("0::/toroid."), "{}", groups(0));
    assert!(groups(1).ends_with("/1-0-0"), "{}", groups(1));
    let group = format!("/sys/fs/cgroup{}", &groups(0)[3..]);
    let before = cluster.node_pids();

    let takes = |size: &str| {
        let read = format!("dd if=/dev/zero of=/dev/null bs={size} count=1");
        cluster.exec(NODE, &read)
    };
    takes("16M").ok();
    takes("96M").fails(KILLED, &[]);
    let fill = cluster.shell(NODE, "head -c 64m /dev/zero >/dev/shm/full");
    fill.fails(1, &[]);
    let size = cluster.shell(NODE, "wc -c </dev/shm/full").ok();
    assert_eq!(size.text(), (16 << 20).to_string());
    assert_eq!(cluster.node_pids(), before);

    let fork = "for n in $(seq 100); do sleep 600 >/dev/null 2>&1 & done";
    let full = cluster.shell(NODE, fork).fails_somehow();
    assert!(
        full.stderr
            .contains("fork: Resource temporarily unavailable"),
        "{full}"
    );
    cluster
        .shell("1,0,0", "for n in $(seq 32); do sleep 0 & done; wait")
        .ok();
    cluster.toroid(&format!("free {}", NODE)).ok();

    cluster.kill_agent();
    cluster.toroid("up --memory 128M").ok();
    takes("96M").ok();
    cluster.down();
    assert!(!fs::exists(&group).unwrap());
    assert!(!fs::exists(group.trim_end_matches("/0-0-0")).unwrap());
    fs::write("/sys/fs/cgroup/cgroup.procs", "0").unwrap();
    fs::remove_dir(session).unwrap();
}
