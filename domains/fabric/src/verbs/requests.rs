//! The outstanding requests of a queue pair, in the order in which they end.

use std::collections::VecDeque;

use crate::key::Access;

/// A request that is posted, or is in the chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Request {
    /// Number of its operation; `None` in a batch of reads.
    pub(super) operation: Option<u64>,
    /// Whether the operation ends with it.
    pub(super) is_last: bool,
    /// The right that the request needs.
    pub(super) needed: Access,
}

/// Numbered requests, oldest first.
#[derive(Debug)]
pub(super) struct Requests {
    requests: VecDeque<Request>,
    /// Number of the oldest, and count of ended requests.
    oldest: u64,
    room: usize,
    reads: usize,
    atomics: usize,
}

impl Requests {
    /// An empty queue with room for `room` requests.
    pub(super) fn with_room(room: usize) -> Self {
        Requests {
            requests: VecDeque::with_capacity(room),
            oldest: 0,
            room,
            reads: 0,
            atomics: 0,
        }
    }

    pub(super) fn has_room(&self) -> bool {
        self.requests.len() < self.room
    }

    pub(super) fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// Whether the newest request belongs to `operation`.
    pub(super) fn have_some_of(&self, operation: u64) -> bool {
        let newest = self.requests.back();
        newest.is_some_and(|newest| newest.operation == Some(operation))
    }

    /// Count of ended requests.
    pub(super) fn ended(&self) -> u64 {
        self.oldest
    }

    /// Number of the next request.
    pub(super) fn next(&self) -> u64 {
        self.oldest + self.requests.len() as u64
    }

    /// Adds a request; returns its number.
    pub(super) fn push(&mut self, request: Request) -> u64 {
        let number = self.next();
        self.count(request.needed, 1);
        self.requests.push_back(request);
        number
    }

    /// Removes the oldest request, unless its number is above `last`.
    pub(super) fn pop_until(&mut self, last: u64) -> Option<(u64, Request)> {
        let number = self.oldest;
        if number > last {
            return None;
        }
        let request = self.requests.pop_front()?;
        self.oldest += 1;
        self.count(request.needed, -1);
        Some((number, request))
    }

    /// Removes the newest request, unless its number is below `first`.
    pub(super) fn take_back(&mut self, first: u64) -> Option<Request> {
        if self.next() <= first {
            return None;
        }
        let request = self.requests.pop_back()?;
        self.count(request.needed, -1);
        Some(request)
    }

    /// Whether a device could execute a request that needs this right before an outstanding one.
    pub(super) fn could_be_overtaken_by(&self, needed: Access) -> bool {
        match needed {
            Access::REMOTE_READ => false,
            Access::REMOTE_ATOMIC => self.reads > 0,
            _ => self.reads + self.atomics > 0,
        }
    }

    fn count(&mut self, needed: Access, by: isize) {
        let counter = match needed {
            Access::REMOTE_READ => &mut self.reads,
            Access::REMOTE_ATOMIC => &mut self.atomics,
            _ => return,
        };
        *counter = counter.saturating_add_signed(by);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(operation: u64, needed: Access) -> Request {
        Request {
            operation: Some(operation),
            is_last: true,
            needed,
        }
    }

    #[test]
    fn one_completion_ends_all_before_it() {
        let mut requests = Requests::with_room(4);
        let write = |n| request(n, Access::REMOTE_WRITE);
        let numbers: Vec<u64> = (0..4).map(|n| requests.push(write(n))).collect();
        assert_eq!(numbers, [0, 1, 2, 3]);
        assert!(!requests.has_room());
        assert!(requests.have_some_of(3) && !requests.have_some_of(4));
        assert_eq!(requests.pop_until(1), Some((0, write(0))));
        assert_eq!(requests.pop_until(1), Some((1, write(1))));
        assert_eq!(requests.pop_until(1), None);
        assert_eq!(requests.ended(), 2);
        assert_eq!(requests.take_back(3), Some(write(3)));
        assert_eq!(requests.take_back(3), None);
        assert_eq!(requests.push(write(9)), 3);
    }

    #[test]
    fn writes_wait_for_reads_and_atomics_and_atomics_wait_for_reads() {
        let mut requests = Requests::with_room(4);
        let (read, write) = (Access::REMOTE_READ, Access::REMOTE_WRITE);
        let atomic = Access::REMOTE_ATOMIC;
        requests.push(request(0, write));
        assert!(!requests.could_be_overtaken_by(write));
        requests.push(request(1, atomic));
        assert!(requests.could_be_overtaken_by(write));
        assert!(!requests.could_be_overtaken_by(atomic));
        requests.push(request(2, read));
        assert!(requests.could_be_overtaken_by(atomic));
        assert!(!requests.could_be_overtaken_by(read));
        while requests.pop_until(1).is_some() {}
        requests.take_back(0);
        assert!(!requests.could_be_overtaken_by(write));
    }
}
