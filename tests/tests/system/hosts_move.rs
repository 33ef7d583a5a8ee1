//! `toroid directory move`: a directory goes from the files of a host to etcd and back, and from one
//! host to another, while nodes, connections and counters go on.

use std::thread;
use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::Value;
use tests::actor::Actor;
use tests::cluster::leaves_nothing;
use tests::etcd::Etcd;
use tests::hosts::{Host, Hosts, Oddities};
use tests::leftovers::has_ended;
use tests::process::{Running, eventually, send};
use tests::random::Random;
use tests::software::{goes_on, iperf3_server};
use tests::user::User;

use crate::hosts_etcd::node_of;

const FAILED: i32 = 1;
const WRONG: i32 = 2;
const MISSING: i32 = 4;
const EXISTS: i32 = 5;
const DENIED: i32 = 6;

/// Starts an agent whose file names host a as the directory, with access to etcd.
fn start(host: &Host, endpoints: &str) {
    host.try_up(ready(endpoints)).ok();
}

fn ready(endpoints: &str) -> Oddities<'_> {
    Oddities {
        directory: Some("a"),
        etcd: Some(endpoints),
        ..Oddities::default()
    }
}

/// Three hosts, led by a from its files, with access to etcd.
fn up() -> (Hosts, Etcd) {
    let hosts = Hosts::down_yet(3);
    let etcd = Etcd::start(&hosts, 1);
    let endpoints = etcd.endpoints();
    for host in hosts.each::<3>() {
        start(host, &endpoints);
    }
    assert_eq!(hosts.coordinator().0.name(), "a");
    (hosts, etcd)
}

/// What the directory is on, as all hosts see it: etcd, or the host that leads.
fn place(hosts: &Hosts) -> String {
    let (leader, _) = hosts.coordinator();
    let is_elected = leader.about(leader.name())["candidate"] == true;
    let place = if is_elected { "etcd" } else { leader.name() };
    place.into()
}

/// Waits until the directory is at one place for all hosts.
#[track_caller]
fn is_at(hosts: &Hosts, expected: &str) {
    eventually(&format!("the directory is at {expected}"), || {
        place(hosts) == expected
    });
    hosts.agree();
}

/// Creates a domain of a host's node there, perhaps without a leader yet. An attempt whose answer was
/// lost may have made it.
#[track_caller]
fn create(host: &Host, name: &str) {
    let node = node_of(host);
    let made = |words: String| host.agent.toroid(&words).status == 0;
    eventually("a domain is made", || {
        made(format!("domain create {name} {node}")) || made(format!("domain show {name}"))
    });
}

/// Removes it likewise.
#[track_caller]
fn remove(host: &Host, name: &str) {
    eventually("a domain is removed", || {
        let outcome = host.agent.toroid(&format!("domain rm {name}"));
        [0, MISSING].contains(&outcome.status)
    });
}

/// Traffic from the nodes of one host to those of another.
struct Traffic {
    server: Running,
    client: Running,
    owner: Actor,
    tally: Actor,
}

impl Traffic {
    fn start(from: &Host, to: &Host) -> Self {
        from.trunk_to(to.name());
        let (near, far) = (node_of(from), node_of(to));
        let (owner, key) = to.agent.owner(&far);
        let tally = from.agent.peer(&near, "tally", &far, &key);
        let server = iperf3_server(&to.agent, &far);
        let name = format!("{}.blue", far.replace(',', "-"));
        let client = from.agent.spawn(&near, &format!("iperf3 -c {name} -t 600"));
        goes_on(&server);
        Traffic {
            server,
            client,
            owner,
            tally,
        }
    }

    #[track_caller]
    fn goes_on(&mut self) {
        goes_on(&self.server);
        assert!(!self.client.has_ended(), "the stream has ended");
    }

    /// Ends it: each addition is there, once.
    #[track_caller]
    fn end(mut self) {
        self.goes_on();
        let tally = self.tally.counted();
        assert!(tally > 0);
        assert_eq!(self.owner.counted(), tally);
    }
}

#[test]
fn hosts_move_their_directory_to_etcd_and_back_under_traffic() {
    leaves_nothing(|| {
        let (hosts, etcd) = up();
        let endpoints = etcd.endpoints();
        let [a, b, c] = hosts.each();
        b.agent.domain("blue", &["*,*,0"]);
        hosts.agree();
        let mut traffic = Traffic::start(c, b);
        let nodes = [a, b, c].map(|host| host.agent.node_pids_here());

        let moved = b.agent.ask("directory move etcd");
        assert_eq!(moved["directory"], "etcd");
        is_at(&hosts, "etcd");
        for host in [a, b, c] {
            let told = host.agent.status()["moved"].to_string();
            for words in ["moved to etcd", "names a", r#"[\"a\", \"b\", \"c\"]"#] {
                assert!(told.contains(words), "{told}");
            }
        }
        create(c, "red");
        traffic.goes_on();

        // Any host may die now; files that were not changed lead nobody back.
        let (leader, others) = hosts.coordinator();
        leader.agent.kill_agent();
        remove(others[0], "red");
        start(leader, &endpoints);
        is_at(&hosts, "etcd");

        a.agent.toroid("directory move a").ok();
        is_at(&hosts, "a");
        assert_eq!(a.agent.status()["moved"], Value::Null);
        create(b, "green");
        traffic.goes_on();
        c.agent.kill_agent();
        start(c, &endpoints);
        is_at(&hosts, "a");

        // The copy that stayed there is no hindrance.
        c.agent.toroid("directory move etcd").ok();
        is_at(&hosts, "etcd");
        let shown = c.agent.ask("domain ls").to_string();
        assert!(shown.contains("green") && shown.contains("blue"), "{shown}");
        traffic.end();
        assert_eq!(nodes, [a, b, c].map(|host| host.agent.node_pids_here()));
        let leaver = format!("domain shrink blue {}", node_of(c));
        a.agent.toroid(&leaver).ok();
    });
}

#[test]
fn hosts_move_their_directory_to_another_host_under_traffic() {
    leaves_nothing(|| {
        let hosts = Hosts::up(3);
        let [a, b, c] = hosts.each();
        b.meets("a");
        c.meets("a");
        a.agent.domain("blue", &["*,*,0"]);
        hosts.agree();
        let mut traffic = Traffic::start(a, b);
        // A host that is away hears of the move when it returns.
        c.agent.kill_agent();
        a.agent.toroid("directory move b").ok();
        create(a, "red");
        c.up();
        is_at(&hosts, "b");
        traffic.goes_on();
        let told = c.agent.status()["moved"].to_string();
        assert!(told.contains(r#"write directory = \"b\""#), "{told}");
        // Its file still names itself.
        a.agent.kill_agent();
        a.up();
        is_at(&hosts, "b");
        traffic.goes_on();

        c.agent.toroid("directory move c").ok();
        is_at(&hosts, "c");
        remove(b, "red");
        traffic.end();

        // The present host is lost: another one leads, as an administrator says on all hosts.
        c.agent.kill_agent();
        let led_by_b = Oddities {
            directory: Some("b"),
            ..Oddities::default()
        };
        let without_c = Oddities {
            lost: Some("c"),
            ..led_by_b
        };
        for host in [b, a] {
            host.agent.kill_agent();
            host.try_up(led_by_b).ok();
            let told = host.agent.status()["moved"].to_string();
            assert!(told.contains("moved to host c"), "{told}");
            host.agent.kill_agent();
            let other = Oddities {
                lost: Some("a"),
                ..led_by_b
            };
            host.try_up(other).fails(WRONG, &["leave --lost out"]);
            host.try_up(without_c).ok();
        }
        create(a, "green");
        assert_eq!(a.about("b")["directory"], true);
        c.agent.toroid("down").ok();
        let anew = Oddities {
            fresh: true,
            ..led_by_b
        };
        c.try_up(anew).ok();
        is_at(&hosts, "b");
    });
}

/// At any moment one place is led from: the leader dies at random moments of moves.
#[test]
fn hosts_move_their_directory_or_not_when_the_leader_is_killed() {
    leaves_nothing(|| {
        let (hosts, etcd) = up();
        let endpoints = etcd.endpoints();
        let [a, b, c] = hosts.each();
        a.agent.domain("blue", &["*,*,0"]);
        hosts.agree();
        let mut random = Random(26);
        let (mut here, mut went, mut stayed) = ("a".to_owned(), 0, 0);
        // A move takes some 20 ms, and more on a busy machine: the moment is sought there.
        let mut about = 16_usize;
        for round in 0..30 {
            let (leader, others) = hosts.coordinator();
            // Asked there, so that no other host repeats it.
            let to = match (here.as_str(), round % 2) {
                ("etcd", _) => leader.name(),
                (_, 0) => "etcd",
                _ => others[0].name(),
            };
            let agent = leader.agent.agent_pid();
            let ask = leader.agent.start(&format!("directory move {to}"));
            let pause = about + random.below(about + 1);
            thread::sleep(Duration::from_millis(pause as u64));
            send(agent, Signal::SIGKILL);
            eventually("the agent is gone", || has_ended(agent));
            let outcome = ask.wait();
            start(leader, &endpoints);
            let now = place(&hosts);
            assert!(outcome.status != 0 || now == to, "{now}, not {to}");
            if now == here {
                stayed += 1;
                about = (about * 2).clamp(2, 2048);
            } else {
                assert_eq!(now, to);
                went += 1;
                about /= 2;
            }
            here = now;
            create(c, "red");
            remove(b, "red");
            is_at(&hosts, &here);
            let shown = a.agent.ask("domain show blue");
            assert_eq!((&shown["size"], &shown["epoch"]), (&6.into(), &1.into()));
            if went >= 3 && stayed >= 3 {
                break;
            }
        }
        eprintln!("{went} rounds moved the directory, {stayed} did not");
        assert!(went > 0 && stayed > 0);
    });
}

#[test]
fn hosts_refuse_moves_to_where_no_host_can_lead() {
    leaves_nothing(|| {
        let (hosts, etcd) = up();
        let [a, b, c] = hosts.each();
        let refused = |host: &Host, to: &str, status, words: &[&str]| {
            let outcome = host.agent.toroid(&format!("directory move {to}"));
            outcome.fails(status, words);
        };
        refused(b, "a", EXISTS, &["there already"]);
        let alice = User::create();
        let outcome = a.agent.toroid_of(&alice, "directory move b");
        outcome.fails(DENIED, &["move the directory"]);
        refused(b, "z", MISSING, &["knows no host z", "toroid host ls"]);
        b.agent.toroid("domain create red 0,1,0 --fence 10").ok();
        refused(b, "b", WRONG, &["domains have fences: red", "--fence off"]);
        b.agent.toroid("domain set red --fence off").ok();
        b.agent.toroid("domain rm red").ok();
        c.agent.kill_agent();
        eventually("host a knows", || a.about("c")["state"] == "away");
        refused(
            b,
            "c",
            FAILED,
            &["host c cannot lead", "nothing was changed"],
        );
        etcd.put("/toroid/what", "ever");
        refused(b, "etcd", WRONG, &["/toroid/what", "prefix"]);
        assert_eq!(a.about("a")["directory"], true);
        create(b, "blue");
        a.cut_from_etcd();
        refused(b, "etcd", FAILED, &["etcd"]);
        a.reconnect_with_etcd();
        remove(b, "blue");
        // One without access to etcd.
        a.agent.kill_agent();
        a.up();
        refused(a, "etcd", WRONG, &["no access to etcd", "[etcd]"]);
    });
}

/// A host that was away during a move and another one back once looked for the lost host of the
/// former for ever, although its own file named the right one.
#[test]
fn hosts_find_a_directory_that_has_come_back_while_they_were_away() {
    leaves_nothing(|| {
        let hosts = Hosts::up(3);
        let [a, b, c] = hosts.each();
        a.agent.toroid("directory move b").ok();
        is_at(&hosts, "b");
        c.agent.kill_agent();
        a.agent.toroid("directory move a").ok();
        eventually("the directory is at a", || {
            a.about("a")["directory"] == true && b.about("a")["state"] == "connected"
        });
        create(b, "red");
        b.agent.kill_agent();
        c.up();
        eventually("host c follows host a", || {
            c.about("a")["state"] == "connected"
        });
        assert_eq!(c.agent.status()["moved"], Value::Null);
        create(c, "green");
        b.up();
        is_at(&hosts, "a");
    });
}
