//! Ports: interfaces and memberships of nodes.

use std::collections::HashSet;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use toroid_fabric::{Epoch, NodeId, Partition, TestKnob};
use toroid_model::ethernet::OffloadKind;
use toroid_protocol::driver::{DriverResponse, PlugFailure, Port};
use tracing::{debug, warn};

use super::{AttachedPort, ControlPath, DriverError, PortFailure, PortKey};
use crate::interface::reaper::LoweredInterface;
use crate::interface::{self, Interface, InterfaceError, Outer, Settling};
use crate::kernel::DirectMember;
use crate::offload::Capabilities;
use crate::port::SwitchPort;
use crate::port::stack_socket::StackSocket;
use crate::switch::{JoinError, SwitchEnded};

/// Time for the addresses of all nodes that timed out before. The kernel needs less than a
/// millisecond.
const SLOW_TIMEOUT: Duration = Duration::from_millis(200);

impl ControlPath {
    pub(super) fn add(
        &mut self,
        port: Port,
        namespace: Option<OwnedFd>,
    ) -> Result<(), SwitchEnded> {
        let key = (port.domain_id, port.node);
        let namespace = namespace.and_then(|namespace| Some((inode(&namespace)?, namespace)));
        let moved = |member: &AttachedPort| {
            namespace
                .as_ref()
                .is_some_and(|(namespace_inode, _)| *namespace_inode != member.namespace_inode)
        };
        if self.ports.get(&key).is_some_and(moved) {
            // The node was made anew, and its former interface ended with it.
            self.remove(key)?;
        }
        if self.remote_members.contains(&key) {
            // The node has moved to this host.
            self.remove(key)?;
        }
        let needs_other = |member: &AttachedPort| match &member.outer {
            Some(_) => !port.offload,
            None => member.index.is_some() && has_kernel_path(&port),
        };
        if self.kernel.is_ok() && self.ports.get(&key).is_some_and(needs_other) {
            // Connections go on with the next interface.
            self.remove(key)?;
        }
        let outcome = match (self.ports.get(&key), namespace) {
            (Some(present), namespace) if present.port.is_same_interface(&port) => {
                return self.renew(port, namespace.map(|(_, namespace)| namespace));
            }
            (Some(_), _) => Err(PortFailure::Differs),
            (None, None) => Err(PortFailure::NoNamespace),
            (None, Some((namespace_inode, _))) if port.stack => {
                self.attach(port, namespace_inode, None)?
            }
            (None, Some((namespace_inode, namespace))) => {
                match self.raise(&port, namespace_inode, namespace) {
                    Ok(interface) => self.attach(port, namespace_inode, Some(interface))?,
                    Err(error) => Err(error.into()),
                }
            }
        };
        self.record(key, outcome);
        Ok(())
    }

    fn raise(
        &mut self,
        port: &Port,
        namespace_inode: u64,
        namespace: OwnedFd,
    ) -> Result<Interface, InterfaceError> {
        let capabilities = self.capabilities(port);
        let in_node = || namespace.try_clone().map_err(InterfaceError::Namespace);
        let is_fit = |outer: Option<&Outer>| match outer {
            Some(_) => port.offload,
            None => self.kernel.is_err() || !has_kernel_path(port),
        };
        if let Some(lowered) = self.reaper.take_back(port, namespace_inode, is_fit) {
            let kernel = self.kernel.as_mut();
            let join = |outer: &_| kernel.map_or(Ok(()), |kernel| kernel.join(port, outer));
            match interface::restore(port, lowered, in_node()?, capabilities, join) {
                Ok(interface) => return Ok(interface),
                // The node may have changed the interface in any way.
                Err(error) => debug!("{} of node {}: {error}", port.ifname, port.place),
            }
        }
        if let Ok(kernel) = &mut self.kernel
            && let Some(interface) = kernel.raise(port, in_node()?, capabilities)?
        {
            return Ok(interface);
        }
        interface::raise(port, namespace, capabilities)
    }

    /// Lets frames of a member pass directly from now on, or no more.
    pub(super) fn admit(&mut self, key: PortKey) -> Result<(), SwitchEnded> {
        let Ok(kernel) = &mut self.kernel else {
            return Ok(());
        };
        let partition = Partition(key.0);
        let has_model = self
            .switch
            .call(move |switch| switch.has_model(partition))?;
        let member = self.ports.get(&key).filter(|_| !has_model);
        let direct = member.and_then(|its| DirectMember::of(&its.port, its.outer.as_ref()?.device));
        kernel.admit(key, direct);
        Ok(())
    }

    /// Adds or changes a member on another host.
    pub(super) fn add_remote(&mut self, host: &str, port: Port) -> Result<(), SwitchEnded> {
        let key = (port.domain_id, port.node);
        if self.ports.contains_key(&key) {
            // The node has moved to that host.
            self.remove(key)?;
        }
        let host = self.host(host);
        let newcomer = (Partition(port.domain_id), port.place);
        let (partition, place) = newcomer;
        // A host without new members of its own does not await the driver.
        let attached = self.switch.call(move |switch| {
            let attached = switch.bridges.attach_remote(port, host);
            switch.correct_neighbours(partition, place);
            attached
        })?;
        if attached.is_ok() {
            self.remote_members.insert(key);
            self.newcomers.push(newcomer);
        }
        self.record(key, attached.map_err(PortFailure::from));
        Ok(())
    }

    /// Applies changes to a present port.
    pub(super) fn renew(
        &mut self,
        port: Port,
        namespace: Option<OwnedFd>,
    ) -> Result<(), SwitchEnded> {
        let key = (port.domain_id, port.node);
        let (partition, place) = (Partition(port.domain_id), port.place);
        let (renewed, capabilities) = (port.clone(), self.capabilities(&port));
        if let Some(member) = self.ports.get_mut(&key) {
            let before = std::mem::replace(&mut member.port, port);
            let changed = before.gateway != member.port.gateway;
            if let (true, Some(namespace), Some(index)) = (changed, namespace, member.index) {
                let changed = interface::set_gateway(&member.port, &before, index, namespace);
                if changed.is_err() {
                    // The next request tries again.
                    member.port.gateway = before.gateway;
                }
                self.record(key, changed.map_err(PortFailure::from));
            }
        }
        let set = self.switch.call(move |switch| {
            switch.renew(renewed);
            switch.set_capabilities(partition, place, capabilities)
        })?;
        self.record(key, set.map_err(PortFailure::Offload));
        self.admit(key)
    }

    fn attach(
        &mut self,
        port: Port,
        namespace_inode: u64,
        interface: Option<Interface>,
    ) -> Result<Result<(), PortFailure>, SwitchEnded> {
        let (key, member) = ((port.domain_id, port.node), port.clone());
        // The process of a stack may have joined groups before, too.
        let joined_before = interface.as_ref().is_none_or(|interface| interface.was_up);
        let (egress, index, settling, outer) = match interface {
            None => (SwitchPort::Stack(None), None, None, None),
            Some(up) => {
                let (index, settling) = (Some(up.index), Some(up.settling));
                (SwitchPort::Tap(up.tap), index, settling, up.outer)
            }
        };
        let (partition, place) = (Partition(port.domain_id), port.place);
        let attached = self.switch.call(move |switch| {
            switch.attach(member, egress)?;
            if joined_before {
                switch.bridges.receive_all(partition, place);
            }
            Ok::<_, JoinError>(())
        })?;
        if attached.is_ok() {
            let attached = AttachedPort {
                port,
                namespace_inode,
                index,
                outer,
            };
            self.ports.insert(key, attached);
            self.admit(key)?;
            self.newcomers.push((partition, place));
            self.settling
                .extend(settling.map(|settling| (key, settling)));
        }
        Ok(attached.map_err(PortFailure::from))
    }

    /// Connects the stack of a process to a port; returns the reason of a failure.
    pub(super) fn plug(
        &self,
        key: PortKey,
        socket: Option<OwnedFd>,
    ) -> Result<Option<PlugFailure>, SwitchEnded> {
        let Some(stack_socket) = socket.map(StackSocket::new) else {
            return Ok(Some(PlugFailure::System));
        };
        if let Err(error) = stack_socket.refuse_descriptors() {
            warn!("cannot refuse descriptors of a process: {error}");
            return Ok(Some(PlugFailure::System));
        }
        let (partition, node) = (Partition(key.0), NodeId(key.1));
        let plugged = self
            .switch
            .call(move |switch| switch.plug(partition, node, stack_socket))?;
        Ok(plugged.err())
    }

    /// Ends a membership: cuts frames at once, and leaves the interface to the reaper.
    pub(super) fn remove(&mut self, key: PortKey) -> Result<(), SwitchEnded> {
        if TestKnob::WithoutEpochCheck.is_set() {
            return Ok(());
        }
        let (partition, node) = (Partition(key.0), NodeId(key.1));
        let member = self.ports.remove(&key);
        self.remote_members.remove(&key);
        self.settling.remove(&key);
        if let Ok(kernel) = &mut self.kernel {
            kernel.expect_frames();
            if let Some(AttachedPort {
                port,
                outer: Some(outer),
                ..
            }) = &member
                && let Err(error) = kernel.cut(port, outer)
            {
                // The node has deleted its end, and with it this one.
                debug!("{} of node {}: {error}", port.ifname, port.place);
            }
        }
        let egress = self
            .switch
            .call(move |switch| switch.detach(partition, node))?;
        // Dropping the port of a stack ends the connection of its process.
        if let (Some(mut member), Some(SwitchPort::Tap(tap))) = (member, egress)
            && let Some(index) = member.index
        {
            let port = member.port;
            if let Err(error) = interface::lower(&tap, index, member.outer.as_mut()) {
                warn!("{} of node {}: {error}", port.ifname, port.place);
            }
            self.reaper.add(LoweredInterface {
                port,
                namespace_inode: member.namespace_inode,
                index,
                tap,
                outer: member.outer,
            });
        }
        Ok(())
    }

    pub(super) fn raise_epoch(&mut self, domain_id: u32, epoch: u32) -> Result<(), SwitchEnded> {
        let (partition, epoch) = (Partition(domain_id), Epoch(epoch));
        self.switch
            .call(move |switch| switch.bridges.raise_epoch(partition, epoch))
    }

    pub(super) fn sync(&mut self, n: u64) -> Result<DriverResponse, DriverError> {
        if let Ok(kernel) = &mut self.kernel {
            let outer = |member: &AttachedPort| member.outer.as_ref().map(|outer| outer.device);
            let present: HashSet<u32> = self.ports.values().filter_map(outer).collect();
            kernel.settle(&present)?;
        }
        let deadline = Settling::deadline(self.settling.len());
        let is_slow = |(key, _): &(PortKey, Settling)| {
            let member = self.ports.get(key);
            member.is_some_and(|member| self.slow_namespaces.contains(&member.namespace_inode))
        };
        let all = std::mem::take(&mut self.settling).into_iter();
        let (slow, prompt): (Vec<_>, Vec<_>) = all.partition(is_slow);
        for (key, settling) in prompt {
            self.settle(key, settling, deadline);
        }
        let deadline = Instant::now() + SLOW_TIMEOUT;
        for (key, settling) in slow {
            self.settle(key, settling, deadline);
        }
        let newcomers = std::mem::take(&mut self.newcomers);
        if !newcomers.is_empty() {
            self.switch.call(move |switch| {
                for (partition, place) in newcomers {
                    switch.answer_pending(partition, place);
                }
            })?;
        }
        Ok(DriverResponse::Synced {
            n,
            errors: std::mem::take(&mut self.failed),
            offload: kinds(self.kernel_offloads),
            without_kernel: self.kernel.as_ref().err().cloned(),
        })
    }

    fn settle(&mut self, key: PortKey, settling: Settling, deadline: Instant) {
        let outcome = settling.wait(deadline);
        if let (Err(InterfaceError::NotLocal(_)), Some(member)) = (&outcome, self.ports.get(&key)) {
            self.slow_namespaces.insert(member.namespace_inode);
        }
        self.record(key, outcome.map_err(PortFailure::from));
    }

    /// Offloads of the interface of a port.
    fn capabilities(&self, port: &Port) -> Capabilities {
        if port.offload {
            self.kernel_offloads
        } else {
            Capabilities::empty()
        }
    }
}

/// Whether a port has an interface for the kernel path. One without offload would leave packets to
/// be cut, and checksums to be computed, by its other end.
fn has_kernel_path(port: &Port) -> bool {
    port.kernel && port.offload
}

/// Inode of a namespace, which identifies it while it exists.
fn inode(namespace: &OwnedFd) -> Option<u64> {
    let file = File::from(namespace.try_clone().ok()?);
    Some(file.metadata().ok()?.ino())
}

/// The names of offloads in the protocol.
fn kinds(capabilities: Capabilities) -> Vec<OffloadKind> {
    let kinds = [
        (Capabilities::CHECKSUM, OffloadKind::Checksum),
        (Capabilities::TSO4, OffloadKind::Tso4),
        (Capabilities::TSO6, OffloadKind::Tso6),
        (Capabilities::USO, OffloadKind::Uso),
    ];
    let supported = |(capability, kind)| capabilities.contains(capability).then_some(kind);
    kinds.into_iter().filter_map(supported).collect()
}
