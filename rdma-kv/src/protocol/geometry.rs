//! Keys and numbers that a client needs to read a store.

use toroid_fabric::RemoteKey;

/// What a client must know to read from the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Of the index region.
    pub index: RemoteKey,
    /// Of the items region.
    pub items: RemoteKey,
    /// Of [`crate::protocol::hash::hash`].
    pub seed: u64,
    /// Of the control line.
    pub boot_id: u64,
    /// Bytes of the largest item.
    pub max_item: u32,
}
