//! Differences of records.

use std::collections::BTreeSet;

use super::Records;

/// Difference between two versions of a directory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Records that are new or different.
    pub put: Records,
    /// Keys of records that are no more.
    pub remove: BTreeSet<String>,
}

impl Changes {
    /// Changes from `old` to `new`.
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

    /// Makes the changes in records.
    pub fn apply_to(&self, records: &mut Records) {
        for key in &self.remove {
            records.remove(key);
        }
        let put = self.put.iter();
        records.extend(put.map(|(key, value)| (key.clone(), value.clone())));
    }

    /// Whether nothing differs.
    pub fn is_empty(&self) -> bool {
        self.put.is_empty() && self.remove.is_empty()
    }
}
