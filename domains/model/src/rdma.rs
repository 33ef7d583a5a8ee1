//! The choice of a host's RDMA device.

use serde::{Deserialize, Serialize};

/// RDMA device for traffic between hosts. Absent values are chosen.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rdma {
    /// The device's name; the first that there is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// The port's number; the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u8>,
    /// Index of the port's global identifier; default: the one with the widest scope.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gid_index: Option<u8>,
    /// Index of the port's partition key; default: the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partition_key_index: Option<u16>,
}
