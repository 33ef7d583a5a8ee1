//! Copying of bytes between a process of this host and another host.

use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown, recv, send, shutdown};
use toroid_fabric::tcp::tune;
use toroid_protocol::proxy::Carriage;

/// Bytes that are copied at a time: as many as the longest part of an operation.
const BUFFER_BYTES: usize = 64 * 1024;

/// Time without progress, after the end of one side, until the other is closed.
const LINGER: Duration = Duration::from_secs(60);

/// Copies bytes in both directions until both sides have ended. Bytes that a side sent before its
/// end still arrive.
pub(super) fn carry(carriage: Carriage, remote: &TcpStream, local: &UnixStream) {
    let tuned = if carriage.packets {
        tune::for_packets(remote)
    } else {
        tune::for_serving(remote)
    };
    if let Err(error) = tuned {
        tracing::warn!("a connection with another host is not as it should be: {error}");
    }
    let (remote, local) = (remote.as_fd(), local.as_fd());
    let (mut inward, mut outward) = (Direction::new(), Direction::new());
    while !(inward.is_over && outward.is_over) {
        let (came, went) = (inward.carry(remote, local), outward.carry(local, remote));
        if came || went || sleep(remote, local, &inward, &outward) {
            continue;
        }
        if inward.has_ended || outward.has_ended || has_hung_up(remote) {
            return;
        }
    }
}

/// One direction.
struct Direction {
    /// Bytes to be sent are those from `head` to `end`.
    buffer: Box<[u8]>,
    head: usize,
    end: usize,
    /// Nothing more comes.
    has_ended: bool,
    /// The target takes nothing more. Further bytes are discarded: leaving them unread would reset
    /// the connection, with bytes of the other direction.
    is_refused: bool,
    /// All has been sent, and the target's write side was shut down.
    is_over: bool,
}

impl Direction {
    fn new() -> Self {
        Direction {
            buffer: vec![0; BUFFER_BYTES].into_boxed_slice(),
            head: 0,
            end: 0,
            has_ended: false,
            is_refused: false,
            is_over: false,
        }
    }

    fn is_empty(&self) -> bool {
        self.head == self.end
    }

    /// Whether the direction waits for its source.
    fn is_hungry(&self) -> bool {
        self.is_empty() && !self.has_ended
    }

    /// Copies available bytes; returns whether anything happened.
    fn carry(&mut self, from: BorrowedFd<'_>, to: BorrowedFd<'_>) -> bool {
        let mut has_moved = false;
        if self.is_hungry() {
            match recv(from, &mut *self.buffer, RecvFlags::DONTWAIT) {
                Err(Errno::AGAIN | Errno::INTR) => {}
                Ok((0, _)) | Err(_) => {
                    self.has_ended = true;
                    has_moved = true;
                }
                Ok((count, _)) => {
                    (self.head, self.end) = (0, count);
                    has_moved = true;
                }
            }
        }
        if !self.is_empty() && !self.is_refused {
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            match send(to, &self.buffer[self.head..self.end], flags) {
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(_) => {
                    self.is_refused = true;
                    has_moved = true;
                }
                Ok(count) => {
                    self.head += count;
                    has_moved = true;
                }
            }
        }
        if self.is_refused {
            self.head = self.end;
        }
        if self.has_ended && self.is_empty() && !self.is_over {
            self.is_over = true;
            has_moved = true;
            // This fails only after the other side has ended.
            let _ = shutdown(to, Shutdown::Write);
        }
        has_moved
    }
}

/// Sleeps until something can be copied. Returns false when the time is over in which a side with
/// nothing to wait for should have ended.
fn sleep(
    remote: BorrowedFd<'_>,
    local: BorrowedFd<'_>,
    inward: &Direction,
    outward: &Direction,
) -> bool {
    let events = |source: &Direction, target: &Direction| {
        let mut events = PollFlags::empty();
        events.set(PollFlags::IN, source.is_hungry());
        events.set(PollFlags::OUT, !target.is_empty());
        events
    };
    let (remote_events, local_events) = (events(inward, outward), events(outward, inward));
    // The end of an unwatched side would be reported again and again.
    let mut wanted = Vec::with_capacity(2);
    for (fd, events) in [(&remote, remote_events), (&local, local_events)] {
        if !events.is_empty() {
            wanted.push(PollFd::new(fd, events));
        }
    }
    let may_be_in_vain = inward.has_ended || outward.has_ended || !inward.is_empty();
    let limit = Timespec {
        tv_sec: LINGER.as_secs().cast_signed(),
        tv_nsec: 0,
    };
    let timeout = may_be_in_vain.then_some(&limit);
    // An interruption only ends the sleep early.
    poll(&mut wanted, timeout) != Ok(0)
}

/// Whether the other side has shut down its write side.
fn has_hung_up(remote: BorrowedFd<'_>) -> bool {
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    let mut remote = [PollFd::new(&remote, PollFlags::RDHUP)];
    poll(&mut remote, Some(&now)).is_ok_and(|count| count > 0)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;
    use std::thread;

    use super::*;

    const PACKETS: Carriage = Carriage {
        from: 0,
        packets: true,
    };

    /// Starts copying on a thread; returns both ends and the thread.
    fn carriage() -> (TcpStream, UnixStream, thread::JoinHandle<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let remote = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let theirs = listener.accept().unwrap().0;
        let (local, ours) = UnixStream::pair().unwrap();
        // As left by an earlier wait for an answer on the connection.
        remote
            .set_read_timeout(Some(Duration::from_millis(1)))
            .unwrap();
        let carrying = thread::spawn(move || carry(PACKETS, &remote, &local));
        (theirs, ours, carrying)
    }

    /// All bytes once got lost when the remote side answered after the local one had closed.
    #[test]
    fn bytes_sent_before_the_end_arrive() {
        let (mut remote, mut local, carrying) = carriage();
        let sent: Vec<u8> = (0..1_000_000u32).map(|n| n as u8).collect();
        let all = sent.clone();
        let sending = thread::spawn(move || local.write_all(&all));
        let mut heard = vec![0; sent.len()];
        remote.read_exact(&mut heard[..1000]).unwrap();
        // These bytes stay unread.
        remote.write_all(&[1; 1000]).unwrap();
        remote.read_exact(&mut heard[1000..]).unwrap();
        sending.join().unwrap().unwrap();
        assert_eq!(remote.read(&mut [0]).unwrap(), 0);
        assert!(heard == sent);
        drop(remote);
        carrying.join().unwrap();
    }

    #[test]
    fn silence_does_not_end_a_connection() {
        let (mut remote, mut local, carrying) = carriage();
        for byte in 0..3 {
            thread::sleep(Duration::from_millis(20));
            remote.write_all(&[byte]).unwrap();
            let mut heard = [9];
            local.read_exact(&mut heard).unwrap();
            assert_eq!(heard, [byte]);
        }
        drop(remote);
        assert_eq!(local.read(&mut [0]).unwrap(), 0);
        drop(local);
        carrying.join().unwrap();
    }
}
