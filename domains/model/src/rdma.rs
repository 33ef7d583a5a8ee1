//! The choice of a host's RDMA device.

use serde::{Deserialize, Serialize};

/// Which RDMA device is used between hosts, and how. What is not said is chosen.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rdma {
    /// The device's name; the first that there is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// The port's number; the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u8>,
    /// Which of the port's global identifiers; the one that reaches farthest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gid_index: Option<u8>,
    /// Which of the port's partition keys; the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partition_key_index: Option<u16>,
}
