//! Members on other hosts, and the trust in those hosts.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap, btree_map};

use toroid_fabric::{Epoch, Partition, Place};
use toroid_model::ethernet::DropReason;
use toroid_protocol::driver::Port;

use super::ingress::Sender;
use super::{AttachError, Bridge, Bridges, DropCounters, Ingress};
use crate::tunnel::{HostId, TunnelHeader};

/// Remote members of one bridge.
#[derive(Debug, Default)]
pub(super) struct RemoteMembers {
    pub(super) members: HashMap<Place, RemoteMember>,
    /// Hosts with members.
    pub(super) hosts: BTreeMap<HostId, RemoteHost>,
    /// Dropped frames by host, also of hosts without members.
    drops: RefCell<BTreeMap<HostId, DropCounters>>,
}

/// A member on another host.
#[derive(Debug)]
pub(super) struct RemoteMember {
    pub(super) port: Port,
    pub(super) host: HostId,
    /// Epoch in which the membership began, without a break since.
    since: Epoch,
}

/// Numbers of members on one host.
#[derive(Debug, Default)]
pub(super) struct RemoteHost {
    members: usize,
    pub(super) full: usize,
}

impl RemoteMembers {
    pub(super) fn count(&self, host: HostId, reason: DropReason) {
        let mut drops = self.drops.borrow_mut();
        drops.entry(host).or_default().count(reason);
    }

    fn insert(&mut self, port: Port, host: HostId, since: Epoch) {
        let remote_host = self.hosts.entry(host).or_default();
        remote_host.members += 1;
        remote_host.full += usize::from(!port.limited);
        let member = RemoteMember { port, host, since };
        self.members.insert(member.port.place, member);
    }

    fn remove(&mut self, place: Place) -> Option<RemoteMember> {
        let member = self.members.remove(&place)?;
        if let btree_map::Entry::Occupied(mut entry) = self.hosts.entry(member.host) {
            let remote_host = entry.get_mut();
            remote_host.members -= 1;
            remote_host.full -= usize::from(!member.port.limited);
            if remote_host.members == 0 {
                entry.remove();
            }
        }
        Some(member)
    }
}

impl<X> Bridges<X> {
    /// Makes `port` a member on another host. A present member may be attached again with changes,
    /// and keeps its multicast memberships.
    ///
    /// # Errors
    /// [`AttachError`]; nothing has changed then.
    pub fn attach_remote(&mut self, port: Port, host: HostId) -> Result<(), AttachError> {
        self.bridge_for(&port)?.attach_remote(port, host)
    }

    /// The ingress of a frame from another host with this header. `None`, and the frame is counted,
    /// if the host may not send it.
    ///
    /// # Errors
    /// [`UnknownDomain`]; nothing is counted.
    pub fn remote_ingress(
        &self,
        host: HostId,
        header: &TunnelHeader,
    ) -> Result<Option<Ingress<'_, X>>, UnknownDomain> {
        let bridge = self.bridges.get(&header.partition).ok_or(UnknownDomain)?;
        match bridge.admit(host, header) {
            Ok(member) => Ok(Some(self.ingress_of(bridge, Sender::Remote(member)))),
            Err(reason) => {
                bridge.remote.count(host, reason);
                Ok(None)
            }
        }
    }

    /// Dropped frames from other hosts in a partition, by host and reason.
    pub(crate) fn remote_drops(
        &self,
        partition: Partition,
    ) -> Vec<(HostId, BTreeMap<DropReason, u64>)> {
        let drops = self
            .bridges
            .get(&partition)
            .map(|s| s.remote.drops.borrow());
        let all = drops.iter().flat_map(|drops| drops.iter());
        all.map(|(host, drops)| (*host, drops.all())).collect()
    }
}

/// This host has no bridge of the domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownDomain;

impl<X> Bridge<X> {
    fn attach_remote(&mut self, port: Port, host: HostId) -> Result<(), AttachError> {
        let is_same = |member: &RemoteMember| {
            let addresses = |port: &Port| (port.node, port.ipv4, port.ipv6);
            addresses(&member.port) == addresses(&port)
        };
        let mut since = Epoch(port.epoch);
        let present = self.remote.members.get(&port.place);
        match present
            .filter(|member| is_same(member))
            .map(|member| member.since)
        {
            Some(before) if port.epoch >= self.epoch.0 => {
                since = before;
                self.remote.remove(port.place);
                self.epoch.0 = port.epoch;
            }
            _ => self.register(&port)?,
        }
        self.remote.insert(port, host, since);
        Ok(())
    }

    pub(super) fn detach_remote(&mut self, place: Place) {
        if let Some(member) = self.remote.remove(place) {
            self.forget(&member.port);
        }
    }

    /// The member for which a host speaks.
    fn admit(&self, host: HostId, header: &TunnelHeader) -> Result<&RemoteMember, DropReason> {
        let member = self.remote.members.get(&header.place);
        let member = member.filter(|member| member.host == host);
        let member = member.ok_or(DropReason::WrongSource)?;
        // A host that is behind has not heard yet that another member has left. A former member is
        // no remote member any more; a member that is back is accepted in its new epochs only. A
        // host that is ahead knows of a change that is unknown here.
        if (member.since..=self.epoch).contains(&header.epoch) {
            Ok(member)
        } else {
            Err(DropReason::OtherEpoch)
        }
    }
}
