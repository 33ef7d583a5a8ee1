//! Values that are borrowed while nodes leave, while borrowers die, and where there is little memory.

use std::io::Write;
use std::time::Duration;

use nix::sys::signal::Signal;
use tests::cluster::{Cluster, is_nightly};
use tests::leftovers::processes_with;
use tests::process::{eventually, send, stop};

use crate::store::{Client, Store};

/// Sets other keys until all memory was used again that may be.
fn overwrite(client: &mut Client) {
    for _ in 0..3 {
        assert_eq!(client.asked("fill 400"), "filled");
    }
}

/// The memory of all items moves under a view, and is written in all places but this one.
#[test]
fn a_view_stays_as_it_is_while_another_member_leaves() {
    let store = Store::up();
    let (mut holder, mut leaver) = (store.client("1,0,0"), store.client("2,0,0"));
    let mut sets = store.client("1,0,0");
    for round in 0..3 {
        let value = format!("value{round}");
        assert_eq!(sets.asked(&format!("set key {value}")), "stored");
        assert_eq!(leaver.asked("get key"), value);
        assert_eq!(holder.asked("borrow key"), "borrowed");
        let seen = holder.asked("look");
        assert!(seen.ends_with(&value), "{seen}");
        assert_eq!(sets.asked("set key another"), "stored");
        store.shrink("2,0,0");
        assert_eq!(holder.asked("look"), seen);
        overwrite(&mut sets);
        assert_eq!(holder.asked("look"), seen);
        let refused = leaver.asked("get key");
        assert!(refused.starts_with("error: "), "{refused}");
        store.grow("2,0,0");
        leaver = store.client("2,0,0");
    }
}

#[test]
fn a_borrower_that_leaves_is_told_so_and_the_server_goes_on() {
    let store = Store::up();
    let (mut leaver, mut stays) = (store.client("1,0,0"), store.client("2,0,0"));
    assert_eq!(stays.asked("set key value"), "stored");
    for client in [&mut leaver, &mut stays] {
        assert_eq!(client.asked("borrow key"), "borrowed");
    }
    store.shrink("1,0,0");
    for _ in 0..2 {
        let refused = leaver.asked("look");
        assert!(
            refused.starts_with("error: ") && refused.contains("revoked"),
            "{refused}"
        );
        overwrite(&mut stays);
    }
    assert_eq!(stays.asked("look"), "value");
}

/// Puts a borrower to sleep, which then leaves; returns what it sees when it wakes up.
fn wakes_up_outside(without: &[&str]) -> String {
    let store = Store::over(Cluster::up_without("3x1x1", without));
    let (mut sleeper, mut stays) = (
        store.client_called("sleeper", "1,0,0"),
        store.client("2,0,0"),
    );
    assert_eq!(stays.asked("set key value"), "stored");
    assert_eq!(sleeper.asked("borrow key"), "borrowed");
    let outside = sleeper.running.pid();
    let pid = processes_with(&["actor store", "sleeper"]).find(|pid| *pid != outside);
    let pid = pid.expect("it runs");
    stop(pid);
    writeln!(sleeper.input, "look").expect("its input is a pipe");
    store.shrink("1,0,0");
    eventually("all has moved", || {
        store.cluster.status()["moving_bytes"] == 0
    });
    overwrite(&mut stays);
    send(pid, Signal::SIGCONT);
    sleeper.running.line()
}

/// A leaver that was not awake to hear of it once read zeros, where the pages of what it still had
/// mapped had been taken away.
#[test]
fn a_borrower_that_sleeps_while_it_leaves_wakes_up_revoked() {
    for _ in 0..if is_nightly() { 50 } else { 2 } {
        let seen = wakes_up_outside(&[]);
        assert!(
            seen.starts_with("error: ") && seen.contains("revoked"),
            "{seen}"
        );
    }
}

#[cfg(feature = "unprotected")]
mod unprotected {
    use super::*;

    /// The same, where nothing ends what it holds before it hears of it.
    #[test]
    fn who_wakes_up_without_a_fence_would_be_noticed() {
        // It may happen to hear of it first.
        let sees_what_never_was = |_| !wakes_up_outside(&["FENCE"]).starts_with("error: ");
        assert!((0..10).any(sees_what_never_was));
    }
}

#[test]
fn no_memory_is_lost_with_borrowers_that_are_killed() {
    let store = Store::up();
    let room = store.room();
    let mut keeps = store.client("2,0,0");
    assert_eq!(keeps.asked("set key value"), "stored");
    assert_eq!(keeps.asked("borrow key"), "borrowed");
    assert_eq!(keeps.asked("fill 400"), "filled");
    let registered = || store.cluster.status()["registered_bytes"].clone();
    let before = registered();
    for n in 0..if is_nightly() { 300 } else { 30 } {
        let mut client = store.client("1,0,0");
        assert_eq!(client.asked("hoard 400"), "begun");
        // Anywhere in a loan, with up to 60 others.
        std::thread::sleep(Duration::from_micros(n * 37 % 1500));
        client.running.kill();
        assert_eq!(keeps.asked("fill 20"), "filled");
        assert_eq!(keeps.asked("look"), "value");
    }
    eventually("all hazard pointers are cleared", || registered() == before);
    drop(keeps);
    eventually("all memory is there again", || store.room() == room);
}

#[test]
fn a_client_that_may_not_have_more_memory_goes_on_with_what_it_has() {
    let store = Store::up();
    store
        .cluster
        .toroid(&["quota", "set", "1,0,0", "--bytes", "128K"])
        .ok();
    let mut client = store.client("1,0,0");
    assert_eq!(client.asked("large key 50000"), "stored");
    // One after the other: several would need more.
    assert_eq!(client.asked("both key 60000"), "stored");
    let refused = client.asked("large key 100000");
    for part in ["error: ", "bytes", "toroid quota set 1,0,0"] {
        assert!(refused.contains(part), "{part}: {refused}");
    }
    assert_eq!(client.asked("both key 60000"), "stored");
    assert_eq!(client.asked("get key"), "b".repeat(60_000));
}
