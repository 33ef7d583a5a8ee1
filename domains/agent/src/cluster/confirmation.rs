//! Confirmation that this host still leads, for many at a time: all that ask while a read is under
//! way share the next one.

use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use toroid_model::hosts::ETCD;
use toroid_model::refusal::{Refusal, RefusalKind};

use super::Cluster;
use super::candidacy::Candidacy;
use super::etcd::EtcdError;

/// Least time between the begins of two reads.
const INTERVAL: Duration = Duration::from_millis(200);

/// Reads, numbered in the order of their begins.
#[derive(Debug, Default)]
pub(super) struct Reads {
    state: Mutex<State>,
    ended: Condvar,
}

#[derive(Debug, Default)]
struct State {
    begun: u64,
    last: Option<Instant>,
    is_reading: bool,
    /// The last read that has ended, and its result.
    ended: Option<(u64, Result<(), Refusal>)>,
}

impl Reads {
    /// Result of a read that begins after the call. `read` is called without locks.
    fn next(&self, read: impl Fn() -> Result<(), Refusal>) -> Result<(), Refusal> {
        let mut state = self.state.lock();
        let wanted = state.begun + 1;
        loop {
            if let Some((number, result)) = &state.ended
                && *number >= wanted
            {
                return result.clone();
            }
            let pause = state.last.map_or(Duration::ZERO, |last| {
                INTERVAL.saturating_sub(last.elapsed())
            });
            if state.is_reading {
                self.ended.wait(&mut state);
            } else if !pause.is_zero() {
                self.ended.wait_for(&mut state, pause);
            } else {
                state.is_reading = true;
                state.begun += 1;
                state.last = Some(Instant::now());
                let number = state.begun;
                drop(state);
                let result = read();
                state = self.state.lock();
                state.is_reading = false;
                state.ended = Some((number, result));
                self.ended.notify_all();
            }
        }
    }
}

impl Cluster {
    /// Checks that this host does not know of another leader.
    pub(crate) fn check_lead(&self) -> Result<(), Refusal> {
        if self.control.is_deposed() {
            return Err(leads_no_more());
        }
        Ok(())
    }

    /// Confirms that this host leads, by a read that begins now if the leader is elected.
    pub(crate) fn confirm_lead(&self) -> Result<(), Refusal> {
        self.check_lead()?;
        match &self.candidacy {
            Some(candidacy) if self.config.directory == ETCD => candidacy.confirm(),
            _ => Ok(()),
        }
    }
}

/// Refusal of a host that was replaced, or whose lease has ended.
pub(crate) fn leads_no_more() -> Refusal {
    let message = "this host leads no more";
    Refusal::new(RefusalKind::Failed, message, "see `toroid status`")
}

impl Candidacy {
    /// Confirms that this host leads, by a read of a majority that begins after the call.
    ///
    /// # Errors
    /// A refusal if it leads no more, or if etcd does not answer.
    fn confirm(&self) -> Result<(), Refusal> {
        self.reads.next(|| match self.leads() {
            Ok(true) => Ok(()),
            Ok(false) | Err(EtcdError::Unrenewed) => Err(leads_no_more()),
            Err(error) => Err(error.refusal()),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::thread;

    use super::*;

    #[test]
    fn all_that_ask_during_a_read_share_the_next_one() {
        let (reads, count) = (Reads::default(), AtomicUsize::new(0));
        let read = || {
            count.fetch_add(1, Ordering::SeqCst);
            thread::sleep(INTERVAL);
            Ok(())
        };
        thread::scope(|scope| {
            scope.spawn(|| reads.next(read));
            while count.load(Ordering::SeqCst) == 0 {
                thread::yield_now();
            }
            for _ in 0..20 {
                scope.spawn(|| reads.next(read));
            }
        });
        // The threads may be so slow that some miss the second.
        assert!((2..20).contains(&count.into_inner()));
    }

    #[test]
    fn a_failure_is_that_of_its_read_only() {
        let reads = Reads::default();
        let failed = || Err(Refusal::new(RefusalKind::Failed, "no answer", ""));
        reads.next(failed).unwrap_err();
        reads.next(|| Ok(())).unwrap();
    }
}
