//! How fast could any Ethernet driver in user space be? A relay between two TAPs that only reads
//! and writes, beside a veth pair: requests and responses over TCP, everything on one core, where
//! nobody has to wake another. Run it as root:
//!
//! ```sh
//! cargo run --release -p bench --example relay
//! ```

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use domains::netlink::Netlink;
use ethernet::offload::Capabilities;
use ethernet::tap::Tap;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sched::{CloneFlags, CpuSet, sched_setaffinity, setns, unshare};
use nix::unistd::Pid;

const VETH: &str = "veth";
const TAP: &str = "tap";
const MTU: u32 = 9000;

/// The addresses of client and server by veth, and by the relay.
const BY_VETH: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 62, 0, 1), Ipv4Addr::new(10, 62, 0, 2)];
const BY_RELAY: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 62, 1, 1), Ipv4Addr::new(10, 62, 1, 2)];

const REQUEST: usize = 32;
const RESPONSES: [usize; 3] = [1024, 16 * 1024, 64 * 1024];
const PORT: u16 = 7000;
const ROUNDS: usize = 5;
const SLICE: Duration = Duration::from_millis(300);

/// One end: a network namespace, which lives as long as this, and its TAP.
struct End {
    network: File,
    tap: Tap,
}

impl End {
    /// Makes it in a thread of its own, because that is what a namespace belongs to.
    fn make() -> Result<Self> {
        let make = || -> Result<Self> {
            unshare(CloneFlags::CLONE_NEWNET).context("only root can make namespaces")?;
            // BBR's timers would be what is measured.
            fs::write("/proc/sys/net/ipv4/tcp_congestion_control", "reno")?;
            let tap = Tap::open(TAP, Capabilities::all())?;
            fcntl(&tap, FcntlArg::F_SETFL(OFlag::empty()))?;
            let network = File::open("/proc/thread-self/ns/net")?;
            Ok(End { network, tap })
        };
        thread::spawn(make)
            .join()
            .ok()
            .context("a thread panicked")?
    }

    fn configure(&self, name: &str, address: Ipv4Addr) -> Result<()> {
        let mut netlink = Netlink::open_in(self.network.as_fd())?;
        let index = netlink.index(name)?;
        netlink.set_mtu(index, MTU)?;
        netlink.add_address(index, address.into(), 30)?;
        Ok(netlink.set_up(index)?)
    }

    fn enter(&self) -> Result<()> {
        Ok(setns(&self.network, CloneFlags::CLONE_NEWNET)?)
    }
}

fn main() -> Result<()> {
    let mut core = CpuSet::new();
    core.set(0)?;
    sched_setaffinity(Pid::from_raw(0), &core)?;
    let (client, server) = (End::make()?, End::make()?);
    Netlink::open_in(client.network.as_fd())?.create_veth(VETH, VETH, server.network.as_fd())?;
    for (n, end) in [&client, &server].into_iter().enumerate() {
        end.configure(VETH, BY_VETH[n])?;
        end.configure(TAP, BY_RELAY[n])?;
    }
    client.enter()?;
    let ends = Arc::new([client, server]);
    for n in [0, 1] {
        let ends = Arc::clone(&ends);
        thread::spawn(move || relay(&ends[n].tap, &ends[1 - n].tap));
    }
    thread::spawn(move || serve(&ends[1]));
    compare()
}

/// Nothing but this: no checks, no counters, no waiting for several at once.
fn relay(from: &Tap, to: &Tap) -> io::Result<()> {
    let mut packet = vec![0; 70_000];
    loop {
        let len = from.receive(&mut packet)?;
        // An interface may lose packets.
        let _ = to.send(&packet[..len]);
    }
}

/// Answers requests, which say how many KiB they want.
fn serve(end: &End) -> Result<()> {
    end.enter()?;
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, PORT))?;
    loop {
        let (mut stream, _) = listener.accept()?;
        stream.set_nodelay(true)?;
        thread::spawn(move || -> io::Result<()> {
            let (mut request, response) = ([0; REQUEST], vec![0; RESPONSES[2]]);
            loop {
                stream.read_exact(&mut request)?;
                let len = usize::from(request[0]) * 1024;
                stream.write_all(&response[..len])?;
            }
        });
    }
}

fn compare() -> Result<()> {
    println!("response   veth p50    relay p50   ratio");
    for len in RESPONSES {
        let (mut veth, mut relay) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            veth.extend(round_trips(BY_VETH[1], len)?);
            relay.extend(round_trips(BY_RELAY[1], len)?);
        }
        let (veth, relay) = (median_us(&mut veth), median_us(&mut relay));
        let (kib, ratio) = (len / 1024, relay / veth);
        println!("{kib:>4} KiB {veth:>8.1} us {relay:>9.1} us {ratio:>6.2}x");
    }
    Ok(())
}

fn round_trips(server: Ipv4Addr, len: usize) -> Result<Vec<Duration>> {
    let mut stream = connect(server)?;
    stream.set_nodelay(true)?;
    let mut request = [0; REQUEST];
    request[0] = u8::try_from(len / 1024)?;
    let (mut response, mut samples) = (vec![0; len], Vec::new());
    let start = Instant::now();
    while start.elapsed() < SLICE {
        let began = Instant::now();
        stream.write_all(&request)?;
        stream.read_exact(&mut response)?;
        samples.push(began.elapsed());
    }
    Ok(samples)
}

/// The server may just be starting.
fn connect(server: Ipv4Addr) -> io::Result<TcpStream> {
    for _ in 0..100 {
        if let Ok(stream) = TcpStream::connect((server, PORT)) {
            return Ok(stream);
        }
        thread::sleep(Duration::from_millis(10));
    }
    TcpStream::connect((server, PORT))
}

fn median_us(samples: &mut [Duration]) -> f64 {
    samples.sort_unstable();
    let middle = samples.get(samples.len() / 2);
    middle.map_or(f64::NAN, |sample| sample.as_nanos() as f64 / 1e3)
}
