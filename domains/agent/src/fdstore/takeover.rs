//! Takeover: an agent inherits nodes, driver and user namespace of its killed predecessor from the
//! fd store.

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use toroid_fabric::Torus;
use toroid_model::as_text;

use super::{Entries, Entry, FdStore, LIVENESS, Watch};
use crate::emulation::Emulation;
use crate::error::{AgentError, during};
use crate::interfaces::Interfaces;

/// Key of the host's own entry.
const HOST: &str = "host";

/// Record of the host in the fd store, with its user namespace as the descriptor.
#[derive(Debug, Serialize, Deserialize)]
struct Record {
    #[serde(flatten)]
    kind: Kind,
    interfaces: Interfaces,
    emulation: Emulation,
}

/// Properties of a host that cannot change while its nodes live.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Kind {
    #[serde(with = "as_text")]
    pub(crate) torus: Torus,
    pub(crate) ethernet: bool,
    /// The nodes that the host carries, where there are several hosts.
    #[serde(default)]
    pub(crate) carries: Option<BTreeSet<u32>>,
    #[serde(default)]
    pub(crate) share_tmp: bool,
}

/// A takeover, perhaps of nothing, and the fd store it comes from.
#[derive(Debug)]
pub(crate) struct Takeover {
    state: PathBuf,
    entries: Entries,
    /// Whether there was a predecessor.
    pub(crate) is_inherited: bool,
    pub(crate) fd_store: Arc<FdStore>,
    watch: Option<Watch>,
}

/// User namespace of the nodes of a killed agent, if there are any.
pub(crate) fn user_namespace(state: &Path) -> Result<Option<OwnedFd>, AgentError> {
    let Some(mut found) = super::find(state)? else {
        return Ok(None);
    };
    let host = found.list().map_err(super::unusable)?.remove(HOST);
    Ok(host.and_then(|host| host.descriptors.into_iter().next()))
}

impl Takeover {
    /// Takes over from the fd store of a state directory, or starts an empty one. The directory
    /// must be locked by this agent.
    pub(crate) fn take(state: &Path) -> Result<Self, AgentError> {
        let (mut found, is_inherited) = match super::find(state)? {
            Some(found) => (found, true),
            None => (
                super::start(state).map_err(during("start the fd store"))?,
                false,
            ),
        };
        if let Some(version) = found.other_version() {
            return Err(AgentError::Inherited {
                state: state.into(),
                what: format!("another release, with version {version} of what is kept"),
            });
        }
        let entries = found.list().map_err(super::unusable)?;
        let fd_store = Arc::new(FdStore::default());
        Ok(Takeover {
            state: state.into(),
            entries,
            is_inherited,
            watch: fd_store.install(found),
            fd_store,
        })
    }

    /// Checks that the inherited host has these properties. Returns its interfaces and the
    /// emulation of its links, if anything was inherited.
    pub(crate) fn check(
        &self,
        kind: &Kind,
    ) -> Result<(Option<Interfaces>, Option<Emulation>), AgentError> {
        let Some(Entry { record, .. }) = self.entries.get(HOST) else {
            return Ok((None, None));
        };
        match serde_json::from_value::<Record>(record.clone()) {
            Ok(there) if there.kind == *kind => Ok((Some(there.interfaces), Some(there.emulation))),
            Ok(there) => Err(self.misfit(&there.kind.describe())),
            Err(_) => Err(self.misfit("another release")),
        }
    }

    pub(crate) fn misfit(&self, what: &str) -> AgentError {
        AgentError::Inherited {
            state: self.state.clone(),
            what: what.into(),
        }
    }

    /// Takes the entry under a key.
    pub(crate) fn inherit(&mut self, key: &str) -> Option<Entry> {
        self.entries.remove(key)
    }

    /// Whether there is an entry with this key prefix.
    pub(crate) fn has(&self, prefix: &str) -> bool {
        self.entries.keys().any(|key| key.starts_with(prefix))
    }

    /// Takes all entries with this key prefix.
    pub(crate) fn inherit_all(&mut self, prefix: &str) -> Entries {
        let mut its = self.entries.split_off(prefix);
        let ends = its.keys().find(|key| !key.starts_with(prefix)).cloned();
        if let Some(end) = ends {
            self.entries.append(&mut its.split_off(&end));
        }
        its
    }

    /// Takes the observer of the fd store's end; once.
    pub(crate) fn watch(&mut self) -> Option<Watch> {
        self.watch.take()
    }
}

/// Puts the record of the host into the fd store.
pub(crate) fn keep_host(
    fd_store: &FdStore,
    kind: Kind,
    interfaces: Interfaces,
    emulation: Emulation,
    lifeline: bool,
) {
    if lifeline {
        fd_store.put(LIVENESS, &(), &[io::stdin().as_fd()]);
    }
    // Without the namespace, only the next agent of an ordinary user fails.
    if let Ok(namespace) = File::open("/proc/self/ns/user") {
        let record = Record {
            kind,
            interfaces,
            emulation,
        };
        fd_store.put(HOST, &record, &[namespace.as_fd()]);
    }
}

impl Kind {
    fn describe(&self) -> String {
        let ethernet = if self.ethernet { "with" } else { "without" };
        let tmp = if self.share_tmp {
            " and the host's /tmp"
        } else {
            ""
        };
        let torus = self.torus;
        match &self.carries {
            None => format!("a torus {torus} {ethernet} Ethernet{tmp}"),
            Some(nodes) => {
                let count = nodes.len();
                let hosts = "of several hosts";
                format!("{count} nodes of a torus {torus} {hosts}, {ethernet} Ethernet{tmp}")
            }
        }
    }
}
