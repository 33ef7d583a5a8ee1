//! Where things are: state directories of agents, and programs beside this one.

use std::env;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use domains::client::{ClientError, Control};
use nix::unistd::Uid;

use crate::failure::Failure;

const SYSTEM: &str = "/run/toroid";

/// Where an agent may be.
#[derive(Debug)]
pub(crate) struct Places {
    named: Option<PathBuf>,
    own: Option<PathBuf>,
}

impl Places {
    pub(crate) fn new(named: Option<PathBuf>) -> Self {
        let own = match Uid::effective().is_root() {
            true => Some(SYSTEM.into()),
            false => env::var_os("XDG_RUNTIME_DIR")
                .filter(|directory| !directory.is_empty())
                .map(|directory| Path::new(&directory).join("toroid")),
        };
        Places { named, own }
    }

    /// Where an agent of this user is started.
    pub(crate) fn to_start(&self) -> Result<&Path, Failure> {
        self.named
            .as_deref()
            .or(self.own.as_deref())
            .ok_or_else(|| {
                Failure::usage(
                    "no place for the agent's state: XDG_RUNTIME_DIR is not set; \
                 choose a directory with --state or TOROID_STATE",
                )
            })
    }

    /// Where to look for a running agent: the named one and no other, or the user's, then the
    /// system's.
    pub(crate) fn to_look(&self) -> Vec<&Path> {
        match &self.named {
            Some(named) => vec![named],
            None => {
                let mut places: Vec<&Path> = self.own.as_deref().into_iter().collect();
                if places.first() != Some(&Path::new(SYSTEM)) {
                    places.push(Path::new(SYSTEM));
                }
                places
            }
        }
    }

    /// The first agent that runs. In a node the one that holds the node comes before the
    /// system's, which may be another.
    pub(crate) fn connect(&self) -> Result<Control, Failure> {
        let mut first_error = None;
        for state in self.to_look() {
            if self.named.is_none()
                && state == Path::new(SYSTEM)
                && let Ok(agent) = Control::of_node()
            {
                tracing::info!("using the agent of this node");
                return Ok(agent);
            }
            match Control::connect(state) {
                Ok(agent) => {
                    tracing::info!("using the agent of {}", state.display());
                    return Ok(agent);
                }
                Err(error @ ClientError::NoAgent { .. }) => {
                    first_error.get_or_insert(error);
                }
                Err(error) => return Err(error.into()),
            }
        }
        Err(first_error.map_or_else(|| Failure::new("no place to look for an agent"), Into::into))
    }
}

/// A program from beside this one, or from `PATH`.
pub(crate) fn program(name: &OsStr) -> Option<PathBuf> {
    let beside = env::current_exe().ok().map(|exe| exe.with_file_name(name));
    let path = env::var_os("PATH").unwrap_or_default();
    let in_path = env::split_paths(&path).map(|directory| directory.join(name));
    beside
        .into_iter()
        .chain(in_path)
        .find(|file| file.is_file())
}
