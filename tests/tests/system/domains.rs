//! Membership of domains, and the time from which it is in effect.

use std::fs;
use std::time::Duration;

use serde_json::{Value, json};
use tests::actor::Event;
use tests::cluster::{Cluster, is_nightly};
use tests::process::{eventually, now_ns, within};

fn keys(value: &Value) -> Vec<&str> {
    let mut keys: Vec<_> = value
        .as_object()
        .expect("an object")
        .keys()
        .map(String::as_str)
        .collect();
    keys.sort_unstable();
    keys
}

const NOT_FOUND: i32 = 4;

#[test]
fn members_reach_each_other_by_name_and_address() {
    let cluster = Cluster::up("2x2x2");
    let blue = cluster.domain("blue", &["0,0,0", "1,1,1"]);
    for name in ["1-1-1.blue", "0-0-0.blue", &blue.ipv4("1,1,1")] {
        cluster.reaches("0,0,0", name);
    }
    for family in ["-4", "-6"] {
        cluster.reaches("0,0,0", &format!("{family} 1-1-1.blue"));
        cluster.reaches("1,1,1", &format!("{family} 0-0-0.blue"));
    }
    // The first packet arrives: nothing has to be learned first.
    cluster
        .exec("0,0,0", "ping -c 20 -i 0.005 -W 1 1-1-1.blue")
        .ok();
}

#[test]
fn outsiders_reach_no_member() {
    let cluster = Cluster::up("2x2x1");
    let blue = cluster.domain("blue", &["0,0,0", "1,1,0"]);
    let red = cluster.domain("red", &["1,0,0", "0,1,0"]);
    let address = blue.ipv4("1,1,0");

    blue.shuts_out("1,0,0", "1,1,0");
    cluster.exec("1,0,0", "ip link show blue").fails_somehow();

    // Nor do they by claiming to be in the subnet, at the member's own hardware address.
    let mac = blue.mac("1,1,0");
    let claim = format!(
        "ip addr add 10.64.0.77/16 dev red && ip route replace {address} dev red && \
         ip neigh replace {address} lladdr {mac} dev red"
    );
    cluster.shell("1,0,0", &claim).ok();
    cluster
        .exec("1,0,0", &format!("ping -c 2 -i 0.01 -W 1 {address}"))
        .fails_somehow();

    // Among themselves, members of the other domain talk all the same.
    let peer = red.ipv4("0,1,0");
    cluster.reaches("1,0,0", &peer);
    cluster.reaches("0,0,0", "1-1-0.blue");
}

#[test]
fn growing_is_in_effect_when_the_command_returns() {
    let cluster = Cluster::up("2x2x1");
    let blue = cluster.domain("blue", &["0,0,0", "1,0,0"]);
    let rounds = if is_nightly() { 100 } else { 5 };
    for _ in 0..rounds {
        blue.grow(&["0,1,0"]);
        cluster.reaches("0,1,0", "0-0-0.blue");
        cluster.reaches("0,0,0", "-6 0-1-0.blue");
        blue.shrink(&["0,1,0"]);
        blue.shuts_out("0,1,0", "0,0,0");
    }
    assert_eq!(blue.show()["epoch"], 1 + rounds, "who leaves ends an epoch");
}

#[test]
fn shrinking_ends_established_traffic_at_once() {
    let cluster = Cluster::up("2x2x1");
    let blue = cluster.domain("blue", &["*,*,0"]);
    let (leaver, member) = (blue.ipv4("1,0,0"), blue.ipv4("0,0,0"));

    let at_member = cluster.listener("0,0,0", 7000);
    let at_leaver = cluster.listener("1,0,0", 7000);
    let mut from_leaver = cluster.flood("1,0,0", &member, 7000);
    let mut from_member = cluster.flood("0,1,0", &leaver, 7000);
    at_member.reports(&Event::First);
    at_leaver.reports(&Event::First);
    let staying = cluster.spawn("0,1,0", "ping -i 0.01 1-1-0.blue");
    staying.says("icmp_seq=3");

    blue.shrink(&["1,0,0"]);
    let returned = now_ns();

    // Both go on sending for a while after the command has returned.
    from_leaver.close();
    from_member.close();
    from_leaver.wait().ok();
    from_member.wait().ok();
    for listener in [at_member, at_leaver] {
        listener.heard_nothing_since(returned);
    }

    // The members that stay do not notice.
    let seen = staying.so_far().lines().count();
    eventually("those who stay go on", || {
        staying.so_far().lines().count() > seen + 5
    });
    let pings = staying.kill();
    let numbers = sequence(pings.text());
    assert!(
        numbers.windows(2).all(|pair| pair[1] == pair[0] + 1),
        "one was lost: {pings}"
    );
}

fn sequence(pings: &str) -> Vec<u32> {
    let number = |line: &str| {
        line.split_once("icmp_seq=")?
            .1
            .split_once(' ')?
            .0
            .parse()
            .ok()
    };
    pings.lines().filter_map(number).collect()
}

#[test]
fn a_leaver_sees_its_connections_end() {
    let cluster = Cluster::up("2x1x1");
    let blue = cluster.domain("blue", &["0,0,0", "1,0,0"]);
    let server = cluster.spawn("0,0,0", "iperf3 -s -1 --forceflush");
    server.says("listening");
    let client = cluster.spawn("1,0,0", "iperf3 -c 0-0-0.blue -t 1000 -i 0.1 --forceflush");
    client.says("sec");
    blue.shrink(&["1,0,0"]);
    cluster.exec("1,0,0", "ip link show blue").fails_somehow();
    let bytes = || {
        cluster
            .exec("1,0,0", "cat /proc/net/dev")
            .ok()
            .text()
            .contains("blue")
    };
    assert!(!bytes(), "its interface is gone");
    client.kill();
    server.kill();
}

#[test]
fn show_has_the_keys_that_programs_rely_on() {
    let cluster = Cluster::up("2x2x2");
    let blue = cluster.domain("blue", &["1,1,1", "0,0,0"]);
    let info = blue.show();
    assert_eq!(
        keys(&info),
        [
            "diameter",
            "epoch",
            "ethernet",
            "id",
            "managers",
            "mean_hops",
            "members",
            "mtu",
            "name",
            "owner",
            "public",
            "size",
            "subnet"
        ]
    );
    assert_eq!((&info["name"], &info["owner"]), (&json!("blue"), &json!(0)));
    assert_eq!((&info["mtu"], &info["epoch"]), (&json!(9000), &json!(1)));
    assert_eq!(info["subnet"], "10.64.0.0/24");
    assert_eq!((&info["size"], &info["diameter"]), (&json!(2), &json!(3)));
    assert_eq!(info["mean_hops"], 3.0);
    let members = info["members"].as_array().expect("a list");
    let places: Vec<_> = members.iter().map(|member| &member["node"]).collect();
    assert_eq!(places, ["0,0,0", "1,1,1"], "in order of their numbers");
    for member in members {
        let expected = [
            "ifname", "ipv4", "ipv6", "limited", "mac", "node", "plain", "stack",
        ];
        assert_eq!(keys(member), expected);
        assert_eq!(member["ifname"], "blue");
    }
    assert_eq!(
        members[1]["mac"],
        format!("06:00:{:02x}:01:01:01", info["id"].as_u64().unwrap())
    );
    assert_eq!(members[1]["ipv4"], "10.64.0.8");

    // The interface in the node is as the agent describes it.
    for member in members {
        let node = member["node"].as_str().expect("text");
        let interface = cluster
            .exec(node, "ip -json addr show dev blue")
            .ok()
            .json();
        let interface = &interface[0];
        assert_eq!(
            (&interface["address"], &interface["mtu"]),
            (&member["mac"], &json!(9000))
        );
        let addresses = interface["addr_info"].as_array().expect("a list");
        let has = |address: &Value| addresses.iter().any(|one| one["local"] == *address);
        assert!(has(&member["ipv4"]) && has(&member["ipv6"]), "{interface}");
    }
    let all = cluster.ask("domain ls");
    assert_eq!(all, json!([info]));
}

#[test]
fn addresses_are_told_by_ip() {
    let cluster = Cluster::up("2x1x1");
    let blue = cluster.domain("blue", &["0,0,0", "1,0,0"]);
    assert_eq!(cluster.ask("ip 1,0,0"), blue.member("1,0,0"));
    assert_eq!(cluster.ask("ip 1,0,0 -d blue"), blue.member("1,0,0"));
    let text = cluster.toroid("ip 1,0,0 -d blue").ok();
    for part in ["1-0-0.blue", &blue.ipv4("1,0,0"), "fd74:"] {
        assert!(text.text().contains(part), "{text}");
    }
    let _red = cluster.domain("red", &["1,0,0"]);
    cluster.toroid("ip 1,0,0").fails(2, &["1,0,0", "--domain"]);
    cluster
        .toroid("ip 0,0,0 -d red")
        .fails(4, &["0,0,0", "red", "grow"]);
}

#[test]
fn ping_shows_both_paths() {
    let cluster = Cluster::up("2x2x2");
    let _blue = cluster.domain("blue", &["0,0,0", "1,1,1"]);
    let arguments = "ping 0,0,0 1,1,1 -d blue";
    let text = cluster.toroid(arguments).ok();
    for part in ["ethernet", "rdma", "shared memory stands in"] {
        assert!(text.text().contains(part), "{text}");
    }
    let report = cluster.ask(arguments);
    let paths = report["paths"].as_array().expect("a list");
    let names: Vec<_> = paths.iter().map(|path| &path["path"]).collect();
    assert_eq!(names, ["ethernet", "rdma"]);
    for path in paths {
        assert_eq!(
            (&path["sent"], &path["lost"]),
            (&json!(10), &json!(0)),
            "{report}"
        );
        assert!(path["p50_ns"].as_u64().is_some_and(|ns| ns > 0), "{report}");
    }
    for size in ["8", "9000", "65000"] {
        cluster.toroid(&format!("{arguments} -s {size} -c 2")).ok();
    }
    cluster
        .toroid("ping 0,0,0 1,0,0 -d blue")
        .fails(4, &["1,0,0", "blue", "grow"]);
}

#[test]
fn a_node_may_be_in_several_domains() {
    let cluster = Cluster::up("3x1x1");
    let blue = cluster.domain("blue", &["0,0,0", "1,0,0"]);
    let red = cluster.domain("red", &["1,0,0", "2,0,0"]);
    cluster.reaches("1,0,0", "0-0-0.blue");
    cluster.reaches("1,0,0", "2-0-0.red");
    // Membership does not carry over.
    red.shuts_out("0,0,0", "2,0,0");
    assert_ne!(blue.show()["subnet"], red.show()["subnet"]);
    assert_ne!(blue.show()["id"], red.show()["id"]);
    red.remove();
    cluster.reaches("1,0,0", "0-0-0.blue");
    cluster.exec("1,0,0", "ip link show red").fails_somehow();
}

#[test]
fn a_removed_domain_can_be_made_again() {
    let cluster = Cluster::up("2x1x1");
    for (round, remove) in ["rm", "delete", "remove"].iter().enumerate() {
        let blue = cluster.domain("blue", &["0,0,0", "1,0,0"]);
        cluster.reaches("0,0,0", "1-0-0.blue");
        assert_eq!(blue.members().len(), 2, "round {round}");
        let peer = blue.ipv4("1,0,0");
        cluster.toroid(&format!("domain {remove} blue")).ok();
        cluster.exec("0,0,0", "ip link show blue").fails_somehow();
        cluster.does_not_know("0,0,0", "1-0-0.blue");
        cluster.has_no_route("0,0,0", &peer);
        assert_eq!(cluster.ask("domain ls"), json!([]));
    }
}

#[test]
fn node_sets_name_nodes_in_every_form() {
    let cluster = Cluster::up("2x2x2");
    let places = |info: Value| -> Vec<String> {
        let members = info["members"].as_array().expect("a list").clone();
        members
            .iter()
            .map(|member| member["node"].as_str().expect("text").to_owned())
            .collect()
    };
    let top = cluster.domain("top", &["*,*,1"]);
    assert_eq!(places(top.show()), ["0,0,1", "1,0,1", "0,1,1", "1,1,1"]);
    let row = cluster.domain("row", &["0-1,0,0"]);
    assert_eq!(places(row.show()), ["0,0,0", "1,0,0"]);
    cluster.toroid("node alias 1,1,0 db").ok();
    let both = cluster.domain("both", &["@row", "db", "1,0,0"]);
    assert_eq!(places(both.show()), ["0,0,0", "1,0,0", "1,1,0"]);
    let hello = cluster.exec("@row", "echo hello").ok();
    let mut lines: Vec<_> = hello.text().lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["0,0,0: hello", "1,0,0: hello"], "both nodes ran it");
    assert_eq!(cluster.ask("ip db -d both"), both.member("1,1,0"));
    cluster.exec("0,0,0", "getent hosts db.both").ok();
    cluster.toroid("node unalias db").ok();
    cluster
        .exec("0,0,0", "getent hosts db.both")
        .fails_somehow();
    cluster.exec("0,0,0", "getent hosts 1-1-0.both").ok();
    let again = cluster.toroid("node unalias db");
    again.fails(NOT_FOUND, &["db", "toroid node ls"]);
}

#[test]
fn a_domain_of_a_chosen_subnet_and_mtu() {
    let cluster = Cluster::up("2x1x1");
    let create = "domain create blue *,0,0 --subnet 192.168.77.0/24 --mtu";
    cluster.toroid(&format!("{create} 1500")).ok();
    let info = cluster.ask("domain show blue");
    assert_eq!(
        (&info["subnet"], &info["mtu"]),
        (&json!("192.168.77.0/24"), &json!(1500))
    );
    cluster.reaches("0,0,0", "-M do -s 1472 192.168.77.2");
    cluster.cannot_reach("0,0,0", "-M do -s 1473 192.168.77.2");
}

#[test]
fn an_idle_agent_uses_no_processor_and_little_memory() {
    let cluster = Cluster::up("2x2x2");
    for name in ["blue", "red", "green", "grey"] {
        let _ = cluster.domain(name, &["*,*,*"]);
    }
    let pids = cluster.pids();
    // The kernel's own greetings on new interfaces have to be over.
    let quiet = Duration::from_secs(if is_nightly() { 60 } else { 2 });
    within(10 * quiet, "all is quiet", || {
        let before = cpu_time(&pids);
        std::thread::sleep(quiet);
        // At most 10 ms in 60 s.
        cpu_time(&pids).saturating_sub(before) <= quiet / 6000
    });
    let memory: u64 = pids.iter().map(|pid| proportional_kib(*pid)).sum();
    assert!(memory < 64 << 10, "{memory} KiB");
}

/// Time that all threads of processes have used.
fn cpu_time(pids: &[u32]) -> Duration {
    let of_thread = |thread: fs::DirEntry| {
        // A thread may have ended meanwhile.
        let text = fs::read_to_string(thread.path().join("schedstat")).unwrap_or_default();
        let time = text.split_whitespace().next().map_or(Ok(0), str::parse);
        Duration::from_nanos(time.expect("nanoseconds"))
    };
    let of = |pid: &u32| -> Duration {
        let threads = fs::read_dir(format!("/proc/{pid}/task")).expect("it runs");
        threads.filter_map(Result::ok).map(of_thread).sum()
    };
    pids.iter().map(of).sum()
}

/// Memory of a process, with its share of shared pages (PSS).
fn proportional_kib(pid: u32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).expect("it runs");
    let line = text.lines().find_map(|line| line.strip_prefix("Pss:"));
    let number = line.and_then(|line| line.trim().strip_suffix(" kB"));
    number.expect("proc(5)").trim().parse().expect("a number")
}
