//! Addresses of nodes. Of those that are no members yet: no member can take them, and a node is reached
//! at its address as soon as it is a member. Of those in other domains: they are reached from there only.

use serde_json::Value;
use tests::cluster::{Cluster, Domain};
use tests::process::{Running, eventually};
use tests::software;

/// The exit status of ping(8) for no answer.
const NO_ECHO: i32 = 1;

const LATER: &str = "0,1,0";

/// The addresses that a node will have.
fn addresses(blue: Domain<'_>) -> [String; 2] {
    blue.grow(&[LATER]);
    let member = blue.member(LATER);
    let addresses = ["ipv4", "ipv6"].map(|key| member[key].as_str().expect("text").to_owned());
    blue.shrink(&[LATER]);
    addresses
}

fn hear(cluster: &Cluster, node: &str) -> Running {
    let mut running = cluster.spawn(node, &software::hear_datagrams(cluster.files()));
    assert_eq!(running.line(), "listening");
    running
}

/// Packets to the address of a new member went to a member that had taken the address before, for
/// some 40 s, until the sender's kernel asked again.
#[test]
fn a_member_cannot_squat_the_address_of_a_node_that_joins_later() {
    let cluster = Cluster::up("2x2x1");
    let blue = cluster.domain("blue", &["0,0,0", "1,0,0"]);
    let [ipv4, ipv6] = addresses(blue);
    for words in [
        format!("ip address add {ipv4}/24 dev blue"),
        format!("ip -6 address add {ipv6}/64 dev blue nodad"),
    ] {
        cluster.exec("1,0,0", &words).ok();
    }
    let mut squatter = hear(&cluster, "1,0,0");
    for address in [&ipv4, &ipv6] {
        let ping = format!("ping -c 1 -W 1 {address}");
        assert_eq!(cluster.exec("0,0,0", &ping).status, NO_ECHO, "{address}");
    }
    eventually("its answers are held back", || {
        let drops = cluster.ask("domain drops blue");
        let drops = drops.as_array().expect("a list").iter();
        let foreign = drops.filter_map(|member| member["dropped"]["foreign_address"].as_u64());
        foreign.sum::<u64>() > 0
    });

    blue.grow(&[LATER]);
    let mut member = hear(&cluster, LATER);
    let send = |to: &str, text: &str| {
        let send = software::send_datagram(cluster.files(), to, text);
        cluster.exec("0,0,0", &send).ok();
    };
    send(&ipv4, "for-the-member");
    send(&blue.ipv4("1,0,0"), "for-the-squatter");
    assert_eq!(member.line(), "for-the-member");
    assert_eq!(squatter.line(), "for-the-squatter");
    for address in [&ipv4, &ipv6] {
        cluster.reaches("0,0,0", address);
    }
}

/// A kernel takes packets for any of its addresses from any of its interfaces, so a datagram from a
/// member of blue alone came to a socket at the receiver's address in red.
#[test]
fn a_node_in_two_domains_is_reached_in_each_by_its_address_there() {
    let cluster = Cluster::up("3x1x1");
    let blue = cluster.domain("blue", &["0-1,0,0"]);
    let red = cluster.domain("red", &["1-2,0,0"]);
    let [in_blue, in_red] = [blue, red].map(|domain| domain.ipv4("1,0,0"));
    let route = format!("ip route add {in_red}/32 via {in_blue} dev blue");
    cluster.exec("0,0,0", &route).ok();
    let mut receiver = hear(&cluster, "1,0,0");
    let send = |from: &str, to: &str, text: &str| {
        let send = software::send_datagram(cluster.files(), to, text);
        cluster.exec(from, &send).ok();
    };
    send("0,0,0", &in_red, "across");
    send("0,0,0", &in_blue, "in-blue");
    assert_eq!(receiver.line(), "in-blue");
    send("2,0,0", &in_red, "in-red");
    assert_eq!(receiver.line(), "in-red");
    let drops = cluster.ask("domain drops blue");
    assert_eq!(
        drops[0]["dropped"]["foreign_address"],
        Value::from(1),
        "{drops}"
    );

    // It is a router where both domains have some.
    for domain in ["blue", "red"] {
        cluster
            .toroid(&format!("domain set {domain} --forward on"))
            .ok();
    }
    send("0,0,0", &in_red, "across");
    assert_eq!(receiver.line(), "across");
}

/// A kernel asks again only after a while, here after ten minutes, and queues packets until then.
#[test]
fn a_member_that_was_asked_for_in_vain_is_reached_as_soon_as_it_is_one() {
    let cluster = Cluster::up("2x2x1");
    let blue = cluster.domain("blue", &["0,0,0", "1,0,0"]);
    let addresses = addresses(blue);
    for table in ["arp_cache", "ndisc_cache"] {
        let change = format!("ip ntable change name {table} dev blue retrans 600000");
        cluster.exec("0,0,0", &change).ok();
    }
    let pings = addresses.clone().map(|address| {
        let ping = cluster.spawn("0,0,0", &format!("ping -c 1 -W 100 {address}"));
        eventually("it is asked for", || {
            let show = format!("ip -json neighbour show to {address} dev blue");
            let neighbours = cluster.exec("0,0,0", &show).ok().json();
            neighbours[0]["state"][0] == "INCOMPLETE"
        });
        ping
    });
    blue.grow(&[LATER]);
    for ping in pings {
        ping.wait().ok();
    }
}
