//! Queue pairs over pipes.

use std::io::{PipeReader, Write, pipe};

use rustix::event::{PollFd, PollFlags, poll};

use super::*;
use crate::core::endpoint::{PostError, Read};
use crate::{NodeId, Operation, Partition};

/// A queue pair with an operation in flight, which a byte of a pipe completes.
#[derive(Debug)]
struct Piped {
    pipe: Arc<OwnedFd>,
    pending: Pending,
}

impl Piped {
    fn new(pipe: PipeReader) -> Self {
        let pipe = Arc::<OwnedFd>::new(pipe.into());
        let (fd, until) = (Arc::clone(&pipe), NEVER);
        let pending = Pending::Event { fd, until };
        Piped { pipe, pending }
    }
}

impl Endpoint for Piped {
    type Remote = ();

    fn peer(&self) -> NodeId {
        NodeId(0)
    }

    fn partition(&self) -> Partition {
        Partition(1)
    }

    fn post(&mut self, _: u64, _: Operation<()>) -> Result<(), PostError> {
        Ok(())
    }

    fn flush(&mut self) {}

    fn poll(&mut self, into: &mut [Completion]) -> usize {
        usize::from(!into.is_empty() && self.wait(Duration::ZERO))
    }

    fn wait(&mut self, _: Duration) -> bool {
        let mut fds = [PollFd::new(&self.pipe, PollFlags::IN)];
        poll(&mut fds, Some(&NOW)) == Ok(1)
    }

    fn pending(&mut self, _: bool) -> Pending {
        self.pending.clone()
    }

    fn read_batch(&mut self, _: &mut [Read<'_, ()>]) -> Result<(), OpError> {
        Ok(())
    }
}

/// `wait` put the queue pair into the epoll(7), and returned without a look at its events.
#[test]
fn a_wait_without_time_right_after_a_flush_finds_what_has_come() {
    for has_come in [true, false] {
        let (reader, mut writer): (PipeReader, _) = pipe().unwrap();
        let mut queue = CompletionQueue::new().unwrap();
        queue.attach(7, Piped::new(reader)).unwrap();
        queue.pair(7).unwrap().flush();
        if has_come {
            writer.write_all(&[1]).unwrap();
        }
        assert_eq!(queue.wait(Duration::ZERO), has_come);
        let polled = queue.poll(&mut [QueuedCompletion::default()]);
        assert_eq!(polled, usize::from(has_come));
    }
}

/// A sleep for a time looked at no event, and the descriptor of an ended connection ended it at once:
/// the wait took a core until the time.
#[test]
fn a_sleep_for_a_time_removes_the_descriptor_of_an_ended_connection() {
    let (reader, writer) = pipe().unwrap();
    let mut queue = CompletionQueue::new().unwrap();
    queue.attach(7, Piped::new(reader)).unwrap();
    assert!(!queue.wait(Duration::ZERO));
    let due = monotonic() + 60_000_000_000;
    queue.pair(7).unwrap().pending = Pending::Time(due);
    assert!(!queue.wait(Duration::ZERO));
    drop(writer);
    assert!(is_readable(&queue));
    queue.wait(Duration::from_millis(1));
    assert!(!is_readable(&queue));
}

/// A place whose descriptor the epoll(7) refuses stayed listed: a wait took a core for its whole time.
#[test]
fn a_queue_pair_that_cannot_be_watched_is_looked_at_in_intervals() {
    let (reader, mut writer) = pipe().unwrap();
    let mut pair = Piped::new(reader);
    // Files have no events.
    let fd = Arc::new(crate::mem::memfd::create_memory(8).unwrap().into());
    pair.pending = Pending::Event { fd, until: NEVER };
    let mut queue = CompletionQueue::new().unwrap();
    queue.attach(7, pair).unwrap();
    queue.arm();
    assert!(queue.listed.is_empty() && queue.waiting == [1, 0]);
    writer.write_all(&[1]).unwrap();
    assert!(queue.wait(Duration::from_secs(20)));
}

fn is_readable(queue: &CompletionQueue<Piped>) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(queue.wake_fd(), PollFlags::IN)];
    poll(&mut fds, Some(&NOW)) == Ok(1)
}
