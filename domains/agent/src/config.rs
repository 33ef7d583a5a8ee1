//! Configuration of an agent.

use std::ffi::OsString;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use toroid_fabric::Torus;
use toroid_model::hosts::HostConfig;
use toroid_model::info::Limits;
use toroid_model::link::FabricProfile;

/// Configuration of an agent.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Config {
    /// State directory: sockets, lock, log. Created if missing.
    pub state: PathBuf,
    /// Base of the data directories: each state directory has one of its own below, with the
    /// directory of domains, which outlives the agent. Created if missing.
    pub data: PathBuf,
    /// Whether to begin with an empty directory. An existing one is moved aside.
    pub fresh: bool,
    /// The torus. This host gets one node for each place that it carries, at most
    /// [`MAX_NODES`](toroid_model::limits::MAX_NODES). Default: the torus of the directory, or
    /// 2x2x2.
    #[serde(with = "optional_text")]
    pub torus: Option<Torus>,
    /// Program and arguments of the Ethernet driver, or `None` for no Ethernet. They must be
    /// UTF-8.
    #[serde(with = "words")]
    pub driver_command: Option<Vec<OsString>>,
    /// Whether interfaces may use GSO packets and leave checksums out. Default: as existing
    /// interfaces have it, or true.
    pub offload: Option<bool>,
    /// Torus whose links all domains share. Default: that of existing nodes, or none.
    #[serde(default)]
    pub fabric: Option<FabricProfile>,
    /// Processor time that the driver may spend on waiting for due frames, in percent of a core.
    /// Default: as before, or [`DEFAULT_PRECISION`](crate::DEFAULT_PRECISION).
    #[serde(default)]
    pub precision: Option<u8>,
    /// Whether nodes have the `/tmp` and `/var/tmp` of the host. Otherwise each has its own.
    pub share_tmp: bool,
    /// Limits of each node. Default: those of existing nodes, or no limit of memory and
    /// [`DEFAULT_PIDS`](crate::DEFAULT_PIDS).
    #[serde(default)]
    pub limits: Limits,
    /// Whether the agent ends when its standard input does.
    pub lifeline: bool,
    /// Configuration of this host among several. Without it, the host carries all nodes.
    #[serde(default)]
    pub hosts: Option<HostConfig>,
    /// Milliseconds in which processes must acknowledge that a node has left, before they are
    /// fenced from the domain; see [`ACK_TIMEOUT_MS`](toroid_model::limits::ACK_TIMEOUT_MS).
    pub ack_timeout_ms: u64,
}

/// An optional torus as text.
mod optional_text {
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use toroid_fabric::Torus;

    pub(super) fn serialize<S: Serializer>(
        torus: &Option<Torus>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        torus.map(|torus| torus.to_string()).serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<Torus>, D::Error> {
        let text = Option::<String>::deserialize(from)?;
        let torus = text.map(|text| text.parse()).transpose();
        torus.map_err(D::Error::custom)
    }
}

/// A command as texts, readable in a list of processes.
mod words {
    use std::ffi::OsString;

    use serde::ser::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(
        words: &Option<Vec<OsString>>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        let Some(words) = words else {
            return to.serialize_none();
        };
        let texts: Option<Vec<&str>> = words.iter().map(|word| word.to_str()).collect();
        match texts {
            Some(texts) => to.serialize_some(&texts),
            None => Err(S::Error::custom("the driver's command is not UTF-8")),
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<Vec<OsString>>, D::Error> {
        let texts = Option::<Vec<String>>::deserialize(from)?;
        Ok(texts.map(|texts| texts.into_iter().map(OsString::from).collect()))
    }
}
