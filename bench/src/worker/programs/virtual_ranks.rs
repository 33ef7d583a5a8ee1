//! Ranks on threads with a virtual clock, for tests: every send waits for its receive, so that a
//! program that depends on buffers is found.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use anyhow::{Result, bail, ensure};

use super::rank::{Nanos, Rank};

/// Times of a message: overhead at each end, latency, and a byte per nanosecond.
const OVERHEAD: Nanos = 500;
const LATENCY: Nanos = 1000;

/// One rank.
pub struct VirtualRank {
    rank: usize,
    ranks: usize,
    now: Nanos,
    network: Arc<Network>,
}

#[derive(Default)]
struct Network {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Messages by sender, with receiver and arrival.
    sent: Vec<VecDeque<(usize, Nanos, Vec<u8>)>>,
    /// What each rank waits for.
    waits: Vec<Wait>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Wait {
    No,
    ForReceive,
    ForMessage(Option<usize>),
    Ended,
}

/// Runs a program. Returns the result of each rank.
pub fn run<T: Send>(
    ranks: usize,
    program: impl Fn(&mut VirtualRank) -> Result<T> + Sync,
) -> Vec<Result<T>> {
    let network = Arc::new(Network::default());
    {
        let mut state = network.lock();
        state.sent.resize(ranks, VecDeque::new());
        state.waits.resize(ranks, Wait::No);
    }
    let (network, program) = (&network, &program);
    thread::scope(|scope| {
        let of_rank = |rank| {
            scope.spawn(move || {
                let mut own = VirtualRank {
                    rank,
                    ranks,
                    now: 0,
                    network: Arc::clone(network),
                };
                program(&mut own)
            })
        };
        let threads: Vec<_> = (0..ranks).map(of_rank).collect();
        let results = threads.into_iter().map(|thread| thread.join().unwrap());
        results.collect()
    })
}

impl Network {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// The sender of a message that `rank` waits for.
    fn ready(&self, rank: usize, from: Option<usize>) -> Option<usize> {
        let is_next = |from: &usize| {
            let next = self.sent[*from].front();
            next.is_some_and(|(to, ..)| *to == rank)
        };
        let mut senders = 0..self.sent.len();
        match from {
            Some(from) => Some(from).filter(is_next),
            None => senders.find(is_next),
        }
    }

    fn is_over(&self, rank: usize) -> bool {
        match self.waits[rank] {
            Wait::No => true,
            Wait::ForReceive => self.sent[rank].is_empty(),
            Wait::ForMessage(from) => self.ready(rank, from).is_some(),
            Wait::Ended => false,
        }
    }
}

impl VirtualRank {
    /// Waits until `wait` is over. Fails if no rank can go on.
    fn wait(&self, wait: Wait) -> Result<MutexGuard<'_, State>> {
        let mut state = self.network.lock();
        state.waits[self.rank] = wait;
        while !state.is_over(self.rank) {
            if !(0..self.ranks).any(|rank| state.is_over(rank)) {
                self.network.changed.notify_all();
                bail!("deadlock: {:?}", state.waits);
            }
            state = match self.network.changed.wait(state) {
                Ok(state) => state,
                Err(poisoned) => poisoned.into_inner(),
            };
        }
        state.waits[self.rank] = Wait::No;
        Ok(state)
    }
}

impl Drop for VirtualRank {
    fn drop(&mut self) {
        self.network.lock().waits[self.rank] = Wait::Ended;
        self.network.changed.notify_all();
    }
}

impl Rank for VirtualRank {
    fn rank(&self) -> usize {
        self.rank
    }

    fn ranks(&self) -> usize {
        self.ranks
    }

    fn now(&self) -> Nanos {
        self.now
    }

    fn compute(&mut self, operations: usize) {
        self.now += operations as Nanos;
    }

    fn send(&mut self, to: usize, message: &[u8]) -> Result<()> {
        ensure!(to < self.ranks && to != self.rank, "a message to rank {to}");
        self.now += OVERHEAD;
        let arrival = self.now + LATENCY + message.len() as Nanos;
        let sent = (to, arrival, message.to_vec());
        self.network.lock().sent[self.rank].push_back(sent);
        self.network.changed.notify_all();
        drop(self.wait(Wait::ForReceive)?);
        Ok(())
    }

    fn receive(&mut self, from: Option<usize>, bytes: usize, into: &mut Vec<u8>) -> Result<usize> {
        let mut state = self.wait(Wait::ForMessage(from))?;
        let Some(sender) = state.ready(self.rank, from) else {
            bail!("no message");
        };
        let Some((_, arrival, message)) = state.sent[sender].pop_front() else {
            bail!("no message");
        };
        drop(state);
        self.network.changed.notify_all();
        ensure!(message.len() == bytes, "a message of another length");
        *into = message;
        self.now = self.now.max(arrival) + OVERHEAD;
        Ok(sender)
    }
}

mod tests {
    use super::*;
    use crate::plan::Effort;
    use crate::worker::programs::rank::Meter;
    use crate::worker::programs::task::{Name, Task};

    #[test]
    fn ranks_that_both_send_first_are_a_deadlock() {
        let found = run(2, |rank| {
            rank.send(1 - rank.rank(), &[0])?;
            rank.receive(None, 1, &mut Vec::new())
        });
        let errors = found
            .into_iter()
            .map(|error| error.unwrap_err().to_string());
        let errors: Vec<String> = errors.collect();
        assert!(errors.iter().all(|error| error.starts_with("deadlock: ")));
        // The second rank may find that the first one has ended.
        assert!(
            errors
                .iter()
                .any(|error| error == "deadlock: [ForReceive, ForReceive]")
        );
    }

    #[test]
    fn more_ranks_than_a_program_has_work_for_are_refused_by_each_rank() {
        let task = |name| Task::new(name, Effort::Quick);
        assert!(task(Name::Is).runs_on(3120) && !task(Name::Is).runs_on(3121));
        for (name, possible, refused) in [
            (Name::Ft, 64, 128),
            (Name::Lu, 256, 289),
            (Name::Mg, 8, 16),
            (Name::PingPong, 2, 1),
        ] {
            let task = task(name);
            assert!(task.runs_on(possible) && !task.runs_on(0), "{task}");
            for found in run(refused, |rank| task.run(&mut Meter::new(rank), &mut None)) {
                let error = found.unwrap_err().to_string();
                let refusal = format!("{task} does not run on {refused} ranks; ");
                assert!(error.starts_with(&refusal), "{error}");
            }
        }
    }

    #[test]
    fn a_serial_run_has_as_many_operations_as_it_is_expected_to_have() {
        for name in [Name::Lu, Name::Halo3d, Name::Sweep3d] {
            let task = Task::new(name, Effort::Quick);
            let found = run(1, |rank| task.run(&mut Meter::new(rank), &mut None));
            let usage = found[0].as_ref().unwrap();
            assert_eq!(
                usage.elapsed_ns,
                task.serial_operations(1) as Nanos,
                "{task}"
            );
        }
    }

    #[test]
    fn times_on_the_virtual_clock_are_the_same_in_every_run() {
        let names = [
            Name::Cg,
            Name::Ft,
            Name::Mg,
            Name::Lu,
            Name::Gups,
            Name::Sweep3d,
        ];
        for name in names {
            let task = Task::new(name, Effort::Quick);
            let times = || {
                let found = run(4, |rank| task.run(&mut Meter::new(rank), &mut None));
                found.into_iter().map(Result::unwrap).collect::<Vec<_>>()
            };
            let first = times();
            assert_eq!(first, times(), "{name:?}");
            assert!(first.iter().all(|usage| usage.communication_ns > 0));
            assert!(
                first
                    .iter()
                    .all(|usage| usage.communication_ns < usage.elapsed_ns)
            );
        }
    }
}
