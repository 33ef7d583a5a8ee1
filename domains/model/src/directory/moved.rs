//! Moves of the directory between the files of a host and etcd.
//!
//! The record of a move says where the directory is led from. It becomes durable in a complete copy
//! at the new place first, and then at the old place, which commits the move: from then on the old
//! place is led from no more. The new place is led from only after its host has seen that commit, see
//! [`Directory::is_arriving`].

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::Directory;
use super::records::{FORMAT, MOVED, RecordError, Records, parse};
use super::revision::Revision;

/// Place of a directory on etcd. No host has this name.
pub const ETCD: &str = "etcd";

/// The last move of a directory, also the form of its record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Moved {
    /// Where the directory is: [`ETCD`], or the host whose files have it.
    pub to: String,
    /// Hosts that may lead, on etcd.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub candidates: BTreeSet<String>,
    /// Former places, which files of hosts may still name.
    pub from: BTreeSet<String>,
    /// Revision of the move itself.
    pub revision: Revision,
    /// Random number, which no host but the leader and the next one knows before the commit.
    pub nonce: u64,
}

impl Moved {
    /// The record of a move among records.
    ///
    /// # Errors
    /// [`RecordError`].
    pub fn among(records: &Records) -> Result<Option<Self>, RecordError> {
        let record = records.get(MOVED);
        record.map(|record| parse(MOVED, record)).transpose()
    }

    /// Lines of the file for `toroid up --config` that name this place.
    pub fn lines(&self) -> String {
        let directory = format!("directory = \"{}\"", self.to);
        if self.candidates.is_empty() {
            directory
        } else {
            format!(
                "{directory} and candidates = {:?}",
                Vec::from_iter(&self.candidates)
            )
        }
    }
}

/// The place in words.
impl fmt::Display for Moved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.to.as_str() {
            ETCD => f.write_str("etcd"),
            host => write!(f, "host {host}"),
        }
    }
}

impl Directory {
    /// The last move of the directory.
    pub fn moved(&self) -> Option<&Moved> {
        self.moved.as_deref()
    }

    /// Moves the directory from one place to another, with these candidates if that is [`ETCD`]. The
    /// record gets a random number, and its revision by [`Directory::advance`].
    pub fn relocate(&mut self, from: &str, to: &str, candidates: BTreeSet<String>, nonce: u64) {
        let Some(revision) = self.revision else {
            return;
        };
        let mut all = self
            .moved()
            .map_or_else(BTreeSet::new, |last| last.from.clone());
        all.extend(self.moved().map(|last| last.to.clone()));
        all.insert(from.into());
        all.remove(to);
        // Releases before this format do not know the record.
        self.format = FORMAT;
        self.moved = Some(Arc::new(Moved {
            to: to.into(),
            candidates,
            from: all,
            revision,
            nonce,
        }));
    }

    /// Forgets the last move, because the directory is led from another place by hand.
    pub fn forget_move(&mut self) {
        self.moved = None;
    }

    /// Whether no host has led the directory since its last move, so that this may be a copy of a
    /// move that was never committed.
    pub fn is_arriving(&self) -> bool {
        let present = self.revision.map(|revision| revision.term);
        self.moved()
            .is_some_and(|moved| Some(moved.revision.term) == present)
    }

    /// Gives the record of a move that was made since the directory before its revision.
    pub(super) fn stamp_move(&mut self, before: &Directory) {
        if let (Some(moved), Some(revision)) = (&mut self.moved, self.revision)
            && before.moved.as_ref() != Some(moved)
        {
            Arc::make_mut(moved).revision = revision;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::directory::revision::FabricId;
    use crate::directory::sample::wanted;

    fn led() -> Directory {
        let mut directory = Directory::new("2x2x1".parse().unwrap());
        directory.begin_term(FabricId(7), 1);
        directory
    }

    fn moved(before: &Directory, from: &str, to: &str) -> Directory {
        let mut next = before.clone();
        next.relocate(from, to, BTreeSet::new(), 7);
        next.advance(before);
        next
    }

    #[test]
    fn a_move_has_its_own_revision_and_all_former_places() {
        let first = led();
        let there = moved(&first, "a", ETCD);
        assert_eq!(there.moved().unwrap().revision, there.revision().unwrap());
        assert_eq!(there.revision().unwrap().number, 2);
        let mut next = there.clone();
        next.create(wanted("blue", &[0])).unwrap();
        next.advance(&there);
        // A later change is no move.
        assert_eq!(next.moved(), there.moved());
        let back = moved(&next, ETCD, "b");
        let its = back.moved().unwrap();
        assert_eq!((its.to.as_str(), its.revision.number), ("b", 4));
        assert_eq!(Vec::from_iter(&its.from), ["a", ETCD]);
        let home = moved(&back, "b", "a");
        assert_eq!(Vec::from_iter(&home.moved().unwrap().from), ["b", ETCD]);
    }

    #[test]
    fn a_copy_arrives_until_a_host_leads_it() {
        let mut directory = led();
        assert!(!directory.is_arriving());
        directory = moved(&directory, "a", ETCD);
        assert!(directory.is_arriving());
        let read = Directory::from_records(&directory.records()).unwrap();
        assert!(read.is_arriving() && read.moved() == directory.moved());
        directory.begin_term(FabricId(8), 2);
        assert!(!directory.is_arriving() && directory.moved().is_some());
    }

    #[test]
    fn followers_get_the_record_of_a_move_as_a_change() {
        let before = led();
        let after = moved(&before, "a", "b");
        let changes = after.changes_since(&before);
        assert_eq!(Vec::from_iter(changes.put.keys()), ["moved", "revision"]);
        let followed = before.with(&changes).unwrap();
        assert_eq!(followed.records(), after.records());
        assert_eq!(
            Moved::among(&after.records()).unwrap().as_ref(),
            after.moved()
        );
        let mut anew = after.clone();
        anew.forget_move();
        anew.advance(&after);
        let changes = anew.changes_since(&after);
        assert!(changes.remove.contains("moved"));
        assert_eq!(after.with(&changes).unwrap().moved(), None);
        assert_eq!(Moved::among(&before.records()).unwrap(), None);
        let wrong = [("moved".into(), "{}".into())].into();
        Moved::among(&wrong).unwrap_err();
    }

    /// An older release must refuse the records as newer ones, not as damaged.
    #[test]
    fn a_move_raises_the_format() {
        let mut records = led().records();
        records.insert("format".into(), "2".into());
        let old = Directory::from_records(&records).unwrap();
        let next = moved(&old, "a", "b");
        assert_eq!(next.changes_since(&old).put["format"], FORMAT.to_string());
    }

    #[test]
    fn the_lines_of_a_file_name_the_place() {
        let mut directory = led();
        directory.relocate("a", ETCD, ["a".into(), "b".into()].into(), 7);
        let lines = directory.moved().unwrap().lines();
        assert_eq!(lines, r#"directory = "etcd" and candidates = ["a", "b"]"#);
        directory.relocate(ETCD, "b", BTreeSet::new(), 8);
        assert_eq!(directory.moved().unwrap().lines(), r#"directory = "b""#);
    }
}
