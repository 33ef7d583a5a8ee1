//! Hosts are known by keys of their own: rotation, removal and admission by hand.

use std::fs;
use std::path::PathBuf;

use tests::cluster::leaves_nothing;
use tests::hosts::{Host, Hosts};
use tests::process::eventually;

/// What `toroid host ls` says of a host.
fn listed(at: &Host, host: &str) -> serde_json::Value {
    let all = at.agent.ask("host ls");
    let all = all.as_array().expect("hosts are a list");
    let found = all.iter().find(|one| one["name"] == host);
    found.expect("it is one of the hosts").clone()
}

fn key(at: &Host, host: &str) -> String {
    listed(at, host)["key"].as_str().expect("a key").into()
}

/// The file with a host's key pair.
fn key_file(host: &Host) -> PathBuf {
    let mut data = fs::read_dir(host.agent.data()).unwrap().flatten();
    let found = data.find_map(|entry| {
        let file = entry.path().join("host.key");
        file.exists().then_some(file)
    });
    found.expect("there is a key")
}

#[test]
fn a_removed_host_has_nothing_open_and_only_an_administrator_admits_it_again() {
    leaves_nothing(|| {
        let hosts = Hosts::up(3);
        let [a, b, c] = hosts.each();
        a.meets("b");
        a.meets("c");
        let blue = a.agent.domain("blue", &["0,*,0"]);
        hosts.agree();
        b.trunk_to("c");
        c.trunk_to("b");

        // Nothing stops for a new key, also of the leader.
        for host in ["b", "a"] {
            let old = key(c, host);
            let at = if host == "a" { a } else { b };
            at.agent.toroid("host rotate").ok();
            assert_ne!(key(at, host), old);
            eventually("the others know it", || key(c, host) == key(at, host));
        }
        b.agent.kill_agent();
        b.up();
        a.meets("b");
        c.agent.reaches("0,2,0", "0-1-0.blue");

        // The shared key is no help to another machine with this name.
        let own = key_file(b);
        let aside = own.with_extension("aside");
        b.agent.kill_agent();
        fs::rename(&own, &aside).unwrap();
        b.up();
        b.objects_to("a", "another key than");
        a.objects_to("b", "another key than");
        b.agent.kill_agent();
        fs::rename(&aside, &own).unwrap();
        b.up();
        a.meets("b");
        b.trunk_to("c");

        // Any host can ask.
        let address = blue.ipv4("0,1,0");
        c.agent.toroid("host remove b").ok();
        for host in [a, c] {
            assert_ne!(host.about("b")["frames"], true);
            // Its key waits as soon as it has come again.
            assert_ne!(listed(host, "b")["admission"], "admitted");
        }
        assert_eq!(blue.members().len(), 2);
        c.agent.cannot_reach("0,2,0", &address);
        b.objects_to("a", "b was removed");
        c.agent.reaches("0,2,0", "0-0-0.blue");
        // As after an answer that was lost.
        a.agent.toroid("host remove b").ok();
        let leader = a.agent.toroid("host remove a");
        leader.fails(2, &["a holds the directory"]);

        // Its key waits at the leader.
        let shown = key(b, "b");
        eventually("the key waits", || listed(a, "b")["admission"] == "pending");
        assert_eq!(key(a, "b"), shown);
        let others = c.agent.toroid(&format!("host admit b {}", key(a, "c")));
        others.fails(5, &["key of host c"]);
        c.agent.toroid(&format!("host admit b {shown}")).ok();
        a.meets("b");
        blue.grow(&["0,1,0"]);
        hosts.agree();
        c.trunk_to("b");
        c.agent.reaches("0,2,0", "0-1-0.blue");
    });
}
