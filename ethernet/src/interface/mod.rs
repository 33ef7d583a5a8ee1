//! Interfaces: a port's TAP, with its addresses and its way out, in the network namespace of its node.
//!
//! What takes the kernel long is left to be waited for: [`Settling`] after an interface was
//! raised, and deletion after it was [lowered](lower).

pub(crate) mod offloads;
pub(crate) mod reaper;

use std::fs;
use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use toroid_fabric::os::thread::urgently;
use toroid_netlink::namespace;
use toroid_netlink::{Netlink, NetlinkError};
use toroid_protocol::driver::Port;

use crate::offload::Capabilities;
use crate::port::tap::{Tap, is_gone};

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
    /// Its node is the gateway of its domain, and cannot be.
    #[error("cannot let it forward packets: {0}")]
    Forwarding(io::Error),
    /// It was lowered, and its node goes on sending through it.
    #[error("it sends without end")]
    Flooded,
    /// The kernel dropped an address as often as it was added.
    #[error("the kernel drops the address {0} again and again; see dmesg")]
    Dropped(IpAddr),
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
    /// Whether it was up before, so that the groups it has joined were told to a former driver.
    pub was_up: bool,
}

/// The name of an interface that was lowered; the kernel chooses the number. No domain is named
/// like that.
const LOWERED: &str = "~gone%d";

/// How many packets an interface may have sent that the driver has not read; the kernel throws away
/// any more. Without offload each is a frame, and a connection has as many of them on their way as
/// its socket may buffer, by default 4 MiB: some 2,900 frames of 1,500 bytes.
///
/// Of one such connection the kernel threw away in 3 seconds 955 of 407,000 frames with a queue of
/// 500, 1,503 of 352,000 with 1,000 (its default), 617 of 364,000 with 2,000, and none with 4,000
/// or 8,000; of four at once 972 to 4,287 with each of these, the most with 4,000 (single runs). No
/// queue is long enough for any number of connections, and all that comes behind it waits: 30 ms
/// at 1.5 Gbit/s.
pub(crate) const QUEUE_LEN: u32 = 4000;

/// How long the kernel may take to receive packets for new addresses, and longer for each of them; it
/// takes less than a millisecond unless many interfaces come and go at once.
const PATIENCE: [Duration; 2] = [Duration::from_secs(10), Duration::from_millis(20)];

/// Between two looks whether it does.
const PAUSE: Duration = Duration::from_micros(100);

/// Between two looks whether an interface still has its address, as long as the kernel does not receive
/// packets for it.
const GLANCE: Duration = Duration::from_millis(10);

/// How often an address is added again.
const RESTORATIONS: u32 = 20;

/// What distinguishes default routes of ours: a node that is in several domains has one for each
/// that has a gateway, and that of the lowest number counts. Those that its root sets by hand or by
/// DHCP come first, because they have lower metrics.
const FIRST_METRIC: u32 = 4096;

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
/// a hundred times as long. Without a further step it goes with its TAP. Whoever shrinks a domain
/// waits for this, so it is urgent: beside busy processes it took up to 5 ms.
///
/// # Errors
/// [`InterfaceError`]; not that its node has deleted it already.
pub fn lower(tap: &Tap, index: u32) -> Result<(), InterfaceError> {
    let lower_here = || {
        let mut netlink = Netlink::open()?;
        netlink.set_down(index)?;
        Ok(netlink.rename(index, LOWERED)?)
    };
    let lowered = urgently(|| match tap.set_persistent(false) {
        Ok(()) => inside(
            tap.namespace().map_err(InterfaceError::Namespace)?,
            lower_here,
        ),
        Err(error) if is_gone(&error) => Ok(()),
        Err(error) => Err(InterfaceError::Namespace(error)),
    });
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
        Ok(configure(port)?.settling)
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
        was_up: false,
    })
}

/// Lets packets leave the domain by another gateway than before, or no longer.
///
/// # Errors
/// [`InterfaceError`].
pub fn set_gateway(
    port: &Port,
    before: &Port,
    index: u32,
    namespace: OwnedFd,
) -> Result<(), InterfaceError> {
    inside(namespace, || {
        if is_gateway(before) && !is_gateway(port) {
            // It fails when the node has renamed the interface, and then it was not forwarding.
            let _ = set_forwarding(before, "0");
        }
        lead_out(port, &mut Netlink::open()?, index)
    })
}

fn inside<R: Send>(
    namespace: OwnedFd,
    work: impl FnOnce() -> Result<R, InterfaceError> + Send,
) -> Result<R, InterfaceError> {
    namespace::inside(namespace, work).unwrap_or_else(|error| Err(InterfaceError::Namespace(error)))
}

fn raise_here(port: &Port, capabilities: Capabilities) -> Result<Interface, InterfaceError> {
    let tap = Tap::open(&port.ifname, capabilities).map_err(|source| InterfaceError::Tap {
        name: port.ifname.clone(),
        source,
    })?;
    match configure(port) {
        Ok(Configured {
            index,
            settling,
            was_up,
        }) => Ok(Interface {
            tap,
            index,
            settling,
            was_up,
        }),
        Err(error) => {
            // Nobody else knows of it. If it cannot be deleted, the error to tell is the first.
            let _ = tap.delete();
            Err(error)
        }
    }
}

/// What an [`Interface`] is besides its TAP.
struct Configured {
    index: u32,
    settling: Settling,
    was_up: bool,
}

/// Sets what is not yet so: an interface that was taken over carries connections, and setting
/// even the same MAC again would make the kernel forget its neighbours.
fn configure(port: &Port) -> Result<Configured, InterfaceError> {
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
        Err(NetlinkError::Refused { source, .. }) if is_ipv6_off(&source) => {
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
    if let Err(error) = lead_out(port, &mut netlink, link.index) {
        // The root of the node can have it so, with rules of its own, and is the one who suffers.
        tracing::warn!("{} of node {}: {error}", port.ifname, port.place);
    }
    Ok(Configured {
        index: link.index,
        settling: Settling {
            netlink,
            index: link.index,
            address,
            prefix,
            name: format!("{} of node {}", port.ifname, port.place),
        },
        was_up: link.up,
    })
}

/// The way out of the domain. Only this interface of a gateway forwards what it receives: other
/// domains of the node have no say in it.
fn lead_out(port: &Port, netlink: &mut Netlink, index: u32) -> Result<(), InterfaceError> {
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
    /// When so many interfaces should have settled that are waited for from now on.
    pub fn deadline(count: usize) -> Instant {
        let [all, each] = PATIENCE;
        Instant::now() + all + each * count.try_into().unwrap_or(u32::MAX)
    }

    /// Waits until the kernel receives packets for the slower of the addresses: the first packets
    /// of a new member shall not be lost.
    ///
    /// A kernel whose per-CPU reserve is used up, as when a thousand interfaces come up at once, drops an
    /// IPv6 address that it had accepted, and says so in its own log only. The address is added again.
    ///
    /// # Errors
    /// [`InterfaceError`].
    pub fn wait(mut self, deadline: Instant) -> Result<(), InterfaceError> {
        let mut next_glance = Instant::now();
        let mut restorations = 0;
        while !self.netlink.is_local(self.address)? {
            let now = Instant::now();
            if now > deadline {
                return Err(InterfaceError::NotLocal(self.address));
            }
            if now >= next_glance {
                next_glance = now + GLANCE;
                restorations += u32::from(self.restore()?);
                if restorations > RESTORATIONS {
                    return Err(InterfaceError::Dropped(self.address));
                }
            }
            thread::sleep(PAUSE);
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
            // The reserve may be empty still.
            Err(NetlinkError::Refused { source, .. }) if is_short_of_memory(&source) => Ok(true),
            Err(error) => Err(error.into()),
        }
    }
}

fn is_short_of_memory(error: &io::Error) -> bool {
    let short = [Errno::ENOMEM, Errno::ENOBUFS];
    error
        .raw_os_error()
        .is_some_and(|error| short.contains(&Errno::from_raw(error)))
}

/// Whether the kernel refuses IPv6 addresses: it was built or started without IPv6, or it is
/// disabled by sysctl.
fn is_ipv6_off(error: &io::Error) -> bool {
    let off = [Errno::EOPNOTSUPP, Errno::EAFNOSUPPORT, Errno::EACCES];
    error
        .raw_os_error()
        .is_some_and(|error| off.contains(&Errno::from_raw(error)))
}
