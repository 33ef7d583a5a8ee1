//! Requests and responses over TCP through [`bench::relay`] and through a veth pair, all on one
//! core, where no process wakes another core. Run as root:
//!
//! ```sh
//! cargo run --release -p bench --example relay
//! ```

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use bench::pair;
use bench::relay::Relay;
use bench::stats::median;
use nix::sched::{CloneFlags, CpuSet, sched_setaffinity, setns, unshare};
use nix::unistd::Pid;
use toroid_ethernet::offload::Capabilities;
use toroid_netlink::Netlink;

const VETH: &str = "veth";
const TAP: &str = "tap";
const MTU: u32 = 9000;

/// Addresses of client and server over veth.
const BY_VETH: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 62, 0, 1), Ipv4Addr::new(10, 62, 0, 2)];
const BY_RELAY: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 62, 1, 1), Ipv4Addr::new(10, 62, 1, 2)];

const REQUEST: usize = 32;
const RESPONSES: [usize; 3] = [1024, 16 * 1024, 64 * 1024];
const PORT: u16 = 7000;
const ROUNDS: usize = 5;
const SLICE: Duration = Duration::from_millis(300);

/// Creates a network namespace, which lives as long as its descriptor, in a separate thread,
/// because a namespace belongs to a thread.
fn make_network() -> Result<File> {
    let make = || -> Result<File> {
        unshare(CloneFlags::CLONE_NEWNET).context("only root can make namespaces")?;
        // BBR would add its timers to the figures.
        fs::write("/proc/sys/net/ipv4/tcp_congestion_control", "reno")?;
        Ok(File::open("/proc/thread-self/ns/net")?)
    };
    thread::spawn(make)
        .join()
        .ok()
        .context("a thread panicked")?
}

fn enter(network: &File) -> Result<()> {
    Ok(setns(network, CloneFlags::CLONE_NEWNET)?)
}

fn main() -> Result<()> {
    let mut core = CpuSet::new();
    core.set(0)?;
    sched_setaffinity(Pid::from_raw(0), &core)?;
    let (client, server) = (make_network()?, make_network()?);
    let networks = [&client, &server];
    Netlink::open_in(client.as_fd())?.create_veth(VETH, VETH, server.as_fd())?;
    pair::configure(VETH, networks, MTU, BY_VETH)?;
    let _relay = Relay::start(TAP, networks, Capabilities::all())?;
    pair::configure(TAP, networks, MTU, BY_RELAY)?;
    enter(&client)?;
    thread::spawn(move || serve(&server));
    compare()
}

/// Answers requests, which name the response's length in KiB.
fn serve(network: &File) -> Result<()> {
    enter(network)?;
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
        let [veth, relay] = [veth, relay].map(|samples| median(&samples).unwrap_or(f64::NAN));
        let (kib, ratio) = (len / 1024, relay / veth);
        println!("{kib:>4} KiB {veth:>8.1} us {relay:>9.1} us {ratio:>6.2}x");
    }
    Ok(())
}

/// Times of round trips in microseconds.
fn round_trips(server: Ipv4Addr, len: usize) -> Result<Vec<f64>> {
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
        samples.push(began.elapsed().as_nanos() as f64 / 1e3);
    }
    Ok(samples)
}

/// Connects, and retries while the server starts.
fn connect(server: Ipv4Addr) -> io::Result<TcpStream> {
    for _ in 0..100 {
        if let Ok(stream) = TcpStream::connect((server, PORT)) {
            return Ok(stream);
        }
        thread::sleep(Duration::from_millis(10));
    }
    TcpStream::connect((server, PORT))
}
