//! Gateways that connect a domain to the outside, here by translation of addresses.

mod bridge;
mod failover;
mod host;
mod router;

use std::fs;

use nix::sys::signal::Signal;
use serde_json::{Value, json};
use tests::cluster::{Cluster, leaves_nothing};
use tests::leftovers::has_ended;
use tests::outside::{Outside, host};
use tests::process::{Outcome, eventually, send};
use tests::software::{IPERF3_SERVER, goes_on};
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

/// Connects the domain of node 0,0,0 to a network outside, with options of the command.
#[track_caller]
fn connect(cluster: &Cluster, outside: &Outside, options: &str) {
    let uplink = outside.uplink();
    gateway(cluster, &format!("add 0,0,0 --uplink {uplink} {options}")).ok();
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
        connect(&cluster, &outside, "-d blue");
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

        // Members do not reach the host, and hosts outside do not reach members.
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
            "kind": "nat", "in_use": true, "problem": null}]);
        assert_eq!(gateways, expected);
        assert_eq!(blue.show()["gateway"]["uplink"], json!(outside.uplink()));
        assert_eq!(blue.show()["gateways"][0], blue.show()["gateway"]);

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
/// hide the network outside.
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
    connect(&cluster, &outside, "");
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
        connect(&cluster, &outside, "");

        cluster.kill_driver();
        fetches(&cluster, "1,0,0", &page);

        // Packets pass while there is no agent, and connections outlive its return.
        let server = outside.spawn(IPERF3_SERVER);
        server.says("listening");
        let stream = format!("iperf3 -c {} -t 600 -b 100M", outside.address());
        let stream = cluster.spawn("1,0,0", &stream);
        goes_on(&server);
        let fetch = format!("while curl -sf -m 9 {page}; do echo; done");
        let fetching = cluster.spawn_shell("1,0,0", &fetch);
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
        // The directory keeps the gateway over the end of agent and nodes.
        cluster.down();
        assert!(!has_rules());
        cluster.toroid("up").ok();
        fetches(&cluster, "1,0,0", &page);
    });
}

#[test]
fn nothing_is_left_of_a_gateway_whose_agent_was_killed() {
    for also_fd_store in [false, true] {
        leaves_nothing(|| {
            let outside = Outside::new();
            let cluster = Cluster::up("2x1x1");
            let _blue = cluster.domain("blue", &["*,0,0"]);
            connect(&cluster, &outside, "");
            let forwarding = format!("/proc/sys/net/ipv4/conf/{}/forwarding", outside.uplink());
            let forwards = || fs::read_to_string(&forwarding).expect("it is there");
            assert_eq!(forwards(), "1\n");
            let fd_store = cluster.fd_store_pid().expect("there is one");
            cluster.kill_agent();
            if also_fd_store {
                send(fd_store, Signal::SIGKILL);
                eventually("it is gone", || has_ended(fd_store));
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
        has_mac(&blue.mac("1,0,0"));
        refused(&at("0,0,0"), WRONG, &[&uplink, "ip link"]);
        // It begins like a member's, as some that kernels choose.
        has_mac("06:3f:f2:01:02:03");
        refused(&at("3,0,0 -d blue"), NOT_FOUND, &["3,0,0", "blue"]);
        refused(&at("2,0,0"), WRONG, &["several domains", "--domain"]);
        refused(&at("0,0,0 --nat --bridge"), WRONG, &["--nat", "--bridge"]);
        refused("rm 0,0,0", NOT_FOUND, &["0,0,0", "gateway ls"]);
        refused("rm 0,0,0 -d blue", NOT_FOUND, &["0,0,0", "blue"]);

        cluster
            .toroid(&format!("node chown 0,0,0 {}", alice.uid()))
            .ok();
        let _ = cluster.toroid("domain grow blue 0,0,0").ok();
        cluster
            .toroid_of(&alice, &format!("gateway add 0,0,0 --uplink {uplink}"))
            .fails(DENIED, &["administrator"]);
        assert_eq!(cluster.ask("gateway ls"), json!([]));

        gateway(&cluster, &at("1,0,0")).ok();
        refused(
            &at("1,0,0"),
            EXISTS,
            &["1,0,0", "toroid gateway rm 1,0,0 -d blue"],
        );
        refused(
            &at("0,0,0 --bridge"),
            EXISTS,
            &["a loop", "1,0,0", "toroid gateway rm 1,0,0 -d blue"],
        );
        refused(&at("0,0,0"), EXISTS, &[&uplink, "blue"]);
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
        cluster.toroid("domain grow bare 1,0,0").ok();
        refused(&at("1,0,0 -d bare"), EXISTS, &["a loop", "3,0,0"]);
    });
}

#[test]
fn a_gateway_is_part_of_a_dump() {
    leaves_nothing(|| {
        let outside = Outside::new();
        let (_server, page) = outside.web_server();
        let cluster = Cluster::up("2x1x1");
        let _blue = cluster.domain("blue", &["*,0,0"]);
        connect(&cluster, &outside, "");
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
            connect(&cluster, &outside, &format!("--{kind}"));
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
