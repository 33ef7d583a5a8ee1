//! What processes of remote nodes may have of this host's, of each kind so much for one node and so much
//! for all.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex};

use toroid_fabric::NodeId;

use super::{TargetProxy, lock};

/// What processes of remote nodes have of one kind.
#[derive(Debug, Default)]
pub(super) struct Accounts(Mutex<HashMap<NodeId, Amount>>);

#[derive(Clone, Copy, Debug, Default)]
struct Amount {
    count: usize,
    bytes: u64,
}

/// What is limited.
#[derive(Clone, Copy)]
pub(super) struct Kind {
    accounts: fn(&TargetProxy) -> &Accounts,
    /// For one node, and for all.
    max: [Amount; 2],
}

const fn at_most(count: usize, bytes: u64) -> Amount {
    Amount { count, bytes }
}

/// Regions that are open: each takes a mapping of this process, of which there are not many, and of
/// its addresses.
pub(super) const OPEN: Kind = Kind {
    accounts: |proxy| &proxy.open,
    max: [at_most(4096, 16 << 40), at_most(32_768, 64 << 40)],
};

/// Regions that an RDMA device was told of: it has to forget all of a node's in the time that the
/// node has to acknowledge a change.
#[cfg(any(feature = "verbs", test))]
pub(super) const REGISTERED: Kind = Kind {
    accounts: |proxy| &proxy.registered,
    max: [at_most(64, 16 << 30), at_most(1024, 128 << 30)],
};

/// Channels whose packets go by an RDMA device: each takes memory that is registered.
#[cfg(any(feature = "verbs", test))]
pub(super) const CHANNELS: Kind = Kind {
    accounts: |proxy| &proxy.channels,
    max: [at_most(64, 1 << 30), at_most(1024, 16 << 30)],
};

/// One of them in an account.
pub(super) struct Entry {
    proxy: Arc<TargetProxy>,
    accounts: fn(&TargetProxy) -> &Accounts,
    node: NodeId,
    bytes: u64,
}

impl Entry {
    /// Adds one to a node's account, unless that is too much.
    pub(super) fn add(
        proxy: &Arc<TargetProxy>,
        of: Kind,
        node: NodeId,
        bytes: u64,
    ) -> Option<Self> {
        let mut accounts = lock(&(of.accounts)(proxy).0);
        let its = accounts.get(&node).copied().unwrap_or_default();
        let all = accounts
            .values()
            .fold(Amount::default(), |sum, amount| Amount {
                count: sum.count + amount.count,
                bytes: sum.bytes.saturating_add(amount.bytes),
            });
        let fits = |used: &Amount, max: &Amount| {
            used.count < max.count && used.bytes.saturating_add(bytes) <= max.bytes
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
                count: its.count + 1,
                bytes: its.bytes + bytes,
            },
        );
        Some(Entry {
            proxy: Arc::clone(proxy),
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
        let mut accounts = lock(&(self.accounts)(&self.proxy).0);
        if let Some(its) = accounts.get_mut(&self.node) {
            its.count -= 1;
            its.bytes -= self.bytes;
        }
        accounts.retain(|_, amount| amount.count > 0);
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
    fn one_node_cannot_have_all_channels_of_the_device() {
        one_node_cannot_have_all(CHANNELS);
    }

    #[test]
    fn one_node_cannot_keep_a_change_waiting_until_all_is_forgotten() {
        one_node_cannot_have_all(REGISTERED);
    }

    fn one_node_cannot_have_all(of: Kind) {
        let proxy = Arc::new(TargetProxy::default());
        let add = |node: u32, bytes| Entry::add(&proxy, of, NodeId(node), bytes);
        let [its, all] = of.max;
        let mut held: Vec<_> = (0..its.count).map(|_| add(1, 4096).unwrap()).collect();
        assert!(add(1, 4096).is_none());
        held.pop();
        held.extend(add(1, 4096));
        assert_eq!(held.len(), its.count);
        // Nor all addresses, and others have theirs.
        assert!(add(2, its.bytes + 1).is_none());
        held.extend(add(2, its.bytes));
        assert!(add(2, 1).is_none());
        for node in 3.. {
            let more = (0..its.count).map_while(|_| add(node, 1));
            let before = held.len();
            held.extend(more);
            if held.len() - before < its.count {
                break;
            }
        }
        assert_eq!(held.len(), all.count);
        drop(held);
        assert!(lock(&(of.accounts)(&proxy).0).is_empty());
    }
}
