//! Lifelines: what a process hangs on that shall outlive the agent that started it.
//!
//! A lifeline is a connection whose other end others hold; when the last of them has gone, so has
//! the reason for the process. Little is said on it, because an agent that is killed in the middle
//! of a sentence would leave its successor with the other half. What there is to say is said on
//! *sessions*: connections of their own, one of whose ends travels over the lifeline. That takes
//! one message so short that the kernel takes it whole or not at all.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use serde::{Deserialize, Serialize};

use crate::wire::{Reader, WireError, Writer};

/// What is said on a lifeline; one descriptor comes along.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(tag = "order", rename_all = "snake_case")]
enum Order {
    /// Here is an end of a session.
    Session,
}

/// The end on which a process hangs.
#[derive(Debug)]
pub struct Lifeline(Reader);

impl Lifeline {
    /// The lifeline whose end `orders` is.
    pub fn new(orders: Reader) -> Self {
        Lifeline(orders)
    }

    /// Waits for the next session. One whose end this process had no room for is passed over; who
    /// holds its other end sees it end.
    ///
    /// # Errors
    /// [`WireError::Closed`] when there is nobody any more.
    pub fn next_session(&mut self) -> Result<UnixStream, WireError> {
        loop {
            let (Order::Session, descriptors) = self.0.receive()?;
            if let Some(session) = descriptors.into_iter().next() {
                return Ok(session.into());
            }
        }
    }
}

/// Opens a session with whoever hangs on `lifeline`, and returns the near end.
///
/// # Errors
/// The system's. When the other side has gone, the session has an end already.
pub fn open_session(lifeline: &Writer) -> io::Result<UnixStream> {
    let (ours, theirs) = UnixStream::pair()?;
    // If it fails, `theirs` is closed, which tells all that there is to tell.
    let _ = lifeline.send(&Order::Session, &[theirs.as_fd()]);
    Ok(ours)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use super::*;
    use crate::wire;

    #[test]
    fn sessions_arrive_in_order_until_the_last_holder_has_gone() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let kept = ours.try_clone().unwrap();
        let mut lifeline = Lifeline::new(wire::split(theirs).unwrap().0);
        let (reader, writer) = wire::split(ours).unwrap();
        for text in ["one", "two"] {
            let mut session = open_session(&writer).unwrap();
            session.write_all(text.as_bytes()).unwrap();
            drop(session);
            let mut read = String::new();
            let mut session = lifeline.next_session().unwrap();
            session.read_to_string(&mut read).unwrap();
            assert_eq!(read, text);
        }
        drop((reader, writer));
        let (_, writer) = wire::split(kept).unwrap();
        let session = open_session(&writer).unwrap();
        drop(lifeline.next_session().unwrap());
        drop((session, writer));
        let end = lifeline.next_session();
        assert!(matches!(end, Err(WireError::Closed)), "{end:?}");
    }

    #[test]
    fn a_session_with_nobody_has_ended() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (_, writer) = wire::split(ours).unwrap();
        drop(theirs);
        let mut session = open_session(&writer).unwrap();
        assert_eq!(session.read(&mut [0]).unwrap(), 0);
    }
}
