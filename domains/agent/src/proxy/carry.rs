//! Copying of bytes between a process of this host and another host.

use std::io;
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown, recv, send, shutdown};
use toroid_fabric::BusyPoll;
use toroid_fabric::tcp::secure::{Incoming, Keys, RecordError, Sealing};
use toroid_fabric::tcp::tune;
use toroid_protocol::proxy::Carriage;
use toroid_protocol::seal::SealKeys;

/// Bytes that are copied at a time: as many as the longest part of an operation.
const BUFFER_BYTES: usize = 64 * 1024;

/// Time without progress, after the end of one side, until the other is closed.
const LINGER: Duration = Duration::from_secs(60);

/// Copies bytes in both directions until both sides have ended, and seals and opens those of the
/// other host. Bytes that a side sent before its end still arrive. `await_turn` returns when some bytes
/// may be copied.
pub(super) fn carry(
    carriage: &Carriage,
    remote: &TcpStream,
    local: &UnixStream,
    await_turn: impl Fn(),
) {
    let tuned = if carriage.packets {
        tune::for_packets(remote)
    } else {
        tune::for_serving(remote)
    };
    if let Err(error) = tuned {
        tracing::warn!("a connection with another host is not as it should be: {error}");
    }
    let keys = carriage.keys.as_ref().map(|SealKeys(keys)| keys);
    let (mut inward, mut outward) = (Direction::inward(keys), Direction::outward(keys));
    let (remote, local) = (remote.as_fd(), local.as_fd());
    let (mut busy_poll, mut since) = (BusyPoll::default(), Instant::now());
    while !(inward.is_over && outward.is_over) {
        await_turn();
        let (came, went) = (inward.carry(remote, local), outward.carry(local, remote));
        let moved = came.and_then(|came| Ok(came | went?));
        let has_moved = match moved {
            Ok(has_moved) => has_moved,
            Err(error) => {
                tracing::warn!("node number {} loses a connection: {error}", carriage.from);
                return;
            }
        };
        if has_moved {
            busy_poll.count_news();
            since = Instant::now();
            continue;
        }
        if inward.is_hungry() && outward.is_hungry() && busy_poll.keeps_polling(since) {
            continue;
        }
        let has_slept = sleep(remote, local, &inward, &outward);
        busy_poll.record_wait(since);
        since = Instant::now();
        if has_slept {
            continue;
        }
        if inward.has_ended || outward.has_ended || has_hung_up(remote) {
            return;
        }
    }
}

/// One direction.
struct Direction {
    /// Received bytes.
    buffer: Incoming,
    /// Sealed bytes that wait to be sent, if the target is another host and encryption is on.
    sealing: Option<Sealing>,
    /// Nothing more comes.
    has_ended: bool,
    /// The target takes nothing more. Further bytes are discarded: leaving them unread would reset
    /// the connection, with bytes of the other direction.
    is_refused: bool,
    /// All has been sent, and the target's write side was shut down.
    is_over: bool,
}

impl Direction {
    /// From the other host.
    fn inward(keys: Option<&Keys>) -> Self {
        Direction {
            buffer: Incoming::new(BUFFER_BYTES, keys),
            sealing: None,
            has_ended: false,
            is_refused: false,
            is_over: false,
        }
    }

    /// To the other host.
    fn outward(keys: Option<&Keys>) -> Self {
        Direction {
            sealing: keys.map(Sealing::new),
            ..Direction::inward(None)
        }
    }

    fn is_empty(&self) -> bool {
        self.buffer.text().is_empty() && self.sealing.as_ref().is_none_or(|all| all.unsent() == 0)
    }

    /// Whether the direction waits for its source.
    fn is_hungry(&self) -> bool {
        self.is_empty() && !self.has_ended
    }

    /// Copies available bytes; returns whether anything happened.
    ///
    /// # Errors
    /// [`RecordError`]: the connection must end.
    fn carry(&mut self, from: BorrowedFd<'_>, to: BorrowedFd<'_>) -> Result<bool, RecordError> {
        let mut has_moved = false;
        if self.is_hungry() {
            match recv(from, self.buffer.place(), RecvFlags::DONTWAIT) {
                Err(Errno::AGAIN | Errno::INTR) => {}
                Ok((0, _)) | Err(_) => {
                    self.buffer.check_end()?;
                    self.has_ended = true;
                    has_moved = true;
                }
                Ok((count, _)) => {
                    self.buffer.received(count)?;
                    has_moved = true;
                }
            }
        }
        if !self.is_empty() && !self.is_refused {
            match self.send(to) {
                Ok(count) => has_moved |= count > 0,
                Err(_) => {
                    self.is_refused = true;
                    has_moved = true;
                }
            }
        }
        if self.is_refused {
            self.buffer.consume(usize::MAX);
            self.sealing.iter_mut().for_each(Sealing::forget);
        }
        if self.has_ended && self.is_empty() && !self.is_over {
            self.is_over = true;
            has_moved = true;
            // This fails only after the other side has ended.
            let _ = shutdown(to, Shutdown::Write);
        }
        Ok(has_moved)
    }

    /// Sends what the target takes; returns the number of bytes.
    fn send(&mut self, to: BorrowedFd<'_>) -> io::Result<usize> {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        let Some(sealing) = &mut self.sealing else {
            return match send(to, self.buffer.text(), flags) {
                Err(Errno::AGAIN | Errno::INTR) => Ok(0),
                sent => {
                    let count = sent?;
                    self.buffer.consume(count);
                    Ok(count)
                }
            };
        };
        sealing.write(self.buffer.take(usize::MAX));
        let mut count = 0;
        sealing.flush(|bytes| {
            let sent = send(to, bytes, flags)?;
            count += sent;
            Ok(sent)
        })?;
        Ok(count)
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
    use std::sync::{Arc, Mutex};
    use std::thread;

    use toroid_fabric::tcp::secure::{Cipher, KEY};

    use super::*;

    const KEYS: Keys = Keys {
        cipher: Cipher::AesGcm,
        send: [1; KEY],
        receive: [2; KEY],
    };

    /// Starts copying on a thread; returns both ends and the thread.
    fn carriage(keys: Option<Keys>) -> (TcpStream, UnixStream, thread::JoinHandle<()>) {
        carriage_by(keys, || {})
    }

    fn carriage_by(
        keys: Option<Keys>,
        await_turn: impl Fn() + Send + 'static,
    ) -> (TcpStream, UnixStream, thread::JoinHandle<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let remote = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let theirs = listener.accept().unwrap().0;
        let (local, ours) = UnixStream::pair().unwrap();
        // As left by an earlier wait for an answer on the connection.
        remote
            .set_read_timeout(Some(Duration::from_millis(1)))
            .unwrap();
        let packets = Carriage {
            from: 0,
            partition: 1,
            packets: true,
            keys: keys.map(SealKeys),
        };
        let carrying = thread::spawn(move || carry(&packets, &remote, &local, await_turn));
        (theirs, ours, carrying)
    }

    #[test]
    fn bytes_are_copied_when_their_turn_comes() {
        let turn = Arc::new(Mutex::new(()));
        let its = Arc::clone(&turn);
        let held = turn.lock().unwrap();
        let (mut remote, mut local, carrying) =
            carriage_by(None, move || drop(its.lock().unwrap()));
        local.write_all(b"words").unwrap();
        let soon = Duration::from_millis(50);
        remote.set_read_timeout(Some(soon)).unwrap();
        assert!(remote.read(&mut [0; 5]).is_err());
        drop(held);
        remote.set_read_timeout(None).unwrap();
        let mut heard = [0; 5];
        remote.read_exact(&mut heard).unwrap();
        assert_eq!(&heard, b"words");
        drop((remote, local));
        carrying.join().unwrap();
    }

    /// All bytes once got lost when the remote side answered after the local one had closed.
    #[test]
    fn bytes_sent_before_the_end_arrive() {
        let (mut remote, mut local, carrying) = carriage(None);
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

    /// Two carriages in a row: the bytes in between are those between hosts.
    #[test]
    fn sealed_bytes_arrive_and_do_not_travel_in_the_clear() {
        let (mut near, mut ours, carrying) = carriage(Some(KEYS));
        let (mut far, mut theirs, carrying_there) = carriage(Some(KEYS.mirrored()));
        let text: Vec<u8> = (0..1_000_000u32).map(|n| (n / 3) as u8).collect();
        let sent = text.clone();
        let sending = thread::spawn(move || {
            ours.write_all(&sent).unwrap();
            ours.shutdown(std::net::Shutdown::Write).unwrap();
            let mut answer = Vec::new();
            ours.read_to_end(&mut answer).unwrap();
            answer
        });
        let (mut back, mut forth) = (far.try_clone().unwrap(), near.try_clone().unwrap());
        let answering = thread::spawn(move || {
            let mut heard = Vec::new();
            theirs.read_to_end(&mut heard).unwrap();
            theirs.write_all(b"the answer").unwrap();
            heard
        });
        let returning = thread::spawn(move || {
            io::copy(&mut back, &mut forth).unwrap();
            forth.shutdown(std::net::Shutdown::Write).unwrap();
        });
        let mut between = Vec::new();
        near.read_to_end(&mut between).unwrap();
        assert!(between.len() > text.len());
        assert!(!between.windows(16).any(|window| {
            text.windows(16)
                .step_by(48)
                .take(64)
                .any(|part| part == window)
        }));
        far.write_all(&between).unwrap();
        far.shutdown(std::net::Shutdown::Write).unwrap();
        assert!(answering.join().unwrap() == text);
        returning.join().unwrap();
        assert_eq!(sending.join().unwrap(), b"the answer");
        drop((near, far));
        carrying.join().unwrap();
        carrying_there.join().unwrap();
    }

    #[test]
    fn altered_and_cut_records_end_the_connection() {
        let record = {
            let mut sealing = Sealing::new(&KEYS.mirrored());
            let mut record = Vec::new();
            sealing.write(b"text");
            let mut take = |bytes: &[u8]| {
                record.extend_from_slice(bytes);
                Ok(bytes.len())
            };
            assert!(sealing.flush(&mut take).unwrap());
            record
        };
        let mut altered = record.clone();
        altered[5] ^= 1;
        let cut = &record[..10];
        for (bytes, heard) in [
            ([&record[..], &altered].concat(), b"text".as_slice()),
            ([&record[..], &record].concat(), b"text"),
            (altered.clone(), b""),
            (cut.to_vec(), b""),
        ] {
            let (mut remote, mut local, carrying) = carriage(Some(KEYS));
            remote.write_all(&bytes).unwrap();
            remote.shutdown(std::net::Shutdown::Write).unwrap();
            let mut all = Vec::new();
            local.read_to_end(&mut all).unwrap();
            // A text before may be lost with the connection, but nothing else comes.
            assert!(heard.starts_with(&all), "{all:?}");
            carrying.join().unwrap();
            local.write_all(b"more").unwrap_err();
        }
    }

    #[test]
    fn silence_does_not_end_a_connection() {
        let (mut remote, mut local, carrying) = carriage(None);
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
