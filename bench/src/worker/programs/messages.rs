//! Programs of one kind of message: ping-pong and the collective operations, with checked contents.

use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};

use super::collectives::{allreduce, alltoall, barrier, broadcast, tally};
use super::rank::{Meter, Nanos, Rank, Usage};
use crate::worker::pattern::{fill, matches, mix};

/// The length of each message, and the number of repetitions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Size {
    pub bytes: usize,
    pub count: usize,
}

/// Contents of a message that depend on `number` and both ranks.
fn contents(bytes: usize, number: usize, [from, to]: [usize; 2]) -> Vec<u8> {
    let mut contents = vec![0; bytes];
    fill(seed(number, [from, to]), &mut contents);
    contents
}

fn seed(number: usize, [from, to]: [usize; 2]) -> u64 {
    mix(number as u64) ^ mix((from << 32 | to) as u64)
}

/// Fails at all ranks if any has counted wrong messages.
fn check(ranks: &mut impl Rank, wrong: usize) -> Result<()> {
    let wrong = tally(ranks, wrong)?;
    ensure!(wrong == 0, "{wrong} messages or results are wrong");
    Ok(())
}

/// Round trips between the first and the last rank. The others wait.
pub fn ping_pong<R: Rank>(ranks: &mut Meter<'_, R>, size: &Size) -> Result<Usage> {
    let (rank, last) = (ranks.rank(), ranks.ranks() - 1);
    ensure!(last > 0, "a ping-pong needs two ranks");
    let is_right = |message: &[u8], number| matches(seed(number, [0, last]), message);
    let (wrong, usage) = ranks.measure(|ranks| {
        let (mut message, mut wrong) = (Vec::new(), 0);
        for number in 0..size.count {
            if rank == 0 {
                ranks.send(last, &contents(size.bytes, number, [0, last]))?;
                ranks.receive(Some(last), size.bytes, &mut message)?;
                wrong += usize::from(!is_right(&message, number));
            } else if rank == last {
                ranks.receive(Some(0), size.bytes, &mut message)?;
                ranks.send(0, &message)?;
            }
        }
        Ok(wrong)
    })?;
    check(ranks, wrong)?;
    Ok(usage)
}

/// A message from each rank to each.
pub fn all_to_all<R: Rank>(ranks: &mut Meter<'_, R>, size: &Size) -> Result<Usage> {
    let (rank, count) = (ranks.rank(), ranks.ranks());
    let (wrong, usage) = ranks.measure(|ranks| {
        let mut wrong = 0;
        for number in 0..size.count {
            let message = |to| contents(size.bytes, number, [rank, to]);
            let out = (0..count).map(message).collect();
            let received = alltoall(ranks, out, &vec![size.bytes; count])?;
            for (from, message) in received.iter().enumerate() {
                wrong += usize::from(!matches(seed(number, [from, rank]), message));
            }
        }
        Ok(wrong)
    })?;
    check(ranks, wrong)?;
    Ok(usage)
}

/// Sums over all ranks, of numbers whose sums are exact.
pub fn all_reduce<R: Rank>(ranks: &mut Meter<'_, R>, size: &Size) -> Result<Usage> {
    let (rank, count) = (ranks.rank(), ranks.ranks());
    let len = size.bytes / size_of::<f64>();
    let (wrong, usage) = ranks.measure(|ranks| {
        let mut wrong = 0;
        for number in 0..size.count {
            let mut values: Vec<f64> = (0..len).map(|n| (rank * (n + number)) as f64).collect();
            allreduce(ranks, &mut values, |a, b| a + b)?;
            let pairs = count * (count - 1) / 2;
            let sum = |n: usize| (pairs * (n + number)) as f64;
            let is_right = values.len() == len && (0..len).all(|n| values[n] == sum(n));
            wrong += usize::from(!is_right);
        }
        Ok(wrong)
    })?;
    check(ranks, wrong)?;
    Ok(usage)
}

/// Barriers, which no rank leaves before the last one has entered.
pub fn barriers<R: Rank>(ranks: &mut Meter<'_, R>, size: &Size) -> Result<Usage> {
    let (times, usage) = ranks.measure(|ranks| {
        let mut times: Vec<[Nanos; 2]> = Vec::with_capacity(size.count);
        for _ in 0..size.count {
            let entered = ranks.now();
            barrier(ranks)?;
            times.push([entered, ranks.now()]);
        }
        Ok(times)
    })?;
    let mut last: Vec<Nanos> = times.iter().map(|[entered, _]| *entered).collect();
    allreduce(ranks, &mut last, Nanos::max)?;
    let left = times.iter().map(|[_, left]| left);
    let wrong = left.zip(&last).filter(|(left, last)| left < last).count();
    check(ranks, wrong)?;
    Ok(usage)
}

/// Messages to all ranks, by each rank in turns.
pub fn broadcasts<R: Rank>(ranks: &mut Meter<'_, R>, size: &Size) -> Result<Usage> {
    let (rank, count) = (ranks.rank(), ranks.ranks());
    let (wrong, usage) = ranks.measure(|ranks| {
        let mut wrong = 0;
        for number in 0..size.count {
            let root = number % count;
            let mut message = match root == rank {
                true => contents(size.bytes, number, [root, root]),
                false => vec![0; size.bytes],
            };
            broadcast(ranks, root, &mut message)?;
            wrong += usize::from(!matches(seed(number, [root, root]), &message));
        }
        Ok(wrong)
    })?;
    check(ranks, wrong)?;
    Ok(usage)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::worker::programs::collectives::gather;
    use crate::worker::programs::virtual_ranks::{self, VirtualRank};

    type Program = fn(&mut Meter<'_, VirtualRank>, &Size) -> Result<Usage>;

    const SIZE: Size = Size {
        bytes: 40,
        count: 7,
    };

    fn usages(ranks: usize, program: Program) -> Vec<Usage> {
        let found = virtual_ranks::run(ranks, |rank| program(&mut Meter::new(rank), &SIZE));
        found.into_iter().map(Result::unwrap).collect()
    }

    #[test]
    fn all_programs_run_with_any_number_of_ranks() {
        let programs: [Program; 5] = [ping_pong, all_to_all, all_reduce, barriers, broadcasts];
        for ranks in 2..10 {
            for program in programs {
                usages(ranks, program);
            }
        }
    }

    #[test]
    fn messages_are_as_few_as_the_algorithms_need() {
        let sum = |usages: Vec<Usage>| {
            let messages: u64 = usages.iter().map(|usage| usage.messages).sum();
            let bytes: u64 = usages.iter().map(|usage| usage.bytes).sum();
            (messages / SIZE.count as u64, bytes / SIZE.count as u64)
        };
        assert_eq!(sum(usages(5, ping_pong)), (2, 80));
        assert_eq!(sum(usages(5, all_to_all)), (5 * 4, 5 * 4 * 40));
        assert_eq!(sum(usages(5, broadcasts)), (4, 160));
        // Two stages of four ranks, and one message each to and from the fifth.
        assert_eq!(sum(usages(5, all_reduce)), (2 * 4 + 2, 400));
        assert_eq!(sum(usages(8, barriers)), (3 * 8, 3 * 8));
    }

    #[test]
    fn a_wrong_message_is_an_error_at_all_ranks() {
        let found = virtual_ranks::run(3, |rank| {
            let wrong = usize::from(rank.rank() == 2);
            check(rank, wrong)
        });
        for error in found {
            let message = error.unwrap_err().to_string();
            assert_eq!(message, "1 messages or results are wrong");
        }
    }

    #[test]
    fn parts_of_all_ranks_are_gathered_in_their_order() {
        let found = virtual_ranks::run(3, |rank| {
            let own = vec![rank.rank() as u8; rank.rank()];
            gather(rank, own, &[0, 1, 2])
        });
        let found: Vec<_> = found.into_iter().map(Result::unwrap).collect();
        assert_eq!(found[0], [vec![], vec![1], vec![2, 2]]);
        assert!(found[1].is_empty() && found[2].is_empty());
    }
}
