//! Members that sleep through a change, or wait for one in vain.

use std::time::Duration;

use nix::sys::signal::Signal;
use tests::actor::{Event, Request};
use tests::process::{Outcome, eventually, holds_within, now_ns, send, stop};

use super::{MIB, up, up_with};

/// A member that stays reads all of the memory to which a region moves too early, which leaves
/// zeros there.
#[test]
fn a_reader_that_looks_too_early_does_no_harm() {
    let cluster = up(&[]);
    let blue = cluster.domain("blue", &["*,0,0"]);
    let (mut owner, key) = cluster.exporter("0,0,0", &format!("fill blue {}", 8 * MIB));
    let (wrong, first) = (0, None);
    let mut is_whole = || owner.answers(&Request::Compare, &Event::Compared { wrong, first });
    let mut reader = cluster.actor("2,0,0", &format!("adversary peek {key}"));
    assert_eq!(reader.event(), Event::Open);
    for _ in 0..10 {
        let leaver = cluster.counter("1,0,0", "0,0,0", &key);
        blue.shrink(&["1,0,0"]);
        is_whole();
        eventually("all has moved", || cluster.status()["moving_bytes"] == 0);
        is_whole();
        leaver.revoked();
        blue.grow(&["1,0,0"]);
    }
}

/// Nothing may be copied before all members that stay have acknowledged, and nothing is without an
/// agent.
#[test]
fn who_waits_for_what_moves_and_for_an_agent_in_vain_ends() {
    let cluster = up(&[]);
    let _blue = cluster.domain("blue", &["*,0,0"]);
    let (mut owner, key) = cluster.exporter("0,0,0", &format!("adversary guard blue {MIB}"));
    let stopped = cluster.counter("2,0,0", "0,0,0", &key);
    stop(stopped.pid_in_node());
    let _leaver = cluster.counter("1,0,0", "0,0,0", &key);
    let shrink = cluster.start("domain shrink blue 1,0,0");
    let mut answers = 1;
    loop {
        owner.tell(&Request::Sum);
        if !holds_within(Duration::from_secs(1), || {
            owner.so_far().lines().count() > answers
        }) {
            break;
        }
        answers += 1;
    }
    cluster.kill_agent();
    shrink.wait().fails_somehow();
    let end = owner.wait().fails_somehow();
    assert!(end.stderr.contains("PeerDead"), "{end}");
}

/// A member that sleeps through a shrink and acknowledges nothing is cut as if it had left, and
/// learns of that before it reads anything else. The memory that the others have left would read as
/// before, or as zeros.
#[test]
fn who_is_stopped_during_a_shrink_is_revoked_when_it_goes_on() {
    assert_eq!(oversleep(&[]), Vec::<String>::new());
}

/// Stops a process during a shrink, and returns its forbidden actions afterwards.
pub(super) fn oversleep(without: &[&str]) -> Vec<String> {
    // Long for running processes, on a loaded machine as well.
    let cluster = up_with("4x1x1", 3000, without);
    let blue = cluster.domain("blue", &["*,0,0"]);
    let words = format!("adversary guard blue {}", 4 * MIB);
    let (mut owner, key) = cluster.exporter("0,0,0", &words);
    let mut sum = || owner.number(&Request::Sum);
    let start = |node: &str, role: &str| cluster.peer(node, role, "0,0,0", &key);
    // Some additions of a leaver may be lost, so it has a word of its own.
    let leaver = start("1,0,0", "spoil");
    let stopped = start("2,0,0", "watch");
    let other = start("3,0,0", "tally");
    let pid = stopped.pid_in_node();
    eventually("they count", || sum() > 100);

    stop(pid);
    let stopped_ns = now_ns();
    blue.shrink(&["1,0,0"]);
    let before = sum();
    eventually("the others go on", || sum() > before);
    send(pid, Signal::SIGCONT);
    let stopped = stopped.wait();
    let others = other.counted();
    let sum = sum();
    assert!(leaver.revoked() > 0);
    wrongs(stopped, others, stopped_ns, sum)
}

/// The errors in the report of a process that was stopped at a time. Others have added `others`
/// times, and `sum` is the total of all.
fn wrongs(stopped: Outcome, others: u64, stopped_ns: u64, sum: u64) -> Vec<String> {
    if stopped.status != 0 {
        return vec![format!("it was not revoked: {stopped}")];
    }
    let revoked = ["Revoked", "Revoked"].map(String::from);
    let (count, newest_ns) = match Event::last(stopped) {
        Event::Watched {
            count,
            newest_ns,
            errors,
        } if errors == revoked => (count, newest_ns),
        other => return vec![format!("it was not revoked: {other:?}")],
    };
    let mut wrongs = Vec::new();
    if newest_ns >= stopped_ns {
        let late = newest_ns - stopped_ns;
        wrongs.push(format!("it has read something {late} ns later"));
    }
    // Its last addition may have been cut off in the middle.
    let all = count + others;
    if !(all..=all + 1).contains(&sum) {
        wrongs.push(format!("{all} or one more: {sum}"));
    }
    wrongs
}
