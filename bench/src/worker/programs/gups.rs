//! GUPS, as HPCC's RandomAccess: random words of a table of all ranks are changed, in batches of
//! 1024 for each rank.

use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};

use super::collectives::{allreduce, alltoall_of_any_length, tally};
use super::grid::part;
use super::rank::{Meter, Rank, Usage};
use super::values::{decode, encode};

/// The polynomial of the random numbers.
const POLYNOMIAL: u64 = 7;

/// Updates that a rank may have under way.
const BATCH: usize = 1024;

/// Updates for each word.
const UPDATES: usize = 4;

/// The table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Size {
    /// Binary logarithm of the words.
    pub log2_words: u32,
}

pub fn run<R: Rank>(ranks: &mut Meter<'_, R>, size: &Size) -> Result<Usage> {
    let words = 1_usize << size.log2_words;
    let share = words.div_ceil(ranks.ranks());
    let first = share * ranks.rank();
    let end = words.min(first + share);
    let mut table: Vec<u64> = (first..end).map(|word| word as u64).collect();
    let (given, usage) = ranks.measure(|ranks| update(ranks, words, share, &mut table))?;
    // Each update changes the sum of all words, without carry, by its number.
    let untouched = (first..end).fold(0, |sum, word| sum ^ word as u64);
    let mut sums = [untouched ^ given, xor(&table)];
    allreduce(ranks, &mut sums, |a, b| a ^ b)?;
    ensure!(sums[0] == sums[1], "updates were lost or made twice");
    // The same updates again restore the table.
    update(ranks, words, share, &mut table)?;
    let words = table.iter().zip(first as u64..);
    let wrong = words.filter(|(word, right)| *word != right).count();
    let wrong = tally(ranks, wrong)?;
    ensure!(
        wrong == 0,
        "{wrong} words are wrong after the same updates twice"
    );
    Ok(usage)
}

fn xor(words: &[u64]) -> u64 {
    words.iter().fold(0, |sum, word| sum ^ word)
}

/// Makes all updates, of which each rank gives its part; returns the sum of the own ones.
fn update(ranks: &mut impl Rank, words: usize, share: usize, table: &mut [u64]) -> Result<u64> {
    let (count, rank) = (ranks.ranks(), ranks.rank());
    let first = share * rank;
    let own = part(UPDATES * words, count, rank);
    let most = (UPDATES * words).div_ceil(count);
    let mut random = number(own.start as u64);
    let (mut left, mut given) = (own.len(), 0);
    for _ in 0..most.div_ceil(BATCH) {
        let mut out = vec![Vec::new(); count];
        for _ in 0..left.min(BATCH) {
            given ^= random;
            out[random as usize % words / share].push(random);
            random = next(random);
        }
        left -= left.min(BATCH);
        let out = out.iter().map(|updates| encode(updates)).collect();
        for update in alltoall_of_any_length(ranks, out)?
            .iter()
            .flat_map(|message| decode(message))
        {
            let update: u64 = update;
            table[update as usize % words - first] ^= update;
        }
        ranks.compute(4 * BATCH);
    }
    Ok(given)
}

fn next(random: u64) -> u64 {
    let carry = if random >> 63 == 1 { POLYNOMIAL } else { 0 };
    random << 1 ^ carry
}

/// Number `n` of the sequence, by squaring: the bits of a square are those of the number, doubled.
fn number(n: u64) -> u64 {
    let mut doubled = [0; 64];
    let mut random = 1;
    for bit in &mut doubled {
        *bit = random;
        random = next(next(random));
    }
    let square = |random: u64| {
        let bits = doubled.iter().enumerate();
        let set = bits.filter(|(bit, _)| random >> bit & 1 == 1);
        set.fold(0, |sum, (_, doubled)| sum ^ doubled)
    };
    let mut random = 1;
    for bit in (0..u64::BITS - n.leading_zeros()).rev() {
        random = square(random);
        if n >> bit & 1 == 1 {
            random = next(random);
        }
    }
    random
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::worker::programs::virtual_ranks;

    #[test]
    fn later_numbers_are_found_without_those_before() {
        let mut random = 1;
        for n in 0..300 {
            assert_eq!(number(n), random, "{n}");
            random = next(random);
        }
    }

    #[test]
    fn all_updates_reach_their_words() {
        for ranks in [1, 3, 4] {
            let size = Size { log2_words: 10 };
            let found = virtual_ranks::run(ranks, |rank| run(&mut Meter::new(rank), &size));
            assert!(found.iter().all(Result::is_ok), "{found:?}");
        }
    }

    #[test]
    fn one_rank_makes_the_same_table_as_three() {
        let table = |ranks: usize| -> Vec<u64> {
            let (words, share) = (256, 256_usize.div_ceil(ranks));
            let found = virtual_ranks::run(ranks, |rank| {
                let first = share * rank.rank();
                let own = first..words.min(first + share);
                let mut table: Vec<u64> = own.map(|word| word as u64).collect();
                update(rank, words, share, &mut table)?;
                Ok(table)
            });
            found.into_iter().flat_map(Result::unwrap).collect()
        };
        assert_eq!(table(1), table(3));
        assert!(
            table(1)
                .iter()
                .zip(0..)
                .any(|(word, before)| *word != before)
        );
    }
}
