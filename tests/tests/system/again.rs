//! Agents that start again in place, in the same process.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use nix::sys::signal::Signal;
use tests::cluster::{Cluster, leaves_nothing};
use tests::hosts::{Host, Hosts, KEY};
use tests::leftovers::{has_ended, zombies_of};
use tests::process::{Running, eventually, send};
use tests::software::{goes_on, iperf3_server};
use tests::user::User;

const LIVES: usize = 20;

/// Makes an agent start again, and waits until it is ready.
fn start_again(cluster: &Cluster) {
    let ready = || cluster.log().matches("ready torus").count();
    let before = ready();
    send(cluster.agent_pid(), Signal::SIGUSR1);
    eventually("it is ready again", || ready() > before);
}

/// Runs `each` as long as `work` takes, at least once.
fn meanwhile(each: impl Fn() + Send + Sync, work: impl FnOnce()) {
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                each();
            }
        });
        // Also after a panic, for which the thread would not be awaited otherwise.
        let _end = End(&is_over);
        work();
    });
}

struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn hosts_lose_nothing_when_agents_start_again() {
    leaves_nothing(|| {
        let hosts = Hosts::up(2);
        let [a, b] = hosts.each();
        let blue = a.agent.domain("blue", &["*,*,0"]);
        hosts.agree();
        b.trunk_to("a");
        let before = [a, b].map(|host| (host.agent.agent_pid(), survivors(host)));
        let (owner, key) = a.agent.owner("0,0,0");
        let near = a.agent.peer("1,0,0", "tally", "0,0,0", &key);
        let far = b.agent.peer("0,1,0", "tally", "0,0,0", &key);
        let server = iperf3_server(&b.agent, "1,1,0");
        let mut client = a.agent.spawn("1,0,0", "iperf3 -c 1-1-0.blue -t 600");
        goes_on(&server);
        let clients = || {
            // None fails: what comes in between waits.
            a.agent.toroid("status").ok();
            a.agent.toroid("domain create red 0,0,0").ok();
            a.agent.toroid("domain rm red").ok();
            a.agent.exec("0,0,0", "true").ok();
        };
        meanwhile(clients, || {
            for life in 0..LIVES {
                start_again(&[a, b][life % 2].agent);
            }
        });
        goes_on(&server);
        assert!(!client.has_ended(), "{}", client.wait());
        let now = [a, b].map(|host| (host.agent.agent_pid(), survivors(host)));
        assert_eq!(now, before);
        for (agent, _) in now {
            eventually("no child is left unreaped", || zombies_of(agent).is_empty());
        }
        b.meets("a");
        hosts.agree();
        for member in [near, far] {
            assert!(member.counted() > 0);
        }
        // The agents revoke what was granted many lives ago.
        let [stays, leaves] = ["1,0,0", "0,1,0"].map(|node| {
            let host = if node == "1,0,0" { a } else { b };
            host.agent.counter(node, "0,0,0", &key)
        });
        start_again(&a.agent);
        b.meets("a");
        blue.shrink(&["0,1,0"]);
        leaves.revoked();
        assert!(owner.counted() > 0);
        assert_eq!(stays.failure().1, "PeerDead");
    });
}

fn survivors(host: &Host) -> Vec<Option<u64>> {
    let nodes = host.agent.ask("node ls");
    let nodes = nodes.as_array().expect("nodes are a list").iter();
    let status = host.agent.status();
    let others = ["driver_pid", "adapter_pid"].map(|key| status[key].as_u64());
    nodes
        .map(|node| node["pid"].as_u64())
        .chain(others)
        .collect()
}

#[test]
fn an_agent_that_starts_again_still_ends_with_all_its_nodes() {
    leaves_nothing(|| {
        let cluster = Cluster::up("2x1x1");
        let pids = cluster.pids();
        // At any moment of the start.
        for _ in 0..3 {
            send(cluster.agent_pid(), Signal::SIGUSR1);
            cluster.down();
            assert!(pids.iter().all(|pid| has_ended(*pid)));
            cluster.toroid("up").ok();
        }
        let agent = cluster.agent_pid();
        send(agent, Signal::SIGUSR1);
        send(agent, Signal::SIGTERM);
        eventually("it has ended", || has_ended(agent));
        cluster.toroid("status").fails(3, &["no agent runs"]);

        let mut up = cluster.command("toroid");
        up.args(["up", "--foreground"]).stdin(Stdio::null());
        let mut up = Running::start(&mut up);
        up.warns("agent ready");
        for _ in 0..2 {
            up.signal(Signal::SIGUSR1);
            assert_eq!(cluster.agent_pid(), up.pid());
        }
        cluster.exec("0,0,0", "true").ok();
        assert!(!up.has_ended());
        up.signal(Signal::SIGTERM);
        up.wait().ok();
    });
}

#[test]
fn the_agent_of_a_user_starts_again_as_that_users() {
    leaves_nothing(|| {
        let cluster = Cluster::of_user(User::create());
        cluster.toroid("up --torus 2x1x1").ok();
        let _blue = cluster.domain("blue", &["*,0,0"]);
        for _ in 0..2 {
            start_again(&cluster);
        }
        assert_eq!(cluster.status()["rootless"], true);
        cluster.exec("0,0,0", "true").ok();
        cluster.toroid("domain shrink blue 1,0,0").ok();
    });
}

/// An argument of a program has at most 128 KiB, which the files of some thousand hosts exceed.
#[test]
fn an_agent_with_a_long_configuration_starts_again() {
    leaves_nothing(|| {
        let cluster = Cluster::down_yet();
        let key = cluster.files().join("key");
        fs::write(&key, KEY).expect("there is room");
        fs::set_permissions(&key, Permissions::from_mode(0o600)).expect("it is ours");
        let other = |n: u32| {
            let (name, [_, _, x, y]) = ("host".repeat(5), n.to_be_bytes());
            format!("{name}-{n} = \"10.99.{x}.{y}:7470\"\n")
        };
        let others: String = (1..4000).map(other).collect();
        let text = format!(
            "host = \"a\"\ntorus = \"2x1x1\"\nnodes = [\"*,0,0\"]\nlisten = \"127.0.0.1:7470\"\n\
             key = \"key\"\ndirectory = \"a\"\n[hosts]\n{others}"
        );
        assert!(text.len() > 150_000);
        let file = cluster.files().join("host.toml");
        fs::write(&file, text).expect("there is room");
        cluster
            .toroid(&format!("up --config {}", file.display()))
            .ok();
        start_again(&cluster);
        cluster.exec("0,0,0", "true").ok();
    });
}
