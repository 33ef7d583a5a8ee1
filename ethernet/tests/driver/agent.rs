//! The agent of a driver.

use super::*;

/// The agent's end of a driver that runs in a thread.
pub(crate) struct Agent {
    liveness: Writer,
    answers: Reader,
    commands: Writer,
    driver: JoinHandle<Result<(), DriverError>>,
    synced: u64,
}

impl Agent {
    pub(crate) fn start() -> Self {
        let (ours, drivers) = UnixStream::pair().unwrap();
        let liveness = wire::split(ours).unwrap().1;
        let (answers, commands) = control_channel(&liveness);
        Agent {
            liveness,
            answers,
            commands,
            driver: thread::spawn(|| driver::run(drivers)),
            synced: 0,
        }
    }

    pub(crate) fn send(&self, command: DriverRequest) {
        self.commands.send(&command, &[]).unwrap();
    }

    pub(crate) fn add(&self, node: &Node, port: Port) {
        let namespace = node.namespace.as_fd();
        self.commands
            .send(&DriverRequest::AddPort(port), &[namespace])
            .unwrap();
    }

    /// Makes all nodes members, and checks that their addresses are usable at once. In the past
    /// the kernel had not finished adding IPv6 addresses.
    pub(crate) fn join(&mut self, domain: u32, nodes: &[Node]) {
        nodes
            .iter()
            .for_each(|node| self.add(node, node.port(domain)));
        assert_eq!(self.sync(), []);
        for node in nodes {
            let address = ipv6(domain, node.x);
            let is_local = || Netlink::open().unwrap().is_local(address).unwrap();
            assert!(node.inside(is_local), "{address}");
        }
    }

    pub(crate) fn remove(&self, node: &Node, domain_id: u32) {
        let node = node.x.into();
        self.send(DriverRequest::RemovePort { domain_id, node });
    }

    pub(crate) fn sync(&mut self) -> Vec<PortError> {
        self.synced += 1;
        self.send(DriverRequest::Sync { n: self.synced });
        match self.answers.receive().unwrap() {
            (DriverResponse::Synced { n, errors, .. }, _) if n == self.synced => errors,
            other => panic!("{other:?} is not the expected answer"),
        }
    }

    /// Retains no ports, and tunnels to these hosts only.
    pub(crate) fn retain(&mut self, hosts: &[&str]) {
        let hosts = hosts.iter().map(|host| (*host).into()).collect();
        let ports = Vec::new();
        self.send(DriverRequest::Retain {
            ports,
            hosts,
            rdma: None,
        });
    }

    pub(crate) fn add_remote(&self, host: &str, port: Port) {
        let host = host.into();
        self.send(DriverRequest::AddRemote { host, port });
    }

    /// Gives the driver a tunnel.
    pub(crate) fn connect(&self, host: &str, socket: &TcpStream) {
        let host = host.into();
        let command = DriverRequest::Tunnel { host, asks: false };
        self.commands.send(&command, &[socket.as_fd()]).unwrap();
    }

    /// Dropped frames of other hosts.
    pub(crate) fn drops(&mut self, domain_id: u32) -> BTreeMap<String, BTreeMap<DropReason, u64>> {
        self.send(DriverRequest::Drops { n: 1, domain_id });
        match self.answers.receive().unwrap() {
            (DriverResponse::Dropped { hosts, .. }, _) => hosts,
            other => panic!("{other:?} is not the expected answer"),
        }
    }

    /// Dropped frames of members, by node number.
    pub(crate) fn port_drops(
        &mut self,
        domain_id: u32,
    ) -> BTreeMap<u32, BTreeMap<DropReason, u64>> {
        self.send(DriverRequest::Drops { n: 1, domain_id });
        match self.answers.receive().unwrap() {
            (DriverResponse::Dropped { ports, .. }, _) => {
                ports.into_iter().map(|p| (p.node, p.dropped)).collect()
            }
            other => panic!("{other:?} is not the expected answer"),
        }
    }

    /// Waits for the next report of the hosts with tunnels.
    pub(crate) fn tunnels(&mut self) -> Vec<String> {
        match self.answers.receive().unwrap() {
            (DriverResponse::Tunnels { up, .. }, _) => up,
            other => panic!("{other:?} is not the expected answer"),
        }
    }

    /// Replaces the agent by one without state.
    pub(crate) fn restart(&mut self) {
        self.commands.shut_down();
        (self.answers, self.commands) = control_channel(&self.liveness);
        self.synced = 0;
    }

    pub(crate) fn stop(self) {
        self.liveness.shut_down();
        self.commands.shut_down();
        self.driver.join().unwrap().unwrap();
    }
}

/// A driver with nodes 0 to `N - 1`, which are members of [`BLUE`]; `None` without root.
pub(crate) fn blue<const N: usize>() -> Option<(Agent, [Node; N])> {
    is_root().then(|| {
        let mut agent = Agent::start();
        let nodes = std::array::from_fn(|x| Node::new(x as u8));
        agent.join(BLUE, &nodes);
        (agent, nodes)
    })
}

fn control_channel(liveness: &Writer) -> (Reader, Writer) {
    let channel = liveness::open_channel(liveness).unwrap();
    channel.set_read_timeout(Some(WATCHDOG)).unwrap();
    wire::split(channel).unwrap()
}
