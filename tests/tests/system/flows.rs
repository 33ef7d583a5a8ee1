//! Flows with a gateway: bursts start through it, busy ones go direct, and idle ones fall back.

use std::fs;
use std::thread;
use std::time::Duration;

use serde_json::Value;
use tests::cluster::{Cluster, is_nightly, program};
use tests::process::Running;

/// The rule of all stories: 500 kB within 2 s are busy.
const IDLE: Duration = Duration::from_secs(2);

/// Detour of one frame.
const LATENCY_MS: f64 = 20.0;

const GATEWAY: &str = "link set -d blue --gateway 20ms,100Mbit --direct-above 2Mbit --idle 2s";

/// Bytes of a burst: well below 500 kB, and 21 ms of the gateway's rate.
const BURST: usize = 256 << 10;

/// Frames of a burst at an MTU of 9000, and fewer than with acknowledgements.
const FRAMES: u64 = 29;

/// Answers each burst of a connection with one of the same size.
const SERVE: &str = "
import socket, sys
size = int(sys.argv[1])
with socket.create_server((\"\", 9000)) as server:
    print(\"listening\", flush=True)
    while True:
        peer, _ = server.accept()
        while peer.recv(size, socket.MSG_WAITALL):
            peer.sendall(bytes(size))
";

/// Exchanges bursts back to back, and prints the milliseconds of each exchange.
const EXCHANGE: &str = "
import socket, sys, time
size, count, address = int(sys.argv[1]), int(sys.argv[2]), (sys.argv[3], 9000)
with socket.create_connection(address) as peer:
    for _ in range(count):
        begin = time.monotonic()
        peer.sendall(bytes(size))
        assert len(peer.recv(size, socket.MSG_WAITALL)) == size
        print(1e3 * (time.monotonic() - begin), flush=True)
";

/// A server of bursts in 0,0,0, and its client in 1,0,0.
struct Bursts<'a> {
    cluster: &'a Cluster,
    _server: Running,
}

impl<'a> Bursts<'a> {
    fn start(cluster: &'a Cluster) -> Self {
        for (name, program) in [("serve.py", SERVE), ("exchange.py", EXCHANGE)] {
            fs::write(cluster.files().join(name), program).expect("there is room");
        }
        let serve = cluster.files().join("serve.py");
        let words = format!("/usr/bin/python3 {} {BURST}", serve.display());
        let server = cluster.spawn("0,0,0", &words);
        server.says("listening");
        Bursts {
            cluster,
            _server: server,
        }
    }

    /// Milliseconds of some exchanges, over a new connection.
    fn exchange(&self, count: usize) -> Vec<f64> {
        let program = self.cluster.files().join("exchange.py");
        let program = program.display();
        let words = format!("/usr/bin/python3 {program} {BURST} {count} 0-0-0.blue");
        let exchanged = self.cluster.exec("1,0,0", &words).ok();
        let times = exchanged.text().lines().map(|line| line.parse());
        let times: Result<Vec<f64>, _> = times.collect();
        let times = times.expect("milliseconds");
        assert_eq!(times.len(), count);
        times
    }
}

/// Frames by the gateway and direct, and switches, from 1,0,0 to 0,0,0 and back.
fn flows(cluster: &Cluster) -> [[u64; 3]; 2] {
    let shown = cluster.ask("link show -d blue 1,0,0 0,0,0");
    [0, 1].map(|n| {
        let flows = &shown["links"][n]["flows"];
        let count = |key: &str| flows[key].as_u64();
        ["gateway", "direct", "switches"].map(|key| count(key).unwrap_or_else(|| panic!("{shown}")))
    })
}

/// Exchanges single bursts after an idle time until one takes the gateway both ways: the kernel may
/// send a frame of its own in between.
#[track_caller]
fn falls_back(bursts: &Bursts<'_>) {
    for _ in 0..5 {
        let before = flows(bursts.cluster);
        thread::sleep(IDLE);
        let times = bursts.exchange(1);
        let after = flows(bursts.cluster);
        if (0..2).all(|n| before[n][1..] == after[n][1..]) {
            assert!(times[0] >= 2.0 * LATENCY_MS, "{times:?}");
            return;
        }
    }
    panic!("the flows stay direct: {:?}", flows(bursts.cluster));
}

#[test]
fn bursts_start_at_the_gateway_switch_and_fall_back() {
    let cluster = Cluster::up("3x1x1");
    let blue = cluster.domain("blue", &["*,0,0"]);
    let bursts = Bursts::start(&cluster);
    assert_eq!(
        cluster.ask("link show -d blue")["links"][0]["flows"],
        Value::Null
    );
    cluster.toroid(GATEWAY).ok();

    // Idle: a burst alone is not busy.
    let times = bursts.exchange(1);
    assert!(times[0] >= 2.0 * LATENCY_MS, "{times:?}");
    let idle = flows(&cluster);
    for [gateway, direct, switches] in idle {
        assert!(gateway > FRAMES, "{idle:?}");
        assert_eq!((direct, switches), (0, 0), "{idle:?}");
    }

    // Busy: both directions switch, and stay direct over changes that concern others.
    bursts.exchange(16);
    let busy = flows(&cluster);
    for n in 0..2 {
        assert!(busy[n][0] > idle[n][0] && busy[n][1] > FRAMES, "{busy:?}");
        assert!(busy[n][2] >= 1, "{busy:?}");
    }
    cluster
        .toroid("link set -d blue 0,0,0 2,0,0 --loss 1%")
        .ok();
    bursts.exchange(16);
    let still = flows(&cluster);
    assert!(
        (0..2).all(|n| still[n][1] > busy[n][1] + 10 * FRAMES),
        "{still:?}"
    );

    falls_back(&bursts);
    let text = cluster.toroid("link show -d blue").ok();
    assert!(text.text().contains(" frames by the gateway, "), "{text}");

    // A shrink forgets the flows of the leaver, here right after bursts.
    bursts.exchange(16);
    blue.shrink(&["1,0,0"]);
    blue.grow(&["1,0,0"]);
    let times = bursts.exchange(1);
    assert!(times[0] >= 2.0 * LATENCY_MS, "{times:?}");
    for [gateway, direct, switches] in flows(&cluster) {
        assert!(gateway > FRAMES);
        assert_eq!((direct, switches), (0, 0));
    }
}

/// RDMA has no gateway.
#[test]
fn a_gateway_slows_the_first_frames_and_no_rdma() {
    let cluster = Cluster::up("2x1x1");
    let _blue = cluster.domain("blue", &["*,0,0"]);
    cluster.toroid(GATEWAY).ok();
    let ping = cluster.ask("ping 0,0,0 1,0,0 -d blue -c 5");
    let least = |path: &str| {
        let paths = ping["paths"].as_array().expect("paths are a list");
        let found = paths.iter().find(|its| its["path"] == path);
        let ns = found.and_then(|its| its["min_ns"].as_f64());
        ns.unwrap_or_else(|| panic!("no {path}: {ping}")) / 1e6
    };
    assert!(least("ethernet") >= 2.0 * LATENCY_MS, "{ping}");
    let shown = cluster.ask("link show -d blue");
    let [rdma, flows] = ["rdma", "flows"].map(|key| &shown["links"][0][key]);
    assert_eq!(rdma["transfers"], 0, "{shown}");
    assert!(flows["gateway"].as_u64() >= Some(10), "{shown}");
    assert_eq!(
        (&flows["direct"], &flows["switches"]),
        (&0.into(), &0.into())
    );
}

/// TCP starts slowly after an idle second, with and without a gateway.
#[test]
fn a_gateway_is_told_from_the_slow_start_of_tcp() {
    if !is_nightly() {
        return;
    }
    const KEY: &str = "--key of-this-story-alone";
    let cluster = Cluster::up("2x1x1");
    let _blue = cluster.domain("blue", &["*,0,0"]);
    let bench = program("toroid-bench");
    let noise = format!("{} noise", bench.display());
    let words = format!("{noise} serve --listen 0.0.0.0:7471 {KEY}");
    let server = cluster.spawn("0,0,0", &words);
    server.says("ready on");
    let switches = || {
        let words = format!("{noise} burst 0-0-0.blue:7471 {KEY} --quick --json");
        let report = cluster.exec("1,0,0", &words).ok().json();
        report["verdict"]["switches"].clone()
    };
    assert_eq!(switches(), false);
    let gateway = "--gateway 500us,20Gbit --direct-above 400Mbit --idle 50ms";
    cluster.toroid(&format!("link set -d blue {gateway}")).ok();
    assert_eq!(switches(), true);
    cluster.toroid("link rm -d blue").ok();
    assert_eq!(switches(), false);
}
