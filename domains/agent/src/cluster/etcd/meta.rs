//! The key that says which directory the other keys are of.

use etcd_client::{Compare, CompareOp, GetOptions, TxnOpResponse};
use serde::{Deserialize, Serialize};
use toroid_fabric::Torus;

use super::error::EtcdError;
use super::servers::Servers;

/// Name of the key.
pub(super) const META: &str = "meta";

/// Version of the keys. The records have a format of their own.
const FORMAT: u32 = 1;

/// Value of the key. A later format may have more.
#[derive(Serialize, Deserialize)]
struct Meta {
    format: u32,
    #[serde(default)]
    torus: String,
}

/// Checks that the servers are of one cluster and the keys of a directory of this torus. Writes the
/// key where there are none yet.
pub(super) async fn check(servers: &Servers, torus: Torus) -> Result<(), EtcdError> {
    let key = servers.key(META);
    let found = servers.get(&key, GetOptions::new()).await?;
    let cluster = found.header().map(|header| header.cluster_id());
    check_clusters(servers, cluster).await?;
    if let Some(pair) = found.kvs().first() {
        return check_value(servers, torus, pair.value());
    }
    let (first, end) = servers.range();
    let any = GetOptions::new()
        .with_range(end)
        .with_limit(1)
        .with_keys_only();
    if let Some(other) = servers.get(&first, any).await?.kvs().first() {
        let other = other.key().to_vec();
        // Another candidate may have written its own meanwhile.
        return match servers.get(&key, GetOptions::new()).await?.kvs().first() {
            Some(pair) => check_value(servers, torus, pair.value()),
            None => Err(EtcdError::Foreign {
                key: String::from_utf8_lossy(&other).into(),
            }),
        };
    }
    let meta = Meta {
        format: FORMAT,
        torus: torus.to_string(),
    };
    let meta = serde_json::to_string(&meta).expect("texts and numbers can be written");
    let written = servers
        .transact(servers.patience, servers.put_new(META, meta))
        .await;
    let written = written.map_err(|failure| failure.error)?.value;
    match &written.op_responses()[..] {
        [TxnOpResponse::Get(found)] => match found.kvs().first() {
            Some(pair) => check_value(servers, torus, pair.value()),
            None => Err(EtcdError::Foreign { key }),
        },
        _ => Ok(()),
    }
}

/// Revision of the key, whose value is right. Writes the key where there are none yet.
pub(super) async fn revision(servers: &Servers, torus: Torus) -> Result<i64, EtcdError> {
    let key = servers.key(META);
    let mut found = servers.get(&key, GetOptions::new()).await?;
    if found.kvs().is_empty() {
        check(servers, torus).await?;
        found = servers.get(&key, GetOptions::new()).await?;
    }
    let pair = found.kvs().first().ok_or(EtcdError::Foreign { key })?;
    check_value(servers, torus, pair.value())?;
    Ok(pair.mod_revision())
}

/// The condition that the key is that of this revision.
pub(super) fn is_at(servers: &Servers, revision: i64) -> Compare {
    Compare::mod_revision(servers.key(META), CompareOp::Equal, revision)
}

fn check_value(servers: &Servers, torus: Torus, value: &[u8]) -> Result<(), EtcdError> {
    let prefix = || servers.prefix.clone();
    let meta: Meta = serde_json::from_slice(value).map_err(|_| EtcdError::Foreign {
        key: servers.key(META),
    })?;
    if meta.format > FORMAT {
        Err(EtcdError::Newer {
            prefix: prefix(),
            found: meta.format,
            known: FORMAT,
        })
    } else if meta.torus != torus.to_string() {
        Err(EtcdError::OtherTorus {
            prefix: prefix(),
            kept: meta.torus,
            asked: torus,
        })
    } else {
        Ok(())
    }
}

/// Checks that all servers that answer are of the cluster that has answered first.
async fn check_clusters(servers: &Servers, cluster: Option<u64>) -> Result<(), EtcdError> {
    let mut first = None;
    for index in 0..servers.count() {
        if servers.count() == 1 {
            return Ok(());
        }
        let Ok(client) = servers.connect(index).await else {
            continue;
        };
        // Of the server's own, as it may know nothing of the others.
        let own = GetOptions::new().with_serializable();
        let mut kv = client.kv_client();
        let asked = kv.get(servers.key(META), Some(own));
        let Ok(Ok(found)) = tokio::time::timeout(std::time::Duration::from_secs(1), asked).await
        else {
            continue;
        };
        let its = found.header().map(|header| header.cluster_id());
        match first {
            None if its == cluster => first = Some(index),
            _ if its != cluster => {
                let other = (0..servers.count()).find(|other| *other != index);
                return Err(EtcdError::OtherCluster {
                    first: servers.url(first.or(other).unwrap_or(index)).into(),
                    second: servers.url(index).into(),
                });
            }
            _ => {}
        }
    }
    Ok(())
}
