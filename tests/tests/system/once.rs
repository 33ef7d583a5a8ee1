//! Changes that are repeated, and made once: an agent or a leader dies in the middle of them.

use std::os::unix::net::UnixStream;
use std::thread;

use nix::sys::signal::Signal;
use tests::cluster::{Cluster, leaves_nothing};
use tests::hosts::{Host, Hosts};
use tests::leftovers::has_ended;
use tests::process::{eventually, send, stop};

use toroid_model::directory::requests::RequestId;
use toroid_model::refusal::RefusalKind;
use toroid_protocol::agent::{Message, NewDomain, Reply, Request, VERSION};
use toroid_protocol::wire::{self, Reader, Writer};

use crate::hosts_etcd::{node_of, start, up};

/// Changes of each host, some of them at a time.
const CHANGES: usize = 15;
const AT_ONCE: usize = 3;

/// A client that repeats requests.
struct Client {
    reader: Reader,
    writer: Writer,
}

impl Client {
    fn connect(cluster: &Cluster) -> Self {
        let socket = cluster.state().join("agent.sock");
        let stream = UnixStream::connect(socket).expect("an agent runs");
        let (reader, writer) = wire::split(stream).expect("it is a socket");
        let mut client = Client { reader, writer };
        client.say(&Request::Hello { version: VERSION });
        assert!(matches!(client.hear(), Reply::Welcome { .. }));
        client
    }

    fn say(&mut self, request: &Request) {
        self.writer.send(request, &[]).expect("the agent listens");
    }

    fn hear(&mut self) -> Reply {
        loop {
            if let (Message::Reply(reply), _) = self.reader.receive().expect("it answers") {
                return reply;
            }
        }
    }

    fn ask(&mut self, id: u128, change: &Request) -> Reply {
        self.say(&once(id, change));
        self.hear()
    }
}

fn once(id: u128, change: &Request) -> Request {
    Request::Once {
        id: RequestId(id),
        again: false,
        change: Box::new(change.clone()),
    }
}

#[track_caller]
fn refused(reply: Reply, kind: RefusalKind, words: &str) {
    let Reply::Error(refusal) = reply else {
        panic!("{reply:?}");
    };
    assert!(
        refusal.kind == kind && refusal.message.contains(words),
        "{refusal}"
    );
}

#[test]
fn a_request_that_is_repeated_is_made_once() {
    let cluster = Cluster::up("2x1x1");
    let create = Request::DomainCreate(NewDomain {
        name: "blue".into(),
        nodes: vec!["0,0,0".into()],
        ..NewDomain::default()
    });
    let remove = Request::DomainRemove {
        name: "blue".into(),
    };
    let shrink = Request::DomainShrink {
        name: "blue".into(),
        nodes: vec!["@blue".into()],
    };
    let mut client = Client::connect(&cluster);
    let created = client.ask(1, &create);
    assert!(
        matches!(&created, Reply::Domain(blue) if blue.epoch == 1),
        "{created:?}"
    );
    assert_eq!(client.ask(1, &create), created);
    refused(client.ask(2, &create), RefusalKind::Exists, "blue");
    refused(
        client.ask(1, &remove),
        RefusalKind::Exists,
        "another request",
    );
    // The next agent knows it from its disk.
    cluster.kill_agent();
    cluster.toroid("up").ok();
    let mut client = Client::connect(&cluster);
    assert_eq!(client.ask(1, &create), created);
    // The members that its set had are not those of now.
    let shrunk = client.ask(3, &shrink);
    cluster.toroid("domain grow blue 1,0,0").ok();
    let repeated = client.ask(3, &shrink);
    let [shrunk, repeated] = [shrunk, repeated].map(|reply| match reply {
        Reply::Domain(blue) => (blue.epoch, blue.members.len()),
        other => panic!("{other:?}"),
    });
    assert_eq!([shrunk, repeated], [(2, 0), (2, 1)]);
    // A domain of that name is not the one that was created.
    assert_eq!(client.ask(4, &remove), Reply::Done);
    cluster.domain("blue", &["1,0,0"]);
    let gone = client.ask(1, &create);
    refused(gone, RefusalKind::NotFound, "the change was made");
    assert_eq!(client.ask(4, &remove), Reply::Done);
    cluster.toroid("domain show blue").ok();
    let keys = Request::HostRotate { keys: vec![] };
    refused(client.ask(5, &keys), RefusalKind::Invalid, "made once");
    let query = client.ask(6, &once(7, &remove));
    refused(query, RefusalKind::Invalid, "made once");
}

/// The agent is killed when the node has left its domain, and has not been given away yet.
#[test]
fn a_hand_over_that_is_repeated_is_completed() {
    let cluster = Cluster::down_yet();
    cluster.toroid("up --torus 3x1x1 --ack-timeout 60000").ok();
    cluster.domain("blue", &["*,0,0"]);
    cluster.domain("red", &["1,0,0", "2,0,0"]);
    let (owner, _) = cluster.owner("0,0,0");
    stop(owner.pid_in_node());
    let chown = Request::NodeChown {
        nodes: vec!["@red".into()],
        owner: Some(1000),
    };
    let mut client = Client::connect(&cluster);
    client.say(&once(1, &chown));
    let members = || cluster.existing("blue").members().len();
    eventually("the nodes leave", || members() == 1);
    let owners = || {
        let nodes = cluster.ask("node ls");
        let nodes = nodes.as_array().expect("nodes are a list").iter();
        nodes.map(|node| node["owner"].as_u64()).collect::<Vec<_>>()
    };
    assert_eq!(owners(), [Some(0); 3]);
    cluster.kill_agent();
    cluster.toroid("up").ok();
    let mut client = Client::connect(&cluster);
    assert_eq!(client.ask(1, &chown), Reply::Done);
    assert_eq!(owners(), [Some(0), Some(1000), Some(1000)]);
    // Not again, if they are given back.
    cluster.toroid("node chown *,0,0 free").ok();
    assert_eq!(client.ask(1, &chown), Reply::Done);
    assert_eq!(owners(), [Some(0); 3]);
    owner.kill();
}

/// The process has left by its own shrink, and sees the domain no more. The answer was once that
/// the change was made, as an error.
#[test]
fn a_process_whose_agent_dies_in_its_own_shrink_is_answered() {
    let cluster = Cluster::down_yet();
    cluster.toroid("up --torus 2x1x1 --ack-timeout 60000").ok();
    cluster.domain("blue", &["*,0,0"]);
    cluster.toroid("domain manage blue 1,0,0").ok();
    let (silent, _) = cluster.owner("0,0,0");
    stop(silent.pid_in_node());
    shrink_itself(&cluster, "1,0,0", || cluster.toroid("up").ok());
    silent.kill();
}

/// The agent of a follower has asked the leader, which waits for the agent of another member.
#[test]
fn hosts_answer_a_process_whose_agent_dies_in_its_own_shrink() {
    leaves_nothing(|| {
        let hosts = Hosts::up(3);
        let [_, near, far] = hosts.each();
        near.agent.domain("blue", &[&node_of(near), &node_of(far)]);
        let manage = format!("domain manage blue {}", node_of(far));
        near.agent.toroid(&manage).ok();
        hosts.agree();
        let stopped = near.agent.agent_pid();
        stop(stopped);
        shrink_itself(&far.agent, &node_of(far), || {
            far.up();
            send(stopped, Signal::SIGCONT);
        });
        hosts.agree();
    });
}

/// A process of a node takes the node out of `blue`. Its agent is killed when the change is made, and
/// started again by `again`. The shrink is made once, and answered.
fn shrink_itself<T>(agent: &Cluster, node: &str, again: impl FnOnce() -> T) {
    let epoch = || agent.ask("domain show blue")["epoch"].as_u64();
    let manager = agent.actor(node, &format!("shrink blue {node}"));
    eventually("the change is made", || epoch() == Some(2));
    agent.kill_agent();
    again();
    assert_eq!(manager.counted(), 1);
    assert_eq!(epoch(), Some(2));
}

/// Number of the domains that a host's agent knows.
fn domains(host: &Host) -> usize {
    let domains = host.agent.ask("domain ls");
    domains.as_array().expect("domains are a list").len()
}

#[test]
fn hosts_etcd_make_each_change_once_when_the_coordinator_is_killed() {
    leaves_nothing(|| {
        let (hosts, etcd) = up(1);
        let (leader, others) = hosts.coordinator();
        let nodes = others.iter().map(|host| node_of(host));
        let nodes = nodes.collect::<Vec<String>>().join(" ");
        let work = |host: &Host, first: usize| {
            for n in (first..CHANGES).step_by(AT_ONCE) {
                let name = format!("{}{n}", host.name());
                // A repetition must not find that the name exists.
                host.agent
                    .toroid(&format!("domain create {name} {nodes}"))
                    .ok();
            }
        };
        thread::scope(|scope| {
            for host in &others {
                for first in 0..AT_ONCE {
                    scope.spawn(move || work(host, first));
                }
            }
            eventually("changes are under way", || domains(others[0]) > 2);
            leader.agent.kill_agent();
        });
        start(leader, &etcd);
        hosts.coordinator();
        hosts.agree();
        assert_eq!(domains(others[1]), 2 * CHANGES);
        for name in others.iter().map(|host| format!("{}0", host.name())) {
            assert_eq!(
                others[0].agent.ask(&format!("domain show {name}"))["epoch"],
                1
            );
        }
    });
}

#[test]
fn hosts_etcd_shrink_once_when_the_coordinator_is_killed_before_it_answers() {
    leaves_nothing(|| {
        let (hosts, etcd) = up(1);
        let (leader, others) = hosts.coordinator();
        let [near, far] = [others[0], others[1]];
        let (of_near, of_far) = (node_of(near), node_of(far));
        near.agent.domain("blue", &[&of_near, &of_far]);
        hosts.agree();
        far.trunk_to(near.name());
        let (owner, key) = near.agent.owner(&of_near);
        let leaver = far.agent.counter(&of_far, &of_near, &key);
        shrink_in_between([leader, near, far], || ());
        leaver.revoked();
        let opened = far.agent.open(&of_far, &key);
        opened.fails(1, &["is in no domain called blue"]);
        assert!(owner.counted() > 0);
        start(leader, &etcd);
        hosts.coordinator();
        hosts.agree();
        assert_eq!(near.agent.ask("domain show blue")["epoch"], 2);
    });
}

#[test]
fn hosts_wait_for_their_leader_when_it_is_started_again_in_the_middle_of_a_shrink() {
    leaves_nothing(|| {
        let hosts = Hosts::up(3);
        let [leader, near, far] = hosts.each();
        near.agent.domain("blue", &[&node_of(near), &node_of(far)]);
        hosts.agree();
        shrink_in_between([leader, near, far], || leader.up());
        hosts.agree();
        assert_eq!(near.agent.ask("domain show blue")["epoch"], 2);
    });
}

/// The leader's agent is killed when it has made a shrink, and `near` has not said that it is in
/// effect there. The command at `far`, whose node leaves, succeeds nevertheless.
fn shrink_in_between([leader, near, far]: [&Host; 3], then: impl FnOnce()) {
    let (leading, stopped) = (leader.agent.agent_pid(), near.agent.agent_pid());
    send(stopped, Signal::SIGSTOP);
    let leaver = node_of(far);
    let shrink = far.agent.start(&format!("domain shrink blue {leaver}"));
    eventually("the change is made", || {
        let blue = far.agent.ask("domain show blue");
        blue["members"].as_array().is_some_and(|its| its.len() == 1)
    });
    send(leading, Signal::SIGKILL);
    eventually("the leader is gone", || has_ended(leading));
    send(stopped, Signal::SIGCONT);
    then();
    shrink.wait().ok();
}
