//! Processes use memory and listeners of nodes that another host carries.

use nix::sys::signal::Signal;
use tests::actor::Actor;
use tests::cluster::{leaves_nothing, program};
use tests::hosts::{Host, Hosts};
use tests::process::{eventually, send};

/// The node of the memory, on host b, and the node that uses it, on host a.
const OWNER: &str = "0,1,0";
const USER: &str = "0,0,0";

/// Two hosts, and one domain of all nodes.
fn hosts() -> Hosts {
    let hosts = Hosts::up(2);
    hosts.each::<2>()[0].agent.domain("blue", &["*,*,0"]);
    hosts.agree();
    hosts
}

/// A process of host a that adds to memory of the owner until that fails.
fn counter(a: &Host, node: &str, key: &str) -> Actor {
    a.agent.counter(node, OWNER, key)
}

#[test]
fn the_example_reads_writes_and_counts_between_hosts() {
    leaves_nothing(|| {
        let hosts = hosts();
        let [a, b] = hosts.each();
        let pingpong = program("examples/pingpong");
        let mut pong = b
            .agent
            .spawn(OWNER, &format!("{} blue", pingpong.display()));
        let key = pong.line();
        let words = format!("{} blue {OWNER} {key}", pingpong.display());
        let ping = a.agent.exec(USER, &words).ok();
        assert!(ping.text().ends_with("\nping"), "it read our word: {ping}");
        let pong = pong.wait().ok();
        assert!(pong.text().ends_with("\npong"), "it wrote its own: {pong}");
    });
}

#[test]
fn who_leaves_is_cut_off_at_the_other_host_and_those_who_stay_go_on() {
    let hosts = hosts();
    let [a, b] = hosts.each();
    let (owner, key) = b.agent.owner(OWNER);
    let (leaver, member) = (counter(a, "1,0,0", &key), counter(a, USER, &key));
    b.agent.toroid("domain shrink blue 1,0,0").ok();
    leaver.revoked();
    let again = a.agent.open("1,0,0", &key);
    again.fails(1, &["blue", "1,0,0"]);
    a.agent.open(USER, &key).ok();
    let count = member.kill();
    assert!(!count.text().contains("Revoked"), "{count}");
    assert!(owner.counted() > 0);
    // Back again it gets on.
    a.agent.toroid("domain grow blue 1,0,0").ok();
    let (owner, key) = b.agent.owner(OWNER);
    let back = counter(a, "1,0,0", &key);
    // The leave of the owner ends the access of others as well.
    a.agent.existing("blue").shrink(&[OWNER]);
    back.revoked();
    drop(owner);
}

/// Its connection is still there when it goes on, and its bytes may be on their way.
#[test]
fn who_sleeps_while_it_is_cut_off_wakes_up_without_access() {
    let hosts = hosts();
    let [a, b] = hosts.each();
    let (owner, key) = b.agent.owner(OWNER);
    let member = a.agent.peer(USER, "tally", OWNER, &key);
    let mut counts = 0;
    for _ in 0..5 {
        let leaver = counter(a, "1,0,0", &key);
        a.agent.exec("1,0,0", "pkill -STOP -f ^actor.count").ok();
        b.agent.toroid("domain shrink blue 1,0,0").ok();
        a.agent.exec("1,0,0", "pkill -CONT -f ^actor.count").ok();
        counts += leaver.revoked();
        a.agent.toroid("domain grow blue 1,0,0").ok();
    }
    counts += member.counted();
    // One of each that left may have been done without its word about it.
    let more = owner.counted() - counts;
    assert!(more <= 5, "{more} more than all have counted");
}

#[test]
fn who_is_gone_cannot_be_reached() {
    let hosts = hosts();
    let [a, b] = hosts.each();
    let (owner, key) = b.agent.owner(OWNER);
    let orphan = counter(a, USER, &key);
    owner.kill();
    // The one if it had used it before.
    let (_, end) = orphan.failure();
    assert!(["PeerDead", "WrongKey"].contains(&&*end), "{end}");
    let gone = a.agent.open(USER, &key);
    gone.fails(1, &["no region has this key"]);
    let (_owner, key) = b.agent.owner(OWNER);
    let wrong = key.replace(&key[60..], "0000");
    let wrong = a.agent.open(USER, &wrong);
    wrong.fails(1, &["no region has this key"]);
    // A cut cable is noticed, and later requests fail with the host's name.
    let cut_off = counter(a, USER, &key);
    hosts.cut(b);
    assert_eq!(cut_off.failure().1, "Unreachable");
    let open = a.agent.open(USER, &key);
    open.fails(1, &["host b"]);
    hosts.mend(b);
    a.meets("b");
    eventually("it is reached again", || {
        let open = a.agent.open(USER, &key);
        open.status == 0
    });
}

#[test]
fn killed_agents_and_target_proxies_are_replaced() {
    leaves_nothing(|| {
        let hosts = hosts();
        let [a, b] = hosts.each();
        let (owner, key) = b.agent.owner(OWNER);
        let mut member = counter(a, USER, &key);
        // Access that agents have granted goes on without them.
        for host in [a, b] {
            host.agent.kill_agent();
            host.up();
        }
        a.meets("b");
        assert!(!member.has_ended());
        a.agent.open(USER, &key).ok();
        // The target proxies of both sides carry it.
        for host in [a, b] {
            let proxy = host.agent.status()["adapter_pid"].as_i64().expect("one");
            send(proxy.try_into().unwrap(), Signal::SIGKILL);
            assert_eq!(member.failure().1, "Unreachable");
            eventually("there is another one", || {
                let now = host.agent.status()["adapter_pid"].as_i64();
                now.is_some_and(|now| now != proxy)
            });
            eventually("it serves", || {
                let open = a.agent.open(USER, &key);
                open.status == 0
            });
            member = counter(a, USER, &key);
        }
        member.kill();
        assert!(owner.counted() > 0);
    });
}

#[test]
fn what_is_denied_here_is_denied_there() {
    let hosts = Hosts::up(2);
    let [a, b] = hosts.each();
    a.agent.domain("blue", &["*,1,0"]);
    a.agent
        .toroid(&format!("domain grow blue {} --limited", USER))
        .ok();
    a.agent.toroid("domain shrink blue 1,1,0").ok();
    a.agent.toroid("domain grow blue 1,1,0 --limited").ok();
    a.agent.domain("red", &["1,0,0", OWNER]);
    let (_owner, key) = b.agent.owner(OWNER);
    let open = |node: &str, key: &str| a.agent.open(node, key);
    open(USER, &key).ok();
    open("1,0,0", &key).fails(1, &["in no domain called blue"]);
    // Two limited members.
    let (_limited, limited_key) = b.agent.owner("1,1,0");
    open(USER, &limited_key).fails(1, &["limited members"]);
    // A right that was not given, and a listener that is not there.
    a.agent
        .exec(USER, "toroid-kv get key")
        .fails(3, &["blue", "toroid-kv serve"]);
    // So are connections to a host that is away.
    b.agent.kill_agent();
    open(USER, &key).fails(1, &["host b"]);
    a.agent
        .exec(USER, "toroid-kv get key")
        .fails(3, &["blue", "toroid-kv serve"]);
    b.up();
    a.meets("b");
    open(USER, &key).ok();
}

#[test]
fn a_store_on_one_host_serves_clients_on_others_by_rdma() {
    let hosts = hosts();
    let [a, b] = hosts.each();
    let server = b.agent.store(OWNER, "");
    let kv = |words: &str| a.agent.exec(USER, &format!("toroid-kv {words}"));
    kv("set greeting hello").ok();
    assert_eq!(kv("get greeting").ok().text(), "hello");
    let stats = b
        .agent
        .exec_with("1,1,0", "actor tcp 0-1-0.blue 11211", b"stats\r\nquit\r\n");
    // The server has had no part in the get.
    let stats = stats.ok();
    assert!(stats.text().contains("STAT cmd_get 0"), "{stats}");
    assert!(stats.text().contains("STAT cmd_set 1"), "{stats}");
    kv("delete greeting").ok();
    kv("get greeting").fails(1, &["there is no key"]);
    drop(server);
}
