//! Admission of requests of clients, which ends before the agent starts again.

use std::time::Duration;

use parking_lot::{Condvar, Mutex};

/// Requests under way.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    state: Mutex<State>,
    /// Signals that a request has ended, or that the gate opens.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    is_closed: bool,
    inside: usize,
}

/// A request under way. Dropping it ends the request.
#[derive(Debug)]
pub(crate) struct Inside<'a>(&'a Gate);

impl Gate {
    /// Admits a request; `None` while the gate is closed.
    pub(crate) fn enter(&self) -> Option<Inside<'_>> {
        let mut state = self.state.lock();
        if state.is_closed {
            return None;
        }
        state.inside += 1;
        Some(Inside(self))
    }

    /// Admits a request, after a wait while the gate is closed.
    pub(crate) fn wait(&self) -> Inside<'_> {
        let mut state = self.state.lock();
        self.changed.wait_while(&mut state, |state| state.is_closed);
        state.inside += 1;
        Inside(self)
    }

    /// Admits no more requests, and waits at most for `time` until those under way have ended.
    /// Returns whether they have.
    pub(crate) fn close(&self, time: Duration) -> bool {
        let mut state = self.state.lock();
        state.is_closed = true;
        let is_used = |state: &mut State| state.inside > 0;
        let waited = self.changed.wait_while_for(&mut state, is_used, time);
        !waited.timed_out()
    }

    /// Whether no requests are admitted.
    pub(crate) fn is_closed(&self) -> bool {
        self.state.lock().is_closed
    }

    /// Admits requests again.
    #[cfg(test)]
    pub(crate) fn open(&self) {
        self.state.lock().is_closed = false;
        self.changed.notify_all();
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.0.state.lock().inside -= 1;
        self.0.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn a_closed_gate_waits_for_requests_under_way_and_admits_none() {
        let gate = Gate::default();
        let inside = gate.enter().unwrap();
        assert!(!gate.close(Duration::ZERO));
        assert!(gate.enter().is_none());
        drop(inside);
        assert!(gate.close(Duration::from_secs(60)));
        thread::scope(|scope| {
            let waiting = scope.spawn(|| drop(gate.wait()));
            gate.open();
            waiting.join().unwrap();
        });
        assert!(gate.enter().is_some());
    }
}
