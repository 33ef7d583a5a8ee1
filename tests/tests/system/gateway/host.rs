//! The host of a gateway, which does not become a router.

use serde_json::Value;
use tests::cluster::{Cluster, leaves_nothing};
use tests::outside::{Outside, host, on_a_host_of_its_own, sysctl};
use tests::process::{Running, eventually};
use tests::software;

/// The exit statuses of ping(8) and curl(1) for no answer.
const NO_ECHO: i32 = 1;
const TIMED_OUT: i32 = 28;

/// Two networks of one host, which know the way to each other by the host.
struct Neighbours {
    street: Outside,
    vault: Outside,
    /// In the vault.
    web_server: (Running, String),
    datagrams: Running,
    cluster: Cluster,
}

impl Neighbours {
    fn new() -> Self {
        let [street, vault] = [Outside::new(), Outside::new()];
        for [here, there] in [[&street, &vault], [&vault, &street]] {
            let (subnet, router) = (there.subnet(), here.host_address());
            here.run(&format!("ip route add {subnet} via {router}"))
                .ok();
        }
        let cluster = Cluster::up("2x1x1");
        let mut datagrams = vault.spawn(&software::hear_datagrams(cluster.files()));
        assert_eq!(datagrams.line(), "listening");
        Neighbours {
            web_server: vault.web_server(),
            street,
            vault,
            datagrams,
            cluster,
        }
    }

    fn gateway(&self, words: &str) {
        self.cluster.toroid(&format!("gateway {words}")).ok();
    }

    /// The command by which a datagram for the vault is sent.
    fn send(&self, text: &str) -> String {
        software::send_datagram(self.cluster.files(), &self.vault.address(), text)
    }

    fn echo(&self) -> i32 {
        let vault = self.vault.address();
        self.street.run(&format!("ping -c 1 -W 1 {vault}")).status
    }

    /// Asserts that nothing gets from the street to the vault, not even one way.
    #[track_caller]
    fn are_apart(&mut self, when: &str) {
        assert_eq!(self.echo(), NO_ECHO, "{when}");
        let page = &self.web_server.1;
        let fetch = self
            .street
            .run(&format!("curl --silent --max-time 1 {page}"));
        assert_eq!(fetch.status, TIMED_OUT, "{when}");
        self.street.run(&self.send("street")).ok();
        // The kernel forwards while the sender sends, so this comes after it.
        host(&self.send("host"));
        assert_eq!(self.datagrams.line(), "host", "{when}");
    }

    /// Asserts that the street reaches the vault in all ways.
    #[track_caller]
    fn are_connected(&mut self) {
        eventually("echoes are answered", || self.echo() == 0);
        let page = &self.web_server.1;
        self.street
            .run(&format!("curl --silent --fail {page}"))
            .ok();
        self.street.run(&self.send("street")).ok();
        assert_eq!(self.datagrams.line(), "street");
    }

    /// Asserts that a member gets to the vault.
    #[track_caller]
    fn serves(&self, node: &str) {
        let fetch = format!("curl --silent --fail --max-time 1 {}", self.web_server.1);
        eventually("a member gets out", || {
            self.cluster.exec(node, &fetch).status == 0
        });
    }
}

/// A kernel forwards all packets from an interface that forwards, and an uplink has to forward for
/// its pair. So one gateway let packets from outside into all networks of the host, and gateways at
/// two of them let connections pass.
#[test]
fn a_gateway_makes_no_router_of_its_host() {
    on_a_host_of_its_own(|| {
        leaves_nothing(|| {
            let mut networks = Neighbours::new();
            networks.are_apart("no gateway");
            let cluster = &networks.cluster;
            cluster.domain("blue", &["0,0,0"]);
            cluster.domain("red", &["1,0,0"]);
            let [street, vault] = [&networks.street, &networks.vault].map(Outside::uplink);
            networks.gateway(&format!("add 0,0,0 --uplink {street}"));
            networks.are_apart("a gateway to the street");
            networks.gateway(&format!("add 1,0,0 --uplink {vault}"));
            networks.are_apart("gateways to both");
            networks.serves("1,0,0");
            let street = networks.street.address();
            networks.cluster.reaches("0,0,0", &format!("-4 {street}"));
            networks.gateway("rm 0,0,0");
            networks.gateway("rm 1,0,0");
            networks.are_apart("no gateway any longer");
        });
    });
}

/// A gateway does not hinder the forwarding that an administrator has set up, before or after it;
/// and it does not touch IPv6.
#[test]
fn a_host_that_is_a_router_stays_one() {
    on_a_host_of_its_own(|| {
        leaves_nothing(|| {
            let mut networks = Neighbours::new();
            networks.cluster.domain("blue", &["0,0,0"]);
            let vault = networks.vault.uplink();
            networks.gateway(&format!("add 0,0,0 --uplink {vault}"));
            networks.are_apart("a gateway");
            let is_router = |value: &str| sysctl("net/ipv4/ip_forward", value);
            is_router("1");
            networks.are_connected();
            networks.serves("0,0,0");
            is_router("0");
            eventually("it is none again", || networks.echo() == NO_ECHO);
            networks.serves("0,0,0");
            networks.are_apart("a gateway that has seen to itself");

            sysctl("net/ipv6/conf/all/forwarding", "1");
            six(&networks.street, "2001:db8:1");
            six(&networks.vault, "2001:db8:2");
            networks.street.run("ping -c 1 -W 10 2001:db8:2::2").ok();
            sysctl("net/ipv6/conf/all/forwarding", "0");

            is_router("1");
            networks.are_connected();
            networks.gateway("rm 0,0,0");
            networks.are_connected();
            is_router("0");
        });
    });
}

/// Gives an IPv6 network with this prefix to both ends, and a default route to its peer.
#[track_caller]
fn six(outside: &Outside, prefix: &str) {
    let uplink = outside.uplink();
    host(&format!(
        "ip -6 address add {prefix}::1/64 dev {uplink} nodad"
    ));
    let there = format!("ip -6 address add {prefix}::2/64 dev out nodad");
    outside.run(&there).ok();
    outside
        .run(&format!("ip -6 route add default via {prefix}::1"))
        .ok();
}

/// A kernel answers ARP requests for all addresses of its host by default, on any interface.
#[test]
fn the_pair_of_a_gateway_does_not_tell_the_addresses_of_the_host() {
    on_a_host_of_its_own(|| {
        let [outside, other] = [Outside::new(), Outside::new()];
        let cluster = Cluster::up("1x1x1");
        cluster.domain("blue", &["0,0,0"]);
        let add = format!("gateway add 0,0,0 --uplink {}", outside.uplink());
        cluster.toroid(&add).ok();
        cluster.reaches("0,0,0", &format!("-4 {}", outside.address()));
        let route = format!("ip route add {} dev toroid.gw0", other.host_address());
        cluster.exec("0,0,0", &route).ok();
        let ping = format!("ping -c 1 -W 1 {}", other.host_address());
        assert_eq!(cluster.exec("0,0,0", &ping).status, NO_ECHO);
        let neighbours = cluster.exec("0,0,0", "ip -json neighbour show dev toroid.gw0");
        let neighbours = neighbours.ok().json();
        let told = neighbours.as_array().expect("a list").iter();
        let told: Vec<&Value> = told.filter(|of| of["lladdr"].is_string()).collect();
        let addresses = told.iter().map(|of| of["dst"].as_str().expect("text"));
        let addresses: Vec<&str> = addresses.filter(|dst| !dst.contains(':')).collect();
        assert_eq!(addresses, ["169.254.64.1"]);
    });
}
