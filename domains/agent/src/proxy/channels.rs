//! Channels of remote processes whose packets go by an RDMA device.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, Weak};

use toroid_client::member::Domain;
use toroid_client::rdma::device;
use toroid_fabric::DropGuard;
use toroid_fabric::failover::{self, NoResources, Resources};
use toroid_fabric::verbs::{CHANNEL_BYTES, ProtectionDomain};
use toroid_fabric::{NodeId, Partition, tcp};
use toroid_model::rdma::Rdma;

use super::accounts::{CHANNELS, Entry};
use super::{TargetProxy, lock};

/// What the channels between two nodes have together, the remote one first.
#[derive(Debug, Default)]
pub(super) struct Shared(Mutex<HashMap<Between, Common>>);

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

/// Lets packets go by the device, as far as it has room for them.
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
        let mut shared = lock(&proxy.shared.0);
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
