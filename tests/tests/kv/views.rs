//! Values that are borrowed while nodes leave, while borrowers die, and where there is little memory.

use std::time::Duration;

use nix::sys::signal::Signal;
use tests::actor::{Request, StoreClient};
use tests::cluster::{Cluster, is_nightly};
use tests::process::{eventually, send, stop};

use crate::store::Store;

/// Sets other keys until all memory was used again that may be.
fn overwrite(client: &mut StoreClient) {
    for _ in 0..3 {
        client.fill(400);
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
        sets.set("key", &value);
        assert_eq!(leaver.get("key").as_ref(), Some(&value));
        holder.borrow("key");
        let seen = holder.views();
        assert!(
            seen.as_ref().is_ok_and(|seen| seen.ends_with(&value)),
            "{seen:?}"
        );
        sets.set("key", "another");
        store.shrink("2,0,0");
        assert_eq!(holder.views(), seen);
        overwrite(&mut sets);
        assert_eq!(holder.views(), seen);
        leaver.try_get("key").expect_err("it has left");
        store.grow("2,0,0");
        leaver = store.client("2,0,0");
    }
}

#[test]
fn a_borrower_that_leaves_is_told_so_and_the_server_goes_on() {
    let store = Store::up();
    let (mut leaver, mut stays) = (store.client("1,0,0"), store.client("2,0,0"));
    stays.set("key", "value");
    for client in [&mut leaver, &mut stays] {
        client.borrow("key");
    }
    store.shrink("1,0,0");
    for _ in 0..2 {
        is_revoked(&leaver.views());
        overwrite(&mut stays);
    }
    assert_eq!(stays.views().as_deref(), Ok("value"));
}

#[track_caller]
fn is_revoked(views: &Result<String, String>) {
    let is_revoked = |error: &String| error.contains("revoked");
    assert!(views.as_ref().is_err_and(is_revoked), "{views:?}");
}

/// Stops a borrower, which then leaves; returns its views after it is continued.
fn wakes_up_outside(without: &[&str]) -> Result<String, String> {
    let store = Store::over(Cluster::up_without("3x1x1", without));
    let (mut sleeper, mut stays) = (store.client("1,0,0"), store.client("2,0,0"));
    stays.set("key", "value");
    sleeper.borrow("key");
    let pid = sleeper.pid_in_node();
    stop(pid);
    sleeper.tell(&Request::Views);
    store.shrink("1,0,0");
    eventually("all has moved", || {
        store.cluster.status()["moving_bytes"] == 0
    });
    overwrite(&mut stays);
    send(pid, Signal::SIGCONT);
    sleeper.told_views()
}

/// A stopped leaver once read zeros, because the pages of its mapping had been punched.
#[test]
fn a_borrower_that_sleeps_while_it_leaves_wakes_up_revoked() {
    for _ in 0..if is_nightly() { 50 } else { 2 } {
        let seen = wakes_up_outside(&[]);
        is_revoked(&seen);
    }
}

#[cfg(feature = "unprotected")]
mod unprotected {
    use super::*;

    /// The same without the fence that revokes its mappings.
    #[test]
    fn who_wakes_up_without_a_fence_would_be_noticed() {
        // It may happen to hear of it first.
        let sees_what_never_was = |_| wakes_up_outside(&["FENCE"]).is_ok();
        assert!((0..10).any(sees_what_never_was));
    }
}

#[test]
fn no_memory_is_lost_with_borrowers_that_are_killed() {
    let store = Store::up();
    let room = store.room();
    let mut keeps = store.client("2,0,0");
    keeps.set("key", "value");
    keeps.borrow("key");
    keeps.fill(400);
    let registered = || store.cluster.status()["registered_bytes"].clone();
    let before = registered();
    for n in 0..if is_nightly() { 300 } else { 30 } {
        let mut client = store.client("1,0,0");
        client.begin(&Request::Hoard(400));
        // Anywhere in a loan, with up to 60 others.
        std::thread::sleep(Duration::from_micros(n * 37 % 1500));
        client.kill();
        keeps.fill(20);
        assert_eq!(keeps.views().as_deref(), Ok("value"));
    }
    eventually("all hazard pointers are cleared", || registered() == before);
    drop(keeps);
    eventually("all memory is there again", || store.room() == room);
}

#[test]
fn a_client_that_may_not_have_more_memory_goes_on_with_what_it_has() {
    let store = Store::up();
    store.cluster.toroid("quota set 1,0,0 --bytes 128K").ok();
    let mut client = store.client("1,0,0");
    client.set("key", &"l".repeat(50_000));
    let value = "b".repeat(60_000);
    // One after the other: several would need more.
    client.set_twice("key", &value);
    let refused = client.try_set("key", &"l".repeat(100_000));
    let refused = refused.expect_err("there is no memory for it");
    for part in ["bytes", "toroid quota set 1,0,0"] {
        assert!(refused.contains(part), "{part}: {refused}");
    }
    client.set_twice("key", &value);
    assert_eq!(client.get("key"), Some(value));
}
