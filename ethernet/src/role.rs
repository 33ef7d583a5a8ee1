//! The driver as a role of another program. A binary that calls [`run_if_asked`] first becomes the
//! driver when it is started with the hidden argument [`ARGUMENT`], and needs no `toroid-ethernet`
//! beside it.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::process::ExitCode;

use crate::driver::{self, DriverError};

/// The hidden argument.
pub const ARGUMENT: &str = "__ethernet";

/// Reasons why the driver did not run, or ended.
#[derive(Debug, thiserror::Error)]
pub enum RoleError {
    /// The driver was started by hand.
    #[error(
        "standard input is no connection to an agent: {0}; the driver is started by the agent, \
         which `toroid up` starts"
    )]
    NoAgent(io::Error),
    /// The driver ended before its agent.
    #[error(transparent)]
    Driver(#[from] DriverError),
}

/// Becomes the driver if the first argument asks for it; returns the exit status at its end.
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
