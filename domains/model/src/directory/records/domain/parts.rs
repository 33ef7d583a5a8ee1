//! The record of a domain in parts: a head, and one record for each member.
//!
//! A store with a key for each member removes members without writing anything, also when it has no
//! room left. The head has the count of members, and tells by it that it was not written then.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use toroid_fabric::NodeId;

use super::DomainRecord;
use crate::directory::records::{RecordError, invalid, parse};
use crate::link::Rate;

/// The parts of a domain's record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DomainParts {
    /// Number of the domain.
    pub id: u16,
    /// The record without members, as JSON.
    pub head: String,
    /// Records of members as JSON, by the numbers of nodes.
    pub members: BTreeMap<u32, String>,
}

/// A domain's record without members, but with their count.
#[derive(Serialize, Deserialize)]
pub struct DomainHead(u32, DomainRecord);

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct MemberRecord {
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    limited: bool,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    plain: bool,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    stack: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    rate: Option<Rate>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    address: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    since: Option<u32>,
}

impl DomainParts {
    /// The parts of a record, whose key is for errors.
    ///
    /// # Errors
    /// [`RecordError::Invalid`].
    pub fn of(key: &str, record: &str) -> Result<Self, RecordError> {
        let mut record: DomainRecord = parse(key, record)?;
        let nodes = std::mem::take(&mut record.members);
        let mut members = BTreeMap::new();
        for node in &nodes {
            let member = MemberRecord {
                limited: record.limited.remove(node),
                plain: record.plain.remove(node),
                stack: record.stacks.remove(node),
                rate: record.rates.remove(node),
                address: record.addresses.remove(node),
                since: record.since.remove(node),
            };
            members.insert(*node, text(key, &member)?);
        }
        let count = u32::try_from(nodes.len()).map_err(invalid(key))?;
        Ok(DomainParts {
            id: record.id,
            head: text(key, &DomainHead(count, record))?,
            members,
        })
    }
}

impl DomainHead {
    /// Reads a head.
    ///
    /// # Errors
    /// [`RecordError::Invalid`].
    pub fn read(key: &str, head: &str) -> Result<Self, RecordError> {
        parse(key, head)
    }

    /// Number of the domain.
    pub fn id(&self) -> u16 {
        self.1.id
    }

    /// The record with these members, and how many less these are than the head counts. Each of
    /// those left by a shrink that has not written the head, so that the epoch rises once for each:
    /// by at least as much as the shrinks raised it.
    ///
    /// # Errors
    /// [`RecordError::Invalid`].
    pub fn join(
        self,
        key: &str,
        members: &BTreeMap<u32, String>,
    ) -> Result<(String, u32), RecordError> {
        let DomainHead(count, mut record) = self;
        for (node, member) in members {
            let member: MemberRecord = parse(key, member)?;
            record.members.insert(*node);
            let sets = [
                (member.limited, &mut record.limited),
                (member.plain, &mut record.plain),
                (member.stack, &mut record.stacks),
            ];
            for (_, set) in sets.into_iter().filter(|(is_in, _)| *is_in) {
                set.insert(*node);
            }
            record.rates.extend(member.rate.map(|it| (*node, it)));
            record
                .addresses
                .extend(member.address.map(|it| (*node, it)));
            record.since.extend(member.since.map(|it| (*node, it)));
        }
        let present = u32::try_from(members.len()).map_err(invalid(key))?;
        let more = || invalid(key)(format!("counts {count} members and has {present}"));
        let missing = count.checked_sub(present).ok_or_else(more)?;
        if missing > 0 {
            record.epoch = record.epoch.saturating_add(missing);
            let is_member = |node: &NodeId| members.contains_key(&node.0);
            let pairs = &mut record.links.pairs;
            pairs.retain(|pair, _| is_member(&pair.from) && is_member(&pair.to));
            record.retain_gateways(|node| members.contains_key(&node));
        }
        Ok((text(key, &record)?, missing))
    }
}

fn text(key: &str, value: &impl Serialize) -> Result<String, RecordError> {
    serde_json::to_string(value).map_err(invalid(key))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::directory::sample::{nodes, wanted};
    use crate::directory::{Directory, MemberSpec};
    use crate::gateway::{Gateway, GatewayKind};

    const KEY: &str = "domain/blue";

    /// Of 1,024 nodes, so that a small domain has indexes of addresses.
    fn directory() -> Directory {
        let mut directory = Directory::new("16x16x4".parse().unwrap());
        directory.create(wanted("blue", &[1, 3])).unwrap();
        let limited = MemberSpec {
            limited: true,
            ..MemberSpec::default()
        };
        directory.admit("blue", &nodes(&[2]), limited).unwrap();
        let rate = "1Gbit".parse().ok();
        directory.set_rate("blue", &nodes(&[2]), rate).unwrap();
        directory.shrink("blue", &nodes(&[3])).unwrap();
        directory.grow("blue", &nodes(&[4])).unwrap();
        directory
    }

    #[test]
    fn a_record_is_the_same_after_it_was_in_parts() {
        let record = &directory().records()[KEY];
        let parts = DomainParts::of(KEY, record).unwrap();
        assert_eq!(parts.members.keys().copied().collect::<Vec<_>>(), [1, 2, 4]);
        assert!(parts.members[&2].contains("limited"), "{parts:?}");
        assert!(parts.members[&2].contains("1Gbit"), "{parts:?}");
        let head = DomainHead::read(KEY, &parts.head).unwrap();
        assert_eq!(head.id(), parts.id);
        let joined = head.join(KEY, &parts.members).unwrap();
        assert_eq!(joined, (record.clone(), 0));
    }

    /// The store had no room for the new head.
    #[test]
    fn a_head_without_its_members_has_a_later_epoch() {
        let mut before = directory();
        for (node, uplink) in [(1, "eth1"), (2, "eth2")] {
            let gateway = Gateway {
                node: NodeId(node),
                uplink: uplink.into(),
                kind: GatewayKind::Nat,
            };
            before.add_gateway("blue", gateway).unwrap();
        }
        let mut parts = DomainParts::of(KEY, &before.records()[KEY]).unwrap();
        parts.members.remove(&1);
        parts.members.remove(&4);
        let head = || DomainHead::read(KEY, &parts.head).unwrap();
        let (record, missing) = head().join(KEY, &parts.members).unwrap();
        assert_eq!(missing, 2);
        let mut records = before.records();
        records.insert(KEY.into(), record);
        let after = Directory::from_records(&records).unwrap();
        let epoch = |directory: &Directory| directory.domain("blue").unwrap().epoch;
        assert_eq!(epoch(&after), epoch(&before) + 2);
        let blue = after.domain("blue").unwrap();
        assert_eq!(blue.nodes(), nodes(&[2]));
        assert_eq!(blue.gateways.len(), 1);
        assert_eq!(blue.gateways[0].node, NodeId(2));
        for node in 1..5 {
            parts.members.insert(node, "{}".into());
        }
        let error = head().join(KEY, &parts.members).unwrap_err();
        assert!(error.to_string().contains("counts 3 members"), "{error}");
    }
}
