//! The driver as a role of another program: a binary that calls [`run_if_asked`] first thing
//! becomes the driver when it is started with the hidden argument [`ARGUMENT`], so that it needs
//! no `toroid-ethernet` beside it.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::process::ExitCode;

use crate::driver::{self, DriverError};

/// The hidden argument.
pub const ARGUMENT: &str = "__ethernet";

/// Why the driver did not run, or ended.
#[derive(Debug, thiserror::Error)]
pub enum RoleError {
    /// Started by hand.
    #[error(
        "standard input is no connection to an agent: {0}; the driver is started by the agent, \
         which `toroid up` starts"
    )]
    NoAgent(io::Error),
    /// It ran, and ended before its agent did.
    #[error(transparent)]
    Driver(#[from] DriverError),
}

/// Becomes the driver if the first argument says so, and returns the exit status when it has
/// ended.
pub fn run_if_asked() -> Option<ExitCode> {
    if std::env::args_os().nth(1)? != ARGUMENT {
        return None;
    }
    Some(match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{ARGUMENT}: {error}");
            ExitCode::FAILURE
        }
    })
}

/// Runs the driver for the agent at the other end of standard input.
///
/// # Errors
/// [`RoleError`].
pub fn run() -> Result<(), RoleError> {
    Ok(driver::run(agent().map_err(RoleError::NoAgent)?)?)
}

fn agent() -> io::Result<UnixStream> {
    let agent = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    // Fails for anything but a connected Unix socket.
    agent.peer_addr()?;
    Ok(agent)
}
