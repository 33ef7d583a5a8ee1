//! Two nodes leave one after the other, and a process of the second writes memory of which the agent
//! does not know that it has it mapped: it hung up before.

use tests::actor::{Actor, Event, Request};
use tests::cluster::Cluster;
use tests::process::eventually;

use super::{MIB, up, up_again};

/// Large enough that it still moves for the first leaver when the second has left: in each of 100
/// cycles the second once left marks in most chunks, after its shrink had returned.
const LARGE: u64 = 64 * MIB;

/// Bytes in which the second leaves one mark.
const CHUNK: u64 = 64 * 1024;

/// A process that has opened a region with these rights and hung up.
fn linger(cluster: &Cluster, node: &str, key: &str, rights: &str) -> Actor {
    let mut lingers = cluster.actor(node, &format!("adversary linger {key} {rights}"));
    assert_eq!(lingers.event(), Event::Open);
    lingers
}

/// Lets 2,0,0, which only read, and then 1,0,0, which wrote, leave a domain. Returns the number of
/// chunks in which the owner finds later writes of the second.
fn leave_one_after_the_other(bytes: u64, between: impl Fn(&Cluster)) -> u64 {
    let cluster = up(&[]);
    let blue = cluster.domain("blue", &["*,0,0"]);
    let (mut owner, key) = cluster.exporter("0,0,0", &format!("adversary guard blue {bytes}"));
    let mut second = linger(&cluster, "1,0,0", &key, "write");
    let _first = linger(&cluster, "2,0,0", &key, "read");
    // As a member it reaches the owner; otherwise the rest would prove nothing.
    second.answers(&Request::Mark, &Event::Done);
    assert_eq!(owner.number(&Request::Marks), bytes / CHUNK);
    assert_eq!(owner.number(&Request::Marks), 0);

    blue.shrink(&["2,0,0"]);
    between(&cluster);
    blue.shrink(&["1,0,0"]);
    second.answers(&Request::Mark, &Event::Done);
    eventually("all has moved", || cluster.status()["moving_bytes"] == 0);
    owner.number(&Request::Marks)
}

#[test]
fn the_second_of_two_leavers_changes_nothing_after_its_shrink() {
    for _ in 0..3 {
        assert_eq!(leave_one_after_the_other(LARGE, |_| ()), 0);
    }
}

/// The next agent knows as much of the second leaver as the one before.
#[test]
fn nor_with_another_agent_between_the_two() {
    let restart = |cluster: &Cluster| {
        cluster.kill_agent();
        up_again(cluster);
    };
    assert_eq!(leave_one_after_the_other(4 * LARGE, restart), 0);
}
