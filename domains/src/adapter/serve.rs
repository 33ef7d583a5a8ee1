//! What processes of other hosts want of nodes here, done in the name of theirs.

use std::collections::HashMap;
use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};

use fabric::link::LinkCheck;
use fabric::provider::Channel;
use fabric::tcp::{self, Cutter, Opened, tune};
use fabric::{Access, Epoch, NodeId, OpError, Partition, Protocol, RemoteKey};
use nix::errno::Errno;

use super::messages::Service;
use super::{Adapter, lock};
use crate::member::{Dial, Domain, Member, MemberError};
use crate::protocol::{Refusal, RefusalKind};
use crate::rdma::Rdma;

/// Attachments in the names of far nodes, as long as somebody is served by them.
#[derive(Debug, Default)]
pub(super) struct Members(Mutex<HashMap<NodeId, Slot>>);

/// Who attaches is waited for by those who need the same.
type Slot = Arc<Mutex<Option<Member>>>;

/// One of them.
struct Attached<'a> {
    adapter: &'a Adapter,
    node: NodeId,
    slot: Slot,
    member: Member,
}

/// What processes of far nodes have of one kind.
#[derive(Debug, Default)]
pub(super) struct Accounts(Mutex<HashMap<NodeId, Amount>>);

#[derive(Clone, Copy, Debug, Default)]
struct Amount {
    regions: usize,
    bytes: u64,
}

/// What is limited.
#[derive(Clone, Copy)]
struct Kind {
    accounts: fn(&Adapter) -> &Accounts,
    /// For one node, and for all.
    max: [Amount; 2],
}

/// Regions that are open: each takes a mapping of this process, of which there are not many, and of
/// its addresses.
const OPEN: Kind = Kind {
    accounts: |adapter| &adapter.open,
    max: [
        Amount {
            regions: 4096,
            bytes: 16 << 40,
        },
        Amount {
            regions: 32_768,
            bytes: 64 << 40,
        },
    ],
};

/// Regions that an RDMA adapter was told of: it has to forget all of a node's in the time that the
/// node has to acknowledge a change.
#[cfg(any(feature = "verbs", test))]
const REGISTERED: Kind = Kind {
    accounts: |adapter| &adapter.registered,
    max: [
        Amount {
            regions: 64,
            bytes: 16 << 30,
        },
        Amount {
            regions: 1024,
            bytes: 128 << 30,
        },
    ],
};

/// Channels whose packets go by an RDMA adapter: each takes memory that is registered.
#[cfg(any(feature = "verbs", test))]
const CHANNELS: Kind = Kind {
    accounts: |adapter| &adapter.channels,
    max: [
        Amount {
            regions: 64,
            bytes: 1 << 30,
        },
        Amount {
            regions: 1024,
            bytes: 16 << 30,
        },
    ],
};

/// A region in an account.
struct Entry {
    adapter: Arc<Adapter>,
    accounts: fn(&Adapter) -> &Accounts,
    node: NodeId,
    bytes: u64,
}

/// Serves a connection until it ends.
pub(super) fn serve(adapter: &Arc<Adapter>, service: &Service, socket: OwnedFd) {
    let from = NodeId(service.from);
    let result = Attached::new(adapter, from).and_then(|attached| {
        let socket = Arc::new(socket);
        let (partition, to) = (Partition(service.partition), NodeId(service.to));
        // Those who hold the other end hear of its end from their own agent; who does not listen
        // shall not hold this one for ever. Booked before it is asked whether both are members.
        attached
            .member
            .cut_when_revoked(partition, to, Cutter::of(&socket));
        let domain = attached.member.domain(&service.domain)?;
        if !are_members(&domain, partition, to) {
            return Err(MemberError::Revoked);
        }
        match service.protocol {
            None => operate(adapter, &domain, to, service.rdma.as_ref(), socket),
            Some(protocol) => {
                let rdma = service.rdma.as_ref();
                relay(adapter, &domain, to, Protocol(protocol), rdma, socket)
            }
        }
    });
    if let Err(error) = result {
        tracing::info!(
            "node number {} of another host is not served: {error}",
            service.from
        );
    }
}

/// Whether a domain is still the one that was meant, and this node and `to` are in it.
fn are_members(domain: &Domain, partition: Partition, to: NodeId) -> bool {
    let place = domain.member().torus().place(to);
    let info = domain.info();
    info.is_ok_and(|info| {
        info.id == partition.0 && info.members.iter().any(|member| Some(member.node) == place)
    })
}

/// Executes operations on the memory of a node.
fn operate(
    adapter: &Arc<Adapter>,
    domain: &Domain,
    to: NodeId,
    rdma: Option<&Rdma>,
    socket: Arc<OwnedFd>,
) -> Result<(), MemberError> {
    tune::for_serving(&socket)?;
    let regions = Regions {
        adapter,
        domain,
        to,
        #[cfg(feature = "verbs")]
        rdma,
    };
    #[cfg(not(feature = "verbs"))]
    let _ = rdma;
    tcp::serve(socket, &regions).map_err(|error| MemberError::Agent(error.to_string()))
}

/// Carries packets to a listener, and back.
fn relay(
    adapter: &Arc<Adapter>,
    domain: &Domain,
    to: NodeId,
    protocol: Protocol,
    rdma: Option<&Rdma>,
    socket: Arc<OwnedFd>,
) -> Result<(), MemberError> {
    tune::for_packets(&socket)?;
    let member = domain.member();
    let check = LinkCheck {
        partition: domain.partition(),
        peer: member.node(),
        protocol,
        // As at the other end.
        since: Epoch(0),
    };
    let membership = domain.membership();
    let mut far = tcp::Channel::open(socket, to, check, membership, Arc::default(), None)?;
    let place = member.torus().place(to).ok_or(MemberError::Revoked)?;
    let near = match domain.connect(place, protocol) {
        Ok(Channel::Shm(near)) => near,
        other => {
            far.finish(tcp::wire::End::PeerDead);
            return other.map(drop);
        }
    };
    #[cfg(feature = "verbs")]
    if let Some(rdma) = rdma {
        let far = by_adapter::channel(adapter, domain, to, rdma, far)?;
        tcp::relay(near, far);
        return Ok(());
    }
    #[cfg(not(feature = "verbs"))]
    let _ = (adapter, rdma);
    tcp::relay(near, far);
    Ok(())
}

/// Channels by an RDMA adapter.
#[cfg(feature = "verbs")]
mod by_adapter {
    use std::collections::HashMap;
    use std::io;
    use std::sync::{Arc, Mutex, Weak};

    use fabric::region::Keep;
    use fabric::verbs::hybrid_channel::{Means, NoMeans};
    use fabric::verbs::{CHANNEL_BYTES, HybridChannel, ProtectionDomain};
    use fabric::{NodeId, Partition, tcp};

    use super::{Adapter, CHANNELS, Domain, Entry, Rdma, lock};

    /// What the channels between two nodes have together, the far one first.
    #[derive(Debug, Default)]
    pub(in super::super) struct Shared(Mutex<HashMap<Between, Common>>);

    type Between = (Partition, [NodeId; 2]);

    /// Whoever sends more than it may takes buffers from its own node's channels only.
    #[derive(Debug)]
    struct Common {
        domain: Weak<ProtectionDomain>,
        /// Has another owner for each channel.
        channels: Arc<()>,
        /// For as many as there have been at a time: so many have buffers as long as there is one.
        accounts: Vec<Entry>,
    }

    /// Lets packets go by the adapter, as far as it has room for them.
    pub(super) fn channel(
        adapter: &Arc<Adapter>,
        domain: &Domain,
        to: NodeId,
        rdma: &Rdma,
        far: tcp::Channel,
    ) -> io::Result<HybridChannel> {
        let (adapter, rdma) = (Arc::clone(adapter), rdma.clone());
        let (from, partition) = (domain.member().node(), domain.partition());
        let source = move || {
            let device = rdma.device().ok_or(NoMeans::Ever)?;
            let mut shared = lock(&adapter.shared.0);
            shared.retain(|_, common| common.domain.strong_count() > 0);
            let between = (partition, [from, to]);
            let present = shared
                .get(&between)
                .and_then(|common| common.domain.upgrade());
            let domain = match present {
                Some(domain) => domain,
                None => ProtectionDomain::new(&device, to, partition).map_err(|_| NoMeans::Now)?,
            };
            let common = shared.entry(between).or_insert_with(|| Common {
                domain: Arc::downgrade(&domain),
                channels: Arc::default(),
                accounts: Vec::new(),
            });
            if Arc::strong_count(&common.channels) > common.accounts.len() {
                let account = Entry::add(&adapter, CHANNELS, from, CHANNEL_BYTES);
                common.accounts.push(account.ok_or(NoMeans::Now)?);
            }
            let account = Some(Arc::clone(&common.channels) as Keep);
            Ok(Means { domain, account })
        };
        HybridChannel::new(far, Box::new(source), false)
    }
}

#[cfg(feature = "verbs")]
pub(super) use by_adapter::Shared;

/// The regions of a node, as a far one may open them.
struct Regions<'a> {
    adapter: &'a Arc<Adapter>,
    domain: &'a Domain,
    to: NodeId,
    #[cfg(feature = "verbs")]
    rdma: Option<&'a Rdma>,
}

impl tcp::Regions for Regions<'_> {
    fn open(&self, key: RemoteKey, access: Access) -> Result<Opened, OpError> {
        let partition = self.domain.partition();
        if (key.node, key.partition) != (self.to, partition) {
            return Err(OpError::WrongKey);
        }
        let opened = self.domain.open_here(key, access);
        let opened = opened.map_err(|error| match error {
            MemberError::Refused(Refusal { kind, .. }) => match kind {
                RefusalKind::NotFound => OpError::WrongKey,
                RefusalKind::Denied if are_members(self.domain, partition, self.to) => {
                    OpError::MissingRight { needed: access }
                }
                RefusalKind::Denied => OpError::Revoked,
                RefusalKind::Exhausted => NO_ROOM,
                _ => OpError::Unreachable,
            },
            MemberError::Revoked => OpError::Revoked,
            MemberError::System(_) => NO_ROOM,
            _ => OpError::Unreachable,
        });
        let region = opened?.ok_or(OpError::WrongKey)?;
        let node = self.domain.member().node();
        let entry = Entry::add(self.adapter, OPEN, node, region.len()).ok_or(NO_ROOM)?;
        Ok(Opened::new(region, Arc::new(entry)))
    }

    #[cfg(feature = "verbs")]
    fn device(&self) -> Option<Arc<fabric::verbs::Device>> {
        self.rdma?.device()
    }

    #[cfg(feature = "verbs")]
    fn admit(&self, region: &fabric::shm::RemoteRegion) -> Option<fabric::region::Keep> {
        let node = self.domain.member().node();
        let entry = Entry::add(self.adapter, REGISTERED, node, region.len())?;
        Some(Arc::new(entry))
    }
}

/// This host has no room for what the other side wants.
const NO_ROOM: OpError = OpError::System {
    errno: Errno::ENOBUFS as i32,
};

impl Entry {
    /// Adds a region to a node's account, unless that is too much.
    fn add(adapter: &Arc<Adapter>, of: Kind, node: NodeId, bytes: u64) -> Option<Self> {
        let mut accounts = lock(&(of.accounts)(adapter).0);
        let its = accounts.get(&node).copied().unwrap_or_default();
        let all = accounts
            .values()
            .fold(Amount::default(), |sum, amount| Amount {
                regions: sum.regions + amount.regions,
                bytes: sum.bytes.saturating_add(amount.bytes),
            });
        let fits = |used: &Amount, max: &Amount| {
            used.regions < max.regions && used.bytes.saturating_add(bytes) <= max.bytes
        };
        if ![its, all]
            .iter()
            .zip(&of.max)
            .all(|(used, max)| fits(used, max))
        {
            return None;
        }
        accounts.insert(
            node,
            Amount {
                regions: its.regions + 1,
                bytes: its.bytes + bytes,
            },
        );
        Some(Entry {
            adapter: Arc::clone(adapter),
            accounts: of.accounts,
            node,
            bytes,
        })
    }
}

impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Entry { node, bytes, .. } = self;
        write!(f, "{bytes} bytes of {node:?}")
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        let mut accounts = lock(&(self.accounts)(&self.adapter).0);
        if let Some(its) = accounts.get_mut(&self.node) {
            its.regions -= 1;
            its.bytes -= self.bytes;
        }
        accounts.retain(|_, amount| amount.regions > 0);
    }
}

impl<'a> Attached<'a> {
    fn new(adapter: &'a Arc<Adapter>, node: NodeId) -> Result<Self, MemberError> {
        let slot = Arc::clone(lock(&adapter.members.0).entry(node).or_default());
        let mut place = lock(&slot);
        // The agent may know it no more: then another attachment is needed.
        let present = place.take().filter(|member| !member.has_ended());
        let member = match present {
            Some(member) => member,
            None => {
                let dialing = Arc::downgrade(adapter);
                Member::attach_through(Dial::new(move || {
                    let adapter = dialing.upgrade().ok_or(MemberError::NotInNode)?;
                    adapter.dial(node)
                }))?
            }
        };
        *place = Some(member.clone());
        drop(place);
        Ok(Attached {
            adapter,
            node,
            slot,
            member,
        })
    }
}

impl Drop for Attached<'_> {
    fn drop(&mut self) {
        let mut members = lock(&self.adapter.members.0);
        // The books have it, and so does this one.
        if Arc::strong_count(&self.slot) <= 2 {
            members.remove(&self.node);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_node_cannot_have_all_mappings() {
        one_node_cannot_have_all(OPEN);
    }

    #[test]
    fn one_node_cannot_have_all_channels_by_the_adapter() {
        one_node_cannot_have_all(CHANNELS);
    }

    #[test]
    fn one_node_cannot_keep_a_change_waiting_until_all_is_forgotten() {
        one_node_cannot_have_all(REGISTERED);
    }

    fn one_node_cannot_have_all(of: Kind) {
        let adapter = Arc::new(Adapter::default());
        let add = |node: u32, bytes| Entry::add(&adapter, of, NodeId(node), bytes);
        let [its, all] = of.max;
        let mut held: Vec<_> = (0..its.regions).map(|_| add(1, 4096).unwrap()).collect();
        assert!(add(1, 4096).is_none());
        held.pop();
        held.extend(add(1, 4096));
        assert_eq!(held.len(), its.regions);
        // Nor all addresses, and others have theirs.
        assert!(add(2, its.bytes + 1).is_none());
        held.extend(add(2, its.bytes));
        assert!(add(2, 1).is_none());
        for node in 3.. {
            let more = (0..its.regions).map_while(|_| add(node, 1));
            let before = held.len();
            held.extend(more);
            if held.len() - before < its.regions {
                break;
            }
        }
        assert_eq!(held.len(), all.regions);
        drop(held);
        assert!(lock(&(of.accounts)(&adapter).0).is_empty());
    }
}
