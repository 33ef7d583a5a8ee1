//! Interfaces: the TAP of a port with its addresses and routes, in the network namespace of its
//! node.
//!
//! Slow work of the kernel is waited for later: [`Settling`] after an interface was raised, and
//! deletion (`reaper`) after it was lowered.

pub(crate) mod offloads;
pub(crate) mod reaper;

use std::fs;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use toroid_fabric::os::thread::urgently;
use toroid_netlink::namespace;
use toroid_netlink::{Netlink, NetlinkError};
use toroid_protocol::driver::Port;

use crate::interface::reaper::LoweredInterface;
use crate::offload::Capabilities;
use crate::port::is_one_of;
use crate::port::tap::{Tap, is_gone};

/// Reasons why a port has no interface.
#[derive(Debug, thiserror::Error)]
pub enum InterfaceError {
    /// A thread could not be started, or could not enter the namespace.
    #[error("cannot enter the node's network namespace: {0}")]
    Namespace(io::Error),
    /// The TAP could not be opened.
    #[error("cannot open the TAP {name}: {source}")]
    Tap {
        /// Name of the interface.
        name: String,
        /// The system's error.
        source: io::Error,
    },
    /// The TAP could not be configured.
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
    /// The node is the gateway of its domain, and its interface cannot forward packets.
    #[error("cannot let it forward packets: {0}")]
    Forwarding(io::Error),
    /// The node sends without end over a lowered interface.
    #[error("it sends without end")]
    Flooded,
    /// The kernel dropped an address each time it was added.
    #[error("the kernel drops the address {0} again and again; see dmesg")]
    Dropped(IpAddr),
    /// The kernel did not start to receive packets for the address.
    #[error("the kernel does not receive packets for {0}")]
    NotLocal(IpAddr),
}

impl InterfaceError {
    pub(crate) fn tap(port: &Port, source: io::Error) -> Self {
        let name = port.ifname.clone();
        InterfaceError::Tap { name, source }
    }
}

/// An interface that is up.
#[derive(Debug)]
pub struct Interface {
    /// Its TAP.
    pub tap: Tap,
    /// Its index in its namespace.
    pub index: u32,
    /// Work of the kernel that is not finished.
    pub settling: Settling,
    /// Whether it was up before. Its multicast memberships were reported to a former driver then.
    pub was_up: bool,
    /// What is at its other end, unless it is the TAP itself.
    pub outer: Option<Outer>,
}

/// The other end of an interface that is no TAP: a device that is connected with one (`kernel`).
#[derive(Debug)]
pub struct Outer {
    /// Network namespace of the device.
    pub(crate) namespace: Arc<OwnedFd>,
    /// Index of the device there.
    pub(crate) device: u32,
    /// Connection to the network namespace of the node.
    pub(crate) in_node: Netlink,
}

impl Outer {
    /// Deletes both ends.
    pub(crate) fn delete(self) -> Result<(), NetlinkError> {
        delete(&mut Netlink::open_in(self.namespace.as_fd())?, self.device)
    }
}

/// Deletes a device. The node may have deleted its other end, or have ended, and with it this one.
pub(crate) fn delete(netlink: &mut Netlink, device: u32) -> Result<(), NetlinkError> {
    match netlink.delete(device) {
        Err(NetlinkError::Refused { source, .. }) if is_one_of(&source, &[Errno::ENODEV]) => Ok(()),
        result => result,
    }
}

/// Name of a lowered interface; the kernel chooses the number. No domain has such a name.
const LOWERED: &str = "~gone%d";

/// Transmit queue of an interface in packets; the kernel drops packets beyond it. Without offload
/// each packet is a frame, and a connection has as many of them under way as its socket may buffer:
/// by default 4 MiB, or some 2,900 frames of 1,500 bytes.
///
/// Of one such connection the kernel dropped in 3 seconds 955 of 407,000 frames with a queue of
/// 500, 1,503 of 352,000 with 1,000 (the default), 617 of 364,000 with 2,000, and none with 4,000
/// or 8,000; of four connections at once 972 to 4,287 with each of these, the most with 4,000
/// (single runs). No queue is long enough for any number of connections, and all packets behind it
/// wait: 30 ms at 1.5 Gbit/s.
pub(crate) const QUEUE_LEN: u32 = 4000;

/// Time for the kernel to receive packets for new addresses, and additional time for each
/// interface. The kernel needs less than a millisecond unless many interfaces come and go at once.
const SETTLING_TIMEOUT: [Duration; 2] = [Duration::from_secs(10), Duration::from_millis(20)];

/// Pause between two checks whether an address is local.
const POLL_INTERVAL: Duration = Duration::from_micros(100);

/// Interval of checks whether an interface still has its address.
const RECHECK_INTERVAL: Duration = Duration::from_millis(10);

/// Limit of the times that an address is added again.
const MAX_RESTORATIONS: u32 = 20;

/// Metric of the default route of the domain with the lowest number. A node in several domains with
/// gateways has a route for each, and the lowest metric wins. Routes that root or DHCP in the node
/// set win over all of them.
const FIRST_METRIC: u32 = 4096;

/// Errors for an IPv6 address if the kernel was built or booted without IPv6, or a sysctl disables it.
const IPV6_OFF: [Errno; 3] = [Errno::EOPNOTSUPP, Errno::EAFNOSUPPORT, Errno::EACCES];

/// The addresses of a new interface, for which the kernel begins to receive packets in the
/// background.
#[derive(Debug)]
pub struct Settling {
    netlink: Netlink,
    index: u32,
    address: IpAddr,
    prefix: u8,
    /// Interface and node, for the log.
    name: String,
}

/// Makes the interface of `port` in a network namespace, or takes over that of a former driver.
/// `capabilities` are its offloads.
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

/// Takes an interface down and frees its name in 0.2 ms; deletion takes a hundred times as long. If
/// nothing else happens, the interface ends with its TAP. Shrinking a domain waits for this, so it
/// runs urgently: beside busy processes it took up to 5 ms.
///
/// # Errors
/// [`InterfaceError`]. A deleted interface is no error.
pub(crate) fn lower(
    tap: &Tap,
    index: u32,
    outer: Option<&mut Outer>,
) -> Result<(), InterfaceError> {
    let lower_by = |netlink: &mut Netlink| {
        netlink.set_down(index)?;
        Ok(netlink.rename(index, LOWERED)?)
    };
    let lowered = urgently(|| match (tap.set_persistent(false), outer) {
        (Ok(()), Some(outer)) => lower_by(&mut outer.in_node),
        (Ok(()), None) => inside(tap.namespace().map_err(InterfaceError::Namespace)?, || {
            lower_by(&mut Netlink::open()?)
        }),
        (Err(error), _) if is_gone(&error) => Ok(()),
        (Err(error), _) => Err(InterfaceError::Namespace(error)),
    });
    match lowered {
        Err(InterfaceError::Netlink(NetlinkError::Refused { source, .. }))
            if is_one_of(&source, &[Errno::ENODEV]) =>
        {
            Ok(())
        }
        result => result,
    }
}

/// Raises a lowered interface for the same port, after dropping the frames that it sent meanwhile.
/// `node` is the network namespace of its node, and `join` brings up the other end.
///
/// # Errors
/// [`InterfaceError`]; the interface is left to be deleted then.
pub(crate) fn restore(
    port: &Port,
    lowered: LoweredInterface,
    node: OwnedFd,
    capabilities: Capabilities,
    join: impl FnOnce(&Outer) -> Result<(), NetlinkError> + Send,
) -> Result<Interface, InterfaceError> {
    let LoweredInterface {
        mut tap,
        index,
        outer,
        ..
    } = lowered;
    let namespace = match &outer {
        Some(_) => node,
        // The node may have moved it.
        None => tap.namespace().map_err(InterfaceError::Namespace)?,
    };
    let settling = inside(namespace, || {
        let mut netlink = Netlink::open()?;
        // The node may have raised the interface.
        netlink.set_down(index)?;
        if !tap.discard() {
            return Err(InterfaceError::Flooded);
        }
        netlink.rename(index, &port.ifname)?;
        // An interface that is up before its other end may lose its first frames.
        outer.as_ref().map_or(Ok(()), join)?;
        Ok(configure(port)?.0)
    })?;
    tap.set_capabilities(capabilities)
        .and_then(|()| tap.set_persistent(true))
        .map_err(|source| InterfaceError::tap(port, source))?;
    Ok(Interface {
        tap,
        index,
        settling,
        was_up: false,
        outer,
    })
}

/// Changes the gateway of the domain, or removes it.
///
/// # Errors
/// [`InterfaceError`].
pub(crate) fn set_gateway(
    port: &Port,
    before: &Port,
    index: u32,
    namespace: OwnedFd,
) -> Result<(), InterfaceError> {
    inside(namespace, || {
        if is_gateway(before) && !is_gateway(port) {
            // Fails when the node has renamed the interface, which then does not forward.
            let _ = set_forwarding(before, "0");
        }
        set_routes(port, &mut Netlink::open()?, index)
    })
}

fn inside<R: Send>(
    namespace: OwnedFd,
    work: impl FnOnce() -> Result<R, InterfaceError> + Send,
) -> Result<R, InterfaceError> {
    namespace::inside(namespace, work).unwrap_or_else(|error| Err(InterfaceError::Namespace(error)))
}

/// Configures the interface of a port in the network namespace of its node; `tap` carries its frames.
///
/// # Errors
/// [`InterfaceError`].
pub(crate) fn configure_in(
    node: OwnedFd,
    port: &Port,
    tap: Tap,
) -> Result<Interface, InterfaceError> {
    let (settling, was_up) = inside(node, || configure(port))?;
    Ok(Interface::new(tap, settling, was_up))
}

impl Interface {
    fn new(tap: Tap, settling: Settling, was_up: bool) -> Self {
        Interface {
            tap,
            index: settling.index,
            settling,
            was_up,
            outer: None,
        }
    }
}

fn raise_here(port: &Port, capabilities: Capabilities) -> Result<Interface, InterfaceError> {
    let tap = Tap::open(&port.ifname, capabilities)
        .map_err(|source| InterfaceError::tap(port, source))?;
    match configure(port) {
        Ok((settling, was_up)) => Ok(Interface::new(tap, settling, was_up)),
        Err(error) => {
            // Nothing refers to the TAP yet. The first error is reported.
            let _ = tap.delete();
            Err(error)
        }
    }
}

/// Configures the interface of a port. Returns also whether the interface was up before.
///
/// Only properties that differ are changed: an interface that was taken over has connections, and
/// even setting the same MAC address makes the kernel forget its neighbours.
fn configure(port: &Port) -> Result<(Settling, bool), InterfaceError> {
    let mut netlink = Netlink::open()?;
    let link = netlink.link(&port.ifname)?;
    if link.mac != port.mac {
        netlink.set_mac(link.index, port.mac)?;
    }
    if link.mtu != port.mtu {
        netlink.set_mtu(link.index, port.mtu)?;
    }
    if link.queue_len != QUEUE_LEN {
        netlink.set_queue_len(link.index, QUEUE_LEN)?;
    }
    let (ipv4, ipv6) = (IpAddr::V4(port.ipv4), IpAddr::V6(port.ipv6));
    netlink.add_address(link.index, ipv4, port.prefix)?;
    let (address, prefix) = match netlink.add_address(link.index, ipv6, port.ipv6_prefix) {
        Err(NetlinkError::Refused { source, .. }) if is_one_of(&source, &IPV6_OFF) => {
            tracing::warn!(
                "{} of node {} does without IPv6, which is disabled: {source}",
                port.ifname,
                port.place
            );
            (ipv4, port.prefix)
        }
        result => result.map(|()| (ipv6, port.ipv6_prefix))?,
    };
    if !link.up {
        netlink.set_up(link.index)?;
    }
    if let Err(error) = set_routes(port, &mut netlink, link.index) {
        // Root in the node can cause this by rules of its own, to its own disadvantage.
        tracing::warn!("{} of node {}: {error}", port.ifname, port.place);
    }
    let settling = Settling {
        netlink,
        index: link.index,
        address,
        prefix,
        name: format!("{} of node {}", port.ifname, port.place),
    };
    Ok((settling, link.up))
}

/// Sets the route out of the domain. Of a gateway only this interface forwards received packets:
/// other domains of the node are not affected.
fn set_routes(port: &Port, netlink: &mut Netlink, index: u32) -> Result<(), InterfaceError> {
    let metric = FIRST_METRIC + port.domain_id;
    match port.gateway {
        Some(gateway) if !is_gateway(port) => netlink.set_default_route(index, gateway, metric)?,
        _ => netlink.remove_default_route(index, metric)?,
    }
    if is_gateway(port) {
        set_forwarding(port, "1").map_err(InterfaceError::Forwarding)
    } else {
        Ok(())
    }
}

fn is_gateway(port: &Port) -> bool {
    port.gateway == Some(port.ipv4)
}

fn set_forwarding(port: &Port, value: &str) -> io::Result<()> {
    let path = format!("/proc/sys/net/ipv4/conf/{}/forwarding", port.ifname);
    fs::write(path, value)
}

impl Settling {
    /// Deadline for this number of interfaces.
    pub(crate) fn deadline(count: usize) -> Instant {
        let [all, each] = SETTLING_TIMEOUT;
        Instant::now() + all + each * count.try_into().unwrap_or(u32::MAX)
    }

    /// Waits until the kernel receives packets for the slower of the addresses, so that the first
    /// packets of a new member are not lost.
    ///
    /// A kernel with an exhausted per-CPU reserve, as when a thousand interfaces come up at once,
    /// drops an IPv6 address that it had accepted, and reports it in its own log only. The address
    /// is added again.
    ///
    /// # Errors
    /// [`InterfaceError`].
    pub fn wait(mut self, deadline: Instant) -> Result<(), InterfaceError> {
        let mut next_recheck = Instant::now();
        let mut restorations = 0;
        while !self.netlink.is_local(self.address)? {
            let now = Instant::now();
            if now > deadline {
                return Err(InterfaceError::NotLocal(self.address));
            }
            if now >= next_recheck {
                next_recheck = now + RECHECK_INTERVAL;
                restorations += u32::from(self.restore()?);
                if restorations > MAX_RESTORATIONS {
                    return Err(InterfaceError::Dropped(self.address));
                }
            }
            thread::sleep(POLL_INTERVAL);
        }
        Ok(())
    }

    /// Adds the address again if the kernel has dropped it; returns whether it had.
    fn restore(&mut self) -> Result<bool, InterfaceError> {
        let added = self
            .netlink
            .restore_address(self.index, self.address, self.prefix);
        match added {
            Ok(false) => Ok(false),
            Ok(true) => {
                let (name, address) = (&self.name, self.address);
                tracing::warn!("{name}: the kernel had dropped {address}, which is added again");
                Ok(true)
            }
            // The reserve may still be empty.
            Err(NetlinkError::Refused { source, .. })
                if is_one_of(&source, &[Errno::ENOMEM, Errno::ENOBUFS]) =>
            {
                Ok(true)
            }
            Err(error) => Err(error.into()),
        }
    }
}
