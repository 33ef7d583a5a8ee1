//! Ends of links: senders and receivers of frames by name, for frames that wait between the
//! decision and the delivery.

use toroid_fabric::{NodeId, Partition, Place};
use toroid_model::ethernet::DropReason;
use toroid_protocol::driver::Port;

use super::ingress::Sender;
use super::{Bridges, Ingress, NextHop};
use crate::tunnel::HostId;

/// End of a link in a domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum End {
    /// A member.
    Member(Place),
    /// The external network.
    Outside,
    /// The members on another host, for frames of groups.
    Host(HostId),
}

impl<X> Bridges<X> {
    /// The ingress of frames from this end; `None` without a sender of this host there.
    pub(crate) fn ingress_at(&self, partition: Partition, end: End) -> Option<Ingress<'_, X>> {
        match end {
            End::Member(place) => self.ingress(partition, place),
            End::Outside => self.outside(partition),
            End::Host(_) => None,
        }
    }
}

impl<'a, X> Ingress<'a, X> {
    /// The partition of the sender and its receivers.
    pub(crate) fn partition(&self) -> Partition {
        Partition(self.bridge.domain.into())
    }

    /// The end and the node of the sender. The node of the external network is that of its uplink.
    pub(crate) fn end(&self) -> (End, NodeId) {
        let port = match self.sender {
            Sender::Member(member) => &member.port,
            Sender::Remote(member) => &member.port,
            Sender::Outside(outside) => return (End::Outside, NodeId(outside.node)),
        };
        (End::Member(port.place), NodeId(port.node))
    }

    /// The present next hop to an end.
    ///
    /// # Errors
    /// The reason for which frames of the sender do not get there.
    pub(crate) fn reach(&self, end: End) -> Result<NextHop<'a, X>, DropReason> {
        match end {
            End::Member(place) => self.next_hop(place),
            End::Outside => self.uplink().unwrap_or(Err(DropReason::NoSuchMember)),
            End::Host(host) => {
                let mut hosts = self.remote_hosts();
                let has_members = hosts.any(|(present, _)| *present == host);
                let next_hop = NextHop::Host(host, None);
                has_members
                    .then_some(next_hop)
                    .ok_or(DropReason::NoSuchMember)
            }
        }
    }

    /// The members on another host that the sender may reach.
    pub(crate) fn members_at(&self, host: HostId) -> impl Iterator<Item = &'a Port> {
        let sender = self.sender;
        let members = self.bridge.remote.members.values();
        let there = members.filter(move |member| member.host == host);
        there
            .map(|member| &member.port)
            .filter(move |port| sender.may_reach(port))
    }
}

impl<X> NextHop<'_, X> {
    /// The end of the receivers.
    pub(crate) fn end(&self) -> End {
        match self {
            NextHop::Member(port, _) | NextHop::Host(_, Some(port)) => End::Member(port.place),
            NextHop::Outside(..) => End::Outside,
            NextHop::Host(host, None) => End::Host(*host),
        }
    }
}
