//! Keys of a directory's records.
//!
//! ```text
//! PREFIX/meta          {"format":1,"torus":"2x2x2"}
//! PREFIX/leader        {"host":"a"}                 leased; its create revision is the term
//! PREFIX/done          identifier of the last change
//! PREFIX/r/KEY         a record of the directory; of a domain without its members
//! PREFIX/m/ID/NODE     a member of the domain with that number
//! PREFIX/redo          {"id":ID,"parts":2}   a large change in effect, not yet in all of its keys
//! PREFIX/redo/ID/N     its parts
//! ```

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use toroid_model::directory::records::{Changes, DomainHead, DomainParts, RecordError, Records};
use toroid_model::directory::revision::Revision;

/// Values of keys. Keys are without the prefix.
pub(super) type Pairs = BTreeMap<String, String>;

pub(super) const RECORD: &str = "r/";
const MEMBER: &str = "m/";
const DOMAIN: &str = "domain/";
pub(super) const REVISION: &str = "revision";

/// Differences of keys.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Edit {
    pub(super) put: Pairs,
    /// None of them is in `put`.
    pub(super) delete: BTreeSet<String>,
}

impl Edit {
    /// The differences of keys that changes of records are.
    pub(super) fn of(old: &Records, changes: &Changes) -> Result<Self, RecordError> {
        let mut edit = Edit::default();
        let touched = changes.remove.iter().chain(changes.put.keys());
        for key in touched {
            let before = old.get(key).map(|value| pairs(key, value)).transpose()?;
            let before = before.unwrap_or_default();
            let after = changes.put.get(key).map(|value| pairs(key, value));
            let after = after.transpose()?.unwrap_or_default();
            edit.delete.extend(before.keys().cloned());
            let differs = |(key, value): &(String, String)| before.get(key) != Some(value);
            let kept = after.keys().filter(|key| before.contains_key(*key));
            kept.for_each(|key| _ = edit.delete.remove(key));
            edit.put.extend(after.into_iter().filter(differs));
        }
        // A number of a domain may go from one to another.
        edit.delete.retain(|key| !edit.put.contains_key(key));
        Ok(edit)
    }

    /// Adds later differences.
    pub(super) fn then(&mut self, later: &Edit) {
        for key in &later.delete {
            self.put.remove(key);
            self.delete.insert(key.clone());
        }
        for (key, value) in &later.put {
            self.delete.remove(key);
            self.put.insert(key.clone(), value.clone());
        }
    }

    pub(super) fn apply_to(&self, pairs: &mut Pairs) {
        pairs.retain(|key, _| !self.delete.contains(key));
        pairs.extend(self.put.clone());
    }

    pub(super) fn is_empty(&self) -> bool {
        self.put.is_empty() && self.delete.is_empty()
    }

    /// Number of operations.
    pub(super) fn len(&self) -> usize {
        self.put.len() + self.delete.len()
    }

    /// Bytes of all keys and values.
    pub(super) fn bytes(&self) -> usize {
        let pairs = self.put.iter().map(|(key, value)| key.len() + value.len());
        pairs.sum::<usize>() + self.delete.iter().map(String::len).sum::<usize>()
    }

    pub(super) fn puts_any_of(&self, keys: &BTreeSet<String>) -> bool {
        keys.iter().any(|key| self.put.contains_key(key))
    }

    /// Parts of at most so many operations and bytes, or one operation.
    pub(super) fn pieces(self, operations: usize, bytes: usize) -> Vec<Edit> {
        let mut pieces = vec![Edit::default()];
        let mut room = bytes;
        let puts = self.put.into_iter().map(|(key, value)| (key, Some(value)));
        let deletes = self.delete.into_iter().map(|key| (key, None));
        for (key, value) in puts.chain(deletes) {
            let size = key.len() + value.as_ref().map_or(0, String::len);
            let is_full = |piece: &Edit| piece.len() >= operations || size > room;
            if pieces
                .last()
                .is_some_and(|last| !last.is_empty() && is_full(last))
            {
                pieces.push(Edit::default());
                room = bytes;
            }
            room = room.saturating_sub(size);
            let last = pieces.last_mut().expect("one was put in first");
            match value {
                Some(value) => _ = last.put.insert(key, value),
                None => _ = last.delete.insert(key),
            }
        }
        pieces
    }

    /// Whether members leave, and all puts only follow from that: without them, a reader finds out
    /// by the counts of the domains' heads.
    pub(super) fn is_departure(&self, changes: &Changes) -> bool {
        let is_member = |key: &&String| key.starts_with(MEMBER);
        let leave: BTreeSet<&str> = self
            .delete
            .iter()
            .filter_map(|key| domain_of(key))
            .collect();
        let follows = |(key, value): (&String, &String)| match key.strip_prefix(RECORD) {
            Some(record) if record.starts_with(DOMAIN) => DomainHead::read(record, value)
                .is_ok_and(|head| leave.contains(&head.id().to_string()[..])),
            // Requests that were carried out. Repeated ones find that the members have left. But
            // owners of nodes and their consents do not follow from anything.
            Some(record) => record == REVISION || record.starts_with("done/"),
            None => false,
        };
        self.delete.iter().any(|key| is_member(&key))
            && self.put.iter().all(follows)
            && !changes.remove.iter().any(|key| key.starts_with(DOMAIN))
    }
}

/// The keys and values of one record.
fn pairs(key: &str, value: &str) -> Result<Pairs, RecordError> {
    let own = |value: &str| (format!("{RECORD}{key}"), value.to_owned());
    if !key.starts_with(DOMAIN) {
        return Ok([own(value)].into());
    }
    let parts = DomainParts::of(key, value)?;
    let mut pairs: Pairs = [own(&parts.head)].into();
    for (node, member) in parts.members {
        pairs.insert(format!("{MEMBER}{}/{node}", parts.id), member);
    }
    Ok(pairs)
}

/// Number of the domain whose member has this key, as text.
fn domain_of(key: &str) -> Option<&str> {
    let (id, _) = key.strip_prefix(MEMBER)?.split_once('/')?;
    Some(id)
}

/// Records of keys.
#[derive(Debug, Default)]
pub(super) struct Joined {
    pub(super) records: Records,
    /// Keys that shrinks have left unwritten, because there was no room.
    pub(super) owed: Pairs,
}

/// Why keys are no records.
#[derive(Debug)]
pub(super) enum JoinError {
    /// The key is none of a directory.
    Foreign(String),
    Record(RecordError),
}

impl From<RecordError> for JoinError {
    fn from(error: RecordError) -> Self {
        JoinError::Record(error)
    }
}

/// The records that keys have.
pub(super) fn join(pairs: Pairs) -> Result<Joined, JoinError> {
    let mut joined = Joined::default();
    let mut members: BTreeMap<u16, BTreeMap<u32, String>> = BTreeMap::new();
    for (key, value) in pairs {
        if let Some(record) = key.strip_prefix(RECORD) {
            joined.records.insert(record.into(), value);
            continue;
        }
        let member = domain_of(&key).and_then(|id| {
            let node = key.rsplit('/').next()?;
            Some((id.parse().ok()?, node.parse().ok()?))
        });
        let Some((id, node)) = member else {
            return Err(JoinError::Foreign(key));
        };
        members.entry(id).or_default().insert(node, value);
    }
    let mut departures = 0;
    let domains = joined.records.iter_mut();
    for (key, value) in domains.filter(|(key, _)| key.starts_with(DOMAIN)) {
        let head = DomainHead::read(key, value)?;
        let its = members.remove(&head.id()).unwrap_or_default();
        let (record, missing) = head.join(key, &its)?;
        *value = record;
        if missing > 0 {
            departures += u64::from(missing);
            let parts = DomainParts::of(key, value)?;
            joined.owed.insert(format!("{RECORD}{key}"), parts.head);
        }
    }
    if let Some((id, _)) = members.into_iter().next() {
        return Err(JoinError::Foreign(format!("{MEMBER}{id}")));
    }
    if departures > 0
        && let Some(value) = joined.records.get_mut(REVISION)
    {
        // Each shrink had a revision, so that hosts do not know a later one than this.
        let invalid = |error: serde_json::Error| RecordError::Invalid {
            key: REVISION.into(),
            reason: error.to_string(),
        };
        let mut revision: Revision = serde_json::from_str(value).map_err(invalid)?;
        revision.number = revision.number.saturating_add(departures);
        *value = serde_json::to_string(&revision).map_err(invalid)?;
        joined
            .owed
            .insert(format!("{RECORD}{REVISION}"), value.clone());
    }
    Ok(joined)
}

#[cfg(test)]
mod tests {
    use fastrand::Rng;
    use toroid_fabric::NodeId;
    use toroid_model::directory::{Directory, Wanted, full_members};

    use super::*;

    /// A directory after one more change: domains come, go and change, and with them their numbers.
    fn next(before: &Directory, random: &mut Rng) -> Directory {
        let mut directory = before.clone();
        let members = (0..random.u32(1..20)).map(|_| NodeId(random.u32(0..2048)));
        let members: BTreeSet<NodeId> = members.collect();
        let name = ["red", "blue", "green"][random.usize(..3)];
        // Not all are possible.
        let _ = match random.u8(..4) {
            0 => directory.remove(name).map(drop),
            1 => directory.grow(name, &members).map(drop),
            2 => directory.shrink(name, &members).map(drop),
            _ => {
                let wanted = Wanted {
                    name: name.into(),
                    members: full_members(members),
                    ..Wanted::default()
                };
                directory.create(wanted).map(drop)
            }
        };
        directory
    }

    #[test]
    fn keys_have_what_records_have() {
        let mut random = Rng::with_seed(26);
        let mut directory = Directory::new("16x16x8".parse().unwrap());
        let all = Changes::between(&Records::new(), &directory.records());
        let mut keys = Pairs::new();
        Edit::of(&Records::new(), &all).unwrap().apply_to(&mut keys);
        for _ in 0..300 {
            let after = next(&directory, &mut random);
            let changes = after.changes_since(&directory);
            let edit = Edit::of(&directory.records(), &changes).unwrap();
            let pieces = edit
                .clone()
                .pieces(random.usize(1..9), random.usize(1..200));
            assert_eq!(pieces.iter().map(Edit::len).sum::<usize>(), edit.len());
            for piece in pieces {
                piece.apply_to(&mut keys);
            }
            let joined = join(keys.clone()).unwrap();
            assert_eq!(joined.records, after.records());
            assert_eq!(joined.owed, Pairs::new());
            directory = after;
        }
    }

    #[test]
    fn only_departures_need_no_writing() {
        let empty = Directory::new("16x16x8".parse().unwrap());
        let mut before = empty.clone();
        for (name, members) in [("red", [1, 2]), ("blue", [2, 3])] {
            let wanted = Wanted {
                name: name.into(),
                members: full_members(members.map(NodeId)),
                ..Wanted::default()
            };
            before.create(wanted).unwrap();
        }
        before.give(&[NodeId(1), NodeId(3)].into(), Some(1000));
        before.consent(&[NodeId(1)].into(), "red", false).unwrap();
        let is_departure_with = |request: Option<&str>, change: fn(&mut Directory)| {
            let mut after = before.clone();
            change(&mut after);
            let mut changes = after.changes_since(&before);
            let request = request.map(|key| (key.into(), r#"{"outcome":"done"}"#.into()));
            changes.put.extend(request);
            let edit = Edit::of(&before.records(), &changes).unwrap();
            edit.is_departure(&changes)
        };
        let is_departure = |change| is_departure_with(None, change);
        let leave = |it: &mut Directory| drop(it.shrink("red", &[NodeId(1)].into()));
        assert!(is_departure_with(Some("done/x"), leave));
        assert!(!is_departure_with(Some("other/x"), leave));
        // A guest leaves and withdraws its consent, which the next leader would find again.
        assert!(!is_departure(|it| {
            it.shrink("red", &[NodeId(1)].into()).unwrap();
            it.consent(&[NodeId(1)].into(), "red", true).unwrap();
        }));
        // A node that belongs to the agent again has no record.
        assert!(is_departure(|it| {
            it.shrink("red", &[NodeId(1)].into()).unwrap();
            it.give(&[NodeId(1)].into(), None);
        }));
        assert!(is_departure(|it| drop(
            it.shrink("red", &[NodeId(1)].into())
        )));
        assert!(is_departure(|it| {
            it.shrink("red", &[NodeId(2)].into()).unwrap();
            it.shrink("blue", &[NodeId(2)].into()).unwrap();
        }));
        assert!(!is_departure(|it| drop(it.remove("red"))));
        assert!(!is_departure(|it| drop(
            it.grow("red", &[NodeId(3)].into())
        )));
        assert!(!is_departure(|it| {
            it.shrink("red", &[NodeId(1)].into()).unwrap();
            it.grow("blue", &[NodeId(1)].into()).unwrap();
        }));
        assert!(!is_departure(|_| {}));
    }
}
