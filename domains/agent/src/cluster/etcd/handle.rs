//! The handle through which the agent's threads use etcd.

use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;
use tokio::task::AbortHandle;
use tokio::time::Instant;
use toroid_fabric::Torus;
use toroid_model::directory::moved::Moved;
use toroid_model::directory::records::Records;
use toroid_model::hosts::etcd::EtcdConfig;

use super::election::Renewed;
use super::error::EtcdError;
use super::servers::Servers;
use super::{Election, EtcdStore, Tenure, election, load, meta, watch};
use crate::threads;

/// Connection to etcd. Clones share it; it ends with the last of them, and with that the renewal of
/// the lease.
#[derive(Clone, Debug)]
pub(crate) struct Etcd(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    servers: Arc<Servers>,
    torus: Torus,
    runtime: Handle,
    held: Mutex<Option<Held>>,
    /// Ends the thread when it is dropped.
    _end: oneshot::Sender<()>,
}

/// The lease of the leader's key.
#[derive(Debug)]
struct Held {
    lease: i64,
    renewal: AbortHandle,
    renewed: Arc<Renewed>,
}

impl Etcd {
    /// Connects, and checks that the keys are of a directory of this torus, or begins one. Keeps the
    /// lease alive that a former life has `won`, before anything that may take long.
    ///
    /// # Errors
    /// [`EtcdError`], at the latest after some seconds.
    pub(crate) fn open(
        config: &EtcdConfig,
        torus: Torus,
        won: Option<i64>,
    ) -> Result<Self, EtcdError> {
        Self::open_with(Servers::new(config)?, torus, won)
    }

    pub(super) fn open_with(
        servers: Servers,
        torus: Torus,
        won: Option<i64>,
    ) -> Result<Self, EtcdError> {
        let servers = Arc::new(servers);
        let (end, ended) = oneshot::channel();
        let runtime = start(ended)?;
        let etcd = Etcd(Arc::new(Inner {
            servers,
            torus,
            runtime,
            held: Mutex::default(),
            _end: end,
        }));
        if let Some(lease) = won {
            etcd.keep_alive(lease, Arc::new(Mutex::new(Some(Instant::now()))));
        }
        etcd.run(|servers| async move { meta::check(&servers, torus).await })?;
        Ok(etcd)
    }

    /// Takes the leader's key if it is free, or if its lease is `resumed`, that of a former life of
    /// this host's agent. Keeps the lease alive from then on.
    ///
    /// # Errors
    /// [`EtcdError`]. Whether this host has won is then unknown; without renewal, the key vanishes.
    pub(crate) fn campaign(&self, host: &str, resumed: Option<i64>) -> Result<Election, EtcdError> {
        // Not locked during the campaign, because a host that ends resigns at once.
        let own = self.0.held.lock().as_ref().map(|held| held.lease);
        let leases: Vec<i64> = [resumed, own].into_iter().flatten().collect();
        let (torus, host) = (self.0.torus, host.to_owned());
        let campaign = |servers: Arc<Servers>| async move {
            election::campaign(&servers, torus, &host, &leases).await
        };
        let renewed = Arc::new(Mutex::new(Some(Instant::now())));
        let outcome = self.run(campaign)?;
        if let Election::Won(Tenure { lease, .. }) = outcome {
            self.keep_alive(lease, renewed);
        }
        Ok(outcome)
    }

    /// The last move of the directory, and whether no host has led it since; `None` without a move,
    /// while a host leads, and while a large change is not in its keys yet. A leader until then changes nothing any more.
    ///
    /// # Errors
    /// [`EtcdError`].
    pub(crate) fn moved(&self) -> Result<Option<(Moved, bool)>, EtcdError> {
        self.run(|servers| async move { load::moved(&servers).await })
    }

    /// All records of the directory; nothing is written.
    ///
    /// # Errors
    /// [`EtcdError`].
    pub(crate) fn records(&self) -> Result<Records, EtcdError> {
        load::load(self).map(|loaded| loaded.joined.records)
    }

    /// Renews a lease from now on, in place of any other.
    fn keep_alive(&self, lease: i64, renewed: Arc<Renewed>) {
        let renewal =
            election::keep_alive(Arc::clone(&self.0.servers), lease, Arc::clone(&renewed));
        let renewal = self.0.runtime.spawn(renewal).abort_handle();
        let before = self.0.held.lock().replace(Held {
            lease,
            renewal,
            renewed,
        });
        if let Some(before) = before {
            before.renewal.abort();
        }
    }

    /// Notes that a tenure is over, whatever becomes of its lease.
    pub(super) fn lose(&self, lease: i64) {
        let mut held = self.0.held.lock();
        if let Some(lost) = held.take_if(|held| held.lease == lease) {
            lost.renewal.abort();
        }
    }

    /// Time for which no other host leads, as far as this one knows. It is zero if the lease was not
    /// renewed for as long as it lasts; `None` without a lease, or after another host has led.
    pub(crate) fn left(&self) -> Option<Duration> {
        let unrenewed = self.unrenewed()?;
        Some(election::TTL.saturating_sub(unrenewed))
    }

    /// Whether a majority says that a tenure lasts.
    ///
    /// # Errors
    /// [`EtcdError`].
    pub(crate) fn lasts(&self, tenure: &Tenure) -> Result<bool, EtcdError> {
        let read = |servers: Arc<Servers>| async move { election::leader(&servers).await };
        let (leader, _) = self.run(read)?;
        Ok(leader.is_some_and(|leader| leader.term == tenure.term))
    }

    /// Time since the last renewal of the lease, if this host has one.
    pub(super) fn unrenewed(&self) -> Option<Duration> {
        let held = self.0.held.lock();
        let renewed = *held.as_ref()?.renewed.lock();
        renewed.map(|renewed| renewed.elapsed())
    }

    /// Calls `changed` with the present leader and then with each next one, `None` where nobody
    /// leads, until the last handle is dropped. Leaders in quick succession may be left out.
    pub(crate) fn watch_leader(&self, mut changed: impl FnMut(Option<String>) + Send + 'static) {
        let (sender, leaders) = mpsc::channel();
        let watch = watch::watch(Arc::clone(&self.0.servers), sender);
        self.0.runtime.spawn(watch);
        // A thread of its own, because the callback may block.
        let started = threads::start_named("etcd-leader", move || {
            leaders.into_iter().for_each(&mut changed);
        });
        if let Err(error) = started {
            tracing::error!("cannot watch the leader: {error}");
        }
    }

    /// Present problem of the [watch](Etcd::watch_leader).
    pub(crate) fn trouble(&self) -> Option<EtcdError> {
        self.0.servers.trouble.lock().clone()
    }

    /// Ends requests under way, with the error [`EtcdError::Unrenewed`], and the renewal of the
    /// lease. The handle is of no use afterwards.
    pub(crate) fn give_up(&self) {
        if let Some(held) = &*self.0.held.lock() {
            held.renewal.abort();
        }
        self.0.servers.give_up();
    }

    /// Gives the leader's key up, so that another candidate need not wait for the lease's end.
    pub(crate) fn resign(&self) {
        let Some(Held { lease, renewal, .. }) = self.0.held.lock().take() else {
            return;
        };
        renewal.abort();
        self.run(move |servers| async move { election::end_lease(&servers, lease).await });
    }

    /// The directory's store in a tenure.
    pub(crate) fn store(&self, tenure: &Tenure) -> EtcdStore {
        EtcdStore::new(self.clone(), *tenure)
    }

    pub(super) fn servers(&self) -> &Servers {
        &self.0.servers
    }

    /// Runs work on the thread of etcd, and waits for its result.
    pub(super) fn run<T, F>(&self, work: impl FnOnce(Arc<Servers>) -> F) -> T
    where
        T: Send + 'static,
        F: Future<Output = T> + Send + 'static,
    {
        let (sender, result) = mpsc::channel();
        let work = work(Arc::clone(&self.0.servers));
        self.0.runtime.spawn(async move {
            // The other end waits for it.
            let _ = sender.send(work.await);
        });
        result
            .recv()
            .expect("the thread goes on as long as a handle is there")
    }
}

/// Starts the thread of etcd, which ends with the other end of `ended`.
fn start(ended: oneshot::Receiver<()>) -> Result<Handle, EtcdError> {
    let failed = |error: std::io::Error| EtcdError::Refused(format!("no thread: {error}"));
    let runtime = Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(failed)?;
    let handle = runtime.handle().clone();
    // With a stack of the default size: handshakes of TLS take more than other threads have.
    let thread = thread::Builder::new().name("etcd".into());
    let run = move || {
        // Ends with an error, as nothing is sent.
        let _ = runtime.block_on(ended);
    };
    thread.spawn(run).map_err(failed)?;
    Ok(handle)
}
