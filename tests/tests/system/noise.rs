//! Noise of a host, and of the network between two hosts that know nothing of domains.

use std::fs;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::process::Command;
use std::thread;

use bench::noise::net::wire::{Digest, Request, VERSION, line};
use nix::sys::signal::Signal;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrIn, bind, connect, socket};
use serde_json::Value;
use tests::cluster::{Cluster, program};
use tests::outside::{Outside, host, on_a_host_of_its_own};
use tests::process::{FOR_EVER, Running, eventually, run};

fn noise(words: &str) -> Command {
    let mut command = Command::new(program("toroid-bench"));
    command.arg("noise").args(words.split_whitespace());
    command
}

/// The row of a test, by its label.
pub(crate) fn row<'a>(report: &'a Value, test: &str) -> &'a Value {
    let rows = report["rows"].as_array().expect("rows are a list");
    let found = rows.iter().find(|row| row["test"] == test);
    found.unwrap_or_else(|| panic!("no row {test} in {report}"))
}

pub(crate) fn number(row: &Value, name: &str) -> f64 {
    let value = row[name].as_f64();
    value.unwrap_or_else(|| panic!("{name} is no number in {row}"))
}

/// Whether a process handles a signal itself (`SigCgt` of proc(5)).
fn catches(pid: u32, signal: Signal) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    let caught = caught.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    caught.is_some_and(|mask| mask & (1 << (signal as u32 - 1)) != 0)
}

#[test]
fn a_single_test_of_a_host_is_chosen() {
    let report = run(&mut noise("os --quick --json --test ftq")).ok().json();
    let rows = report["rows"].as_array().expect("rows are a list");
    assert_eq!(rows.len(), 1, "{report}");
    assert_eq!(row(&report, "fixed time")["count"], 2000);
    assert!(report["spectrum"].is_array(), "{report}");
    run(&mut noise("os --test ftp")).fails(2, &["ftp", "ftq"]);
    run(&mut noise("os --test ftq --seconds 5")).fails(2, &["--seconds", "test detours"]);
}

#[test]
fn detours_end_by_number_and_by_a_signal() {
    let directory = tempfile::tempdir().expect("a directory");
    let raw = directory.path().join("raw");
    let words = format!("os --quick --json --detours 3 --raw {}", raw.display());
    let report = run(&mut noise(&words)).ok().json();
    assert_eq!(row(&report, "detours")["count"], 3);
    let samples = fs::read_to_string(&raw).expect("samples were kept");
    assert!(samples.contains("starts of detours"), "{samples}");
    run(&mut noise("os --cpu 9999")).fails(1, &["processor 9999", "--cpu"]);
    let words = format!(
        "os --detours 10000000 --seconds 3600 --raw {}",
        raw.display()
    );
    fs::remove_file(&raw).expect("it was there");
    let running = Running::start(&mut noise(&words));
    eventually("it has begun", || catches(running.pid(), Signal::SIGINT));
    running.signal(Signal::SIGINT);
    let end = running.wait();
    assert_eq!(end.status, 130, "{end}");
    let left = fs::read_dir(directory.path()).expect("it is there").count();
    assert_eq!(left, 0, "{end}");
}

const KEY: &str = "--key a-secret-of-this-test";

/// A server on a host outside, and its address.
fn server(outside: &Outside, options: &str) -> (Running, String) {
    let address = format!("{}:7471", outside.address());
    let program = program("toroid-bench");
    let words = format!(
        "{} noise serve --listen {address} {KEY} {options}",
        program.display()
    );
    let server = outside.spawn(&words);
    server.says(&format!("ready on {address}"));
    (server, address)
}

#[test]
fn two_hosts_measure_the_network_between_them() {
    on_a_host_of_its_own(|| {
        let outside = Outside::new();
        let (server, address) = server(&outside, "");
        let words = format!("connect {address} {KEY} --quick --json --bytes 1,4096,1048576");
        let report = run(&mut noise(&words)).ok().json();
        assert!(!report.to_string().contains("a-secret"), "{report}");
        let rows = report["rows"].as_array().expect("rows are a list");
        let of = |test: &str| rows.iter().filter(|row| row["test"] == test).count();
        // Datagrams have two of the three sizes.
        assert_eq!(
            ["latency", "bandwidth", "streams", "noise"].map(of),
            [5, 10, 6, 1]
        );
        for row in rows {
            assert!(
                !row["rounds"].as_array().expect("a list").is_empty(),
                "{row}"
            );
            if row["test"] == "latency" {
                let at = |name| number(row, name);
                assert!(at("min_ns") > 0.0 && at("min_ns") <= at("p50_ns"), "{row}");
                assert!(
                    at("p50_ns") <= at("p99_ns") && at("p99_ns") <= at("max_ns"),
                    "{row}"
                );
                assert_eq!(row["ci"].as_array().map(Vec::len), Some(2), "{row}");
            } else if row["test"] != "noise" {
                assert!(number(row, "bytes_per_s") > 0.0, "{row}");
            }
        }
        let both = rows
            .iter()
            .find(|row| row["streams"] == 16 && row["direction"] == "both");
        let both = both.expect("16 streams in both directions");
        assert!(number(both, "out_bytes_per_s") > 0.0 && number(both, "in_bytes_per_s") > 0.0);
        let packets = row(&report, "noise");
        for name in ["time_qcd", "latency_qcd", "detours"] {
            assert!((0.0..1.0).contains(&number(packets, name)), "{packets}");
        }
        server.signal(Signal::SIGTERM);
        assert_eq!(server.wait().status, 143);
    });
}

#[test]
fn two_nodes_of_a_domain_measure_its_memory_beside_its_network() {
    let cluster = Cluster::up("2x1x1");
    let blue = cluster.domain("blue", &["0,0,0", "1,0,0"]);
    let address = format!("{}:7471", blue.ipv4("0,0,0"));
    let bench = program("toroid-bench").display().to_string();
    let serve = format!("{bench} noise serve --listen {address} {KEY}");
    let server = cluster.spawn("0,0,0", &serve);
    server.says(&format!("ready on {address}"));
    let words = format!(
        "{bench} noise connect {address} {KEY} --quick --json --test latency,bandwidth --bytes 64,131072"
    );
    let report = cluster.exec("1,0,0", &words).ok().json();
    let rows = report["rows"].as_array().expect("rows are a list");
    let of = |test: &str, protocol: &str| -> Vec<&Value> {
        let is_of = |row: &&Value| row["test"] == test && row["protocol"] == protocol;
        rows.iter().filter(is_of).collect()
    };
    for (test, count) in [("latency", 2), ("bandwidth", 4)] {
        assert_eq!(of(test, "tcp").len(), count, "{report}");
        assert_eq!(of(test, "rdma").len(), count, "{report}");
    }
    for row in of("latency", "rdma") {
        let at = |name| number(row, name);
        assert!(at("min_ns") > 0.0 && at("min_ns") <= at("p50_ns"), "{row}");
        assert_eq!(row["rounds"].as_array().map(Vec::len), Some(10), "{row}");
    }
    for row in of("bandwidth", "rdma") {
        assert!(number(row, "min_bytes_per_s") > 0.0, "{row}");
        assert!(
            ["out", "in"].map(Value::from).contains(&row["direction"]),
            "{row}"
        );
    }
}

#[test]
fn a_stranger_gets_no_measurement() {
    on_a_host_of_its_own(|| {
        let outside = Outside::new();
        let (server, address) = server(&outside, "--max-seconds 29");
        let connect = |words: &str| run(&mut noise(&format!("connect {address} {words}")));
        connect("--key another-secret-of-16").fails(1, &[&address, "another key", "--key"]);
        connect("--key short").fails(1, &["fewer than 16 characters"]);
        let streams = format!("{KEY} --test streams");
        connect(&streams).fails(1, &["refuses", "seconds of 30", "limit is 29"]);
        run(&mut noise(&format!("connect nowhere {KEY}"))).fails(1, &["ADDRESS:PORT"]);
        let closed = format!("connect {}:7472 {KEY}", outside.address());
        run(&mut noise(&closed)).fails(1, &["cannot connect", "noise serve"]);
        let taken = format!("serve --listen 192.0.2.1:7471 {KEY}");
        run(&mut noise(&taken)).fails(1, &["cannot listen on 192.0.2.1:7471"]);
        // The server has survived all of them, and serves one client at a time.
        let words = format!("connect {address} {KEY} --test latency --bytes 1");
        let first = Running::start(&mut noise(&words));
        let sessions = || server.so_far().matches("session of").count();
        eventually("the first is served", || sessions() == 2);
        run(&mut noise(&words)).fails(1, &["refuses", "another session"]);
        first.signal(Signal::SIGINT);
        assert_eq!(first.wait().status, 130);
        eventually("the next is served", || run(&mut noise(&words)).status == 0);
        drop(server);
    });
}

/// A connection from an address of this host, with a limit of all waiting.
fn connect_from(source: Ipv4Addr, server: SocketAddrV4) -> TcpStream {
    let (tcp, flags) = (SockType::Stream, SockFlag::SOCK_CLOEXEC);
    let stream = socket(AddressFamily::Inet, tcp, flags, None).expect("a socket");
    let source = SockaddrIn::from(SocketAddrV4::new(source, 0));
    bind(stream.as_raw_fd(), &source).expect("an address of this host");
    connect(stream.as_raw_fd(), &SockaddrIn::from(server)).expect("the server listens");
    let stream = TcpStream::from(stream);
    for limit in [TcpStream::set_read_timeout, TcpStream::set_write_timeout] {
        limit(&stream, Some(FOR_EVER)).expect("a socket");
    }
    stream
}

/// Whether the server answers a greeting, which is no proof yet.
fn is_heard(mut stranger: &TcpStream) -> bool {
    let hello = Request::Hello {
        version: VERSION,
        nonce: Digest::try_from("5e".repeat(32)).expect("32 bytes"),
    };
    // The server may have closed the connection.
    let sent = stranger.write_all(&line(&hello));
    let heard = sent.and_then(|()| stranger.read(&mut [0]));
    // The kind of an error of a time-out.
    let hangs = heard
        .as_ref()
        .is_err_and(|error| error.kind() == ErrorKind::WouldBlock);
    assert!(
        !hangs,
        "the server neither answers nor closes the connection"
    );
    heard.is_ok_and(|len| len > 0)
}

/// The server listens to more connections from the client's address, so strangers have another one.
#[test]
fn strangers_end_no_session() {
    on_a_host_of_its_own(|| {
        let outside = Outside::new();
        let other = outside.subnet().replace(".0/24", ".3");
        host(&format!(
            "ip address add {other}/24 dev {}",
            outside.uplink()
        ));
        let (server, address) = server(&outside, "");
        let words = format!("connect {address} {KEY} --quick --test latency --bytes 1,4,16,64");
        let mut client = Running::start(&mut noise(&words));
        eventually("the client is served", || {
            server.so_far().contains("session of")
        });
        let other = other.parse().expect("an address");
        let at = address.parse().expect("an address and a port");
        let strangers = (0..80).map(|_| connect_from(other, at));
        let heard: Vec<TcpStream> = strangers.filter(is_heard).collect();
        // Connections of the client count as well, until their token has come.
        assert!(
            (60..=64).contains(&heard.len()),
            "{} of 80 are heard",
            heard.len()
        );
        assert!(
            !client.has_ended(),
            "the client was too fast for its strangers"
        );
        client.wait().ok();
        drop(heard);
    });
}

#[test]
fn a_peer_that_stops_or_lies_is_named() {
    on_a_host_of_its_own(|| {
        let outside = Outside::new();
        let (server, address) = server(&outside, "");
        let words = format!("connect {address} {KEY} --test latency --bytes 1");
        let client = Running::start(&mut noise(&words));
        eventually("both talk", || catches(client.pid(), Signal::SIGINT));
        server.signal(Signal::SIGSTOP);
        let stopped = format!("{address} has stopped: nothing came for 5 s");
        client.wait().fails(1, &[&stopped]);
        server.signal(Signal::SIGKILL);
        drop(server);
        for (answers, error) in [
            (
                vec!["HTTP/1.1 400 Bad Request"],
                "no message of this protocol",
            ),
            (vec![CHALLENGE, WELCOME], "lies: it does not know the key"),
            (
                vec![CHALLENGE, r#"{"welcome":{"seconds":-1}}"#],
                "no message of this protocol",
            ),
            (vec![CHALLENGE, r#""go""#], "lies: it begins no order"),
            (vec![CHALLENGE], "has closed the connection"),
        ] {
            let address = liar(answers);
            run(&mut noise(&format!("connect {address} {KEY}"))).fails(1, &[&address, error]);
        }
    });
}

const CHALLENGE: &str = concat!(
    r#"{"challenge":{"nonce":"0000000000000000000000000000000"#,
    r#"000000000000000000000000000000000"}}"#
);

const WELCOME: &str = concat!(
    r#"{"welcome":{"proof":"000000000000000000000000000000000"#,
    r#"0000000000000000000000000000000","seconds":9,"bytes":9}}"#
);

/// A server that answers each line with the next of these, whatever it says, and its address.
fn liar(answers: Vec<&'static str>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("it is bound").to_string();
    thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a client");
        let lines = BufReader::new(stream.try_clone().expect("a handle")).lines();
        for (_, answer) in lines.zip(answers) {
            // The client may have seen enough.
            let _ = writeln!(stream, "{answer}");
        }
    });
    address
}

#[test]
fn bursts_and_a_long_stream_are_measured_between_two_hosts() {
    on_a_host_of_its_own(|| {
        let outside = Outside::new();
        let (_server, address) = server(&outside, "");
        let words = format!("burst {address} {KEY} --quick --json --bytes 4096");
        let report = run(&mut noise(&words)).ok().json();
        let rows = report["rows"].as_array().expect("rows are a list");
        let waits = |in_a_row: u32| -> Vec<f64> {
            let of = rows
                .iter()
                .filter(|row| row["in_a_row"] == in_a_row && row["kept_busy"] == false);
            of.map(|row| number(row, "wait_ns")).collect()
        };
        let algorithm = [1e9, 1e6, 1e3, 1.0, 0.0, 1.0, 1e3, 1e6, 1e9];
        assert_eq!([waits(1), waits(100)], [algorithm, algorithm]);
        let verdict = &report["verdict"];
        assert!(verdict["switches"].is_boolean(), "{verdict}");
        assert!(number(verdict, "idle_ns") > 0.0 && number(verdict, "busy_ns") > 0.0);
        let words = format!("stress {address} {KEY} --quick --seconds 10 --json");
        let report = run(&mut noise(&words)).ok().json();
        let stress = row(&report, "stress");
        assert_eq!(
            stress["rounds"].as_array().map(Vec::len),
            Some(20),
            "{stress}"
        );
        assert!(number(stress, "min_bytes_per_s") > 0.0, "{stress}");
        let levels = report["levels"].as_array().expect("levels are a list");
        let ends: Vec<f64> = levels.iter().map(|level| number(level, "to_s")).collect();
        assert!(ends.is_sorted() && ends.last() == Some(&10.0), "{ends:?}");
    });
}
