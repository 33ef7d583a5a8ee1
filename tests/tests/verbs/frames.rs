//! Ethernet between two hosts whose drivers have an RDMA device each.

use std::process::{ChildStdin, Command};

use serde_json::Value;
use tests::process::{Running, eventually, now_ns, run};

use super::{Host, OWNER, THIRD, USER, down_yet, resources, up};

impl Host {
    /// The status of the other host, as its agent sees it.
    fn other(&self) -> Value {
        let hosts = self.agent.status()["hosts"].clone();
        let mut hosts = hosts.as_array().unwrap().iter();
        hosts.find(|host| host["state"] != "here").unwrap().clone()
    }

    fn frames_by_rdma(&self) -> u64 {
        self.other()["frames_by_rdma"].as_u64().unwrap()
    }

    /// The path of frames between two nodes, as its agent explains it.
    fn explains(&self) -> String {
        let explain = self
            .agent
            .ask(&format!("explain {} {} -d blue", USER, OWNER));
        let provider = &explain["domains"][0]["ethernet"]["provider"];
        provider.as_str().unwrap_or_default().to_owned()
    }

    #[track_caller]
    fn address(&self, node: &str, kind: &str) -> String {
        let domain = self.agent.ask("domain show blue");
        let mut members = domain["members"].as_array().unwrap().iter();
        let member = members.find(|member| member["node"] == node).unwrap();
        member[kind].as_str().unwrap().to_owned()
    }

    /// Starts a server that sends back the input of each connection, or a checksum of it.
    #[track_caller]
    fn serve(&self, node: &str, port: u16, program: &str) -> Running {
        let server = self
            .agent
            .spawn(node, &format!("nc -ll -p {port} -e {program}"));
        let own = self.address(node, "ipv4");
        eventually("it listens", || {
            let heard = self.agent.exec(node, &format!("nc {own} {port}"));
            heard.status == 0
        });
        server
    }
}

/// Two hosts whose nodes have interfaces, and whose frames go by the devices.
fn hosts() -> [Host; 2] {
    let hosts = up(down_yet(true));
    go_over(&hosts, "verbs");
    hosts
}

/// Waits until frames go so, both ways.
#[track_caller]
fn go_over(hosts: &[Host; 2], provider: &str) {
    eventually(&format!("frames go over {provider}"), || {
        let over = |host: &Host| host.other()["frames_over"] == provider;
        hosts.iter().all(over)
    });
}

/// A stream from a node of host a to one of host b, which echoes it.
struct Talk {
    client: Running,
    input: ChildStdin,
    said: u32,
    _server: Running,
}

impl Talk {
    #[track_caller]
    fn begin([a, b]: &[Host; 2]) -> Self {
        let server = b.serve(OWNER, 5000, "cat");
        let to = b.address(OWNER, "ipv4");
        let mut client = a.agent.spawn(USER, &format!("actor tcp {to} 5000"));
        Talk {
            input: client.stdin(),
            client,
            said: 0,
            _server: server,
        }
    }

    #[track_caller]
    fn goes_on(&mut self) {
        use std::io::Write;

        self.said += 1;
        writeln!(self.input, "word {}", self.said).unwrap();
        assert_eq!(self.client.line(), format!("word {}", self.said));
    }

    /// Talks until frames go so, both ways.
    #[track_caller]
    fn until(&mut self, hosts: &[Host; 2], provider: &str) {
        eventually(&format!("frames go over {provider}"), || {
            self.goes_on();
            let over = |host: &Host| host.other()["frames_over"] == provider;
            hosts.iter().all(over)
        });
    }

    /// The next words go by the devices.
    #[track_caller]
    fn goes_on_by_rdma(&mut self, hosts: &[Host; 2]) {
        let before = hosts.each_ref().map(Host::frames_by_rdma);
        self.goes_on();
        for (host, before) in hosts.iter().zip(before) {
            eventually("they are counted", || host.frames_by_rdma() >= before + 2);
        }
    }
}

#[test]
fn frames_of_all_kinds_go_by_the_devices_and_arrive_whole() {
    let before = resources();
    let hosts = hosts();
    let [a, b] = &hosts;
    assert_eq!(a.explains(), "tap over verbs");
    let status = a.agent.toroid("status").ok();
    assert!(
        status.text().contains("frames pass by RDMA devices"),
        "{status}"
    );
    let (sent, frames) = (a.sent(), a.frames_by_rdma());
    for (host, from, to) in [(a, USER, OWNER), (b, OWNER, USER)] {
        for (kind, options) in [("ipv4", "-s 56"), ("ipv4", "-s 30000"), ("ipv6", "-s 9000")] {
            let to = b.address(to, kind);
            host.agent.reaches(from, &format!("{options} {to}"));
        }
    }
    eventually("they are counted", || a.frames_by_rdma() >= frames + 12);
    assert!(a.sent() > sent);
    // Super-frames one way, acknowledgements the other, and back.
    for (server, to, client, from) in [(b, OWNER, a, USER), (a, USER, b, OWNER)] {
        let _server = server.serve(to, 5001, "md5sum");
        let (to, frames) = (b.address(to, "ipv4"), client.frames_by_rdma());
        let script = format!(
            "dd if=/dev/urandom of=/tmp/{from} bs=64k count=128 2>/dev/null; \
             md5sum </tmp/{from}; nc {to} 5001 </tmp/{from}; rm /tmp/{from}"
        );
        let sums = client.agent.shell(from, &script).ok();
        let sums: Vec<&str> = sums.text().lines().collect();
        assert!(sums.len() == 2 && sums[0] == sums[1], "{sums:?}");
        assert!(client.frames_by_rdma() > frames + 128);
    }
    assert_eq!(a.explains(), "tap over verbs");
    for host in hosts {
        host.agent.down();
    }
    eventually("nothing is left at the devices", || resources() == before);
}

#[test]
fn nothing_comes_by_the_devices_from_who_has_left() {
    let hosts = hosts();
    let [a, b] = &hosts;
    let to = b.address(OWNER, "ipv4");
    let mut talk = Talk::begin(&hosts);
    for _ in 0..3 {
        let listener = b.agent.listener(OWNER, 7777);
        let flood = a.agent.flood(THIRD, &to, 7777);
        let frames = b.frames_by_rdma();
        eventually("it floods", || b.frames_by_rdma() > frames + 200);
        b.agent.existing("blue").shrink(&[THIRD]);
        let left = now_ns();
        // It may fail to send: its interface has gone.
        let _ = flood.end();
        talk.goes_on_by_rdma(&hosts);
        listener.heard_nothing_since(left);
        a.agent.existing("blue").grow(&[THIRD]);
    }
}

#[test]
fn a_stream_outlives_a_driver_and_its_line() {
    let hosts = hosts();
    let mut talk = Talk::begin(&hosts);
    talk.goes_on_by_rdma(&hosts);
    for host in &hosts {
        host.agent.kill_driver();
        talk.until(&hosts, "verbs");
        talk.goes_on_by_rdma(&hosts);
    }
    // Agents have no part in it.
    for host in &hosts {
        host.agent.kill_agent();
        talk.goes_on();
        host.up();
    }
    talk.goes_on_by_rdma(&hosts);
    assert_eq!(hosts[0].explains(), "tap over verbs");
}

/// From now on, or no longer, nothing gets from one device to the other, though both are there.
pub(super) fn blackhole(verb: &str) {
    for end in ["left", "right"] {
        cable(&format!(
            "rule {verb} pref 1 iif {end} ipproto 17 dport 4791 blackhole"
        ));
    }
}

/// Changes the cable between the devices, from host a's side.
fn cable(words: &str) {
    run(Command::new("ip").args(words.split_whitespace())).ok();
}

#[test]
fn a_stream_goes_on_over_tcp_while_a_device_is_away() {
    let hosts = hosts();
    let mut talk = Talk::begin(&hosts);
    talk.goes_on_by_rdma(&hosts);
    let address = std::fs::read_to_string("/sys/class/net/right/address").unwrap();
    cable("link set left down");
    talk.until(&hosts, "tcp");
    assert!(
        hosts[0]
            .explains()
            .starts_with("tap over tcp, 127.0.0.1 - ")
    );
    let frames = hosts.each_ref().map(Host::frames_by_rdma);
    (0..20).for_each(|_| talk.goes_on());
    assert_eq!(hosts.each_ref().map(Host::frames_by_rdma), frames);
    cable("link set left up");
    cable(&format!(
        "neigh replace 10.9.0.2 lladdr {} nud permanent dev left",
        address.trim()
    ));
    cable("route replace 10.9.0.2 dev left src 10.9.0.1 table 2");
    talk.until(&hosts, "verbs");
    talk.goes_on_by_rdma(&hosts);
    blackhole("add");
    talk.until(&hosts, "tcp");
    let frames = hosts.each_ref().map(Host::frames_by_rdma);
    (0..20).for_each(|_| talk.goes_on());
    assert_eq!(hosts.each_ref().map(Host::frames_by_rdma), frames);
    blackhole("del");
    talk.until(&hosts, "verbs");
    talk.goes_on_by_rdma(&hosts);
}
