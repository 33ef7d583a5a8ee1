//! Quotas of remote nodes at the target proxy: for each kind a limit of one node and a limit of
//! all.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::sync::Arc;

use parking_lot::Mutex;
use toroid_fabric::NodeId;

use super::TargetProxy;

/// Usage of remote nodes of one kind.
#[derive(Debug, Default)]
pub(super) struct Accounts(Mutex<HashMap<NodeId, Amount>>);

#[derive(Clone, Copy, Debug, Default)]
struct Amount {
    count: usize,
    bytes: u64,
}

/// A limited kind.
#[derive(Clone, Copy)]
pub(super) struct Kind {
    accounts: fn(&TargetProxy) -> &Accounts,
    /// Limits of one node, and of all.
    max: [Amount; 2],
}

/// A limit of a [`Kind`] that is reached.
#[derive(Clone, Copy, Debug, thiserror::Error)]
pub(super) enum Full {
    /// The one of the node.
    #[error("node number {node} has {max} of them already", node = .node.0)]
    Node { node: NodeId, max: usize },
    /// The one of all nodes together.
    #[error("there are {max} of them")]
    All { max: usize },
}

impl From<Full> for io::Error {
    fn from(full: Full) -> Self {
        io::Error::other(full)
    }
}

const fn at_most(count: usize, bytes: u64) -> Amount {
    Amount { count, bytes }
}

/// Connections of remote processes: each takes a thread.
pub(super) const SERVED: Kind = Kind {
    accounts: |proxy| &proxy.served,
    max: [at_most(1024, u64::MAX), at_most(8192, u64::MAX)],
};

/// Connections of this host's processes: each takes a thread.
pub(super) const CARRIED: Kind = Kind {
    accounts: |proxy| &proxy.carried,
    ..SERVED
};

/// Open regions: each takes a mapping of this process, of which there are few, and addresses.
pub(super) const OPEN: Kind = Kind {
    accounts: |proxy| &proxy.open,
    max: [at_most(4096, 16 << 40), at_most(32_768, 64 << 40)],
};

/// Regions registered with an RDMA device, which must invalidate all of a node's in the time that
/// the node has to acknowledge a change.
#[cfg(any(feature = "verbs", test))]
pub(super) const REGISTERED: Kind = Kind {
    accounts: |proxy| &proxy.registered,
    max: [at_most(64, 16 << 30), at_most(1024, 128 << 30)],
};

/// Channels over an RDMA device: each takes registered memory.
#[cfg(any(feature = "verbs", test))]
pub(super) const CHANNELS: Kind = Kind {
    accounts: |proxy| &proxy.channels,
    max: [at_most(64, 1 << 30), at_most(1024, 16 << 30)],
};

/// A booked item. Dropping it releases its amounts.
pub(super) struct Entry {
    proxy: Arc<TargetProxy>,
    accounts: fn(&TargetProxy) -> &Accounts,
    node: NodeId,
    bytes: u64,
}

impl Entry {
    /// Adds one to a node's account.
    ///
    /// # Errors
    /// [`Full`].
    pub(super) fn add(
        proxy: &Arc<TargetProxy>,
        of: Kind,
        node: NodeId,
        bytes: u64,
    ) -> Result<Self, Full> {
        let mut accounts = (of.accounts)(proxy).0.lock();
        let its = accounts.get(&node).copied().unwrap_or_default();
        let all = accounts
            .values()
            .fold(Amount::default(), |sum, amount| Amount {
                count: sum.count + amount.count,
                bytes: sum.bytes.saturating_add(amount.bytes),
            });
        let fits = |used: Amount, max: Amount| {
            used.count < max.count && used.bytes.saturating_add(bytes) <= max.bytes
        };
        let [of_node, of_all] = of.max;
        if !fits(all, of_all) {
            return Err(Full::All { max: of_all.count });
        }
        if !fits(its, of_node) {
            let max = of_node.count;
            return Err(Full::Node { node, max });
        }
        accounts.insert(
            node,
            Amount {
                count: its.count + 1,
                bytes: its.bytes + bytes,
            },
        );
        Ok(Entry {
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
        let mut accounts = (self.accounts)(&self.proxy).0.lock();
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
    fn one_node_cannot_have_all_of_a_kind() {
        for (name, kind) in [
            ("served connections", SERVED),
            ("carried connections", CARRIED),
            ("mappings", OPEN),
            ("channels of the device", CHANNELS),
            ("regions that a change waits for", REGISTERED),
        ] {
            println!("{name}");
            one_node_cannot_have_all(kind);
        }
    }

    fn one_node_cannot_have_all(of: Kind) {
        let proxy = Arc::new(TargetProxy::default());
        let add = |node: u32, bytes| Entry::add(&proxy, of, NodeId(node), bytes);
        let [its, all] = of.max;
        let mut held: Vec<_> = (0..its.count).map(|_| add(1, 4096).unwrap()).collect();
        assert!(matches!(add(1, 4096), Err(Full::Node { .. })));
        held.pop();
        held.extend(add(1, 4096).ok());
        assert_eq!(held.len(), its.count);
        // Nor can it have all addresses, and others have theirs.
        if let Some(too_much) = its.bytes.checked_add(1) {
            assert!(add(2, too_much).is_err());
            held.extend(add(2, its.bytes).ok());
            assert!(add(2, 1).is_err());
        }
        for node in 3.. {
            let more = (0..its.count).map_while(|_| add(node, 1).ok());
            let before = held.len();
            held.extend(more);
            if held.len() - before < its.count {
                break;
            }
        }
        assert_eq!(held.len(), all.count);
        assert!(matches!(add(u32::MAX, 1), Err(Full::All { .. })));
        drop(held);
        assert!((of.accounts)(&proxy).0.lock().is_empty());
    }
}
