//! A directory as records, and back. Records are checked like any input: a file may come from a
//! newer release, a broken disk, or an editor.
//!
//! ```text
//! format          4
//! torus           "2x2x2"
//! numbers         {"next_id":2,"next_subnet":1}
//! domain/blue     {"id":1,"epoch":3,"owner":0,"mtu":9000,"subnet":"10.64.0.0/24","members":[0,7],...}
//! alias/db        7
//! node/7          {"owner":1000,"consents":["blue"]}
//! quota/user/1000 {"regions":16}
//! quota/node/7    {"bytes":1048576}
//! host/a          [0,1,2,3]                    the nodes that it carries, where there are several hosts
//! key/a           ["5d0e..."]                  its public keys; none after its removal
//! address/a       "10.0.0.1:7470"              where the others reach its agent
//! freed/00000000000000000001   [4,17]          a number that is free again, and its last epoch
//! revision        {"fabric":"9d0c...","term":{"number":3,"nonce":52},"number":120}
//! terms           [{"term":{"number":2,"nonce":9},"last":110}]      that have ended
//! partial         true                         some records are of a later revision
//! moved           {"to":"etcd","candidates":["a","b"],"from":["a"],"revision":...,"nonce":7}  the last move
//! done/0f1e...    {"by":"uid 0","digest":"60ed...","domain":1}      a request whose change was made
//! ```
//!
//! A domain whose subnet has fewer addresses than the torus has nodes also has the index of each
//! member's address, and of former members (`"addresses":{"0":0,"7":1}`), with the epochs in which
//! these left (`"left":{"7":2}`).
//!
//! A release with another form of records raises `format` and reads the older forms in
//! [`Directory::from_records`]. An older release refuses an unknown format.

mod changes;
mod domain;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

pub use changes::Changes;
pub use domain::parts::{DomainHead, DomainParts};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use toroid_fabric::{NodeId, Torus};

use super::requests::RequestId;
use super::revision::EndedTerm;
use super::{Directory, Ownership};
use crate::addressing::Subnet;
use crate::names::{is_alias, is_host_name};
use crate::quota::{Amounts, Tenant};
use domain::DomainRecord;

/// All records of a directory: keys such as `domain/blue`, values as JSON.
pub type Records = BTreeMap<String, String>;

/// The version of the records.
pub const FORMAT: u32 = 4;

const FORMAT_KEY: &str = "format";
const TORUS_KEY: &str = "torus";
const NUMBERS_KEY: &str = "numbers";
const DOMAIN: &str = "domain/";
const ALIAS: &str = "alias/";
const NODE: &str = "node/";
const QUOTA_OF_USER: &str = "quota/user/";
const QUOTA_OF_NODE: &str = "quota/node/";
const HOST: &str = "host/";
const HOST_KEYS: &str = "key/";
const HOST_ADDRESS: &str = "address/";
const SPENT_SECRET: &str = "spent";
const FREED: &str = "freed/";
pub(super) const REVISION: &str = "revision";
const ENDED_TERMS: &str = "terms";
const PARTIAL: &str = "partial";
/// Key of the record of the last [move](super::moved).
pub const MOVED: &str = "moved";
const REQUEST: &str = "done/";

/// Why records are no directory.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RecordError {
    /// Written by a newer release.
    #[error("its format is {found}, and this release knows {FORMAT} at most")]
    Newer {
        /// The version found.
        found: u32,
    },
    /// A mandatory record is missing.
    #[error("it has no record \"{0}\"")]
    Missing(&'static str),
    /// A key that means nothing.
    #[error("its record \"{0}\" means nothing to this release")]
    Unknown(String),
    /// A value that is none, or that contradicts another.
    #[error("its record \"{key}\" {reason}")]
    Invalid {
        /// The record.
        key: String,
        /// Mistake in the record.
        reason: String,
    },
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Numbers {
    next_id: u16,
    next_subnet: u32,
}

impl Directory {
    /// All of it.
    pub fn records(&self) -> Records {
        let mut changes = self.changes_since(&Directory::new(self.torus));
        changes.put(FORMAT_KEY.into(), &self.format);
        changes.put(TORUS_KEY.into(), &self.torus.to_string());
        changes.put(NUMBERS_KEY.into(), &self.numbers());
        changes.put
    }

    /// Changes since an older version of the same directory. The cost depends on the changes.
    pub fn changes_since(&self, old: &Directory) -> Changes {
        let mut changes = Changes::default();
        self.compare(old, &mut changes);
        changes
    }

    /// Whether there are changes since an older version of the same directory.
    pub(super) fn has_changed_since(&self, old: &Directory) -> bool {
        let mut any = Any(false);
        self.compare(old, &mut any);
        any.0
    }

    fn compare(&self, old: &Directory, changes: &mut impl Differences) {
        if self.format != old.format {
            changes.put(FORMAT_KEY.into(), &self.format);
        }
        if (self.next_id, self.next_subnet) != (old.next_id, old.next_subnet) {
            changes.put(NUMBERS_KEY.into(), &self.numbers());
        }
        for difference in self.domains.differences(&old.domains) {
            let key = format!("{DOMAIN}{}", difference.name);
            put_or_remove(changes, key, difference.new.map(DomainRecord::of));
        }
        let alias = |alias: &String| format!("{ALIAS}{alias}");
        compare(changes, &old.aliases, &self.aliases, alias, |n| n.0);
        let node = |node: &NodeId| format!("{NODE}{}", node.0);
        let (before, now) = (&old.ownerships, &self.ownerships);
        compare(changes, before, now, node, Ownership::clone);
        let tenant = |tenant: &Tenant| match tenant {
            Tenant::User(uid) => format!("{QUOTA_OF_USER}{uid}"),
            Tenant::Node(node) => format!("{QUOTA_OF_NODE}{}", node.0),
        };
        compare(changes, &old.limits, &self.limits, tenant, Amounts::clone);
        let host = |host: &String| format!("{HOST}{host}");
        compare(changes, &old.hosts, &self.hosts, host, numbers);
        let host = |host: &String| format!("{HOST_KEYS}{host}");
        compare(changes, &old.host_keys, &self.host_keys, host, Vec::clone);
        let host = |host: &String| format!("{HOST_ADDRESS}{host}");
        let (before, now) = (&old.host_addresses, &self.host_addresses);
        compare(changes, before, now, host, |address| *address);
        if self.spent_secret != old.spent_secret {
            put_or_remove(changes, SPENT_SECRET.into(), self.spent_secret());
        }
        if self.revision != old.revision {
            put_or_remove(changes, REVISION.into(), self.revision);
        }
        if self.ended_terms != old.ended_terms {
            let ended = (!self.ended_terms.is_empty()).then_some(&self.ended_terms[..]);
            put_or_remove(changes, ENDED_TERMS.into(), ended);
        }
        if self.is_partial != old.is_partial {
            let partial = self.is_partial.then_some(true);
            put_or_remove(changes, PARTIAL.into(), partial);
        }
        if self.moved != old.moved {
            put_or_remove(changes, MOVED.into(), self.moved());
        }
        for (order, _, number) in self.freed.differences(&old.freed) {
            put_or_remove(changes, format!("{FREED}{order:020}"), number);
        }
        for (id, _, made) in self.requests.differences(&old.requests) {
            put_or_remove(changes, format!("{REQUEST}{id}"), made.map(|made| &**made));
        }
    }

    /// The directory that records describe.
    ///
    /// # Errors
    /// [`RecordError`], for the first record that is not as it should be.
    pub fn from_records(records: &Records) -> Result<Self, RecordError> {
        let found: u32 = required(records, FORMAT_KEY)?;
        if found > FORMAT {
            return Err(RecordError::Newer { found });
        }
        let torus: String = required(records, TORUS_KEY)?;
        let torus: Torus = torus.parse().map_err(invalid(TORUS_KEY))?;
        let mut directory = Directory::new(torus);
        directory.format = found;
        let numbers: Numbers = required(records, NUMBERS_KEY)?;
        directory.set_numbers(&numbers);
        let fixed = [FORMAT_KEY, TORUS_KEY, NUMBERS_KEY];
        for (key, value) in records {
            if fixed.contains(&key.as_str()) {
                continue;
            }
            directory.restore(key, value)?;
        }
        Ok(directory)
    }

    /// The directory after changes of its records, as [`Directory::from_records`] would read it.
    /// Only the changed records are read.
    ///
    /// # Errors
    /// [`RecordError`], for the first record that is not as it should be.
    pub fn with(&self, changes: &Changes) -> Result<Self, RecordError> {
        let numbers = changes.put.get(NUMBERS_KEY);
        let numbers: Option<Numbers> =
            numbers.map(|value| parse(NUMBERS_KEY, value)).transpose()?;
        if self.is_replaced_by(changes, numbers.as_ref()) {
            let mut records = self.records();
            changes.apply_to(&mut records);
            return Ok(Self::from_records(&records)?.administered_as(self));
        }
        let mut next = self.clone();
        if let Some(numbers) = numbers {
            next.set_numbers(&numbers);
        }
        // First, because numbers, subnets and nodes may go from one record to another.
        let changed = changes.remove.iter().chain(changes.put.keys());
        changed.for_each(|key| next.forget(key));
        for (key, value) in changes.put.iter().filter(|(key, _)| *key != NUMBERS_KEY) {
            next.restore(key, value)?;
        }
        next.check_consents(&changes.remove)?;
        Ok(next)
    }

    /// Whether changes concern what all other records depend on.
    fn is_replaced_by(&self, changes: &Changes, numbers: Option<&Numbers>) -> bool {
        let has_changed = |key: &str| changes.put.contains_key(key) || changes.remove.contains(key);
        let is_lower = |numbers: &Numbers| {
            let is_used_up = |id| id == 0;
            is_used_up(self.next_id) && !is_used_up(numbers.next_id)
                || !is_used_up(numbers.next_id) && numbers.next_id < self.next_id
        };
        has_changed(FORMAT_KEY)
            || has_changed(TORUS_KEY)
            || changes.remove.contains(NUMBERS_KEY)
            || numbers.is_some_and(is_lower)
    }

    /// Removes what a record describes.
    fn forget(&mut self, key: &str) {
        if let Some(name) = key.strip_prefix(DOMAIN) {
            self.domains.take(name);
        } else if let Some(alias) = key.strip_prefix(ALIAS) {
            self.take_alias(alias);
        } else if let Some(number) = key.strip_prefix(NODE)
            && let Ok(number) = number.parse()
        {
            Arc::make_mut(&mut self.ownerships).remove(&NodeId(number));
        } else if let Some(uid) = key.strip_prefix(QUOTA_OF_USER)
            && let Ok(uid) = uid.parse()
        {
            Arc::make_mut(&mut self.limits).remove(&Tenant::User(uid));
        } else if let Some(number) = key.strip_prefix(QUOTA_OF_NODE)
            && let Ok(number) = number.parse()
        {
            Arc::make_mut(&mut self.limits).remove(&Tenant::Node(NodeId(number)));
        } else if let Some(name) = key.strip_prefix(HOST) {
            self.set_host(name, None);
        } else if let Some(name) = key.strip_prefix(HOST_KEYS) {
            self.forget_host_keys(name);
        } else if let Some(name) = key.strip_prefix(HOST_ADDRESS) {
            self.set_address(name, None);
        } else if key == SPENT_SECRET {
            self.spent_secret = None;
        } else if key == REVISION {
            self.revision = None;
        } else if key == ENDED_TERMS {
            self.ended_terms = Arc::default();
        } else if key == PARTIAL {
            self.is_partial = false;
        } else if key == MOVED {
            self.moved = None;
        } else if let Some(order) = key.strip_prefix(FREED)
            && let Ok(order) = order.parse::<u64>()
            && let Some((id, _)) = self.freed.remove(&order)
        {
            self.freed_at.remove(&id);
        } else if let Some(id) = key.strip_prefix(REQUEST)
            && let Ok(id) = id.parse::<RequestId>()
        {
            self.requests.remove(&id);
        }
    }

    /// Checks that no node consents to domains that are gone, as [`Directory::restore_node`] does.
    fn check_consents(&mut self, removed: &BTreeSet<String>) -> Result<(), RecordError> {
        let names = removed.iter().filter_map(|key| key.strip_prefix(DOMAIN));
        let gone: BTreeSet<&str> = names.filter(|name| !self.domains.contains(name)).collect();
        if gone.is_empty() {
            return Ok(());
        }
        let is_gone = |name: &String| gone.contains(name.as_str());
        let mut taken = BTreeSet::new();
        for (node, ownership) in &*self.ownerships {
            if let Some(name) = ownership.consents.iter().find(|name| is_gone(name)) {
                let reason = format!("consents to domain {name}, which is not there");
                return Err(invalid(&format!("{NODE}{}", node.0))(reason));
            }
            if ownership.taken_for.as_ref().is_some_and(is_gone) {
                taken.insert(*node);
            }
        }
        self.amend(&taken, |ownership| ownership.taken_for = None);
        Ok(())
    }

    fn set_numbers(&mut self, numbers: &Numbers) {
        self.next_id = numbers.next_id;
        self.next_subnet = numbers.next_subnet % Subnet::candidates(1);
    }

    fn restore(&mut self, key: &str, value: &str) -> Result<(), RecordError> {
        if let Some(name) = key.strip_prefix(DOMAIN) {
            self.restore_domain(name, parse(key, value)?)
                .map_err(invalid(key))
        } else if let Some(alias) = key.strip_prefix(ALIAS) {
            let node = self.known(parse(key, value)?).map_err(invalid(key))?;
            if !is_alias(alias) {
                return Err(invalid(key)("names no alias"));
            }
            self.put_alias(alias, node);
            Ok(())
        } else if let Some(number) = key.strip_prefix(NODE) {
            let node = number.parse().map_err(invalid(key))?;
            self.restore_node(node, parse(key, value)?)
                .map_err(invalid(key))
        } else if let Some(uid) = key.strip_prefix(QUOTA_OF_USER) {
            let tenant = Tenant::User(uid.parse().map_err(invalid(key))?);
            self.restore_limits(tenant, parse(key, value)?);
            Ok(())
        } else if let Some(number) = key.strip_prefix(QUOTA_OF_NODE) {
            let number = number.parse().map_err(invalid(key))?;
            let tenant = Tenant::Node(self.known(number).map_err(invalid(key))?);
            self.restore_limits(tenant, parse(key, value)?);
            Ok(())
        } else if let Some(name) = key.strip_prefix(HOST) {
            self.restore_host(name, &parse(key, value)?)
                .map_err(invalid(key))
        } else if let Some(name) = key.strip_prefix(HOST_KEYS) {
            self.restore_host_keys(name, parse(key, value)?)
                .map_err(invalid(key))
        } else if let Some(name) = key.strip_prefix(HOST_ADDRESS) {
            self.restore_address(name, parse(key, value)?)
                .map_err(invalid(key))
        } else if key == SPENT_SECRET {
            let digest: String = parse(key, value)?;
            self.spent_secret = Some(digest.into());
            Ok(())
        } else if key == REVISION {
            self.revision = Some(parse(key, value)?);
            Ok(())
        } else if key == ENDED_TERMS {
            let ended: Vec<EndedTerm> = parse(key, value)?;
            self.ended_terms = ended.into();
            Ok(())
        } else if key == PARTIAL {
            self.is_partial = parse(key, value)?;
            Ok(())
        } else if key == MOVED {
            self.moved = Some(Arc::new(parse(key, value)?));
            Ok(())
        } else if let Some(order) = key.strip_prefix(FREED) {
            let order = order.parse().map_err(invalid(key))?;
            let (id, epoch) = parse(key, value)?;
            self.check_number(id, epoch).map_err(invalid(key))?;
            self.free_id(order, id, epoch);
            Ok(())
        } else if let Some(id) = key.strip_prefix(REQUEST) {
            let id: RequestId = id.parse().map_err(invalid(key))?;
            self.requests.insert(id, Arc::new(parse(key, value)?));
            Ok(())
        } else {
            Err(RecordError::Unknown(key.into()))
        }
    }

    /// Domains come before nodes in the order of keys.
    fn restore_node(&mut self, number: u32, mut ownership: Ownership) -> Result<(), String> {
        let node = self.known(number)?;
        let is_missing = |name: &String| !self.domains.contains(name);
        if let Some(name) = ownership.consents.iter().find(|name| is_missing(name)) {
            return Err(format!("consents to domain {name}, which is not there"));
        }
        ownership.taken_for.take_if(|name| is_missing(name));
        Arc::make_mut(&mut self.ownerships).insert(node, ownership);
        Ok(())
    }

    fn restore_host(&mut self, name: &str, numbers: &BTreeSet<u32>) -> Result<(), String> {
        if !is_host_name(name) {
            return Err("names no host".into());
        }
        let nodes = self.all_known(numbers)?;
        self.claim(name, &nodes).map_err(|error| error.to_string())
    }

    fn restore_limits(&mut self, tenant: Tenant, limits: Amounts) {
        Arc::make_mut(&mut self.limits).insert(tenant, limits);
    }

    /// Checks a number: already assigned, and in no other record so far.
    fn check_number(&self, id: u16, epoch: u32) -> Result<(), String> {
        let given_out = id != 0 && (self.next_id == 0 || id < self.next_id);
        if !given_out || epoch == 0 {
            return Err(format!("has number {id} and epoch {epoch}"));
        }
        if self.freed_at.contains_key(&id) || self.domain_by_id(id.into()).is_some() {
            Err(format!("has number {id}, which another record has, too"))
        } else {
            Ok(())
        }
    }

    fn all_known(&self, numbers: &BTreeSet<u32>) -> Result<BTreeSet<NodeId>, String> {
        numbers.iter().map(|number| self.known(*number)).collect()
    }

    fn known(&self, number: u32) -> Result<NodeId, String> {
        let node = NodeId(number);
        let place = self.torus.place(node);
        place
            .map(|_| node)
            .ok_or_else(|| format!("has node {number}, which the torus {} has not", self.torus))
    }

    fn numbers(&self) -> Numbers {
        Numbers {
            next_id: self.next_id,
            next_subnet: self.next_subnet,
        }
    }
}

fn numbers(nodes: &BTreeSet<NodeId>) -> BTreeSet<u32> {
    nodes.iter().map(|node| node.0).collect()
}

/// Differences of records.
trait Differences {
    /// A record is new or different.
    fn put(&mut self, key: String, value: &impl Serialize);

    /// A record is no more.
    fn remove(&mut self, key: String);
}

impl Differences for Changes {
    fn put(&mut self, key: String, value: &impl Serialize) {
        // Numbers, texts and sets of numbers can always be written.
        let value = serde_json::to_string(value).unwrap_or_default();
        self.put.insert(key, value);
    }

    fn remove(&mut self, key: String) {
        self.remove.insert(key);
    }
}

/// Whether there is a difference. It costs no text of a record.
struct Any(bool);

impl Differences for Any {
    fn put(&mut self, _key: String, _value: &impl Serialize) {
        self.0 = true;
    }

    fn remove(&mut self, _key: String) {
        self.0 = true;
    }
}

/// Adds the differences of the records of one table. Tables are shared until they change.
fn compare<K: Ord, V: PartialEq, R: Serialize>(
    changes: &mut impl Differences,
    old: &BTreeMap<K, V>,
    new: &BTreeMap<K, V>,
    key: impl Fn(&K) -> String,
    record: impl Fn(&V) -> R,
) {
    if std::ptr::eq(old, new) {
        return;
    }
    let differs = |(name, value): &(&K, &V)| old.get(name) != Some(value);
    for (name, value) in new.iter().filter(differs) {
        changes.put(key(name), &record(value));
    }
    let gone = old.keys().filter(|name| !new.contains_key(name));
    gone.for_each(|name| changes.remove(key(name)));
}

fn put_or_remove(changes: &mut impl Differences, key: String, value: Option<impl Serialize>) {
    match value {
        Some(value) => changes.put(key, &value),
        None => changes.remove(key),
    }
}

fn required<T: DeserializeOwned>(records: &Records, key: &'static str) -> Result<T, RecordError> {
    let value = records.get(key).ok_or(RecordError::Missing(key))?;
    parse(key, value)
}

pub(super) fn parse<T: DeserializeOwned>(key: &str, value: &str) -> Result<T, RecordError> {
    serde_json::from_str(value).map_err(|error| invalid(key)(format!("is malformed: {error}")))
}

fn invalid<E: ToString>(key: &str) -> impl Fn(E) -> RecordError {
    move |reason| RecordError::Invalid {
        key: key.into(),
        reason: reason.to_string(),
    }
}
