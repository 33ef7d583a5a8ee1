//! Ethernet between nodes of different hosts, whose drivers are connected.

use nix::sys::signal::Signal;
use tests::actor::Event;
use tests::cluster::leaves_nothing;
use tests::hosts::{Host, Hosts};
use tests::process::{Running, eventually, now_ns, send};
use tests::software::{bytes, goes_on, iperf3_server};

use crate::hosts_gateways::{OUTSIDE, outside_of};
use crate::kernel_path::is_direct;

/// Two hosts whose nodes, all four, are members of `blue`.
pub(crate) fn blue() -> Hosts {
    let hosts = Hosts::up(2);
    let [a, b] = hosts.each();
    a.agent.domain("blue", &["*,*,0"]);
    a.trunk_to("b");
    b.trunk_to("a");
    hosts
}

#[test]
fn members_of_two_hosts_reach_each_other_by_name_however_long_the_packet() {
    leaves_nothing(|| {
        let hosts = blue();
        let [a, b] = hosts.each();
        for (from, node, to) in [(a, "0,0,0", "1-1-0.blue"), (b, "1,1,0", "0-0-0.blue")] {
            for options in ["", "-s 8000 -M do", "-s 30000", "-6", "-6 -s 30000"] {
                from.agent.reaches(node, &format!("{options} {to}"));
            }
        }
        let ping = a.agent.ask("ping 0,0,0 1,1,0 --count 3");
        assert_eq!(ping["paths"][0]["path"], "ethernet");
        assert_eq!(ping["paths"][0]["lost"], 0);
        // Near ones as ever.
        a.agent.reaches("0,0,0", "1-0-0.blue");
    });
}

/// Members of a host that follows change their path as those of the leader do, and the connection
/// between hosts stays.
#[test]
fn the_path_of_frames_changes_on_all_hosts() {
    leaves_nothing(|| {
        let hosts = blue();
        let [a, b] = hosts.each();
        let server = iperf3_server(&a.agent, "1,0,0");
        let client = b.agent.spawn("1,1,0", "iperf3 -t 600 -c 1-0-0.blue");
        goes_on(&server);
        for (set, why) in [
            (
                "--ethernet driver",
                Some("the domain has --ethernet driver"),
            ),
            ("--ethernet auto", None),
            ("--fence 10", Some("it has a fence")),
            ("--fence off", None),
        ] {
            b.agent.toroid(&format!("domain set blue {set}")).ok();
            hosts.agree();
            for (host, from, to) in [(a, "0,0,0", "1-0-0.blue"), (b, "0,1,0", "1-1-0.blue")] {
                let told = host.agent.ask("domain show blue");
                assert_eq!(told["without_kernel"].as_str(), why, "{set}");
                assert_eq!(
                    is_direct(&host.agent, from, to),
                    why.is_none(),
                    "{set}, {from}"
                );
            }
            goes_on(&server);
        }
        let _ = client.kill();
    });
}

/// A subnet may have fewer addresses than the torus has nodes. The kernel of a member that knows the
/// former owner of an address keeps that for minutes, and reaches the next owner nevertheless.
#[test]
fn addresses_of_a_small_subnet_go_from_node_to_node() {
    leaves_nothing(|| {
        let hosts = Hosts::up(2);
        let [a, b] = hosts.each();
        let create = "domain create blue 0,0,0 0,1,0 --subnet 10.9.0.0/30";
        let refused = a.agent.toroid(create);
        refused.fails(2, &["too small for 4 nodes", "--capacity"]);
        a.agent.toroid(&format!("{create} --capacity 2")).ok();
        a.trunk_to("b");
        b.trunk_to("a");
        let ping = || a.agent.exec("0,0,0", "ping -c 1 -W 2 10.9.0.2");
        ping().ok();
        let refused = b.agent.toroid("domain grow blue 1,1,0");
        refused.fails(
            7,
            &["addresses for 2 members, and not for 3", "--capacity 3"],
        );
        b.agent.toroid("domain shrink blue 0,1,0").ok();
        b.agent.toroid("domain grow blue 1,1,0").ok();
        hosts.agree();
        ping().ok();
        b.agent.exec("1,1,0", "ping -c 1 -W 2 10.9.0.1").ok();
        // The same on one host.
        a.agent.toroid("domain shrink blue 1,1,0").ok();
        a.agent.toroid("domain grow blue 1,0,0").ok();
        ping().ok();
        let blue = a.agent.ask("domain show blue");
        assert_eq!(
            (&blue["capacity"], &blue["subnet"]),
            (&2.into(), &"10.9.0.0/30".into())
        );
        assert_eq!(blue["members"][1]["ipv4"], "10.9.0.2");
        assert_eq!(blue["members"][1]["node"], "1,0,0");
    });
}

#[test]
fn streams_and_datagrams_cross_both_ways() {
    let hosts = blue();
    let [a, b] = hosts.each();
    // The server does not count bytes in flight at the end.
    const LEN: u64 = 32 << 20;
    for (server, to, client, from) in [(b, "1,1,0", a, "0,0,0"), (a, "0,0,0", b, "1,1,0")] {
        let name = to.replace(',', "-") + ".blue";
        for options in [
            "-n 64M",
            "-6 -n 64M",
            "-n 64M -M 700",
            "-n 64M -P 4",
            "-n 64M -R",
        ] {
            let listening = iperf3_server(&server.agent, to);
            let command = format!("iperf3 -J -c {name} {options}");
            let report = client.agent.exec(from, &command).ok().json();
            assert!(bytes(&report, "sum_received") >= LEN, "{options}: {report}");
            listening.wait().ok();
        }
        let listening = iperf3_server(&server.agent, to);
        let command = format!("iperf3 -J -c {name} -u -b 50M -n 4M");
        let report = client.agent.exec(from, &command).ok().json();
        listening.wait().ok();
        assert!(bytes(&report, "sum_received") > 0, "{report}");
    }
}

/// An interface without offload gets whole frames from another host as well.
#[test]
fn super_frames_are_cut_for_whom_takes_none() {
    let hosts = Hosts::up(2);
    let [a, b] = hosts.each();
    a.agent.domain("blue", &["*,0,0"]);
    b.agent.toroid("domain grow blue 0,1,0 --offload off").ok();
    b.agent.toroid("domain grow blue 1,1,0").ok();
    a.trunk_to("b");
    b.trunk_to("a");
    for to in ["0,1,0", "1,1,0"] {
        let sniffer = b
            .agent
            .spawn(to, "tcpdump -i blue -nn tcp and greater 9020");
        sniffer.warns("listening on");
        let server = iperf3_server(&b.agent, to);
        let name = to.replace(',', "-") + ".blue";
        let report = a
            .agent
            .exec("0,0,0", &format!("iperf3 -J -c {name} -n 64M"));
        assert!(bytes(&report.ok().json(), "sum_received") >= 32 << 20);
        server.wait().ok();
        sniffer.signal(Signal::SIGINT);
        let outcome = sniffer.wait();
        let long = outcome.text().lines().count();
        assert_eq!(long > 0, to == "1,1,0", "{long} long frames for {to}");
    }
}

/// A server that prints datagrams of a port.
const EAR: &str = r#"
import socket, struct, sys
group, port = sys.argv[1], int(sys.argv[2])
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind(("", port))
if group != "-":
    own = socket.inet_aton(socket.gethostbyname(sys.argv[3]))
    s.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, socket.inet_aton(group) + own)
print("ready", flush=True)
while True:
    print(s.recv(100).decode(), flush=True)
"#;

const MOUTH: &str = r#"
import socket, sys
to, port, own, words = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4:]
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
s.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(socket.gethostbyname(own)))
for word in words:
    s.sendto(word.encode(), (to, port))
"#;

fn ear(at: &Host, node: &str, group: &str) -> Running {
    let own = node.replace(',', "-") + ".blue";
    let mut command = at
        .agent
        .in_node(node, &["/usr/bin/python3", "-uc", EAR, group, "4000", &own]);
    let ear = Running::start(command.stdin(std::process::Stdio::piped()));
    ear.says("ready");
    ear
}

fn shout(at: &Host, node: &str, to: &str, words: &[&str]) {
    let own = node.replace(',', "-") + ".blue";
    let arguments = [&["/usr/bin/python3", "-c", MOUTH, to, "4000", &own], words].concat();
    tests::process::run(&mut at.agent.in_node(node, &arguments)).ok();
}

#[test]
fn what_is_for_all_reaches_members_of_other_hosts_once() {
    let hosts = Hosts::up(3);
    let [a, b, c] = hosts.each();
    a.agent.domain("blue", &["*,0-1,0", "0,2,0"]);
    for (from, to) in [(a, "b"), (a, "c"), (b, "c")] {
        from.trunk_to(to);
    }
    let group = "239.1.2.3";
    let members = [(a, "1,0,0"), (b, "0,1,0"), (b, "1,1,0"), (c, "0,2,0")];
    let deaf = ear(b, "1,1,0", "-");
    let ears: Vec<Running> = members
        .iter()
        .filter(|(_, node)| *node != "1,1,0")
        .map(|(at, node)| ear(at, node, group))
        .collect();
    shout(a, "0,0,0", group, &["joined", "again"]);
    shout(a, "0,0,0", "10.64.0.255", &["all", "end"]);
    for ear in &ears {
        ear.says("end");
        assert_eq!(ear.so_far(), "ready\njoined\nagain\nall\nend\n");
    }
    // Only its neighbour has joined, and its kernel has not; the driver there tells them apart.
    deaf.says("end");
    assert_eq!(deaf.so_far(), "ready\nall\nend\n");
}

#[test]
fn who_has_left_is_cut_off_on_all_hosts_and_may_come_again() {
    let hosts = blue();
    let [a, b] = hosts.each();
    let server = iperf3_server(&a.agent, "0,0,0");
    let stream = b.agent.spawn("1,1,0", "iperf3 -c 0-0-0.blue -t 600");
    let at_member = a.agent.listener("0,0,0", 7000);
    let at_leaver = b.agent.listener("1,1,0", 7000);
    let mut from_leaver = b.agent.flood("1,1,0", "10.64.0.1", 7000);
    let mut from_member = a.agent.flood("1,0,0", "10.64.0.4", 7000);
    at_member.reports(&Event::First);
    at_leaver.reports(&Event::First);
    let staying = b.agent.spawn("0,1,0", "ping -i 0.01 1-0-0.blue");
    staying.says("icmp_seq=3");
    goes_on(&server);

    // Of the host that does not carry the leaver, which waits for the other.
    a.agent.toroid("domain shrink blue 1,1,0").ok();
    let returned = now_ns();

    from_leaver.close();
    from_member.close();
    from_leaver.wait().ok();
    from_member.wait().ok();
    for listener in [at_member, at_leaver] {
        listener.heard_nothing_since(returned);
    }
    let seen = staying.so_far().lines().count();
    eventually("those who stay go on", || {
        staying.so_far().lines().count() > seen + 5
    });
    drop((stream, server));
    b.agent.has_no_route("1,1,0", "10.64.0.1");
    a.agent.cannot_reach("0,0,0", "10.64.0.4");

    b.agent.toroid("domain grow blue 1,1,0").ok();
    b.agent.reaches("1,1,0", "0-0-0.blue");
    a.agent.reaches("1,0,0", "-6 1-1-0.blue");
}

/// The way of a packet: a node of host b, host a's driver, the gateway's node, host a's cable, host b.
#[test]
fn a_gateway_serves_members_of_other_hosts() {
    leaves_nothing(|| {
        let hosts = blue();
        let [a, b] = hosts.each();
        let outside = b.address();
        let (outside, _) = outside.split_once(':').expect("an address and a port");
        b.agent.has_no_route("1,1,0", outside);
        let gateway = "gateway add 0,0,0 --uplink eth0 -d blue";
        b.agent.toroid(gateway).ok();
        b.agent.reaches("1,1,0", outside);
        a.agent.reaches("1,0,0", outside);
        let gateway = "gateway rm 0,0,0 -d blue";
        a.agent.toroid(gateway).ok();
        b.agent.has_no_route("1,1,0", outside);
    });
}

#[test]
fn limited_members_of_two_hosts_do_not_reach_each_other() {
    let hosts = Hosts::up(2);
    let [a, b] = hosts.each();
    let blue = a.agent.domain("blue", &["0,0,0", "0,1,0"]);
    for node in ["1,0,0", "1,1,0"] {
        a.agent
            .toroid(&format!("domain grow blue {node} --limited"))
            .ok();
    }
    a.trunk_to("b");
    b.trunk_to("a");
    a.agent.reaches("1,0,0", "0-1-0.blue");
    b.agent.reaches("1,1,0", "0-0-0.blue");
    a.agent.cannot_reach("1,0,0", &blue.ipv4("1,1,0"));
    b.agent.cannot_reach("1,1,0", &blue.ipv4("1,0,0"));
}

#[test]
fn a_stream_goes_on_when_drivers_and_agents_are_killed() {
    let hosts = blue();
    let [a, b] = hosts.each();
    let server = iperf3_server(&b.agent, "1,1,0");
    let mut client = a.agent.spawn("0,0,0", "iperf3 -c 1-1-0.blue -t 600");
    goes_on(&server);
    for host in [a, b] {
        host.agent.kill_driver();
        goes_on(&server);
    }
    let drivers = [a, b].map(|host| host.agent.driver_pid());
    for host in [a, b] {
        host.agent.kill_agent();
        goes_on(&server);
        host.up();
        goes_on(&server);
    }
    // No node has noticed.
    assert_eq!([a, b].map(|host| host.agent.driver_pid()), drivers);
    a.trunk_to("b");
    b.trunk_to("a");
    assert!(!client.has_ended(), "{}", client.wait());
    // Both at once.
    b.agent.kill_agent();
    send(drivers[1].expect("it runs"), Signal::SIGKILL);
    b.up();
    goes_on(&server);
}

#[test]
fn a_stream_goes_on_when_the_cable_has_been_cut_or_the_connection() {
    let hosts = blue();
    let [a, b] = hosts.each();
    let server = iperf3_server(&b.agent, "1,1,0");
    let mut client = a.agent.spawn("0,0,0", "iperf3 -c 1-1-0.blue -t 600");
    goes_on(&server);
    hosts.cut(b);
    eventually("the trunk is gone", || a.about("b")["frames"].is_null());
    hosts.mend(b);
    goes_on(&server);
    a.trunk_to("b");
    for host in [a, b] {
        let ended = || a.agent.log().matches("driver of host b has ended").count();
        let before = ended();
        // All connections between the two.
        host.spawn(
            "ss",
            &["-K", "dport", "=", ":7470", "or", "sport", "=", ":7470"],
        )
        .wait()
        .ok();
        eventually("the trunk is cut", || ended() > before);
        a.trunk_to("b");
        goes_on(&server);
    }
    assert!(!client.has_ended(), "{}", client.wait());
}

#[test]
fn a_gateway_at_a_node_of_any_host_serves_members_of_all() {
    leaves_nothing(|| {
        let hosts = blue();
        let [a, b] = hosts.each();
        let _outside = outside_of(b);
        let all = || {
            for (host, node) in [(a, "0,0,0"), (b, "0,1,0"), (b, "1,1,0")] {
                host.agent.reaches(node, OUTSIDE);
            }
        };
        let add = |at: &Host, node: &str, uplink: &str| {
            let words = format!("gateway add {node} --uplink {uplink} -d blue");
            at.agent.toroid(&words)
        };
        // A missing uplink is named before anything changes.
        for at in [a, b] {
            add(at, "1,1,0", "eth9").fails(4, &["eth9", "ip link"]);
            assert!(at.agent.existing("blue").show()["gateway"].is_null());
        }
        add(a, "0,0,0", "up0").fails(4, &["up0"]);
        add(a, "1,1,0", "up0").ok();
        all();
        add(a, "1,1,0", "up0").fails(5, &["blue"]);
        // An uplink of the same name of another host is another one.
        let _near = outside_of(a);
        let red = a.agent.domain("red", &["*,0,0"]);
        a.agent.toroid("gateway add 0,0,0 --uplink up0 -d red").ok();
        a.agent.reaches("1,0,0", OUTSIDE);
        red.remove();
        b.agent.kill_agent();
        a.agent.reaches("0,0,0", OUTSIDE);
        b.up();
        all();
        b.agent.toroid("gateway rm 1,1,0 -d blue").ok();
        a.agent.has_no_route("0,0,0", OUTSIDE);
        add(b, "0,1,0", "up0").ok();
        all();
        a.agent.toroid("gateway rm 0,1,0 -d blue").ok();
        b.agent.kill_agent();
        add(a, "1,1,0", "up0").fails(1, &["host b", "toroid status"]);
        b.up();
    });
}
