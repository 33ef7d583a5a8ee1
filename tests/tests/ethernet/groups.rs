//! One for many: multicast, and broadcast as DHCP uses it.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;

use tests::cluster::Cluster;
use tests::process::Running;

use crate::mix::Mix;

for_each_mix!(
    a_stream_for_a_group_reaches_all_who_joined,
    all_hosts_of_a_group_answer,
    a_member_gets_an_address_from_another,
);

const MEMBERS: &[&str] = &["0,0,0", "1,0,0", "2,0,0", "3,0,0"];

/// The sender has joined the group as well.
fn a_stream_for_a_group_reaches_all_who_joined(mix: Mix) {
    let cluster = Cluster::up("4x1x1");
    let _blue = mix.domain(&cluster, "blue", MEMBERS);
    for node in MEMBERS {
        // IPv6 has such a route anyway.
        cluster.exec(node, "ip route add 224.0.0.0/4 dev blue").ok();
    }
    let groups = [("", "239.1.2.3"), ("-V", "ff15::1:2")];
    let mut servers: Vec<(&str, Running)> = Vec::new();
    for node in MEMBERS {
        for (options, group) in groups {
            let server = format!("iperf {options} -s -u -i 0.5 -B {group}%blue");
            let server = cluster.spawn(node, &server);
            server.says("Joining multicast");
            servers.push((node, server));
        }
    }
    for (options, group) in groups {
        let send = format!("iperf {options} -u -c {group}%blue -T 4 -b 20m -l 1000 -t 0.5");
        cluster.exec("0,0,0", &send).ok();
    }
    for (_, server) in &servers {
        server.says("connected with");
    }
    for node in MEMBERS {
        cluster.exec(node, "pkill -INT iperf").ok();
    }
    for (node, server) in servers {
        // The line that ends a stream's report tells how many of all were lost.
        let end = server.wait();
        assert!(end.text().contains("%)"), "{node} heard nothing: {end}");
    }
}

/// Every kernel is in the group of all hosts.
fn all_hosts_of_a_group_answer(mix: Mix) {
    let cluster = Cluster::up("4x1x1");
    let blue = mix.domain(&cluster, "blue", MEMBERS);
    let all = cluster.exec("0,0,0", "ping -6 -c 3 -i 0.05 -W 10 -I blue ff02::1");
    let all = all.ok();
    for node in &MEMBERS[1..] {
        let address = blue.member(node)["ipv6"].to_string();
        let address = address.trim_matches('"');
        assert!(all.text().contains(address), "{node} answers, too: {all}");
    }
}

/// dnsmasq in one node serves udhcpc in another, which has no address then.
fn a_member_gets_an_address_from_another(mix: Mix) {
    let cluster = Cluster::up("3x1x1");
    let _blue = mix.domain(&cluster, "blue", &["0,0,0", "1,0,0", "2,0,0"]);
    let dnsmasq = "dnsmasq --keep-in-foreground --conf-file=/dev/null --port=0 --interface=blue \
        --bind-interfaces --dhcp-authoritative --dhcp-range=10.64.0.100,10.64.0.110,255.255.255.0 \
        --no-ping --dhcp-leasefile=/run/leases --pid-file=/run/dnsmasq.pid --user=root \
        --log-facility=- --log-dhcp";
    let server = cluster.spawn("0,0,0", dnsmasq);
    server.warns("DHCP, sockets bound exclusively to interface blue");
    let script = cluster.files().join("lease");
    let text = "#!/bin/sh\n[ \"$1\" != bound ] || ip address add $ip/$mask dev $interface\n";
    fs::write(&script, text).expect("there is room");
    fs::set_permissions(&script, Permissions::from_mode(0o755)).expect("it is ours");
    cluster.exec("1,0,0", "ip -4 address flush dev blue").ok();
    let udhcpc = format!("udhcpc -i blue -f -n -q -t 20 -T 1 -s {}", script.display());
    cluster.exec("1,0,0", &udhcpc).ok();
    server.warns("DHCPACK(blue) 10.64.0.1");
    let leased = cluster
        .exec("1,0,0", "ip -json -4 address show dev blue")
        .ok()
        .json();
    let address = leased[0]["addr_info"][0]["local"].as_str();
    let address = address.unwrap_or_else(|| panic!("no address: {leased}"));
    assert!(address.starts_with("10.64.0.1"), "{leased}");
    for node in ["0,0,0", "2,0,0"] {
        cluster.reaches(node, address);
    }
}
