//! tcpdump in a node sees frames as on a wire: whole, with right checksums.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use tests::cluster::{Cluster, leaves_nothing};
use tests::process::run;
use tests::software::{WRONG_TCP, iperf3};

use crate::mix::{Mix, PAIR};

/// Checks that Wireshark makes only when told to, because of offload.
const CHECKS: [&str; 3] = [
    "ip.check_checksum",
    "tcp.check_checksum",
    "udp.check_checksum",
];

const MTU: usize = 1500;

/// Frames that are broken, or that no wire of this MTU could carry.
fn wrong() -> String {
    let ip = "ip.checksum.status == 0 || icmp.checksum.status == 0 || icmpv6.checksum.status == 0";
    let udp = "udp.checksum.status == 0 || udp.length.bad";
    format!("{ip} || {WRONG_TCP} || {udp} || ip.bogus_ip_length || _ws.malformed")
}

/// Captures at `1,0,0` all that iperf3 sends and receives there in both directions.
fn capture(mix: Mix) -> (Cluster, PathBuf) {
    let cluster = Cluster::up("2x1x1");
    let mtu = ["--mtu", &MTU.to_string()];
    let _blue = mix.domain_with(&cluster, "blue", PAIR, &mtu);
    let tcpdump = cluster.spawn("1,0,0", "tcpdump -i blue -B 32768 -w /run/capture");
    tcpdump.warns("listening on blue");
    for options in [
        "-n 2M -4",
        "-n 2M -4 -R",
        "-n 2M -6",
        "-n 2M -6 -R",
        "-u -n 1M -b 100M -l 4000 -4",
        "-u -n 1M -b 100M -l 1000 -6 -R",
    ] {
        let _ = iperf3(&cluster, "0,0,0", "1,0,0", "1-0-0.blue", options);
    }
    cluster.reaches("0,0,0", "-s 5000 1-0-0.blue");
    cluster.exec("1,0,0", "pkill -INT tcpdump").ok();
    let end = tcpdump.wait().ok();
    assert!(end.stderr.contains("0 packets dropped by kernel"), "{end}");
    let written = cluster.exec("1,0,0", "cat /run/capture").ok();
    let file = cluster.files().join("capture");
    fs::write(&file, written.stdout).expect("there is room");
    (cluster, file)
}

/// The frames of a capture that match a filter of tshark, as tshark prints them.
fn frames(capture: &Path, like: &str) -> Vec<String> {
    let mut tshark = Command::new("tshark");
    tshark.arg("-r").arg(capture).args(["-n", "-Y", like]);
    // A port chosen by the kernel may be that of a protocol, as which the payload would be malformed.
    for protocol in ["tcp", "udp"] {
        tshark.args(["-d", &format!("{protocol}.port==1-65535,data")]);
    }
    for check in CHECKS {
        tshark.args(["-o", &format!("{check}:TRUE")]);
    }
    let told = run(&mut tshark).ok();
    told.text().lines().map(str::to_owned).collect()
}

#[track_caller]
fn has_none(capture: &Path, like: &str) {
    let found = frames(capture, like);
    let some = &found[..found.len().min(10)];
    assert!(
        found.is_empty(),
        "{} are {like}, such as {some:#?}",
        found.len()
    );
}

fn is_what_a_wire_would_carry(mix: Mix) {
    leaves_nothing(|| {
        let (_cluster, capture) = capture(mix);
        has_none(&capture, &wrong());
        has_none(&capture, &format!("frame.len > {}", MTU + 14));
        // And it was looked at.
        for protocol in ["tcp", "udp"] {
            for family in ["ip", "ipv6"] {
                let checked = format!("{family} && {protocol}.checksum.status == 1");
                let frames = frames(&capture, &checked).len();
                assert!(frames > 100, "{frames} are {checked}");
            }
        }
    });
}

#[test]
fn between_two_without_offload() {
    is_what_a_wire_would_carry(Mix::Plain);
}

/// Packets of the other node are segmented for the node without offload.
#[test]
fn at_one_without_offload() {
    is_what_a_wire_would_carry(Mix::Mixed);
}

/// So the look can fail.
#[test]
fn with_offload_it_is_not() {
    let (_cluster, capture) = capture(Mix::Offloaded);
    assert!(!frames(&capture, &wrong()).is_empty());
    let too_long = format!("frame.len > {}", MTU + 14);
    assert!(!frames(&capture, &too_long).is_empty());
}
