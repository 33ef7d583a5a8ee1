//! Several gateways of a domain on one host: members use the first that works.

use super::*;
use tests::cluster::Domain;
use tests::process::Running;

/// A host of both networks outside.
const ELSEWHERE: &str = "198.19.0.1";

/// Two networks outside that both lead to a host with a web server. Returns its page, too.
fn two_ways() -> ([Outside; 2], [Running; 2], String) {
    let outsides = [Outside::new(), Outside::new()];
    let servers = outsides.each_ref().map(|outside| {
        let address = format!("ip address add {ELSEWHERE}/32 dev lo");
        outside.run(&address).ok();
        outside.web_server().0
    });
    for (metric, outside) in outsides.iter().enumerate() {
        route(outside, metric + 1);
    }
    (
        outsides,
        servers,
        format!("http://{ELSEWHERE}:8000/hostname"),
    )
}

/// Gives the host a route there. It ends when the uplink is down.
fn route(outside: &Outside, metric: usize) {
    let via = outside.address();
    host(&format!(
        "ip route add {ELSEWHERE} via {via} metric {metric}"
    ));
}

/// The next hop of a member to the outside.
fn way_out(cluster: &Cluster, node: &str) -> Value {
    ways_out(cluster, node)[0]["gateway"].clone()
}

/// Waits until a member goes out at a gateway, and no other way.
fn goes_out_at(cluster: &Cluster, blue: &Domain<'_>, member: &str, gateway: &str) {
    let address = blue.ipv4(gateway);
    let way = || ways_out(cluster, member);
    eventually(&format!("{member} goes out at {gateway}"), || {
        let way = way();
        way[0]["gateway"] == json!(address) && way[1].is_null()
    });
}

#[test]
fn members_go_out_by_the_first_gateway_that_works() {
    leaves_nothing(|| {
        let ([one, two], servers, page) = two_ways();
        let cluster = Cluster::up("4x1x1");
        let blue = cluster.domain("blue", &["0-2,0,0"]);
        cluster.toroid("domain grow blue 3,0,0 --limited").ok();
        gateway(&cluster, &format!("add 0,0,0 --uplink {}", one.uplink())).ok();
        gateway(&cluster, &format!("add 1,0,0 --uplink {}", two.uplink())).ok();
        // A page, and the server that gave it.
        let fetched = |member: &str, n: usize, outside: &Outside| {
            let seen = || servers[n].complaints_so_far().lines().count();
            let before = seen();
            fetches(&cluster, member, &page);
            eventually("the other network has served the page", || seen() > before);
            let log = servers[n].complaints_so_far();
            let last = log.lines().last().expect("a line");
            assert!(last.starts_with(&outside.host_address()), "{log}");
        };
        for member in ["2,0,0", "3,0,0"] {
            goes_out_at(&cluster, &blue, member, "0,0,0");
            fetched(member, 0, &one);
        }
        let in_use = || {
            let all = cluster.ask("gateway ls");
            [0, 1].map(|n| all[n]["in_use"] == true)
        };
        assert_eq!(in_use(), [true, false]);

        host(&format!("ip link set {} down", one.uplink()));
        for member in ["2,0,0", "3,0,0"] {
            goes_out_at(&cluster, &blue, member, "1,0,0");
            fetched(member, 1, &two);
        }
        let problem = cluster.ask("gateway ls")[0]["problem"].clone();
        assert_eq!(problem, json!(format!("{} is down", one.uplink())));
        assert_eq!(in_use(), [false, true]);
        // The node of a gateway has its own way.
        assert_ne!(way_out(&cluster, "0,0,0"), json!(blue.ipv4("1,0,0")));
        // Nor does the next agent lead members there and back.
        cluster.kill_agent();
        cluster.toroid("up").ok();
        assert_eq!(way_out(&cluster, "2,0,0"), json!(blue.ipv4("1,0,0")));
        let shown = cluster.toroid("domain show blue").ok();
        let unused = format!("{} at 0,0,0 (nat, not in use)", one.uplink());
        assert!(shown.text().contains(&unused), "{shown}");

        host(&format!("ip link set {} up", one.uplink()));
        route(&one, 1);
        goes_out_at(&cluster, &blue, "2,0,0", "0,0,0");
        fetched("2,0,0", 0, &one);
        // The host's own route stays when the carrier is lost, and is not that of the other gateway.
        one.run("ip link set out down").ok();
        goes_out_at(&cluster, &blue, "2,0,0", "1,0,0");
        assert_eq!(in_use(), [false, true]);
        fetched("2,0,0", 1, &two);

        let events = cluster.toroid("events").ok();
        for what in [
            "do without the one at 0,0,0",
            "may use the one at 0,0,0 again",
        ] {
            assert!(events.text().contains(what), "{events}");
        }

        // The other one has ended when the command returns.
        gateway(&cluster, "rm 1,0,0").ok();
        assert_eq!(way_out(&cluster, "2,0,0"), json!(blue.ipv4("0,0,0")));
    });
}

#[test]
fn the_gateways_of_a_file_are_in_its_order() {
    leaves_nothing(|| {
        let [one, two] = [Outside::new(), Outside::new()];
        let cluster = Cluster::up("3x1x1");
        let blue = cluster.domain("blue", &["*,0,0"]);
        let file = cluster.files().join("blue.toml");
        let path = file.to_str().expect("text");
        let apply = |first: &Outside, second: &Outside| {
            let gateways = [("1,0,0", first), ("0,0,0", second)].map(|(node, outside)| {
                let uplink = outside.uplink();
                format!("[[gateway.blue]]\nnode = \"{node}\"\nuplink = \"{uplink}\"\n")
            });
            fs::write(&file, gateways.concat()).expect("there is room");
            cluster.toroid(&format!("apply {path}")).ok();
        };
        apply(&one, &two);
        assert_eq!(way_out(&cluster, "2,0,0"), json!(blue.ipv4("1,0,0")));
        fs::write(&file, cluster.toroid("dump").ok().text()).expect("there is room");
        let nothing = cluster.toroid(&format!("apply {path} --prune")).ok();
        assert_eq!(nothing.text(), "nothing to change");
        let gateways = cluster.ask("dump")["gateways"]["blue"].clone();
        assert_eq!(gateways[0]["node"], "1,0,0");
        assert_eq!(gateways[1]["uplink"], json!(two.uplink()));
        apply(&two, &one);
        let uplinks = cluster.ask("gateway ls");
        assert_eq!(uplinks[0]["uplink"], json!(two.uplink()));
        assert_eq!(uplinks[1]["uplink"], json!(one.uplink()));
    });
}
