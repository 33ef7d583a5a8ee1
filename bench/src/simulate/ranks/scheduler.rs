//! Lets one rank run at a time, in the order in which their operations end on the network's clock.

use std::collections::VecDeque;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

use anyhow::Result;
use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, CoroutineResult, Yielder};

use super::deadlock::{self, Wish};
use super::posts::Posts;
use super::rank::{Answer, Call, Packet, Received, SimulatedRank};
use super::{FIRST_TOKEN_BESIDE, Job, Stop};
use crate::causes::of_panic;
use crate::sim::Happening;

/// Bytes of a rank's stack, of which the kernel gives only used pages.
const STACK: usize = 1 << 20;

pub struct Scheduler<'a, T> {
    job: Job<'a>,
    ranks: Vec<Slot<T>>,
    /// Ranks whose operation has ended.
    ready: VecDeque<(usize, Answer)>,
    posts: Posts,
    timers: usize,
}

struct Slot<T> {
    state: State,
    coroutine: Coroutine<Answer, Call, Result<T>>,
    result: Option<Result<T>>,
    /// Packets that no receive has taken, in the order of arrival.
    arrived: VecDeque<Received>,
}

enum State {
    Runs,
    /// Computes until it sends.
    Computes(Packet),
    Receives {
        from: Option<usize>,
        wish: Wish,
    },
    Ended,
}

impl<'a, T: 'static> Scheduler<'a, T> {
    pub fn new(
        job: Job<'a>,
        program: impl Fn(&mut SimulatedRank<'_>) -> Result<T> + 'static,
    ) -> Result<Self, Stop> {
        let count = job.nodes.len();
        let (costs, clock, program) = (job.costs, job.network.now(), Rc::new(program));
        let slot = |rank| {
            let program = Rc::clone(&program);
            let run = move |scheduler: &Yielder<Answer, Call>, _| {
                program(&mut SimulatedRank::new(
                    [rank, count],
                    costs,
                    clock,
                    scheduler,
                ))
            };
            Ok(Slot {
                state: State::Runs,
                coroutine: Coroutine::with_stack(DefaultStack::new(STACK)?, run),
                result: None,
                arrived: VecDeque::new(),
            })
        };
        let ranks: std::io::Result<Vec<Slot<T>>> = (0..count).map(slot).collect();
        let ranks = ranks.map_err(|error| Stop::Memory {
            ranks: count,
            error,
        })?;
        Ok(Scheduler {
            posts: Posts::new(&job),
            job,
            ranks,
            ready: (0..count).map(|rank| (rank, Answer::Done)).collect(),
            timers: 0,
        })
    }

    pub fn run(mut self) -> Result<Vec<Result<T>>, Stop> {
        loop {
            while let Some((rank, answer)) = self.ready.pop_front() {
                self.resume(rank, answer)?;
            }
            if self.posts.in_flight() + self.timers == 0 {
                return self.end();
            }
            match self.job.network.next() {
                Some(what) => self.happened(what),
                None => return Err(Stop::Lost(self.posts.in_flight())),
            }
        }
    }

    /// Lets a rank run until its next operation.
    fn resume(&mut self, rank: usize, answer: Answer) -> Result<(), Stop> {
        let slot = &mut self.ranks[rank];
        slot.state = State::Runs;
        let went = catch_unwind(AssertUnwindSafe(|| slot.coroutine.resume(answer)));
        match went {
            Ok(CoroutineResult::Yield(call)) => self.call(rank, call),
            Ok(CoroutineResult::Return(result)) => {
                slot.state = State::Ended;
                slot.result = Some(result);
            }
            Err(panic) => {
                let message = of_panic(&*panic).to_owned();
                return Err(Stop::Panic { rank, message });
            }
        }
        Ok(())
    }

    fn call(&mut self, rank: usize, call: Call) {
        match call {
            Call::Send { at, packet } if at > self.job.network.now() => {
                self.ranks[rank].state = State::Computes(packet);
                self.job.network.timer(at, rank as u64);
                self.timers += 1;
            }
            Call::Send { packet, .. } => self.post(rank, packet),
            Call::Receive { from, wish } => {
                self.ranks[rank].state = State::Receives { from, wish };
                self.receive(rank);
            }
        }
    }

    fn post(&mut self, rank: usize, packet: Packet) {
        self.posts.post(&mut self.job, rank, packet);
        self.ready.push_back((rank, Answer::Done));
    }

    /// Ends the receive of a rank if its packet is here.
    fn receive(&mut self, rank: usize) {
        let slot = &mut self.ranks[rank];
        let State::Receives { from, .. } = slot.state else {
            return;
        };
        let is_wanted = |packet: &Received| from.is_none_or(|from| from == packet.from);
        let first = slot.arrived.iter().position(is_wanted);
        if let Some(packet) = first.and_then(|first| slot.arrived.remove(first)) {
            slot.state = State::Runs;
            self.ready.push_back((rank, Answer::Received(packet)));
        }
    }

    fn happened(&mut self, what: Happening) {
        let (Happening::Delivered(token) | Happening::Completed(token) | Happening::Timer(token)) =
            what;
        if token >= FIRST_TOKEN_BESIDE {
            if let Some(beside) = &mut self.job.beside {
                beside.happened(self.job.network, what);
            }
            return;
        }
        match what {
            Happening::Timer(rank) => self.computed(rank as usize),
            Happening::Delivered(token) => self.arrived(token),
            Happening::Completed(_) => self.posts.completed(),
        }
    }

    fn computed(&mut self, rank: usize) {
        self.timers -= 1;
        let state = mem::replace(&mut self.ranks[rank].state, State::Runs);
        if let State::Computes(packet) = state {
            self.post(rank, packet);
        }
    }

    fn arrived(&mut self, token: u64) {
        let at = self.job.network.now();
        if let Some((receiver, packets)) = self.posts.arrived(token, at) {
            self.ranks[receiver].arrived.extend(packets);
            self.receive(receiver);
        }
    }

    /// The results, if no rank waits.
    fn end(mut self) -> Result<Vec<Result<T>>, Stop> {
        // Policies may go on in a later run, which begins with counters of its own.
        for rank in 0..self.ranks.len() {
            self.posts.learn(&mut self.job, rank);
        }
        let wish = |slot: &Slot<T>| match &slot.state {
            State::Receives { wish, .. } => Some(*wish),
            State::Computes(_) | State::Runs | State::Ended => None,
        };
        let wishes: Vec<Option<Wish>> = self.ranks.iter().map(wish).collect();
        let results = self.ranks.iter_mut().map(|slot| slot.result.take());
        if wishes.iter().all(Option::is_none) {
            return Ok(results.flatten().collect());
        }
        for (rank, result) in results.enumerate() {
            if let Some(Err(error)) = result {
                return Err(Stop::Failed { rank, error });
            }
        }
        Err(Stop::Deadlock(deadlock::describe(&wishes)))
    }
}
