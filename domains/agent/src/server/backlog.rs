//! Requests of an attached process that wait to be served.
//!
//! Replies come in the order of the requests, and some take long: a shrink waits for
//! acknowledgements, another host may not answer. Requests without a reply must not wait behind
//! those: a process that shrinks must acknowledge that, too. So one thread reads, and another
//! serves.

use std::collections::VecDeque;
use std::sync::Arc;

use super::share::Share;
use parking_lot::{Condvar, Mutex, MutexGuard};

/// Most waiting bytes before reading stops: a third of the requests of a process that releases
/// everything it may have.
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
    /// Makes an empty backlog of a connection with this share.
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

    /// Adds a request of `bytes` bytes; waits while too many wait. After the end it is dropped.
    pub(crate) fn push(&self, item: T, bytes: usize) {
        // A short request takes more memory than its bytes.
        let bytes = bytes + size_of::<(T, usize)>();
        // Checked again whenever a request of this connection is taken.
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

    /// Waits for the next request; `None` after the end.
    pub(crate) fn next(&self) -> Option<T> {
        let is_empty = |waiting: &mut Waiting<T>| waiting.items.is_empty() && !waiting.is_closed;
        let mut waiting = self.wait_while(is_empty);
        let (item, bytes) = waiting.items.pop_front()?;
        waiting.bytes -= bytes;
        self.share.remove(bytes);
        self.changed.notify_all();
        Some(item)
    }

    /// Ends the backlog, and drops waiting requests, whose replies are of no use any more.
    pub(crate) fn close(&self) {
        let mut waiting = self.wait_while(|_| false);
        waiting.items.clear();
        self.share.remove(std::mem::take(&mut waiting.bytes));
        waiting.is_closed = true;
        self.changed.notify_all();
    }

    fn wait_while(
        &self,
        condition: impl FnMut(&mut Waiting<T>) -> bool,
    ) -> MutexGuard<'_, Waiting<T>> {
        let mut waiting = self.waiting.lock();
        self.changed.wait_while(&mut waiting, condition);
        waiting
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn adding_waits_while_too_many_bytes_wait() {
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
    fn requests_in_the_backlog_are_dropped_at_the_end() {
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
