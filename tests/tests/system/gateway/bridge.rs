//! Gateways that bridge a domain to a network outside.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use nix::sys::signal::Signal;
use serde_json::json;
use tests::cluster::{Cluster, Domain, leaves_nothing};
use tests::outside::Outside;
use tests::process::{Running, eventually, run, send};
use tests::software::WRONG_TCP;

use super::{connect, fetches, gateway, ways_out};

/// A script for udhcpc(8) that does as its default one, for one interface.
const TAKE_LEASE: &str = "#!/bin/sh
[ \"$1\" = bound ] || exit 0
ip address add $ip/$mask dev $interface
ip route add default via $router dev $interface
";

#[test]
fn a_bridge_lets_dhcp_outside_serve_a_domain() {
    leaves_nothing(|| {
        let outside = Outside::new();
        let (_server, page) = outside.web_server();
        let cluster = Cluster::up("3x1x1");
        let blue = cluster.domain("blue", &["0-1,0,0"]);
        connect(&cluster, &outside, "--bridge");
        assert_eq!(cluster.ask("gateway ls")[0]["kind"], "bridge");
        assert_eq!(ways_out(&cluster, "1,0,0"), json!([]));
        blue.grow(&["2,0,0"]);
        let dhcp = outside.dhcp_server();
        let script = cluster.files().join("take-lease");
        fs::write(&script, TAKE_LEASE).expect("there is room");
        fs::set_permissions(&script, Permissions::from_mode(0o755)).expect("it is ours");
        for node in ["0,0,0", "2,0,0"] {
            let client = format!("udhcpc -i blue -n -q -t 20 -T 1 -s {}", script.display());
            cluster.exec(node, &client).ok();
            fetches(&cluster, node, &page);
        }
        drop(dhcp);
        // Members have not moved, and the outside reaches them as it does each other.
        cluster.reaches("1,0,0", "2-0-0.blue");
        let addresses = cluster
            .exec("2,0,0", "ip -json -4 address show dev blue")
            .ok()
            .json();
        let leased = addresses[0]["addr_info"].as_array().expect("a list");
        let leased = leased.iter().filter_map(|info| info["local"].as_str());
        let leased = leased.filter(|address| address.starts_with("198.18."));
        let leased: Vec<&str> = leased.collect();
        outside.run(&format!("ping -c 1 -W 5 {}", leased[0])).ok();

        gateway(&cluster, "rm 0,0,0").ok();
        outside
            .run(&format!("ping -c 1 -W 1 {}", leased[0]))
            .fails_somehow();
    });
}

/// Bridges domain blue of both nodes to the outside through `0,0,0`, where `1,0,0` and a peer outside
/// have routes to each other. Returns the domain and their addresses.
#[track_caller]
fn bridged<'a>(cluster: &'a Cluster, outside: &Outside) -> (Domain<'a>, [String; 2]) {
    let blue = cluster.domain("blue", &["*,0,0"]);
    connect(cluster, outside, "--bridge");
    let [member, peer] = [blue.ipv4("1,0,0"), outside.address()];
    outside
        .run(&format!("ip route add {member}/32 dev out"))
        .ok();
    cluster
        .exec("1,0,0", &format!("ip route add {peer}/32 dev blue"))
        .ok();
    (blue, [member, peer])
}

#[test]
fn a_bridge_outlives_driver_and_agent_and_ends_with_its_node() {
    leaves_nothing(|| {
        let outside = Outside::new();
        let cluster = Cluster::up("2x1x1");
        let (blue, [member, peer]) = bridged(&cluster, &outside);
        let to_peer = format!("-4 {peer}");
        cluster.reaches("1,0,0", &to_peer);

        let driver = cluster.driver_pid().expect("there is a driver");
        send(driver, Signal::SIGKILL);
        let ping = format!("ping -4 -c 1 -W 1 {peer}");
        eventually("another one bridges", || {
            cluster.exec("1,0,0", &ping).status == 0
        });
        cluster.kill_agent();
        outside.run(&format!("ping -c 1 -W 5 {member}")).ok();
        cluster.toroid("up").ok();
        cluster.reaches("1,0,0", &to_peer);
        blue.shrink(&["0,0,0"]);
        cluster.cannot_reach("1,0,0", &to_peer);
        assert_eq!(cluster.ask("gateway ls"), json!([]));
    });
}

/// Fabric MACs are reserved for members: a host outside cannot send from one, and a frame of a
/// member does not come back over a loop outside.
#[test]
fn what_has_the_address_of_a_member_does_not_come_from_outside() {
    let outside = Outside::new();
    let cluster = Cluster::up("2x1x1");
    let (blue, [member, peer]) = bridged(&cluster, &outside);
    cluster.reaches("1,0,0", &format!("-4 {peer}"));
    let mac = blue.member("0,0,0")["mac"]
        .as_str()
        .expect("text")
        .to_owned();
    outside.run(&format!("ip link set out address {mac}")).ok();
    outside
        .run(&format!("ping -c 3 -i 0.2 -W 1 {member}"))
        .fails_somehow();
    let drops = cluster.ask("domain drops blue");
    let drops = drops.as_array().expect("a list").iter();
    let from_outside = drops
        .clone()
        .find(|member| member["outside"] == json!(true));
    let forged = from_outside.and_then(|drops| drops["dropped"]["wrong_source"].as_u64());
    assert!(forged.is_some_and(|count| count >= 1), "{drops:?}");
}

/// With offload, packets of members are complete only when the driver has seen to it.
#[test]
fn frames_at_an_uplink_are_whole() {
    let outside = Outside::new();
    let cluster = Cluster::up("2x1x1");
    let (_blue, [_, peer]) = bridged(&cluster, &outside);
    let file = cluster.files().join("capture.pcap");
    let capture = file.to_str().expect("text");
    let uplink = outside.uplink();
    let words = ["-i", &uplink, "-B", "32768", "-U", "-w", capture, "tcp"];
    let mut command = Command::new("tcpdump");
    let dump = Running::start(command.args(words));
    eventually("it captures", || {
        dump.complaints_so_far().contains("listening")
    });
    let server = outside.spawn("iperf3 -s -1 --forceflush");
    server.says("listening");
    cluster
        .exec("1,0,0", &format!("iperf3 -c {peer} -n 4M"))
        .ok();
    server.wait().ok();
    // Frames that it has not read by its end are lost.
    eventually("most of the stream is captured", || {
        fs::metadata(&file).is_ok_and(|file| file.len() > 2 << 20)
    });
    dump.signal(Signal::SIGINT);
    dump.wait();
    let frames = |filter: &str| {
        let read =
            format!("tshark -r {capture} -o tcp.check_checksum:TRUE -o ip.check_checksum:TRUE -Y");
        let mut words: Vec<&str> = read.split(' ').collect();
        words.push(filter);
        let mut command = Command::new(words[0]);
        run(command.args(&words[1..])).ok().text().lines().count()
    };
    let ours = "eth.src[0] == 06";
    assert!(frames(ours) > 1000);
    let bad = format!("{WRONG_TCP} || ip.checksum.status == 0 || frame.len > 1514");
    assert_eq!(frames(&format!("{ours} && ({bad})")), 0);
}
