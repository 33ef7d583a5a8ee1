//! `cache_memlimit`, up and down while others set and get.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};

use tests::actor::Request;
use tests::process::eventually;

use crate::servers::{Connection, Memcached, Server, Toroid, ask_both, number};
use crate::store::Store;

/// Bytes of a value.
const VALUE: usize = 10_000;

fn stat(connection: &mut Connection, kind: &str, name: &str) -> u64 {
    number(
        &connection.ask(&format!("stats {kind}\r\n"), "END\r\n"),
        name,
    )
}

fn limit(connection: &mut Connection, mib: u64) -> String {
    connection.ask(&format!("cache_memlimit {mib}\r\n"), "\r\n")
}

/// Sets and gets values of one letter until the end, each of which has to be as it was set.
fn load(mut connection: Connection, number: u32, ends: &AtomicBool) {
    let letters = (b'a'..=b'z').map(char::from).cycle();
    for (n, letter) in (0u32..).zip(letters) {
        if ends.load(Ordering::Relaxed) {
            return;
        }
        let value = letter.to_string().repeat(VALUE);
        let key = format!("load{number}-{}", n % 500);
        let set = format!("set {key} 0 0 {VALUE}\r\n{value}\r\n");
        assert_eq!(connection.ask(&set, "\r\n"), "STORED\r\n");
        let got = connection.ask(&format!("get {key}\r\n"), "END\r\n");
        let whole = format!("VALUE {key} 0 {VALUE}\r\n{value}\r\nEND\r\n");
        assert!(got == whole || got == "END\r\n", "{got:.200}");
    }
}

/// Sets so many values more, and returns how many bytes are kept.
fn fill(connection: &mut Connection, from: u32, count: u32) -> u64 {
    let value = "v".repeat(VALUE);
    for n in from..from + count {
        let set = format!("set fill{n} 0 0 {VALUE}\r\n{value}\r\n");
        connection.ask(&set, "STORED\r\n");
    }
    stat(connection, "", "bytes")
}

#[test]
fn the_limit_goes_up_and_down_while_others_set_and_get() {
    let server = Toroid::start_with(&["-m", "64"]);
    let (mut asks, ends) = (server.connect(), AtomicBool::new(false));
    let resident = || {
        let status = fs::read_to_string(format!("/proc/{}/status", server.server.pid()));
        let status = status.expect("it runs");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib = line.and_then(|line| line.trim().strip_suffix(" kB"));
        kib.and_then(|kib| kib.parse::<u64>().ok()).expect("KiB") << 10
    };
    const MIB: u64 = 1 << 20;
    std::thread::scope(|scope| {
        for number in 0..2 {
            let connection = server.connect();
            let ends = &ends;
            scope.spawn(move || load(connection, number, ends));
        }
        for round in 0..3 {
            assert_eq!(limit(&mut asks, 128), "OK\r\n");
            let kept = fill(&mut asks, round * 20_000, 15_000);
            assert!((96 * MIB..=128 * MIB).contains(&kept), "{kept}");
            assert!(resident() > 96 * MIB);
            assert_eq!(limit(&mut asks, 16), "OK\r\n");
            assert_eq!(stat(&mut asks, "", "limit_maxbytes"), 16 * MIB);
            assert_eq!(stat(&mut asks, "settings", "maxbytes"), 16 * MIB);
            eventually("what is too much goes", || {
                stat(&mut asks, "", "bytes") <= 16 * MIB && resident() < 48 * MIB
            });
            let kept = fill(&mut asks, round * 20_000 + 15_000, 5_000);
            assert!((8 * MIB..=16 * MIB).contains(&kept), "{kept}");
        }
        ends.store(true, Ordering::Relaxed);
    });
    assert!(stat(&mut asks, "", "evictions") > 0);
}

#[test]
fn limits_are_answered_as_by_memcached() {
    let (theirs, ours) = (Memcached::start(), Toroid::start());
    let mut connections = [theirs.connect(), ours.connect()];
    for request in [
        "cache_memlimit",
        "cache_memlimit x",
        "cache_memlimit 0",
        "cache_memlimit 7",
        "cache_memlimit 8",
        "cache_memlimit 1024",
        "cache_memlimit 65536",
        "cache_memlimit 2000000000",
        "cache_memlimit 100 noreply\r\nmn",
        "cache_memlimit 64 x y",
    ] {
        let [theirs, ours] = ask_both(&mut connections, &format!("{request}\r\n"), "\r\n");
        assert_eq!(ours, theirs, "{request}");
        let [theirs, ours] = connections
            .each_mut()
            .map(|connection| stat(connection, "", "limit_maxbytes"));
        assert_eq!(ours, theirs, "{request}");
    }
    // There are not so many places for items.
    let refused = "MEMLIMIT_ADJUST_FAILED out of bounds or unable to adjust\r\n";
    assert_eq!(limit(&mut connections[1], 65_537), refused);
    // Addresses for more would all be filled.
    let locked = Toroid::start_with(&["-k", "-m", "64"]);
    let mut connection = locked.connect();
    assert_eq!(limit(&mut connection, 32), "OK\r\n");
    assert_eq!(limit(&mut connection, 64), "OK\r\n");
    assert_eq!(limit(&mut connection, 65), refused);
}

/// The domain's members have the region as it was made, so there is no more than that.
#[test]
fn members_read_what_is_there_while_the_limit_changes_below_that_of_the_start() {
    let store = Store::up_with("-m 32 -I 128k");
    let (mut writer, mut reader) = (store.client("1,0,0"), store.client("2,0,0"));
    let mut holder = store.client("2,0,0");
    writer.set("held", "value");
    holder.borrow("held");
    let refused = "MEMLIMIT_ADJUST_FAILED out of bounds or unable to adjust";
    assert_eq!(store.say(b"cache_memlimit 33\r\n").trim_end(), refused);
    let bytes = |expected: std::ops::Range<u64>| {
        eventually("the items are as many as may be", || {
            expected.contains(&number(&store.say(b"stats\r\n"), "bytes"))
        });
    };
    let mut hammer = store.client("1,0,0");
    hammer.begin(&Request::Hammer("hot".into()));
    for round in 0..3 {
        assert_eq!(store.say(b"cache_memlimit 32\r\n").trim_end(), "OK");
        // Of 10,000 bytes each.
        writer.fill(4000);
        bytes(20 << 20..32 << 20);
        assert_eq!(store.say(b"cache_memlimit 8\r\n").trim_end(), "OK");
        let value = format!("value{round}");
        writer.set("key", &value);
        assert_eq!(reader.get("key").as_ref(), Some(&value));
        bytes(0..8 << 20);
        assert_eq!(holder.views().as_deref(), Ok("value"));
        writer.fill(1000);
        assert_eq!(reader.get("fill999"), Some("f".repeat(10_000)));
        let got = reader.get("hot").expect("it is set all the time");
        let first = got.chars().next().expect("it is not empty");
        assert!(got.chars().all(|letter| letter == first), "{got:.100}");
    }
}
