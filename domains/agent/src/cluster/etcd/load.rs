//! Reading all keys of a directory.

use std::collections::BTreeSet;
use std::fmt::Display;

use etcd_client::{GetOptions, Txn, TxnOp, TxnOpResponse};
use serde::{Deserialize, Serialize};
use toroid_model::directory::moved::Moved;
use toroid_model::directory::records::MOVED;
use toroid_model::directory::revision::Revision;

use super::Etcd;
use super::election::{LEADER, leader};
use super::error::EtcdError;
use super::layout::{self, Edit, JoinError, Joined, Pairs, RECORD, REVISION};
use super::meta::META;
use super::servers::Servers;

/// Name of the key with the identifier of the last change.
pub(super) const DONE: &str = "done";

/// Name of the key of a large change that is in effect. Its parts are below.
pub(super) const REDO: &str = "redo";

/// Keys in one answer.
const PAGE: i64 = 1000;

/// Attempts while etcd compacts the revision that is read.
const ATTEMPTS: usize = 5;

/// A directory at one revision.
#[derive(Debug, Default)]
pub(super) struct Loaded {
    pub(super) joined: Joined,
    /// Revision of the last change; 0 if there was none.
    pub(super) done: i64,
    /// A large change that is not yet in all of its keys, though in the records.
    pub(super) redo: Option<Redo>,
    /// Identifiers of large changes that have parts, and have never come into effect.
    pub(super) remains: BTreeSet<String>,
}

/// A large change that is in effect.
#[derive(Debug)]
pub(super) struct Redo {
    pub(super) id: String,
    pub(super) edit: Edit,
    /// Number of transactions of it that have been made since it was read or written.
    pub(super) made: usize,
}

/// Value of the key that brings a large change into effect.
#[derive(Serialize, Deserialize)]
pub(super) struct Staged {
    pub(super) id: String,
    /// Number of its parts.
    pub(super) parts: usize,
}

/// Reads all keys at one revision, in pages.
pub(super) fn load(etcd: &Etcd) -> Result<Loaded, EtcdError> {
    let (pairs, done) = etcd.run(|servers| async move { read_all(&servers).await })?;
    // Here, because that takes long, and the thread of etcd renews the lease.
    join(etcd.servers(), pairs, done)
}

/// The last move of the directory, and whether no host has led it since, unless a host leads now or
/// a large change is not in its keys yet.
pub(super) async fn moved(servers: &Servers) -> Result<Option<(Moved, bool)>, EtcdError> {
    // In this order: from then on no leader of before changes anything.
    if leader(servers).await?.0.is_some() {
        return Ok(None);
    }
    let [moved, revision] = [MOVED, REVISION].map(|key| servers.key(&format!("{RECORD}{key}")));
    // A change there may be of these.
    let look = [moved, revision, servers.key(REDO)].map(|key| TxnOp::get(key, None));
    let answer = servers.transact(servers.patience, Txn::new().and_then(look));
    let answer = answer.await.map_err(|failure| failure.error)?.value;
    let record = |index: usize| match answer.op_responses().get(index) {
        Some(TxnOpResponse::Get(found)) => found.kvs().first().map(|its| its.value().to_vec()),
        _ => None,
    };
    let damaged = |error: serde_json::Error| EtcdError::Damaged {
        prefix: servers.prefix.clone(),
        reason: error.to_string(),
    };
    let (Some(moved), Some(revision), None) = (record(0), record(1), record(2)) else {
        return Ok(None);
    };
    let moved: Moved = serde_json::from_slice(&moved).map_err(damaged)?;
    let revision: Revision = serde_json::from_slice(&revision).map_err(damaged)?;
    let is_arriving = revision.is_of_same_term(&moved.revision);
    Ok(Some((moved, is_arriving)))
}

async fn read_all(servers: &Servers) -> Result<(Pairs, i64), EtcdError> {
    for _ in 1..ATTEMPTS {
        match read(servers).await {
            Err(EtcdError::Refused(text)) if text.contains("compacted") => {}
            read => return read,
        }
    }
    read(servers).await
}

async fn read(servers: &Servers) -> Result<(Pairs, i64), EtcdError> {
    let (mut from, end) = servers.range();
    let base = from.len();
    let (mut pairs, mut done, mut revision) = (Pairs::new(), 0, 0);
    loop {
        let page = GetOptions::new().with_range(end.clone()).with_limit(PAGE);
        let page = servers.get(&from, page.with_revision(revision)).await?;
        revision = match (revision, page.header()) {
            (0, Some(header)) => header.revision(),
            _ => revision,
        };
        for pair in page.kvs() {
            let foreign = || EtcdError::Foreign {
                key: String::from_utf8_lossy(pair.key()).into(),
            };
            let key = pair.key_str().map_err(|_| foreign())?;
            let value = pair.value_str().map_err(|_| foreign())?;
            if &key[base..] == DONE {
                done = pair.mod_revision();
            }
            pairs.insert(key[base..].into(), value.into());
        }
        match page.kvs().last() {
            Some(last) if page.more() => {
                from = format!("{}\0", last.key_str().unwrap_or_default());
            }
            _ => return Ok((pairs, done)),
        }
    }
}

fn join(servers: &Servers, mut pairs: Pairs, done: i64) -> Result<Loaded, EtcdError> {
    for key in [META, LEADER, DONE] {
        pairs.remove(key);
    }
    let parts = split_off(&mut pairs);
    let staged = pairs.remove(REDO);
    let redo = staged.map(|staged| assemble(servers, &staged, &parts));
    let redo = redo.transpose()?;
    if let Some(redo) = &redo {
        redo.edit.apply_to(&mut pairs);
    }
    let mut remains: BTreeSet<String> = parts.keys().filter_map(|key| id_of(key)).collect();
    remains.retain(|id| redo.as_ref().is_none_or(|redo| redo.id != *id));
    let joined = layout::join(pairs).map_err(|error| match error {
        JoinError::Foreign(key) => EtcdError::Foreign {
            key: servers.key(&key),
        },
        JoinError::Record(error) => EtcdError::Damaged {
            prefix: servers.prefix.clone(),
            reason: error.to_string(),
        },
    })?;
    Ok(Loaded {
        joined,
        done,
        redo,
        remains,
    })
}

/// Puts a large change together.
fn assemble(servers: &Servers, staged: &str, parts: &Pairs) -> Result<Redo, EtcdError> {
    let damaged = |key: &str, reason: &dyn Display| EtcdError::Damaged {
        prefix: servers.prefix.clone(),
        reason: format!("{key}: {reason}"),
    };
    let Staged { id, parts: count } =
        serde_json::from_str(staged).map_err(|error| damaged(REDO, &error))?;
    let mut edit = Edit::default();
    for index in 0..count {
        let key = part(&id, index);
        let missing = || damaged(&key, &"this part of a change is missing");
        let part = parts.get(&key).ok_or_else(missing)?;
        let part: Edit = serde_json::from_str(part).map_err(|error| damaged(&key, &error))?;
        edit.then(&part);
    }
    Ok(Redo { id, edit, made: 0 })
}

/// Name of the key of a part.
pub(super) fn part(id: &str, index: usize) -> String {
    format!("{REDO}/{id}/{index:06}")
}

/// Identifier of the large change that has this part.
fn id_of(part: &str) -> Option<String> {
    let (id, _) = part
        .strip_prefix(REDO)?
        .strip_prefix('/')?
        .split_once('/')?;
    Some(id.into())
}

/// Takes the parts of large changes out.
fn split_off(pairs: &mut Pairs) -> Pairs {
    let is_part = |key: &String| {
        let rest = key.strip_prefix(REDO);
        rest.is_some_and(|rest| rest.starts_with('/'))
    };
    let parts = pairs.iter().filter(|(key, _)| is_part(key));
    let parts = parts
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect();
    pairs.retain(|key, _| !is_part(key));
    parts
}
