//! Nodes, and sockets in them.

use super::*;

/// A network namespace, at place `x,0,0`.
pub(crate) struct Node {
    pub(crate) namespace: File,
    pub(crate) x: u8,
}

impl Node {
    pub(crate) fn new(x: u8) -> Self {
        let make = || {
            unshare(CloneFlags::CLONE_NEWNET).unwrap();
            let mut netlink = Netlink::open().unwrap();
            let loopback = netlink.index("lo").unwrap();
            netlink.set_up(loopback).unwrap();
            File::open("/proc/thread-self/ns/net").unwrap()
        };
        let namespace = thread::spawn(make).join().unwrap();
        Node { namespace, x }
    }

    /// Runs `work` in this node; its sockets stay there.
    pub(crate) fn inside<R: Send>(&self, work: impl FnOnce() -> R + Send) -> R {
        thread::scope(|scope| {
            let enter = || {
                setns(&self.namespace, CloneFlags::CLONE_NEWNET).unwrap();
                work()
            };
            scope.spawn(enter).join().unwrap()
        })
    }

    pub(crate) fn port(&self, domain: u32) -> Port {
        let place = place(self.x);
        Port {
            node: self.x.into(),
            place,
            domain_id: domain,
            epoch: 1,
            ifname: format!("d{domain}"),
            mac: addressing::mac(domain as u16, place),
            ipv4: match ipv4(domain, self.x) {
                IpAddr::V4(address) => address,
                IpAddr::V6(_) => unreachable!(),
            },
            prefix: 24,
            nodes: 8,
            ipv6: addressing::ipv6(domain as u16, place),
            ipv6_prefix: addressing::IPV6_PREFIX,
            offload: true,
            mtu: 9000,
            limited: false,
            gateway: None,
            forward: false,
            stack: false,
            rate: None,
            kernel: has_kernel_path(),
        }
    }

    /// Number of interfaces, including the loopback.
    pub(crate) fn links(&self) -> usize {
        let list = || std::fs::read_to_string("/proc/thread-self/net/dev").unwrap();
        // Two lines of headings.
        self.inside(list).lines().count() - 2
    }

    /// An interface, as if it had begun to send, which it does some time after it is up.
    pub(crate) fn link(&self, name: &str) -> Option<Link> {
        let link = self.inside(|| Netlink::open().unwrap().link(name).ok())?;
        let is_operational = true;
        Some(Link {
            is_operational,
            ..link
        })
    }
}

/// A UDP socket with a read timeout.
pub(crate) struct Udp(pub(crate) UdpSocket);

impl Udp {
    pub(crate) fn bind(address: SocketAddr) -> Self {
        let socket = UdpSocket::bind(address).unwrap();
        socket.set_read_timeout(Some(WATCHDOG)).unwrap();
        Udp(socket)
    }

    pub(crate) fn local_addr(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }

    pub(crate) fn send_to(&self, bytes: &[u8], to: SocketAddr) {
        assert_eq!(self.0.send_to(bytes, to).unwrap(), bytes.len());
    }

    pub(crate) fn receive(&self) -> Vec<u8> {
        let mut bytes = vec![0; 1 << 16];
        let len = self.0.recv(&mut bytes).unwrap();
        bytes.truncate(len);
        bytes
    }

    /// Receives all datagrams that have come. Returns their number.
    pub(crate) fn discard(&self) -> u32 {
        self.0.set_nonblocking(true).unwrap();
        let received = iter::from_fn(|| self.0.recv(&mut [0; 1]).ok()).count();
        self.0.set_nonblocking(false).unwrap();
        received as u32
    }
}

pub(crate) fn place(x: u8) -> Place {
    Place { x, y: 0, z: 0 }
}

pub(crate) fn ipv4(domain: u32, x: u8) -> IpAddr {
    let subnet = if domain == BLUE { 0 } else { 1 };
    [10, 64, subnet, x + 1].into()
}

pub(crate) fn ipv6(domain: u32, x: u8) -> IpAddr {
    addressing::ipv6(domain as u16, place(x)).into()
}

/// A receiver at `to` in one node and a sender in another.
pub(crate) fn udp(at: &Node, from: &Node, to: IpAddr) -> [Udp; 2] {
    let any: IpAddr = match to {
        IpAddr::V4(_) => [0; 4].into(),
        IpAddr::V6(_) => [0; 16].into(),
    };
    [
        at.inside(|| Udp::bind(SocketAddr::new(to, 0))),
        from.inside(|| Udp::bind(SocketAddr::new(any, 0))),
    ]
}

/// A TCP connection from one node to another: both ends.
pub(crate) fn connect(from: &Node, to: &Node, address: IpAddr) -> [TcpStream; 2] {
    let listener = to.inside(|| TcpListener::bind(SocketAddr::new(address, 0)).unwrap());
    let server = listener.local_addr().unwrap();
    let client = from.inside(|| TcpStream::connect_timeout(&server, WATCHDOG).unwrap());
    let ends = [client, listener.accept().unwrap().0];
    for end in &ends {
        end.set_read_timeout(Some(WATCHDOG)).unwrap();
        end.set_write_timeout(Some(WATCHDOG)).unwrap();
    }
    ends
}

/// Sends bytes over a TCP connection between two nodes, and checks them at the other end.
pub(crate) fn stream(from: &Node, to: &Node, address: IpAddr, len: usize) {
    let [mut client, mut server] = connect(from, to, address);
    let block: Vec<u8> = (0..1 << 16).map(|n: u32| ((n * 31) >> 8) as u8).collect();
    let sent = block.repeat(len / block.len());
    let receiving = thread::spawn(move || {
        let mut received = Vec::new();
        server.read_to_end(&mut received).map(|_| received)
    });
    client.write_all(&sent).unwrap();
    drop(client);
    assert!(receiving.join().unwrap().unwrap() == sent);
}

/// Whether a TCP connection over IPv6 succeeds. After an unanswered query the kernel repeats it at
/// its own pace, or fails waiting packets at once, so there are several attempts.
pub(crate) fn reaches(from: &Node, to: &Node, domain: u32) -> bool {
    let deadline = Instant::now() + WATCHDOG;
    while Instant::now() < deadline {
        if connects(from, to, domain, WATCHDOG) {
            return true;
        }
        thread::sleep(Duration::from_millis(10));
    }
    false
}

/// Whether no TCP connection succeeds within a second, which is long for a possible one.
pub(crate) fn is_cut(from: &Node, to: &Node, domain: u32) -> bool {
    !connects(from, to, domain, Duration::from_secs(1))
}

fn connects(from: &Node, to: &Node, domain: u32, timeout: Duration) -> bool {
    let Ok(listener) = to.inside(|| TcpListener::bind("[::]:0")) else {
        return false;
    };
    let port = listener.local_addr().unwrap().port();
    let server = SocketAddr::new(ipv6(domain, to.x), port);
    from.inside(|| TcpStream::connect_timeout(&server, timeout).is_ok())
}

pub(crate) fn eventually(mut happens: impl FnMut() -> bool) {
    let deadline = Instant::now() + WATCHDOG;
    while !happens() {
        assert!(Instant::now() < deadline, "the condition never held");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Whether these tests can run.
pub(crate) fn is_root() -> bool {
    let root = std::fs::metadata("/proc/self").unwrap().uid() == 0;
    let asked = std::env::var_os("CI").is_some_and(|value| value == "true");
    assert!(root || !asked, "CI=true asks for tests that need root");
    if !root {
        eprintln!("nothing was tested: this needs root");
    }
    root
}

/// Number of repetitions of a story: normally so many, and 1,000 at night.
pub(crate) fn repeats(normally: usize) -> usize {
    let nightly = std::env::var_os("TOROID_TEST_NIGHTLY");
    nightly.map_or(
        normally,
        |value| if value.is_empty() { normally } else { 1000 },
    )
}
