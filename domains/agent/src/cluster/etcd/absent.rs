//! Stand-in for builds without the feature `etcd`: nothing can be opened.

use std::time::Duration;

use toroid_fabric::Torus;
use toroid_model::directory::moved::Moved;
use toroid_model::directory::records::{Changes, Records};
use toroid_model::hosts::etcd::EtcdConfig;

use super::{Election, EtcdError, Tenure};
use crate::store::{Store, StoreError};

/// Connection to etcd, which no such build makes.
#[derive(Clone, Debug)]
pub(crate) struct Etcd(());

/// Store on etcd, which no such build makes.
#[derive(Debug)]
pub(crate) struct EtcdStore(());

impl Etcd {
    pub(crate) fn open(
        _config: &EtcdConfig,
        _torus: Torus,
        _won: Option<i64>,
    ) -> Result<Self, EtcdError> {
        Err(EtcdError::NotBuilt)
    }

    pub(crate) fn campaign(
        &self,
        _host: &str,
        _resumed: Option<i64>,
    ) -> Result<Election, EtcdError> {
        Err(EtcdError::NotBuilt)
    }

    pub(crate) fn lasts(&self, _tenure: &Tenure) -> Result<bool, EtcdError> {
        Err(EtcdError::NotBuilt)
    }

    pub(crate) fn moved(&self) -> Result<Option<(Moved, bool)>, EtcdError> {
        Err(EtcdError::NotBuilt)
    }

    pub(crate) fn records(&self) -> Result<Records, EtcdError> {
        Err(EtcdError::NotBuilt)
    }

    pub(crate) fn watch_leader(&self, _changed: impl FnMut(Option<String>) + Send + 'static) {}

    pub(crate) fn trouble(&self) -> Option<EtcdError> {
        Some(EtcdError::NotBuilt)
    }

    pub(crate) fn left(&self) -> Option<Duration> {
        None
    }

    pub(crate) fn give_up(&self) {}

    pub(crate) fn resign(&self) {}

    pub(crate) fn store(&self, _tenure: &Tenure) -> EtcdStore {
        EtcdStore(())
    }
}

impl EtcdStore {
    pub(crate) fn replace(
        &mut self,
        _found: &Records,
        _next: &Records,
        _time: Duration,
    ) -> Result<(), StoreError> {
        Err(StoreError::Etcd(EtcdError::NotBuilt.refusal()))
    }
}

impl Store for EtcdStore {
    fn load(&mut self) -> Result<Records, StoreError> {
        Err(StoreError::Etcd(EtcdError::NotBuilt.refusal()))
    }

    fn commit(&mut self, _changes: &Changes) -> Result<(), StoreError> {
        Err(StoreError::Etcd(EtcdError::NotBuilt.refusal()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_build_without_etcd_says_so() {
        let config = EtcdConfig {
            endpoints: vec!["http://127.0.0.1:2379".into()],
            prefix: "/toroid".into(),
            ca: None,
            cert: None,
            key: None,
        };
        let refusal = Etcd::open(&config, "2x1x1".parse().unwrap(), None)
            .unwrap_err()
            .refusal();
        assert_eq!(refusal.message, "this build has no etcd");
        assert_eq!(refusal.remedy, "build with `--features etcd`");
    }
}
