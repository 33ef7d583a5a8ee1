//! Access of candidates to etcd, the table `[etcd]` of the file for `toroid up --config`.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Prefix of all keys, if the file has none.
pub const DEFAULT_PREFIX: &str = "/toroid";

/// Access to the servers of an etcd cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EtcdConfig {
    /// URLs of the servers of one cluster, such as `https://10.0.0.1:2379`. At least one.
    pub endpoints: Vec<String>,
    /// Prefix of all keys, without a slash at its end.
    pub prefix: String,
    /// File with the certificates (PEM) of the authorities of the servers. With `https` only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca: Option<PathBuf>,
    /// File with this host's certificate (PEM). With `key` only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cert: Option<PathBuf>,
    /// File with the private key (PEM) of `cert`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<PathBuf>,
}
