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
use std::thread;

use anyhow::{Context, Result};
use toroid_netlink::Netlink;
use toroid_protocol::wire;

/// The interface's name at both ends.
pub const NAME: &str = "kernel-veth";

/// Address of the lender's end, outside of the subnets of domains.
pub const LENDER: Ipv4Addr = Ipv4Addr::new(10, 63, 0, 1);

/// Address of the creator's end.
pub const CREATOR: Ipv4Addr = Ipv4Addr::new(10, 63, 0, 2);

const PREFIX: u8 = 30;

/// Lends this process's network namespace to the first process that connects to `socket`.
pub fn lend(socket: &Path) -> Result<()> {
    let namespace = File::open("/proc/self/ns/net")?;
    let listener = UnixListener::bind(socket)?;
    thread::Builder::new().spawn(move || -> Result<()> {
        let (stream, _) = listener.accept()?;
        let (_, writer) = wire::split(stream)?;
        Ok(writer.send(&(), &[namespace.as_fd()])?)
    })?;
    Ok(())
}

/// Creates the pair between this namespace and the namespace lent at `socket`.
pub fn create(socket: &Path) -> Result<()> {
    let (mut reader, _) = wire::split(UnixStream::connect(socket)?)?;
    let ((), descriptors) = reader.receive()?;
    let namespace = descriptors.first().context("no network namespace came")?;
    Ok(Netlink::open()?.create_veth(NAME, NAME, namespace.as_fd())?)
}

/// Creates the pair between two namespaces, from outside.
pub fn create_between(namespaces: [&File; 2]) -> Result<()> {
    let [near, far] = namespaces.map(AsFd::as_fd);
    Ok(Netlink::open_in(near)?.create_veth(NAME, NAME, far)?)
}

/// Configures the end of the pair in this namespace.
pub fn configure(address: Ipv4Addr) -> Result<()> {
    let mut netlink = Netlink::open()?;
    let index = netlink.index(NAME)?;
    netlink.add_address(index, address.into(), PREFIX)?;
    Ok(netlink.set_up(index)?)
}
