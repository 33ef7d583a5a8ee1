//! IS of NPB: keys are ranked by buckets, which the ranks exchange.

use anyhow::{Result, ensure};

use super::collectives::{allreduce, alltoall_of_any_length, tally};
use super::grid::part;
use super::npb::{Class, Random, SEED};
use super::rank::{Meter, Rank, Usage};
use super::values::{decode, encode};
use crate::worker::pattern::mix;

const ITERATIONS: usize = 10;

/// Keys whose published places are compared in each iteration.
const TESTED: usize = 5;

#[derive(Clone, Copy)]
struct Problem {
    keys: usize,
    /// Keys are below this number.
    limit: usize,
    buckets: usize,
    /// Indices of tested keys, and their places: those of the first `rising` keys rise with the
    /// iteration, the others fall.
    tested: [usize; TESTED],
    places: [usize; TESTED],
    rising: usize,
    /// The iteration in which rising places are as listed.
    listed: usize,
}

impl Class {
    fn is(self) -> Problem {
        match self {
            Class::S => Problem {
                keys: 1 << 16,
                limit: 1 << 11,
                buckets: 1 << 9,
                tested: [48427, 17148, 23627, 62548, 4431],
                places: [0, 18, 346, 64917, 65463],
                rising: 3,
                listed: 0,
            },
            Class::W => Problem {
                keys: 1 << 20,
                limit: 1 << 16,
                buckets: 1 << 10,
                tested: [357_773, 934_767, 875_723, 898_999, 404_505],
                places: [1249, 11698, 1_039_987, 1_043_896, 1_048_018],
                rising: 2,
                listed: 2,
            },
        }
    }
}

/// Whether the first rank has all keys that change from iteration to iteration.
pub fn runs_on(class: Class, ranks: usize) -> bool {
    part(class.is().keys, ranks, 0).len() > 2 * ITERATIONS
}

pub fn run<R: Rank>(ranks: &mut Meter<'_, R>, class: Class) -> Result<Usage> {
    let problem = class.is();
    let own = part(problem.keys, ranks.ranks(), ranks.rank());
    let mut keys = keys(&problem, own.len(), own.start);
    let ((sorted, misplaced), usage) = ranks.measure(|ranks| {
        let (mut sorted, mut misplaced) = (Vec::new(), 0);
        for iteration in 1..=ITERATIONS {
            let wrong;
            (sorted, wrong) = rank(ranks, &problem, &mut keys, own.start, iteration)?;
            misplaced += wrong;
        }
        Ok((sorted, misplaced))
    })?;
    let misplaced = tally(ranks, misplaced)?;
    ensure!(
        misplaced == 0,
        "{misplaced} keys are not at their published places"
    );
    ensure!(
        are_sorted(ranks, &keys, sorted)?,
        "keys are lost, added or not in order"
    );
    Ok(usage)
}

/// Keys of this rank, from `first` of the whole on.
fn keys(problem: &Problem, count: usize, first: usize) -> Vec<u32> {
    let mut random = Random::new(SEED, 4 * first as u64);
    let quarter = (problem.limit / 4) as f64;
    let mut key = || (quarter * (0..4).map(|_| random.next()).sum::<f64>()) as u32;
    (0..count).map(|_| key()).collect()
}

/// Sends each key to the rank that orders its bucket. Returns the keys of this rank, and the number of
/// tested ones that are not at their published places.
fn rank(
    ranks: &mut impl Rank,
    problem: &Problem,
    keys: &mut [u32],
    first: usize,
    iteration: usize,
) -> Result<(Vec<u32>, usize)> {
    if first == 0 {
        keys[iteration] = iteration as u32;
        keys[iteration + ITERATIONS] = (problem.limit - iteration) as u32;
    }
    let bucket = |key: u32| key as usize * problem.buckets / problem.limit;
    // Counts of all buckets, and the tested keys, which one rank each knows.
    let mut counts = vec![0_u64; problem.buckets + TESTED];
    for key in keys.iter() {
        counts[bucket(*key)] += 1;
    }
    for (number, index) in problem.tested.iter().enumerate() {
        let key = index.checked_sub(first).and_then(|at| keys.get(at));
        counts[problem.buckets + number] = key.map_or(0, |key| u64::from(*key));
    }
    ranks.compute(2 * keys.len());
    allreduce(ranks, &mut counts, |a, b| a + b)?;
    let (counts, tested) = counts.split_at(problem.buckets);
    let (owners, smaller) = owners(ranks, problem, counts);
    let mut out = vec![Vec::new(); ranks.ranks()];
    for key in keys.iter() {
        out[owners[bucket(*key)]].push(*key);
    }
    let out = out.iter().map(|keys| encode(keys)).collect();
    let received = alltoall_of_any_length(ranks, out)?;
    let keys: Vec<u32> = received
        .iter()
        .flat_map(|message| decode(message))
        .collect();
    let mut places = vec![0_usize; problem.limit + 1];
    for key in &keys {
        places[*key as usize + 1] += 1;
    }
    for key in 0..problem.limit {
        places[key + 1] += places[key];
    }
    ranks.compute(keys.len() + problem.limit);
    let mut wrong = 0;
    for (number, key) in tested.iter().enumerate() {
        if owners[bucket(*key as u32)] == ranks.rank() {
            let listed = problem.places[number];
            let published = match number < problem.rising {
                true => listed + iteration - problem.listed,
                false => listed - iteration,
            };
            let found = smaller + places[*key as usize];
            wrong += usize::from(found != published);
        }
    }
    Ok((keys, wrong))
}

/// The rank of each bucket, with about the same number of keys for each rank, and the number of keys
/// of all ranks before this one.
fn owners(ranks: &impl Rank, problem: &Problem, counts: &[u64]) -> (Vec<usize>, usize) {
    let (mut before, mut smaller) = (0, 0);
    let mut owners = Vec::with_capacity(counts.len());
    for count in counts {
        let owner = before * ranks.ranks() / problem.keys;
        owners.push(owner);
        before += *count as usize;
        if owner < ranks.rank() {
            smaller = before;
        }
    }
    (owners, smaller)
}

/// Sorts the keys of each rank. Returns whether those of all ranks are the keys `before`, in order.
fn are_sorted(ranks: &mut impl Rank, before: &[u32], mut keys: Vec<u32>) -> Result<bool> {
    keys.sort_unstable();
    // Ends of this rank, for all ranks.
    let own = ranks.rank();
    let mut ends = vec![0_u32; 3 * ranks.ranks()];
    if let (Some(first), Some(last)) = (keys.first(), keys.last()) {
        ends[3 * own..][..3].copy_from_slice(&[1, *first, *last]);
    }
    let sum = |keys: &[u32]| {
        let hashes = keys.iter().map(|key| mix(u64::from(*key)));
        hashes.fold(0, u64::wrapping_add)
    };
    let mut sums = [
        sum(before),
        sum(&keys),
        before.len() as u64,
        keys.len() as u64,
    ];
    allreduce(ranks, &mut sums, u64::wrapping_add)?;
    allreduce(ranks, &mut ends, |a, b| a + b)?;
    let held = ends.chunks(3).filter(|ends| ends[0] == 1);
    let ends: Vec<u32> = held.flat_map(|ends| [ends[1], ends[2]]).collect();
    let is_permutation = sums[0] == sums[1] && sums[2] == sums[3];
    Ok(is_permutation && ends.is_sorted())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulate::ranks::uniform;

    #[test]
    fn keys_are_ranked_as_published_with_any_number_of_ranks() {
        for ranks in [1, 2, 3, 8] {
            let found = uniform::run(ranks, move |rank| run(&mut Meter::new(rank), Class::S));
            assert!(found.iter().all(Result::is_ok), "{found:?}");
        }
    }

    #[test]
    fn keys_that_are_lost_or_at_another_rank_are_noticed() {
        let found = |kept: [&'static [u32]; 2]| {
            let found = uniform::run(2, move |rank| {
                let kept = kept[rank.rank()].to_vec();
                are_sorted(rank, &[7, 8], kept)
            });
            found.into_iter().map(Result::unwrap).collect::<Vec<bool>>()
        };
        assert_eq!(found([&[7, 7], &[8, 8]]), [true, true]);
        assert_eq!(found([&[7, 7], &[8]]), [false, false]);
        assert_eq!(found([&[8, 8], &[7, 7]]), [false, false]);
    }
}
