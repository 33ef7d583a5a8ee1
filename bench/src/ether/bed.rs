//! The nodes and all paths between them.
//!
//! The first node sends and the second receives; tests with many receivers or members use the nodes
//! after them. The pair has a domain by the driver and one by the kernel, a relay, a bridge of the kernel and a veth pair for each link.
//! All are in the same two network namespaces, so that only the path differs, not the congestion
//! control. The bridges are in a namespace of their own.

use std::collections::HashMap;
use std::fs::File;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::AsFd;
use std::time::Duration;

use serde::de::DeserializeOwned;
use toroid_ethernet::offload::Capabilities;
use toroid_fabric::Torus;
use toroid_model::ethernet::EthernetPath;
use toroid_netlink::{Netlink, NetlinkError, namespace};
use toroid_protocol::agent::NewDomain;

use super::plan::{Delivery, IDLE, Key, LINKS, Link, RECEIVERS, Test, USERSPACE_LINKS, USUAL};
use super::search::Search;
use crate::cluster::{Cluster, ClusterError, Process, check_tun, member};
use crate::features;
use crate::machine::busy_time;
use crate::pair;
use crate::plan::Path;
use crate::relay::Relay;
use crate::roles;
use crate::samples::Samples;
use crate::worker::network::Transport;
use crate::worker::network::flood::{Flood, Flow};
use crate::worker::sampler::Pace;
use crate::worker::{Job, Order};

/// A pair and 64 more nodes.
const TORUS: [u16; 3] = [11, 6, 1];

/// The domains of one sender and many receivers.
const CROWDS: [(Path, &str, EthernetPath); 2] = [
    (Path::Toroid, "crowd", EthernetPath::Driver),
    (Path::ToroidKernel, "direct-crowd", EthernetPath::Kernel),
];

/// The multicast group in the crowd.
const GROUP: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(239, 1, 2, 3), 7000);

/// Bytes of a datagram's headers: Ethernet, IPv4, UDP.
const HEADERS: usize = 14 + 20 + 8;

/// Start of the first search, in datagrams per second: a rate that every path carries.
const CAREFUL: f64 = 50_000.0;

/// A rate above that of any sender, in datagrams per second.
const UNBOUNDED: f64 = 1e7;

/// Nodes, processes in them, and paths between them.
pub struct Bed {
    // Processes and relays end before the cluster.
    sender: Process,
    _receivers: Vec<Process>,
    _relays: Vec<Relay>,
    /// The network namespace of all bridges, which ends with its descriptor.
    _bridges: File,
    cluster: Cluster,
    /// Address of the second node's server by path and link.
    servers: HashMap<(Path, Link), SocketAddrV4>,
    crowds: HashMap<Path, Crowd>,
    /// Address of the second node's server by the number of idle members in the domain.
    beside: HashMap<u32, SocketAddrV4>,
    /// Start rates of searches.
    rates: HashMap<Key, f64>,
}

/// A domain of one sender and many receivers.
struct Crowd {
    name: &'static str,
    /// The sender's address.
    speaker: Ipv4Addr,
    /// Addresses of all receivers' servers.
    servers: Vec<SocketAddrV4>,
}

impl Bed {
    /// Starts nodes, paths and processes.
    pub fn prepare() -> Result<Self, ClusterError> {
        if !nix::unistd::geteuid().is_root() {
            let action = "put other interfaces beside those of a domain";
            return Err(ClusterError::NotRoot { action });
        }
        check_tun()?;
        let [x, y, z] = TORUS;
        let mut cluster = Cluster::start(Torus::new(x, y, z)?, Some(roles::DRIVER))?;
        let infos = cluster.control()?.nodes()?;
        let nodes: Vec<String> = infos.iter().map(|node| node.place.to_string()).collect();
        let mut sender = cluster.worker(&nodes[0])?;
        let mut receivers = Vec::new();
        for node in &nodes[1..=RECEIVERS] {
            receivers.push(cluster.worker(node)?);
        }
        let mut userspace = Vec::new();
        for link in USERSPACE_LINKS {
            let pair = [&mut sender, &mut receivers[0]];
            let at = open_userspace_stacks(&mut cluster, &nodes[..2], pair, link)?;
            userspace.push((link, at));
        }
        let mut ports = Vec::new();
        for receiver in &mut receivers {
            ports.push(cluster.ask::<u16>(receiver, &Order::Serve)?);
        }

        let mut servers = HashMap::new();
        let mut serve = |path, link, address| {
            servers.insert((path, link), SocketAddrV4::new(address, ports[0]));
        };
        for (link, address) in userspace {
            serve(Path::Smoltcp, link, address);
        }
        let mut relays = Vec::new();
        let bridges = namespace::create().map_err(ClusterError::ours)?;
        let networks = [cluster.network(&nodes[0])?, cluster.network(&nodes[1])?];
        for (n, link) in (0..).zip(LINKS) {
            let paths = [
                (Path::Toroid, "ether", EthernetPath::Driver),
                (Path::ToroidKernel, "direct", EthernetPath::Kernel),
            ];
            // Members without offload need the driver.
            for (path, kind, ethernet) in &paths[..if link.offload { 2 } else { 1 }] {
                let domain = NewDomain {
                    ethernet: *ethernet,
                    ..new_domain(&name(kind, link), &nodes[..2], link)
                };
                let domain = cluster.control()?.create_domain(domain)?;
                serve(*path, link, member(&domain, &nodes[1])?.ipv4);
            }
            relays.push(relay(&networks, link, addresses(3 * n))?);
            serve(Path::Relay, link, addresses(3 * n)[1]);
            bridge(&bridges, &networks, link, addresses(3 * n + 1))?;
            serve(Path::Bridge, link, addresses(3 * n + 1)[1]);
            veth(&networks, link, addresses(3 * n + 2))?;
            serve(Path::Veth, link, addresses(3 * n + 2)[1]);
        }
        let mut crowds = HashMap::new();
        for (path, name, ethernet) in CROWDS {
            let crowd = NewDomain {
                ethernet,
                ..new_domain(name, &nodes[..=RECEIVERS], USUAL)
            };
            let crowd = cluster.control()?.create_domain(crowd)?;
            let speaker = member(&crowd, &nodes[0])?.ipv4;
            let server = |(node, port): (&String, &u16)| {
                Ok(SocketAddrV4::new(member(&crowd, node)?.ipv4, *port))
            };
            let servers = nodes[1..].iter().zip(&ports).map(server);
            let servers = servers.collect::<Result<_, ClusterError>>()?;
            let crowd = Crowd {
                name,
                speaker,
                servers,
            };
            crowds.insert(path, crowd);
        }
        // One domain for each number: a domain is busy for a while after a change.
        let mut beside = HashMap::new();
        for idle in IDLE {
            let all = &nodes[..2 + idle as usize];
            let idlers = new_domain(&format!("idlers-{idle}"), all, USUAL);
            let idlers = cluster.control()?.create_domain(idlers)?;
            let server = SocketAddrV4::new(member(&idlers, &nodes[1])?.ipv4, ports[0]);
            beside.insert(idle, server);
        }
        Ok(Bed {
            sender,
            _receivers: receivers,
            _relays: relays,
            _bridges: bridges,
            cluster,
            servers,
            crowds,
            beside,
            rates: HashMap::new(),
        })
    }

    /// The shape of the torus.
    pub fn torus() -> String {
        TORUS.map(|size| size.to_string()).join("x")
    }

    /// TCP's congestion control in the nodes.
    pub fn congestion_control(&mut self) -> Result<String, ClusterError> {
        self.ask(&Order::CongestionControl)
    }

    /// Measures once for `time`; in a search of a rate that is the time of each trial.
    pub fn measure(&mut self, key: &Key, time: Duration) -> Result<Samples, ClusterError> {
        let server = self.server(key)?;
        let (transport, bytes) = (Transport::Tcp, key.write_bytes());
        let pace = |batch| Pace { time, batch };
        let flood = |per_s| Flood {
            bytes,
            per_s,
            ..Flood::to(server, time)
        };
        match key.test {
            Test::TcpStream => {
                let before = busy_time();
                let job = match key.streams {
                    Some(streams @ 2..) => Job::Streams(server, bytes, streams),
                    _ => Job::Stream(server, transport, bytes),
                };
                let order = job.order(0, pace(None));
                let samples: Samples = self.ask(&order)?;
                let busy = before.and_then(|before| busy_time()?.checked_sub(before));
                let received = samples.bytes.max(1) as f64;
                let bits_per_s = received * 8e9 / samples.elapsed_ns.max(1) as f64;
                let cpu_ns = busy.map(|busy| busy.as_nanos() as f64 / received);
                Ok(samples
                    .with("bits_per_s", bits_per_s)
                    .with("cpu_ns_per_byte", cpu_ns))
            }
            Test::TcpRr => {
                let order = Job::RoundTrips(server, transport, bytes).order(0, pace(Some(1)));
                let samples: Samples = self.ask(&order)?;
                // A sample of round trips is half of one.
                let half = samples.quantile_ns(0.5);
                Ok(samples.with("p50_ns", half.map(|ns| 2.0 * ns)))
            }
            Test::UdpPps => self.search(key, flood(0.0)),
            Test::UdpFlood => {
                let flow: Flow = self.ask(&Order::Flood(flood(UNBOUNDED)))?;
                Ok(Samples::errors(flow.errors)
                    .with("bits_per_s", flow.received_per_s() * bytes as f64 * 8.0)
                    .with("lost", flow.loss()))
            }
            Test::Multicast => {
                let crowd = self.crowds.get(&key.path).ok_or(ClusterError::NoServer)?;
                let flood = Flood {
                    servers: crowd.servers.clone(),
                    group: (key.delivery == Some(Delivery::Multicast)).then_some(GROUP),
                    interface: crowd.speaker,
                    ..flood(0.0)
                };
                self.search(key, flood)
            }
        }
    }

    fn server(&self, key: &Key) -> Result<SocketAddrV4, ClusterError> {
        let server = match key.idle_members {
            Some(members) => self.beside.get(&members),
            None => self.servers.get(&(key.path, key.link)),
        };
        server.copied().ok_or(ClusterError::NoServer)
    }

    fn ask<A: DeserializeOwned>(&mut self, order: &Order) -> Result<A, ClusterError> {
        self.cluster.ask(&mut self.sender, order)
    }

    /// Searches the highest rate with little loss, starting at the result of the last search.
    fn search(&mut self, key: &Key, flood: Flood) -> Result<Samples, ClusterError> {
        let start = self.rates.get(key).copied().unwrap_or(CAREFUL);
        let (mut search, mut best) = (Search::from(start), Samples::default());
        while let Some(per_s) = search.next() {
            let flood = flood.clone();
            let order = Order::Flood(Flood { per_s, ..flood });
            let before = self.bytes_sent(key)?;
            let flow: Flow = self.ask(&order)?;
            let bytes = self.bytes_sent(key)? - before;
            best.errors += flow.errors;
            let (loss, sent_per_s) = (flow.loss(), flow.sent_per_s());
            let pps = flow.received_per_s();
            let is_best = best.figure("pps").is_none_or(|best| pps > best);
            if search.tried(loss, sent_per_s) && is_best {
                self.rates.insert(*key, sent_per_s);
                let copies_sent = key.delivery.map(|delivery| {
                    let messages = match delivery {
                        Delivery::Unicast => flow.sent / RECEIVERS as u64,
                        Delivery::Multicast => flow.sent,
                    };
                    let frame = (key.write_bytes() + HEADERS) as u64;
                    // Rounded: frames of the sessions' beginning and end count, too.
                    let hundredths = 100 * bytes / (frame * messages).max(1);
                    hundredths as f64 / 100.0
                });
                best = best
                    .with("pps", pps)
                    .with("bits_per_s", pps * key.write_bytes() as f64 * 8.0)
                    .with("copies_sent", copies_sent);
            }
        }
        Ok(best)
    }

    /// Bytes sent by the sender's interface in the crowd; 0 for other tests.
    fn bytes_sent(&mut self, key: &Key) -> Result<u64, ClusterError> {
        match self
            .crowds
            .get(&key.path)
            .filter(|_| key.delivery.is_some())
        {
            Some(crowd) => self.ask(&Order::BytesSent(crowd.name.into())),
            None => Ok(0),
        }
    }
}

// There is a node for every idle member.
const _: () = assert!((TORUS[0] * TORUS[1] * TORUS[2]) as u32 == 2 + IDLE[3]);

fn new_domain(name: &str, nodes: &[String], link: Link) -> NewDomain {
    NewDomain {
        name: name.into(),
        nodes: nodes.into(),
        plain: if link.offload { &[] } else { nodes }.into(),
        mtu: Some(link.mtu),
        ethernet: EthernetPath::Driver,
        ..NewDomain::default()
    }
}

/// Opens userspace stacks of two processes in a new domain. Returns the second stack's address.
fn open_userspace_stacks(
    cluster: &mut Cluster,
    nodes: &[String],
    processes: [&mut Process; 2],
    link: Link,
) -> Result<Ipv4Addr, ClusterError> {
    let domain = NewDomain {
        stacks: nodes.into(),
        ..new_domain(&name("stack", link), nodes, link)
    };
    let domain = cluster.control()?.create_domain(domain)?;
    for process in processes {
        let domain = domain.name.clone();
        let () = cluster.ask(process, &Order::UseStack(domain))?;
    }
    Ok(member(&domain, &nodes[1])?.ipv4)
}

fn relay(
    networks: &[File; 2],
    link: Link,
    addresses: [Ipv4Addr; 2],
) -> Result<Relay, ClusterError> {
    let (name, model) = (name("relay", link), name("ether", link));
    let capabilities = if link.offload {
        Capabilities::all()
    } else {
        Capabilities::empty()
    };
    let relay =
        Relay::start(&name, networks.each_ref(), capabilities).map_err(ClusterError::ours)?;
    pair::configure(&name, networks.each_ref(), link.mtu, addresses)
        .and_then(|()| pair::queue_like(&model, &name, networks.each_ref()))
        .map_err(ClusterError::ours)?;
    Ok(relay)
}

fn veth(networks: &[File; 2], link: Link, addresses: [Ipv4Addr; 2]) -> Result<(), ClusterError> {
    let name = name("veth", link);
    let [near, far] = networks;
    Netlink::open_in(near.as_fd())
        .and_then(|mut netlink| netlink.create_veth(&name, &name, far.as_fd()))
        .map_err(ClusterError::ours)?;
    configure(&name, networks, link, addresses)
}

/// Connects both nodes to a bridge of the kernel that admits each node's own MAC address only.
fn bridge(
    bridges: &File,
    networks: &[File; 2],
    link: Link,
    addresses: [Ipv4Addr; 2],
) -> Result<(), ClusterError> {
    let name = name("bridge", link);
    let connect = || -> Result<(), NetlinkError> {
        let mut netlink = Netlink::open_in(bridges.as_fd())?;
        netlink.create_bridge(&name)?;
        let bridge = netlink.index(&name)?;
        for (end, network) in ["near", "far"].into_iter().zip(networks) {
            let port = self::name(end, link);
            netlink.create_veth(&port, &name, network.as_fd())?;
            let port = netlink.index(&port)?;
            netlink.set_mtu(port, link.mtu)?;
            let member = Netlink::open_in(network.as_fd())?.link(&name)?;
            let mac = member.mac.as_slice().try_into().unwrap_or_default();
            netlink.add_locked_port(bridge, port, mac)?;
        }
        netlink.set_up(bridge)
    };
    connect().map_err(ClusterError::ours)?;
    configure(&name, networks, link, addresses)
}

/// Configures both ends of a path of the kernel alone.
fn configure(
    name: &str,
    networks: &[File; 2],
    link: Link,
    addresses: [Ipv4Addr; 2],
) -> Result<(), ClusterError> {
    if !link.offload {
        for network in networks {
            features::switch_off(network, name, &features::OFFLOADS).map_err(ClusterError::ours)?;
        }
    }
    pair::configure(name, networks.each_ref(), link.mtu, addresses).map_err(ClusterError::ours)
}

/// Name of an interface, at most 15 characters.
fn name(kind: &str, link: Link) -> String {
    let no_offload = if link.offload { "" } else { "p" };
    format!("{kind}-{}{no_offload}", link.mtu)
}

/// Addresses of both ends of pair `n`, outside of the subnets of domains.
fn addresses(n: u8) -> [Ipv4Addr; 2] {
    [1, 2].map(|end| Ipv4Addr::new(10, 62, n, end))
}
