//! Revisions of a directory: its place in the history of a fabric.
//!
//! A fabric is one history of a directory, on all hosts that have it. The agent that leads it begins
//! a term at each start, and each durable change raises the number of the revision by one, also the
//! beginning of a term. A copy has the revision of the last update that it has adopted.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::Directory;
use super::records::{FORMAT, REVISION, RecordError, Records, parse};
use crate::as_text::{self, hex128};

/// Random identifier of a fabric. Its text has 32 hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FabricId(pub u128);

/// Term of a leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Term {
    /// Rises by one when an agent begins to lead.
    pub number: u64,
    /// Random number. It tells two terms of one number apart: an agent that starts with an old copy
    /// of its directory repeats numbers.
    pub nonce: u64,
}

/// A term that has ended, as the present one knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EndedTerm {
    /// The term.
    pub term: Term,
    /// Number of its last revision that the next term goes on from.
    pub last: u64,
}

/// Ended terms that a directory knows. A copy of an older one begins anew.
const MAX_ENDED: usize = 256;

/// Revision of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Revision {
    /// The fabric.
    #[serde(with = "as_text")]
    pub fabric: FabricId,
    /// Term in which the change was made.
    pub term: Term,
    /// Number of the change in the fabric, over all terms.
    pub number: u64,
}

impl Revision {
    /// The revision of a directory with these records, if it has one.
    ///
    /// # Errors
    /// [`RecordError`].
    pub fn among(records: &Records) -> Result<Option<Self>, RecordError> {
        let record = records.get(REVISION);
        record.map(|record| parse(REVISION, record)).transpose()
    }

    /// Whether both are of one term of one fabric, and so of one history.
    pub fn is_of_same_term(&self, other: &Revision) -> bool {
        (self.fabric, self.term) == (other.fabric, other.term)
    }
}

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "revision {} of term {}", self.number, self.term.number)
    }
}

impl fmt::Display for FabricId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl FromStr for FabricId {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        hex128(text)
            .map(FabricId)
            .ok_or("the identifier of a fabric has 32 hexadecimal digits")
    }
}

impl Directory {
    /// The revision, if an agent has led this directory.
    pub fn revision(&self) -> Option<Revision> {
        self.revision
    }

    /// Whether some records are of a later revision: a copy that has not adopted all of an update.
    pub fn is_partial(&self) -> bool {
        self.is_partial
    }

    /// Whether this directory has all changes of a copy: it is of the same history, and not older.
    pub fn goes_on_from(&self, copy: &Revision) -> bool {
        let Some(revision) = self.revision.filter(|its| its.fabric == copy.fabric) else {
            return false;
        };
        let last = if revision.term == copy.term {
            Some(revision.number)
        } else {
            let mut ended = self.ended_terms.iter();
            ended.find_map(|its| (its.term == copy.term).then_some(its.last))
        };
        last.is_some_and(|last| copy.number <= last)
    }

    /// Begins the next term. A directory without a revision begins the history of fabric `new`.
    pub fn begin_term(&mut self, new: FabricId, nonce: u64) {
        let last = self.revision.unwrap_or(Revision {
            fabric: new,
            term: Term {
                number: 0,
                nonce: 0,
            },
            number: 0,
        });
        if self.revision.is_some() {
            let mut ended = self.ended_terms.to_vec();
            ended.push(EndedTerm {
                term: last.term,
                last: last.number,
            });
            let oldest = ended.len().saturating_sub(MAX_ENDED);
            self.ended_terms = ended.split_off(oldest).into();
        }
        self.revision = Some(Revision {
            fabric: last.fabric,
            term: Term {
                number: last.term.number.saturating_add(1),
                nonce,
            },
            number: last.number.saturating_add(1),
        });
        self.is_partial = false;
        self.format = FORMAT;
    }

    /// Raises the revision if there is one, and if anything differs from the directory before.
    pub fn advance(&mut self, before: &Directory) {
        if self.revision.is_some() && self.has_changed_since(before) {
            let raise = |its: &mut Revision| its.number = its.number.saturating_add(1);
            self.revision.iter_mut().for_each(raise);
            self.stamp_move(before);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::directory::sample::wanted;

    #[test]
    fn revisions_rise_with_changes_and_terms() {
        let mut directory = Directory::new("2x2x1".parse().unwrap());
        let mut next = directory.clone();
        next.create(wanted("blue", &[0])).unwrap();
        next.advance(&directory);
        // No agent leads it.
        assert_eq!(next.revision(), None);
        directory.begin_term(FabricId(7), 1);
        let first = directory.revision().unwrap();
        let mut next = directory.clone();
        next.advance(&directory);
        assert_eq!(next.revision(), Some(first));
        next.create(wanted("blue", &[0])).unwrap();
        next.advance(&directory);
        let second = next.revision().unwrap();
        assert_eq!((first.number, second.number), (1, 2));
        assert!(second.is_of_same_term(&first));
        // As after a restart.
        let mut next = Directory::from_records(&next.records()).unwrap();
        next.begin_term(FabricId(8), 2);
        let third = next.revision().unwrap();
        assert_eq!((third.fabric, third.number), (FabricId(7), 3));
        assert_eq!((first.term.number, third.term.number), (1, 2));
        assert!(!third.is_of_same_term(&second));
        let two_leaders = Revision {
            term: Term {
                nonce: 3,
                ..third.term
            },
            ..third
        };
        assert!(!third.is_of_same_term(&two_leaders));
    }

    #[test]
    fn a_term_goes_on_from_copies_that_it_knows_only() {
        let mut directory = Directory::new("2x2x1".parse().unwrap());
        directory.begin_term(FabricId(7), 1);
        let change = |directory: &mut Directory, name: &str| {
            let before = directory.clone();
            directory.create(wanted(name, &[0])).unwrap();
            directory.advance(&before);
            directory.revision().unwrap()
        };
        let known = change(&mut directory, "blue");
        // A follower has a change that the next leader's copy lacks.
        let mut ahead = directory.clone();
        let unknown = change(&mut ahead, "red");
        directory.begin_term(FabricId(8), 2);
        let mut two_leaders = ahead.clone();
        two_leaders.begin_term(FabricId(8), 3);
        for name in ["green", "white"] {
            change(&mut directory, name);
        }
        let directory = Directory::from_records(&directory.records()).unwrap();
        assert!(directory.goes_on_from(&known));
        assert!(directory.goes_on_from(&directory.revision().unwrap()));
        assert!(directory.revision().unwrap().number > unknown.number);
        assert!(!directory.goes_on_from(&unknown));
        assert!(!directory.goes_on_from(&two_leaders.revision().unwrap()));
        assert!(two_leaders.goes_on_from(&unknown) && two_leaders.goes_on_from(&known));
        let other_fabric = Revision {
            fabric: FabricId(8),
            ..known
        };
        assert!(!directory.goes_on_from(&other_fabric));
    }

    #[test]
    fn no_more_than_so_many_terms_are_known() {
        let mut directory = Directory::new("1x1x1".parse().unwrap());
        directory.begin_term(FabricId(7), 0);
        let first = directory.revision().unwrap();
        directory.begin_term(FabricId(7), 0);
        let second = directory.revision().unwrap();
        for _ in 1..MAX_ENDED {
            assert!(directory.goes_on_from(&first));
            directory.begin_term(FabricId(7), 0);
        }
        assert!(directory.goes_on_from(&first));
        directory.begin_term(FabricId(7), 0);
        assert!(!directory.goes_on_from(&first) && directory.goes_on_from(&second));
    }

    #[test]
    fn identifiers_of_fabrics_have_32_digits() {
        let text = "000000000000000000000000000000ff";
        assert_eq!(text.parse(), Ok(FabricId(255)));
        assert_eq!(FabricId(255).to_string(), text);
        for wrong in ["", "ff", "+00000000000000000000000000000ff"] {
            wrong.parse::<FabricId>().unwrap_err();
        }
    }
}
