//! Frames between members of one host that pass through the kernel alone.

use nix::sys::signal::Signal;
use serde_json::{Value, json};
use tests::cluster::{Cluster, leaves_nothing};
use tests::process::{Outcome, eventually, send};
use tests::software::{goes_on, iperf3_server};

/// Why frames of `blue` pass through the driver; null if they do not.
fn without_kernel(cluster: &Cluster) -> Value {
    cluster.ask("domain show blue")["without_kernel"].clone()
}

/// Whether two members reach each other while the driver stands still.
pub(crate) fn is_direct(cluster: &Cluster, from: &str, to: &str) -> bool {
    // The driver answers who has an address.
    cluster.reaches(from, to);
    let driver = cluster.driver_pid().expect("there is a driver");
    send(driver, Signal::SIGSTOP);
    let ping = cluster.exec(from, &format!("ping -c 1 -W 1 {to}"));
    send(driver, Signal::SIGCONT);
    ping.status == 0
}

#[test]
fn a_stream_goes_on_while_its_path_changes() {
    leaves_nothing(|| {
        let cluster = Cluster::up("2x1x1");
        let _blue = cluster.domain("blue", &["*,0,0"]);
        let server = iperf3_server(&cluster, "1,0,0");
        let client = cluster.spawn("0,0,0", "iperf3 -t 600 -c 1-0-0.blue");
        goes_on(&server);
        for (set, why) in [
            (
                "--ethernet driver",
                json!("the domain has --ethernet driver"),
            ),
            ("--ethernet kernel", Value::Null),
            ("--fence 10", json!("it has a fence")),
            ("--fence off", Value::Null),
        ] {
            let shown = cluster.ask(&format!("domain set blue {set}"));
            assert_eq!(shown["without_kernel"], why, "{set}");
            goes_on(&server);
            assert_eq!(
                is_direct(&cluster, "0,0,0", "1-0-0.blue"),
                why.is_null(),
                "{set}"
            );
            goes_on(&server);
            let explained = cluster.ask("explain 0,0,0 1,0,0");
            let path = &explained["domains"][0]["ethernet"];
            let provider = if why.is_null() { "kernel" } else { "tap" };
            assert_eq!(path["provider"], provider, "{explained}");
            assert_eq!(path["without_kernel"], why, "{explained}");
        }
        cluster.toroid("link set -d blue --latency 1ms").ok();
        assert_eq!(without_kernel(&cluster), "its links have a model");
        assert!(!is_direct(&cluster, "0,0,0", "1-0-0.blue"));
        cluster.toroid("link rm -d blue").ok();
        assert!(is_direct(&cluster, "0,0,0", "1-0-0.blue"));
        goes_on(&server);

        // The next agent, the next driver.
        cluster.kill_agent();
        goes_on(&server);
        cluster.toroid("up").ok();
        cluster.kill_driver();
        goes_on(&server);
        assert!(is_direct(&cluster, "0,0,0", "1-0-0.blue"));
        let _ = client.kill();
    });
}

#[test]
fn what_needs_the_driver_is_said_or_refused() {
    leaves_nothing(|| {
        let cluster = Cluster::up("4x1x1");
        let create = "domain create blue 0,0,0 --ethernet kernel --fence 10";
        let refused = cluster.toroid(create);
        refused.fails(2, &["it has a fence", "use --ethernet auto"]);
        cluster.toroid("domain create blue 0-1,0,0").ok();
        let wrong = cluster.toroid("domain set blue --ethernet bridge");
        wrong.fails(2, &["use auto, kernel or driver"]);
        let doctor = cluster.toroid("doctor");
        assert!(
            doctor.text().contains("pass through the kernel"),
            "{doctor}"
        );
        for (options, why) in [
            ("--limited", "is a limited member"),
            ("--rate 1Gbit", "has a rate"),
            ("--offload off", "does without offload"),
        ] {
            cluster
                .toroid(&format!("domain grow blue 2,0,0 {options}"))
                .ok();
            let told = cluster.toroid("explain 0,0,0 2,0,0").ok();
            assert!(told.text().contains(why), "{told}");
            assert!(!is_direct(&cluster, "0,0,0", "2-0-0.blue"), "{options}");
            assert!(is_direct(&cluster, "0,0,0", "1-0-0.blue"));
            cluster.toroid("domain shrink blue 2,0,0").ok();
        }
        cluster.toroid("domain set blue 1,0,0 --rate 1Gbit").ok();
        assert!(!is_direct(&cluster, "0,0,0", "1-0-0.blue"));
        cluster.toroid("domain set blue 1,0,0 --rate off").ok();
        assert!(is_direct(&cluster, "0,0,0", "1-0-0.blue"));
    });
}

/// Its root may do as it likes with the interface, to its own disadvantage only.
#[test]
fn a_node_that_meddles_with_its_interface_is_cut_nevertheless() {
    leaves_nothing(|| {
        let cluster = Cluster::up("3x1x1");
        let blue = cluster.domain("blue", &["*,0,0"]);
        let (two, foreign) = (blue.ipv4("2,0,0"), blue.ipv4("1,0,0"));
        let dropped = |reason: &str| {
            let drops = cluster.ask("domain drops blue");
            let of_node = drops.as_array().expect("a list").iter();
            let of_node = of_node.filter(|its| its["node"] == "0,0,0");
            let counts = of_node.filter_map(|its| its["dropped"][reason].as_u64());
            counts.sum::<u64>()
        };
        // With the address of another member, and with that of another's interface.
        for (meddle, reason) in [
            (
                format!(
                    "ip address add {foreign}/24 dev blue && ping -c 3 -i 0.1 -W 1 -I {foreign} {two}"
                ),
                "foreign_address",
            ),
            (
                format!(
                    "ip link set blue address {} && ping -c 3 -i 0.1 -W 1 {two}",
                    blue.mac("1,0,0")
                ),
                "wrong_source",
            ),
        ] {
            let before = dropped(reason);
            cluster.shell("0,0,0", &meddle).fails_somehow();
            assert!(dropped(reason) > before, "{reason}");
            let own = blue.mac("0,0,0");
            let back = format!(
                "ip address del {foreign}/24 dev blue; ip link set blue address {own}; true"
            );
            cluster.shell("0,0,0", &back).ok();
            eventually("it talks again", || {
                cluster
                    .exec("0,0,0", &format!("ping -c 1 -W 1 {two}"))
                    .status
                    == 0
            });
        }
        let raise_all = "for it in $(ls /sys/class/net); do ip link set $it up; done";
        cluster.exec("0,0,0", "ip link set blue name evil").ok();
        cluster.reaches("0,0,0", &two);
        blue.shrink(&["0,0,0"]);
        let ping = format!("{raise_all}; ping -c 1 -W 1 {two}");
        cluster.shell("0,0,0", &ping).fails_somehow();
        // The next driver does not know of it.
        let stream = cluster.spawn("1,0,0", &format!("ping -i 0.01 {two}"));
        cluster.exec("1,0,0", "ip link set blue name evil").ok();
        cluster.kill_driver();
        blue.shrink(&["1,0,0"]);
        cluster.shell("1,0,0", &ping).fails_somehow();
        let _ = stream.kill();
        blue.grow(&["0-1,0,0"]);
        cluster.reaches("0,0,0", &blue.ipv4("1,0,0"));
        assert!(is_direct(&cluster, "0,0,0", &two));
    });
}

/// The driver learns of neither: it holds the interface by its other end.
#[test]
fn a_node_that_bridges_or_moves_its_interface_is_cut_nevertheless() {
    leaves_nothing(|| {
        let cluster = Cluster::up("3x1x1");
        let blue = cluster.domain("blue", &["*,0,0"]);
        let two = blue.ipv4("2,0,0");
        let ping = format!("ping -c 1 -W 1 {two}");
        let own = blue.ipv4("0,0,0");
        let bridge = format!(
            "ip link add own type bridge && ip link set blue master own && ip link set own up \
             && ip address del {own}/24 dev blue && ip address add {own}/24 dev own"
        );
        cluster.shell("0,0,0", &bridge).ok();
        eventually("it talks by its bridge", || {
            cluster.exec("0,0,0", &ping).status == 0
        });
        cluster.reaches("1,0,0", &two);

        let enter = "echo $$ > /tmp/pid; exec sleep 600";
        let holder = cluster.spawn_shell("1,0,0", &format!("unshare -n sh -c '{enter}'"));
        let inside = |command: &str| format!("nsenter -n -t $(cat /tmp/pid) {command}");
        eventually("there is another namespace", || {
            let there = inside("true");
            cluster.shell("1,0,0", &there).status == 0
        });
        let moved = blue.ipv4("1,0,0");
        let bring_up = format!("ip address add {moved}/24 dev blue && ip link set blue up");
        let into = format!(
            "ip link set blue netns $(cat /tmp/pid) && {}",
            inside(&format!("sh -c '{bring_up}'"))
        );
        cluster.shell("1,0,0", &into).ok();
        eventually("it talks from there", || {
            cluster.shell("1,0,0", &inside(&ping)).status == 0
        });

        blue.shrink(&["0-1,0,0"]);
        let raise_all =
            "for it in $(ip -o link | cut -d: -f2 | cut -d@ -f1); do ip link set $it up; done";
        let is_cut = |ping: &Outcome| {
            let unreachable = ping.stderr.contains("Network is unreachable");
            ping.text().contains(" 0 received") || unreachable
        };
        let at_home = cluster.shell("0,0,0", &format!("{raise_all}; {ping}"));
        assert!(is_cut(&at_home), "{at_home}");
        let elsewhere = inside(&format!("sh -c '{raise_all}; {ping}'"));
        let elsewhere = cluster.shell("1,0,0", &elsewhere);
        assert!(is_cut(&elsewhere), "{elsewhere}");
        cluster.shell("0,0,0", "ip link del own").ok();
        blue.grow(&["0-1,0,0"]);
        for node in ["0,0,0", "1,0,0"] {
            cluster.reaches(node, &two);
            assert!(is_direct(&cluster, node, &two));
        }
        let _ = holder.kill();
    });
}
