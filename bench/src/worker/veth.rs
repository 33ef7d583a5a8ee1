//! The baseline of Ethernet: a kernel veth pair with default settings between the same two nodes.
//!
//! The creator of the pair must be root over both nodes. If nodes have private user ids, that is
//! root of the host. Otherwise a process of one node lends its network namespace through a unix
//! socket, and a process of the other node creates the pair. Each node configures its own end.

use std::fs::File;
use std::net::Ipv4Addr;
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::Command;
use std::thread;

use anyhow::{Context, anyhow, bail};
use toroid_netlink::Netlink;
use toroid_protocol::wire;

/// The interface's name at both ends.
pub const NAME: &str = "kernel-veth";

/// Address of the lender's end, outside of the subnets of domains.
pub const LENDER: Ipv4Addr = Ipv4Addr::new(10, 63, 0, 1);

/// Address of the creator's end.
pub const CREATOR: Ipv4Addr = Ipv4Addr::new(10, 63, 0, 2);

const PREFIX: u8 = 30;

/// Least bytes of a token bucket.
const BUCKET: u64 = 2 * 1514;

/// Bytes that wait for tokens: more than a TCP socket leaves there.
const QUEUE: u64 = 4 << 20;

/// Lends this process's network namespace to the first process that connects to `socket`.
pub fn lend(socket: &Path) -> anyhow::Result<()> {
    let namespace = File::open("/proc/self/ns/net")?;
    let listener = UnixListener::bind(socket)?;
    thread::Builder::new().spawn(move || -> anyhow::Result<()> {
        let (stream, _) = listener.accept()?;
        let (_, writer) = wire::split(stream)?;
        Ok(writer.send(&(), &[namespace.as_fd()])?)
    })?;
    Ok(())
}

/// Creates the pair between this namespace and the namespace lent at `socket`.
pub fn create(socket: &Path) -> anyhow::Result<()> {
    let (mut reader, _) = wire::split(UnixStream::connect(socket)?)?;
    let ((), descriptors) = reader.receive()?;
    let namespace = descriptors.first().context("no network namespace came")?;
    Ok(Netlink::open()?.create_veth(NAME, NAME, namespace.as_fd())?)
}

/// Creates the pair between two namespaces, from outside.
pub fn create_between(namespaces: [&File; 2]) -> anyhow::Result<()> {
    let [near, far] = namespaces.map(AsFd::as_fd);
    Ok(Netlink::open_in(near)?.create_veth(NAME, NAME, far)?)
}

/// Configures the end of the pair in this namespace.
pub fn configure(address: Ipv4Addr) -> anyhow::Result<()> {
    let mut netlink = Netlink::open()?;
    let index = netlink.index(NAME)?;
    netlink.add_address(index, address.into(), PREFIX)?;
    Ok(netlink.set_up(index)?)
}

/// Version of `tc`, the program that limits interfaces.
pub fn tc_version() -> anyhow::Result<String> {
    let version = tc(&["-V"])?;
    Ok(version.trim_end().into())
}

/// Limits what this end sends by a token bucket filter (tc-tbf(8)), in bits per second, or no
/// longer.
pub fn limit(bits_per_s: Option<u64>) -> anyhow::Result<()> {
    let Some(rate) = bits_per_s else {
        return tc(&["qdisc", "delete", "dev", NAME, "root"]).map(drop);
    };
    // A millisecond, but at least two frames: a larger bucket would be a burst at the start.
    let burst = (rate / 8 / 1000).max(BUCKET).to_string();
    let (rate, queue) = (format!("{rate}bit"), QUEUE.to_string());
    let bucket = ["tbf", "rate", &rate, "burst", &burst, "limit", &queue];
    let qdisc = ["qdisc", "replace", "dev", NAME, "root"];
    tc(&[&qdisc[..], &bucket].concat()).map(drop)
}

/// Runs `tc`. Returns its output.
fn tc(arguments: &[&str]) -> anyhow::Result<String> {
    // The PATH of ordinary users lacks the directories of administration.
    let path = std::env::var("PATH").unwrap_or_default();
    let output = Command::new("tc")
        .args(arguments)
        .env("PATH", format!("{path}:/usr/sbin:/sbin"))
        .output()
        .map_err(|error| anyhow!("cannot run tc: {error}; it is in the package iproute2"))?;
    if !output.status.success() {
        let reason = String::from_utf8_lossy(&output.stderr);
        bail!("tc {}: {}", arguments.join(" "), reason.trim_end());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
