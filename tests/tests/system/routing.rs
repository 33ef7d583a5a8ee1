//! Routes through an emulated torus, which senders choose by what their messages met.

use std::fs;

use serde_json::{Value, json};
use tests::cluster::Cluster;
use tests::software::iperf3;

const USAGE: i32 = 2;

/// A torus of eight nodes with the costs of Blue Gene/P.
fn torus() -> Cluster {
    let cluster = Cluster::down_yet();
    cluster.toroid("up --torus 2x2x2 --fabric bgp").ok();
    cluster
}

/// The choice of routes from 1,1,0 to 0,0,0, as `toroid link show` reports it.
#[track_caller]
fn routing(cluster: &Cluster, domain: &str) -> Value {
    let shown = cluster.ask(&format!("link show -d {domain} 1,1,0 0,0,0"));
    shown["links"][0]["routing"].clone()
}

/// Bytes of all modes of a path.
fn bytes(counters: &Value) -> u64 {
    let modes = counters["modes"].as_object().expect("modes are a table");
    let bytes = modes.values().map(|mode| mode["bytes"].as_u64());
    bytes.map(|bytes| bytes.expect("a number")).sum()
}

#[test]
fn stock_programs_decide_on_routes_under_auto() {
    // The server may end before the last bytes have arrived.
    const SENT: u64 = 100_000;
    const VALUE: usize = 1 << 16;
    let cluster = torus();
    let _blue = cluster.domain("blue", &["*,*,0"]);
    assert_eq!(routing(&cluster, "blue"), Value::Null);
    cluster.toroid("link set -d blue --routing auto").ok();
    let _server = cluster.store("0,0,0", "");
    let value = vec![7; VALUE];
    cluster.exec_with("1,1,0", "toroid-kv set key", &value).ok();
    let got = cluster.exec("1,1,0", "toroid-kv get key").ok();
    assert_eq!(got.stdout, value);
    iperf3(&cluster, "1,1,0", "0,0,0", "0-0-0.blue", "-n 2M");

    let shown = routing(&cluster, "blue");
    assert_eq!(shown["mode"], "auto", "{shown}");
    for (path, least) in [("rdma", VALUE as u64), ("ethernet", SENT)] {
        let counters = &shown[path];
        assert!(counters["decisions"].as_u64() > Some(0), "{shown}");
        assert!(counters["messages"].as_u64() > Some(0), "{shown}");
        assert!(bytes(counters) >= least, "{shown}");
        let share = counters["share_non_minimal"].as_f64().expect("a number");
        assert!((0.0..=1.0).contains(&share), "{shown}");
    }
    let text = cluster.toroid("link show -d blue").ok();
    for words in [
        "routing auto, rdma: ",
        "routing auto, ethernet: ",
        " decisions",
    ] {
        assert!(text.text().contains(words), "{text}");
    }
    // A domain sees its own counts only.
    let _red = cluster.domain("red", &["*,*,0"]);
    assert_eq!(routing(&cluster, "red"), Value::Null);
    cluster.toroid("link set -d red --routing auto").ok();
    assert_eq!(routing(&cluster, "red")["ethernet"]["messages"], 0);
    cluster.toroid("link rm -d red").ok();
    assert_eq!(routing(&cluster, "red"), Value::Null);
}

#[test]
fn a_mode_is_that_of_all_messages_and_off_counts_none() {
    let cluster = torus();
    let _blue = cluster.domain("blue", &["*,*,0"]);
    cluster.toroid("link set -d blue --routing nmin-hash").ok();
    cluster.reaches("1,1,0", "0-0-0.blue");
    let shown = routing(&cluster, "blue");
    assert_eq!(shown["mode"], "nmin-hash", "{shown}");
    assert_eq!(shown["ethernet"]["share_non_minimal"], 1.0, "{shown}");
    assert_eq!(
        shown["ethernet"]["modes"].as_object().map(|its| its.len()),
        Some(1),
        "{shown}"
    );

    cluster.toroid("link set -d blue --routing off").ok();
    let before = routing(&cluster, "blue");
    assert_eq!(before["mode"], "off", "{before}");
    cluster.reaches("1,1,0", "0-0-0.blue");
    assert_eq!(routing(&cluster, "blue"), before);
    cluster.toroid("link rm -d blue").ok();
    assert_eq!(routing(&cluster, "blue"), Value::Null);
}

#[test]
fn the_choice_is_durable_and_declared() {
    let cluster = torus();
    let blue = cluster.domain("blue", &["*,*,0"]);
    cluster.toroid("link set -d blue --routing adaptive2").ok();
    cluster
        .toroid("link set -d blue 1,1,0 0,0,0 --one-way --routing in-order")
        .ok();
    let links = json!({
        "default": {"routing": "adaptive2"},
        "pairs": {"1,1,0>0,0,0": {"routing": "in-order"}},
    });
    assert_eq!(blue.show()["links"], links);
    let dumped = cluster.toroid("dump").ok();
    assert!(
        dumped.text().contains("routing = \"adaptive2\""),
        "{dumped}"
    );

    cluster.kill_agent();
    cluster.toroid("up").ok();
    assert_eq!(blue.show()["links"], links);
    cluster.toroid("link rm -d blue").ok();
    let file = cluster.files().join("declared.toml");
    fs::write(&file, dumped.text()).expect("there is room");
    cluster.toroid(&format!("apply {}", file.display())).ok();
    assert_eq!(blue.show()["links"], links);
    assert_eq!(routing(&cluster, "blue")["mode"], "in-order");
}

#[test]
fn a_choice_without_a_torus_is_refused() {
    let cluster = Cluster::up("2x1x1");
    let blue = cluster.domain("blue", &["*,0,0"]);
    cluster
        .toroid("link set -d blue --routing adaptive4")
        .fails(USAGE, &["adaptive4", "min-hash"]);
    cluster
        .toroid("link set -d blue --routing auto")
        .fails(USAGE, &["one route", "toroid up --fabric bgp"]);
    assert_eq!(blue.show()["links"], Value::Null);
}

#[test]
fn a_torus_has_no_other_properties_of_links() {
    let cluster = torus();
    let _blue = cluster.domain("blue", &["*,*,0"]);
    cluster
        .toroid("link set -d blue --routing auto --rate 1Gbit")
        .fails(USAGE, &["fabric bgp", "without --fabric"]);
    assert_eq!(routing(&cluster, "blue"), Value::Null);
}
