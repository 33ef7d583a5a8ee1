//! Interfaces: a port's TAP, with its addresses, in the network namespace of its node.

use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::thread;
use std::time::{Duration, Instant};

use domains::driver_protocol::Port;
use domains::netlink::{Netlink, NetlinkError};
use nix::errno::Errno;
use nix::sched::{CloneFlags, setns};

use crate::tap::Tap;

/// Why a port has no interface.
#[derive(Debug, thiserror::Error)]
pub enum InterfaceError {
    /// No thread could be had, or it could not enter the namespace.
    #[error("cannot enter the node's network namespace: {0}")]
    Namespace(io::Error),
    /// No TAP.
    #[error("cannot open the TAP {name}: {source}")]
    Tap {
        /// The interface's name.
        name: String,
        /// The system's error.
        source: io::Error,
    },
    /// A TAP, but not configured.
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
    /// Configured, but the kernel did not finish.
    #[error("the kernel does not receive packets for {0}")]
    NotLocal(IpAddr),
}

/// How long the kernel may take to receive packets for a new address; it takes less than a
/// millisecond unless many interfaces come and go at once.
const PATIENCE: Duration = Duration::from_secs(5);

/// Between two looks whether it does.
const PAUSE: Duration = Duration::from_micros(100);

/// Makes the interface of `port` in the network namespace `namespace`, or takes over the one
/// that a former driver left, and returns its TAP.
///
/// # Errors
/// [`InterfaceError`].
pub fn raise(port: &Port, namespace: OwnedFd) -> Result<Tap, InterfaceError> {
    // A thread of its own, because a thread that has entered a namespace keeps it alive.
    thread::scope(|scope| {
        thread::Builder::new()
            .name(format!("raise {}", port.ifname))
            .spawn_scoped(scope, || raise_here(port, namespace))
            .map_err(InterfaceError::Namespace)?
            .join()
            .unwrap_or_else(|_| Err(InterfaceError::Namespace(io::ErrorKind::Other.into())))
    })
}

fn raise_here(port: &Port, namespace: OwnedFd) -> Result<Tap, InterfaceError> {
    setns(namespace, CloneFlags::CLONE_NEWNET)
        .map_err(|error| InterfaceError::Namespace(error.into()))?;
    let tap = Tap::open(&port.ifname).map_err(|source| InterfaceError::Tap {
        name: port.ifname.clone(),
        source,
    })?;
    if let Err(error) = configure(port) {
        // Nobody else knows of it. If it cannot be deleted, the error to tell is still the first.
        let _ = tap.delete();
        return Err(error);
    }
    Ok(tap)
}

/// Sets what is not yet so: an interface that was taken over carries connections, and setting
/// even the same MAC again would make the kernel forget its neighbours.
fn configure(port: &Port) -> Result<(), InterfaceError> {
    let mut netlink = Netlink::open()?;
    let link = netlink.link(&port.ifname)?;
    if link.mac != port.mac {
        netlink.set_mac(link.index, port.mac)?;
    }
    if link.mtu != port.mtu {
        netlink.set_mtu(link.index, port.mtu)?;
    }
    let (ipv4, ipv6) = (IpAddr::V4(port.ipv4), IpAddr::V6(port.ipv6));
    netlink.add_address(link.index, ipv4, port.prefix)?;
    let slowest = match netlink.add_address(link.index, ipv6, port.ipv6_prefix) {
        Err(NetlinkError::Refused { source, .. }) if is_ipv6_off(&source) => {
            tracing::warn!(
                "{} of node {} does without IPv6, which is disabled: {source}",
                port.ifname,
                port.place
            );
            ipv4
        }
        result => result.map(|()| ipv6)?,
    };
    if !link.up {
        netlink.set_up(link.index)?;
    }
    await_local(&mut netlink, slowest)
}

/// Waits until the kernel, which does that in the background, receives packets for `address`:
/// the first packets of a new member shall not be lost.
fn await_local(netlink: &mut Netlink, address: IpAddr) -> Result<(), InterfaceError> {
    let deadline = Instant::now() + PATIENCE;
    while !netlink.is_local(address)? {
        if Instant::now() > deadline {
            return Err(InterfaceError::NotLocal(address));
        }
        thread::sleep(PAUSE);
    }
    Ok(())
}

/// Whether the kernel refuses IPv6 addresses: it was built or started without IPv6, or it is
/// disabled by sysctl.
fn is_ipv6_off(error: &io::Error) -> bool {
    let off = [Errno::EOPNOTSUPP, Errno::EAFNOSUPPORT, Errno::EACCES];
    error
        .raw_os_error()
        .is_some_and(|error| off.contains(&Errno::from_raw(error)))
}
