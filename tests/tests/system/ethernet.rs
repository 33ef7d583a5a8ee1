//! A domain is an Ethernet to software that knows only sockets.

use serde_json::json;
use tests::cluster::{Cluster, leaves_nothing};
use tests::software::{bytes, iperf3};

#[test]
fn tcp_streams_in_both_directions() {
    let cluster = Cluster::up("2x1x1");
    let _blue = cluster.domain("blue", &["*,0,0"]);
    for options in ["-n 200M", "-n 200M -R", "-n 60M -P 4", "-n 60M -6"] {
        let report = iperf3(&cluster, "0,0,0", "1,0,0", "1-0-0.blue", options);
        // What each stream has in flight at the end is not counted.
        assert!(bytes(&report, "sum_received") > 30 << 20, "{options}");
    }
}

#[test]
fn udp_arrives() {
    let cluster = Cluster::up("2x1x1");
    let _blue = cluster.domain("blue", &["*,0,0"]);
    for options in [
        "-u -b 100M -l 1000 -t 1",
        "-u -b 100M -l 8000 -t 1",
        "-u -b 20M -l 200 -t 1",
    ] {
        let report = iperf3(&cluster, "0,0,0", "1,0,0", "1-0-0.blue", options);
        let lost = report["end"]["sum"]["lost_percent"]
            .as_f64()
            .expect("a number");
        // How much gets lost is for benchmarks to say; here most must arrive.
        assert!(lost < 50.0, "{lost} % lost with {options}");
        assert!(bytes(&report, "sum") > 1 << 20, "{options}");
    }
}

#[test]
fn packets_as_large_as_the_mtu_cross_whole() {
    let cluster = Cluster::up("2x1x1");
    let mtus = [1280, 1500, 9000, 65521];
    for mtu in mtus {
        let text = mtu.to_string();
        cluster
            .toroid(&["domain", "create", "blue", "*,0,0", "--mtu", &text])
            .ok();
        let (fits, does_not) = (mtu - 28, mtu - 27);
        if fits <= 65_507 {
            let ping = format!("ping -4 -c 2 -i 0.01 -W 1 -M do -s {fits} 1-0-0.blue");
            cluster.exec("0,0,0", &ping).ok();
        }
        let ping = format!("ping -4 -c 1 -W 1 -M do -s {does_not} 1-0-0.blue");
        cluster.exec("0,0,0", &ping).fails_somehow();
        // Larger ones go in pieces.
        cluster.reaches("0,0,0", "-4 -s 60000 1-0-0.blue");
        cluster.toroid(&["domain", "rm", "blue"]).ok();
    }
}

#[test]
fn neighbours_are_known_by_the_addresses_that_the_directory_gave() {
    let cluster = Cluster::up("2x2x1");
    let blue = cluster.domain("blue", &["*,*,0"]);
    cluster.reaches("0,0,0", "-4 1-1-0.blue");
    cluster.reaches("0,0,0", "-6 1-1-0.blue");
    let neighbours = cluster
        .exec("0,0,0", "ip -json neigh show dev blue")
        .ok()
        .json();
    let peer = blue.member("1,1,0");
    for address in [&peer["ipv4"], &peer["ipv6"]] {
        let known = neighbours.as_array().expect("a list").iter();
        let entry = known.clone().find(|entry| entry["dst"] == *address);
        assert_eq!(
            entry.map(|entry| &entry["lladdr"]),
            Some(&peer["mac"]),
            "{neighbours}"
        );
    }
    // An address that nobody has is not answered for.
    cluster.cannot_reach("0,0,0", "10.64.0.200");
}

#[test]
fn broadcast_reaches_every_member_and_nobody_else() {
    let cluster = Cluster::up("2x2x1");
    let _blue = cluster.domain("blue", &["0,0,0", "1,0,0", "0,1,0"]);
    let _red = cluster.domain("red", &["1,1,0", "0,1,0"]);
    // Without an address in blue's subnet its own kernel would drop what leaked to it.
    cluster
        .exec("1,1,0", "ip address add 10.64.0.77/24 dev red")
        .ok();
    let listeners = ["1,0,0", "0,1,0", "1,1,0"].map(|node| {
        let listener = cluster.spawn(node, "probe listen 7000");
        listener.says("ready");
        listener
    });
    let mut flood = cluster.spawn("0,0,0", "probe flood 10.64.0.255 7000");
    listeners[0].says("first");
    listeners[1].says("first");
    drop(flood.stdin());
    flood.wait().ok();
    let [_, _, mut outsider] = listeners;
    drop(outsider.stdin());
    assert!(outsider.wait().ok().text().ends_with("\n0 0"));
}

#[test]
fn multicast_reaches_members() {
    let cluster = Cluster::up("3x1x1");
    let blue = cluster.domain("blue", &["*,0,0"]);
    let all = cluster
        .exec("0,0,0", "ping -6 -c 2 -i 0.2 -W 1 ff02::1%blue")
        .ok();
    for node in ["1,0,0", "2,0,0"] {
        let peer = blue.member(node);
        let address = peer["ipv6"].as_str().expect("text");
        assert!(all.text().contains(address), "{node} answers, too: {all}");
    }
}

#[test]
fn a_member_cannot_speak_as_another() {
    leaves_nothing(|| {
        let cluster = Cluster::up("3x1x1");
        let blue = cluster.domain("blue", &["*,0,0"]);
        let other = blue.member("1,0,0");
        let (mac, address) = (
            other["mac"].as_str().unwrap(),
            other["ipv4"].as_str().unwrap(),
        );
        let mut listener = cluster.spawn("2,0,0", "probe listen 7000");
        listener.says("ready");
        // The hardware address is the sender's proof; a frame with another's goes nowhere.
        let spoof = format!("ip link set blue address {mac}");
        cluster.shell("0,0,0", &spoof).ok();
        let to = blue.ipv4("2,0,0");
        let mut flood = cluster.spawn("0,0,0", &format!("probe flood {to} 7000"));
        drop(flood.stdin());
        flood.wait().ok();
        drop(listener.stdin());
        assert!(
            listener.wait().ok().text().ends_with("\n0 0"),
            "spoofing {mac} {address}"
        );
    });
}

#[test]
fn sixty_four_members_all_talk() {
    let cluster = Cluster::up("4x4x4");
    let blue = cluster.domain("every", &["*,*,*"]);
    assert_eq!(blue.show()["members"].as_array().map(Vec::len), Some(64));
    for peer in ["0-0-0", "3-3-3", "1-2-3"] {
        cluster.reaches("2,1,0", &format!("{peer}.every"));
    }
    blue.shrink(&["*,*,1-3"]);
    assert_eq!(blue.show()["members"].as_array().map(Vec::len), Some(16));
    cluster.reaches("0,0,0", "3-3-0.every");
    assert_eq!(cluster.status()["domains"], json!(1));
}
