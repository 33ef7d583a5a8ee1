//! iperf3: TCP and UDP in bulk. How fast is for benchmarks to say.

use serde_json::Value;
use tests::cluster::Cluster;
use tests::software::{bytes, iperf3};

use crate::mix::{Mix, PAIR};

for_each_mix!(
    tcp_streams_of_both_families_and_directions,
    tcp_streams_at_every_mtu,
    udp_of_both_families_and_directions_arrives,
);

const MIB: u64 = 1 << 20;

fn tcp_streams_of_both_families_and_directions(mix: Mix) {
    let cluster = Cluster::up("2x1x1");
    let _blue = mix.domain(&cluster, "blue", PAIR);
    for family in ["-4", "-6"] {
        for way in ["", "-R", "-P 4", "-P 4 -R", "--bidir"] {
            stream(&cluster, &format!("{family} {way}"));
        }
    }
    // Small writes, each a packet, and the smallest segments.
    stream(&cluster, "-l 100 -N");
    stream(&cluster, "-M 536");
}

fn tcp_streams_at_every_mtu(mix: Mix) {
    let cluster = Cluster::up("2x1x1");
    for mtu in ["1280", "1500", "9000", "65521"] {
        let blue = mix.domain_with(&cluster, "blue", PAIR, &["--mtu", mtu]);
        stream(&cluster, "-4");
        stream(&cluster, "-6 -R");
        blue.remove();
    }
}

fn stream(cluster: &Cluster, options: &str) {
    let options = format!("-n 24M {options}");
    let report = iperf3(cluster, "0,0,0", "1,0,0", "1-0-0.blue", &options);
    let mut received = vec![bytes(&report, "sum_received")];
    if options.contains("--bidir") {
        received.push(bytes(&report, "sum_received_bidir_reverse"));
    }
    // Bytes in flight at the end of a stream are not counted. With two directions all ends with the
    // first that is done, and the kernel does not share processors fairly between them.
    let has_arrived = received.iter().sum::<u64>() > MIB && !received.contains(&0);
    assert!(has_arrived, "{received:?} with {options}: {report}");
}

fn udp_of_both_families_and_directions_arrives(mix: Mix) {
    let cluster = Cluster::up("2x1x1");
    let _blue = mix.domain(&cluster, "blue", PAIR);
    for family in ["-4", "-6"] {
        for way in [
            "-l 1000 -b 100M",
            "-l 8000 -b 100M -R",
            "-l 200 -b 40M -P 2",
        ] {
            datagrams(&cluster, &format!("{family} {way}"));
        }
    }
    // In pieces.
    datagrams(&cluster, "-l 30000 -b 100M");
}

fn datagrams(cluster: &Cluster, options: &str) {
    let options = format!("-u -n 3M {options}");
    let report = iperf3(cluster, "0,0,0", "1,0,0", "1-0-0.blue", &options);
    let lost = lost_percent(&report);
    // Most must arrive.
    assert!(lost < 50.0, "{lost} % lost with {options}: {report}");
}

fn lost_percent(report: &Value) -> f64 {
    let lost = report["end"]["sum"]["lost_percent"].as_f64();
    lost.unwrap_or_else(|| panic!("nothing about losses: {report}"))
}
