//! The agent of a driver.

use std::cell::Cell;

use super::*;

/// Numbers of dropped frames by sender and reason.
type Drops<K> = BTreeMap<K, BTreeMap<DropReason, u64>>;

thread_local! {
    /// Network namespace in which frames pass without the driver, after the end of one in a test.
    static KERNEL: Cell<Option<File>> = const { Cell::new(None) };
}

/// Whether frames may pass without the driver in these tests. A second run of all sets this.
pub(crate) fn has_kernel_path() -> bool {
    std::env::var_os("TOROID_TEST_KERNEL_PATH").is_some_and(|value| !value.is_empty())
}

/// The agent's end of a driver that runs in a thread.
pub(crate) struct Agent {
    liveness: Writer,
    answers: Reader,
    commands: Writer,
    driver: JoinHandle<Result<(), DriverError>>,
    synced: u64,
    /// Network namespace in which frames pass without this driver.
    pub(crate) kernel: File,
}

impl Agent {
    pub(crate) fn start() -> Self {
        let (ours, drivers) = UnixStream::pair().unwrap();
        let liveness = wire::split(ours).unwrap().1;
        let (answers, commands) = control_channel(&liveness);
        let agent = Agent {
            liveness,
            answers,
            commands,
            driver: thread::spawn(|| driver::run(drivers)),
            synced: 0,
            kernel: KERNEL
                .take()
                .unwrap_or_else(|| namespace::create().unwrap()),
        };
        if has_kernel_path() {
            agent.offer_kernel_path();
        }
        agent
    }

    /// Gives the driver the namespace of the kernel path.
    pub(crate) fn offer_kernel_path(&self) {
        let namespaces = [self.kernel.as_fd()];
        let sent = self.commands.send(&DriverRequest::Kernel, &namespaces);
        sent.unwrap();
    }

    pub(crate) fn send(&self, command: DriverRequest) {
        self.commands.send(&command, &[]).unwrap();
    }

    pub(crate) fn add(&self, node: &Node, port: Port) {
        let (command, namespace) = (DriverRequest::AddPort(port), node.namespace.as_fd());
        self.commands.send(&command, &[namespace]).unwrap();
    }

    /// Adds the port of a node with changes.
    pub(crate) fn add_changed(&self, node: &Node, domain: u32, change: impl FnOnce(&mut Port)) {
        let mut port = node.port(domain);
        change(&mut port);
        self.add(node, port);
    }

    /// Makes all nodes members, and checks that their addresses are usable at once. In the past
    /// the kernel had not finished adding IPv6 addresses.
    pub(crate) fn join(&mut self, domain: u32, nodes: &[Node]) {
        for node in nodes {
            self.add(node, node.port(domain));
        }
        assert_eq!(self.sync(), []);
        for node in nodes {
            let address = ipv6(domain, node.x);
            let is_local = || Netlink::open().unwrap().is_local(address).unwrap();
            assert!(node.inside(is_local), "{address}");
        }
    }

    pub(crate) fn remove(&self, domain_id: u32, node: u32) {
        self.send(DriverRequest::RemovePort { domain_id, node });
    }

    pub(crate) fn raise_epoch(&self, domain_id: u32, epoch: u32) {
        self.send(DriverRequest::Epoch { domain_id, epoch });
    }

    /// Gives all links of a domain these properties, and single pairs others.
    pub(crate) fn set_links(
        &self,
        domain_id: u32,
        clocks: &File,
        default: &str,
        pairs: &[(&str, &str)],
    ) {
        let pairs = pairs.iter();
        let pairs = pairs.map(|(pair, link)| (pair.parse().unwrap(), link.parse().unwrap()));
        let links = DomainLinks {
            default: default.parse().unwrap(),
            pairs: pairs.collect(),
        };
        let command = DriverRequest::Links {
            domain_id,
            model: Some(LinkModel::Pairs(links)),
            precision: 30,
        };
        self.commands.send(&command, &[clocks.as_fd()]).unwrap();
    }

    /// Gives a domain the links of the machine.
    pub(crate) fn remove_links(&self, domain_id: u32) {
        self.send(DriverRequest::Links {
            domain_id,
            model: None,
            precision: 30,
        });
    }

    fn answer(&mut self) -> DriverResponse {
        self.answers.receive().unwrap().0
    }

    pub(crate) fn sync(&mut self) -> Vec<PortError> {
        self.synced += 1;
        self.send(DriverRequest::Sync { n: self.synced });
        match self.answer() {
            DriverResponse::Synced { n, errors, .. } if n == self.synced => errors,
            other => panic!("{other:?} is not the expected answer"),
        }
    }

    /// Retains these ports, and tunnels to these hosts only. Returns the hosts with tunnels.
    pub(crate) fn retain(&mut self, ports: &[(u32, u32)], hosts: &[&str]) -> Vec<String> {
        self.send(DriverRequest::Retain {
            ports: ports.to_vec(),
            hosts: hosts.iter().map(|host| (*host).into()).collect(),
            rdma: None,
            sealed: false,
        });
        self.tunnels()
    }

    pub(crate) fn add_remote(&self, host: &str, port: Port) {
        let host = host.into();
        self.send(DriverRequest::AddRemote { host, port });
    }

    /// Gives the driver a tunnel. Returns the hosts with tunnels.
    pub(crate) fn connect(&mut self, host: &str, socket: TcpStream) -> Vec<String> {
        let host = host.into();
        let command = DriverRequest::Tunnel {
            host,
            asks: false,
            keys: None,
        };
        self.commands.send(&command, &[socket.as_fd()]).unwrap();
        self.tunnels()
    }

    /// Dropped frames of members, by node number, and of other hosts.
    pub(crate) fn drops(&mut self, domain_id: u32) -> (Drops<u32>, Drops<String>) {
        self.send(DriverRequest::Drops { n: 1, domain_id });
        match self.answer() {
            DriverResponse::Dropped { ports, hosts, .. } => {
                let ports = ports.into_iter().map(|port| (port.node, port.dropped));
                (ports.collect(), hosts)
            }
            other => panic!("{other:?} is not the expected answer"),
        }
    }

    /// Waits for the next report of the hosts with tunnels.
    pub(crate) fn tunnels(&mut self) -> Vec<String> {
        match self.answer() {
            DriverResponse::Tunnels { up, .. } => up,
            other => panic!("{other:?} is not the expected answer"),
        }
    }

    /// Replaces the agent by one without state.
    pub(crate) fn restart(&mut self) {
        self.commands.shut_down();
        (self.answers, self.commands) = control_channel(&self.liveness);
        self.synced = 0;
    }

    /// Gives the driver this memory of deadlines.
    pub(crate) fn set_deadlines(&self, memory: &File) {
        let command = DriverRequest::Deadlines;
        self.commands.send(&command, &[memory.as_fd()]).unwrap();
    }

    /// Waits until the driver ends by itself.
    pub(crate) fn outlast(mut self) -> Result<(), DriverError> {
        assert!(self.answers.receive::<DriverResponse>().is_err());
        self.driver.join().unwrap()
    }

    pub(crate) fn stop(self) {
        self.liveness.shut_down();
        self.commands.shut_down();
        self.driver.join().unwrap().unwrap();
        KERNEL.set(Some(self.kernel));
    }
}

/// A driver with nodes 0 to `N - 1`, which are members of [`BLUE`]; `None` without root.
pub(crate) fn blue<const N: usize>() -> Option<(Agent, [Node; N])> {
    is_root().then(|| {
        let mut agent = Agent::start();
        let nodes = std::array::from_fn(|x| Node::new(x as u8));
        agent.join(BLUE, &nodes);
        // Until then the kernel may drop what an interface that is up sends.
        for pair in nodes.windows(2) {
            assert!(reaches(&pair[0], &pair[1], BLUE), "no connection");
        }
        (agent, nodes)
    })
}

fn control_channel(liveness: &Writer) -> (Reader, Writer) {
    let channel = liveness::open_channel(liveness).unwrap();
    channel.set_read_timeout(Some(WATCHDOG)).unwrap();
    wire::split(channel).unwrap()
}
