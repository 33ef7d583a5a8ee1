//! Members of a bridge that other hosts decide_and_execute, and what is believed of those hosts.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap, btree_map};

use toroid_fabric::{Epoch, NodeId, Partition, Place};
use toroid_model::ethernet::DropReason;
use toroid_protocol::driver::Port;

use super::ingress::Sender;
use super::{AttachError, Bridge, Bridges, DropCounters, Ingress, Subnet, checked_domain};
use crate::tunnel::{HostId, TunnelHeader};

/// Those of one bridge.
#[derive(Debug, Default)]
pub(super) struct RemoteMembers {
    members: HashMap<Place, RemoteMember>,
    hosts: BTreeMap<HostId, RemoteHost>,
    /// Of what hosts have sent in the bridge's name, whether they have members or not.
    drops: RefCell<BTreeMap<HostId, DropCounters>>,
}

/// One of them.
#[derive(Debug)]
pub(super) struct RemoteMember {
    pub(super) port: Port,
    pub(super) host: HostId,
    /// The epoch in which it was told to be a member, from when it has been one without a break.
    since: Epoch,
}

/// The members of one host.
#[derive(Debug, Default)]
pub(super) struct RemoteHost {
    members: usize,
    full: usize,
}

impl RemoteHost {
    /// Whether any of them is a full member.
    pub(super) fn has_full(&self) -> bool {
        self.full > 0
    }
}

impl RemoteMembers {
    pub(super) fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    pub(super) fn member(&self, place: Place) -> Option<&RemoteMember> {
        self.members.get(&place)
    }

    pub(super) fn port(&self, place: Place) -> Option<&Port> {
        self.member(place).map(|member| &member.port)
    }

    /// The hosts that carry some.
    pub(super) fn hosts(&self) -> btree_map::Iter<'_, HostId, RemoteHost> {
        self.hosts.iter()
    }

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

    fn remove(&mut self, node: NodeId) -> Option<RemoteMember> {
        let is_it = |member: &&RemoteMember| member.port.node == node.0;
        let place = self.members.values().find(is_it)?.port.place;
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
    /// Makes `port` a member of its domain's bridge that another host carries. One that is there already
    /// may come again with whatever has changed of it, and keeps the groups that it has joined.
    ///
    /// # Errors
    /// [`AttachError`]; nothing has changed then.
    pub fn attach_remote(&mut self, port: Port, host: HostId) -> Result<(), AttachError> {
        let domain = checked_domain(&port)?;
        let partition = Partition(port.domain_id);
        self.subnets.entry(partition).or_insert(Subnet::of(&port));
        let bridge = self.bridges.entry(partition);
        let bridge = bridge.or_insert_with(|| Bridge::new(domain));
        bridge.attach_remote(port, host)
    }

    /// Where a frame comes in that another host says is `tag`'s, or `None`, and it is counted, if that host
    /// has no say in this. Of domains that are not here nothing is counted here.
    ///
    /// # Errors
    /// [`UnknownDomain`].
    pub fn remote_ingress(
        &self,
        host: HostId,
        tag: &TunnelHeader,
    ) -> Result<Option<Ingress<'_, X>>, UnknownDomain> {
        let bridge = self.bridges.get(&tag.partition).ok_or(UnknownDomain)?;
        match bridge.admit(host, tag) {
            Ok(member) => Ok(Some(self.ingress_of(bridge, Sender::Remote(member)))),
            Err(reason) => {
                bridge.remote.count(host, reason);
                Ok(None)
            }
        }
    }

    /// What became of frames that other hosts have sent in a partition's name and nobody received.
    pub fn remote_drops(&self, partition: Partition) -> Vec<(HostId, BTreeMap<DropReason, u64>)> {
        let drops = self
            .bridges
            .get(&partition)
            .map(|s| s.remote.drops.borrow());
        let all = drops.iter().flat_map(|drops| drops.iter());
        all.map(|(host, drops)| (*host, drops.all())).collect()
    }
}

/// No member here is of that domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownDomain;

impl<X> Bridge<X> {
    fn attach_remote(&mut self, port: Port, host: HostId) -> Result<(), AttachError> {
        let is_same = |member: &RemoteMember| {
            let addresses = |port: &Port| (port.node, port.ipv4, port.ipv6);
            addresses(&member.port) == addresses(&port)
        };
        let mut since = Epoch(port.epoch);
        let present = self
            .remote
            .member(port.place)
            .filter(|member| is_same(member));
        match present.map(|member| member.since) {
            Some(before) if port.epoch >= self.epoch.0 => {
                since = before;
                self.remote.remove(NodeId(port.node));
                self.epoch.0 = port.epoch;
            }
            _ => self.register(&port)?,
        }
        self.remote.insert(port, host, since);
        Ok(())
    }

    pub(super) fn detach_remote(&mut self, node: NodeId) {
        if let Some(member) = self.remote.remove(node) {
            self.forget(&member.port);
        }
    }

    /// The member that a host speaks for.
    fn admit(&self, host: HostId, tag: &TunnelHeader) -> Result<&RemoteMember, DropReason> {
        let member = self
            .remote
            .member(tag.place)
            .filter(|member| member.host == host);
        let member = member.ok_or(DropReason::WrongSource)?;
        // A host that is behind us has not heard of somebody else's leaving yet: who left is no remote
        // member any more, and of one that is back only what is newer counts. One that is ahead of us
        // has heard of a change that we have not.
        if (member.since..=self.epoch).contains(&tag.epoch) {
            Ok(member)
        } else {
            Err(DropReason::OtherEpoch)
        }
    }
}
