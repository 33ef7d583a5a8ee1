//! The membership of a partition, as the processes of a host know it.

use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use super::link::DropCounters;
use crate::key::Epoch;

/// What a process knows of a partition at present; its control thread keeps it up to date.
#[derive(Clone, Debug)]
pub struct Membership {
    /// The newest epoch.
    pub epoch: Arc<AtomicU32>,
    /// Packets dropped.
    pub drops: Arc<DropCounters>,
}

impl Membership {
    /// At this epoch, with nothing dropped yet.
    pub fn at(Epoch(epoch): Epoch) -> Self {
        Membership {
            epoch: Arc::new(AtomicU32::new(epoch)),
            drops: Arc::default(),
        }
    }
}
