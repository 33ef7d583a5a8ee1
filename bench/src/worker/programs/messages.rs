//! Programs of one kind of message: ping-pong and the collective operations, with checked contents.

use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};

use super::collectives::{allreduce, alltoall, barrier, broadcast, tally};
use super::rank::{Meter, Nanos, Rank, Usage};
use crate::worker::pattern::{fill, mix};

/// The length of each message, and the number of repetitions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Size {
    pub bytes: usize,
    pub count: usize,
}

/// Contents of a message that depend on both ranks. Its first bytes have the number of its round, so
/// that messages are filled and compared once, apart from the time of the program.
fn contents(bytes: usize, number: usize, [from, to]: [usize; 2]) -> Vec<u8> {
    let mut contents = vec![0; bytes];
    fill(mix((from << 32 | to) as u64), &mut contents);
    stamp(&mut contents, number);
    contents
}

fn stamp(message: &mut [u8], number: usize) {
    let number = number.to_le_bytes();
    let len = message.len().min(number.len());
    message[..len].copy_from_slice(&number[..len]);
}

fn is_of(message: &[u8], number: usize) -> bool {
    message
        .iter()
        .zip(number.to_le_bytes())
        .all(|(a, b)| *a == b)
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
    let mut sent = contents(size.bytes, 0, [0, last]);
    let mut message = sent.clone();
    let (mut wrong, usage) = ranks.measure(|ranks| {
        let mut wrong = 0;
        for number in 0..size.count {
            if rank == 0 {
                stamp(&mut sent, number);
                ranks.send(last, &sent)?;
                ranks.receive(Some(last), size.bytes, &mut message)?;
                wrong += usize::from(!is_of(&message, number));
            } else if rank == last {
                ranks.receive(Some(0), size.bytes, &mut message)?;
                ranks.send(0, &message)?;
            }
        }
        Ok(wrong)
    })?;
    wrong += usize::from(rank == 0 && message != sent);
    check(ranks, wrong)?;
    Ok(usage)
}

/// A message from each rank to each.
pub fn all_to_all<R: Rank>(ranks: &mut Meter<'_, R>, size: &Size) -> Result<Usage> {
    let (rank, count) = (ranks.rank(), ranks.ranks());
    let lengths = vec![size.bytes; count];
    let mut messages: Vec<Vec<u8>> = (0..count)
        .map(|to| contents(size.bytes, 0, [rank, to]))
        .collect();
    let mut received = Vec::new();
    let (mut wrong, usage) = ranks.measure(|ranks| {
        let mut wrong = 0;
        for number in 0..size.count {
            messages
                .iter_mut()
                .for_each(|message| stamp(message, number));
            received = alltoall(ranks, messages.clone(), &lengths)?;
            wrong += received
                .iter()
                .filter(|message| !is_of(message, number))
                .count();
        }
        Ok(wrong)
    })?;
    let last = size.count.saturating_sub(1);
    let is_wrong =
        |(from, message): (usize, &Vec<u8>)| *message != contents(size.bytes, last, [from, rank]);
    wrong += received
        .iter()
        .enumerate()
        .map(is_wrong)
        .filter(|wrong| *wrong)
        .count();
    check(ranks, wrong)?;
    Ok(usage)
}

/// Sums over all ranks, of numbers whose sums are exact.
pub fn all_reduce<R: Rank>(ranks: &mut Meter<'_, R>, size: &Size) -> Result<Usage> {
    let (rank, count) = (ranks.rank(), ranks.ranks());
    let len = size.bytes / size_of::<f64>();
    ensure!(len > 0, "a sum needs a number of 8 bytes");
    let own: Vec<f64> = (0..len).map(|n| (rank * n) as f64).collect();
    let sum_of_ranks = count * (count - 1) / 2;
    let sum = |n: usize| (sum_of_ranks * n) as f64;
    let mut values = own.clone();
    let (mut wrong, usage) = ranks.measure(|ranks| {
        let mut wrong = 0;
        for number in 0..size.count {
            values.copy_from_slice(&own);
            // One value tells the rounds apart, in each round another one.
            let stamp = number % len;
            values[stamp] = (rank * (number + 1)) as f64;
            allreduce(ranks, &mut values, |a, b| a + b)?;
            wrong += usize::from(values[stamp] != sum(number + 1));
        }
        Ok(wrong)
    })?;
    let last = size.count.saturating_sub(1) % len;
    let is_right = (0..len).all(|n| n == last || values[n] == sum(n));
    wrong += usize::from(!is_right);
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
    let mut own = contents(size.bytes, 0, [rank, rank]);
    let mut message = vec![0; size.bytes];
    let (mut wrong, usage) = ranks.measure(|ranks| {
        let mut wrong = 0;
        for number in 0..size.count {
            let root = number % count;
            if root == rank {
                stamp(&mut own, number);
                message.copy_from_slice(&own);
            }
            broadcast(ranks, root, &mut message)?;
            wrong += usize::from(!is_of(&message, number));
        }
        Ok(wrong)
    })?;
    let last = size.count.saturating_sub(1);
    let root = last % count;
    let is_right = size.count == 0 || message == contents(size.bytes, last, [root, root]);
    wrong += usize::from(!is_right);
    check(ranks, wrong)?;
    Ok(usage)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulate::ranks::uniform;
    use crate::worker::programs::collectives::scatter;
    use crate::worker::programs::task::Task;

    const SIZE: Size = Size {
        bytes: 40,
        count: 7,
    };

    fn usages(ranks: usize, task: Task) -> Vec<Usage> {
        let found = uniform::run(ranks, move |rank| {
            task.run(&mut Meter::new(rank), &mut None)
        });
        found.into_iter().map(Result::unwrap).collect()
    }

    #[test]
    fn all_programs_run_with_any_number_of_ranks() {
        let tasks = [
            Task::PingPong(SIZE),
            Task::Alltoall(SIZE),
            Task::Allreduce(SIZE),
            Task::Barrier(SIZE),
            Task::Broadcast(SIZE),
        ];
        for ranks in 2..10 {
            for task in tasks {
                usages(ranks, task);
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
        assert_eq!(sum(usages(5, Task::PingPong(SIZE))), (2, 80));
        assert_eq!(sum(usages(5, Task::Alltoall(SIZE))), (5 * 4, 5 * 4 * 40));
        assert_eq!(sum(usages(5, Task::Broadcast(SIZE))), (4, 160));
        // Two stages of four ranks, and one message each to and from the fifth.
        assert_eq!(sum(usages(5, Task::Allreduce(SIZE))), (2 * 4 + 2, 400));
        assert_eq!(sum(usages(8, Task::Barrier(SIZE))), (3 * 8, 3 * 8));
    }

    #[test]
    fn a_wrong_message_is_an_error_at_all_ranks() {
        let found = uniform::run(3, move |rank| {
            let wrong = usize::from(rank.rank() == 2);
            check(rank, wrong)
        });
        for error in found {
            let message = error.unwrap_err().to_string();
            assert_eq!(message, "1 messages or results are wrong");
        }
    }

    #[test]
    fn parts_of_rank_0_reach_all_ranks_in_their_order() {
        let found = uniform::run(3, move |rank| {
            let parts = match rank.rank() {
                0 => vec![vec![], vec![1], vec![2, 2]],
                _ => vec![],
            };
            let bytes = rank.rank();
            scatter(rank, parts, bytes)
        });
        let found: Vec<_> = found.into_iter().map(Result::unwrap).collect();
        assert_eq!(found, [vec![], vec![1], vec![2, 2]]);
    }
}
