//! Rounds of mixes, and what comes out of them.

use serde::Serialize;

use super::client::{MixedByOne, Reads};
use super::mix::Mix;
use super::plan::Path;
use crate::stats::{Series, median};

/// A mix over all rounds. What does not apply to it is null.
#[derive(Clone, Debug, Serialize)]
pub struct MixRow {
    /// Which.
    pub mix: Mix,
    /// By what.
    pub path: Path,
    /// Clients at the same time.
    pub clients: u32,
    /// Of all clients together: the median over rounds.
    pub ops_per_s: Option<f64>,
    /// Of all samples.
    pub get_p50_ns: Option<f64>,
    /// Of all samples.
    pub get_p99_ns: Option<f64>,
    /// Of all samples.
    pub set_p50_ns: Option<f64>,
    /// Of all samples.
    pub set_p99_ns: Option<f64>,
    /// The share of gets that found something.
    pub hit_ratio: f64,
    /// Reads of the server's memory for each get.
    pub reads_per_get: Option<f64>,
    /// The share of gets that the server had to answer.
    pub asked_ratio: Option<f64>,
    /// Values that were wrong.
    pub errors: u64,
}

/// All rounds, in the order in which the mixes were first carried out.
#[derive(Debug, Default)]
pub struct Mixes(Vec<(Key, Rounds)>);

type Key = (Mix, Path, u32);

#[derive(Debug, Default)]
struct Rounds {
    gets: Series,
    sets: Series,
    reads: Reads,
    ops_per_s: Vec<f64>,
    all_gets: u64,
    misses: u64,
}

impl Mixes {
    /// Adds a round: what each client did.
    pub fn add(&mut self, mix: Mix, path: Path, clients: &[MixedByOne]) {
        let key = (mix, path, clients.len() as u32);
        let at = self.0.iter().position(|(known, _)| *known == key);
        let at = at.unwrap_or_else(|| {
            self.0.push((key, Rounds::default()));
            self.0.len() - 1
        });
        let rounds = &mut self.0[at].1;
        let mut ops_per_s = 0.0;
        for MixedByOne { mixed, reads } in clients {
            rounds.gets.add(&mixed.gets);
            rounds.sets.add(&mixed.sets);
            rounds.reads.add(*reads);
            rounds.all_gets += mixed.gets.ops;
            rounds.misses += mixed.misses;
            let elapsed_ns = (mixed.gets.elapsed_ns + mixed.sets.elapsed_ns).max(1);
            ops_per_s += (mixed.gets.ops + mixed.sets.ops) as f64 * 1e9 / elapsed_ns as f64;
        }
        rounds.ops_per_s.push(ops_per_s);
    }

    /// What came out.
    pub fn rows(&self) -> Vec<MixRow> {
        self.0
            .iter()
            .map(|(key, rounds)| rounds.row(*key))
            .collect()
    }
}

impl Rounds {
    fn row(&self, (mix, path, clients): Key) -> MixRow {
        let Reads { gets, reads, asked } = self.reads;
        let per_get = |count: u64| (gets > 0).then(|| count as f64 / gets as f64);
        MixRow {
            mix,
            path,
            clients,
            ops_per_s: median(&self.ops_per_s),
            get_p50_ns: self.gets.quantile_ns(0.5),
            get_p99_ns: self.gets.quantile_ns(0.99),
            set_p50_ns: self.sets.quantile_ns(0.5),
            set_p99_ns: self.sets.quantile_ns(0.99),
            hit_ratio: 1.0 - self.misses as f64 / self.all_gets.max(1) as f64,
            reads_per_get: per_get(reads),
            asked_ratio: per_get(asked),
            errors: self.gets.errors() + self.sets.errors(),
        }
    }
}
