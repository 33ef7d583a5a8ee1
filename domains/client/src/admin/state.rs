//! State directories of agents.

use std::env;
use std::path::{Path, PathBuf};

use super::{ClientError, Control};

/// State directory of the system's agent.
pub const SYSTEM_STATE: &str = "/run/toroid";

/// State directory of this user's agent; `None` for an ordinary user outside of a login session.
pub fn own_state() -> Option<PathBuf> {
    if rustix::process::geteuid().is_root() {
        return Some(SYSTEM_STATE.into());
    }
    let session = env::var_os("XDG_RUNTIME_DIR").filter(|directory| !directory.is_empty());
    session.map(|directory| Path::new(&directory).join("toroid"))
}

impl Control {
    /// Connects to the agent of a state directory, by default to this user's or, if none runs, to
    /// the system's.
    ///
    /// # Errors
    /// As [`Control::connect`].
    pub fn find(state: Option<&Path>) -> Result<Self, ClientError> {
        if let Some(state) = state {
            return Self::connect(state);
        }
        match own_state().map(|state| Self::connect(&state)) {
            None | Some(Err(ClientError::NoAgent { .. })) => Self::connect(SYSTEM_STATE.as_ref()),
            Some(found) => found,
        }
    }
}
