//! Two hosts with an RDMA device each: two agents in the virtual machine of `tests/verbs/vm`,
//! whose emulated devices `rxe0` and `rxe1` are at the ends of a cable.

mod frames;
mod limits;
mod micro;

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::time::Instant;

use nix::sys::signal::Signal;
use tests::actor::{Actor, Event, StoreClient};
use tests::cluster::Cluster;
use tests::hosts::KEY;
use tests::process::{Outcome, Running, eventually, run, send, stop};

/// The node of the memory, on host b, and the node that uses it, on host a.
const OWNER: &str = "0,1,0";
const USER: &str = "0,0,0";
const THIRD: &str = "1,0,0";

/// Packets that show that a device is in use: more than it takes to connect.
const MANY: u64 = 100;

/// How long agents wait for acknowledgements, in milliseconds: emulated processors are slow.
const ACK_TIMEOUT: u32 = 3000;

struct Host {
    agent: Cluster,
    name: &'static str,
    device: &'static str,
    /// Whether nodes have interfaces. Then agents talk, and drivers connect, past the devices' cable.
    ethernet: bool,
}

impl Host {
    /// Starts its agent with a file that has these lines about the provider.
    fn try_up(&self, provider: &str) -> Outcome {
        let (directory, row) = (self.agent.files(), self.row());
        let key = directory.join("key");
        fs::write(&key, KEY).unwrap();
        fs::set_permissions(&key, Permissions::from_mode(0o600)).unwrap();
        let (other, other_row) = [("b", 1), ("a", 0)][row];
        let network = if self.ethernet { "127.0.0" } else { "10.9.0" };
        let address = |row: usize| format!("{network}.{}:7470", row + 1);
        let text = format!(
            "host = \"{}\"\ntorus = \"2x2x1\"\nnodes = [\"*,{row},0\"]\nlisten = \"{}\"\n\
             key = \"key\"\ndirectory = \"a\"\nethernet = {}\nack-timeout = {ACK_TIMEOUT}\n\
             {provider}\n[hosts]\n\
             {other} = \"{}\"\n",
            self.name,
            address(row),
            self.ethernet,
            address(other_row),
        );
        let file = directory.join("host.toml");
        fs::write(&file, text).unwrap();
        run(self
            .agent
            .command("toroid")
            .arg("up")
            .arg("--config")
            .arg(file))
    }

    #[track_caller]
    fn up(&self) {
        let provider = format!("provider = \"verbs\"\ndevice = \"{}\"", self.device);
        self.try_up(&provider).ok();
    }

    fn row(&self) -> usize {
        usize::from(self.name == "b")
    }

    /// Packets that its device has sent.
    fn sent(&self) -> u64 {
        self.counted("sent_pkts")
    }

    /// Those that have come to it.
    fn received(&self) -> u64 {
        self.counted("rcvd_pkts")
    }

    fn counted(&self, what: &str) -> u64 {
        let path = format!(
            "/sys/class/infiniband/{}/ports/1/hw_counters/{what}",
            self.device
        );
        fs::read_to_string(path).unwrap().trim().parse().unwrap()
    }

    /// The process that has registered memory with the device.
    fn process(&self) -> Option<u32> {
        let pid = self.agent.status()["adapter_pid"].as_u64()?;
        Some(pid.try_into().unwrap())
    }

    /// Stops that process. The device goes on with its registrations.
    #[track_caller]
    fn stop_process(&self) -> u32 {
        let pid = self.process().expect("one");
        stop(pid);
        pid
    }

    /// Waits until another process is there than this one.
    #[track_caller]
    fn has_replaced(&self, before: u32) {
        eventually("it is replaced", || {
            self.process().is_some_and(|now| now != before)
        });
    }

    /// Waits until its device has sent many packets from now on.
    #[track_caller]
    fn is_used(&self) {
        let before = self.sent();
        eventually("the device is used", || self.sent() > before + MANY);
    }
}

/// The counts of `rdma resource` of iproute2, by device.
fn resources() -> String {
    run(Command::new("rdma").args(["resource", "show"]))
        .ok()
        .text()
        .to_owned()
}

/// Two hosts without agents yet.
fn down_yet(ethernet: bool) -> [Host; 2] {
    let host = |name, device| Host {
        agent: Cluster::down_yet(),
        name,
        device,
        ethernet,
    };
    [host("a", "rxe0"), host("b", "rxe1")]
}

/// Two hosts, and one domain of all nodes, which have no interfaces.
fn hosts() -> [Host; 2] {
    up(down_yet(false))
}

/// Starts both agents, and makes one domain of all nodes.
fn up(hosts: [Host; 2]) -> [Host; 2] {
    hosts.iter().for_each(Host::up);
    let [a, b] = &hosts;
    eventually("they have a session", || {
        let others = b.agent.status()["hosts"].clone();
        let others = others.as_array().unwrap().iter();
        others.filter(|host| host["state"] == "connected").count() == 1
    });
    a.agent.domain("blue", &["*,*,0"]);
    hosts
}

/// One of host a that writes and reads there, and adds every eighth time.
#[track_caller]
fn user(a: &Host, node: &str, key: &str, at: u64) -> Actor {
    mixing(a, node, key, at, 8)
}

#[track_caller]
fn mixing(a: &Host, node: &str, key: &str, at: u64, every: u64) -> Actor {
    let words = format!("mix blue {OWNER} {key} {at} {every}");
    let mut user = a.agent.actor(node, &words);
    assert_eq!(user.event(), Event::Open);
    user
}

/// Waits until the memory can be opened from host a.
#[track_caller]
fn can_open(a: &Host, key: &str) {
    eventually("it can be opened", || a.agent.open(USER, key).status == 0);
}

/// Reads, writes and additions of members that stay are right after each leave of another, and go
/// by the devices again. The leaver is cut off.
#[test]
fn members_read_and_write_by_the_devices_and_leavers_are_cut_off() {
    let before = resources();
    let [a, b] = hosts();
    let explain = a.agent.ask(&format!("explain {} {} -d blue", USER, OWNER));
    let rdma = &explain["domains"][0]["rdma"];
    assert_eq!(rdma["provider"], "verbs", "{explain}");
    assert_eq!(rdma["enforced_by"][0], "remote_keys", "{explain}");
    let doctor = run(a.agent.command("toroid").arg("doctor")).ok();
    assert!(
        doctor.text().contains("between hosts it is verbs, by rxe0"),
        "{doctor}"
    );
    let (owner, key) = b.agent.owner(OWNER);
    let mut stays = user(&a, USER, &key, 1024);
    // The answers to reads and writes.
    b.is_used();
    let mut added = 0;
    for _ in 0..3 {
        let leaver = user(&a, THIRD, &key, 2048);
        leaver.reports(&Event::Round(64));
        b.agent.existing("blue").shrink(&[THIRD]);
        added += leaver.revoked();
        a.agent.open(THIRD, &key).fails(1, &["blue"]);
        // The members that stay go on, and soon by the devices.
        b.is_used();
        a.agent.existing("blue").grow(&[THIRD]);
    }
    assert!(!stays.has_ended());
    added += stays.counted();
    let sum = owner.counted();
    // One addition of each that left may have been done without its word about it.
    assert!((added..=added + 3).contains(&sum), "{sum} of {added}");
    for host in [a, b] {
        host.agent.down();
    }
    eventually("nothing is left at the devices", || resources() == before);
}

#[test]
fn whoever_is_killed_is_noticed_and_replaced() {
    let [a, b] = hosts();
    let (orphaning, key) = b.agent.owner(OWNER);
    let orphan = user(&a, USER, &key, 1024);
    b.is_used();
    orphaning.kill();
    let (_, error) = orphan.failure();
    assert!(["PeerDead", "WrongKey"].contains(&&*error), "{error}");
    // Agents have no part in it.
    let (_owner, key) = b.agent.owner(OWNER);
    let mut lasting = user(&a, USER, &key, 1024);
    b.agent.kill_agent();
    b.is_used();
    b.up();
    assert!(!lasting.has_ended());
    // The process of the device has: it holds the registrations.
    send(b.process().expect("one"), Signal::SIGKILL);
    assert_eq!(lasting.failure().1, "Unreachable");
    can_open(&a, &key);
    let _again = user(&a, USER, &key, 1024);
    b.is_used();
}

/// A device obeys no fence. If it went on with its registrations, its writes would be lost
/// without an error.
#[test]
fn a_process_for_other_hosts_that_sleeps_through_a_change_is_replaced() {
    let [a, b] = hosts();
    let (_owner, key) = b.agent.owner(OWNER);
    // All that it does, the devices do.
    let stays = mixing(&a, USER, &key, 1024, 0);
    let _leaver = user(&a, THIRD, &key, 2048);
    b.is_used();
    let before = b.stop_process();
    // It answers all the same: that is the devices' business.
    b.is_used();
    a.agent.existing("blue").shrink(&[THIRD]);
    assert_eq!(stays.failure().1, "Unreachable");
    b.has_replaced(before);
    can_open(&a, &key);
    let _again = user(&a, USER, &key, 1024);
    b.is_used();
}

/// Its registrations with the device do not end with the line in the file.
#[test]
fn the_same_becomes_of_it_where_the_file_says_tcp_by_then() {
    let [a, b] = hosts();
    let (_owner, key) = b.agent.owner(OWNER);
    let stays = mixing(&a, USER, &key, 1024, 0);
    b.is_used();
    let before = b.stop_process();
    b.agent.kill_agent();
    b.try_up("provider = \"tcp\"").ok();
    b.has_replaced(before);
    assert_eq!(stays.failure().1, "Unreachable");
}

/// The next agent once gave up the memory of a stopped process, but the device went on, and no
/// change of membership waited for it any more.
#[test]
fn a_process_for_other_hosts_that_does_not_come_back_is_replaced() {
    let [a, b] = hosts();
    let (_owner, key) = b.agent.owner(OWNER);
    // All that it does, the devices do.
    let stays = mixing(&a, USER, &key, 1024, 0);
    b.is_used();
    let before = b.stop_process();
    b.agent.kill_agent();
    b.up();
    assert_eq!(stays.failure().1, "Unreachable");
    b.has_replaced(before);
    can_open(&a, &key);
    a.agent.existing("blue").shrink(&[THIRD]);
    let _again = user(&a, USER, &key, 1024);
    b.is_used();
}

/// A store of host b, and a client of host a.
#[track_caller]
fn store(a: &Host, b: &Host) -> (Running, StoreClient) {
    let server = b.agent.store(OWNER, "");
    (server, StoreClient::connect(&a.agent, USER))
}

#[test]
fn a_store_is_read_by_the_devices() {
    let [a, b] = hosts();
    let (_server, mut store) = store(&a, &b);
    for n in 0..50 {
        let key = format!("key-{n}");
        assert_eq!(store.get(&key), None);
        store.set(&key, &format!("first-{n}"));
        assert_eq!(store.get(&key), Some(format!("first-{n}")));
        store.set(&key, &format!("second-{n}"));
    }
    let before = b.sent();
    for n in 0..50 {
        assert_eq!(store.get(&format!("key-{n}")), Some(format!("second-{n}")));
    }
    // A get takes a read at least.
    assert!(b.sent() >= before + 50, "{} after {before}", b.sent());
    let kv = |words: &str| a.agent.exec(USER, &format!("toroid-kv {words}"));
    for n in [0, 49] {
        assert_eq!(
            kv(&format!("get key-{n}")).ok().text(),
            format!("second-{n}")
        );
        kv(&format!("delete key-{n}")).ok();
        kv(&format!("get key-{n}")).fails(1, &["there is no key"]);
        assert_eq!(store.get(&format!("key-{n}")), None);
    }
    assert_eq!(store.get("key-1").as_deref(), Some("second-1"));
    // Requests by message and their answers go by the devices as well.
    let before = [&a, &b].map(Host::sent);
    for n in 0..50 {
        store.set(&format!("key-{n}"), &format!("third-{n}"));
    }
    for (host, before) in [&a, &b].iter().zip(before) {
        assert!(host.sent() >= before + 50, "{} after {before}", host.sent());
    }
}

/// Messages under way when the devices fail go over TCP, and later ones by the devices again.
#[test]
fn a_store_is_asked_over_tcp_while_nothing_gets_to_a_device() {
    let [a, b] = up(down_yet(true));
    let (_server, mut store) = store(&a, &b);
    let mut n = 0;
    let mut set = |times| {
        for _ in 0..times {
            n += 1;
            store.set(&format!("key-{n}"), &format!("value-{n}"));
        }
        n
    };
    set(50);
    frames::blackhole("add");
    let began = Instant::now();
    set(1);
    println!("the set that met the outage took {:?}", began.elapsed());
    let before = [&a, &b].map(Host::received);
    assert!(before.iter().all(|packets| *packets > 50));
    set(50);
    assert_eq!([&a, &b].map(Host::received), before);
    frames::blackhole("del");
    eventually("they go by the devices again", || {
        let before = a.sent();
        set(50);
        a.sent() >= before + 50
    });
    let last = set(1);
    assert_eq!(
        store.get(&format!("key-{last}")),
        Some(format!("value-{last}"))
    );
}

#[test]
fn an_agent_says_what_is_wrong_with_its_device() {
    let [a, _b] = down_yet(false);
    let missing = a.try_up("provider = \"verbs\"\ndevice = \"mlx5_7\"");
    missing.fails(
        1,
        &[
            "no RDMA device named mlx5_7: there is rxe0, rxe1",
            "gid-index",
        ],
    );
    let missing = a.try_up("provider = \"verbs\"\ndevice = \"rxe0\"\npartition-key-index = 9");
    missing.fails(1, &["has no partition key at index 9"]);
}
