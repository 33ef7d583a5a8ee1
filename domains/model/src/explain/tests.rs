use serde_json::{Value, json};

use super::*;

fn place(x: u8) -> Place {
    Place { x, y: 0, z: 0 }
}

fn status(ethernet: &str, rootless: bool, driver_pid: Option<u32>) -> Status {
    let fields = json!({
        "pid": 1, "state": "/run/toroid", "data": "/var/lib/toroid", "torus": "4x1x1",
        "nodes": 4, "domains": 2, "provider": "shm", "ethernet": ethernet, "offload": [],
        "rootless": rootless, "private_users": !rootless, "driver_pid": driver_pid, "driver_restarts": 0, "attached": 0,
        "registered_bytes": 0, "moving_bytes": 0
    });
    serde_json::from_value(fields).unwrap()
}

/// Nodes 0 to 2 are in `blue`, 1 and 2 limited; 2 and 3 are in `red`.
fn domains() -> Vec<DomainInfo> {
    let member = |x: u8, limited: bool| {
        json!({
            "node": place(x).to_string(), "limited": limited, "plain": false, "stack": false, "ifname": "blue", "mac": "",
            "ipv4": "10.64.0.1", "ipv6": "fd74::1"
        })
    };
    let domain = |name: &str, members: &[Value]| {
        let fields = json!({
            "name": name, "id": 1, "epoch": 1, "owner": 1000, "mtu": 9000,
            "subnet": "10.64.0.0/24", "public": false, "managers": [], "size": 0,
            "diameter": 0, "mean_hops": 0.0, "members": members
        });
        serde_json::from_value(fields).unwrap()
    };
    let blue = [member(0, false), member(1, true), member(2, true)];
    vec![
        domain("blue", &blue),
        domain("red", &[member(2, false), member(3, false)]),
    ]
}

/// All are 1000's but 3, which is 1001's.
fn nodes() -> Vec<NodeInfo> {
    let node = |x: u8| {
        let fields = json!({
            "id": x, "place": place(x).to_string(), "aliases": [], "allocated": true,
            "owner": if x == 3 { 1001 } else { 1000 }, "free": false, "domains": [],
            "consents": [], "pid": 1
        });
        serde_json::from_value(fields).unwrap()
    };
    (0..4).map(node).collect()
}

fn explain(status: &Status, from: u8, to: u8, domain: Option<&str>) -> Explanation {
    let (nodes, domains) = (nodes(), domains());
    let facts = Facts {
        status,
        nodes: &nodes,
        domains: &domains,
    };
    facts.explain(place(from), place(to), domain)
}

fn reason(explanation: &Explanation) -> String {
    assert!(!explanation.may);
    let told = explanation.domains.first();
    let told = told.map(|verdict| verdict.rdma.objection.as_ref());
    let objection = told.unwrap_or(explanation.objection.as_ref());
    objection.unwrap().to_string()
}

#[test]
fn members_communicate_and_the_guards_are_named() {
    let answer = explain(&status("tap", false, Some(7)), 0, 1, None);
    assert!(answer.may);
    let expected = json!({
        "from": "0,0,0", "to": "1,0,0", "may": true, "domains": [{
            "domain": "blue", "may": true,
            "ethernet": {"may": true, "provider": "tap", "enforced_by": ["driver"],
                "without_kernel": "1,0,0 is a limited member"},
            "rdma": {"may": true, "provider": "shm", "enforced_by": ["mapping", "agent"]},
        }]
    });
    assert_eq!(serde_json::to_value(&answer).unwrap(), expected);

    let (status, nodes, mut domains) = (status("tap", false, Some(7)), nodes(), domains());
    let mut path = |without: Option<&str>| {
        domains[1].without_kernel = without.map(Into::into);
        let facts = Facts {
            status: &status,
            nodes: &nodes,
            domains: &domains,
        };
        facts.explain(place(2), place(3), None).domains[0]
            .ethernet
            .clone()
    };
    let direct = path(None);
    assert_eq!(direct.provider.as_deref(), Some("kernel"));
    assert_eq!(direct.enforced_by, [Guard::Kernel]);
    let by_driver = path(Some("it has a fence"));
    assert_eq!(by_driver.provider.as_deref(), Some("tap"));
    assert_eq!(by_driver.without_kernel.as_deref(), Some("it has a fence"));
}

#[test]
fn programs_that_need_an_interface_are_told_where_there_is_none() {
    let (status, nodes, mut domains) = (status("stack", true, Some(7)), nodes(), domains());
    let mut told = |without: &[usize]| {
        for (n, member) in domains[0].members.iter_mut().enumerate() {
            let ifname = without.contains(&n).then_some(None);
            member.ifname = ifname.unwrap_or_else(|| Some("blue".into()));
        }
        let facts = Facts {
            status: &status,
            nodes: &nodes,
            domains: &domains,
        };
        let answer = facts.explain(place(0), place(1), None);
        let Path {
            provider, limit, ..
        } = answer.domains[0].ethernet.clone();
        (provider.unwrap(), limit.unwrap_or_default())
    };
    let only = "of the kernel, so only programs with sockets of `toroid_ethernet::Stack` have Ethernet there";
    assert_eq!(told(&[]), ("tap".into(), String::new()));
    let one = format!("node 1,0,0 has no interface {only}");
    assert_eq!(told(&[1]), ("stack".into(), one));
    let both = format!("nodes 0,0,0 and 1,0,0 have no interfaces {only}");
    assert_eq!(told(&[0, 1]), ("stack".into(), both));
}

#[test]
fn limited_members_may_not_talk_to_each_other() {
    let answer = explain(&status("tap", false, Some(7)), 1, 2, None);
    let reason = reason(&answer);
    assert!(
        reason.contains("both are limited members of blue"),
        "{reason}"
    );
    assert!(reason.contains("toroid domain grow blue 2,0,0"), "{reason}");
}

#[test]
fn a_limited_member_may_talk_to_itself() {
    let answer = explain(&status("tap", false, Some(7)), 1, 1, None);
    assert_eq!(answer.domains[0].ethernet.enforced_by, [Guard::Node]);
    assert!(answer.may);
}

#[test]
fn outsiders_hear_of_common_domains_and_the_remedy() {
    let status = status("tap", false, Some(7));
    let told = reason(&explain(&status, 0, 3, Some("blue")));
    let grow = "uid 1000, can change that with `toroid domain grow blue 3,0,0`";
    assert!(
        told.contains("node 3,0,0 is not a member of blue"),
        "{told}"
    );
    assert!(told.contains(grow), "{told}");
    let consent = "once the owner of 3,0,0, uid 1001, has run `toroid node consent 3,0,0 -d \
                   blue`";
    assert!(told.contains(consent), "{told}");
    let told = reason(&explain(&status, 0, 1, Some("red")));
    assert!(!told.contains("consent"), "{told}");
    let told = reason(&explain(&status, 2, 3, Some("blue")));
    assert!(told.contains("they share red"), "{told}");
    let told = reason(&explain(&status, 0, 3, None));
    assert!(told.contains("0,0,0 is in blue, 3,0,0 is in red"), "{told}");
}

#[test]
fn frames_between_hosts_need_their_drivers_connection() {
    let explain_with = |is_sealed, encryption, frames: bool, over: Option<&str>, here: &str| {
        let mut status = status("tap", false, Some(7));
        status.between_hosts = Some(Provider::Verbs);
        status.encryption = Some(encryption);
        let host = |name: &str, state: &str, frames: bool, over: Option<&str>| {
            let fields = json!({
                "name": name, "address": format!("10.0.0.{}:7470", name.len()), "directory": false,
                "state": state, "frames": frames, "frames_over": over
            });
            serde_json::from_value(fields).unwrap()
        };
        status.hosts = vec![
            host("a", here, false, None),
            host("bb", "connected", frames, over),
        ];
        let (mut nodes, mut domains) = (nodes(), domains());
        domains[0].sealed = is_sealed;
        for node in &mut nodes {
            let name = if node.id == 0 { "a" } else { "bb" };
            node.host = Some(name.into());
        }
        let facts = Facts {
            status: &status,
            nodes: &nodes,
            domains: &domains,
        };
        let answer = facts.explain(place(1), place(0), None);
        answer.domains[0].clone()
    };
    let told_with = |encryption, frames, over, here: &str| {
        explain_with(false, encryption, frames, over, here).ethernet
    };
    let told = |frames, over, here: &str| told_with(Encryption::On, frames, over, here);
    let guards = |network| [Guard::Driver, Guard::RemoteDriver, network];
    let open = told(true, Some("tcp"), "here");
    assert_eq!(open.provider.unwrap(), "tap over tcp, 10.0.0.2 - 10.0.0.1");
    assert_eq!(open.enforced_by, guards(Guard::Encryption));
    let clear = told_with(Encryption::Off, true, Some("tcp"), "here");
    assert_eq!(clear.enforced_by, guards(Guard::Network));
    let open = told(true, Some("verbs"), "here");
    assert_eq!(open.provider.unwrap(), "tap over verbs");
    assert_eq!(open.enforced_by, guards(Guard::RdmaNetwork));
    for encryption in [Encryption::On, Encryption::Off] {
        let sealed = explain_with(true, encryption, true, Some("tcp"), "here");
        let objection = sealed.rdma.objection.unwrap();
        assert!(objection.reason.contains("blue is sealed"), "{objection}");
        assert_eq!(sealed.ethernet.objection, Some(objection));
        assert!(!sealed.may);
    }
    // Between two others.
    let open = told(false, None, "connected");
    assert_eq!(open.provider.unwrap(), "tap over verbs or tcp");
    assert_eq!(open.enforced_by, guards(Guard::RdmaNetwork));
    let objection = told(false, None, "here").objection.unwrap();
    assert!(objection.reason.contains("bb and a are not connected"));
}

#[test]
fn rdma_devices_between_hosts_accept_granted_keys_only() {
    let told = |provider: Provider, encryption| {
        let mut status = status("tap", false, Some(7));
        status.between_hosts = Some(provider);
        status.encryption = Some(encryption);
        let (mut nodes, domains) = (nodes(), domains());
        nodes[0].host = Some("a".into());
        nodes[1].host = Some("b".into());
        let facts = Facts {
            status: &status,
            nodes: &nodes,
            domains: &domains,
        };
        let answer = facts.explain(place(1), place(0), None);
        let rdma = answer.domains[0].rdma.clone();
        (rdma.provider.unwrap(), rdma.enforced_by)
    };
    for (encryption, by_tcp, by_rdma) in [
        (Encryption::On, Guard::Encryption, Guard::RdmaNetwork),
        (Encryption::Off, Guard::Network, Guard::Network),
    ] {
        let tcp = vec![Guard::TargetProxy, by_tcp];
        assert_eq!(told(Provider::Tcp, encryption), ("tcp".into(), tcp));
        let verbs = vec![Guard::RemoteKeys, Guard::TargetProxy, by_rdma];
        assert_eq!(told(Provider::Verbs, encryption), ("verbs".into(), verbs));
    }
}

#[test]
fn one_path_may_be_open_without_the_other() {
    let answer = explain(&status("none", true, None), 0, 1, None);
    let blue = &answer.domains[0];
    assert!(answer.may && !blue.ethernet.may);
    assert!(blue.rdma.enforced_by.contains(&Guard::Cooperation));
    let answer = explain(&status("tap", false, None), 0, 1, None);
    let objection = answer.domains[0].ethernet.objection.as_ref().unwrap();
    assert!(objection.reason.contains("does not run"));
}
