//! State and data directories of agents, and programs beside this one.

use std::env;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use nix::sys::statfs::{FsType, TMPFS_MAGIC, statfs};
use nix::unistd::Uid;
use toroid_client::admin::{ClientError, Control, SYSTEM_STATE, own_state};

use crate::failure::Failure;
use crate::output::Show;

const SYSTEM_DATA: &str = "/var/lib/toroid";

/// That of linux/magic.h.
const RAMFS_MAGIC: FsType = FsType(0x8584_58f6);

/// Missing variable of an ordinary user outside of a login session: with su, cron or ssh, and in
/// containers.
pub(crate) const NO_PLACE: &str = "no place for the agent's state: XDG_RUNTIME_DIR is not set";

/// Remedy of [`NO_PLACE`].
pub(crate) const GIVE_PLACE: &str =
    "choose a directory with --state or TOROID_STATE, such as `export TOROID_STATE=~/toroid`";

/// Possible state directories.
#[derive(Debug)]
pub(crate) struct Places {
    named: Option<PathBuf>,
    own: Option<PathBuf>,
}

impl Places {
    pub(crate) fn new(named: Option<PathBuf>) -> Self {
        Places {
            named,
            own: own_state(),
        }
    }

    /// State directory of a new agent of this user.
    pub(crate) fn to_start(&self) -> Result<&Path, Failure> {
        self.to_start_or(None)
    }

    /// State directory of a new agent, which a file may name.
    pub(crate) fn to_start_or<'a>(
        &'a self,
        of_file: Option<&'a Path>,
    ) -> Result<&'a Path, Failure> {
        self.named
            .as_deref()
            .or(of_file)
            .or(self.own.as_deref())
            .ok_or_else(|| Failure::usage(&format!("{NO_PLACE}; {GIVE_PLACE}")))
    }

    /// State directories of running agents: only the named one, or the user's, then the system's.
    pub(crate) fn to_look(&self) -> Vec<&Path> {
        match &self.named {
            Some(named) => vec![named],
            None => {
                let mut places: Vec<&Path> = self.own.as_deref().into_iter().collect();
                if places.first() != Some(&Path::new(SYSTEM_STATE)) {
                    places.push(Path::new(SYSTEM_STATE));
                }
                places
            }
        }
    }

    /// Connects to the first running agent. In a node, its own agent precedes the system's.
    pub(crate) fn connect(&self) -> Result<Control, Failure> {
        let mut first_error = None;
        for state in self.to_look() {
            if self.named.is_none()
                && state == Path::new(SYSTEM_STATE)
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
        match (self.to_start(), first_error) {
            // The system's agent does not run, and its own could not be started as things are.
            (Err(no_place), _) => Err(no_place.about_agent()),
            (Ok(_), Some(error)) => Err(error.into()),
            (Ok(_), None) => Err(Failure::new("no place to look for an agent")),
        }
    }
}

/// Data directory of an agent of this user. The default must not be in memory.
pub(crate) fn data(named: Option<&Path>, show: Show) -> Result<PathBuf, Failure> {
    if let Some(named) = named {
        if is_in_memory(named) {
            let named = named.display();
            show.note(&format!(
                "{named} is in memory: domains will not survive a restart of the machine"
            ));
        }
        return Ok(named.into());
    }
    let place = default_data().ok_or_else(|| {
        Failure::usage(
            "no place for the agent's data: neither XDG_STATE_HOME nor HOME is set; choose a \
             directory with --data or TOROID_DATA",
        )
    })?;
    if is_in_memory(&place) {
        let place = place.display();
        return Err(Failure::usage(&format!(
            "{place} is in memory, where domains would not survive a restart of the machine; \
             choose a directory on a disk with --data, or name this one to have it all the same"
        )));
    }
    Ok(place)
}

fn default_data() -> Option<PathBuf> {
    if Uid::effective().is_root() {
        return Some(SYSTEM_DATA.into());
    }
    let directory = |name| env::var_os(name).filter(|value| !value.is_empty());
    let state = directory("XDG_STATE_HOME").map(PathBuf::from);
    let home = || directory("HOME").map(|home| Path::new(&home).join(".local/state"));
    Some(state.or_else(home)?.join("toroid"))
}

/// Whether a directory, or where it would be made, is lost when the machine stops.
fn is_in_memory(path: &Path) -> bool {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.into());
    let found = path.ancestors().find_map(|place| statfs(place).ok());
    found.is_some_and(|found| {
        let kind = found.filesystem_type();
        kind == TMPFS_MAGIC || kind == RAMFS_MAGIC
    })
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
