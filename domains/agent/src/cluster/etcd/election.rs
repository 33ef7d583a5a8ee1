//! The leader's key, which one host owns as long as it keeps its lease alive.

use std::sync::Arc;
use std::time::Duration;

use etcd_client::{
    Client, Compare, CompareOp, GetOptions, KeyValue, PutOptions, Txn, TxnOp, TxnOpResponse,
};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, sleep, timeout};
use toroid_fabric::Torus;

use super::error::EtcdError;
use super::meta::{self, META};
use super::servers::Servers;
use super::{Election, Tenure};

/// Name of the key.
pub(super) const LEADER: &str = "leader";

/// Time after which a lease ends that is not renewed.
pub(super) const TTL: Duration = Duration::from_secs(3);

/// The same in seconds.
const TTL_S: i64 = TTL.as_secs().cast_signed();

/// Time between renewals. etcd may be silent for 2.5 s while it chooses a leader.
const PERIOD: Duration = Duration::from_millis(300);

/// Time for the answer to a renewal. Two servers in turn may be silent.
const RENEWAL: Duration = Duration::from_millis(700);

/// Time to give a lease up. It ends by itself otherwise.
const FAREWELL: Duration = Duration::from_secs(2);

/// The leader's key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Leader {
    pub(super) host: String,
    /// Revision that created the key.
    pub(super) term: i64,
    pub(super) lease: i64,
}

/// Value of the leader's key.
#[derive(Serialize, Deserialize)]
struct Value {
    host: String,
}

impl Leader {
    pub(super) fn of(pair: &KeyValue) -> Result<Self, EtcdError> {
        let foreign = |_| EtcdError::Foreign {
            key: String::from_utf8_lossy(pair.key()).into(),
        };
        let value: Value = serde_json::from_slice(pair.value()).map_err(foreign)?;
        Ok(Leader {
            host: value.host,
            term: pair.create_revision(),
            lease: pair.lease(),
        })
    }

    fn tenure(&self) -> Tenure {
        Tenure {
            term: self.term,
            lease: self.lease,
        }
    }
}

/// The present leader, and the revision of etcd at that moment.
pub(super) async fn leader(servers: &Servers) -> Result<(Option<Leader>, i64), EtcdError> {
    let key = servers.key(LEADER);
    let found = servers.get(&key, GetOptions::new()).await?;
    let leader = found.kvs().first().map(Leader::of).transpose()?;
    Ok((leader, found.header().map_or(0, |header| header.revision())))
}

/// Takes the leader's key if it is free, or goes on with a tenure of one of these leases. Fails if
/// the other keys are not those of a directory of this torus any more.
pub(super) async fn campaign(
    servers: &Servers,
    torus: Torus,
    host: &str,
    resumed: &[i64],
) -> Result<Election, EtcdError> {
    let meta = meta::revision(servers, torus).await?;
    if let (Some(leader), _) = leader(servers).await? {
        let is_ours = leader.host == host && resumed.contains(&leader.lease);
        return Ok(if is_ours && renew(servers, leader.lease).await? {
            Election::Won(leader.tenure())
        } else {
            Election::Led(leader.host)
        });
    }
    take(servers, host, meta).await
}

/// Takes the leader's key if it is free, and if the key `meta` has this revision.
pub(super) async fn take(servers: &Servers, host: &str, meta: i64) -> Result<Election, EtcdError> {
    let grant = |mut client: Client| async move { client.lease_grant(TTL_S, None).await };
    let lease = servers.ask(servers.patience, grant).await?.id();
    let value = Value { host: host.into() };
    let value = serde_json::to_string(&value).expect("texts can be written");
    let (key, leased) = (servers.key(LEADER), PutOptions::new().with_lease(lease));
    let is_free = Compare::create_revision(key.clone(), CompareOp::Equal, 0);
    let put = Txn::new()
        .when([is_free, meta::is_at(servers, meta)])
        .and_then([TxnOp::put(key.clone(), value, Some(leased))])
        .or_else([TxnOp::get(key, None)]);
    let answer = servers.transact(servers.patience, put).await;
    let answer = answer.map_err(|failure| failure.error)?.value;
    if answer.succeeded() {
        let term = answer.header().map_or(0, |header| header.revision());
        return Ok(Election::Won(Tenure { term, lease }));
    }
    let leader = match &answer.op_responses()[..] {
        [TxnOpResponse::Get(found)] => found.kvs().first().map(Leader::of).transpose()?,
        _ => None,
    };
    match leader {
        // An earlier attempt of the transaction had no answer.
        Some(leader) if leader.lease == lease => Ok(Election::Won(leader.tenure())),
        Some(leader) => {
            end_lease(servers, lease).await;
            Ok(Election::Led(leader.host))
        }
        None => {
            end_lease(servers, lease).await;
            let changed = format!("the key {} has changed just now", servers.key(META));
            Err(EtcdError::Refused(changed))
        }
    }
}

/// Renews a lease once; returns whether it lives.
async fn renew(servers: &Servers, lease: i64) -> Result<bool, EtcdError> {
    let renewal = |mut client: Client| async move {
        match client.lease_keep_alive(lease).await {
            Ok(_) => Ok(true),
            Err(error) if has_ended(&error) => Ok(false),
            Err(error) => Err(error),
        }
    };
    servers.ask(servers.patience, renewal).await
}

/// Begin of the last renewal that has succeeded; `None` when the lease has ended.
pub(super) type Renewed = Mutex<Option<Instant>>;

/// Renews a lease until it has ended.
pub(super) async fn keep_alive(servers: Arc<Servers>, lease: i64, renewed: Arc<Renewed>) {
    loop {
        match servers.present().await {
            Ok((index, client)) => match renew_with(client, lease, &renewed).await {
                Ended::Lease => {
                    *renewed.lock() = None;
                    tracing::warn!("this host's lease in etcd has ended, and with it its lead");
                    return;
                }
                Ended::Connection(why) => {
                    tracing::debug!("renewal at {}: {why}", servers.url(index));
                    servers.leave(index);
                }
            },
            Err(error) => tracing::debug!("renewal: {error}"),
        }
        sleep(Duration::from_millis(50)).await;
    }
}

/// Whether a lease has ended, by the words of the client.
fn has_ended(error: &etcd_client::Error) -> bool {
    matches!(error, etcd_client::Error::LeaseKeepAliveError(text) if text == "lease not found")
}

/// Why renewals over one connection have ended.
enum Ended {
    Lease,
    Connection(String),
}

async fn renew_with(mut client: Client, lease: i64, renewed: &Renewed) -> Ended {
    let lost = |error: etcd_client::Error| {
        if has_ended(&error) {
            Ended::Lease
        } else {
            Ended::Connection(error.to_string())
        }
    };
    let late = || Ended::Connection(format!("no answer in {RENEWAL:?}"));
    let mut begin = Instant::now();
    let (mut keeper, mut answers) = match timeout(RENEWAL, client.lease_keep_alive(lease)).await {
        Ok(Ok(opened)) => opened,
        Ok(Err(error)) => return lost(error),
        Err(_) => return late(),
    };
    loop {
        *renewed.lock() = Some(begin);
        sleep(PERIOD).await;
        begin = Instant::now();
        if let Err(error) = keeper.keep_alive().await {
            return lost(error);
        }
        match timeout(RENEWAL, answers.message()).await {
            Ok(Ok(Some(answer))) if answer.ttl() > 0 => {}
            Ok(Ok(Some(_))) => return Ended::Lease,
            Ok(Ok(None)) => return Ended::Connection("its stream has ended".into()),
            Ok(Err(error)) => return lost(error),
            Err(_) => return late(),
        }
    }
}

/// Ends a lease, and with it the tenure that has its key.
pub(super) async fn end_lease(servers: &Servers, lease: i64) {
    let revoke = |mut client: Client| async move { client.lease_revoke(lease).await };
    if let Err(error) = servers.ask(FAREWELL, revoke).await {
        tracing::debug!("cannot end the lease in etcd: {error}");
    }
}

/// The condition that a tenure lasts.
pub(super) fn lasts(servers: &Servers, tenure: &Tenure) -> Compare {
    Compare::create_revision(servers.key(LEADER), CompareOp::Equal, tenure.term)
}
