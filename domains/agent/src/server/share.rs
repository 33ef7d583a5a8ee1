//! Memory of the agent for requests: a share for each node's connections, and for each user's to
//! the control socket.
//!
//! Long replies, such as the list of all nodes, take turns, too: one for each user at a time, and a
//! few for all.
//!
//! A connection needs little. Requests are short, except the `resume` of a process with thousands
//! of regions, and a command with a long environment. Only one such long request of a share is read
//! at a time, and it must arrive in time.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use toroid_protocol::agent::Request;
use toroid_protocol::wire::MAX_PAYLOAD;
use toroid_protocol::wire::{Reader, WireError};

use crate::slots::{Slot, Slots};

/// Longest payload that is read beside others.
pub(super) const SHORT: u32 = 64 * 1024;

/// Longest `resume`: of a process that holds as many regions, channels and listeners as one may.
const LONGEST_RESUME: u32 = 256 * 1024;

/// Time in which a long request has to arrive, once its turn has come.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Bytes of requests that all connections of a share may have waiting before each of them is
/// held to `FEW`.
const PLENTY: usize = 16 << 20;

/// Bytes of requests that a connection may always have waiting.
const FEW: usize = 64 * 1024;

/// Long replies to users that are made and sent at a time. Each takes up to three times
/// [`MAX_REPLY`](toroid_protocol::wire::MAX_REPLY) of memory.
const LONG_REPLIES: usize = 4;

/// Memory shared by the connections of one node or one user.
#[derive(Debug)]
pub(crate) struct Share {
    /// For the long reply of this share, and for those of all shares of a socket.
    replies: [Arc<Slots>; 2],
    /// Held while a long request is read.
    turn: Mutex<()>,
    /// Bytes of requests that wait to be served.
    waiting: AtomicUsize,
}

impl Default for Share {
    fn default() -> Self {
        Self::among(&Self::all())
    }
}

impl Share {
    /// Slots for the long replies of all shares of a socket.
    pub(super) fn all() -> Arc<Slots> {
        Arc::new(Slots::new(LONG_REPLIES))
    }

    /// A share of a socket whose long replies have these slots.
    pub(super) fn among(all: &Arc<Slots>) -> Self {
        Share {
            replies: [Arc::new(Slots::new(1)), Arc::clone(all)],
            turn: Mutex::default(),
            waiting: AtomicUsize::new(0),
        }
    }

    /// Waits until a long reply may be made. One user's wait for each other before they take slots
    /// of all.
    pub(super) fn take_reply(&self) -> [Slot<'_>; 2] {
        self.replies.each_ref().map(|slots| slots.take())
    }

    /// Waits for the next request to the control socket.
    pub(crate) fn receive(&self, reader: &mut Reader) -> Result<Request, WireError> {
        self.receive_at_most(reader, MAX_PAYLOAD)
    }

    /// Waits for the next request of a process in a node. Only a `resume` may be long.
    pub(super) fn receive_from_node(&self, reader: &mut Reader) -> Result<Request, WireError> {
        let len = reader.announced()?;
        let request = self.receive_at_most(reader, LONGEST_RESUME)?;
        if len > SHORT && !matches!(request, Request::Resume { .. }) {
            return Err(WireError::Malformed(format!(
                "a frame of {len} bytes is over the limit of {SHORT} for requests of nodes"
            )));
        }
        Ok(request)
    }

    fn receive_at_most(&self, reader: &mut Reader, longest: u32) -> Result<Request, WireError> {
        let len = reader.announced()?;
        if len <= SHORT {
            return Ok(reader.receive()?.0);
        }
        // A request over the limit is refused at once, without waiting for a turn.
        let turn = || self.turn.lock();
        let _turn = (len <= longest).then(turn);
        Ok(reader.receive_first(longest, Instant::now() + TIMEOUT)?.0)
    }

    /// Bytes of requests that a connection may have waiting, at most `most`.
    pub(crate) fn allows(&self, most: usize) -> usize {
        // Relaxed: a bound on memory, which need not be exact.
        if self.waiting.load(Ordering::Relaxed) > PLENTY {
            most.min(FEW)
        } else {
            most
        }
    }

    /// Counts bytes of a request that waits.
    pub(crate) fn add(&self, bytes: usize) {
        self.waiting.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Counts bytes of requests that no longer wait.
    pub(crate) fn remove(&self, bytes: usize) {
        self.waiting.fetch_sub(bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::UnixStream;
    use std::thread;

    use toroid_protocol::wire;

    use super::*;

    fn connection() -> (Reader, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        (wire::split(ours).unwrap().0, theirs)
    }

    /// A frame of so many bytes of payload.
    fn frame(json: &str, len: usize) -> Vec<u8> {
        let padding = " ".repeat(len.saturating_sub(json.len()));
        let payload = json.to_owned() + &padding;
        [
            &(payload.len() as u32).to_le_bytes()[..],
            &[0; 4],
            payload.as_bytes(),
        ]
        .concat()
    }

    fn resume(regions: usize) -> String {
        let regions = vec!["1234567"; regions].join(",");
        format!(
            r#"{{"request":"resume","attachment":1,"secret":"","regions":[{regions}],"channels":[],"listeners":[]}}"#
        )
    }

    /// Sends from a thread, because a socket's buffer does not hold a long frame.
    fn receive(share: &Share, bytes: &[u8]) -> Result<Request, WireError> {
        let (mut reader, mut theirs) = connection();
        thread::scope(|scope| {
            // The write fails once the other side has read enough.
            scope.spawn(move || theirs.write_all(bytes));
            let received = share.receive_from_node(&mut reader);
            drop(reader);
            received
        })
    }

    /// A node could once make the agent hold 16 MiB for each of its connections.
    #[test]
    fn requests_of_nodes_are_short() {
        let share = Share::default();
        let status = r#"{"request":"status"}"#;
        assert_eq!(
            receive(&share, &frame(status, SHORT as usize)).unwrap(),
            Request::Status
        );
        let error = receive(&share, &frame(status, SHORT as usize + 1)).unwrap_err();
        assert_eq!(
            error.to_string(),
            "malformed message: a frame of 65537 bytes is over the limit of 65536 for requests of nodes"
        );
        // Refused when it is announced: nothing of it need come.
        let announced = (LONGEST_RESUME + 1).to_le_bytes();
        let error = receive(&share, &[&announced[..], &[0; 4]].concat()).unwrap_err();
        assert_eq!(
            error.to_string(),
            "malformed message: a frame of 262145 bytes and 0 descriptors is over the limit of \
             262144 bytes and 16 descriptors"
        );
    }

    /// A process with all the grants it may have must not lose them when an agent is killed.
    #[test]
    fn a_long_resume_arrives() {
        let share = Share::default();
        let long = resume(12_000);
        assert!(long.len() > SHORT as usize);
        let received = receive(&share, &frame(&long, 0)).unwrap();
        assert!(matches!(received, Request::Resume { regions, .. } if regions.len() == 12_000));
    }

    #[test]
    fn one_long_request_of_a_share_is_read_at_a_time() {
        let share = Share::default();
        let (mut first, mut to_first) = connection();
        let long = frame(&resume(12_000), 0);
        thread::scope(|scope| {
            let turn = share.turn.lock();
            let second = scope.spawn(|| receive(&share, &long));
            // Short requests and those of other shares pass meanwhile.
            to_first
                .write_all(&frame(r#"{"request":"status"}"#, 0))
                .unwrap();
            assert_eq!(
                share.receive_from_node(&mut first).unwrap(),
                Request::Status
            );
            receive(&Share::default(), &long).unwrap();
            assert!(!second.is_finished());
            drop(turn);
            second.join().unwrap().unwrap();
        });
    }

    #[test]
    fn a_share_that_is_full_leaves_each_connection_a_little() {
        let share = Share::default();
        assert_eq!(share.allows(1 << 20), 1 << 20);
        share.add(PLENTY + 1);
        assert_eq!(share.allows(1 << 20), FEW);
        share.remove(1);
        assert_eq!(share.allows(1 << 20), 1 << 20);
    }

    /// One user could once make the agent hold 64 MiB for each of 64 connections.
    #[test]
    fn a_user_has_one_long_reply_at_a_time_and_all_have_a_few() {
        let all = Share::all();
        let shares: Vec<Share> = (0..=LONG_REPLIES).map(|_| Share::among(&all)).collect();
        let several: Vec<_> = shares[1..].iter().map(Share::take_reply).collect();
        drop(several);
        let of_all = AtomicUsize::new(0);
        let answer = |share: &Share, of_share: &AtomicUsize| {
            for _ in 0..100 {
                let _slots = share.take_reply();
                let counts = [(of_share, 1), (&of_all, LONG_REPLIES)];
                for (count, most) in counts {
                    assert!(count.fetch_add(1, Ordering::SeqCst) < most);
                }
                thread::yield_now();
                for (count, _) in counts {
                    count.fetch_sub(1, Ordering::SeqCst);
                }
            }
        };
        let counts: Vec<AtomicUsize> = shares.iter().map(|_| AtomicUsize::new(0)).collect();
        thread::scope(|scope| {
            for (share, count) in shares.iter().zip(&counts) {
                for _ in 0..2 {
                    scope.spawn(|| answer(share, count));
                }
            }
        });
    }
}
