//! Requests whose changes the directory has. The record of a request is made durable with its
//! change, so that a repeated request is carried out once.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::Not;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::Directory;
use super::records::FORMAT;
use crate::as_text::hex128;

/// Random identifier of a request. Its text has 32 hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u128);

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl FromStr for RequestId {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        hex128(text)
            .map(RequestId)
            .ok_or("the identifier of a request has 32 hexadecimal digits")
    }
}

/// A request whose change was made, also the form of its record.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MadeRequest {
    /// The actor, as text.
    pub by: String,
    /// Digest of the request.
    pub digest: String,
    /// Number of the domain that the reply describes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub domain: Option<u16>,
    /// Nodes that change hands, with their owners before.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub nodes: BTreeMap<u32, Option<u32>>,
    /// Whether these have left their domains, and have their owners still.
    #[serde(default, skip_serializing_if = "Not::not")]
    pub leaving: bool,
    /// Hosts that the change concerns.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub hosts: BTreeSet<String>,
}

impl Directory {
    /// The request with this identifier, if its change was made lately.
    pub fn made_request(&self, id: RequestId) -> Option<&MadeRequest> {
        self.requests.get(&id).map(|made| &**made)
    }

    /// Notes that a request makes the changes since the directory before, and forgets other requests.
    /// Does neither if there are no changes: then the request may as well be carried out again.
    pub fn note_request(
        &mut self,
        before: &Directory,
        id: RequestId,
        made: MadeRequest,
        forgotten: &[RequestId],
    ) {
        if !self.has_changed_since(before) {
            return;
        }
        // Releases before this format do not know these records.
        self.format = FORMAT;
        for other in forgotten {
            self.requests.remove(other);
        }
        self.requests.insert(id, Arc::new(made));
    }

    /// Requests that the directory has and an older version has not.
    pub fn requests_since<'d>(
        &'d self,
        old: &'d Directory,
    ) -> impl Iterator<Item = (RequestId, &'d MadeRequest)> {
        let differences = self.requests.differences(&old.requests).into_iter();
        differences.filter_map(|(id, before, now)| match (before, now) {
            (None, Some(made)) => Some((*id, &**made)),
            _ => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::directory::records::Changes;
    use crate::directory::sample::wanted;

    const ID: RequestId = RequestId(7);

    fn made() -> MadeRequest {
        MadeRequest {
            by: "uid 1000".into(),
            digest: "00ff".into(),
            domain: Some(1),
            nodes: [(1, None), (2, Some(1000))].into(),
            leaving: true,
            hosts: ["a".into()].into(),
        }
    }

    #[test]
    fn a_request_is_noted_with_its_change_only() {
        let before = Directory::new("2x2x1".parse().unwrap());
        let mut nothing = before.clone();
        nothing.note_request(&before, ID, made(), &[]);
        assert_eq!(nothing.records(), before.records());
        let mut first = before.clone();
        first.create(wanted("blue", &[0])).unwrap();
        first.note_request(&before, ID, made(), &[]);
        let changes = first.changes_since(&before);
        assert!(changes.put.contains_key(&format!("done/{ID}")));
        assert!(changes.put.contains_key("domain/blue"));
        let followed = before.with(&changes).unwrap();
        assert_eq!(followed.made_request(ID), Some(&made()));
        assert_eq!(followed.requests_since(&before).count(), 1);
        assert_eq!(followed.records(), first.records());

        let mut second = first.clone();
        second.remove("blue").unwrap();
        second.note_request(&first, RequestId(8), made(), &[ID, RequestId(9)]);
        let changes = second.changes_since(&first);
        assert!(changes.remove.contains(&format!("done/{ID}")));
        let followed = first.with(&changes).unwrap();
        assert_eq!(followed.made_request(ID), None);
        assert_eq!(followed.records(), second.records());
        let read = Directory::from_records(&second.records()).unwrap();
        assert_eq!(read.made_request(RequestId(8)), Some(&made()));
    }

    /// An older release must refuse the records as newer ones, not as damaged.
    #[test]
    fn the_first_record_of_a_request_raises_the_format() {
        let mut records = Directory::new("2x2x1".parse().unwrap()).records();
        records.insert("format".into(), "1".into());
        let old = Directory::from_records(&records).unwrap();
        assert_eq!(old.records(), records);
        let mut next = old.clone();
        next.create(wanted("blue", &[0])).unwrap();
        assert!(!next.changes_since(&old).put.contains_key("format"));
        next.note_request(&old, ID, made(), &[]);
        let changes = next.changes_since(&old);
        assert_eq!(changes.put["format"], FORMAT.to_string());
        let mut kept = records.clone();
        changes.apply_to(&mut kept);
        assert_eq!(kept, next.records());
        assert_eq!(old.with(&changes).unwrap().records(), kept);
        let wrong = Changes {
            put: [("done/7".into(), "{}".into())].into(),
            ..Changes::default()
        };
        next.with(&wrong).unwrap_err();
    }
}
