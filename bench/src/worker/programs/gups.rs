//! GUPS, as HPCC's RandomAccess: random words of a table of all ranks are changed, in batches of
//! 1024 for each rank.

use std::ops::Range;

use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};

use super::collectives::{alltoall_of_any_length, tally};
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
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
    let ((), usage) = ranks.measure(|ranks| update(ranks, words, share, &mut table))?;
    let wrong = tally(ranks, differing(&table, &alone(words, first..end)))?;
    ensure!(wrong == 0, "{wrong} words are not as without messages");
    Ok(usage)
}

fn differing(table: &[u64], right: &[u64]) -> usize {
    table.iter().zip(right).filter(|(a, b)| a != b).count()
}

/// The words of a rank after all updates of all ranks, made without messages.
fn alone(words: usize, own: Range<usize>) -> Vec<u64> {
    let mut table: Vec<u64> = own.clone().map(|word| word as u64).collect();
    let mut random = number(0);
    for _ in 0..UPDATES * words {
        let word = random as usize % words;
        if own.contains(&word) {
            table[word - own.start] ^= random;
        }
        random = next(random);
    }
    table
}

/// Makes all updates, of which each rank gives its part.
fn update(ranks: &mut impl Rank, words: usize, share: usize, table: &mut [u64]) -> Result<()> {
    let (count, rank) = (ranks.ranks(), ranks.rank());
    let first = share * rank;
    let own = part(UPDATES * words, count, rank);
    let most = (UPDATES * words).div_ceil(count);
    let mut random = number(own.start as u64);
    let mut left = own.len();
    for _ in 0..most.div_ceil(BATCH) {
        let mut out = vec![Vec::new(); count];
        for _ in 0..left.min(BATCH) {
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
    Ok(())
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
    use crate::simulate::ranks::uniform;

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
            let found = uniform::run(ranks, move |rank| run(&mut Meter::new(rank), &size));
            assert!(found.iter().all(Result::is_ok), "{found:?}");
        }
    }

    #[test]
    fn any_number_of_ranks_makes_the_table_of_one_without_messages() {
        let table = |ranks: usize| -> Vec<u64> {
            let (words, share) = (256, 256_usize.div_ceil(ranks));
            let found = uniform::run(ranks, move |rank| {
                let first = share * rank.rank();
                let own = first..words.min(first + share);
                let mut table: Vec<u64> = own.map(|word| word as u64).collect();
                update(rank, words, share, &mut table)?;
                Ok(table)
            });
            found.into_iter().flat_map(Result::unwrap).collect()
        };
        let right = alone(256, 0..256);
        assert_eq!([table(1), table(3)], [right.clone(), right.clone()]);
        // An update of a wrong word is noticed, and that of a part.
        let mut wrong = right.clone();
        (wrong[6], wrong[7]) = (right[6] ^ 9, right[7] ^ 9);
        assert_eq!(differing(&wrong, &right), 2);
        assert_eq!(alone(256, 100..120), right[100..120]);
    }
}
