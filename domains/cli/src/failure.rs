//! Failure of a command: a sentence and an exit status.

use std::fmt;
use std::io;
use std::path::Path;

use toroid_agent::AgentError;
use toroid_client::admin::ClientError;
use toroid_client::member::MemberError;
use toroid_model::declare::Problem;
use toroid_model::refusal::{Refusal, RefusalKind};

/// Exit status of a denial.
pub(crate) const NOT_PERMITTED: u8 = 6;

/// Failure for the mistakes of a file.
pub(crate) fn wrong(file: &Path, problems: &[Problem]) -> Failure {
    let file = file.display();
    let lines = problems
        .iter()
        .map(|p| format!("{file}:{}: {}", p.line, p.message));
    Failure::usage(&lines.collect::<Vec<_>>().join("\n        "))
}

/// A failed command.
#[derive(Debug)]
pub(crate) struct Failure {
    message: String,
    status: u8,
}

impl Failure {
    /// Failed, for no reason that has a status of its own.
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Failure {
            message: message.into(),
            status: 1,
        }
    }

    /// Wrong usage.
    pub(crate) fn usage(message: &str) -> Self {
        Failure {
            message: message.into(),
            status: 2,
        }
    }

    /// Adds that no agent runs, with its exit status.
    pub(crate) fn about_agent(self) -> Self {
        Failure {
            message: format!("no agent runs, and there is {}", self.message),
            status: 3,
        }
    }

    /// Puts the failed step before the reason.
    pub(crate) fn during(self, what: &str) -> Self {
        Failure {
            message: format!("{what}: {}", self.message),
            ..self
        }
    }

    pub(crate) fn status(&self) -> u8 {
        self.status
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        let status = match refusal.kind {
            RefusalKind::Invalid => 2,
            RefusalKind::NotFound => 4,
            RefusalKind::Exists => 5,
            RefusalKind::Denied | RefusalKind::Leaving => NOT_PERMITTED,
            RefusalKind::Exhausted => 7,
            RefusalKind::Version | RefusalKind::Failed => 1,
        };
        Failure {
            message: refusal.to_string(),
            status,
        }
    }
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Self {
        match error {
            ClientError::Refused(refusal) => refusal.into(),
            ClientError::NoAgent { .. }
            | ClientError::Orphaned { .. }
            | ClientError::Silent
            | ClientError::NotInNode => Failure {
                message: error.to_string(),
                status: 3,
            },
            other => Failure::new(other.to_string()),
        }
    }
}

impl From<AgentError> for Failure {
    fn from(error: AgentError) -> Self {
        error.refusal().into()
    }
}

impl From<MemberError> for Failure {
    fn from(error: MemberError) -> Self {
        match error {
            MemberError::Refused(refusal) => refusal.into(),
            other => Failure::new(other.to_string()),
        }
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Failure::new(error.to_string())
    }
}
