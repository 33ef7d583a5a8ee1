//! Reading all keys of a directory.

use std::collections::BTreeMap;

use etcd_client::GetOptions;

use super::election::LEADER;
use super::error::EtcdError;
use super::layout::{self, Edit, JoinError, Joined, Pairs};
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
    pub(super) redo: Option<Edit>,
    /// Whether there are parts of a large change that has never come into effect.
    pub(super) has_remains: bool,
}

/// Reads all keys at one revision, in pages.
pub(super) async fn load(servers: &Servers) -> Result<Loaded, EtcdError> {
    for _ in 1..ATTEMPTS {
        match read(servers).await {
            Err(EtcdError::Refused(text)) if text.contains("compacted") => {}
            read => return read.and_then(|(pairs, done)| join(servers, pairs, done)),
        }
    }
    let (pairs, done) = read(servers).await?;
    join(servers, pairs, done)
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
    let parts: BTreeMap<String, String> = split_off(&mut pairs);
    let redo = pairs.remove(REDO).map(|id| {
        let mut whole = Edit::default();
        let prefix = format!("{REDO}/{id}/");
        for (key, part) in parts.iter().filter(|(key, _)| key.starts_with(&prefix)) {
            let part: Edit = serde_json::from_str(part).map_err(|error| EtcdError::Damaged {
                prefix: servers.prefix.clone(),
                reason: format!("{key}: {error}"),
            })?;
            whole.then(&part);
        }
        Ok(whole)
    });
    let redo = redo.transpose()?;
    if let Some(redo) = &redo {
        redo.apply_to(&mut pairs);
    }
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
        has_remains: redo.is_none() && !parts.is_empty(),
        redo,
    })
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
