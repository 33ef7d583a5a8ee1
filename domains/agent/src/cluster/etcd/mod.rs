//! The directory on etcd: which candidate leads, and the leader's store.
//!
//! Candidates alone talk to etcd. The one that owns the leader's key leads; the revision in which
//! etcd created that key is its term. All transactions of a term compare that revision, so that a
//! deposed leader changes nothing, however late its transactions arrive.
#![allow(dead_code, unused_imports, reason = "the roles of hosts use it next")]

mod absent;
pub(crate) mod error;

pub(crate) use absent::{Etcd, EtcdStore};
pub(crate) use error::EtcdError;

/// Outcome of a candidacy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Election {
    /// This host leads.
    Won(Tenure),
    /// The named host leads.
    Led(String),
}

/// A host's time as leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tenure {
    /// Revision of etcd that created the leader's key. Later tenures have higher ones.
    pub(crate) term: i64,
    /// Lease of the leader's key. The host's next agent resumes it.
    pub(crate) lease: i64,
}
