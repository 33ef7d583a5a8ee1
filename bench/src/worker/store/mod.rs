//! The same measurements of a key-value store over every path: [`memcached`] is the text protocol,
//! [`rdma`] the one-sided client.

use anyhow::Result;
use serde::{Deserialize, Serialize};

use crate::samples::Samples;
use crate::worker::mix::{self, Mix};
use crate::worker::pattern;
use crate::worker::sampler::{Pace, Work, sample};

pub mod memcached;
pub mod rdma;

/// The most operations without a check, and the most bytes of their values.
const TOGETHER: usize = 16;
const TOGETHER_BYTES: usize = 256 * 1024;

/// A client with one request at a time.
pub trait Client {
    /// Gets the value of `key`. Returns whether the key was present.
    fn get(&mut self, key: &[u8]) -> Result<bool>;

    /// The value of the last get.
    fn value(&self) -> &[u8];

    fn set(&mut self, key: &[u8], value: &[u8]) -> Result<()>;

    /// Removes `key`. Returns whether the key was present.
    fn delete(&mut self, key: &[u8]) -> Result<bool>;
}

/// A client with several requests in flight.
pub trait Pipelined {
    /// Requests the values of all keys, `together` in each request.
    fn send_gets(&mut self, names: &[Vec<u8>], together: usize) -> Result<()>;

    /// Receives the answers, and passes each found value with the index of its key to `take`.
    /// Returns the number of found values.
    fn receive_gets(
        &mut self,
        names: &[Vec<u8>],
        together: usize,
        take: &mut dyn FnMut(usize, &[u8]),
    ) -> Result<usize>;

    /// Requests to store all values.
    fn send_sets(&mut self, names: &[Vec<u8>], values: &[Vec<u8>]) -> Result<()>;

    /// Receives `count` answers to sets. Returns the number of values that a server without memory
    /// refused; Debian's memcached does so while its threads wait for a processor.
    fn receive_sets(&mut self, count: usize) -> Result<u64>;
}

/// The keys of a working set, numbered from 0, with values of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeySet {
    pub bytes: usize,
    /// The number of keys, not 0.
    pub keys: u64,
}

impl KeySet {
    /// Values of `bytes` bytes that make up `total` bytes; at least one.
    pub fn of_total(total: u64, bytes: usize) -> Self {
        KeySet {
            bytes,
            keys: (total / bytes as u64).max(1),
        }
    }

    /// Bytes of all values together.
    pub fn total(&self) -> u64 {
        self.keys * self.bytes as u64
    }

    /// Writes the name of key number `index` over `name`.
    pub fn name(&self, index: u64, name: &mut Vec<u8>) {
        use std::io::Write;
        name.clear();
        // Writing to a vector does not fail.
        let _ = write!(name, "value-{}-{index:08x}", self.bytes);
    }
}

/// Keys that are stored, removed or verified together.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub enum Keys {
    /// Numbered keys with values of one size.
    Set(KeySet),
    Mix(Mix),
}

impl Keys {
    /// Number of keys.
    pub fn count(self) -> u64 {
        match self {
            Keys::Set(set) => set.keys,
            Keys::Mix(_) => mix::KEYS,
        }
    }

    /// Writes the name of key number `index` over `name`.
    pub fn name(self, index: u64, name: &mut Vec<u8>) {
        match self {
            Keys::Set(set) => set.name(index, name),
            Keys::Mix(mix) => mix.name(index, name),
        }
    }

    /// Bytes of the value of key number `index`.
    pub fn len(self, index: u64) -> usize {
        match self {
            Keys::Set(set) => set.bytes,
            Keys::Mix(mix) => mix.value_len(index),
        }
    }
}

/// An operation of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StoreOp {
    /// Stored values, verified.
    Get,
    /// New versions of stored values, read back and verified.
    Set,
}

/// Measures `op` on uniform random keys of `set`, all of which must be stored. Sets write version
/// `salt`, which should be new.
pub fn measure<C: Client>(
    client: &mut C,
    op: StoreOp,
    set: KeySet,
    salt: u64,
    pace: Pace,
) -> Result<Samples> {
    let mut work = StoreWork {
        client,
        op,
        set,
        salt,
        random: fastrand::Rng::with_seed(salt),
        batch: Batch::default(),
        misses: 0,
    };
    sample(&mut work, pace)
}

/// Gets and verifies all `keys`, which also fills a location cache. Returns the number of missing or
/// wrong values.
pub fn verify<C: Client>(client: &mut C, keys: Keys) -> Result<u64> {
    let (mut name, mut wrong) = (Vec::new(), 0);
    for index in 0..keys.count() {
        keys.name(index, &mut name);
        let right = client.get(&name)?
            && client.value().len() == keys.len(index)
            && pattern::is_value(index, None, client.value());
        wrong += u64::from(!right);
    }
    Ok(wrong)
}

/// Uniform random keys of a set for successive operations, and new values.
#[derive(Clone, Default)]
pub struct Batch {
    pub indexes: Vec<u64>,
    pub names: Vec<Vec<u8>>,
    pub values: Vec<Vec<u8>>,
}

impl Batch {
    /// Chooses `count` keys and, with a version, fills their values.
    pub fn prepare(
        &mut self,
        count: usize,
        set: KeySet,
        version: Option<u64>,
        random: &mut fastrand::Rng,
    ) {
        self.indexes.clear();
        self.indexes
            .extend((0..count).map(|_| random.u64(..set.keys)));
        self.names.resize(count, Vec::new());
        for (name, index) in self.names.iter_mut().zip(&self.indexes) {
            set.name(*index, name);
        }
        if let Some(version) = version {
            self.values.resize(count, vec![0; set.bytes]);
            for (value, index) in self.values.iter_mut().zip(&self.indexes) {
                pattern::fill_value(*index, version, value);
            }
        }
    }
}

struct StoreWork<'a, C> {
    client: &'a mut C,
    op: StoreOp,
    set: KeySet,
    salt: u64,
    random: fastrand::Rng,
    batch: Batch,
    misses: u64,
}

impl<C: Client> StoreWork<'_, C> {
    /// Number of set values that the server does not have.
    fn not_stored(&mut self) -> Result<u64> {
        let mut wrong = 0;
        for (index, name) in self.batch.indexes.iter().zip(&self.batch.names) {
            let right = self.client.get(name)?
                && pattern::is_value(*index, Some(self.salt), self.client.value());
            wrong += u64::from(!right);
        }
        Ok(wrong)
    }
}

impl<C: Client> Work for StoreWork<'_, C> {
    fn bytes(&self) -> u64 {
        self.set.bytes as u64
    }

    /// Limited, so that prepared values do not displace a hot working set.
    fn together(&self) -> u32 {
        (TOGETHER_BYTES / self.set.bytes).clamp(1, TOGETHER) as u32
    }

    fn prepare(&mut self, count: u32) -> Result<()> {
        let set = (self.op == StoreOp::Set).then_some(self.salt);
        self.batch
            .prepare(count as usize, self.set, set, &mut self.random);
        Ok(())
    }

    fn run(&mut self, at: u32) -> Result<()> {
        let name = &self.batch.names[at as usize];
        match self.op {
            StoreOp::Get => {
                let hit = self.client.get(name)?;
                self.misses += u64::from(!hit);
            }
            StoreOp::Set => self.client.set(name, &self.batch.values[at as usize])?,
        }
        Ok(())
    }

    fn check(&mut self) -> Result<u64> {
        let misses = std::mem::take(&mut self.misses);
        match (self.op, self.batch.indexes.last()) {
            (StoreOp::Set, _) => self.not_stored(),
            // Of several values only the last is still in the buffer.
            (StoreOp::Get, Some(&index)) => {
                let right = pattern::is_value(index, None, self.client.value());
                // A miss of the last get counts once.
                Ok(misses.max(u64::from(!right)))
            }
            (StoreOp::Get, None) => Ok(misses),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    /// A store whose values a test can lose or spoil.
    #[derive(Default)]
    struct Table {
        values: HashMap<Vec<u8>, Vec<u8>>,
        found: Vec<u8>,
        ignores_sets: bool,
    }

    impl Client for Table {
        fn get(&mut self, key: &[u8]) -> Result<bool> {
            let found = self.values.get(key);
            self.found = found.cloned().unwrap_or_default();
            Ok(found.is_some())
        }

        fn value(&self) -> &[u8] {
            &self.found
        }

        fn set(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
            if !self.ignores_sets {
                self.values.insert(key.to_vec(), value.to_vec());
            }
            Ok(())
        }

        fn delete(&mut self, key: &[u8]) -> Result<bool> {
            Ok(self.values.remove(key).is_some())
        }
    }

    const SET: KeySet = KeySet {
        bytes: 100,
        keys: 50,
    };
    const PACE: Pace = Pace {
        time: std::time::Duration::from_millis(1),
        batch: Some(1),
    };

    fn filled() -> Table {
        let (mut table, mut name, mut value) = (Table::default(), Vec::new(), vec![0; SET.bytes]);
        for index in 0..SET.keys {
            SET.name(index, &mut name);
            pattern::fill_value(index, 0, &mut value);
            table.set(&name, &value).unwrap();
        }
        table
    }

    fn wrong(table: &mut Table) -> u64 {
        verify(table, Keys::Set(SET)).unwrap()
    }

    fn errors(table: &mut Table, op: StoreOp) -> u64 {
        measure(table, op, SET, 9, PACE).unwrap().errors
    }

    #[test]
    fn a_working_store_has_no_errors() {
        let mut table = filled();
        assert_eq!(errors(&mut table, StoreOp::Set), 0);
        assert_eq!(errors(&mut table, StoreOp::Get), 0);
        assert_eq!(wrong(&mut table), 0);
    }

    #[test]
    fn missing_wrong_and_lost_values_are_errors() {
        let mut table = filled();
        table.ignores_sets = true;
        assert!(errors(&mut table, StoreOp::Set) > 0);
        table.values.values_mut().for_each(|value| value[50] ^= 1);
        assert_eq!(wrong(&mut table), 50);
        assert!(errors(&mut table, StoreOp::Get) > 0);
        table.values.clear();
        assert_eq!(wrong(&mut table), 50);
        assert!(errors(&mut table, StoreOp::Get) > 0);
    }

    #[test]
    fn a_working_set_has_at_least_one_key() {
        assert_eq!(KeySet::of_total(1 << 20, 16_384).keys, 64);
        assert_eq!(KeySet::of_total(10, 16_384).keys, 1);
    }
}
