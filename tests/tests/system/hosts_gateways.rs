//! Gateways of one domain at nodes of several hosts.

use std::process::Command;

use nix::sys::signal::Signal;
use serde_json::{Value, json};
use tests::cluster::leaves_nothing;
use tests::hosts::{Host, Hosts};
use tests::outside::network_holder;
use tests::process::{Running, eventually, run, send};

/// Address outside, behind the interface `up0` of a host.
pub(crate) const OUTSIDE: &str = "198.18.0.2";

/// Runs `ip` in the network of a host.
fn ip(host: &Host, words: &str) {
    let words: Vec<&str> = words.split(' ').collect();
    host.spawn("ip", &words).wait().ok();
}

/// Connects a host to a network outside. Returns the process that keeps the network.
pub(crate) fn outside_of(host: &Host) -> Running {
    let holder = network_holder();
    let pid = holder.pid().to_string();
    ip(
        host,
        &format!("link add up0 type veth peer name out netns {pid}"),
    );
    ip(host, "address add 198.18.0.1/24 dev up0");
    ip(host, "link set up0 up");
    for words in ["address add 198.18.0.2/24 dev out", "link set out up"] {
        let mut command = Command::new("nsenter");
        command.args(["--net", "--target", &pid, "--", "ip"]);
        run(command.args(words.split(' '))).ok();
    }
    holder
}

/// The default routes of a node.
fn ways_out(at: &Host, node: &str) -> Value {
    let routes = at.agent.exec(node, "ip -json route show default");
    routes.ok().json()
}

/// Asserts that a member of a host reaches the outside, after the host has noticed a change.
#[track_caller]
fn goes_out_at(at: &Host, member: &str, gateway: &str) {
    let address = json!(at.agent.existing("blue").ipv4(gateway));
    eventually(&format!("{member} goes out at {gateway}"), || {
        ways_out(at, member)[0]["gateway"] == address
    });
    at.agent.reaches(member, OUTSIDE);
}

#[test]
fn members_go_out_by_another_host_when_the_preferred_one_cannot() {
    leaves_nothing(|| {
        let hosts = Hosts::up(3);
        let [a, b, c] = hosts.each();
        let blue = a.agent.domain("blue", &["*,*,0"]);
        for (from, to) in [(c, "a"), (c, "b"), (a, "b")] {
            from.trunk_to(to);
        }
        let _outsides = [a, b].map(outside_of);
        let add = |at: &Host, node: &str| {
            at.agent
                .toroid(&format!("gateway add {node} --uplink up0 -d blue"))
                .ok();
        };
        add(c, "0,1,0");
        add(c, "0,0,0");
        goes_out_at(c, "0,2,0", "0,1,0");

        // The preferred one's host tells the others.
        ip(b, "link set up0 down");
        goes_out_at(c, "0,2,0", "0,0,0");
        goes_out_at(a, "1,0,0", "0,0,0");
        let listed = c.agent.ask("gateway ls");
        assert_eq!(listed[0]["problem"], "up0 is down");
        assert_eq!(listed[1]["in_use"], true);
        // It tells a new agent as well.
        c.agent.kill_agent();
        c.up();
        let is_told = || c.agent.ask("gateway ls")[0]["problem"] == "up0 is down";
        eventually("the new agent is told", is_told);
        goes_out_at(c, "0,2,0", "0,0,0");

        // The end of the gateway in use is in effect when the command returns.
        ip(b, "link set up0 up");
        c.agent.toroid("gateway rm 0,0,0 -d blue").ok();
        assert_eq!(
            ways_out(c, "0,2,0")[0]["gateway"],
            json!(blue.ipv4("0,1,0"))
        );
        add(b, "0,0,0");
        goes_out_at(c, "0,2,0", "0,1,0");

        let driver = b.agent.driver_pid().expect("it runs");
        b.agent.kill_agent();
        send(driver, Signal::SIGKILL);
        goes_out_at(c, "0,2,0", "0,0,0");
        let problem = c.agent.ask("gateway ls")[0]["problem"].clone();
        assert_eq!(problem, "no frames pass to host b");
        b.up();
    });
}
