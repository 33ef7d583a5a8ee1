//! Connections that the server ends: those that are idle, and those that speak another protocol.

use std::process::Command;

use tests::process::{eventually, run};

use crate::servers::{Connection, Server, Toroid, number};

/// Clients of the binary protocol used to wait for their own time-out, 5 s for each command.
#[test]
fn clients_of_the_binary_protocol_are_closed_at_once_and_the_log_says_why() {
    let server = Toroid::start();
    // A request of 24 bytes, "no operation", complete and not.
    let mut noop = vec![0x80, 0x0a];
    noop.resize(24, 0);
    for request in [&noop[..], &noop[..1]] {
        let mut client = server.connect();
        client.send(request).expect("it listens");
        assert_eq!(client.receive(None), b"");
    }
    let mut cat = Command::new("memccat");
    let place = format!("--servers=127.0.0.1:{}", server.port);
    let cat = run(cat.args(["--binary", &place, "key"])).fails_somehow();
    // Later than at the beginning it is a wrong command like any other.
    let mut text = server.connect();
    assert_eq!(text.ask("mn\r\n\u{80}\r\n", "ERROR\r\n"), "MN\r\nERROR\r\n");
    let stats = text.ask("stats\r\n", "END\r\n");
    let count = number(&stats, "binary_clients_refused");
    assert!(count >= 3, "{count} of two and {cat}");
    let said = server.server.complaints_so_far();
    assert_eq!(said.matches("binary protocol").count(), 1, "{said}");
    assert!(
        said.contains("MEMCACHED_BEHAVIOR_BINARY_PROTOCOL=0"),
        "{said}"
    );
}

/// A reply of 40 MB that was read slowly once ended after 3.9 MB, and a value after its beginning.
#[test]
fn only_idle_connections_time_out() {
    let server = Toroid::start_with(&["-o", "idle_timeout=1"]);
    let value = "v".repeat(1_000_000);
    let mut slow = server.connect();
    slow.ask(&format!("set k 0 0 1000000\r\n{value}\r\n"), "STORED\r\n");
    slow.send(format!("get{}\r\n", " k".repeat(40)).as_bytes())
        .expect("it reads");
    let mut halfway = server.connect();
    halfway.send(b"set half 0 0 4\r\n12").expect("it reads");
    // It comes after them, and so its time is over after theirs.
    let mut idle = server.connect();
    idle.send(b"mn\r\nge").expect("it reads");
    assert_eq!(idle.receive(None), b"MN\r\n");
    assert_eq!(halfway.ask("34\r\n", "STORED\r\n"), "STORED\r\n");
    let reply = slow.receive(Some(b"END\r\n"));
    let one = "VALUE k 0 1000000\r\n\r\n".len() + value.len();
    assert_eq!(reply.len(), 40 * one + "END\r\n".len());
    let stats = slow.ask("stats\r\n", "END\r\n");
    assert!(stats.contains("STAT idle_kicks 1\r\n"), "{stats}");
}

/// The count stayed 0.
#[test]
fn clients_that_have_to_wait_for_others_to_leave_are_counted() {
    let server = Toroid::start_with(&["-c", "1", "-o", "no_maxconns_fast"]);
    let mut first = server.connect();
    let has = |client: &mut Connection, words: &[&str]| {
        let told = client.ask("stats\r\n", "END\r\n");
        words
            .iter()
            .all(|word| told.contains(&format!("STAT {word}\r\n")))
    };
    let open = ["accepting_conns 1", "listen_disabled_num 0"];
    assert!(has(&mut first, &open));
    let mut second = server.connect();
    second.send(b"mn\r\n").expect("the system reads");
    let waits = ["accepting_conns 0", "listen_disabled_num 1"];
    eventually("it is seen to wait", || has(&mut first, &waits));
    drop(first);
    assert_eq!(second.receive(Some(b"MN\r\n")), b"MN\r\n");
    let open = ["accepting_conns 1", "listen_disabled_num 1"];
    assert!(has(&mut second, &open));
    assert!(!has(&mut second, &["time_in_listen_disabled_us 0"]));
}
