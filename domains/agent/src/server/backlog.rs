//! What an attached process has asked and is not being served yet.
//!
//! Answers come in the order of the requests, and some take long: a shrink waits until processes have
//! acknowledged it, another host may not answer. What has no answer must not wait behind those: who
//! shrinks has to acknowledge that, too. So one thread reads, and another serves.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use super::share::Share;

/// Bytes that may wait before no more is read: of a process that gives back all that it may have at
/// once, a third of it.
const MAX_BYTES: usize = 2 << 20;

#[derive(Debug)]
pub(crate) struct Backlog<T> {
    waiting: Mutex<Waiting<T>>,
    changed: Condvar,
    share: Arc<Share>,
}

#[derive(Debug)]
struct Waiting<T> {
    items: VecDeque<(T, usize)>,
    bytes: usize,
    is_closed: bool,
}

impl<T> Backlog<T> {
    /// An empty one of a connection that has this share.
    pub(crate) fn new(share: Arc<Share>) -> Self {
        let waiting = Waiting {
            items: VecDeque::new(),
            bytes: 0,
            is_closed: false,
        };
        Backlog {
            waiting: Mutex::new(waiting),
            changed: Condvar::new(),
            share,
        }
    }

    /// Adds one of so many bytes; waits while there are too many. After the end it is forgotten.
    pub(crate) fn push(&self, item: T, bytes: usize) {
        // A short request takes more memory than it has bytes.
        let bytes = bytes + size_of::<(T, usize)>();
        // Looked at again whenever one of this connection's has been taken.
        let is_full = |waiting: &mut Waiting<T>| {
            waiting.bytes > self.share.allows(MAX_BYTES) && !waiting.is_closed
        };
        let mut waiting = self.wait_while(is_full);
        if waiting.is_closed {
            return;
        }
        waiting.bytes += bytes;
        self.share.add(bytes);
        waiting.items.push_back((item, bytes));
        self.changed.notify_all();
    }

    /// The next one, waited for; none if there can be no more.
    pub(crate) fn next(&self) -> Option<T> {
        let is_empty = |waiting: &mut Waiting<T>| waiting.items.is_empty() && !waiting.is_closed;
        let mut waiting = self.wait_while(is_empty);
        let (item, bytes) = waiting.items.pop_front()?;
        waiting.bytes -= bytes;
        self.share.remove(bytes);
        self.changed.notify_all();
        Some(item)
    }

    /// What has not been taken is forgotten: nobody waits for it any more.
    pub(crate) fn close(&self) {
        let mut waiting = self.wait_while(|_| false);
        waiting.items.clear();
        self.share.remove(std::mem::take(&mut waiting.bytes));
        waiting.is_closed = true;
        self.changed.notify_all();
    }

    /// Who panics with the lock has changed nothing by halves.
    fn wait_while(
        &self,
        condition: impl FnMut(&mut Waiting<T>) -> bool,
    ) -> MutexGuard<'_, Waiting<T>> {
        let waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let waiting = self.changed.wait_while(waiting, condition);
        waiting.unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn who_adds_waits_while_there_is_too_much() {
        let backlog = Backlog::new(Arc::default());
        backlog.push(0, MAX_BYTES + 1);
        thread::scope(|scope| {
            let adding = scope.spawn(|| (1..100).for_each(|n| backlog.push(n, MAX_BYTES + 1)));
            for n in 0..100 {
                assert_eq!(backlog.next(), Some(n));
            }
            adding.join().unwrap();
            let taking = scope.spawn(|| backlog.next());
            backlog.close();
            assert_eq!(taking.join().unwrap(), None);
        });
    }

    #[test]
    fn what_was_not_taken_is_forgotten_at_the_end() {
        let backlog = Backlog::new(Arc::default());
        backlog.push(0, MAX_BYTES + 1);
        thread::scope(|scope| {
            let adding = scope.spawn(|| backlog.push(1, 1));
            backlog.close();
            adding.join().unwrap();
        });
        backlog.push(2, 1);
        assert_eq!(backlog.next(), None);
    }
}
