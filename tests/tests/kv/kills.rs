//! Clients that are killed in the middle of a set, and servers that are killed while clients know where
//! their items were.

use std::time::Duration;

use tests::actor::Request;
use tests::cluster::is_nightly;
use tests::process::eventually;

use crate::store::Store;

/// Whether it is one of the values that are set again and again: as many bytes of one letter.
fn is_whole(value: &str) -> bool {
    let one = |letter: &str, len| value.len() == len && value.replace(letter, "").is_empty();
    one("a", 100) || one("b", 100_000) || one("c", 4096) || one("d", 50_000)
}

#[test]
fn no_memory_is_lost_with_clients_that_die_while_they_set() {
    let kills = if is_nightly() { 1000 } else { 100 };
    let store = Store::up();
    let room = store.room();
    let mut witness = store.client("2,0,0");
    for n in 0..kills {
        let mut client = store.client("1,0,0");
        client.begin(&Request::Hammer("key".into()));
        // Anywhere in the sets that take some microseconds each.
        std::thread::sleep(Duration::from_micros(n * 37 % 1500));
        client.kill();
        let got = witness.get("key");
        let is_torn = got.as_ref().filter(|value| !is_whole(value));
        assert!(
            is_torn.is_none(),
            "{:?} torn bytes",
            is_torn.map(String::len)
        );
    }
    witness.set("key", "after");
    // Requests of the last client are under way until the server notices its end.
    eventually("all memory is there again", || store.room() == room);
    assert_eq!(witness.get("key"), None);
}

/// The places that a client knows are where the next server has other items, or the same keys again.
#[test]
fn who_knows_places_of_a_killed_server_gets_no_value_of_it_from_the_next() {
    let mut store = Store::up();
    let (mut old, mut new) = (store.client("1,0,0"), store.client("2,0,0"));
    for round in 0..if is_nightly() { 100 } else { 3 } {
        let (before, after) = (format!("before{round}"), format!("after{round}"));
        old.set("key", &before);
        assert_eq!(old.get("key").as_ref(), Some(&before));
        store.kill_server();
        store.serve_again();
        new.reconnect();
        new.set("key", &after);
        new.fill(100);
        let got = old.try_get("key");
        let is_new = |value: Option<String>| value.as_ref() == Some(&after);
        assert!(got.clone().map_or(true, is_new), "it got {got:?}");
        old.reconnect();
        assert_eq!(old.get("key").as_ref(), Some(&after));
    }
}

/// Memory that a known place leads to is used for other keys and for the same, again and again.
#[test]
fn who_knows_a_place_gets_what_its_key_is_after_the_memory_was_used_again() {
    let store = Store::up();
    let (mut knows, mut sets) = (store.client("1,0,0"), store.client("2,0,0"));
    for round in 0..5 {
        let value = format!("value{round}");
        sets.set("key", &value);
        assert_eq!(knows.get("key").as_ref(), Some(&value));
        assert_eq!(knows.get("key").as_ref(), Some(&value));
        if round % 2 == 0 {
            assert!(store.say(b"delete key\r\n").starts_with("DELETED"));
        }
        // Half of the memory, twice.
        sets.fill(400);
        sets.fill(400);
        let expected = if round % 2 == 0 { None } else { Some(value) };
        assert_eq!(knows.get("key"), expected);
    }
}
