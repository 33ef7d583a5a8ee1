//! Data between hosts is encrypted, unless the files of both say otherwise.

use std::fs;

use nix::sys::signal::Signal;
use tests::cluster::leaves_nothing;
use tests::hosts::{Host, Hosts, Oddities};
use tests::process::eventually;
use tests::software::iperf3_server;

/// A value in the store, which one-sided reads and packets carry.
const VALUE: &str = "tellurium hyacinth quagga obsidian";

/// Bytes of echo requests, which frames carry.
const PING: &str = "6d61726d616c6164652d70656e67756e";
const PING_TEXT: &[u8] = b"marmalade-pengun";

/// Argument and output of a command on the other host.
const COMMAND: &str = "cinnabar-wildebeest";

/// What iperf3 sends with `--repeating-payload`.
const STREAM: &[u8] = b"01234567890123456789012345678901234567890123456789";

const OFF: Oddities<'_> = Oddities {
    encryption: Some("off"),
    ..Oddities::RIGHT
};

/// Uses every path between two hosts, with known bytes in memory, packets, frames and commands. Returns what
/// went over the cable meanwhile.
fn traffic(a: &Host, b: &Host) -> Vec<u8> {
    a.trunk_to("b");
    b.trunk_to("a");
    let file = a.agent.files().join("capture");
    let name = file.to_str().unwrap();
    let capture = a.spawn(
        "tcpdump",
        &[
            "-i", "eth0", "-s", "0", "-B", "65536", "-Z", "root", "-w", name,
        ],
    );
    capture.warns("listening on eth0");
    let store = b.agent.store("0,1,0", "");
    let kv = |words: &str| a.agent.exec("0,0,0", &format!("toroid-kv {words}"));
    let value = VALUE.replace(' ', "-").repeat(20);
    kv(&format!("set key {value}")).ok();
    for _ in 0..3 {
        assert_eq!(kv("get key").ok().text(), value);
    }
    a.agent.ask("ping 0,0,0 1,1,0 --count 3");
    let ping = format!("ping -c 3 -s 1000 -p {PING} 1-1-0.blue");
    a.agent.exec("0,0,0", &ping).ok();
    let command = a.agent.exec("1,1,0", &format!("echo {COMMAND}")).ok();
    assert_eq!(command.text(), COMMAND);
    let server = iperf3_server(&b.agent, "1,1,0");
    let stream = "iperf3 -J --repeating-payload -n 4M -c 1-1-0.blue";
    a.agent.exec("0,0,0", stream).ok();
    server.wait().ok();
    drop(store);
    capture.signal(Signal::SIGINT);
    capture.wait().ok();
    let bytes = fs::read(&file).unwrap();
    // The capture loses some when the machine is busy.
    assert!(bytes.len() > 1 << 20, "{} bytes", bytes.len());
    bytes
}

/// Whether each known text is among the bytes.
fn found(bytes: &[u8]) -> [bool; 4] {
    let value = VALUE.replace(' ', "-");
    [value.as_bytes(), PING_TEXT, STREAM, COMMAND.as_bytes()].map(|text| {
        let mut windows = bytes.windows(text.len());
        windows.any(|window| window == text)
    })
}

#[test]
fn nothing_of_memory_packets_frames_and_commands_is_seen_between_hosts() {
    leaves_nothing(|| {
        let hosts = Hosts::up(2);
        let [a, b] = hosts.each();
        a.agent.domain("blue", &["*,*,0"]);
        hosts.agree();
        assert_eq!(found(&traffic(a, b)), [false; 4]);
        let status = a.agent.toroid("status").ok();
        let on = "encryption on: all data between hosts, by ";
        assert!(status.text().contains(on), "{status}");
        let explain = b.agent.toroid("explain 0,0,0 0,1,0").ok();
        let both = explain
            .text()
            .matches("encryption of the connection")
            .count();
        assert_eq!(both, 2, "{explain}");
        let doctor = a.agent.toroid("doctor");
        assert!(doctor.text().contains("all data between hosts"), "{doctor}");
    });
}

/// The test before could not fail otherwise.
#[test]
fn all_of_it_is_seen_with_encryption_off_and_the_commands_say_so() {
    let hosts = Hosts::down_yet(2);
    let [a, b] = hosts.each();
    a.try_up(OFF).ok();
    b.try_up(OFF).ok();
    a.agent.domain("blue", &["*,*,0"]);
    hosts.agree();
    assert_eq!(found(&traffic(a, b)), [true; 4]);
    let status = a.agent.toroid("status").ok();
    assert!(status.text().contains("encryption OFF: "), "{status}");
    let explain = b.agent.toroid("explain 0,0,0 0,1,0").ok();
    let both = explain.text().matches("nothing is encrypted").count();
    assert_eq!(both, 2, "{explain}");
    let doctor = a.agent.toroid("doctor");
    assert!(doctor.text().contains("remove `encryption`"), "{doctor}");
    let in_the_clear = |words: &str| {
        let refused = b.agent.toroid(words);
        refused.fails(6, &["is sealed", "encryption = \"off\""]);
    };
    in_the_clear("domain create red 0,0,0 0,1,0 --sealed");
    in_the_clear("domain set blue --sealed true");
    b.agent.toroid("domain create red *,1,0 --sealed").ok();
    in_the_clear("domain grow red 0,0,0");
    b.agent.toroid("domain rm red").ok();
    // Connections of the time before do not outlive it.
    for host in [a, b] {
        host.agent.kill_agent();
    }
    a.up();
    b.up();
    hosts.agree();
    b.agent.toroid("domain set blue --sealed true").ok();
    assert_eq!(found(&traffic(a, b)), [false; 4]);
}

#[test]
fn one_side_without_encryption_is_refused_by_name_on_both() {
    let hosts = Hosts::down_yet(2);
    let [a, b] = hosts.each();
    a.up();
    for (file, words) in [
        (OFF, "host b has encryption off, and host a on"),
        (
            Oddities {
                encryption: Some("on"),
                ..OFF
            },
            "",
        ),
    ] {
        b.try_up(file).ok();
        if words.is_empty() {
            b.trunk_to("a");
            a.agent.domain("blue", &["*,*,0"]);
            hosts.agree();
            a.agent.reaches("0,0,0", "1-1-0.blue");
        } else {
            b.objects_to("a", words);
            a.objects_to("b", words);
            assert_ne!(b.about("a")["frames"], true);
            let domain = a.agent.toroid("domain create blue 0,0,0 0,1,0");
            domain.fails(4, &["no host carries 0,1,0 yet"]);
            b.agent.down();
        }
    }
    // Members of one domain are cut from each other when one of the hosts starts so.
    b.agent.kill_agent();
    b.try_up(OFF).ok();
    b.objects_to("a", "encryption off");
    eventually("no frame passes", || b.about("a")["frames"] != true);
    let address = a.agent.existing("blue").ipv4("1,1,0");
    a.agent.cannot_reach("0,0,0", &address);
}
