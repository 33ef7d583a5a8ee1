//! Turns for changes: one at a time, and round robin over actors, so many waiting changes give no
//! actor more turns.

use std::collections::VecDeque;

use parking_lot::{Condvar, Mutex, MutexGuard};
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
    /// Waiting actors in the order of service, each with its tickets. `None` stands for changes
    /// that have had a turn.
    waiting: VecDeque<(Option<Actor>, VecDeque<u64>)>,
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
        let state = self.state.lock();
        if state.is_taken {
            state.check(actor)?;
        }
        Ok(self.wait(state, Some(actor)))
    }

    /// Waits for a further turn of a change that has had one.
    pub(crate) fn retake(&self) -> Turn<'_> {
        self.wait(self.state.lock(), None)
    }

    fn wait(&self, mut state: MutexGuard<'_, State>, actor: Option<Actor>) -> Turn<'_> {
        if !state.is_taken {
            state.is_taken = true;
            return Turn(self);
        }
        let ticket = state.queue(actor);
        let not_yet = |state: &mut State| state.drawn != Some(ticket);
        self.passed.wait_while(&mut state, not_yet);
        state.drawn = None;
        Turn(self)
    }
}

impl State {
    fn check(&self, actor: Actor) -> Result<(), Refusal> {
        let is_limited = !matches!(actor, Actor::Administrator(_));
        let mut waiting = self.waiting.iter();
        let theirs = waiting.find(|(who, _)| *who == Some(actor));
        if is_limited && theirs.is_some_and(|(_, tickets)| tickets.len() >= MAX_WAITING) {
            return Err(Refusal::new(
                RefusalKind::Exhausted,
                format!("{MAX_WAITING} changes of {actor} wait for their turn already"),
                "try again when some have been made",
            ));
        }
        Ok(())
    }

    fn queue(&mut self, actor: Option<Actor>) -> u64 {
        self.last_ticket += 1;
        let ticket = self.last_ticket;
        match self.waiting.iter_mut().find(|(who, _)| *who == actor) {
            Some((_, tickets)) => tickets.push_back(ticket),
            None => self.waiting.push_back((actor, [ticket].into())),
        }
        ticket
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
        let again = None;
        let actors = [
            Some(ALICE),
            Some(ALICE),
            Some(ALICE),
            Some(BOB),
            Some(BOB),
            again,
        ];
        let [a1, a2, a3, b1, b2, again] = actors.map(|actor| state.queue(actor));
        let served: Vec<u64> = std::iter::from_fn(|| state.draw()).collect();
        assert_eq!(served, [a1, b1, again, a2, b2, a3]);
    }

    #[test]
    fn one_actor_fills_only_its_own_queue() {
        let mut state = State::default();
        for _ in 0..MAX_WAITING {
            state.check(ALICE).unwrap();
            state.queue(Some(ALICE));
        }
        let refusal = state.check(ALICE).unwrap_err();
        assert_eq!(refusal.kind, RefusalKind::Exhausted);
        state.check(BOB).unwrap();
        for _ in 0..2 * MAX_WAITING {
            state.check(Actor::Administrator(0)).unwrap();
            state.queue(Some(Actor::Administrator(0)));
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
