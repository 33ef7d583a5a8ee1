//! Hostile processes that keep the kernel's lock of a region's memory for ever.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;

use nix::sys::stat::{Mode, SFlag, makedev, mknod};
use tests::actor::{Actor, Event, Request};
use tests::cluster::{Cluster, Domain};
use tests::leftovers::Leftovers;
use tests::process::eventually;

use super::{MIB, PATIENCE_MS, start, up_with};

/// The agent has so many processes for one domain that may hang.
const MOST_HANGING: usize = 16;

/// A process of a node that keeps the lock of a region's memory, by a file that never comes.
fn keep_lock(cluster: &Cluster, node: &str, who: &str, key: &str) -> Actor {
    let systems = fs::read_to_string("/proc/filesystems").unwrap_or_default();
    assert!(
        systems.contains("fuse"),
        "this test needs FUSE: load it with `modprobe fuse`"
    );
    let [device, file] = ["fuse", "never"].map(|name| cluster.files().join(name));
    fs::write(&file, "").expect("it is our directory");
    let (kind, mode) = (SFlag::S_IFCHR, Mode::from_bits_truncate(0o666));
    mknod(&device, kind, mode, makedev(10, 229)).expect("we are root");
    // Independent of the umask.
    let everybody = Permissions::from_mode(0o666);
    fs::set_permissions(&device, everybody).expect("it is ours");
    let [device, file] = [&device, &file].map(|path| path.display());
    let words = format!("adversary lock {who} {key} {device} {file}");
    cluster.actor(node, &words)
}

/// Shrinks, and waits until all has moved that has to.
fn shrink_and_settle(cluster: &Cluster, blue: &Domain<'_>, node: &str) {
    cluster.goes_on();
    blue.shrink(&[node]);
    eventually("all has moved", || cluster.status()["moving_bytes"] == 0);
}

/// Forked children of the agent in uninterruptible sleep.
fn hanging_children(cluster: &Cluster) -> usize {
    let agent = cluster.agent_pid().to_string();
    let read = |pid: &str, what| fs::read(format!("/proc/{pid}/{what}")).unwrap_or_default();
    let command = read(&agent, "cmdline");
    let hangs = |pid: &str| {
        let stat = String::from_utf8_lossy(&read(pid, "stat")).into_owned();
        let waits = stat.contains(&format!(") D {agent} "));
        waits && read(pid, "cmdline") == command
    };
    let processes = fs::read_dir("/proc").expect("there is /proc");
    let names = processes.filter_map(|process| process.ok()?.file_name().into_string().ok());
    names.filter(|pid| hangs(pid)).count()
}

/// Leavers leave again and again, while a process keeps the lock of a region that 0,0,0 owns and
/// 3,0,0 adds to. The agent is killed and ends in the end. Returns the largest number of hanging
/// processes.
fn keep_lock_and_shrink(node: &str, who: &str, times: usize) -> usize {
    let before = Leftovers::snapshot();
    let cluster = up_with("4x1x1", PATIENCE_MS, &[]);
    let blue = cluster.domain("blue", &["*,0,0"]);
    let words = format!("adversary guard blue {}", 4 * MIB);
    let (mut owner, key) = cluster.exporter("0,0,0", &words);
    let counter = cluster.peer("3,0,0", "tally", "0,0,0", &key);
    let holder = keep_lock(&cluster, node, who, &key);
    holder.reports(if who == "leave" {
        &Event::Blocked
    } else {
        &Event::Open
    });
    let mut hung = 0;
    for _ in 0..times {
        let leaver = cluster.counter("1,0,0", "0,0,0", &key);
        shrink_and_settle(&cluster, &blue, "1,0,0");
        holder.reports(&Event::Blocked);
        assert!(leaver.revoked() > 0);
        let before = owner.number(&Request::Sum);
        eventually("the others go on", || owner.number(&Request::Sum) != before);
        hung = hung.max(hanging_children(&cluster));
        blue.grow(&["1,0,0"]);
    }
    cluster.kill_agent();
    start(&cluster, "4x1x1", PATIENCE_MS, &[]);
    shrink_and_settle(&cluster, &blue, "1,0,0");
    assert!(counter.counted() > 0);
    cluster.toroid("down").ok();
    drop(cluster);
    before.assert_none_new();
    hung
}

/// A former member keeps the kernel's lock of the memory that it had: a process that seals or
/// punches that memory never returns.
#[test]
fn a_leaver_that_keeps_the_lock_of_memory_holds_nobody_up() {
    keep_lock_and_shrink("1,0,0", "leave", 2);
}

/// A member that stays keeps the lock of each memory to which the region moves: a process that
/// writes there other than by a mapping never returns. Fewer processes wait than there were moves.
#[test]
fn nor_does_one_who_stays() {
    let hung = keep_lock_and_shrink("2,0,0", "stay", 2 * MOST_HANGING);
    assert_eq!(hung, MOST_HANGING);
}
