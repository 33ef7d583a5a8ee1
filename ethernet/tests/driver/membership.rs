//! Members that come and go, and drivers and agents that restart.

use super::*;

#[test]
fn a_restarted_driver_resumes_interfaces_and_connections() {
    let Some((agent, nodes)) = blue::<2>() else {
        return;
    };
    let [mut client, mut server] = connect(&nodes[0], &nodes[1], ipv4(BLUE, 1));
    let mut say = |text: &[u8; 4]| {
        client.write_all(text).unwrap();
        let mut received = [0; 4];
        server.read_exact(&mut received).unwrap();
        assert_eq!(received, *text);
        server.write_all(text).unwrap();
        client.read_exact(&mut received).unwrap();
        assert_eq!(received, *text);
    };
    say(b"once");
    let before = nodes[0].link("d7");
    agent.stop();

    let mut agent = Agent::start();
    agent.join(BLUE, &nodes);
    assert_eq!(nodes[0].link("d7"), before);
    say(b"more");
    agent.stop();
}

#[test]
fn the_next_agent_keeps_equal_ports_and_replaces_others() {
    let Some((mut agent, mut nodes)) = blue::<3>() else {
        return;
    };
    agent.join(RED, &nodes);
    let interface = nodes[0].link("d7");
    agent.restart();
    assert!(reaches(&nodes[0], &nodes[1], RED), "without an agent");
    // Meanwhile a node is made anew, and a domain is removed.
    nodes[1] = Node::new(1);
    let ports = [0, 1, 2].map(|node| (BLUE, node));
    assert_eq!(agent.retain(&ports, &[]), [""; 0]);
    agent.join(BLUE, &nodes);
    assert_eq!(nodes[0].link("d7"), interface);
    assert_eq!(nodes[0].link("d4660"), None);
    assert!(reaches(&nodes[0], &nodes[1], BLUE));
    agent.stop();
}

#[test]
fn a_removed_port_is_cut_and_its_interface_gone() {
    let Some((mut agent, nodes)) = blue::<3>() else {
        return;
    };
    agent.remove(BLUE, 1);
    agent.remove(BLUE, 77);
    agent.raise_epoch(BLUE, 2);
    assert_eq!(agent.sync(), []);
    assert_eq!(nodes[1].link("d7"), None);
    assert!(reaches(&nodes[0], &nodes[2], BLUE));

    // The old epoch is refused, the new one accepted.
    agent.add(&nodes[1], nodes[1].port(BLUE));
    let errors = agent.sync();
    assert_eq!(errors.len(), 1);
    assert!(errors[0].message.contains("epoch"), "{}", errors[0].message);
    agent.add_changed(&nodes[1], BLUE, |port| port.epoch = 2);
    assert_eq!(agent.sync(), []);
    assert!(reaches(&nodes[0], &nodes[1], BLUE));
    agent.stop();
}

#[test]
fn a_member_that_returns_a_thousand_times_is_a_member_each_time() {
    let Some((mut agent, nodes)) = blue::<2>() else {
        return;
    };
    for epoch in 2..=1001 {
        agent.remove(BLUE, 1);
        assert_eq!(agent.sync(), []);
        // Sometimes the interface is deleted in between, and made anew.
        if epoch % 250 == 0 {
            eventually(|| nodes[1].links() == 1);
        }
        agent.add_changed(&nodes[1], BLUE, |port| port.epoch = epoch);
        assert_eq!(agent.sync(), []);
        if epoch % 100 == 0 {
            assert!(reaches(&nodes[0], &nodes[1], BLUE), "epoch {epoch}");
        }
    }
    assert_eq!(nodes[1].links(), 2, "no other interface is left");
    agent.stop();
}

#[test]
fn frames_of_a_former_member_never_arrive() {
    let Some((mut agent, nodes)) = blue::<2>() else {
        return;
    };
    let bind = |node: &Node| node.inside(|| Udp::bind(SocketAddr::from(([0; 4], 0))));
    let (receiver, sender) = (bind(&nodes[0]), bind(&nodes[1]));
    let port = receiver.local_addr().unwrap().port();
    let everyone = SocketAddr::from(([10, 64, 0, 255], port));
    sender.0.set_broadcast(true).unwrap();
    agent.remove(BLUE, 1);
    assert_eq!(agent.sync(), []);
    // Root in the node finds the interface and raises it.
    nodes[1].inside(|| {
        let mut netlink = Netlink::open().unwrap();
        let lowered = (0..9).find_map(|n| netlink.link(&format!("~gone{n}")).ok());
        let lowered = lowered.expect("a lowered interface");
        assert!(!lowered.up);
        netlink.set_up(lowered.index).unwrap();
    });
    sender.0.send_to(b"secret", everyone).unwrap();
    agent.add(&nodes[1], nodes[1].port(BLUE));
    assert_eq!(agent.sync(), []);
    sender.send_to(b"a member again", everyone);
    assert_eq!(receiver.receive(), b"a member again");
    agent.stop();
}

#[test]
fn another_domain_may_have_the_name_at_once() {
    let Some((mut agent, nodes)) = blue::<2>() else {
        return;
    };
    for node in &nodes {
        agent.remove(BLUE, node.x.into());
        agent.add_changed(node, RED, |port| port.ifname = "d7".into());
    }
    assert_eq!(agent.sync(), []);
    assert!(reaches(&nodes[0], &nodes[1], RED));
    eventually(|| nodes[0].links() == 2);
    agent.stop();
}

#[test]
fn bad_commands_are_errors_of_their_port_only() {
    let Some((mut agent, nodes)) = blue::<2>() else {
        return;
    };
    type Change = fn(&mut Port);
    let cases: [(u32, Change, &str); 3] = [
        (BLUE, |port| port.mtu = 1500, "there already"),
        (RED, |port| port.ifname = "lo".into(), "TAP lo"),
        (RED, |port| port.mac[2] ^= 1, "is not the address"),
    ];
    for (domain, change, expected) in cases {
        agent.add_changed(&nodes[0], domain, change);
        let errors = agent.sync();
        assert_eq!(errors.len(), 1, "{expected}: {errors:?}");
        assert!(
            errors[0].message.contains(expected),
            "{}",
            errors[0].message
        );
    }
    agent.send(DriverRequest::AddPort(nodes[0].port(RED)));
    assert!(agent.sync()[0].message.contains("namespace"));
    // The same commands again, as from an agent without state.
    agent.join(BLUE, &nodes);
    assert!(reaches(&nodes[0], &nodes[1], BLUE));
    agent.stop();
}

/// A driver without them once forwarded frames of members that have to stop.
#[test]
fn a_driver_that_cannot_map_the_deadlines_ends() {
    let Some((mut agent, nodes)) = blue::<2>() else {
        return;
    };
    agent.set_deadlines(&Deadlines::create().unwrap());
    for node in &nodes {
        agent.add_changed(node, BLUE, |port| port.kernel = false);
    }
    assert_eq!(agent.sync(), []);
    agent.set_deadlines(&File::open("/dev/null").unwrap());
    let error = agent.outlast().unwrap_err().to_string();
    let expected = "cannot use the deadlines of fenced domains";
    assert!(error.starts_with(expected), "{error}");
    assert!(is_cut(&nodes[0], &nodes[1], BLUE), "without a driver");
}
