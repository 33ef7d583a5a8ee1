//! Turns for changes: one at a time, and round robin over actors, so many waiting changes give no
//! actor more turns.

use std::collections::VecDeque;

use parking_lot::{Condvar, Mutex};
use toroid_model::refusal::{Refusal, RefusalKind};
use toroid_model::rights::Actor;

/// Most waiting changes of one user or node. An administrator's are not limited.
const MAX_WAITING: usize = 16;

/// Queue of changes.
#[derive(Debug, Default)]
pub(crate) struct FairQueue {
    state: Mutex<State>,
    passed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    is_taken: bool,
    /// Ticket that may take its turn next and has not done so yet.
    drawn: Option<u64>,
    last_ticket: u64,
    /// Waiting actors in the order of service, each with its tickets.
    waiting: VecDeque<(Actor, VecDeque<u64>)>,
}

/// A turn: no other change is made while this lives.
#[derive(Debug)]
pub(crate) struct Turn<'a>(&'a FairQueue);

impl FairQueue {
    /// Waits for a turn.
    ///
    /// # Errors
    /// [`RefusalKind::Exhausted`] if too many changes of this actor wait.
    pub(crate) fn take(&self, actor: Actor) -> Result<Turn<'_>, Refusal> {
        let mut state = self.state.lock();
        if !state.is_taken {
            state.is_taken = true;
            return Ok(Turn(self));
        }
        let ticket = state.queue(actor)?;
        let not_yet = |state: &mut State| state.drawn != Some(ticket);
        self.passed.wait_while(&mut state, not_yet);
        state.drawn = None;
        Ok(Turn(self))
    }
}

impl State {
    fn queue(&mut self, actor: Actor) -> Result<u64, Refusal> {
        self.last_ticket += 1;
        let ticket = self.last_ticket;
        let is_limited = !matches!(actor, Actor::Administrator(_));
        match self.waiting.iter_mut().find(|(who, _)| *who == actor) {
            Some((_, tickets)) if is_limited && tickets.len() >= MAX_WAITING => {
                return Err(Refusal::new(
                    RefusalKind::Exhausted,
                    format!("{MAX_WAITING} changes of {actor} wait for their turn already"),
                    "try again when some have been made",
                ));
            }
            Some((_, tickets)) => tickets.push_back(ticket),
            None => self.waiting.push_back((actor, [ticket].into())),
        }
        Ok(ticket)
    }

    /// Draws the next ticket. An actor with more tickets goes to the end.
    fn draw(&mut self) -> Option<u64> {
        let (actor, mut tickets) = self.waiting.pop_front()?;
        let ticket = tickets.pop_front();
        if !tickets.is_empty() {
            self.waiting.push_back((actor, tickets));
        }
        ticket
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.drawn = state.draw();
        state.is_taken = state.drawn.is_some();
        self.0.passed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::thread;

    use super::*;

    const ALICE: Actor = Actor::User(1);
    const BOB: Actor = Actor::User(2);

    #[test]
    fn actors_are_served_round_robin() {
        let mut state = State::default();
        let tickets = [ALICE, ALICE, ALICE, BOB, BOB].map(|actor| state.queue(actor).unwrap());
        let [a1, a2, a3, b1, b2] = tickets;
        let served: Vec<u64> = std::iter::from_fn(|| state.draw()).collect();
        assert_eq!(served, [a1, b1, a2, b2, a3]);
    }

    #[test]
    fn one_actor_fills_only_its_own_queue() {
        let mut state = State::default();
        for _ in 0..MAX_WAITING {
            state.queue(ALICE).unwrap();
        }
        let refusal = state.queue(ALICE).unwrap_err();
        assert_eq!(refusal.kind, RefusalKind::Exhausted);
        state.queue(BOB).unwrap();
        for _ in 0..2 * MAX_WAITING {
            state.queue(Actor::Administrator(0)).unwrap();
        }
    }

    #[test]
    fn turns_exclude_each_other_and_none_is_lost() {
        let queue = FairQueue::default();
        let (said, hears) = channel();
        thread::scope(|scope| {
            let first = queue.take(ALICE).unwrap();
            for n in 0..8 {
                let (said, queue) = (said.clone(), &queue);
                scope.spawn(move || {
                    let turn = queue.take(Actor::User(n)).unwrap();
                    said.send("in").unwrap();
                    said.send("out").unwrap();
                    drop(turn);
                });
            }
            drop(first);
        });
        drop(said);
        let heard: Vec<&str> = hears.iter().collect();
        assert_eq!(heard, ["in", "out"].repeat(8));
        assert!(!queue.state.lock().is_taken);
    }
}
