//! Counters of `stats detail`: commands by prefixes of their keys.

use std::collections::BTreeMap;

/// Most prefixes: clients choose them, so their number must be bounded.
const MOST: usize = 10_000;

/// Tallies by prefix.
#[derive(Debug, Default)]
pub(super) struct Prefixes(BTreeMap<Box<[u8]>, Tally>);

/// Commands on keys of one prefix.
#[derive(Debug, Default)]
pub(super) struct Tally {
    pub(super) gets: u64,
    pub(super) hits: u64,
    pub(super) sets: u64,
    pub(super) deletes: u64,
}

impl Prefixes {
    /// The tally of a key's prefix, if it has one.
    pub(super) fn of(&mut self, key: &[u8], delimiter: u8) -> Option<&mut Tally> {
        let len = key.iter().position(|&byte| byte == delimiter)?;
        let prefix = &key[..len];
        if !self.0.contains_key(prefix) {
            if self.0.len() >= MOST {
                return None;
            }
            self.0.insert(prefix.into(), Tally::default());
        }
        self.0.get_mut(prefix)
    }

    /// Appends one line per prefix.
    pub(super) fn dump(&self, replies: &mut Vec<u8>) {
        for (prefix, tally) in &self.0 {
            replies.extend_from_slice(b"PREFIX ");
            replies.extend_from_slice(prefix);
            let Tally {
                gets,
                hits,
                sets,
                deletes,
            } = tally;
            let counts = format!(" get {gets} hit {hits} set {sets} del {deletes}\r\n");
            replies.extend_from_slice(counts.as_bytes());
        }
    }
}
