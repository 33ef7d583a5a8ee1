//! The membership of a partition, as the processes of a host know it.

use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use super::link::DropCounters;
use crate::key::Epoch;

/// The present membership of a partition, which the control thread of the process keeps up to date.
#[derive(Clone, Debug)]
pub struct Membership {
    /// The newest epoch.
    pub epoch: Arc<AtomicU32>,
    /// Packets dropped.
    pub drops: Arc<DropCounters>,
}

impl Membership {
    /// A membership at this epoch, with no packet dropped.
    pub fn at(Epoch(epoch): Epoch) -> Self {
        Membership {
            epoch: Arc::new(AtomicU32::new(epoch)),
            drops: Arc::default(),
        }
    }
}
