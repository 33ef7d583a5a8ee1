//! Domains that are connected to the outside.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use nix::sys::signal::Signal;
use serde_json::{Value, json};
use tests::cluster::{Cluster, Domain, leaves_nothing};
use tests::leftovers::has_ended;
use tests::outside::{Outside, host};
use tests::process::{Outcome, Running, eventually, run, send};
use tests::software::{IPERF3_SERVER, WRONG_TCP, goes_on};
use tests::user::User;

/// The exit statuses of `toroid`.
const WRONG: i32 = 2;
const NOT_FOUND: i32 = 4;
const EXISTS: i32 = 5;
const DENIED: i32 = 6;

fn gateway(cluster: &Cluster, words: &str) -> Outcome {
    cluster.toroid(&format!("gateway {words}"))
}

#[track_caller]
fn fetches(cluster: &Cluster, node: &str, page: &str) {
    cluster
        .exec(node, &format!("curl --silent --fail --max-time 20 {page}"))
        .ok();
}

#[track_caller]
fn cannot_fetch(cluster: &Cluster, node: &str, page: &str) {
    cluster
        .exec(node, &format!("curl --silent --fail --max-time 1 {page}"))
        .fails_somehow();
}

/// Whether the host has rules for gateways.
fn has_rules() -> bool {
    host("nft list tables").text().contains("toroid")
}

/// The default routes of a node.
fn ways_out(cluster: &Cluster, node: &str) -> Value {
    cluster
        .exec(node, "ip -json route show default")
        .ok()
        .json()
}

#[test]
fn members_reach_servers_outside_and_nobody_reaches_them() {
    leaves_nothing(|| {
        let outside = Outside::new();
        let (server, page) = outside.web_server();
        let cluster = Cluster::up("4x1x1");
        let blue = cluster.domain("blue", &["0-1,0,0"]);
        let _red = cluster.domain("red", &["1,0,0", "3,0,0"]);
        cannot_fetch(&cluster, "1,0,0", &page);
        gateway(
            &cluster,
            &format!("add 0,0,0 --uplink {} -d blue", outside.uplink()),
        )
        .ok();
        for node in ["0,0,0", "1,0,0"] {
            fetches(&cluster, node, &page);
        }
        blue.grow(&["2,0,0"]);
        fetches(&cluster, "2,0,0", &page);
        cannot_fetch(&cluster, "3,0,0", &page);
        // They all speak with the host's address.
        let host_address = outside.host_address();
        eventually("it has served them", || {
            server.complaints_so_far().lines().count() == 3
        });
        let log = server.complaints_so_far();
        assert!(
            log.lines().all(|line| line.starts_with(&host_address)),
            "{log}"
        );

        // The host is not outside, and from outside nobody is inside.
        cluster.cannot_reach("2,0,0", &host_address);
        cluster.reaches("2,0,0", &outside.address());
        let inside = blue.ipv4("1,0,0");
        outside
            .run(&format!("ip route add {inside}/32 via {host_address}"))
            .ok();
        outside
            .run(&format!("ping -c 1 -W 1 {inside}"))
            .fails_somehow();

        let gateways = cluster.ask("gateway ls");
        let expected = json!([{"domain": "blue", "node": "0,0,0", "uplink": outside.uplink(),
            "kind": "nat", "problem": null}]);
        assert_eq!(gateways, expected);
        assert_eq!(blue.show()["gateway"]["uplink"], json!(outside.uplink()));

        gateway(&cluster, "rm 0,0,0").ok();
        cannot_fetch(&cluster, "0,0,0", &page);
        cannot_fetch(&cluster, "1,0,0", &page);
        for node in ["0,0,0", "1,0,0", "2,0,0"] {
            assert_eq!(ways_out(&cluster, node), json!([]));
        }
        assert_eq!(cluster.ask("gateway ls"), json!([]));
        assert_eq!(blue.show().get("gateway"), None);
    });
}

/// The same addresses are used inside and outside: the host has no route to the domain that would
/// hide what is outside.
#[test]
fn a_network_outside_may_have_the_addresses_of_a_domain() {
    let outside = Outside::new();
    let (_server, page) = outside.web_server();
    let cluster = Cluster::up("3x1x1");
    let subnet = outside.subnet();
    cluster
        .toroid(&format!("domain create same 2,0,0 --subnet {subnet}"))
        .ok();
    let _blue = cluster.domain("blue", &["0-1,0,0"]);
    let uplink = outside.uplink();
    gateway(&cluster, &format!("add 0,0,0 --uplink {uplink}")).ok();
    fetches(&cluster, "1,0,0", &page);
    cannot_fetch(&cluster, "2,0,0", &page);
}

#[test]
fn a_gateway_outlives_driver_agent_and_node() {
    leaves_nothing(|| {
        let outside = Outside::new();
        let (_server, page) = outside.web_server();
        let cluster = Cluster::up("2x1x1");
        let _blue = cluster.domain("blue", &["*,0,0"]);
        gateway(
            &cluster,
            &format!("add 0,0,0 --uplink {}", outside.uplink()),
        )
        .ok();

        let driver = cluster.driver_pid().expect("there is a driver");
        send(driver, Signal::SIGKILL);
        eventually("there is another", || {
            cluster.driver_pid().is_some_and(|pid| pid != driver)
        });
        fetches(&cluster, "1,0,0", &page);

        // Packets pass while there is no agent, and connections outlive its return.
        let server = outside.spawn(IPERF3_SERVER);
        server.says("listening");
        let stream = format!("iperf3 -c {} -t 600 -b 100M", outside.address());
        let stream = cluster.spawn("1,0,0", &stream);
        goes_on(&server);
        let mut fetching = cluster.in_node(
            "1,0,0",
            &[
                "sh",
                "-c",
                &format!("while curl -sf -m 9 {page}; do echo; done"),
            ],
        );
        let fetching = Running::start(&mut fetching);
        let fetched = || fetching.so_far().lines().count();
        let fetches_on = |when: &str| {
            let before = fetched();
            eventually(when, || fetched() > before + 3);
        };
        fetches_on("there is an agent");
        cluster.kill_agent();
        fetches_on("there is no agent");
        cluster.toroid("up").ok();
        fetches_on("there is an agent again");
        goes_on(&server);
        drop((stream, fetching));

        for node in [0, 1] {
            let first = cluster.node_pids()[node];
            send(first, Signal::SIGKILL);
            eventually("it is made anew", || {
                has_ended(first) && !has_ended(cluster.node_pids()[node])
            });
            let fetch = format!("curl --silent --fail --max-time 1 {page}");
            eventually("it finds its way", || {
                cluster.exec("1,0,0", &fetch).status == 0
            });
        }
        // The directory has it, whatever becomes of agent and nodes.
        cluster.down();
        assert!(!has_rules());
        cluster.toroid("up").ok();
        fetches(&cluster, "1,0,0", &page);
    });
}

#[test]
fn nothing_is_left_of_a_gateway_whose_agent_was_killed() {
    for also_keeper in [false, true] {
        leaves_nothing(|| {
            let outside = Outside::new();
            let cluster = Cluster::up("2x1x1");
            let _blue = cluster.domain("blue", &["*,0,0"]);
            gateway(
                &cluster,
                &format!("add 0,0,0 --uplink {}", outside.uplink()),
            )
            .ok();
            let forwarding = format!("/proc/sys/net/ipv4/conf/{}/forwarding", outside.uplink());
            let forwards = || fs::read_to_string(&forwarding).expect("it is there");
            assert_eq!(forwards(), "1\n");
            let keeper = cluster.keeper_pid().expect("there is one");
            cluster.kill_agent();
            if also_keeper {
                send(keeper, Signal::SIGKILL);
                eventually("it is gone", || has_ended(keeper));
            }
            cluster.down();
            assert_eq!(forwards(), "0\n");
            let pairs = host("ip -json link show type veth")
                .text()
                .matches("toroid.gw")
                .count();
            assert_eq!(pairs, 0);
            assert!(!has_rules());
        });
    }
}

#[test]
fn a_gateway_ends_with_the_membership_of_its_node() {
    leaves_nothing(|| {
        let outside = Outside::new();
        let (_server, page) = outside.web_server();
        let cluster = Cluster::up("3x1x1");
        let add = format!("add 0,0,0 --uplink {} -d blue", outside.uplink());
        let gone = |who: &str| {
            assert_eq!(cluster.ask("gateway ls"), json!([]), "{who}");
            assert!(!has_rules(), "{who}");
            cannot_fetch(&cluster, "0,0,0", &page);
        };
        let blue = cluster.domain("blue", &["0-1,0,0"]);
        gateway(&cluster, &add).ok();
        blue.shrink(&["1,0,0"]);
        assert_eq!(ways_out(&cluster, "1,0,0"), json!([]));
        blue.grow(&["1,0,0"]);
        fetches(&cluster, "1,0,0", &page);
        blue.shrink(&["0,0,0"]);
        gone("a leaver");
        assert_eq!(ways_out(&cluster, "1,0,0"), json!([]));
        blue.grow(&["0,0,0"]);
        gone("one who is back");

        gateway(&cluster, &add).ok();
        cluster.toroid("node chown 0,0,0 12345").ok();
        gone("another's");
        cluster.toroid("node chown 0,0,0 free").ok();
        blue.grow(&["0,0,0"]);
        gateway(&cluster, &add).ok();
        fetches(&cluster, "1,0,0", &page);
        blue.remove();
        gone("of no domain");
    });
}

#[test]
fn what_cannot_be_a_gateway_is_refused_with_a_remedy() {
    leaves_nothing(|| {
        let outside = Outside::new();
        let (cluster, alice) = (Cluster::up("4x1x1"), User::create());
        let uplink = outside.uplink();
        let blue = cluster.domain("blue", &["0-2,0,0"]);
        let _red = cluster.domain("red", &["2,0,0"]);
        let refused = |words: &str, status: i32, because: &[&str]| {
            gateway(&cluster, words).fails(status, because);
        };
        refused(
            "add 0,0,0 --uplink nowhere",
            NOT_FOUND,
            &["nowhere", "ip link"],
        );
        refused("add 0,0,0 --uplink lo", WRONG, &["lo", "ip link"]);
        refused("add 0,0,0 --uplink up*", WRONG, &["up*", "ip link"]);
        let at = |node: &str| format!("add {node} --uplink {uplink}");
        let has_mac = |mac: &str| host(&format!("ip link set {uplink} address {mac}"));
        has_mac(blue.member("1,0,0")["mac"].as_str().expect("text"));
        refused(&at("0,0,0"), WRONG, &[&uplink, "ip link"]);
        // It begins like a member's, as some that kernels choose.
        has_mac("06:3f:f2:01:02:03");
        refused(&at("3,0,0 -d blue"), NOT_FOUND, &["3,0,0", "blue"]);
        refused(&at("2,0,0"), WRONG, &["several domains", "--domain"]);
        refused(&at("0,0,0 --nat --bridge"), WRONG, &["--nat", "--bridge"]);
        refused("rm 0,0,0", NOT_FOUND, &["0,0,0", "gateway ls"]);
        refused("rm 0,0,0 -d blue", NOT_FOUND, &["0,0,0", "blue"]);

        cluster
            .toroid(&format!("node chown 0,0,0 {}", alice.uid().to_string()))
            .ok();
        let _ = cluster.toroid("domain grow blue 0,0,0").ok();
        cluster
            .toroid_of(&alice, &format!("gateway add 0,0,0 --uplink {uplink}"))
            .fails(DENIED, &["administrator"]);
        assert_eq!(cluster.ask("gateway ls"), json!([]));

        gateway(&cluster, &at("1,0,0")).ok();
        refused(
            &at("0,0,0"),
            EXISTS,
            &["1,0,0", "toroid gateway rm 1,0,0 -d blue"],
        );
        refused(&at("2,0,0 -d red"), EXISTS, &[&uplink, "blue"]);
        let pair = "toroid.gw0";
        refused(
            &format!("add 2,0,0 -d red --uplink {pair}"),
            WRONG,
            &[pair, "outside"],
        );
        cluster
            .toroid("domain create bare 3,0,0 --interface stack")
            .ok();
        gateway(&cluster, "rm 1,0,0").ok();
        refused(&at("3,0,0"), WRONG, &["bare", "--bridge"]);
        assert_eq!(cluster.ask("gateway ls"), json!([]));
        gateway(&cluster, &at("3,0,0 --bridge")).ok();
    });
}

#[test]
fn a_gateway_is_part_of_a_dump() {
    leaves_nothing(|| {
        let outside = Outside::new();
        let (_server, page) = outside.web_server();
        let cluster = Cluster::up("2x1x1");
        let _blue = cluster.domain("blue", &["*,0,0"]);
        gateway(
            &cluster,
            &format!("add 0,0,0 --uplink {}", outside.uplink()),
        )
        .ok();
        let dump = cluster.toroid("dump").ok();
        assert!(dump.text().contains("[gateway.blue]"), "{dump}");
        let file = cluster.files().join("dump.toml");
        let path = file.to_str().expect("text");
        fs::write(&file, dump.text()).expect("there is room");
        let nothing = cluster.toroid(&format!("apply {path} --prune")).ok();
        assert_eq!(nothing.text(), "nothing to change");
        cluster.toroid("domain rm blue").ok();
        cluster.toroid(&format!("apply {path}")).ok();
        fetches(&cluster, "1,0,0", &page);
        fs::write(&file, "[domain.blue]\nnodes = [\"*,0,0\"]\n").expect("there is room");
        let kept = cluster.toroid(&format!("apply {path}")).ok();
        assert_eq!(kept.text(), "nothing to change");
        cluster.toroid(&format!("apply {path} --prune")).ok();
        assert_eq!(cluster.ask("gateway ls"), json!([]));
        let events = cluster.toroid("events").ok();
        for what in ["connect blue at 0,0,0 to", "disconnect blue at 0,0,0"] {
            assert!(events.text().contains(what), "{events}");
        }
    });
}

/// Interfaces of the host come and go: cables are drawn, drivers loaded, tunnels made anew.
#[test]
fn a_gateway_goes_on_when_its_uplink_is_back() {
    for kind in ["nat", "bridge"] {
        leaves_nothing(|| {
            let outside = Outside::new();
            let cluster = Cluster::up("2x1x1");
            let blue = cluster.domain("blue", &["*,0,0"]);
            let uplink = outside.uplink();
            gateway(&cluster, &format!("add 0,0,0 --uplink {uplink} --{kind}")).ok();
            let [member, peer] = [blue.ipv4("1,0,0"), outside.address()];
            let find_member = format!("ip route replace {member}/32 dev out");
            if kind == "bridge" {
                outside.run(&find_member).ok();
                cluster
                    .exec("1,0,0", &format!("ip route add {peer}/32 dev blue"))
                    .ok();
            }
            let ping = format!("ping -4 -c 1 -W 1 {peer}");
            let passes = |when: &str| {
                eventually(when, || cluster.exec("1,0,0", &ping).status == 0);
            };
            let is_told = |what: &str| {
                eventually(what, || {
                    let problem = &cluster.ask("gateway ls")[0]["problem"];
                    problem
                        .as_str()
                        .is_some_and(|problem| problem.contains(what))
                });
            };
            let is_well = |when: &str| {
                eventually(when, || cluster.ask("gateway ls")[0]["problem"].is_null());
            };
            passes("it leads outside");
            is_well("and says so");
            // Its packets are longer than those that an uplink takes, which a translation sees to.
            let warning = &cluster.ask("gateway ls")[0]["warning"];
            let says = warning.as_str().is_some_and(|text| text.contains("1500"));
            assert_eq!(says, kind == "bridge", "{warning}");
            host(&format!("ip link set {uplink} down"));
            is_told("is down");
            host(&format!("ip link set {uplink} up"));
            is_well("it is up");
            if kind == "bridge" {
                outside.run(&find_member).ok();
            }
            passes("it leads outside again");
            outside.run("ip link set out down").ok();
            is_told("no carrier");
            outside.remove_uplink();
            is_told(&format!("no interface {uplink}"));
            cluster.exec("1,0,0", &ping).fails_somehow();
            outside.restore_uplink();
            is_well("there is another");
            if kind == "bridge" {
                outside.run(&find_member).ok();
            }
            passes("another leads outside");
        });
    }
}

/// A script for udhcpc(8) that does what its own would do, with the one interface that it has.
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
        gateway(
            &cluster,
            &format!("add 0,0,0 --uplink {} --bridge", outside.uplink()),
        )
        .ok();
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
    let uplink = outside.uplink();
    gateway(cluster, &format!("add 0,0,0 --uplink {uplink} --bridge")).ok();
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

/// Bytes of fabric MACs are a promise to members: nobody outside can speak as one of them, and what a
/// member sends out does not come back to others over a loop outside.
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
    gateway(
        &cluster,
        &format!("add 0,0,0 --uplink {} --bridge", outside.uplink()),
    )
    .ok();
    let program = cluster.files().join("advertise.py");
    fs::write(&program, ADVERTISE).expect("there is room");
    let advertise = format!("/usr/bin/python3 {} out", program.display());
    eventually("members hear of it", || {
        // It has no address to say so from before it is sure that it is nobody else's.
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
