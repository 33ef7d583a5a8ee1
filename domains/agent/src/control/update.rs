//! Updates of followers. They share their records with the log and with each other, because after a
//! restart of the leader each follower gets the whole directory.

use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock};

use serde_json::value::{RawValue, to_raw_value};
use toroid_model::directory::records::{Changes, Records};
use toroid_model::directory::revision::Revision;
use toroid_model::shared_map::SharedMap;
use toroid_protocol::hosts::{DirectoryUpdate, HostRequest};

/// Keys and values of records.
pub(crate) type SharedRecords = SharedMap<Arc<str>, Arc<str>>;

/// Bytes of records of a long update.
const LONG: usize = 64 * 1024;

/// New contents of a follower's directory, as in [`DirectoryUpdate`].
#[derive(Clone, Debug, Default)]
pub(crate) struct SharedUpdate {
    /// The earlier revision of differences; absent from a whole directory.
    pub(crate) since: Option<Revision>,
    pub(crate) put: SharedRecords,
    pub(crate) remove: BTreeSet<Arc<str>>,
    /// JSON of the message with all of it.
    text: OnceLock<Box<RawValue>>,
}

impl SharedUpdate {
    /// The update of a follower that has the directory of this revision.
    pub(crate) fn from_revision(since: Revision) -> Self {
        SharedUpdate {
            since: Some(since),
            ..SharedUpdate::default()
        }
    }

    /// The update of a follower that has nothing.
    pub(crate) fn whole(put: SharedRecords) -> Self {
        SharedUpdate {
            put,
            ..SharedUpdate::default()
        }
    }

    /// The text of [`HostRequest::Adopt`] for an update that is not [long](Self::is_long). It is made
    /// for the first of the followers that get it.
    pub(crate) fn text(&self) -> &RawValue {
        self.text.get_or_init(|| {
            let message = HostRequest::Adopt(self.whole_message());
            to_raw_value(&message).expect("records can be written")
        })
    }

    pub(crate) fn is_whole(&self) -> bool {
        self.since.is_none()
    }

    /// Whether the messages of the update take much memory.
    pub(crate) fn is_long(&self) -> bool {
        let mut bytes = 0;
        self.put.iter().any(|(key, value)| {
            bytes += key.len() + value.len();
            bytes > LONG
        })
    }

    /// New and changed records.
    pub(crate) fn records(&self) -> impl Iterator<Item = (&str, &str)> {
        self.put.iter().map(|(key, value)| (&**key, &**value))
    }

    /// The update with these of its new and changed records.
    pub(crate) fn with(&self, records: Records) -> DirectoryUpdate {
        match self.since {
            None => DirectoryUpdate::Whole(records),
            Some(since) => DirectoryUpdate::Changes {
                since,
                put: records,
                remove: self.remove.iter().map(|key| (**key).into()).collect(),
            },
        }
    }

    /// The update as one message.
    pub(crate) fn whole_message(&self) -> DirectoryUpdate {
        let records = self.records();
        self.with(records.map(|(k, v)| (k.into(), v.into())).collect())
    }

    /// Adds later changes.
    pub(super) fn merge(&mut self, later: &SharedChanges) {
        for key in &later.remove {
            self.put.remove(key);
            self.remove.insert(Arc::clone(key));
        }
        for (key, value) in &later.put {
            self.remove.remove(key);
            self.put.insert(Arc::clone(key), Arc::clone(value));
        }
    }
}

/// [`Changes`] whose texts are shared.
#[derive(Clone, Debug)]
pub(super) struct SharedChanges {
    pub(super) put: Vec<(Arc<str>, Arc<str>)>,
    pub(super) remove: Vec<Arc<str>>,
}

impl From<Changes> for SharedChanges {
    fn from(changes: Changes) -> Self {
        SharedChanges {
            put: shared(changes.put).collect(),
            remove: changes.remove.into_iter().map(Arc::from).collect(),
        }
    }
}

/// Records with shared texts.
pub(super) fn shared(records: Records) -> impl Iterator<Item = (Arc<str>, Arc<str>)> {
    let records = records.into_iter();
    records.map(|(key, value)| (key.into(), value.into()))
}
