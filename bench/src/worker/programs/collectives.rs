//! Collective operations, written on sends and receives: every rank of a program calls them.
//!
//! No two ranks send to each other first, so that none depends on the buffers below.

use std::cmp::Ordering;
use std::mem;

use anyhow::{Context, Result};

use super::rank::{Nanos, Rank};
use super::values::{Value, decode, encode};

/// Sends a message to a rank and receives one of `bytes` bytes from it. The lower rank sends first.
pub fn exchange(
    ranks: &mut impl Rank,
    with: usize,
    message: &[u8],
    bytes: usize,
) -> Result<Vec<u8>> {
    let mut received = Vec::new();
    match ranks.rank().cmp(&with) {
        Ordering::Less => {
            ranks.send(with, message)?;
            ranks.receive(Some(with), bytes, &mut received)?;
        }
        Ordering::Greater => {
            ranks.receive(Some(with), bytes, &mut received)?;
            ranks.send(with, message)?;
        }
        Ordering::Equal => received = message.to_vec(),
    }
    Ok(received)
}

/// Waits for all ranks.
pub fn barrier(ranks: &mut impl Rank) -> Result<()> {
    allreduce(ranks, &mut [0_u8], |own, _| own)
}

/// Combines the values of all ranks, which all receive the same result: recursive doubling, in which
/// the ranks above the highest power of two take part through another one. `combine` is commutative.
pub fn allreduce<T: Value>(
    ranks: &mut impl Rank,
    values: &mut [T],
    combine: impl Fn(T, T) -> T,
) -> Result<()> {
    let (rank, count) = (ranks.rank(), ranks.ranks());
    let doubling = 1 << count.ilog2();
    let bytes = size_of_val(values);
    let mut received = Vec::new();
    let fold = |values: &mut [T], received: &[u8]| {
        for (own, other) in values.iter_mut().zip(decode(received)) {
            *own = combine(*own, other);
        }
    };
    if rank >= doubling {
        ranks.send(rank - doubling, &encode(values))?;
        ranks.receive(Some(rank - doubling), bytes, &mut received)?;
        values
            .iter_mut()
            .zip(decode(&received))
            .for_each(|(own, result)| *own = result);
        return Ok(());
    }
    if rank + doubling < count {
        ranks.receive(Some(rank + doubling), bytes, &mut received)?;
        fold(values, &received);
    }
    for bit in 0..doubling.ilog2() {
        let received = exchange(ranks, rank ^ (1 << bit), &encode(values), bytes)?;
        fold(values, &received);
        ranks.compute(values.len());
    }
    if rank + doubling < count {
        ranks.send(rank + doubling, &encode(values))?;
    }
    Ok(())
}

/// The sum of a value over all ranks.
pub fn sum<T: Value + std::ops::Add<Output = T>>(ranks: &mut impl Rank, value: T) -> Result<T> {
    let mut values = [value];
    allreduce(ranks, &mut values, |a, b| a + b)?;
    Ok(values[0])
}

/// Sends a message of `root`, of the length that all ranks give, along a binomial tree.
pub fn broadcast(ranks: &mut impl Rank, root: usize, message: &mut Vec<u8>) -> Result<()> {
    let (count, bytes) = (ranks.ranks(), message.len());
    let place = (ranks.rank() + count - root) % count;
    let at = |place: usize| (place + root) % count;
    let mut step = count.next_power_of_two();
    if place > 0 {
        // The parent lacks the lowest bit of this place.
        step = 1 << place.trailing_zeros();
        ranks.receive(Some(at(place - step)), bytes, message)?;
    }
    while step > 1 {
        step /= 2;
        if place + step < count {
            ranks.send(at(place + step), message)?;
        }
    }
    Ok(())
}

/// Sends `out[n]` to each rank `n`, and receives a message of `expected[n]` bytes from each. In each
/// step all ranks meet in pairs.
pub fn alltoall(
    ranks: &mut impl Rank,
    mut out: Vec<Vec<u8>>,
    expected: &[usize],
) -> Result<Vec<Vec<u8>>> {
    let (rank, count) = (ranks.rank(), ranks.ranks());
    let mut received = vec![Vec::new(); count];
    ranks.alltoall(true);
    for step in 0..count {
        let peer = (step + count - rank) % count;
        let message = mem::take(&mut out[peer]);
        received[peer] = match peer == rank {
            true => message,
            false => exchange(ranks, peer, &message, expected[peer])?,
        };
    }
    ranks.alltoall(false);
    Ok(received)
}

/// As [`alltoall`], for messages whose lengths only their senders know.
pub fn alltoall_of_any_length(ranks: &mut impl Rank, out: Vec<Vec<u8>>) -> Result<Vec<Vec<u8>>> {
    let lengths = out.iter().map(|message| encode(&[message.len() as u64]));
    let sizes = vec![size_of::<u64>(); out.len()];
    let lengths = alltoall(ranks, lengths.collect(), &sizes)?;
    let expected: Option<Vec<usize>> = lengths
        .iter()
        .map(|length| decode::<u64>(length).next()?.try_into().ok())
        .collect();
    alltoall(ranks, out, &expected.context("a message without a length")?)
}

/// Message `n` of rank 0 at each rank `n`, of `bytes` bytes there. Other ranks give no messages.
pub fn scatter(ranks: &mut impl Rank, messages: Vec<Vec<u8>>, bytes: usize) -> Result<Vec<u8>> {
    let mut own = Vec::new();
    if ranks.rank() > 0 {
        ranks.receive(Some(0), bytes, &mut own)?;
    }
    for (to, message) in messages.into_iter().enumerate() {
        match to {
            0 => own = message,
            _ => ranks.send(to, &message)?,
        }
    }
    Ok(own)
}

/// The sum of the ranks' counts, at all ranks. Rank 0 takes the counts in the order of their arrival.
pub fn tally(ranks: &mut impl Rank, own: usize) -> Result<usize> {
    let mut message = encode(&[own as u64]);
    if ranks.rank() > 0 {
        ranks.send(0, &message)?;
    } else {
        let mut total = own as u64;
        for _ in 1..ranks.ranks() {
            // No rank sends anything else before it has the sum.
            ranks.receive(None, size_of::<u64>(), &mut message)?;
            total += decode::<u64>(&message).sum::<u64>();
        }
        message = encode(&[total]);
    }
    broadcast(ranks, 0, &mut message)?;
    Ok(decode::<u64>(&message).sum::<u64>() as usize)
}

/// Some ranks of a program as a program of their own.
pub struct Group<'a, R> {
    ranks: &'a mut R,
    /// Numbers of the members in the whole program.
    members: Vec<usize>,
    rank: usize,
}

impl<'a, R: Rank> Group<'a, R> {
    /// The group of these ranks, which include the own one.
    pub fn new(ranks: &'a mut R, members: Vec<usize>) -> Result<Self> {
        let own = ranks.rank();
        let rank = members.iter().position(|member| *member == own);
        let rank = rank.context("a rank outside of its group")?;
        Ok(Group {
            ranks,
            members,
            rank,
        })
    }
}

impl<R: Rank> Rank for Group<'_, R> {
    fn rank(&self) -> usize {
        self.rank
    }

    fn ranks(&self) -> usize {
        self.members.len()
    }

    fn now(&self) -> Nanos {
        self.ranks.now()
    }

    fn compute(&mut self, operations: usize) {
        self.ranks.compute(operations);
    }

    fn alltoall(&mut self, runs: bool) {
        self.ranks.alltoall(runs);
    }

    fn send(&mut self, to: usize, message: &[u8]) -> Result<()> {
        self.ranks.send(self.members[to], message)
    }

    fn receive(&mut self, from: Option<usize>, bytes: usize, into: &mut Vec<u8>) -> Result<usize> {
        let from = from.map(|member| self.members[member]);
        let from = self.ranks.receive(from, bytes, into)?;
        let mut members = self.members.iter();
        let member = members.position(|member| *member == from);
        member.context("a message from outside of the group")
    }
}
