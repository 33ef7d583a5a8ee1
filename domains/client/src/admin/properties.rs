//! Properties of a domain that can change.

use toroid_model::ethernet::EthernetPath;

/// Changes of a domain's properties; `None` keeps one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Properties {
    /// Whether the owner of a node may add it.
    pub public: Option<bool>,
    /// Whether its members may be routers.
    pub forward: Option<bool>,
    /// Whether its members of different hosts talk over encrypted connections only.
    pub sealed: Option<bool>,
    /// Length of its fence in seconds; 0: off.
    pub fence: Option<u32>,
    /// Path of frames between members of one host.
    pub ethernet: Option<EthernetPath>,
    /// The uid of its owner; for administrators.
    pub owner: Option<u32>,
}
