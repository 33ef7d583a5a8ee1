//! Operations and channels of remote processes at nodes of this host, in the name of the remote
//! nodes.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use nix::errno::Errno;
use parking_lot::Mutex;
use toroid_client::member::{Dial, Domain, Member, MemberError};
use toroid_fabric::emulation;
use toroid_fabric::link::LinkCheck;
use toroid_fabric::provider::Channel;
use toroid_fabric::tcp::{self, Connection, Opened, tune};
use toroid_fabric::{Access, Epoch, NodeId, OpError, Partition, Protocol, RemoteKey};
use toroid_model::rdma::Rdma;
use toroid_model::refusal::{Refusal, RefusalKind};
use toroid_protocol::proxy::Service;
use toroid_protocol::seal::SealKeys;

use super::TargetProxy;
use super::accounts::{Entry, OPEN};
use super::rates::Sender;

/// Attachments in the names of remote nodes, while they serve a connection.
#[derive(Debug, Default)]
pub(super) struct Members(Mutex<HashMap<NodeId, Slot>>);

/// Locked during the attachment, which the node's other connections await.
type Slot = Arc<Mutex<Option<Member>>>;

/// An attachment in use by one connection.
struct Attached<'a> {
    proxy: &'a TargetProxy,
    node: NodeId,
    slot: Slot,
    member: Member,
}

/// Serves a connection until it ends.
pub(super) fn serve(proxy: &Arc<TargetProxy>, service: &Service, socket: OwnedFd) {
    let from = NodeId(service.from);
    let result = Attached::new(proxy, from).and_then(|attached| {
        let keys = service.keys.clone().map(|SealKeys(keys)| keys);
        let connection = Connection::new(socket, keys);
        let fault = connection.fault();
        let (partition, to) = (Partition(service.partition), NodeId(service.to));
        // Booked before the check of membership. The remote process gets the end from its own
        // agent; a remote side that does not listen must not hold this connection for ever.
        attached
            .member
            .cut_when_revoked(partition, to, connection.cutter());
        let domain = attached.member.domain(&service.domain)?;
        if !are_members(&domain, partition, to) {
            return Err(MemberError::Revoked);
        }
        let rdma = service.rdma.as_ref();
        let served = match service.protocol {
            None => operate(proxy, &domain, to, rdma, connection),
            Some(protocol) => relay(proxy, &domain, to, Protocol(protocol), rdma, connection),
        };
        if let Some(fault) = fault.get() {
            tracing::warn!("node number {} loses a connection: {fault}", service.from);
        }
        served
    });
    if let Err(error) = result {
        tracing::info!(
            "node number {} of another host is not served: {error}",
            service.from
        );
    }
}

/// Whether a domain still has this number, and this node and `to` are members.
fn are_members(domain: &Domain, partition: Partition, to: NodeId) -> bool {
    let place = domain.member().torus().place(to);
    let info = domain.info();
    info.is_ok_and(|info| {
        info.id == partition.0 && info.members.iter().any(|member| Some(member.node) == place)
    })
}

/// Executes operations on a node's memory.
fn operate(
    proxy: &Arc<TargetProxy>,
    domain: &Domain,
    to: NodeId,
    rdma: Option<&Rdma>,
    connection: Connection,
) -> Result<(), MemberError> {
    tune::for_serving(&connection)?;
    let regions = Regions {
        proxy,
        domain,
        to,
        sender: proxy
            .rates
            .sender(domain.partition(), domain.member().node()),
        #[cfg(feature = "verbs")]
        rdma,
    };
    #[cfg(not(feature = "verbs"))]
    let _ = rdma;
    tcp::serve(connection, &regions).map_err(|error| MemberError::Agent(error.to_string()))
}

/// Relays packets to a listener, and back.
fn relay(
    proxy: &Arc<TargetProxy>,
    domain: &Domain,
    to: NodeId,
    protocol: Protocol,
    rdma: Option<&Rdma>,
    connection: Connection,
) -> Result<(), MemberError> {
    tune::for_packets(&connection)?;
    let member = domain.member();
    let check = LinkCheck {
        partition: domain.partition(),
        peer: member.node(),
        protocol,
        // As at the other end.
        since: Epoch(0),
    };
    let membership = domain.membership();
    let mut remote = tcp::Channel::open(connection, to, check, membership, Arc::default(), None)?;
    let place = member.torus().place(to).ok_or(MemberError::Revoked)?;
    let local = domain.connect(place, protocol);
    let local = match local.map(emulation::Channel::into_provider) {
        Ok(Channel::Shm(local)) => local,
        other => {
            remote.finish(tcp::wire::End::PeerDead);
            return other.map(drop);
        }
    };
    let partition = domain.partition();
    let turns = PacketTurns {
        proxy,
        partition,
        inward: proxy.rates.sender(partition, member.node()),
        outward: proxy.rates.sender(partition, to),
    };
    #[cfg(feature = "verbs")]
    if let Some(rdma) = rdma {
        let remote = super::channels::channel(proxy, domain, to, rdma, remote)?;
        tcp::relay(local, remote, &turns);
        return Ok(());
    }
    #[cfg(not(feature = "verbs"))]
    let _ = rdma;
    tcp::relay(local, remote, &turns);
    Ok(())
}

/// Turns of the packets of a channel, each charged to the member that has sent it.
struct PacketTurns<'a> {
    proxy: &'a TargetProxy,
    partition: Partition,
    /// For the remote member.
    inward: Sender,
    /// For the member of this host.
    outward: Sender,
}

impl tcp::Turns for PacketTurns<'_> {
    fn await_turn(&self) {
        self.proxy.await_turn(self.partition);
    }

    fn take(&self, way: tcp::Way, bytes: usize) -> Option<Duration> {
        match way {
            tcp::Way::Inward => self.inward.take(bytes),
            tcp::Way::Outward => self.outward.take(bytes),
        }
    }

    fn leave(&self) {
        self.inward.leave();
        self.outward.leave();
    }
}

/// Regions of a node, opened in the name of a remote one.
struct Regions<'a> {
    proxy: &'a Arc<TargetProxy>,
    domain: &'a Domain,
    to: NodeId,
    /// For the remote node.
    sender: Sender,
    #[cfg(feature = "verbs")]
    rdma: Option<&'a Rdma>,
}

impl tcp::Regions for Regions<'_> {
    fn await_turn(&self) {
        self.proxy.await_turn(self.domain.partition());
    }

    fn take(&self, bytes: usize) -> Option<Duration> {
        self.sender.take(bytes)
    }

    fn open(&self, key: RemoteKey, access: Access) -> Result<Opened, OpError> {
        let partition = self.domain.partition();
        if (key.node, key.partition) != (self.to, partition) {
            return Err(OpError::WrongKey);
        }
        let opened = self.domain.open_here(key, access);
        let opened = opened.map_err(|error| match error {
            MemberError::Refused(refusal) => {
                let are_members = || are_members(self.domain, partition, self.to);
                refused(&refusal, access, are_members)
            }
            MemberError::Revoked => OpError::Revoked,
            MemberError::System(_) => NO_ROOM,
            _ => OpError::Unreachable,
        });
        let region = opened?.ok_or(OpError::WrongKey)?;
        let node = self.domain.member().node();
        let entry = Entry::add(self.proxy, OPEN, node, region.len()).map_err(|_| NO_ROOM)?;
        Ok(Opened::new(region, Arc::new(entry)))
    }

    #[cfg(feature = "verbs")]
    fn connect_device(
        &self,
        peer: &toroid_fabric::parameters::ConnectionParameters,
    ) -> std::io::Result<Box<dyn tcp::DeviceTarget>> {
        let device = self.rdma.and_then(toroid_client::rdma::device);
        let device = device.ok_or(Errno::EOPNOTSUPP)?;
        Ok(Box::new(toroid_fabric::failover::Target::new(
            &device, peer,
        )?))
    }

    #[cfg(feature = "verbs")]
    fn admit(&self, region: &toroid_fabric::shm::RemoteRegion) -> Option<toroid_fabric::DropGuard> {
        let node = self.domain.member().node();
        let entry = Entry::add(self.proxy, super::accounts::REGISTERED, node, region.len()).ok()?;
        Some(Arc::new(entry))
    }
}

/// Error of a region that the agent has refused. A leaver is a member until its leave is durable.
fn refused(refusal: &Refusal, needed: Access, are_members: impl FnOnce() -> bool) -> OpError {
    match refusal.kind {
        RefusalKind::NotFound => OpError::WrongKey,
        RefusalKind::Denied if are_members() => OpError::MissingRight { needed },
        RefusalKind::Denied | RefusalKind::Leaving => OpError::Revoked,
        RefusalKind::Exhausted => NO_ROOM,
        _ => OpError::Unreachable,
    }
}

/// Error of this host without room for the remote side.
const NO_ROOM: OpError = OpError::System {
    errno: Errno::ENOBUFS as i32,
};

impl<'a> Attached<'a> {
    fn new(proxy: &'a Arc<TargetProxy>, node: NodeId) -> Result<Self, MemberError> {
        let slot = Arc::clone(proxy.members.0.lock().entry(node).or_default());
        let mut place = slot.lock();
        // The agent may have ended the attachment: then another one is needed.
        let present = place.take().filter(|member| !member.has_ended());
        let member = match present {
            Some(member) => member,
            None => {
                let dialing = Arc::downgrade(proxy);
                Member::attach_through(Dial::new(move || {
                    let proxy = dialing.upgrade().ok_or(MemberError::NotInNode)?;
                    proxy.dial(node)
                }))?
            }
        };
        *place = Some(member.clone());
        drop(place);
        Ok(Attached {
            proxy,
            node,
            slot,
            member,
        })
    }
}

impl Drop for Attached<'_> {
    fn drop(&mut self) {
        let mut members = self.proxy.members.0.lock();
        // One reference is in the map, and one here.
        if Arc::strong_count(&self.slot) <= 2 {
            members.remove(&self.node);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::members::tests::{Process, members};

    /// A leaver that opened a region again just before it was cut off once missed a right.
    #[test]
    fn a_leaver_is_told_that_its_access_is_revoked() {
        let members = members();
        let mut owner = Process::attach(&members, 0);
        let leaver = Process::attach(&members, 1);
        let key = owner.alloc(Access::all());
        let shrink = members.plan(|plan| plan.shrink("blue", &[NodeId(1)].into()));
        members.note_leaving(&[shrink.unwrap().0]);
        let refusal = members.open(leaver.id, key, Access::all()).unwrap_err();
        // As the proxy gets it from the agent.
        let refusal = serde_json::from_value(serde_json::to_value(refusal).unwrap()).unwrap();
        assert_eq!(refused(&refusal, Access::all(), || true), OpError::Revoked);
    }

    #[test]
    fn a_member_without_a_right_is_told_so() {
        let denied = |kind, are_members| {
            let refusal = Refusal::new(kind, "", "");
            refused(&refusal, Access::all(), || are_members)
        };
        assert_eq!(denied(RefusalKind::Denied, false), OpError::Revoked);
        let needed = Access::all();
        let missing = OpError::MissingRight { needed };
        assert_eq!(denied(RefusalKind::Denied, true), missing);
    }
}
