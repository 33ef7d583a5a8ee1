//! Failures of requests to the driver.

use std::ffi::OsString;
use std::io;

use toroid_protocol::driver::PlugFailure;

use crate::error::AgentError;

/// Failure of a request to the driver.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DriverError {
    /// The driver could not be started.
    #[error("cannot start {}: {source}", program.display())]
    Start {
        program: OsString,
        source: io::Error,
    },
    /// The driver does not answer, and is being replaced.
    #[error("the Ethernet driver did not answer")]
    Silent,
    /// Driver after driver ends before it answers.
    #[error("the Ethernet driver keeps ending")]
    KeepsEnding,
}

/// Failure to get the link of a port for a process.
#[derive(Debug)]
pub(crate) enum PlugError {
    /// The driver refused.
    Refused(PlugFailure),
    /// There is no driver at this moment.
    NoDriver,
    /// There is no socket for the link.
    System(io::Error),
}

impl From<DriverError> for AgentError {
    fn from(error: DriverError) -> Self {
        match error {
            DriverError::Start { program, source } => AgentError::Driver { program, source },
            other => AgentError::DriverFailed(other.to_string()),
        }
    }
}
