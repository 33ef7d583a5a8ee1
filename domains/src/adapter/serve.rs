//! What processes of other hosts want of nodes here, done in the name of theirs.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};

use fabric::link::LinkCheck;
use fabric::provider::Channel;
use fabric::shm::RemoteRegion;
use fabric::tcp::{self, Cutter, tune};
use fabric::{Access, Epoch, NodeId, OpError, Partition, Protocol, RemoteKey};

use super::messages::Service;
use super::{Adapter, lock};
use crate::member::{Dial, Domain, Member, MemberError};
use crate::protocol::{Refusal, RefusalKind};

/// Attachments in the names of far nodes, as long as somebody is served by them.
#[derive(Debug, Default)]
pub(super) struct Members(Mutex<HashMap<NodeId, (Member, usize)>>);

/// One of them.
struct Attached<'a> {
    adapter: &'a Adapter,
    member: Member,
}

/// Serves a connection until it ends.
pub(super) fn serve(adapter: &Arc<Adapter>, service: &Service, socket: OwnedFd) {
    let from = NodeId(service.from);
    let result = Attached::new(adapter, from).and_then(|attached| {
        let domain = attached.member.domain(&service.domain)?;
        if domain.partition() != Partition(service.partition) {
            // Another one has its name by now.
            return Err(MemberError::Revoked);
        }
        match service.protocol {
            None => operate(&domain, service, socket),
            Some(protocol) => relay(&domain, service, Protocol(protocol), socket),
        }
    });
    if let Err(error) = result {
        tracing::info!(
            "node number {} of another host is not served: {error}",
            service.from
        );
    }
}

/// Executes operations on the memory of a node.
fn operate(domain: &Domain, service: &Service, socket: OwnedFd) -> Result<(), MemberError> {
    tune::for_serving(&socket)?;
    let socket = Arc::new(socket);
    let to = NodeId(service.to);
    // Those who hold the other end hear of its end from their own agent; who does not listen shall
    // not hold this one for ever.
    domain.cut_when_revoked(to, Cutter::of(&socket));
    let regions = Regions { domain, to };
    tcp::serve(socket, &regions).map_err(|error| MemberError::Agent(error.to_string()))
}

/// Carries packets to a listener, and back.
fn relay(
    domain: &Domain,
    service: &Service,
    protocol: Protocol,
    socket: OwnedFd,
) -> Result<(), MemberError> {
    tune::for_packets(&socket)?;
    let (member, to) = (domain.member(), NodeId(service.to));
    let check = LinkCheck {
        partition: domain.partition(),
        peer: member.node(),
        protocol,
        // As at the other end.
        since: Epoch(0),
    };
    let membership = domain.membership();
    let far = tcp::Channel::open(socket, to, check, membership, Arc::default(), None)?;
    let place = member.torus().place(to).ok_or(MemberError::Revoked)?;
    match domain.connect(place, protocol) {
        Ok(Channel::Shm(near)) => {
            tcp::relay(near, far);
            Ok(())
        }
        other => {
            far.finish(tcp::wire::End::PeerDead);
            other.map(drop)
        }
    }
}

/// The regions of a node, as a far one may open them.
struct Regions<'a> {
    domain: &'a Domain,
    to: NodeId,
}

impl tcp::Regions for Regions<'_> {
    fn open(&self, key: RemoteKey, access: Access) -> Result<RemoteRegion, OpError> {
        if (key.node, key.partition) != (self.to, self.domain.partition()) {
            return Err(OpError::WrongKey);
        }
        let opened = self.domain.open_here(key, access);
        let opened = opened.map_err(|error| match error {
            MemberError::Refused(Refusal { kind, .. }) => match kind {
                RefusalKind::NotFound => OpError::WrongKey,
                RefusalKind::Denied if self.is_member() => OpError::MissingRight { needed: access },
                RefusalKind::Denied => OpError::Revoked,
                _ => OpError::Unreachable,
            },
            MemberError::Revoked => OpError::Revoked,
            _ => OpError::Unreachable,
        });
        opened?.ok_or(OpError::WrongKey)
    }
}

impl Regions<'_> {
    /// Whether both nodes are members, so that it is for another reason that something is denied.
    fn is_member(&self) -> bool {
        let place = self.domain.member().torus().place(self.to);
        let info = self.domain.info();
        info.is_ok_and(|info| info.members.iter().any(|member| Some(member.node) == place))
    }
}

impl<'a> Attached<'a> {
    fn new(adapter: &'a Arc<Adapter>, node: NodeId) -> Result<Self, MemberError> {
        let mut members = lock(&adapter.members.0);
        if let Some((member, count)) = members.get_mut(&node) {
            *count += 1;
            let member = member.clone();
            return Ok(Attached { adapter, member });
        }
        let dialing = Arc::downgrade(adapter);
        let dial = move || {
            let adapter = dialing.upgrade().ok_or(MemberError::NotInNode)?;
            adapter.dial(node)
        };
        let member = Member::attach_through(Dial::new(dial))?;
        members.insert(node, (member.clone(), 1));
        Ok(Attached { adapter, member })
    }
}

impl Drop for Attached<'_> {
    fn drop(&mut self) {
        let mut members = lock(&self.adapter.members.0);
        let node = self.member.node();
        if let Some((_, count)) = members.get_mut(&node) {
            *count -= 1;
            if *count == 0 {
                members.remove(&node);
            }
        }
    }
}
