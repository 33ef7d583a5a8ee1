//! Members without an interface: a process has the node's addresses, with an IP stack of its own.

use std::fs;

use nix::sys::signal::Signal;
use serde_json::{Value, json};
use tests::actor::{Actor, Event, Request};
use tests::cluster::{Cluster, Domain, leaves_nothing, program};
use tests::process::{eventually, run, send};
use tests::software;
use tests::user::Tun;

const PAGE: usize = 5_000_000;

/// The page that `actor stack serve` gives out.
fn page() -> Vec<u8> {
    (0..PAGE).map(|n| ((n * 31) >> 8) as u8).collect()
}

/// `0,0,0` and `1,0,0` are stacks, `2,0,0` and `3,0,0` are not.
fn mixed(cluster: &Cluster) -> Domain<'_> {
    let blue = cluster.domain("blue", &["0-1,0,0", "--interface", "stack"]);
    blue.grow(&["2-3,0,0"]);
    blue
}

fn address(domain: &Domain<'_>, node: &str, family: &str) -> String {
    let member = domain.member(node);
    member[family].as_str().expect("text").to_owned()
}

#[test]
fn pages_are_fetched_from_stacks_by_stacks_and_by_curl() {
    leaves_nothing(|| {
        let cluster = Cluster::up("4x1x1");
        let blue = mixed(&cluster);
        let server = cluster.ready_actor("0,0,0", &format!("stack blue serve 80 {PAGE}"));
        for family in ["ipv4", "ipv6"] {
            let from = address(&blue, "0,0,0", family);
            let fetched = cluster.exec("1,0,0", &format!("actor stack blue fetch {from} 80"));
            assert!(fetched.ok().stdout == page(), "to a stack");
            let url = match family {
                "ipv4" => format!("http://{from}/"),
                _ => format!("http://[{from}]/"),
            };
            let fetched = cluster.exec("2,0,0", &format!("curl -sS -g {url}"));
            assert!(fetched.ok().stdout == page(), "to a TAP");
        }
        cluster
            .exec("2,0,0", "curl -sS http://0-0-0.blue/ -o /dev/null")
            .ok();
        cluster.reaches("2,0,0", "-4 0-0-0.blue");
        cluster.reaches("2,0,0", "-6 0-0-0.blue");
        server.kill();
    });
}

/// A container that was given no device, a kernel without the module.
#[test]
fn without_the_tun_device_all_members_are_stacks() {
    leaves_nothing(|| {
        let cluster = Cluster::down_yet();
        let mut up = cluster.command_with(Tun::Missing, "toroid");
        let up = run(up.args(["up", "--torus", "2x1x1"])).ok();
        assert!(up.text().contains("no TAPs    cannot open /dev/net/tun"));
        assert!(up.stderr.contains("nodes have no interfaces"), "{up}");
        let status = cluster.status();
        assert_eq!(status["ethernet"], "stack");
        let remedy = status["no_taps"]["remedy"].as_str().expect("text");
        for word in ["modprobe tun", "--device /dev/net/tun --cap-add NET_ADMIN"] {
            assert!(remedy.contains(word), "{remedy}");
        }

        let blue = cluster.domain("blue", &["*,0,0"]);
        assert_eq!(blue.member("0,0,0")["ifname"], Value::Null);
        let server = cluster.ready_actor("0,0,0", &format!("stack blue serve 80 {PAGE}"));
        let from = address(&blue, "0,0,0", "ipv4");
        let fetch = || cluster.exec("1,0,0", &format!("actor stack blue fetch {from} 80"));
        assert!(fetch().ok().stdout == page());
        let only = "nodes 0,0,0 and 1,0,0 have no interfaces of the kernel, so only programs with \
                    sockets of `toroid_ethernet::Stack` have Ethernet there";
        let ping = cluster.toroid("ping 0,0,0 1,0,0").ok();
        let unmeasured = format!("ethernet: not measured, because {only}");
        assert!(ping.text().contains(&unmeasured), "{ping}");
        let explained = cluster.toroid("explain 0,0,0 1,0,0").ok();
        assert!(
            explained.text().contains("ethernet  yes, by stack"),
            "{explained}"
        );
        assert!(
            explained.text().contains(&format!("; but {only}")),
            "{explained}"
        );

        // Nodes that are there stay as they are; the domain's terms never were others.
        cluster.kill_agent();
        cluster.toroid("up").ok();
        let status = cluster.status();
        assert_eq!(status["ethernet"], "stack");
        let remedy = status["no_taps"]["remedy"].as_str().expect("text");
        assert!(remedy.contains("toroid down"), "{remedy}");
        assert!(fetch().ok().stdout == page());
        let dumped = cluster.toroid("dump").ok();
        assert!(!dumped.text().contains("stacks"), "{dumped}");
        drop(server);
        cluster.down();
        cluster.toroid("up").ok();
        let status = cluster.status();
        let kind = [&status["ethernet"], &status["no_taps"]];
        assert_eq!(kind, [&json!("tap"), &Value::Null]);
        cluster.reaches("0,0,0", "1-0-0.blue");
    });
}

/// The example of the library, whose client may also be a program of a member with an interface.
#[test]
fn a_program_has_sockets_without_an_interface() {
    leaves_nothing(|| {
        let cluster = Cluster::up("4x1x1");
        let blue = mixed(&cluster);
        let sockets = program("examples/sockets");
        let sockets = sockets.display();
        let ask = |node: &str, command: &str| {
            let mut server = cluster.spawn("0,0,0", &format!("{sockets} blue"));
            let address = server.line();
            let answer = cluster
                .shell(node, &command.replace("ADDRESS", &address))
                .ok();
            let asker = blue.ipv4(node);
            assert_eq!(server.line(), format!("{asker} asks: how are you?"));
            server.wait().ok();
            answer.text().replace(&address, "it")
        };
        let answer = ask("1,0,0", &format!("{sockets} blue ADDRESS"));
        assert_eq!(answer, "it answers: well, and you?");
        let unaware = "/usr/bin/python3 -c 'import socket
host, port = \"ADDRESS\".split(\":\")
s = socket.create_connection((host, int(port)))
s.sendall(b\"how are you?\")
s.shutdown(socket.SHUT_WR)
print(s.makefile().read())'";
        assert_eq!(ask("2,0,0", unaware), "well, and you?");
        let ping = cluster.ask("ping 2,0,0 0,0,0");
        let why = ping["unmeasured"]["ethernet"].as_str().expect("text");
        assert!(
            why.starts_with("node 0,0,0 has no interface of the kernel"),
            "{why}"
        );
        // Nor from there, which once was a failure.
        cluster.toroid("ping 0,0,0 2,0,0").ok();
    });
}

/// Where the device was taken from an agent whose nodes have interfaces, the next one is none.
#[test]
fn nodes_that_have_interfaces_need_the_tun_device() {
    let cluster = Cluster::up("2x1x1");
    let _blue = cluster.domain("blue", &["*,0,0"]);
    let nodes = cluster.node_pids();
    cluster.kill_agent();
    let mut up = cluster.command_with(Tun::Missing, "toroid");
    run(up.arg("up")).fails(6, &["/dev/net/tun", "modprobe tun"]);
    cluster.toroid("up").ok();
    assert_eq!(cluster.node_pids(), nodes);
    cluster.reaches("0,0,0", "1-0-0.blue");
}

#[test]
fn pages_are_fetched_from_nginx() {
    let cluster = Cluster::up("4x1x1");
    let blue = mixed(&cluster);
    let pages = cluster.files().join("pages");
    fs::create_dir(&pages).expect("it is new");
    fs::write(pages.join("page"), page()).expect("there is room");
    let _server = software::nginx(&cluster, "2,0,0", &pages);
    eventually("nginx serves", || {
        let asked = cluster.exec("3,0,0", "curl -s -o /dev/null http://2-0-0.blue/page");
        asked.status == 0
    });
    for family in ["ipv4", "ipv6"] {
        let from = address(&blue, "2,0,0", family);
        let fetched = cluster.exec("0,0,0", &format!("actor stack blue fetch {from} 80"));
        assert!(fetched.ok().stdout == page());
        // Without a listener the kernel of the node refuses.
        let refused = cluster.exec("0,0,0", &format!("actor stack blue fetch {from} 81"));
        refused.fails(1, &["ConnectionRefused"]);
    }
}

/// A server at `to`, on node `0,0,0`, and a client of it on `1,0,0`.
fn talk(cluster: &Cluster, to: &str) -> (Actor, Actor) {
    let server = cluster.ready_actor("0,0,0", "stack blue echo 7");
    let mut talk = cluster.actor("1,0,0", &format!("stack blue talk {to} 7"));
    assert_eq!(talk.event(), Event::Open);
    (server, talk)
}

/// Says a word over the connection, which comes back.
#[track_caller]
fn say(talk: &mut Actor, word: &str) {
    talk.answers(&Request::Say(word.into()), &Event::Line(word.into()));
}

#[test]
fn datagrams_cross_in_both_directions() {
    let cluster = Cluster::up("4x1x1");
    let blue = mixed(&cluster);
    let _server = cluster.ready_actor("0,0,0", "stack blue echo 7");
    for family in ["ipv4", "ipv6"] {
        let to = address(&blue, "0,0,0", family);
        let answer = cluster.exec("1,0,0", &format!("actor stack blue ask {to} 7"));
        assert_eq!(Event::last(answer), Event::Answer { same: true });
    }
}

#[test]
fn a_shrink_ends_it_and_nothing_newer_arrives() {
    let cluster = Cluster::up("4x1x1");
    let blue = mixed(&cluster);
    let to = address(&blue, "0,0,0", "ipv4");
    let (_server, mut talk) = talk(&cluster, &to);
    say(&mut talk, "hello");
    blue.shrink(&["1,0,0"]);
    assert_eq!(Event::last(talk.end()), Event::Closed { revoked: true });
    // The members that stay go on.
    let answer = cluster.shell("2,0,0", &format!("echo again | actor tcp {to} 7"));
    assert_eq!(answer.ok().text(), "again");
    cluster
        .exec("1,0,0", &format!("actor stack blue ask {to} 7"))
        .fails_somehow();
}

#[test]
fn connections_go_on_when_driver_and_agent_are_killed() {
    let cluster = Cluster::up("4x1x1");
    let blue = mixed(&cluster);
    let to = address(&blue, "0,0,0", "ipv4");
    let (_server, mut talk) = talk(&cluster, &to);
    let mut say = |word: &str| say(&mut talk, word);
    say("before");
    let driver = cluster.driver_pid().expect("there is one");
    send(driver, Signal::SIGKILL);
    say("without-driver");
    cluster.kill_agent();
    say("without-agent");
    cluster.toroid("up").ok();
    say("with-the-next-agent");
    let driver = cluster.driver_pid().expect("there is one");
    send(driver, Signal::SIGKILL);
    say("with-the-next-driver");
}

#[test]
fn one_process_of_a_node_has_its_addresses_until_it_ends() {
    let cluster = Cluster::up("4x1x1");
    let _blue = mixed(&cluster);
    let first = cluster.ready_actor("0,0,0", "stack blue echo 7");
    let second = cluster.exec("0,0,0", "actor stack blue echo 8");
    second.fails(1, &["another process has the addresses of this node"]);
    first.signal(Signal::SIGKILL);
    first.kill();
    let _third = cluster.ready_actor("0,0,0", "stack blue echo 8");
    let in_tap_node = cluster.exec("2,0,0", "actor stack blue echo 8");
    in_tap_node.fails(1, &["is one of its kernel", "--interface stack"]);
}

#[test]
fn a_hostile_process_harms_nobody() {
    let cluster = Cluster::up("4x1x1");
    let _blue = mixed(&cluster);
    let babble = cluster.ready_actor("0,0,0", "stack blue babble");
    let driver = cluster.driver_pid();
    cluster.reaches("2,0,0", "-4 3-0-0.blue");
    // It reads nothing: packets to it are lost, and delay no other member.
    eventually("what is sent to it is lost", || {
        // All at once; how many of them get as far as the driver is the kernel's choice.
        let flood = "ping -4 -q -l 1000 -c 1000 -w 1 -s 8000 0-0-0.blue";
        cluster.exec("2,0,0", flood).fails_somehow();
        let drops = cluster.ask("domain drops blue");
        let members = drops.as_array().expect("a list");
        let mut its = members.iter().filter(|member| member["node"] == "2,0,0");
        its.any(|member| member["dropped"]["full"].as_u64() > Some(0))
    });
    cluster.reaches("2,0,0", "-4 3-0-0.blue");
    babble.end().ok();
    assert_eq!(cluster.driver_pid(), driver);
}

#[test]
fn the_directory_keeps_who_is_a_stack() {
    let cluster = Cluster::up("4x1x1");
    let blue = mixed(&cluster);
    let of = |node: &str| {
        let member = blue.member(node);
        [member["stack"].clone(), member["ifname"].clone()]
    };
    assert_eq!(of("0,0,0"), [json!(true), Value::Null]);
    assert_eq!(of("2,0,0"), [json!(false), json!("blue")]);
    cluster
        .toroid("domain grow blue 0,0,0")
        .fails(5, &["stack", "toroid domain shrink blue"]);
    cluster.kill_agent();
    cluster.toroid("up").ok();
    assert_eq!(of("0,0,0"), [json!(true), Value::Null]);
    let dumped = cluster.toroid("dump").ok();
    assert!(
        dumped.text().contains("stacks = [\"0,0,0\", \"1,0,0\"]"),
        "{dumped}"
    );
    blue.shrink(&["0,0,0"]);
    blue.grow(&["0,0,0"]);
    cluster.reaches("2,0,0", "-4 0-0-0.blue");
}
