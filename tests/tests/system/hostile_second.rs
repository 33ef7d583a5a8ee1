//! Two nodes leave one after the other, and a process of the second writes memory of which the agent
//! does not know that it has it mapped: it hung up before.

use tests::cluster::Cluster;
use tests::process::{Running, eventually};

use super::{MIB, ask, up, up_again};

/// Large enough that it still moves for the first leaver when the second has left: in each of 100
/// cycles the second once left marks in most chunks, after its shrink had returned.
const LARGE: u64 = 64 * MIB;

/// Bytes in which the second leaves one mark.
const CHUNK: u64 = 64 * 1024;

/// A process that has opened a region with these rights and hung up.
fn linger(cluster: &Cluster, node: &str, key: &str, rights: &str) -> Running {
    let mut lingers = cluster.spawn(node, &format!("actor adversary linger {key} {rights}"));
    assert_eq!(lingers.line(), "open");
    lingers
}

/// Lets 2,0,0 and then 1,0,0 leave a domain, of which the first only read and the second wrote, and
/// returns in how many chunks the owner finds what the second wrote afterwards.
fn leave_one_after_the_other(bytes: u64, between: impl Fn(&Cluster)) -> String {
    let cluster = up(&[]);
    let blue = cluster.domain("blue", &["*,0,0"]);
    let mut owner = cluster.spawn("0,0,0", &format!("actor adversary guard blue {bytes}"));
    let (key, mut to_owner) = (owner.line(), owner.stdin());
    let mut second = linger(&cluster, "1,0,0", &key, "write");
    let mut to_second = second.stdin();
    let first = linger(&cluster, "2,0,0", &key, "read");
    // As a member it reaches the owner; otherwise the rest would prove nothing.
    assert_eq!(ask(&mut second, &mut to_second, "mark"), "marked");
    let all = (bytes / CHUNK).to_string();
    assert_eq!(ask(&mut owner, &mut to_owner, "marks"), all);
    assert_eq!(ask(&mut owner, &mut to_owner, "marks"), "0");

    blue.shrink(&["2,0,0"]);
    between(&cluster);
    blue.shrink(&["1,0,0"]);
    assert_eq!(ask(&mut second, &mut to_second, "mark"), "marked");
    eventually("all has moved", || cluster.status()["moving_bytes"] == 0);
    let marks = ask(&mut owner, &mut to_owner, "marks");
    first.kill();
    second.kill();
    owner.kill();
    marks
}

#[test]
fn the_second_of_two_leavers_changes_nothing_after_its_shrink() {
    for _ in 0..3 {
        assert_eq!(leave_one_after_the_other(LARGE, |_| ()), "0");
    }
}

/// The next agent knows of the second leaver what the one before knew.
#[test]
fn nor_with_another_agent_between_the_two() {
    let restart = |cluster: &Cluster| {
        cluster.kill_agent();
        up_again(cluster);
    };
    assert_eq!(leave_one_after_the_other(4 * LARGE, restart), "0");
}
