//! Interfaces: a port's TAP, with its addresses, in the network namespace of its node.
//!
//! What takes the kernel long is left to be waited for: [`Settling`] after an interface was
//! raised, and deletion after it was [lowered](lower).

use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::thread;
use std::time::{Duration, Instant};

use domains::driver_protocol::Port;
use domains::netlink::{Netlink, NetlinkError};
use nix::errno::Errno;
use nix::sched::{CloneFlags, setns};

use crate::offload::Capabilities;
use crate::tap::{Tap, is_gone};

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
    /// It was lowered, and its node goes on sending through it.
    #[error("it sends without end")]
    Flooded,
    /// Configured, but the kernel did not finish.
    #[error("the kernel does not receive packets for {0}")]
    NotLocal(IpAddr),
}

/// An interface that is up.
#[derive(Debug)]
pub struct Interface {
    /// Its other end.
    pub tap: Tap,
    /// Its number in its namespace.
    pub index: u32,
    /// What it still waits for.
    pub settling: Settling,
}

/// The name of an interface that was lowered; the kernel chooses the number. No domain is named
/// like that.
const LOWERED: &str = "~gone%d";

/// How long the kernel may take to receive packets for a new address; it takes less than a
/// millisecond unless many interfaces come and go at once.
const PATIENCE: Duration = Duration::from_secs(5);

/// Between two looks whether it does.
const PAUSE: Duration = Duration::from_micros(100);

const STACK_BYTES: usize = 128 * 1024;

/// The addresses of a new interface, for which the kernel begins to receive packets in the
/// background.
#[derive(Debug)]
pub struct Settling {
    netlink: Netlink,
    address: IpAddr,
}

/// Makes the interface of `port` in the network namespace `namespace`, or takes over the one
/// that a former driver left, and returns it. Packets from and for it may lack what `capabilities`
/// say.
///
/// # Errors
/// [`InterfaceError`].
pub fn raise(
    port: &Port,
    namespace: OwnedFd,
    capabilities: Capabilities,
) -> Result<Interface, InterfaceError> {
    inside(namespace, || raise_here(port, capabilities))
}

/// Takes an interface down and gives its name free, which takes 0.2 ms; deleting it would take
/// a hundred times as long. Without a further step it goes with its TAP.
///
/// # Errors
/// [`InterfaceError`]; not that its node has deleted it already.
pub fn lower(tap: &Tap, index: u32) -> Result<(), InterfaceError> {
    let lower_here = || {
        let mut netlink = Netlink::open()?;
        netlink.set_down(index)?;
        Ok(netlink.rename(index, LOWERED)?)
    };
    let lowered = match tap.set_persistent(false) {
        Ok(()) => inside(
            tap.namespace().map_err(InterfaceError::Namespace)?,
            lower_here,
        ),
        Err(error) if is_gone(&error) => return Ok(()),
        Err(error) => return Err(InterfaceError::Namespace(error)),
    };
    match lowered {
        Err(InterfaceError::Netlink(NetlinkError::Refused { source, .. }))
            if source.raw_os_error() == Some(Errno::ENODEV as i32) =>
        {
            Ok(())
        }
        result => result,
    }
}

/// Raises an interface that was lowered and belonged to the same port, without what it sent
/// meanwhile.
///
/// # Errors
/// [`InterfaceError`]; it is left to be deleted then.
pub fn restore(
    port: &Port,
    mut tap: Tap,
    index: u32,
    capabilities: Capabilities,
) -> Result<Interface, InterfaceError> {
    let namespace = tap.namespace().map_err(InterfaceError::Namespace)?;
    let settling = inside(namespace, || {
        let mut netlink = Netlink::open()?;
        // Its node may have brought it up again.
        netlink.set_down(index)?;
        if !tap.discard() {
            return Err(InterfaceError::Flooded);
        }
        netlink.rename(index, &port.ifname)?;
        Ok(configure(port)?.1)
    })?;
    tap.set_capabilities(capabilities)
        .and_then(|()| tap.set_persistent(true))
        .map_err(|source| InterfaceError::Tap {
            name: port.ifname.clone(),
            source,
        })?;
    Ok(Interface {
        tap,
        index,
        settling,
    })
}

/// Works in a namespace, from a thread of its own, because a thread that has entered one keeps
/// it alive.
fn inside<R: Send>(
    namespace: OwnedFd,
    work: impl FnOnce() -> Result<R, InterfaceError> + Send,
) -> Result<R, InterfaceError> {
    let enter_and_work = || {
        setns(namespace, CloneFlags::CLONE_NEWNET)
            .map_err(|error| InterfaceError::Namespace(error.into()))?;
        work()
    };
    thread::scope(|scope| {
        thread::Builder::new()
            .name("interface".into())
            .stack_size(STACK_BYTES)
            .spawn_scoped(scope, enter_and_work)
            .map_err(InterfaceError::Namespace)?
            .join()
            .unwrap_or_else(|_| Err(InterfaceError::Namespace(io::ErrorKind::Other.into())))
    })
}

fn raise_here(port: &Port, capabilities: Capabilities) -> Result<Interface, InterfaceError> {
    let tap = Tap::open(&port.ifname, capabilities).map_err(|source| InterfaceError::Tap {
        name: port.ifname.clone(),
        source,
    })?;
    match configure(port) {
        Ok((index, settling)) => Ok(Interface {
            tap,
            index,
            settling,
        }),
        Err(error) => {
            // Nobody else knows of it. If it cannot be deleted, the error to tell is the first.
            let _ = tap.delete();
            Err(error)
        }
    }
}

/// Sets what is not yet so: an interface that was taken over carries connections, and setting
/// even the same MAC again would make the kernel forget its neighbours. Returns the interface's
/// number.
fn configure(port: &Port) -> Result<(u32, Settling), InterfaceError> {
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
    let address = match netlink.add_address(link.index, ipv6, port.ipv6_prefix) {
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
    Ok((link.index, Settling { netlink, address }))
}

impl Settling {
    /// Waits until the kernel receives packets for the slower of the addresses: the first packets
    /// of a new member shall not be lost.
    ///
    /// # Errors
    /// [`InterfaceError`].
    pub fn wait(mut self) -> Result<(), InterfaceError> {
        let deadline = Instant::now() + PATIENCE;
        while !self.netlink.is_local(self.address)? {
            if Instant::now() > deadline {
                return Err(InterfaceError::NotLocal(self.address));
            }
            thread::sleep(PAUSE);
        }
        Ok(())
    }
}

/// Whether the kernel refuses IPv6 addresses: it was built or started without IPv6, or it is
/// disabled by sysctl.
fn is_ipv6_off(error: &io::Error) -> bool {
    let off = [Errno::EOPNOTSUPP, Errno::EAFNOSUPPORT, Errno::EACCES];
    error
        .raw_os_error()
        .is_some_and(|error| off.contains(&Errno::from_raw(error)))
}
