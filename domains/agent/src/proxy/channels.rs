//! Channels of remote processes over an RDMA device.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use toroid_client::member::Domain;
use toroid_client::rdma::device;
use toroid_fabric::DropGuard;
use toroid_fabric::failover::{self, NoResources, Resources};
use toroid_fabric::verbs::{CHANNEL_BYTES, ProtectionDomain};
use toroid_fabric::{NodeId, Partition, tcp};
use toroid_model::rdma::Rdma;

use super::TargetProxy;
use super::accounts::{CHANNELS, Entry};

/// Resources shared by the channels between two nodes, the remote one first.
#[derive(Debug, Default)]
pub(super) struct Shared(Mutex<HashMap<Between, Common>>);

type Between = (Partition, [NodeId; 2]);

/// Shared by the channels of two nodes: a node that sends too much takes buffers of its own
/// channels only.
#[derive(Debug)]
struct Common {
    domain: Weak<ProtectionDomain>,
    /// Has one more reference for each channel.
    channels: Arc<()>,
    /// For the most channels at a time so far: their buffers exist as long as any channel.
    accounts: Vec<Entry>,
}

/// Moves a channel's packets to the device, if there is room.
pub(super) fn channel(
    proxy: &Arc<TargetProxy>,
    domain: &Domain,
    to: NodeId,
    rdma: &Rdma,
    remote: tcp::Channel,
) -> io::Result<failover::Channel> {
    let (proxy, rdma) = (Arc::clone(proxy), rdma.clone());
    let (from, partition) = (domain.member().node(), domain.partition());
    let source = move || {
        let device = device(&rdma).ok_or(NoResources::Ever)?;
        let mut shared = proxy.shared.0.lock();
        shared.retain(|_, common| common.domain.strong_count() > 0);
        let between = (partition, [from, to]);
        let present = shared
            .get(&between)
            .and_then(|common| common.domain.upgrade());
        let domain = match present {
            Some(domain) => domain,
            None => ProtectionDomain::new(&device, to, partition).map_err(|_| NoResources::Now)?,
        };
        let common = shared.entry(between).or_insert_with(|| Common {
            domain: Arc::downgrade(&domain),
            channels: Arc::default(),
            accounts: Vec::new(),
        });
        if Arc::strong_count(&common.channels) > common.accounts.len() {
            let account = Entry::add(&proxy, CHANNELS, from, CHANNEL_BYTES);
            common.accounts.push(account.map_err(|_| NoResources::Now)?);
        }
        let account = Some(Arc::clone(&common.channels) as DropGuard);
        Ok(Resources { domain, account })
    };
    failover::Channel::new(remote, Box::new(source), false)
}
