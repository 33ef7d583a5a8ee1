//! The directory on etcd: which candidate leads, and the leader's store.
//!
//! Candidates alone talk to etcd. The one that owns the leader's key leads; the revision in which
//! etcd created that key is its term. All transactions of a term compare that revision, so that a
//! deposed leader changes nothing, however late its transactions arrive. Nothing depends on the time
//! at which a lease ends.
//!
//! [`layout`] has the keys. [`servers`] asks servers in turn, [`election`] and [`watch`] are about
//! the leader's key, and [`store`] keeps the records of the directory.
#![cfg_attr(
    not(feature = "etcd"),
    allow(dead_code, reason = "errors that no such build meets")
)]

#[cfg(not(feature = "etcd"))]
mod absent;
#[cfg(feature = "etcd")]
mod election;
pub(crate) mod error;
#[cfg(feature = "etcd")]
mod handle;
#[cfg(feature = "etcd")]
mod layout;
#[cfg(feature = "etcd")]
mod load;
#[cfg(feature = "etcd")]
mod meta;
#[cfg(feature = "etcd")]
mod servers;
#[cfg(feature = "etcd")]
mod store;
#[cfg(all(test, feature = "etcd"))]
mod tests;
#[cfg(feature = "etcd")]
mod watch;

#[cfg(not(feature = "etcd"))]
pub(crate) use absent::{Etcd, EtcdStore};
pub(crate) use error::EtcdError;
#[cfg(feature = "etcd")]
pub(crate) use {handle::Etcd, store::EtcdStore};

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
