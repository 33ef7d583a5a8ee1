//! Configuration of an agent.

use std::ffi::OsString;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use toroid_fabric::Torus;
use toroid_model::hosts::HostConfig;
use toroid_model::info::Limits;

/// What an agent is to be.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Config {
    /// The state directory: sockets, lock, log. Made if it is not there.
    pub state: PathBuf,
    /// Where the directory of domains is kept, which outlives the agent: below it, in one of
    /// its own for each state directory. Made if it is not there.
    pub data: PathBuf,
    /// Whether to begin with an empty directory; one that is there is moved aside.
    pub fresh: bool,
    /// The fabric; one node is made for each of its places that this host carries, at most
    /// [`MAX_NODES`](toroid_model::limits::MAX_NODES). When absent that of the directory, or 2x2x2.
    #[serde(with = "optional_text")]
    pub torus: Option<Torus>,
    /// Program and arguments of the Ethernet driver, or `None` for no Ethernet. They must be
    /// UTF-8.
    #[serde(with = "words")]
    pub driver_command: Option<Vec<OsString>>,
    /// Whether interfaces may send and receive super-frames and leave checksums out. When absent
    /// as the interfaces that there are have it, or else they may.
    pub offload: Option<bool>,
    /// Whether nodes have the `/tmp` and `/var/tmp` of the host. Otherwise each has its own.
    pub share_tmp: bool,
    /// What each node takes of the host at most. Absent limits are as the nodes that there are have
    /// them, or else none of memory and [`DEFAULT_PIDS`](crate::DEFAULT_PIDS).
    #[serde(default)]
    pub limits: Limits,
    /// Whether the agent ends when its standard input does.
    pub lifeline: bool,
    /// What this host is among several; otherwise it carries all nodes.
    #[serde(default)]
    pub hosts: Option<HostConfig>,
    /// How many milliseconds processes that stay have to acknowledge that a node has left, before
    /// they are cut off from the domain; see [`ACK_TIMEOUT_MS`](toroid_model::limits::ACK_TIMEOUT_MS).
    pub ack_timeout_ms: u64,
}

/// A torus, or none, as text.
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

/// A command as texts, which people can read in a list of processes.
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
