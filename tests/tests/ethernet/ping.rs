//! One packet at a time.

use tests::cluster::Cluster;

use crate::mix::{Mix, PAIR};

for_each_mix!(
    packets_of_all_sizes_come_back,
    packets_as_large_as_the_mtu_cross_whole,
    tagged_frames_pass,
);

fn packets_of_all_sizes_come_back(mix: Mix) {
    let cluster = Cluster::up("2x1x1");
    let _blue = mix.domain(&cluster, "blue", PAIR);
    for family in ["-4", "-6"] {
        // 20,000 bytes and more go in pieces.
        for size in [0, 1, 56, 1000, 8900, 20_000, 60_000] {
            let ping = format!("ping {family} -c 2 -i 0.01 -W 10 -s {size}");
            cluster.exec("0,0,0", &format!("{ping} 1-0-0.blue")).ok();
            cluster.exec("1,0,0", &format!("{ping} 0-0-0.blue")).ok();
        }
    }
    let flood = cluster.exec("0,0,0", "ping -f -c 2000 -l 16 -W 10 1-0-0.blue");
    let flood = flood.ok();
    assert!(flood.text().contains(" 0% packet loss"), "{flood}");
}

fn packets_as_large_as_the_mtu_cross_whole(mix: Mix) {
    let cluster = Cluster::up("2x1x1");
    for mtu in [1280, 1500, 9000, 65_521] {
        let options = ["--mtu", &mtu.to_string()];
        let blue = mix.domain_with(&cluster, "blue", PAIR, &options);
        for (family, headers) in [("-4", 28), ("-6", 48)] {
            // ping sends at most as much as IPv4 carries.
            let fits = (mtu - headers).min(65_507);
            let ping = format!("ping {family} -c 1 -W 10 -M do -s");
            cluster
                .exec("0,0,0", &format!("{ping} {fits} 1-0-0.blue"))
                .ok();
            // It sends nothing, and yet waits until it would send the next.
            let larger = format!("{ping} {} -i 0.01 1-0-0.blue", fits + 1);
            cluster.exec("0,0,0", &larger).fails_somehow();
        }
        blue.remove();
    }
}

/// The members' kernels need not know VLANs: a raw socket sends the tags, and tcpdump tells them.
fn tagged_frames_pass(mix: Mix) {
    let cluster = Cluster::up("2x1x1");
    let _blue = mix.domain(&cluster, "blue", PAIR);
    let tcpdump = "tcpdump -i blue -e -n -l -c 1 vlan 42 and ether proto 0x88b5";
    let tcpdump = cluster.spawn("1,0,0", tcpdump);
    tcpdump.warns("listening on blue");
    let storm = cluster.actor("0,0,0", "storm blue MARK");
    let seen = tcpdump.wait().ok();
    storm.end().ok();
    for words in ["802.1Q", "vlan 42", "ethertype Unknown (0x88b5)"] {
        assert!(seen.text().contains(words), "no {words}: {seen}");
    }
}
