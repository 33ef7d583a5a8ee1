//! The kernel path: frames between members of this host that do not pass through the driver.
//!
//! The interface of a member is one end of a veth pair. The other end is in a network namespace of
//! the agent's, beside a TAP of the driver. Rules of nftables forward what comes in by one of the two
//! to the other, so the driver carries the frames of this member as those of any TAP. Before that,
//! `rules` select frames that go directly to the other end of another member's interface.
//!
//! The namespace outlives the driver, and with it what passes directly. A path changes with the
//! elements of maps, while the interfaces stay.

mod drain;
mod rules;

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags, openat};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};
use toroid_netlink::nftables::{Batch, Nftables};
use toroid_netlink::{Link, Netlink, NetlinkError, namespace};
use toroid_protocol::driver::{Port, outer_device};
use tracing::warn;

use crate::interface::{self, Interface, InterfaceError, Outer, QUEUE_LEN, configure_in};
use crate::offload::Capabilities;
use crate::port::tap::Tap;
use drain::{DEVICE, Drain};
pub(crate) use rules::DirectMember;

/// Numbers of domain and node.
type Key = (u32, u32);

/// Longest time for new devices to start, and the pause between two looks at one.
const START: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_micros(100);

/// Reasons why this kernel has no such path.
#[derive(Debug, thiserror::Error)]
pub enum KernelPathError {
    /// Nftables, or forwarding by it, are missing.
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
    /// The namespace cannot be set up, or a device in it.
    #[error("cannot {action}: {source}")]
    System {
        /// What failed, as a verb and its object.
        action: &'static str,
        /// The system's reason.
        source: io::Error,
    },
}

fn during(action: &'static str) -> impl FnOnce(io::Error) -> KernelPathError {
    move |source| KernelPathError::System { action, source }
}

/// The namespace with the other ends of interfaces.
#[derive(Debug)]
pub(crate) struct KernelPath {
    namespace: Arc<OwnedFd>,
    netlink: Netlink,
    tables: Nftables,
    drain: Drain,
    /// Members between which frames pass directly.
    members: BTreeMap<Key, DirectMember>,
    /// Whether the kernel has these members and no others, which a former driver may have left.
    is_settled: bool,
    /// Whether frames may be under way to or from a former member.
    is_drained: bool,
    /// Other ends of interfaces that may not send yet, by their names.
    starting: Vec<String>,
}

impl KernelPath {
    /// Sets up the namespace, or takes it over from a former driver with all that passes there.
    pub(crate) fn open(network: OwnedFd) -> Result<Self, KernelPathError> {
        let prepare = || {
            keep_silent().map_err(during("keep IPv6 out of the namespace"))?;
            let tap = Tap::open(DEVICE, Capabilities::empty());
            let tap = tap.map_err(during("open a TAP"))?;
            let steering = steering(DEVICE).map_err(during("steer frames to processors"))?;
            Ok::<_, KernelPathError>((Netlink::open()?, tap, steering))
        };
        let inside = namespace::inside(&network, prepare);
        let (mut netlink, tap, steering) = inside.map_err(during("enter the namespace"))??;
        let mut tables = Nftables::open_in(network.as_fd())?;
        let device = netlink.index(DEVICE)?;
        netlink.set_up(device)?;
        let mut batch = Batch::new(rules::TABLE);
        rules::install(&mut batch);
        rules::patch(&mut batch, DEVICE, device, false);
        tables.commit(&batch)?;
        Ok(KernelPath {
            namespace: Arc::new(network),
            netlink,
            tables,
            drain: Drain::new(tap, steering).map_err(during("send a frame to each processor"))?,
            members: BTreeMap::new(),
            is_settled: false,
            is_drained: true,
            starting: Vec::new(),
        })
    }

    /// Whether a former driver has left interfaces in a namespace, between which frames may pass.
    pub(crate) fn is_used(network: BorrowedFd<'_>) -> Result<bool, NetlinkError> {
        let links = Netlink::open_in(network)?.links()?;
        // Only names of other ends have a point.
        Ok(links.iter().any(|link| link.name.contains('.')))
    }

    /// Makes the interface of a port in the network namespace of its node, or takes over that of a
    /// former driver. `None` if the port needs a TAP, or has one of a former driver.
    pub(crate) fn raise(
        &mut self,
        port: &Port,
        node: OwnedFd,
        capabilities: Capabilities,
    ) -> Result<Option<Interface>, InterfaceError> {
        let outer = outer_device(port.domain_id, port.node);
        if !port.offload {
            if let Ok(link) = self.netlink.link(&outer) {
                self.delete(&outer, link.index)?;
            }
            return Ok(None);
        }
        let mut in_node = Netlink::open_in(node.as_fd())?;
        let is_there = match (self.netlink.link(&outer), in_node.link(&port.ifname)) {
            (Ok(_), Ok(_)) => true,
            (Ok(link), Err(NetlinkError::NoSuchLink(_))) => {
                // The node has deleted or renamed its end.
                self.delete(&outer, link.index)?;
                false
            }
            (Err(NetlinkError::NoSuchLink(_)), Ok(_)) => return Ok(None),
            (Err(NetlinkError::NoSuchLink(_)), _) if !port.kernel => return Ok(None),
            (Err(NetlinkError::NoSuchLink(_)), Err(NetlinkError::NoSuchLink(_))) => false,
            (Err(error), _) | (_, Err(error)) => return Err(error.into()),
        };
        if !is_there {
            self.netlink
                .create_veth(&outer, &port.ifname, node.as_fd())?;
        }
        let device = self.netlink.link(&outer)?;
        match self.connect(port, &device, node, capabilities) {
            Ok(mut interface) => {
                interface.outer = Some(Outer {
                    namespace: Arc::clone(&self.namespace),
                    device: device.index,
                    in_node,
                });
                Ok(Some(interface))
            }
            Err(error) => {
                // Nothing refers to the devices yet. The first error is reported.
                let _ = self.delete(&outer, device.index);
                Err(error)
            }
        }
    }

    /// Connects the other end of a member's interface with its TAP, and brings everything up.
    /// Nothing passes before the rules are there.
    fn connect(
        &mut self,
        port: &Port,
        device: &Link,
        node: OwnedFd,
        capabilities: Capabilities,
    ) -> Result<Interface, InterfaceError> {
        let tap_name = tap_behind(device.index);
        let tap = namespace::inside(&self.namespace, || Tap::open(&tap_name, capabilities));
        let tap = tap.and_then(|opened| opened);
        let tap = tap.map_err(|source| InterfaceError::tap(port, source))?;
        let behind = self.netlink.link(&tap_name)?;
        if behind.queue_len != QUEUE_LEN {
            self.netlink.set_queue_len(behind.index, QUEUE_LEN)?;
        }
        for link in [device, &behind] {
            if link.mtu != port.mtu {
                self.netlink.set_mtu(link.index, port.mtu)?;
            }
        }
        self.patch(&device.name, device.index, behind.index)?;
        for link in [&behind, device] {
            if !link.up {
                self.netlink.set_up(link.index)?;
            }
        }
        configure_in(node, port, tap)
    }

    /// Sends frames from the other end of an interface directly or to the TAP behind, and frames from
    /// the TAP to the interface.
    fn patch(&mut self, outer: &str, device: u32, behind: u32) -> Result<(), NetlinkError> {
        let mut batch = Batch::new(rules::TABLE);
        rules::patch(&mut batch, outer, behind, true);
        rules::patch(&mut batch, &tap_behind(device), device, false);
        self.tables.commit(&batch)?;
        self.starting.push(outer.to_owned());
        Ok(())
    }

    /// Deletes an interface by its other end, with the TAP behind and the rules.
    fn delete(&mut self, outer: &str, device: u32) -> Result<(), NetlinkError> {
        let mut batch = Batch::new(rules::TABLE);
        rules::unpatch(&mut batch, outer, device);
        self.tables.commit(&batch)?;
        if let Ok(tap) = self.netlink.index(&tap_behind(device)) {
            interface::delete(&mut self.netlink, tap)?;
        }
        interface::delete(&mut self.netlink, device)
    }

    /// Lets frames pass directly between a member and others, from now on, or no more. If the kernel
    /// refuses that, the next [`KernelPath::settle`] brings it into effect, or fails.
    pub(crate) fn admit(&mut self, key: Key, member: Option<DirectMember>) {
        if self.members.get(&key) == member.as_ref() {
            return;
        }
        let mut batch = Batch::new(rules::TABLE);
        self.expel(key, &mut batch);
        if let Some(member) = member {
            rules::admit(&mut batch, &member);
            self.members.insert(key, member);
        }
        // Otherwise `settle` names all.
        if self.is_settled {
            self.commit(&batch);
        }
    }

    /// Removes a member, if it is one.
    fn expel(&mut self, key: Key, batch: &mut Batch) {
        if let Some(before) = self.members.remove(&key) {
            rules::expel(batch, &before);
            self.is_drained = false;
        }
    }

    /// Changes the rules. If the kernel refuses that, `settle` names all members.
    fn commit(&mut self, batch: &Batch) {
        if let Err(error) = self.tables.commit(batch) {
            warn!("{error}");
            self.is_settled = false;
        }
    }

    /// Notes that a member has left, whose frames may be under way from the driver, too.
    pub(crate) fn expect_frames(&mut self) {
        self.is_drained = false;
    }

    /// Ends the membership of an interface: removes its rules, and takes its other end down. It sends
    /// and receives nothing more.
    pub(crate) fn cut(&mut self, port: &Port, outer: &Outer) -> Result<(), NetlinkError> {
        let mut batch = Batch::new(rules::TABLE);
        self.expel((port.domain_id, port.node), &mut batch);
        if !self.is_settled {
            // `settle` names all members.
            batch = Batch::new(rules::TABLE);
        }
        let name = outer_device(port.domain_id, port.node);
        rules::unpatch(&mut batch, &name, outer.device);
        self.commit(&batch);
        self.netlink.set_down(outer.device)
    }

    /// Connects the other end of an interface again, and brings it up.
    pub(crate) fn join(&mut self, port: &Port, outer: &Outer) -> Result<(), NetlinkError> {
        let behind = self.netlink.index(&tap_behind(outer.device))?;
        let name = outer_device(port.domain_id, port.node);
        self.patch(&name, outer.device, behind)?;
        self.netlink.set_up(outer.device)
    }

    /// Waits until new members can be reached and nothing of former ones is under way, and removes
    /// what a former driver has left.
    pub(crate) fn settle(&mut self, present: &HashSet<u32>) -> Result<(), KernelPathError> {
        if !self.is_settled {
            let mut batch = Batch::new(rules::TABLE);
            rules::admit_only(&mut batch, self.members.values());
            self.tables.commit(&batch)?;
            (self.is_settled, self.is_drained) = (true, false);
            self.remove_unused(present)?;
        }
        self.await_start()?;
        if !self.is_drained {
            let waited = self.drain.wait();
            waited.map_err(during("wait for frames under way"))?;
            self.is_drained = true;
        }
        Ok(())
    }

    /// Waits until devices with a carrier send. The kernel begins that in the background.
    fn await_start(&mut self) -> Result<(), NetlinkError> {
        let deadline = Instant::now() + START;
        while let Some(name) = self.starting.pop() {
            // The node may have deleted it, or have taken its own end down.
            let is_starting = match self.netlink.link(&name) {
                Ok(link) => link.up && link.has_carrier && !link.is_operational,
                Err(NetlinkError::NoSuchLink(_)) => false,
                Err(error) => return Err(error),
            };
            if is_starting && Instant::now() < deadline {
                self.starting.push(name);
                thread::sleep(PAUSE);
            }
        }
        Ok(())
    }

    /// Removes all devices but those with these indexes and the TAPs behind.
    fn remove_unused(&mut self, present: &HashSet<u32>) -> Result<(), NetlinkError> {
        let taps: HashSet<String> = present.iter().copied().map(tap_behind).collect();
        for link in self.netlink.links()? {
            let is_used = present.contains(&link.index)
                || taps.contains(&link.name)
                || ["lo", DEVICE].contains(&link.name.as_str());
            if !is_used && let Err(error) = self.netlink.delete(link.index) {
                warn!("{}: {error}", link.name);
            }
        }
        Ok(())
    }
}

/// Name of the TAP behind the other end of an interface. No later device has its index.
fn tap_behind(device: u32) -> String {
    format!("t{device:x}")
}

/// Keeps the kernel from sending anything of its own by devices of the calling thread's namespace.
fn keep_silent() -> io::Result<()> {
    for of in ["all", "default"] {
        let path = format!("/proc/sys/net/ipv6/conf/{of}/disable_ipv6");
        match fs::write(path, "1") {
            // A kernel without IPv6.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            result => result?,
        }
    }
    Ok(())
}

/// The file with the processors to which frames that come in by a device are steered. The files of
/// devices in /sys are those of the namespace in which it was mounted.
fn steering(device: &str) -> io::Result<OwnedFd> {
    let context = fsopen("sysfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(&context)?;
    let none = MountAttrFlags::empty();
    let sys = fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, none)?;
    let path = format!("class/net/{device}/queues/rx-0/rps_cpus");
    let flags = OFlags::WRONLY | OFlags::CLOEXEC;
    Ok(openat(&sys, path, flags, Mode::empty())?)
}

#[cfg(test)]
mod tests;
