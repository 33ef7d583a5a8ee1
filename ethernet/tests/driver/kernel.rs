//! Frames that pass without the driver.

use std::sync::atomic::{AtomicBool, Ordering};

use super::*;

/// A driver with the kernel path, and nodes that are members of [`BLUE`] on it; `None` without root.
fn direct<const N: usize>() -> Option<(Agent, [Node; N])> {
    is_root().then(|| {
        let agent = Agent::start();
        agent.offer_kernel_path();
        let nodes = std::array::from_fn(|x| Node::new(x as u8));
        let mut agent = agent;
        admit(&mut agent, &nodes);
        (agent, nodes)
    })
}

fn admit(agent: &mut Agent, nodes: &[Node]) {
    for node in nodes {
        agent.add_changed(node, BLUE, |port| port.kernel = true);
    }
    assert_eq!(agent.sync(), []);
}

/// A request and its answer over a connection.
fn say([client, server]: &mut [TcpStream; 2]) {
    client.write_all(b"to").unwrap();
    server.read_exact(&mut [0; 2]).unwrap();
    server.write_all(b"fro").unwrap();
    client.read_exact(&mut [0; 3]).unwrap();
}

#[test]
fn connections_go_on_without_a_driver_and_over_each_change_of_their_path() {
    let Some((mut agent, nodes)) = direct::<3>() else {
        return;
    };
    let addresses = [ipv4(BLUE, 1), ipv6(BLUE, 1)];
    let mut connections = addresses.map(|to| connect(&nodes[0], &nodes[1], to));
    connections.iter_mut().for_each(say);
    let before = nodes[0].link("d7");
    for change in 0..4 {
        agent.add_changed(&nodes[0], BLUE, |port| {
            port.kernel = change != 0;
            port.rate = (change == 2).then(|| "1Gbit".parse().unwrap());
        });
        assert_eq!(agent.sync(), []);
        connections.iter_mut().for_each(say);
    }
    assert_eq!(nodes[0].link("d7"), before);
    agent.stop();
    connections.iter_mut().for_each(say);
    stream(&nodes[0], &nodes[1], ipv4(BLUE, 1), 8 << 20);

    // Meanwhile node 2 has left, and the kernel does not know yet.
    let mut agent = Agent::start();
    agent.offer_kernel_path();
    admit(&mut agent, &nodes[..2]);
    connections.iter_mut().for_each(say);
    assert_eq!(nodes[0].link("d7"), before);
    assert_eq!(nodes[2].link("d7"), None);
    agent.stop();
}

#[test]
fn an_interface_of_the_driver_is_replaced_and_its_connections_go_on() {
    let Some((mut agent, nodes)) = direct::<2>() else {
        return;
    };
    for node in &nodes {
        agent.remove(BLUE, node.x.into());
        agent.add_changed(node, BLUE, |port| port.kernel = false);
    }
    eventually(|| nodes[0].links() == 2);
    assert_eq!(agent.sync(), []);
    let mut connection = connect(&nodes[0], &nodes[1], ipv4(BLUE, 1));
    say(&mut connection);
    admit(&mut agent, &nodes);
    say(&mut connection);
    agent.stop();
    // Of TAPs this could not be.
    say(&mut connection);
}

/// A member that floods others while it leaves. Most of its frames are then in queues of the kernel.
#[test]
fn nothing_of_a_former_member_arrives_after_the_return() {
    let Some((mut agent, nodes)) = direct::<3>() else {
        return;
    };
    let to = ipv4(BLUE, 0);
    let [receiver, _] = udp(&nodes[0], &nodes[1], to);
    let everywhere = receiver.local_addr().unwrap();
    let done = AtomicBool::new(false);
    let flood = |node: &Node| {
        let sender = node.inside(|| Udp::bind(SocketAddr::from(([0; 4], 0))));
        while !done.load(Ordering::Relaxed) {
            // Refused while the node is no member.
            let _ = sender.0.send_to(&[node.x; 1400], everywhere);
        }
    };
    let (mut arrived, mut late) = (0, 0);
    thread::scope(|scope| {
        for node in &nodes[1..] {
            scope.spawn(|| flood(node));
        }
        for epoch in 2..2 + repeats(100) as u32 {
            thread::sleep(Duration::from_millis(3));
            agent.remove(BLUE, 1);
            agent.remove(BLUE, 2);
            agent.raise_epoch(BLUE, epoch);
            assert_eq!(agent.sync(), []);
            arrived += receiver.discard();
            thread::sleep(Duration::from_millis(2));
            late += receiver.discard();
            for node in &nodes[1..] {
                agent.add_changed(node, BLUE, |port| {
                    (port.kernel, port.epoch) = (true, epoch);
                });
            }
            assert_eq!(agent.sync(), []);
        }
        done.store(true, Ordering::Relaxed);
    });
    assert!(arrived > 0);
    assert_eq!(late, 0, "of {arrived}");
    agent.stop();
}
