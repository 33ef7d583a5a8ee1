//! Members of a segment that other hosts carry, and what is believed of those hosts.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap, btree_map};

use domains::driver_protocol::{DropReason, Port};
use toroid_fabric::{Epoch, NodeId, Partition, Place};

use super::ingress::Sender;
use super::{AttachError, DropCounters, Ingress, Network, Segment, Segments, checked_domain};
use crate::tunnel::{HostId, Tag};

/// Those of one segment.
#[derive(Debug, Default)]
pub(super) struct Far {
    members: HashMap<Place, FarMember>,
    crews: BTreeMap<HostId, Crew>,
    /// Of what hosts have sent in the segment's name, whether they have members or not.
    drops: RefCell<BTreeMap<HostId, DropCounters>>,
}

/// One of them.
#[derive(Debug)]
pub(super) struct FarMember {
    pub(super) port: Port,
    pub(super) host: HostId,
    /// The epoch in which it was told to be a member, from when it has been one without a break.
    since: Epoch,
}

/// The members of one host.
#[derive(Debug, Default)]
pub(super) struct Crew {
    members: usize,
    full: usize,
}

impl Crew {
    /// Whether any of them is a full member.
    pub(super) fn has_full(&self) -> bool {
        self.full > 0
    }
}

impl Far {
    pub(super) fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    pub(super) fn member(&self, place: Place) -> Option<&FarMember> {
        self.members.get(&place)
    }

    pub(super) fn port(&self, place: Place) -> Option<&Port> {
        self.member(place).map(|far| &far.port)
    }

    /// The hosts that carry some.
    pub(super) fn crews(&self) -> btree_map::Iter<'_, HostId, Crew> {
        self.crews.iter()
    }

    pub(super) fn count(&self, host: HostId, reason: DropReason) {
        let mut drops = self.drops.borrow_mut();
        drops.entry(host).or_default().count(reason);
    }

    fn insert(&mut self, port: Port, host: HostId, since: Epoch) {
        let crew = self.crews.entry(host).or_default();
        crew.members += 1;
        crew.full += usize::from(!port.limited);
        let far = FarMember { port, host, since };
        self.members.insert(far.port.place, far);
    }

    fn remove(&mut self, node: NodeId) -> Option<FarMember> {
        let is_it = |far: &&FarMember| far.port.node == node.0;
        let place = self.members.values().find(is_it)?.port.place;
        let far = self.members.remove(&place)?;
        if let btree_map::Entry::Occupied(mut entry) = self.crews.entry(far.host) {
            let crew = entry.get_mut();
            crew.members -= 1;
            crew.full -= usize::from(!far.port.limited);
            if crew.members == 0 {
                entry.remove();
            }
        }
        Some(far)
    }
}

impl<X> Segments<X> {
    /// Makes `port` a member of its domain's segment that another host carries. One that is there already
    /// may come again with whatever has changed of it, and keeps the groups that it has joined.
    ///
    /// # Errors
    /// [`AttachError`]; nothing has changed then.
    pub fn attach_far(&mut self, port: Port, host: HostId) -> Result<(), AttachError> {
        let domain = checked_domain(&port)?;
        let partition = Partition(port.domain_id);
        self.networks.entry(partition).or_insert(Network::of(&port));
        let segment = self.segments.entry(partition);
        let segment = segment.or_insert_with(|| Segment::new(domain));
        segment.attach_far(port, host)
    }

    /// Where a frame comes in that another host says is `tag`'s, or `None`, and it is counted, if that host
    /// has no say in this. Of domains that are not here nothing is counted here.
    ///
    /// # Errors
    /// [`NotHere`].
    pub fn far(&self, host: HostId, tag: &Tag) -> Result<Option<Ingress<'_, X>>, NotHere> {
        let segment = self.segments.get(&tag.partition).ok_or(NotHere)?;
        match segment.admit(host, tag) {
            Ok(far) => Ok(Some(self.ingress_of(segment, Sender::Far(far)))),
            Err(reason) => {
                segment.far.count(host, reason);
                Ok(None)
            }
        }
    }

    /// What became of frames that other hosts have sent in a partition's name and nobody received.
    pub fn far_drops(&self, partition: Partition) -> Vec<(HostId, BTreeMap<DropReason, u64>)> {
        let drops = self.segments.get(&partition).map(|s| s.far.drops.borrow());
        let all = drops.iter().flat_map(|drops| drops.iter());
        all.map(|(host, drops)| (*host, drops.all())).collect()
    }
}

/// No member here is of that domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotHere;

impl<X> Segment<X> {
    fn attach_far(&mut self, port: Port, host: HostId) -> Result<(), AttachError> {
        let is_same = |far: &FarMember| {
            let addresses = |port: &Port| (port.node, port.ipv4, port.ipv6);
            addresses(&far.port) == addresses(&port)
        };
        let mut since = Epoch(port.epoch);
        let present = self.far.member(port.place).filter(|far| is_same(far));
        match present.map(|far| far.since) {
            Some(before) if port.epoch >= self.epoch.0 => {
                since = before;
                self.far.remove(NodeId(port.node));
                self.epoch.0 = port.epoch;
            }
            _ => self.claim(&port)?,
        }
        self.far.insert(port, host, since);
        Ok(())
    }

    pub(super) fn detach_far(&mut self, node: NodeId) {
        if let Some(far) = self.far.remove(node) {
            self.forget(&far.port);
        }
    }

    /// The member that a host speaks for.
    fn admit(&self, host: HostId, tag: &Tag) -> Result<&FarMember, DropReason> {
        let far = self.far.member(tag.place).filter(|far| far.host == host);
        let far = far.ok_or(DropReason::WrongSource)?;
        // A host that is behind us has not heard of somebody else's leaving yet: who left is no far
        // member any more, and of one that is back only what is newer counts. One that is ahead of us
        // has heard of a change that we have not.
        if (far.since..=self.epoch).contains(&tag.epoch) {
            Ok(far)
        } else {
            Err(DropReason::OtherEpoch)
        }
    }
}
