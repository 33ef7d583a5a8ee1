//! The geometry of a store.

use toroid_fabric::RemoteKey;

/// Keys and numbers that a client needs to read a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Key of the index region.
    pub index: RemoteKey,
    /// Key of the items region.
    pub items: RemoteKey,
    /// Seed of the hash of keys.
    pub seed: u64,
    /// Boot id in the control line.
    pub boot_id: u64,
    /// Largest item in bytes.
    pub max_item: u32,
}
