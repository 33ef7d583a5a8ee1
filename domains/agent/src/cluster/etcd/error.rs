//! Errors of etcd, with remedies.

use toroid_model::refusal::{Refusal, RefusalKind};

/// Failure to use etcd.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EtcdError {
    /// The program was built without the feature `etcd`.
    #[error("this build has no etcd")]
    NotBuilt,
}

impl EtcdError {
    /// The error as a refusal, with its kind and a remedy.
    pub fn refusal(&self) -> Refusal {
        let (kind, remedy) = match self {
            EtcdError::NotBuilt => (RefusalKind::Failed, "build with `--features etcd`"),
        };
        Refusal::new(kind, self.to_string(), remedy)
    }
}
