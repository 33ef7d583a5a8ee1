//! Connections that survive changes around them, and connections that end with a membership.

use serde_json::Value;
use tests::cluster::Cluster;
use tests::process::{Running, eventually};
use tests::software::{goes_on, iperf3_server};

use crate::mix::{Mix, PAIR};

for_each_mix!(
    a_stream_goes_on_while_others_come_and_go,
    a_stream_goes_on_when_the_driver_is_killed,
    a_stream_waits_for_a_stopped_receiver,
    a_stream_gets_through_beside_floods,
    nothing_reaches_a_member_that_left,
);

/// A stream of iperf3 from `0,0,0` to `1,0,0`, longer than any story.
struct Stream<'a> {
    cluster: &'a Cluster,
    server: Running,
    client: Running,
}

impl<'a> Stream<'a> {
    fn start(cluster: &'a Cluster, options: &str) -> Self {
        let server = iperf3_server(cluster, "1,0,0");
        let client = cluster.spawn("0,0,0", &format!("iperf3 -t 600 -c 1-0-0.blue {options}"));
        let stream = Stream {
            cluster,
            server,
            client,
        };
        stream.goes_on();
        stream
    }

    /// Waits until more has arrived.
    #[track_caller]
    fn goes_on(&self) {
        goes_on(&self.server);
    }

    /// Ends it as its user would.
    fn end(self) {
        self.goes_on();
        self.cluster.exec("0,0,0", "pkill -INT iperf3").ok();
        let end = self.client.wait();
        assert!(end.text().contains("receiver"), "a whole report: {end}");
        let _ = self.server.kill();
    }
}

fn a_stream_goes_on_while_others_come_and_go(mix: Mix) {
    let cluster = Cluster::up("4x1x1");
    let blue = mix.domain(&cluster, "blue", &["0,0,0", "1,0,0", "2,0,0"]);
    let stream = Stream::start(&cluster, "");
    for _ in 0..5 {
        blue.grow(&["3,0,0"]);
        cluster.reaches("3,0,0", "1-0-0.blue");
        blue.shrink(&["2,0,0"]);
        stream.goes_on();
        blue.grow(&["2,0,0"]);
        blue.shrink(&["3,0,0"]);
        stream.goes_on();
    }
    stream.end();
}

fn a_stream_goes_on_when_the_driver_is_killed(mix: Mix) {
    let cluster = Cluster::up("2x1x1");
    let _blue = mix.domain(&cluster, "blue", PAIR);
    let stream = Stream::start(&cluster, "");
    for _ in 0..3 {
        cluster.kill_driver();
        stream.goes_on();
    }
    stream.end();
}

fn a_stream_waits_for_a_stopped_receiver(mix: Mix) {
    let cluster = Cluster::up("3x1x1");
    let _blue = mix.domain(&cluster, "blue", &["0,0,0", "1,0,0", "2,0,0"]);
    let stream = Stream::start(&cluster, "");
    for _ in 0..2 {
        cluster.exec("1,0,0", "pkill -STOP iperf3").ok();
        let sent = || sent(&cluster, "0,0,0", "bytes");
        eventually("the sender waits", || {
            let before = sent();
            // Others are served meanwhile.
            cluster.reaches("2,0,0", "-c 3 -i 0.05 1-0-0.blue");
            sent() - before < 10_000
        });
        cluster.exec("1,0,0", "pkill -CONT iperf3").ok();
        stream.goes_on();
    }
    stream.end();
}

/// Datagrams fill the queue of another's interface, and then the sender's own, where TCP loses as
/// much of its packets as everybody. Where they pass through the kernel alone, they arrive.
fn a_stream_gets_through_beside_floods(mix: Mix) {
    let cluster = Cluster::up("3x1x1");
    let blue = mix.domain(&cluster, "blue", &["0,0,0", "1,0,0", "2,0,0"]);
    let address = blue.ipv4("1,0,0");
    let is_direct = cluster.ask("domain show blue")["without_kernel"].is_null();
    let flood = |node: &str| {
        let flood = cluster.spawn(
            node,
            &format!("iperf -u -t 600 -b 10g -l 1000 -c {address}"),
        );
        let count = || {
            let arrived = received(&cluster, "1,0,0");
            (sent(&cluster, node, "dropped"), arrived)
        };
        let before = count();
        eventually("the queue is full, or datagrams pass", || {
            let now = count();
            now.0 > before.0 + 10_000 || is_direct && now.1 > before.1 + 100_000
        });
        flood
    };
    let stream = Stream::start(&cluster, "");
    let anothers = flood("2,0,0");
    for _ in 0..5 {
        stream.goes_on();
    }
    let its_own = flood("0,0,0");
    let _ = its_own.kill();
    stream.goes_on();
    let _ = anothers.kill();
    stream.end();
}

/// How many `bytes` or `packets` a node's interface has ever sent, or how many it has `dropped` instead.
pub fn sent(cluster: &Cluster, node: &str, of: &str) -> u64 {
    counted(cluster, node, "tx", of)
}

/// How many packets it has ever received.
pub fn received(cluster: &Cluster, node: &str) -> u64 {
    counted(cluster, node, "rx", "packets")
}

fn counted(cluster: &Cluster, node: &str, direction: &str, of: &str) -> u64 {
    let links = cluster.exec(node, "ip -json -stats link show blue");
    let links = links.ok().json();
    let count = links[0]["stats64"][direction][of].as_u64();
    count.unwrap_or_else(|| panic!("no count: {links}"))
}

fn nothing_reaches_a_member_that_left(mix: Mix) {
    let cluster = Cluster::up("2x1x1");
    for options in ["", "-6", "-u -b 200M -l 1000"] {
        let blue = mix.domain(&cluster, "blue", PAIR);
        let stream = Stream::start(&cluster, options);
        blue.shrink(&["1,0,0"]);
        let at_return = received_packets(&cluster, "1,0,0");
        let refused = refused(&cluster);
        eventually("the sender goes on", || {
            self::refused(&cluster) > refused + 2
        });
        assert_eq!(received_packets(&cluster, "1,0,0"), at_return, "{options}");
        drop(stream);
        blue.remove();
    }
}

/// All packets that a node's kernel has ever received, of IPv4 and IPv6.
fn received_packets(cluster: &Cluster, node: &str) -> u64 {
    let counters = cluster.exec(node, "nstat -a -s -z -j IpInReceives Ip6InReceives");
    let counters = counters.ok().json();
    let count = |name| counters["kernel"][name].as_u64();
    let all = [count("IpInReceives"), count("Ip6InReceives")];
    all.into_iter()
        .map(|count| count.unwrap_or_else(|| panic!("{counters}")))
        .sum()
}

/// Frames of `0,0,0` for an address outside of the domain.
fn refused(cluster: &Cluster) -> u64 {
    let drops = cluster.ask("domain drops blue");
    let of_sender = drops
        .as_array()
        .into_iter()
        .flatten()
        .find(|port| port["node"] == "0,0,0");
    let dropped = of_sender.map(|port| &port["dropped"]["no_such_member"]);
    dropped.and_then(Value::as_u64).unwrap_or(0)
}
