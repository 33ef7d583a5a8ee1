//! A domain is an Ethernet to software that knows only sockets.

use std::fs;

use serde_json::json;
use tests::actor::Event;
use tests::cluster::{Cluster, leaves_nothing};
use tests::process::eventually;
use tests::software::{bytes, iperf3};

#[test]
fn tcp_streams_in_both_directions() {
    let cluster = Cluster::up("2x1x1");
    let _blue = cluster.domain("blue", &["*,0,0"]);
    for options in ["-n 200M", "-n 200M -R", "-n 60M -P 4", "-n 60M -6"] {
        let report = iperf3(&cluster, "0,0,0", "1,0,0", "1-0-0.blue", options);
        // Bytes in flight at the end of a stream are not counted.
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
            .toroid(&format!("domain create blue *,0,0 --mtu {text}"))
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
        cluster.toroid("domain rm blue").ok();
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
    // An unused address is not answered for.
    cluster.cannot_reach("0,0,0", "10.64.0.200");
}

#[test]
fn broadcast_reaches_every_member_and_nobody_else() {
    let cluster = Cluster::up("2x2x1");
    let _blue = cluster.domain("blue", &["0,0,0", "1,0,0", "0,1,0"]);
    let _red = cluster.domain("red", &["1,1,0", "0,1,0"]);
    // With an address in blue's subnet its kernel would take a leaked datagram.
    cluster
        .exec("1,1,0", "ip address add 10.64.0.77/24 dev red")
        .ok();
    let listeners = ["1,0,0", "0,1,0", "1,1,0"].map(|node| cluster.listener(node, 7000));
    let flood = cluster.flood("0,0,0", "10.64.0.255", 7000);
    listeners[0].reports(&Event::First);
    listeners[1].reports(&Event::First);
    flood.end().ok();
    let [_, _, outsider] = listeners;
    outsider.heard_nothing();
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
        let mac = other["mac"].as_str().unwrap();
        let listener = cluster.listener("2,0,0", 7000);
        // The hardware address is the sender's proof; a frame with another's goes nowhere.
        let spoof = format!("ip link set blue address {mac}");
        cluster.shell("0,0,0", &spoof).ok();
        let to = blue.ipv4("2,0,0");
        cluster.flood("0,0,0", &to, 7000).end().ok();
        listener.heard_nothing();
    });
}

/// A program that claims the addresses of another node towards a member: its own MAC, the member's
/// MAC, and the addresses of the other node.
const CLAIM: &str = r#"
import socket, struct, sys
own, to = (bytes.fromhex(mac.replace(":", "")) for mac in sys.argv[1:3])
ipv4, ipv6 = socket.inet_aton(sys.argv[3]), socket.inet_pton(socket.AF_INET6, sys.argv[4])
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
s.bind(("blue", 0))
for hardware in (1, 6):
    for operation in (1, 2):
        arp = struct.pack("!HHBBH6s4s6s4s", hardware, 0x0800, 6, 4, operation, own, ipv4, to, ipv4)
        s.send(to + own + b"\x08\x06" + arp)
link = bytes.fromhex("fe80000000000000") + bytes([own[0] ^ 2]) + own[1:3] + b"\xff\xfe" + own[3:]
nodes = socket.inet_pton(socket.AF_INET6, "ff02::1")
advertisement = struct.pack("!BBHI16sBB6s", 136, 0, 0, 0x20000000, ipv6, 2, 1, own)
counted = link + nodes + struct.pack("!II", len(advertisement), 58) + advertisement
total = sum(struct.unpack(f"!{len(counted) // 2}H", counted))
total = (total & 0xffff) + (total >> 16)
checksum = ~((total & 0xffff) + (total >> 16)) & 0xffff
advertisement = advertisement[:2] + struct.pack("!H", checksum) + advertisement[4:]
header = struct.pack("!IHBB", 0x60000000, len(advertisement), 58, 255) + link + nodes
s.send(to + own + b"\x86\xdd" + header + advertisement)
"#;

#[test]
fn a_member_cannot_claim_the_addresses_of_another() {
    let cluster = Cluster::up("3x1x1");
    let blue = cluster.domain("blue", &["*,0,0"]);
    let owner = blue.member("1,0,0");
    let [mac, ipv4, ipv6] = ["mac", "ipv4", "ipv6"].map(|key| owner[key].as_str().expect("text"));
    for address in [ipv4, ipv6] {
        cluster.reaches("2,0,0", address);
    }
    let program = cluster.files().join("claim.py");
    fs::write(&program, CLAIM).expect("there is room");
    let (from, to) = (blue.mac("0,0,0"), blue.mac("2,0,0"));
    let claim = format!("/usr/bin/python3 {} {from} {to}", program.display());
    let known = |address: &str| {
        let neighbours = cluster.exec("2,0,0", "ip neigh show dev blue").ok();
        let of_it = |line: &&str| line.starts_with(&format!("{address} "));
        let line = neighbours.text().lines().find(of_it).map(str::to_owned);
        line.unwrap_or_else(|| panic!("no {address}: {neighbours}"))
    };
    cluster
        .exec("0,0,0", &format!("{claim} {ipv4} {ipv6}"))
        .ok();
    eventually("they are held back", || {
        let drops = cluster.ask("domain drops blue");
        drops[0]["dropped"]["foreign_address"] == json!(5)
    });
    for address in [ipv4, ipv6] {
        assert!(known(address).contains(mac), "{}", known(address));
    }
    // Unused addresses can be claimed so, once the kernel accepts changes of new entries.
    let free = ["10.64.0.200", "2001:db8::7"];
    for address in free {
        let add = format!("ip neigh add {address} lladdr {mac} dev blue nud stale");
        cluster.exec("2,0,0", &add).ok();
    }
    let claim = format!("{claim} {} {}", free[0], free[1]);
    eventually("they are claimed", || {
        cluster.exec("0,0,0", &claim).ok();
        free.iter().all(|address| known(address).contains(&from))
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
