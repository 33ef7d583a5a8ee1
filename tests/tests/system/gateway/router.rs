//! Routers: nodes between two domains, and routers outside or in a domain that advertise themselves.

use std::fs;

use serde_json::json;
use tests::cluster::Cluster;
use tests::outside::Outside;
use tests::process::eventually;

use super::connect;

/// The root of a node can have its kernel forward packets, and those at both ends can agree to it. The
/// domains must, too.
#[test]
fn a_node_in_two_domains_routes_between_them_if_both_say_so() {
    let cluster = Cluster::up("3x1x1");
    let blue = cluster.domain("blue", &["0-1,0,0"]);
    let red = cluster.domain("red", &["1-2,0,0"]);
    let forward = "/proc/sys/net/ipv4/ip_forward";
    let before = cluster.exec("1,0,0", &format!("cat {forward}")).ok();
    assert_eq!(before.text(), "0");
    cluster.shell("1,0,0", &format!("echo 1 > {forward}")).ok();
    let (from, to) = (blue.ipv4("0,0,0"), red.ipv4("2,0,0"));
    for (node, target, router) in [
        ("0,0,0", &to, blue.ipv4("1,0,0")),
        ("2,0,0", &from, red.ipv4("1,0,0")),
    ] {
        cluster
            .exec(node, &format!("ip route add {target}/32 via {router}"))
            .ok();
    }
    let set = |domain: &str, forward: &str| {
        cluster
            .toroid(&format!("domain set {domain} --forward {forward}"))
            .ok();
    };
    cluster.cannot_reach("0,0,0", &to);
    let drops = cluster.ask("domain drops red");
    let foreign = &drops[0]["dropped"]["foreign_address"];
    assert!(foreign.as_u64().is_some_and(|count| count >= 1), "{drops}");
    set("red", "on");
    cluster.cannot_reach("0,0,0", &to);
    set("blue", "on");
    cluster.reaches("0,0,0", &to);
    cluster.reaches("2,0,0", &from);

    // It is kept, and said.
    assert_eq!(blue.show()["forward"], json!(true));
    let dump = cluster.toroid("dump").ok();
    assert_eq!(dump.text().matches("forward = true").count(), 2);
    cluster.down();
    cluster.toroid("up").ok();
    assert_eq!(red.show()["forward"], json!(true));
    let file = cluster.files().join("dump.toml");
    let path = file.to_str().expect("text");
    fs::write(&file, dump.text()).expect("there is room");
    let nothing = cluster.toroid(&format!("apply {path} --prune")).ok();
    assert_eq!(nothing.text(), "nothing to change");
    set("blue", "off");
    assert_eq!(blue.show().get("forward"), None);
    let applied = cluster.toroid(&format!("apply {path}")).ok();
    assert_eq!(applied.text(), "change blue, forwarding");
}

/// A program that says on an interface that there is a router, from which addresses are to be had.
const ADVERTISE: &str = r#"
import socket, struct, sys
interface = socket.if_nametoindex(sys.argv[1])
s = socket.socket(socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_ICMPV6)
s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_HOPS, 255)
prefix = socket.inet_pton(socket.AF_INET6, "2001:db8:7::")
option = struct.pack("!BBBBIII16s", 3, 4, 64, 0xc0, 3600, 3600, 0, prefix)
router = struct.pack("!BBHBBHII", 134, 0, 0, 64, 0, 1800, 0, 0)
s.sendto(router + option, ("ff02::1", 0, 0, interface))
"#;

/// Whether a member has an address of its own from the router.
fn has_been_advertised(cluster: &Cluster, node: &str) -> bool {
    let addresses = cluster.exec(node, "ip -6 address show dev blue").ok();
    let route = cluster.exec(node, "ip -6 route show default").ok();
    addresses.text().contains("2001:db8:7:") && route.text().contains("via fe80:")
}

#[test]
fn a_router_outside_gives_members_addresses_and_a_way_out() {
    let outside = Outside::new();
    let cluster = Cluster::up("2x1x1");
    let _blue = cluster.domain("blue", &["*,0,0"]);
    connect(&cluster, &outside, "--bridge");
    let program = cluster.files().join("advertise.py");
    fs::write(&program, ADVERTISE).expect("there is room");
    let advertise = format!("/usr/bin/python3 {} out", program.display());
    eventually("members hear of it", || {
        // Fails until duplicate address detection of its own address is over.
        let _ = outside.run(&advertise);
        ["0,0,0", "1,0,0"]
            .iter()
            .all(|node| has_been_advertised(&cluster, node))
    });
}

#[test]
fn a_member_is_a_router_only_where_the_domain_has_some() {
    let cluster = Cluster::up("2x1x1");
    let _blue = cluster.domain("blue", &["*,0,0"]);
    let program = cluster.files().join("advertise.py");
    fs::write(&program, ADVERTISE).expect("there is room");
    let advertise = format!("/usr/bin/python3 {} blue", program.display());
    let dropped = || {
        let drops = cluster.ask("domain drops blue");
        drops[0]["dropped"]["router_advertisement"].as_u64()
    };
    eventually("it is held back", || {
        let _ = cluster.exec("0,0,0", &advertise);
        dropped().is_some_and(|count| count >= 3)
    });
    cluster.reaches("1,0,0", "0-0-0.blue");
    assert!(!has_been_advertised(&cluster, "1,0,0"));
    cluster.toroid("domain set blue --forward on").ok();
    eventually("it is heard", || {
        cluster.exec("0,0,0", &advertise).ok();
        has_been_advertised(&cluster, "1,0,0")
    });
}
