//! Hosts tell the leader their addresses: a host is added by its own file alone, and is found where
//! it goes.

use serde_json::Value;
use tests::actor::Event;
use tests::cluster::leaves_nothing;
use tests::hosts::{Host, Hosts, Oddities};
use tests::process::eventually;
use tests::software::{goes_on, iperf3_server};

const FAILED: i32 = 1;
const WRONG: i32 = 2;

/// The address of a host, as `toroid host ls` lists it on another one.
fn listed(at: &Host, host: &str) -> Value {
    let all = at.agent.ask("host ls");
    let all = all.as_array().expect("hosts are a list");
    let found = all.iter().find(|one| one["name"] == host);
    found.map_or(Value::Null, |its| its["address"].clone())
}

#[test]
fn a_host_is_added_goes_elsewhere_and_leads_while_nothing_restarts() {
    leaves_nothing(|| {
        let hosts = Hosts::down_yet(4);
        let [a, b, c, d] = hosts.each();
        let present = [a, b, c];
        present.into_iter().for_each(Host::up);
        a.agent.domain("blue", &["*,0-2,0"]);
        b.trunk_to("c");
        c.trunk_to("b");
        let (summed, key) = c.agent.owner("0,2,0");
        let tally = b.agent.peer("0,1,0", "tally", "0,2,0", &key);
        let server = iperf3_server(&c.agent, "0,2,0");
        let mut client = b.agent.spawn("0,1,0", "iperf3 -c 0-2-0.blue -t 600");
        goes_on(&server);
        let agents = || present.map(|host| host.agent.agent_pid());
        let before = agents();

        // The files of the others do not name it.
        d.up();
        let meet = || {
            c.trunk_to("d");
            d.trunk_to("c");
            c.agent.reaches("1,2,0", "0-3-0.green");
            d.agent.reaches("0,3,0", "1-2-0.green");
            for (from, to, near, far) in [(c, d, "1,2,0", "0,3,0"), (d, c, "0,3,0", "1,2,0")] {
                let (owner, key) = to.agent.exporter(far, "own green");
                let words = format!("mix green {far} {key} 64 1");
                let member = from.agent.actor(near, &words);
                member.reports(&Event::Round(64));
                let tally = member.counted();
                assert_eq!(owner.counted(), tally);
                b.agent.exec(far, "true").ok();
            }
            let knows = |host: &&Host| listed(host, "d") == d.address().as_str();
            eventually("its address is known", || {
                hosts.each::<4>().iter().all(knows)
            });
        };
        b.agent.domain("green", &["1,2,0", "0,3,0"]);
        meet();

        // As a machine in another place.
        d.agent.down();
        d.readdress(40);
        d.up();
        meet();

        b.agent.toroid("directory move d").ok();
        for host in present {
            host.meets("d");
            assert_eq!(host.about("d")["directory"], true);
        }
        // The file still names a, which is no way to d.
        assert_eq!(agents(), before);
        b.agent.kill_agent();
        a.agent.kill_agent();
        b.up();
        b.meets("d");
        b.agent.toroid("domain rm green").ok();
        a.up();
        a.meets("d");

        goes_on(&server);
        assert!(!client.has_ended(), "the stream has ended");
        let tally = tally.counted();
        assert!(tally > 0);
        assert_eq!(summed.counted(), tally);
    });
}

#[test]
fn addresses_that_are_of_no_use_are_named_and_files_override_them() {
    leaves_nothing(|| {
        let hosts = Hosts::up(2);
        let [a, b] = hosts.each();
        a.agent.domain("blue", &["*,*,0"]);
        let again = |host: &Host, oddities: Oddities<'_>| {
            host.agent.kill_agent();
            host.try_up(oddities)
        };

        let theirs = a.address();
        let same = Oddities {
            address: Some(&theirs),
            ..Oddities::default()
        };
        again(b, same).ok();
        for host in [a, b] {
            host.objects_to("b", "is also that of host a");
            host.objects_to("a", "is also that of host b");
        }
        // It follows nevertheless.
        a.meets("b");
        b.agent.domain("green", &["0,1,0"]);

        // Nothing listens there, and the leader can only say so.
        let useless = format!("{}:9", b.ip());
        let closed = Oddities {
            address: Some(&useless),
            ..Oddities::default()
        };
        again(b, closed).ok();
        let problem = format!("the leader cannot reach its address {useless}");
        a.objects_to("b", &problem);
        let doctor = a.agent.toroid("doctor");
        let told_by_doctor = doctor.text();
        assert!(told_by_doctor.contains(&problem), "{told_by_doctor}");
        assert_eq!(listed(a, "b"), useless.as_str());
        let exec = a.agent.exec("0,1,0", "true");
        exec.fails(FAILED, &["host b", "see `toroid status`"]);

        // A leader that has started again has a new term. A command waits until its follower has it.
        let follows_again = || {
            a.meets("b");
            a.agent.exec("0,1,0", "true").ok();
        };

        // The file of a has an address that is good for a.
        let right = b.address();
        let good = Oddities {
            full: true,
            hosts: &[("b", &right)],
            ..Oddities::default()
        };
        again(a, good).ok();
        follows_again();
        assert!(a.about("b")["problem"].is_null());
        assert_eq!(listed(a, "b"), right.as_str());

        // A file that is out of date hinders nobody.
        again(b, Oddities::default()).ok();
        let stale = Oddities {
            hosts: &[("b", &useless)],
            ..good
        };
        again(a, stale).ok();
        follows_again();
        b.trunk_to("a");

        let all = Oddities {
            listen: Some("0.0.0.0:7470"),
            ..Oddities::default()
        };
        again(b, all).fails(WRONG, &["names all interfaces", "add `address`"]);
        let behind = Oddities {
            address: Some(&right),
            ..all
        };
        b.try_up(behind).ok();
        a.meets("b");
        a.agent.reaches("0,0,0", "0-1-0.blue");
    });
}
