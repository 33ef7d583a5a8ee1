//! The line of a tunnel: the way of its packets between RDMA adapters.

use std::cell::RefCell;
use std::io;

use toroid_fabric::RdmaStream;

use super::{Inbox, Outbox, Tag};

/// One end of the line, and what waits at it.
#[derive(Debug)]
pub struct LineEnd {
    /// What the two sides call it.
    pub number: u32,
    line: RefCell<Box<dyn RdmaStream>>,
    outbox: RefCell<Outbox>,
    /// What has come.
    pub inbox: Inbox,
    /// Whether we have said that our packets come by it.
    pub sends: bool,
    /// Whether the other side has said so. What has come before that waits.
    pub receives: bool,
}

impl LineEnd {
    /// An end by which nothing goes yet.
    pub fn new(number: u32, line: Box<dyn RdmaStream>) -> Self {
        LineEnd {
            number,
            line: RefCell::new(line),
            outbox: RefCell::default(),
            inbox: Inbox::default(),
            sends: false,
            receives: false,
        }
    }

    /// Whether packets go by it both ways.
    pub fn is_up(&self) -> bool {
        self.sends && self.receives
    }

    /// Notices what has arrived, and that there may be room.
    ///
    /// # Errors
    /// Why it has ended.
    pub fn attend(&mut self) -> io::Result<()> {
        self.outbox.get_mut().is_stuck = false;
        self.line.get_mut().process_events()
    }

    /// Whether there is more to be received.
    pub fn has_more(&self) -> bool {
        self.receives && (self.inbox.has_next() || self.line.borrow().has_bytes())
    }

    /// Reads what has come into the inbox, in which no item is, if anything has.
    ///
    /// # Errors
    /// Why it has ended.
    pub fn receive(&mut self) -> io::Result<()> {
        if self.line.get_mut().has_bytes() {
            self.inbox.fill(self.line.get_mut()).map(drop)
        } else {
            Ok(())
        }
    }

    /// As [`Tunnel::send`](super::Tunnel::send).
    pub(super) fn send(&self, tag: &[u8; Tag::LEN], packet: &[u8]) -> io::Result<()> {
        let mut line = self.line.borrow_mut();
        self.outbox.borrow_mut().send(&mut *line, tag, packet)
    }

    /// Sends what waits, as far as the line takes it; returns whether there is still one.
    pub fn flush(&self) -> bool {
        self.outbox.borrow_mut().flush(&mut *self.line.borrow_mut());
        !self.outbox.borrow().has_ended
    }

    /// The line itself; what waits for it is lost.
    pub fn into_line(self) -> Box<dyn RdmaStream> {
        self.line.into_inner()
    }
}
