//! What an agent inherits from the one before, if that was killed: nodes, driver, user namespace,
//! all of which an fd store has held.

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use toroid_fabric::Torus;
use toroid_model::as_text;

use super::{Entries, Entry, FdStore, LIFELINE, Watch};
use crate::error::AgentError;
use crate::interfaces::Interfaces;

/// The key of what concerns the host as a whole.
const HOST: &str = "host";

/// What the fd store is told of the host. Its user namespace comes with it.
#[derive(Debug, Serialize, Deserialize)]
struct Record {
    #[serde(flatten)]
    kind: Kind,
    interfaces: Interfaces,
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

/// An inheritance, perhaps an empty one, and the fd store who has it in hand.
#[derive(Debug)]
pub(crate) struct Takeover {
    state: PathBuf,
    entries: Entries,
    /// Whether there was an agent before.
    pub(crate) is_inherited: bool,
    pub(crate) fd_store: Arc<FdStore>,
    watch: Option<Watch>,
}

/// The user namespace of the nodes that an agent has left, if there are any.
pub(crate) fn user_namespace(state: &Path) -> Result<Option<OwnedFd>, AgentError> {
    let Some(mut found) = super::find(state)? else {
        return Ok(None);
    };
    let host = found.list().map_err(super::unusable)?.remove(HOST);
    Ok(host.and_then(|host| host.descriptors.into_iter().next()))
}

impl Takeover {
    /// Takes over from the fd store of a state directory, or from one that has nothing yet. The
    /// directory must be this agent's alone.
    pub(crate) fn take(state: &Path) -> Result<Self, AgentError> {
        let (mut found, is_inherited) = match super::find(state)? {
            Some(found) => (found, true),
            None => (super::start(state).map_err(cannot_start)?, false),
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

    /// Whether a host like this one can be made of it. Returns what its interfaces are, if
    /// there are any.
    pub(crate) fn check(&self, kind: &Kind) -> Result<Option<Interfaces>, AgentError> {
        let Some(Entry { record, .. }) = self.entries.get(HOST) else {
            return Ok(None);
        };
        match serde_json::from_value::<Record>(record.clone()) {
            Ok(there) if there.kind == *kind => Ok(Some(there.interfaces)),
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

    /// What was kept under a key.
    pub(crate) fn inherit(&mut self, key: &str) -> Option<Entry> {
        self.entries.remove(key)
    }

    /// Whether anything was kept whose key begins so.
    pub(crate) fn has(&self, prefix: &str) -> bool {
        self.entries.keys().any(|key| key.starts_with(prefix))
    }

    /// All whose keys begin so.
    pub(crate) fn inherit_all(&mut self, prefix: &str) -> Entries {
        let mut its = self.entries.split_off(prefix);
        let ends = its.keys().find(|key| !key.starts_with(prefix)).cloned();
        if let Some(end) = ends {
            self.entries.append(&mut its.split_off(&end));
        }
        its
    }

    /// What is needed to see the fd store's end; once.
    pub(crate) fn watch(&mut self) -> Option<Watch> {
        self.watch.take()
    }
}

/// Lets the fd store know what host this is.
pub(crate) fn keep_host(fd_store: &FdStore, kind: Kind, interfaces: Interfaces, lifeline: bool) {
    if lifeline {
        fd_store.put(LIFELINE, &(), &[io::stdin().as_fd()]);
    }
    // Without it, only an ordinary user's next agent fails.
    if let Ok(namespace) = File::open("/proc/self/ns/user") {
        let record = Record { kind, interfaces };
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

fn cannot_start(source: io::Error) -> AgentError {
    AgentError::System {
        action: "start the fd store",
        source,
    }
}
