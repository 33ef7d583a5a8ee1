//! Several coordinators: candidates elect one of them in etcd, and any host may die. The programs need
//! the feature `etcd`, with which `tests/run` builds them.

use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use tests::cluster::{is_nightly, leaves_nothing};
use tests::etcd::Etcd;
use tests::hosts::{Host, Hosts, Oddities};
use tests::leftovers::has_ended;
use tests::process::{eventually, send, stop, within};
use tests::software::{goes_on, iperf3_server};
use toroid_client::admin::Control;

const FAILED: i32 = 1;

/// Three hosts with running agents, all candidates, and so many servers.
pub(crate) fn up(servers: usize) -> (Hosts, Etcd) {
    let hosts = Hosts::down_yet(3);
    let etcd = Etcd::start(&hosts, servers);
    for host in hosts.each::<3>() {
        start(host, &etcd);
    }
    hosts.coordinator();
    (hosts, etcd)
}

pub(crate) fn start(host: &Host, etcd: &Etcd) {
    let endpoints = etcd.endpoints();
    let on_etcd = Oddities {
        etcd: Some(&endpoints),
        ..Oddities::default()
    };
    host.try_up(on_etcd).ok();
}

/// First node of a host.
pub(crate) fn node_of(host: &Host) -> String {
    format!("0,{},0", host.name().as_bytes()[0] - b'a')
}

/// Makes changes on a host until one is in effect.
fn change(host: &Host, name: &str) {
    let node = node_of(host);
    let made = |words: &str| host.agent.toroid(words).status == 0;
    eventually("a change is made", || {
        // The first attempt may have succeeded with an unknown result.
        made(&format!("domain create {name} {node}")) || made(&format!("domain show {name}"))
    });
}

#[test]
fn hosts_etcd_lead_on_when_the_coordinator_is_killed() {
    leaves_nothing(|| {
        let (hosts, etcd) = up(1);
        let (leader, others) = hosts.coordinator();
        let [near, far] = [others[0], others[1]];
        assert_eq!(near.agent.status()["etcd"], "connected");
        assert_eq!(far.about(near.name())["candidate"], true);
        near.agent.domain("blue", &["*,*,0"]);
        hosts.agree();
        far.trunk_to(near.name());
        let (of_near, of_far) = (node_of(near), node_of(far));
        let (owner, key) = near.agent.owner(&of_near);
        let member = far.agent.peer(&of_far, "tally", &of_near, &key);
        let server = iperf3_server(&near.agent, &of_near);
        let name = format!("{}.blue", of_near.replace(',', "-"));
        let mut client = far
            .agent
            .spawn(&of_far, &format!("iperf3 -c {name} -t 600"));
        goes_on(&server);
        let nodes = near.agent.node_pids_here();

        let begun = Instant::now();
        leader.agent.kill_agent();
        change(far, "red");
        let took = begun.elapsed();
        eprintln!("the next change was made after {took:?}");
        assert!(took < Duration::from_secs(12), "{took:?}");
        goes_on(&server);
        assert!(!client.has_ended(), "{}", client.wait());
        assert_eq!(near.agent.node_pids_here(), nodes);

        // The former coordinator follows, with its nodes.
        start(leader, &etcd);
        hosts.coordinator();
        hosts.agree();
        assert_eq!(leader.about(leader.name())["directory"], false);
        assert!(member.counted() > 0);
        let leaver = far.agent.counter(&of_far, &of_near, &key);
        let shrink = format!("domain shrink blue {of_far}");
        leader.agent.toroid(&shrink).ok();
        leaver.revoked();
        let opened = far.agent.open(&of_far, &key);
        opened.fails(FAILED, &["is in no domain called blue"]);
        assert!(owner.counted() > 0);
    });
}

#[test]
fn hosts_etcd_take_over_at_once_from_a_coordinator_that_ends() {
    leaves_nothing(|| {
        let (hosts, etcd) = up(1);
        let (leader, others) = hosts.coordinator();
        others[0].agent.domain("blue", &["*,*,0"]);
        let agent = leader.agent.agent_pid();
        let begun = Instant::now();
        send(agent, Signal::SIGTERM);
        change(others[1], "red");
        let took = begun.elapsed();
        eprintln!("the next change was made after {took:?}");
        assert!(took < Duration::from_secs(6), "{took:?}");
        eventually("the agent has ended", || has_ended(agent));
        start(leader, &etcd);
        let (next, _) = hosts.coordinator();
        assert_ne!(next.name(), leader.name());
        hosts.agree();

        // One that only starts again goes on to lead.
        send(next.agent.agent_pid(), Signal::SIGUSR1);
        change(leader, "green");
        let (leads, _) = hosts.coordinator();
        if is_nightly() {
            // On a busy machine its lease may end.
            assert_eq!(leads.name(), next.name());
        }
        hosts.agree();
    });
}

/// Such a host once asked for ever, without a word.
#[test]
fn hosts_etcd_tell_a_host_whose_file_names_a_candidate_as_directory() {
    let hosts = Hosts::down_yet(3);
    let etcd = Etcd::start(&hosts, 1);
    let [a, b, c] = hosts.each();
    start(c, &etcd);
    start(a, &etcd);
    assert_eq!(hosts.coordinator().0.name(), "c");
    b.up();
    b.objects_to("a", "write directory = \"etcd\"");
}

/// A coordinator that ended once gave up the lead, and its followers, in the middle of a change.
#[test]
fn hosts_etcd_complete_a_change_before_their_coordinator_ends() {
    leaves_nothing(|| {
        let hosts = Hosts::down_yet(3);
        let etcd = Etcd::start(&hosts, 1);
        let endpoints = etcd.endpoints();
        for host in hosts.each::<3>() {
            let hasty = Oddities {
                etcd: Some(&endpoints),
                ack_timeout: Some(1000),
                ..Oddities::default()
            };
            host.try_up(hasty).ok();
        }
        let (leader, others) = hosts.coordinator();
        let [near, far] = [others[0], others[1]];
        near.agent.domain("blue", &["*,*,0"]);
        hosts.agree();
        // The shrink waits for this process as long as it may take to acknowledge.
        let (member, _) = far.agent.owner(&node_of(far));
        stop(member.pid_in_node());
        let shrink = near
            .agent
            .start(&format!("domain shrink blue {}", node_of(leader)));
        eventually("the shrink has begun", || {
            far.agent.ask("domain show blue")["epoch"] == 2
        });
        send(leader.agent.agent_pid(), Signal::SIGTERM);
        shrink.wait().ok();
        change(near, "red");
    });
}

#[test]
fn hosts_etcd_follow_when_they_do_not_reach_etcd() {
    leaves_nothing(|| {
        let hosts = Hosts::down_yet(3);
        let etcd = Etcd::start(&hosts, 1);
        let [a, b, c] = hosts.each();
        start(a, &etcd);
        let nowhere = Oddities {
            etcd: Some(r#"["http://10.99.0.4:2379"]"#),
            ..Oddities::default()
        };
        b.try_up(nowhere).ok();
        start(c, &etcd);
        assert_eq!(hosts.coordinator().0.name(), "a");
        assert_ne!(b.agent.status()["etcd"], "connected");
        b.agent.domain("blue", &["*,*,0"]);
        hosts.agree();
        b.agent.kill_agent();
        let https = r#"["https://10.99.0.4:2379"]"#;
        let no_authority = b.try_up(Oddities {
            etcd: Some(https),
            ..Oddities::default()
        });
        no_authority.fails(2, &["https needs \"ca\""]);
        b.try_up(nowhere).ok();
        hosts.agree();
    });
}

/// Otherwise hosts that are connected to it would not hear of changes that the next leader makes.
#[test]
fn hosts_etcd_leave_a_coordinator_that_alone_is_cut_off_from_etcd() {
    leaves_nothing(|| {
        let (hosts, _etcd) = up(1);
        let (leader, others) = hosts.coordinator();
        others[0].agent.domain("blue", &["*,*,0"]);
        hosts.agree();
        let agent = leader.agent.agent_pid();
        leader.cut_from_etcd();
        for (host, name) in others.iter().zip(["red", "green"]) {
            change(host, name);
        }
        let (next, _) = hosts.coordinator();
        assert_ne!(next.name(), leader.name());
        hosts.agree();
        assert_eq!(leader.agent.status()["etcd"], "unreachable");
        leader.agent.toroid("domain rm red").ok();
        leader.reconnect_with_etcd();
        within(Duration::from_secs(30), "it reaches etcd again", || {
            leader.agent.status()["etcd"] == "connected"
        });
        assert_eq!(hosts.coordinator().0.name(), next.name());
        others[1].agent.toroid("domain rm green").ok();
        hosts.agree();
        assert_eq!(leader.agent.agent_pid(), agent);
    });
}

#[test]
fn hosts_etcd_follow_when_they_wake_up_as_a_former_coordinator() {
    leaves_nothing(|| {
        let (hosts, _etcd) = up(3);
        let (leader, others) = hosts.coordinator();
        others[0].agent.domain("blue", &["*,*,0"]);
        let agent = leader.agent.agent_pid();
        stop(agent);
        change(others[0], "red");
        send(agent, Signal::SIGCONT);
        eventually("it follows", || {
            leader.about(leader.name())["directory"] == false
        });
        assert_eq!(leader.agent.agent_pid(), agent);
        leader.agent.toroid("domain rm red").ok();
        hosts.agree();
    });
}

/// Its directory is old when it wakes up. It once refused from memory to take out a node that had
/// joined meanwhile, as one that is no member, so that `--if-exists` was content.
#[test]
fn hosts_etcd_refuse_nothing_from_the_memory_of_a_former_coordinator() {
    leaves_nothing(|| {
        let (hosts, _etcd) = up(3);
        let (leader, others) = hosts.coordinator();
        let (stays, nodes) = (node_of(others[1]), &[node_of(others[0])]);
        let names = ["d0", "d1", "d2", "d3", "d4", "d5", "d6", "d7"];
        for name in names {
            others[1].agent.domain(name, &[&stays]);
        }
        hosts.agree();
        let agent = leader.agent.agent_pid();
        let clients = names.map(|_| Control::connect(&leader.agent.state()).expect("it runs"));
        stop(agent);
        thread::scope(|scope| {
            for name in names {
                let connect = || Control::connect(&others[0].agent.state());
                let grow = || connect().and_then(|mut agent| agent.grow(name, nodes));
                eventually("the next coordinator lets it join", || grow().is_ok());
            }
            // They wait in the socket.
            let asked = clients.into_iter().zip(names).map(|(mut client, name)| {
                let ask = move || client.shrink(name, nodes).map(drop);
                (name, scope.spawn(ask))
            });
            let asked: Vec<_> = asked.collect();
            thread::sleep(Duration::from_millis(100));
            send(agent, Signal::SIGCONT);
            for (name, asked) in asked {
                let shrunk = asked.join().expect("it does not panic");
                assert!(shrunk.is_ok(), "{name}: {shrunk:?}");
            }
        });
        hosts.agree();
    });
}

/// An agent that could not begin to lead once ended after some attempts, and left its nodes alone.
#[test]
fn hosts_etcd_keep_their_agents_while_none_can_begin_to_lead() {
    leaves_nothing(|| {
        let (hosts, etcd) = up(1);
        let (leader, others) = hosts.coordinator();
        others[0].agent.domain("blue", &["*,*,0"]);
        hosts.agree();
        let agent = leader.agent.agent_pid();
        etcd.fill();
        send(agent, Signal::SIGUSR1);
        within(Duration::from_secs(30), "it cannot lead", || {
            let problem = leader.agent.status()["etcd_problem"].to_string();
            problem.contains("out of space")
        });
        // It tries once more.
        within(Duration::from_secs(60), "it stands for election", || {
            leader.agent.log().contains("etcd: etcd is out of space")
        });
        leader.agent.exec(&node_of(leader), "true").ok();
        etcd.empty();
        change(others[1], "red");
        hosts.coordinator();
        hosts.agree();
        assert_eq!(leader.agent.agent_pid(), agent);
    });
}

#[test]
fn hosts_etcd_go_on_without_etcd_and_refuse_changes() {
    leaves_nothing(|| {
        let (hosts, etcd) = up(1);
        let (leader, others) = hosts.coordinator();
        let far = others[0];
        far.agent.domain("blue", &["*,*,0"]);
        hosts.agree();
        far.trunk_to(leader.name());
        etcd.stop();
        let begun = Instant::now();
        let refused = far.agent.toroid("domain shrink blue 0,0,0");
        let took = begun.elapsed();
        refused.fails(FAILED, &["etcd"]);
        assert!(took < Duration::from_secs(12), "{took:?}");
        let (near, to) = (node_of(leader), node_of(far).replace(',', "-"));
        leader.agent.reaches(&near, &format!("{to}.blue"));
        assert_eq!(leader.agent.status()["etcd"], "unreachable");
        // Nobody leads any more.
        let refused = leader.agent.toroid("domain create red 0,0,0");
        refused.fails(FAILED, &["no host leads", "etcd"]);
        assert_eq!(far.about(leader.name())["directory"], false);
        let (_owner, key) = far.agent.owner(&node_of(far));
        let member = leader.agent.peer(&near, "tally", &node_of(far), &key);
        assert!(member.counted() > 0);
        if is_nightly() {
            thread::sleep(Duration::from_secs(20).saturating_sub(begun.elapsed()));
        }
        etcd.go_on();
        // Whether the shrink was made nevertheless is unknown.
        change(far, "red");
        hosts.coordinator();
        hosts.agree();
        within(
            Duration::from_secs(30),
            "etcd is reached by all candidates",
            || {
                hosts
                    .each::<3>()
                    .iter()
                    .all(|host| host.agent.status()["etcd"] == "connected")
            },
        );
    });
}
