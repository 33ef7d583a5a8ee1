//! A directory as records, and back. What is read is checked like any input: a file may come
//! from a newer release, from a broken disk, or from an editor.
//!
//! ```text
//! format          1
//! torus           "2x2x2"
//! numbers         {"next_id":2,"next_subnet":1}
//! domain/blue     {"id":1,"epoch":3,"owner":0,"mtu":9000,"subnet":"10.64.0.0/24","members":[0,7],...}
//! alias/db        7
//! node/7          {"owner":1000,"consents":["blue"]}
//! quota/user/1000 {"regions":16}
//! quota/node/7    {"bytes":1048576}
//! host/a          [0,1,2,3]                    the nodes that it carries, where there are several hosts
//! freed/00000000000000000001   [4,17]          a number that is free again, and its last epoch
//! ```
//!
//! A release that needs other records raises `format` and reads the older ones in
//! [`Directory::from_records`]; an older release refuses what it does not know.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use toroid_fabric::{NodeId, Torus};

use super::{Directory, Domain, MAX_MTU, MIN_MTU, MemberSpec, Ownership, members, members_with};
use crate::addressing::Subnet;
use crate::gateway::{Gateway, GatewayKind};
use crate::names::{is_alias, is_domain_name, is_host_name, is_uplink_name};
use crate::quota::{Amounts, Tenant};

/// All records of a directory: keys such as `domain/blue`, values as JSON.
pub type Records = BTreeMap<String, String>;

/// What distinguishes a directory from the one before it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Records that are new or different.
    pub put: Records,
    /// Keys of records that are no more.
    pub remove: BTreeSet<String>,
}

impl Changes {
    /// What makes `new` of `old`.
    pub fn between(old: &Records, new: &Records) -> Self {
        let differs = |(key, value): &(&String, &String)| old.get(*key) != Some(*value);
        let put = new.iter().filter(differs);
        let gone = old.keys().filter(|key| !new.contains_key(*key));
        Changes {
            put: put
                .map(|(key, value)| (key.clone(), value.clone()))
                .collect(),
            remove: gone.cloned().collect(),
        }
    }

    /// Whether nothing differs.
    pub fn is_empty(&self) -> bool {
        self.put.is_empty() && self.remove.is_empty()
    }
}

/// The version of the records.
pub const FORMAT: u32 = 1;

const FORMAT_KEY: &str = "format";
const TORUS_KEY: &str = "torus";
const NUMBERS_KEY: &str = "numbers";
const DOMAIN: &str = "domain/";
const ALIAS: &str = "alias/";
const NODE: &str = "node/";
const QUOTA_OF_USER: &str = "quota/user/";
const QUOTA_OF_NODE: &str = "quota/node/";
const HOST: &str = "host/";
const FREED: &str = "freed/";

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
    /// One that must be there is not.
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
        /// What is wrong with it.
        reason: String,
    },
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Numbers {
    next_id: u16,
    next_subnet: u32,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct DomainRecord {
    id: u16,
    epoch: u32,
    owner: u32,
    mtu: u32,
    #[serde(with = "crate::as_text")]
    subnet: Subnet,
    members: BTreeSet<u32>,
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    limited: BTreeSet<u32>,
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    plain: BTreeSet<u32>,
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    stacks: BTreeSet<u32>,
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    managers: BTreeSet<u32>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    public: bool,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    forward: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    gateway: Option<GatewayRecord>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    since: BTreeMap<u32, u32>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct GatewayRecord {
    node: u32,
    uplink: String,
    kind: GatewayKind,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct NodeRecord {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    owner: Option<u32>,
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    consents: BTreeSet<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    taken_for: Option<String>,
}

impl Directory {
    /// All of it.
    pub fn records(&self) -> Records {
        let mut changes = self.changes_since(&Directory::new(self.torus));
        put(&mut changes, FORMAT_KEY.into(), &FORMAT);
        put(&mut changes, TORUS_KEY.into(), &self.torus.to_string());
        put(&mut changes, NUMBERS_KEY.into(), &self.numbers());
        changes.put
    }

    /// What distinguishes it from an older one of the same torus. The effort does not grow with
    /// what stayed the same, but for a comparison of pointers for each domain.
    pub fn changes_since(&self, old: &Directory) -> Changes {
        let mut changes = Changes::default();
        if (self.next_id, self.next_subnet) != (old.next_id, old.next_subnet) {
            put(&mut changes, NUMBERS_KEY.into(), &self.numbers());
        }
        // Domains that are shared with the old directory are known to be equal by their address.
        compare(&mut changes, &old.domains, &self.domains, domain_key, |d| {
            DomainRecord::of(d)
        });
        if !Arc::ptr_eq(&self.aliases, &old.aliases) {
            let key = |alias: &String| format!("{ALIAS}{alias}");
            compare(&mut changes, &old.aliases, &self.aliases, key, |node| {
                node.0
            });
        }
        if !Arc::ptr_eq(&self.ownerships, &old.ownerships) {
            let key = |node: &NodeId| format!("{NODE}{}", node.0);
            compare(
                &mut changes,
                &old.ownerships,
                &self.ownerships,
                key,
                NodeRecord::of,
            );
        }
        if !Arc::ptr_eq(&self.limits, &old.limits) {
            let key = |tenant: &Tenant| match tenant {
                Tenant::User(uid) => format!("{QUOTA_OF_USER}{uid}"),
                Tenant::Node(node) => format!("{QUOTA_OF_NODE}{}", node.0),
            };
            compare(&mut changes, &old.limits, &self.limits, key, Amounts::clone);
        }
        if !Arc::ptr_eq(&self.hosts, &old.hosts) {
            let key = |host: &String| format!("{HOST}{host}");
            let numbers = |nodes: &BTreeSet<NodeId>| -> Vec<u32> {
                nodes.iter().map(|node| node.0).collect()
            };
            compare(&mut changes, &old.hosts, &self.hosts, key, numbers);
        }
        if !Arc::ptr_eq(&self.freed, &old.freed) {
            let key = |order: &u64| format!("{FREED}{order:020}");
            compare(&mut changes, &old.freed, &self.freed, key, |number| *number);
        }
        changes
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
        let numbers: Numbers = required(records, NUMBERS_KEY)?;
        directory.next_id = numbers.next_id;
        directory.next_subnet = numbers.next_subnet % Subnet::candidates(torus);
        let fixed = [FORMAT_KEY, TORUS_KEY, NUMBERS_KEY];
        for (key, value) in records {
            if fixed.contains(&key.as_str()) {
                continue;
            }
            directory.restore(key, value)?;
        }
        Ok(directory)
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
            Arc::make_mut(&mut self.aliases).insert(alias.into(), node);
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
        } else if let Some(order) = key.strip_prefix(FREED) {
            let order = order.parse().map_err(invalid(key))?;
            let (id, epoch) = parse(key, value)?;
            self.check_number(id, epoch).map_err(invalid(key))?;
            Arc::make_mut(&mut self.freed).insert(order, (id, epoch));
            Ok(())
        } else {
            Err(RecordError::Unknown(key.into()))
        }
    }

    fn restore_domain(&mut self, name: &str, record: DomainRecord) -> Result<(), String> {
        if !is_domain_name(name) {
            return Err("names no domain".into());
        }
        if !(MIN_MTU..=MAX_MTU).contains(&record.mtu) {
            return Err(format!("has an MTU of {}", record.mtu));
        }
        self.check_number(record.id, record.epoch)?;
        self.check_subnet(record.subnet)
            .map_err(|e| e.to_string())?;
        let nodes = |numbers: &BTreeSet<u32>| {
            let nodes = numbers.iter().map(|number| self.known(*number));
            nodes.collect::<Result<BTreeSet<NodeId>, String>>()
        };
        let gateway = record.gateway.map(|gateway| {
            Ok::<_, String>(Gateway {
                node: self.known(gateway.node)?,
                uplink: gateway.uplink,
                kind: gateway.kind,
            })
        });
        let listed = nodes(&record.members)?;
        let kind = |kind: &str, record: &BTreeSet<u32>| {
            let those = nodes(record)?;
            if those.is_subset(&listed) {
                Ok(those)
            } else {
                Err(format!("has {kind} that are no members"))
            }
        };
        let limited = kind("limited members", &record.limited)?;
        let no_offload = kind("plain members", &record.plain)?;
        let userspace_stack = kind("stacks", &record.stacks)?;
        let domain = Domain {
            name: name.into(),
            id: record.id,
            epoch: record.epoch,
            owner: record.owner,
            mtu: record.mtu,
            subnet: record.subnet,
            members: members(&listed, &limited, &no_offload, &userspace_stack),
            managers: nodes(&record.managers)?,
            public: record.public,
            forward: record.forward,
            gateway: gateway.transpose()?,
            since: self.restore_since(&record.since)?,
        };
        if !domain
            .since
            .keys()
            .all(|node| domain.members.contains_key(node))
        {
            return Err("says since when there are members that are none".into());
        }
        let is_sound = |gateway: &Gateway| {
            domain.members.contains_key(&gateway.node) && is_uplink_name(&gateway.uplink)
        };
        if !domain.gateway.as_ref().is_none_or(is_sound) {
            return Err("has a gateway that can be none".into());
        }
        self.domains.insert(name.into(), Arc::new(domain));
        Ok(())
    }

    /// Domains come before nodes in the order of keys.
    fn restore_node(&mut self, number: u32, record: NodeRecord) -> Result<(), String> {
        let node = self.known(number)?;
        let NodeRecord {
            owner,
            consents,
            taken_for,
        } = record;
        if let Some(name) = consents
            .iter()
            .find(|name| !self.domains.contains_key(*name))
        {
            return Err(format!("consents to domain {name}, which is not there"));
        }
        let taken_for = taken_for.filter(|name| self.domains.contains_key(name));
        let ownership = Ownership {
            owner,
            consents,
            taken_for,
        };
        Arc::make_mut(&mut self.ownerships).insert(node, ownership);
        Ok(())
    }

    fn restore_since(&self, since: &BTreeMap<u32, u32>) -> Result<BTreeMap<NodeId, u32>, String> {
        let known = |(number, epoch): (&u32, &u32)| Ok((self.known(*number)?, *epoch));
        since.iter().map(known).collect()
    }

    fn restore_host(&mut self, name: &str, numbers: &BTreeSet<u32>) -> Result<(), String> {
        if !is_host_name(name) {
            return Err("names no host".into());
        }
        let nodes = numbers.iter().map(|number| self.known(*number));
        let nodes = nodes.collect::<Result<BTreeSet<NodeId>, String>>()?;
        self.claim(name, &nodes).map_err(|error| error.to_string())
    }

    fn restore_limits(&mut self, tenant: Tenant, limits: Amounts) {
        Arc::make_mut(&mut self.limits).insert(tenant, limits);
    }

    /// A number that has been given out, and to nobody else among those read so far.
    fn check_number(&self, id: u16, epoch: u32) -> Result<(), String> {
        let given_out = id != 0 && (self.next_id == 0 || id < self.next_id);
        if !given_out || epoch == 0 {
            return Err(format!("has number {id} and epoch {epoch}"));
        }
        let is_free = self.freed.values().any(|(freed, _)| *freed == id);
        if is_free || self.domain_by_id(id.into()).is_some() {
            Err(format!("has number {id}, which another record has, too"))
        } else {
            Ok(())
        }
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

impl DomainRecord {
    fn of(domain: &Domain) -> Self {
        let numbers = |nodes: &BTreeSet<NodeId>| nodes.iter().map(|node| node.0).collect();
        let with =
            |is_wanted: fn(&MemberSpec) -> bool| numbers(&members_with(&domain.members, is_wanted));
        DomainRecord {
            id: domain.id,
            epoch: domain.epoch,
            owner: domain.owner,
            mtu: domain.mtu,
            subnet: domain.subnet,
            members: numbers(&domain.nodes()),
            limited: with(|spec| spec.limited),
            plain: with(|spec| spec.no_offload),
            stacks: with(|spec| spec.userspace_stack),
            managers: numbers(&domain.managers),
            public: domain.public,
            forward: domain.forward,
            gateway: domain.gateway.as_ref().map(|gateway| GatewayRecord {
                node: gateway.node.0,
                uplink: gateway.uplink.clone(),
                kind: gateway.kind,
            }),
            since: domain
                .since
                .iter()
                .map(|(node, epoch)| (node.0, *epoch))
                .collect(),
        }
    }
}

impl NodeRecord {
    fn of(ownership: &Ownership) -> Self {
        NodeRecord {
            owner: ownership.owner,
            consents: ownership.consents.clone(),
            taken_for: ownership.taken_for.clone(),
        }
    }
}

fn domain_key(name: &String) -> String {
    format!("{DOMAIN}{name}")
}

/// Adds what distinguishes the records of one table.
fn compare<K: Ord, V: PartialEq, R: Serialize>(
    changes: &mut Changes,
    old: &BTreeMap<K, V>,
    new: &BTreeMap<K, V>,
    key: impl Fn(&K) -> String,
    record: impl Fn(&V) -> R,
) {
    for (name, value) in new
        .iter()
        .filter(|(name, value)| old.get(name) != Some(value))
    {
        put(changes, key(name), &record(value));
    }
    let gone = old.keys().filter(|name| !new.contains_key(name));
    changes.remove.extend(gone.map(key));
}

fn put(changes: &mut Changes, key: String, value: &impl Serialize) {
    // Numbers, texts and sets of numbers can always be written.
    let value = serde_json::to_string(value).unwrap_or_default();
    changes.put.insert(key, value);
}

fn required<T: DeserializeOwned>(records: &Records, key: &'static str) -> Result<T, RecordError> {
    let value = records.get(key).ok_or(RecordError::Missing(key))?;
    parse(key, value)
}

fn parse<T: DeserializeOwned>(key: &str, value: &str) -> Result<T, RecordError> {
    serde_json::from_str(value).map_err(|error| invalid(key)(format!("is malformed: {error}")))
}

fn invalid<E: ToString>(key: &str) -> impl Fn(E) -> RecordError {
    move |reason| RecordError::Invalid {
        key: key.into(),
        reason: reason.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::directory::{Wanted, full_members};
    use crate::quota::Resource;

    fn nodes(numbers: &[u32]) -> BTreeSet<NodeId> {
        numbers.iter().copied().map(NodeId).collect()
    }

    fn directory() -> Directory {
        let mut directory = Directory::new("2x2x2".parse().unwrap());
        for name in ["blue", "red", "gone"] {
            let wanted = Wanted {
                name: name.into(),
                members: full_members(nodes(&[0, 1, 7])),
                owner: 1000,
                ..Wanted::default()
            };
            directory.create(wanted).unwrap();
        }
        directory.shrink("red", &nodes(&[1])).unwrap();
        directory.add_alias(NodeId(7), "db").unwrap();
        for (limited, no_offload, node) in [(true, false, 2), (true, true, 3), (false, true, 5)] {
            let spec = MemberSpec {
                limited,
                no_offload,
                userspace_stack: node == 5,
            };
            directory.admit("red", &nodes(&[node]), spec).unwrap();
        }
        directory.manage("red", &nodes(&[0]), false).unwrap();
        directory.set("red", Some(true), Some(true), None).unwrap();
        directory.give(&nodes(&[2, 3]), Some(1001));
        directory.consent(&nodes(&[3, 7]), "blue", false).unwrap();
        directory.consent(&nodes(&[4]), "gone", false).unwrap();
        let limits = [(Resource::Bytes, Some(1 << 20))].into();
        directory.limit(&[Tenant::User(1000), Tenant::Node(NodeId(7))], &limits);
        directory.claim("a", &nodes(&[0, 1])).unwrap();
        directory.remove("gone").unwrap();
        directory
    }

    /// Two directories are the same when their records are.
    fn assert_same(a: &Directory, b: &Directory) {
        assert_eq!(a.records(), b.records());
    }

    #[test]
    fn a_directory_comes_back_as_it_was() {
        let before = directory();
        let mut after = Directory::from_records(&before.records()).unwrap();
        assert_same(&before, &after);
        assert_eq!(after.domain("red").unwrap().epoch, 2);
        let wanted = Wanted {
            name: "next".into(),
            ..Wanted::default()
        };
        let next = after.create(wanted).unwrap().domain;
        assert_eq!(
            (next.id, next.subnet.to_string()),
            (4, "10.64.3.0/24".into())
        );
    }

    #[test]
    fn changes_are_what_differs_and_no_more() {
        let before = directory();
        let mut after = before.clone();
        assert!(after.changes_since(&before).is_empty());
        after.grow("blue", &nodes(&[3])).unwrap();
        let changes = after.changes_since(&before);
        assert_eq!(changes.put.keys().collect::<Vec<_>>(), ["domain/blue"]);
        assert_eq!(
            changes,
            Changes::between(&before.records(), &after.records())
        );
        after.remove("red").unwrap();
        let changes = after.changes_since(&before);
        assert_eq!(changes.remove, ["domain/red".to_owned()].into());
        assert_eq!(
            changes,
            Changes::between(&before.records(), &after.records())
        );
    }

    #[test]
    fn what_is_no_directory_is_refused_and_named() {
        let sound = directory().records();
        let with = |key: &str, value: &str| {
            let mut records = sound.clone();
            records.insert(key.into(), value.into());
            Directory::from_records(&records).unwrap_err()
        };
        assert_eq!(with("format", "2"), RecordError::Newer { found: 2 });
        assert_eq!(with("x/y", "1"), RecordError::Unknown("x/y".into()));
        let blue = sound["domain/blue"].clone();
        let bad = [
            ("torus", "\"2x2\""),
            ("numbers", "{}"),
            ("alias/db", "8"),
            ("alias/1-0-0", "1"),
            ("node/8", "{}"),
            ("node/3", r#"{"consents":["gone"]}"#),
            ("node/x", "{}"),
            ("quota/node/8", "{}"),
            ("quota/user/x", "{}"),
            ("host/a", "[8]"),
            ("host/b", "[0]"),
            ("host/B", "[1]"),
            (
                "domain/blue",
                &blue.replace("\"mtu\"", "\"since\":{\"2\":1},\"mtu\""),
            ),
            ("quota/user/1000", r#"{"colours":3}"#),
            ("freed/x", "[3,4]"),
            ("freed/00000000000000000007", "[1,4]"),
            ("freed/00000000000000000007", "[9,4]"),
            ("domain/blue", "{"),
            ("domain/Blue", &blue.replace(":1,", ":3,")),
            ("domain/other", &blue),
            ("domain/blue", &blue.replace("[0,1,7]", "[0,8]")),
            ("domain/blue", &blue.replace("9000", "9")),
            ("domain/blue", &blue.replace("\"epoch\":1", "\"epoch\":0")),
            ("domain/blue", &blue.replace("10.64.0.0", "10.64.1.0")),
            (
                "domain/blue",
                &blue.replace("[0,1,7]", "[0],\"limited\":[1]"),
            ),
            ("domain/blue", &blue.replace("[0,1,7]", "[0],\"plain\":[1]")),
            (
                "domain/blue",
                &blue.replace("[0,1,7]", "[0],\"stacks\":[1]"),
            ),
            (
                "domain/blue",
                &blue.replace("\"mtu\"", "\"colour\":1,\"mtu\""),
            ),
            (
                "domain/blue",
                &blue.replace(
                    "\"mtu\"",
                    r#""gateway":{"node":2,"uplink":"eth0","kind":"nat"},"mtu""#,
                ),
            ),
            (
                "domain/blue",
                &blue.replace(
                    "\"mtu\"",
                    r#""gateway":{"node":0,"uplink":"a\"b","kind":"nat"},"mtu""#,
                ),
            ),
        ];
        for (key, value) in bad {
            match with(key, value) {
                // The subnet's other owner may be the one that is read second.
                RecordError::Invalid { key: found, .. } => {
                    assert!(
                        found == key || value.contains("10.64.1.0"),
                        "{found}: {value}"
                    );
                }
                error => panic!("{key}: {error}"),
            }
        }
        for key in ["format", "torus", "numbers"] {
            let mut records = sound.clone();
            records.remove(key);
            let error = Directory::from_records(&records).unwrap_err();
            assert!(error.to_string().contains(key), "{error}");
        }
    }
}
