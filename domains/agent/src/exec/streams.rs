//! Standard streams of a command between a descriptor and the data connection.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{self, channel};
use std::thread::JoinHandle;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use parking_lot::{Condvar, Mutex};
use toroid_protocol::command::{MAX_DATA, Notice, Stream, WINDOW};

use super::frames::{Sender, malformed};
use crate::threads;

/// Bytes that are read after the command has ended: the capacity of a pipe for ordinary users.
/// Remaining processes of the command may write for ever.
const REST: usize = 1 << 20;

/// Bytes that may be sent on a stream.
#[derive(Debug)]
pub(super) struct Credit {
    /// `None` when nothing reads the stream any more.
    left: Mutex<Option<usize>>,
    more: Condvar,
}

impl Credit {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Credit {
            left: Mutex::new(Some(WINDOW)),
            more: Condvar::new(),
        })
    }

    /// Waits until some bytes may be sent, and returns how many, or `None` when nothing reads them.
    fn wait(&self) -> Option<usize> {
        let mut left = self.left.lock();
        self.more.wait_while(&mut left, |left| *left == Some(0));
        *left
    }

    fn spend(&self, bytes: usize) {
        if let Some(left) = &mut *self.left.lock() {
            *left -= bytes;
        }
    }

    /// Adds bytes that the receiver has passed on.
    pub(super) fn add(&self, bytes: usize) -> io::Result<()> {
        if let Some(left) = &mut *self.left.lock() {
            let sum = left.checked_add(bytes).filter(|sum| *sum <= WINDOW);
            *left = sum.ok_or_else(|| malformed("more was passed on than had been sent"))?;
        }
        self.more.notify_all();
        Ok(())
    }

    /// Ends the sending.
    pub(super) fn close(&self) {
        *self.left.lock() = None;
        self.more.notify_all();
    }
}

/// Sends the bytes of a descriptor until its end. After `over` has been closed at its other end, sends
/// only those that are there.
pub(super) fn pass_on(
    from: OwnedFd,
    stream: Stream,
    credit: &Credit,
    to: &Sender,
    over: Option<&OwnedFd>,
) -> io::Result<()> {
    let (mut from, mut chunk, mut rest) = (File::from(from), vec![0; MAX_DATA], REST);
    while let Some(credited) = credit.wait() {
        let ready = over.map_or(Ok(Ready::Bytes), |over| wait(&from, over))?;
        let most = match ready {
            Ready::Bytes => credited.min(MAX_DATA),
            Ready::Last => credited.min(MAX_DATA).min(rest),
            Ready::Nothing => break,
        };
        let count = match from.read(&mut chunk[..most]) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            // Others that have this file open may have made it so.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                await_events(&from, PollFlags::POLLIN);
                continue;
            }
            // A terminal that has lost its other end fails instead of ending.
            Ok(0) | Err(_) => break,
            Ok(count) => count,
        };
        if ready == Ready::Last {
            rest -= count;
        }
        credit.spend(count);
        to.data(stream, &chunk[..count])?;
    }
    to.data(stream, &[])
}

/// Waits until a descriptor is ready.
fn await_events(file: &File, events: PollFlags) {
    // A failure shows with the next read or write.
    let _ = poll(&mut [PollFd::new(file.as_fd(), events)], PollTimeout::NONE);
}

/// Writes all, also to a file that others have made non-blocking.
fn write_all(to: &mut File, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match to.write(bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => bytes = &bytes[count..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                await_events(to, PollFlags::POLLOUT);
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Bytes of a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ready {
    /// There are some, or its end.
    Bytes,
    /// The same, after the end of the command.
    Last,
    /// There are none after the end of the command.
    Nothing,
}

/// Waits for bytes, or for the end of the command.
fn wait(from: &File, over: &OwnedFd) -> io::Result<Ready> {
    let mut both = [
        PollFd::new(from.as_fd(), PollFlags::POLLIN),
        PollFd::new(over.as_fd(), PollFlags::empty()),
    ];
    loop {
        match poll(&mut both, PollTimeout::NONE) {
            Err(Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
            Ok(_) => {
                let [bytes, over] = both.each_ref().map(|fd| fd.any() == Some(true));
                return Ok(match (bytes, over) {
                    (true, false) => Ready::Bytes,
                    (true, true) => Ready::Last,
                    (false, _) => Ready::Nothing,
                });
            }
        }
    }
}

/// Writes received bytes to a descriptor, on a thread of its own.
#[derive(Debug)]
pub(super) struct Sink {
    queue: mpsc::Sender<Vec<u8>>,
    /// Bytes in the queue.
    waiting: Arc<AtomicUsize>,
    has_ended: AtomicBool,
    writing: JoinHandle<()>,
}

impl Sink {
    /// A sink that tells the other relay how many bytes it has passed on.
    pub(super) fn start(to: OwnedFd, stream: Stream, back: Sender) -> io::Result<Self> {
        let (queue, queued) = channel::<Vec<u8>>();
        let waiting = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&waiting);
        let write = move || {
            let mut to = File::from(to);
            let mut passed = 0;
            for bytes in queued {
                if bytes.is_empty() {
                    return;
                }
                if write_all(&mut to, &bytes).is_err() {
                    // If this fails, the connection has ended.
                    let _ = back.notice(&Notice::Closed(stream));
                    return;
                }
                counted.fetch_sub(bytes.len(), Ordering::Relaxed);
                passed += bytes.len();
                if passed >= WINDOW / 4 {
                    let bytes = std::mem::take(&mut passed);
                    let _ = back.notice(&Notice::Passed { stream, bytes });
                }
            }
        };
        Ok(Sink {
            queue,
            waiting,
            has_ended: AtomicBool::new(false),
            writing: threads::start(write)?,
        })
    }

    /// Takes received bytes; without any, the stream has ended.
    pub(super) fn take(&self, bytes: Vec<u8>) -> io::Result<()> {
        if self.has_ended.fetch_or(bytes.is_empty(), Ordering::Relaxed) {
            return Err(malformed("the stream has ended before"));
        }
        let before = self.waiting.fetch_add(bytes.len(), Ordering::Relaxed);
        if before + bytes.len() > WINDOW {
            return Err(malformed("more was sent than may be under way"));
        }
        // It fails when nothing reads the stream any more.
        let _ = self.queue.send(bytes);
        Ok(())
    }

    /// Waits until all is written.
    pub(super) fn finish(self) {
        drop(self.queue);
        // The thread has only returned or is about to.
        let _ = self.writing.join();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::frames::tests::pair;
    use super::super::frames::{Frame, Receiver, split};
    use super::*;

    /// A sender, and the frames that come out at the other end.
    fn channel_of_frames() -> (Sender, Receiver) {
        let (near, far) = pair();
        let socket = far.try_clone().unwrap();
        let ends = (split(near, None).unwrap().1, split(far, None).unwrap().0);
        let patience = Some(Duration::from_millis(200));
        socket.set_read_timeout(patience).unwrap();
        ends
    }

    fn bytes_until_silence(receiver: &mut Receiver) -> usize {
        let mut count = 0;
        while let Ok(Frame::Data(Stream::Output, bytes)) = receiver.receive() {
            count += bytes.len();
        }
        count
    }

    #[test]
    fn no_more_than_a_window_is_under_way() {
        let (sender, mut receiver) = channel_of_frames();
        let endless = File::open("/dev/zero").unwrap();
        let credit = Credit::new();
        let given = Arc::clone(&credit);
        let pass = move || pass_on(endless.into(), Stream::Output, &given, &sender, None);
        let passing = threads::start(pass).unwrap();
        assert_eq!(bytes_until_silence(&mut receiver), WINDOW);
        assert!(credit.add(WINDOW + 1).is_err(), "more than was sent");
        credit.add(1000).unwrap();
        assert_eq!(bytes_until_silence(&mut receiver), 1000);
        credit.close();
        passing.join().unwrap().unwrap();
        let last = receiver.receive().unwrap();
        assert_eq!(last, Frame::Data(Stream::Output, vec![]));
    }

    #[test]
    fn after_the_end_only_what_is_there_is_sent() {
        let (sender, mut receiver) = channel_of_frames();
        let (reader, mut writer) = io::pipe().unwrap();
        let (over, ended) = io::pipe().unwrap();
        writer.write_all(&[1; 5000]).unwrap();
        drop(ended);
        // Processes that the command has left behind have the other end.
        let credit = Credit::new();
        let over = over.into();
        pass_on(reader.into(), Stream::Output, &credit, &sender, Some(&over)).unwrap();
        assert_eq!(bytes_until_silence(&mut receiver), 5000);
    }

    #[test]
    fn a_sink_holds_no_more_than_a_window_and_says_when_nothing_reads_it() {
        let (sender, mut receiver) = channel_of_frames();
        let (reader, writer) = io::pipe().unwrap();
        let sink = Sink::start(writer.into(), Stream::Output, sender).unwrap();
        for _ in 0..WINDOW / MAX_DATA {
            sink.take(vec![2; MAX_DATA]).unwrap();
        }
        // The pipe has taken some of it.
        let over = (0..=WINDOW / MAX_DATA).find_map(|_| sink.take(vec![2; MAX_DATA]).err());
        assert!(over.is_some(), "a hostile sender fills the memory");
        drop(reader);
        let mut notices = std::iter::from_fn(|| receiver.receive().ok());
        let closed = Frame::Notice(Notice::Closed(Stream::Output));
        assert!(notices.any(|frame| frame == closed));
        sink.finish();
    }

    #[test]
    fn a_stream_ends_once() {
        let (sender, _receiver) = channel_of_frames();
        let (_reader, writer) = io::pipe().unwrap();
        let sink = Sink::start(writer.into(), Stream::Output, sender).unwrap();
        sink.take(vec![]).unwrap();
        assert!(sink.take(vec![]).is_err(), "empty frames fill the memory");
        sink.finish();
    }

    #[test]
    fn files_that_others_have_made_non_blocking_lose_nothing() {
        let (sender, mut receiver) = channel_of_frames();
        let (reader, writer) = io::pipe().unwrap();
        for end in [reader.as_fd(), writer.as_fd()] {
            rustix::io::ioctl_fionbio(end, true).unwrap();
        }
        let sink = Sink::start(writer.into(), Stream::Output, sender.clone()).unwrap();
        let credit = Credit::new();
        let given = Arc::clone(&credit);
        let pass = move || pass_on(reader.into(), Stream::Output, &given, &sender, None);
        let passing = threads::start(pass).unwrap();
        std::thread::sleep(Duration::from_millis(20));
        for _ in 0..WINDOW / MAX_DATA {
            sink.take(vec![3; MAX_DATA]).unwrap();
        }
        let mut count = 0;
        while count < WINDOW {
            // Between them are notices of the sink.
            if let Frame::Data(_, bytes) = receiver.receive().unwrap() {
                count += bytes.len();
            }
        }
        sink.take(vec![]).unwrap();
        sink.finish();
        credit.add(1).unwrap();
        passing.join().unwrap().unwrap();
    }
}
