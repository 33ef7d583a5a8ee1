//! Stock memcached clients of a node, before a proxy that reads the values of a server elsewhere.

use std::fs;

use tests::cluster::{Cluster, Domain, leaves_nothing};
use tests::process::{Outcome, Running, eventually};

/// Where the proxy listens, in its node alone.
const PORT: u16 = 11300;

fn serve(cluster: &Cluster) -> Running {
    cluster.store("0,0,0", "")
}

fn proxy(cluster: &Cluster, options: &str) -> Running {
    let proxy = cluster.spawn("1,0,0", &format!("toroid-kv proxy {options}"));
    proxy.says("rdma blue 0,0,0\n");
    proxy
}

/// Sends bytes to the proxy, and returns the reply.
fn say(cluster: &Cluster, input: &str) -> String {
    let words = format!("actor tcp 127.0.0.1 {PORT}");
    let said = cluster.exec_with("1,0,0", &words, input.as_bytes()).ok();
    said.text().replace('\r', "")
}

fn blue(cluster: &Cluster) -> Domain<'_> {
    cluster.domain("blue", &["*,0,0"])
}

#[test]
fn stock_clients_are_served_with_gets_that_are_read() {
    leaves_nothing(|| {
        let cluster = Cluster::up("2x1x1");
        let _blue = blue(&cluster);
        let _server = serve(&cluster);
        let socket = "/dev/shm/socket";
        let _proxy = proxy(&cluster, &format!("-p {PORT} -s {socket} 0,0,0"));
        let values = [(1usize, "one"), (100_000, "large"), (1_000_000, "largest")];
        for (len, key) in values {
            let value: Vec<u8> = (0..len).map(|n| (n * 7) as u8).collect();
            let file = cluster.files().join(key);
            fs::write(&file, &value).expect("there is room");
            let words = format!("memccp --servers=127.0.0.1:{PORT} {}", file.display());
            cluster.exec("1,0,0", &words).ok();
            let fetched = "/dev/shm/fetched";
            for server in [format!("127.0.0.1:{PORT}"), socket.to_owned()] {
                let script =
                    format!("memccat --servers={server} --file={fetched} {key} && cat {fetched}");
                let got: Outcome = cluster.shell("1,0,0", &script).ok();
                assert!(got.stdout == value, "{key} from {server}");
            }
        }
        // Through the proxy, which reports before it asks, and then at the server itself.
        let through = say(&cluster, "stats\r\n");
        let probe = "actor tcp 0-0-0.blue 11211";
        let stats = cluster.exec_with("0,0,0", probe, b"stats\r\n").ok();
        for stats in [through, stats.text().replace('\r', "")] {
            for told in [
                "one_sided_gets 6",
                "one_sided_hits 6",
                "cmd_get 6",
                "cmd_set 3",
            ] {
                assert!(stats.contains(&format!("STAT {told}\n")), "{told}: {stats}");
            }
        }
    });
}

#[test]
fn a_proxy_survives_its_server() {
    let cluster = Cluster::up("2x1x1");
    let _blue = blue(&cluster);
    cluster
        .exec("1,0,0", "toroid-kv proxy")
        .fails(1, &["blue", "toroid-kv serve"]);
    let server = serve(&cluster);
    let _proxy = proxy(&cluster, &format!("-p {PORT}"));
    let value = "VALUE a 0 1\nx\nEND";
    let said = say(&cluster, "set a 0 0 1\r\nx\r\nget a\r\n");
    assert_eq!(said, format!("STORED\n{value}"));
    cluster.exec("0,0,0", "pkill -9 -f ^toroid-kv.serve").ok();
    assert_eq!(server.wait().status, 137);
    let gone = "SERVER_ERROR the server is gone";
    eventually("its death is known", || say(&cluster, "get a\r\n") == gone);
    let said = say(
        &cluster,
        "set a 0 0 5\r\nvalue\r\nget a\r\nquit\r\nget a\r\n",
    );
    assert_eq!(said, format!("{gone}\n{gone}"));
    let _server = serve(&cluster);
    // It has forgotten.
    eventually("the proxy finds it", || say(&cluster, "get a\r\n") == "END");
    let said = say(&cluster, "set a 0 0 1\r\nx\r\nget a\r\n");
    assert_eq!(said, format!("STORED\n{value}"));
}

#[test]
fn a_proxy_says_that_its_node_has_left_and_ends_with_the_domain() {
    let cluster = Cluster::up("2x1x1");
    let blue = blue(&cluster);
    let _server = serve(&cluster);
    let proxy = proxy(&cluster, &format!("-d blue -p {PORT}"));
    let said = say(&cluster, "set a 0 0 1\r\nx\r\nget a\r\n");
    assert_eq!(said, "STORED\nVALUE a 0 1\nx\nEND");
    blue.shrink(&["1,0,0"]);
    let revoked = "SERVER_ERROR revoked";
    let said = say(&cluster, "get a\r\nset a 0 0 1\r\ny\r\nmg a v\r\n");
    assert_eq!(said, [revoked; 3].join("\n"));
    blue.grow(&["1,0,0"]);
    eventually("it is back", || {
        say(&cluster, "get a\r\n") == "VALUE a 0 1\nx\nEND"
    });
    blue.remove();
    proxy.wait().fails(1, &["the domain is gone", "blue"]);
}

#[test]
fn a_proxy_may_ask_for_passwords() {
    let cluster = Cluster::up("2x1x1");
    let _blue = blue(&cluster);
    let users = cluster.files().join("users");
    fs::write(&users, "me:secret\n").expect("there is room");
    let users = users.display();
    let server = cluster.spawn("0,0,0", &format!("toroid-kv serve -Y {users}"));
    server.says("rdma blue 0,0,0\n");
    let _proxy = proxy(&cluster, &format!("-p {PORT} -Y {users}"));
    let said = say(&cluster, "get a\r\nset u 0 0 9\r\nme secret\r\nget a\r\n");
    assert_eq!(said, "CLIENT_ERROR unauthenticated\nSTORED\nEND");
}
