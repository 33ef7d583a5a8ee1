//! Watching the leader's key.

use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Duration;

use etcd_client::{Client, EventType, WatchOptions};
use tokio::time::{sleep, timeout};

use super::election::{LEADER, Leader, leader};
use super::error::EtcdError;
use super::servers::Servers;

/// Time without an event after which the key is read.
const CHECK: Duration = Duration::from_secs(1);

/// Pause after a failure.
const PAUSE: Duration = Duration::from_millis(100);

/// The leaders that a caller knows of.
pub(super) struct Reports {
    last: Option<Option<Leader>>,
    /// Revision of etcd that the last is of.
    revision: i64,
    changed: Sender<Option<String>>,
}

/// Why a watch has ended.
#[derive(Debug)]
pub(super) enum Ended {
    /// The caller is gone.
    Unheard,
    Failed(String),
}

impl<E: std::error::Error> From<E> for Ended {
    fn from(error: E) -> Self {
        Ended::Failed(error.to_string())
    }
}

impl Reports {
    pub(super) fn new(changed: Sender<Option<String>>) -> Self {
        Reports {
            last: None,
            revision: 0,
            changed,
        }
    }

    /// Accepts any revision from the next read: etcd may have been restored to an earlier one.
    pub(super) fn begin(&mut self) {
        self.revision = 0;
    }

    /// Reports the leader at a revision of etcd, unless the caller knows it or a later one.
    pub(super) fn report(&mut self, leader: Option<Leader>, revision: i64) -> Result<(), Ended> {
        let is_new = self.last.as_ref() != Some(&leader);
        if self.last.is_some() && (revision <= self.revision || !is_new) {
            return Ok(());
        }
        self.revision = revision;
        self.last = Some(leader.clone());
        let sent = self.changed.send(leader.map(|leader| leader.host));
        sent.map_err(|_| Ended::Unheard)
    }
}

/// Sends the present leader, and then each next one.
///
/// Each connection begins with a read, so that lost connections and compaction lose only leaders that
/// have gone already. Further reads follow: etcd 3.4 says nothing of a deletion in the revision to
/// which it has compacted when a watch begins there, and a server may fall silent.
pub(super) async fn watch(servers: Arc<Servers>, changed: Sender<Option<String>>) {
    let mut reports = Reports::new(changed);
    loop {
        reports.begin();
        match follow(&servers, &mut reports).await {
            Err(Ended::Unheard) => return,
            Err(Ended::Failed(why)) => {
                tracing::debug!("watch of the leader: {why}");
                *servers.trouble.lock() = Some(EtcdError::Unreachable(why));
            }
            Ok(()) => tracing::debug!("a watch of the leader has ended"),
        }
        sleep(PAUSE).await;
    }
}

async fn follow(servers: &Servers, reports: &mut Reports) -> Result<(), Ended> {
    let (present, revision) = leader(servers).await?;
    *servers.trouble.lock() = None;
    reports.report(present, revision)?;
    let (index, client) = servers.present().await?;
    let followed = follow_with(servers, client, revision + 1, reports).await;
    servers.leave(index);
    followed
}

/// Reports leaders from a revision on, as long as the connection lasts.
pub(super) async fn follow_with(
    servers: &Servers,
    mut client: Client,
    revision: i64,
    reports: &mut Reports,
) -> Result<(), Ended> {
    let options = WatchOptions::new().with_start_revision(revision);
    let key = servers.key(LEADER);
    let mut stream = timeout(CHECK, client.watch(key.clone(), Some(options))).await??;
    loop {
        let Ok(answer) = timeout(CHECK, stream.message()).await else {
            // By the same server, which must know the others.
            let found = timeout(CHECK, client.get(key.clone(), None)).await??;
            let present = found.kvs().first().map(Leader::of).transpose()?;
            let revision = found.header().map_or(0, |header| header.revision());
            reports.report(present, revision)?;
            continue;
        };
        let Some(answer) = answer? else {
            return Ok(());
        };
        if answer.canceled() {
            let (at, why) = (answer.compact_revision(), answer.cancel_reason());
            return Err(Ended::Failed(format!("canceled, compacted to {at}: {why}")));
        }
        for event in answer.events() {
            let Some(pair) = event.kv() else {
                continue;
            };
            let leader = match event.event_type() {
                EventType::Put => Some(Leader::of(pair)?),
                EventType::Delete => None,
            };
            reports.report(leader, pair.mod_revision())?;
        }
    }
}
