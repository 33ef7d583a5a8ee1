//! Offload between nodes, and the segmentation for receivers without it.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use nix::sys::signal::Signal;
use serde_json::{Value, json};
use tests::cluster::Cluster;
use tests::process::{eventually, run, send};
use tests::software::WRONG_TCP;

/// A file header is all that there is before the first frame.
const PCAP_HEADER: u64 = 24;

/// tcpdump in a node. The node's root may not write to the test's directory, but to a file that the
/// test has opened.
struct Capture {
    tcpdump: Child,
    file: PathBuf,
}

impl Capture {
    fn start(cluster: &Cluster, node: &str, interface: &str) -> Self {
        let file = cluster.files().join(format!("{node}.pcap"));
        let argv = [
            "tcpdump", "-Z", "root", "-U", "-B", "65536", "-i", interface, "-w", "-",
        ];
        let tcpdump = cluster
            .in_node(node, &argv)
            .stdin(Stdio::null())
            .stdout(File::create(&file).expect("a file"))
            .stderr(Stdio::null())
            .spawn()
            .expect("it starts");
        eventually("tcpdump listens", || {
            fs::metadata(&file).is_ok_and(|file| file.len() >= PCAP_HEADER)
        });
        Capture { tcpdump, file }
    }

    fn end(mut self) -> Captured {
        send(self.tcpdump.id(), Signal::SIGINT);
        self.tcpdump.wait().expect("it ends");
        Captured(self.file)
    }
}

struct Captured(PathBuf);

impl Captured {
    /// How many of its frames are so, in the words of tshark, which checks all checksums.
    fn count(&self, what: &str) -> usize {
        let mut tshark = Command::new("tshark");
        for protocol in ["ip", "tcp", "udp"] {
            tshark.args(["-o", &format!("{protocol}.check_checksum:TRUE")]);
        }
        tshark.arg("-r").arg(&self.0).args(["-Y", what]);
        run(&mut tshark).ok().text().lines().count()
    }

    /// Those that no cable would carry, where the MTU is 1500.
    fn unfinished(&self) -> usize {
        let wrong = ["ip", "udp"].map(|of| format!("{of}.checksum.status == 0"));
        let wrong = wrong.join(" || ");
        self.count(&format!("frame.len > 1514 || {wrong} || {WRONG_TCP}"))
    }
}

/// Streams in both directions between two nodes of `blue`.
fn exchange(cluster: &Cluster, a: &str, b: &str) {
    let name = format!("{}.blue", b.replace(',', "-"));
    for options in [
        "-4 -n 4M",
        "-4 -n 4M -R",
        "-6 -n 4M",
        "-6 -n 4M -R",
        "-u -n 1M -b 100M -l 8000",
    ] {
        let server = cluster.spawn(b, "iperf3 -s -1 --forceflush");
        server.says("listening");
        cluster.exec(a, &format!("iperf3 -c {name} {options}")).ok();
        server.wait().ok();
    }
}

#[test]
fn plain_members_see_whole_frames_and_others_super_frames() {
    let cluster = Cluster::up("3x1x1");
    let nodes = ["0,0,0", "1,0,0"];
    cluster
        .toroid(&format!("domain create blue {} --mtu 1500", nodes[0]))
        .ok();
    let grow = format!("domain grow blue {} --offload off", nodes[1]);
    cluster.toroid(&grow).ok();
    let captures = nodes.map(|node| Capture::start(&cluster, node, "blue"));
    exchange(&cluster, nodes[0], nodes[1]);
    let [other, plain] = captures.map(Capture::end);
    assert!(plain.count("tcp && frame.len == 1514") > 1000);
    assert_eq!(plain.unfinished(), 0);
    assert!(other.unfinished() > 0, "nothing was left undone at all");
}

#[test]
fn who_is_plain_stays_so() {
    let cluster = Cluster::up("2x1x1");
    let create = "domain create blue *,0,0 --offload off --mtu 1500";
    cluster.toroid(create).ok();
    let is_plain = || {
        let info = cluster.ask("domain show blue");
        let members = info["members"].as_array().expect("a list").clone();
        assert!(
            members.iter().all(|member| member["plain"] == true),
            "{info}"
        );
        let capture = Capture::start(&cluster, "0,0,0", "blue");
        exchange(&cluster, "0,0,0", "1,0,0");
        assert_eq!(capture.end().unfinished(), 0);
    };
    is_plain();
    cluster.kill_driver();
    is_plain();
    cluster.kill_agent();
    cluster.toroid("up").ok();
    is_plain();
    let node = cluster.node_pids()[0];
    send(node, Signal::SIGKILL);
    eventually("the node is back", || cluster.node_pids()[0] != node);
    eventually("with its interface", || {
        cluster.exec("1,0,0", "ping -c 1 -W 1 0-0-0.blue").status == 0
    });
    is_plain();
    let dump = cluster.toroid("dump").ok();
    assert!(
        dump.text().contains("plain = [\"0,0,0\", \"1,0,0\"]"),
        "{}",
        dump.text()
    );
}

#[test]
fn a_host_does_without_offload_until_it_is_told_otherwise() {
    let cluster = Cluster::down_yet();
    cluster.toroid("up --torus 2x1x1 --offload off").ok();
    assert_eq!(cluster.status()["offload"], json!([]));
    let create = "domain create blue *,0,0 --mtu 1500";
    cluster.toroid(create).ok();
    let unfinished = || {
        let capture = Capture::start(&cluster, "1,0,0", "blue");
        exchange(&cluster, "0,0,0", "1,0,0");
        capture.end().unfinished()
    };
    assert_eq!(unfinished(), 0);
    cluster.kill_agent();
    cluster.toroid("up").ok();
    assert_eq!(unfinished(), 0, "the next agent has them as they are");
    cluster.kill_agent();
    cluster.toroid("up --offload on").ok();
    let has = |kind: &str| {
        let offload: Value = cluster.status()["offload"].clone();
        offload
            .as_array()
            .is_some_and(|all| all.contains(&kind.into()))
    };
    assert!(has("checksum") && has("tso4") && has("tso6"));
    assert!(unfinished() > 0);
}

/// Sends numbered datagrams to a port of an address, the last of them a shorter one.
const BURST: &str = "
import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.connect((sys.argv[1], 9000))
for n in range(40):
    s.send(b\"%d \" % n + b\"x\" * (500 if n == 39 else 1000))
";

/// Prints the number and the length of each datagram that comes to that port.
const HEAR: &str = "
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind((\"\", 9000))
print(\"listening\", flush=True)
while True:
    number, payload = s.recv(2000).split(b\" \")
    print(int(number), len(payload), flush=True)
";

/// A kernel works through all of its layers for each packet that its interface receives, so a driver that
/// handed on each datagram by itself lost two thirds of a flood.
#[test]
fn datagrams_that_wait_together_cross_together() {
    let cluster = Cluster::up("3x1x1");
    let create = "domain create blue 0-1,0,0 --ethernet driver";
    cluster.toroid(create).ok();
    let blue = cluster.existing("blue");
    let plain = "domain grow blue 2,0,0 --offload off";
    cluster.toroid(plain).ok();
    let program = |name: &str, text: &str| {
        let path = cluster.files().join(name);
        fs::write(&path, text).expect("there is room");
        format!("/usr/bin/python3 {}", path.display())
    };
    let (burst, hear) = (program("burst.py", BURST), program("hear.py", HEAR));
    let packets = |node: &str| -> u64 {
        let file = "/sys/class/net/blue/statistics/rx_packets";
        let count = cluster.exec(node, &format!("cat {file}")).ok();
        count.text().parse().expect("a number")
    };
    let driver = cluster.driver_pid().expect("there is a driver");
    for (node, together) in [("1,0,0", true), ("2,0,0", false)] {
        let to = blue.ipv4(node);
        let mut receiver = cluster.spawn(node, &hear);
        assert_eq!(receiver.line(), "listening");
        cluster.reaches("0,0,0", &to);
        let before = packets(node);
        send(driver, Signal::SIGSTOP);
        cluster.exec("0,0,0", &format!("{burst} {to}")).ok();
        send(driver, Signal::SIGCONT);
        for n in 0..40 {
            let len = if n == 39 { 500 } else { 1000 };
            assert_eq!(receiver.line(), format!("{n} {len}"));
        }
        let crossed = packets(node) - before;
        assert_eq!(crossed < 40, together, "{node}: {crossed}");
    }
}
