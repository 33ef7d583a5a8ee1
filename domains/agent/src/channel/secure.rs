//! Sessions after their [`handshake`](super::handshake): messages of any length.
//!
//! ```text
//!  0        2
//!  +--------+------------------------------+
//!  | length | ciphertext and tag           |   a record; length is little endian
//!  +--------+------------------------------+
//! ```
//!
//! The plain texts of records, one after another, are messages: length (u32, little endian), then
//! JSON. A message begins with a record of its own.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde::Serialize;
use serde::de::DeserializeOwned;
use snow::{HandshakeState, StatelessTransportState};
use toroid_protocol::wire::MAX_PAYLOAD;
use toroid_protocol::wire::is_too_deep;

use super::SessionError;
use super::handshake::Peer;
use super::opening::{OPENING, Opening, PROOF, VERSIONS, Word};

/// Bytes that encryption adds to a record.
const TAG: usize = 16;

/// The longest record, and the longest plain text in one.
const MAX_RECORD: usize = 65_535;
const MAX_TEXT: usize = MAX_RECORD - TAG;

/// Bytes of a message's length.
const LENGTH: usize = 4;

/// Time to connect and exchange openings.
pub(crate) const HANDSHAKE: Duration = Duration::from_secs(5);

/// Time that a side may be silent, or not read. Both sides say something much more often.
pub(crate) const SILENCE: Duration = Duration::from_secs(5);

/// An open session.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) reader: Reader,
    pub(crate) writer: Writer,
    /// Agreed version of the protocol.
    pub(crate) version: u8,
    pub(crate) peer: Peer,
}

/// Answers an opening with the reason of its rejection. A new connection's buffer has room for
/// that.
pub(crate) fn refuse(stream: &TcpStream, word: Word) {
    let mut stream = stream;
    // If the write fails nevertheless, the other side sees the end of the connection.
    let _ = stream.write_all(&Opening::new(word, [0; PROOF]).bytes());
}

pub(super) fn read_answer(
    stream: &TcpStream,
    deadline: Instant,
) -> Result<Opening<Word>, SessionError> {
    let mut bytes = [0; OPENING];
    read_until(stream, &mut bytes, deadline)?;
    let answer = Opening::<Word>::parse(&bytes).ok_or(SessionError::NoAgent)?;
    match answer.word {
        Word::Welcome => Ok(answer),
        Word::Version => Err(SessionError::Version {
            ours: VERSIONS,
            theirs: answer.versions,
        }),
        Word::Busy => Err(SessionError::Busy),
        Word::BadTicket => Err(SessionError::BadTicket),
        Word::Cipher => Err(SessionError::Cipher),
    }
}

/// Fills `bytes`, and gives up at the deadline however slowly bytes come.
pub(super) fn read_until(
    mut stream: &TcpStream,
    bytes: &mut [u8],
    deadline: Instant,
) -> Result<(), SessionError> {
    let mut read = 0;
    while read < bytes.len() {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::Error::from(io::ErrorKind::TimedOut).into());
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut bytes[read..]) {
            Ok(0) => return Err(SessionError::Closed),
            Ok(count) => read += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(broken(error)),
        }
    }
    Ok(())
}

/// Classifies an error of the stream.
fn broken(error: io::Error) -> SessionError {
    match error.kind() {
        io::ErrorKind::UnexpectedEof
        | io::ErrorKind::BrokenPipe
        | io::ErrorKind::ConnectionReset => SessionError::Closed,
        _ => timed_out(error).into(),
    }
}

/// Converts the error of a socket's time-out, which is `WouldBlock`.
fn timed_out(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::WouldBlock => io::ErrorKind::TimedOut.into(),
        _ => error,
    }
}

impl Session {
    pub(super) fn new(
        stream: Arc<TcpStream>,
        handshake: HandshakeState,
        version: u8,
        peer: Peer,
    ) -> Result<Self, SessionError> {
        let cipher = handshake.into_stateless_transport_mode();
        let cipher = Arc::new(cipher.map_err(|_| SessionError::Altered)?);
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(SILENCE))?;
        stream.set_write_timeout(Some(SILENCE))?;
        let reader = Reader {
            stream: Arc::clone(&stream),
            cipher: Arc::clone(&cipher),
            nonce: 0,
        };
        let writer = Writer(Arc::new(Sending {
            stream,
            cipher,
            nonce: Mutex::new(0),
        }));
        Ok(Session {
            reader,
            writer,
            version,
            peer,
        })
    }
}

/// Receiving half of a session. The session ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Reader {
    stream: Arc<TcpStream>,
    cipher: Arc<StatelessTransportState>,
    /// Number of the next record.
    nonce: u64,
}

impl Reader {
    /// Waits for the next message, at most [`SILENCE`] for each of its parts.
    ///
    /// # Errors
    /// [`SessionError`]; the session is useless afterwards.
    pub(crate) fn receive<T: DeserializeOwned>(&mut self) -> Result<T, SessionError> {
        let first = self.record()?;
        let Some((length, begin)) = first.split_first_chunk::<LENGTH>() else {
            return Err(SessionError::Malformed("it has no length".into()));
        };
        let length = u32::from_le_bytes(*length);
        if length > MAX_PAYLOAD {
            let message = format!("{length} bytes are announced, and {MAX_PAYLOAD} are the limit");
            return Err(SessionError::Malformed(message));
        }
        let length = length as usize;
        let mut text = begin.to_vec();
        // Memory is allocated for received bytes, not for announced ones.
        while text.len() < length {
            text.extend(self.record()?);
        }
        if text.len() > length {
            let message = "it is longer than announced";
            return Err(SessionError::Malformed(message.into()));
        }
        if is_too_deep(&text) {
            return Err(SessionError::Malformed("it nests too deeply".into()));
        }
        serde_json::from_slice(&text).map_err(|error| SessionError::Malformed(error.to_string()))
    }

    fn record(&mut self) -> Result<Vec<u8>, SessionError> {
        let mut length = [0; 2];
        self.read(&mut length)?;
        let length = usize::from(u16::from_le_bytes(length));
        let mut sealed = vec![0; length];
        self.read(&mut sealed)?;
        let mut text = vec![0; sealed.len()];
        let opened = self.cipher.read_message(self.nonce, &sealed, &mut text);
        let length = opened.map_err(|_| SessionError::Altered)?;
        // Empty records would keep this side busy for nothing.
        if length == 0 {
            return Err(SessionError::Malformed("it has an empty record".into()));
        }
        text.truncate(length);
        self.nonce += 1;
        Ok(text)
    }

    fn read(&mut self, bytes: &mut [u8]) -> Result<(), SessionError> {
        let mut stream = &*self.stream;
        stream.read_exact(bytes).map_err(broken)
    }

    /// Waits until the other side has ended the session, because of the last message to it. A
    /// connection that is closed too early may lose that message.
    pub(crate) fn see_off(self) {
        let deadline = Instant::now() + HANDSHAKE;
        let mut nothing = [0; 512];
        while read_until(&self.stream, &mut nothing, deadline).is_ok() {}
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        shut_down(&self.stream);
    }
}

/// Sending half of a session. Clones share it; messages never interleave.
#[derive(Clone, Debug)]
pub(crate) struct Writer(Arc<Sending>);

#[derive(Debug)]
struct Sending {
    stream: Arc<TcpStream>,
    cipher: Arc<StatelessTransportState>,
    /// Number of the next record. Locked while a message is sent.
    nonce: Mutex<u64>,
}

impl Writer {
    /// Sends a message.
    ///
    /// # Errors
    /// [`SessionError::TooLong`]; after any other, the session has been ended.
    pub(crate) fn send<T: Serialize>(&self, message: &T) -> Result<(), SessionError> {
        let mut text = vec![0; LENGTH];
        serde_json::to_writer(&mut text, message)
            .map_err(|error| SessionError::Malformed(error.to_string()))?;
        let len = text.len() - LENGTH;
        let length = u32::try_from(len).ok().filter(|len| *len <= MAX_PAYLOAD);
        let length = length.ok_or(SessionError::TooLong { len })?;
        text[..LENGTH].copy_from_slice(&length.to_le_bytes());
        let mut nonce = self.0.nonce.lock();
        for part in text.chunks(MAX_TEXT) {
            let sent = self.send_record(*nonce, part);
            sent.inspect_err(|_| self.shut_down())?;
            *nonce += 1;
        }
        Ok(())
    }

    fn send_record(&self, nonce: u64, text: &[u8]) -> Result<(), SessionError> {
        let mut record = vec![0; 2 + text.len() + TAG];
        let sealed = self.0.cipher.write_message(nonce, text, &mut record[2..]);
        let length = sealed.map_err(|_| SessionError::Altered)?;
        // A record is no longer than MAX_RECORD, because its text is no longer than MAX_TEXT.
        record[..2].copy_from_slice(&(length as u16).to_le_bytes());
        let mut stream = &*self.0.stream;
        stream.write_all(&record).map_err(broken)
    }

    /// Ends the session.
    pub(crate) fn shut_down(&self) {
        shut_down(&self.0.stream);
    }
}

fn shut_down(stream: &TcpStream) {
    // This fails only after the connection has ended.
    let _ = stream.shutdown(Shutdown::Both);
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;
    use crate::channel::handshake::tests::meet;

    fn pair() -> [Session; 2] {
        meet(1, 1).map(Result::unwrap)
    }

    #[test]
    fn messages_of_any_length_arrive_both_ways() {
        let [mut ours, mut theirs] = pair();
        assert_eq!((ours.version, theirs.version), (VERSIONS.1, VERSIONS.1));
        for length in [0, 1, MAX_TEXT - 6, MAX_TEXT, 3 << 20] {
            let text = "x".repeat(length);
            thread::scope(|scope| {
                scope.spawn(|| ours.writer.send(&text).unwrap());
                assert_eq!(theirs.reader.receive::<String>().unwrap(), text);
                theirs.writer.send(&length).unwrap();
                assert_eq!(ours.reader.receive::<usize>().unwrap(), length);
            });
        }
        drop(ours);
        let end = theirs.reader.receive::<String>().unwrap_err();
        assert!(matches!(end, SessionError::Closed), "{end}");
    }

    /// Each session that failed early once left a thread and a socket, because the thread that
    /// sends `Alive` had a writer, too.
    #[test]
    fn a_session_ends_with_its_reader() {
        let [ours, mut theirs] = pair();
        let writer = ours.writer.clone();
        drop(ours);
        theirs.reader.receive::<String>().unwrap_err();
        writer.send(&"text").unwrap_err();
    }

    #[test]
    fn an_altered_or_malformed_message_ends_the_session() {
        let [ours, mut theirs] = pair();
        ours.writer.send(&"text").unwrap();
        // A repeated record has the wrong number.
        theirs.reader.receive::<String>().unwrap();
        theirs.reader.nonce = 0;
        ours.writer.send(&"text").unwrap();
        let error = theirs.reader.receive::<String>().unwrap_err();
        assert!(matches!(error, SessionError::Altered), "{error}");

        let longer = [&20_u32.to_le_bytes()[..], &[b'1'; 21]].concat();
        let endless = (MAX_PAYLOAD + 1).to_le_bytes().to_vec();
        for plain in [vec![], vec![0; 3], longer, endless, vec![1, 0, 0, 0, b'{']] {
            let [ours, mut theirs] = pair();
            ours.writer.send_record(0, &plain).unwrap();
            let error = theirs.reader.receive::<String>().unwrap_err();
            assert!(matches!(error, SessionError::Malformed(_)), "{error}");
        }
        let [ours, mut theirs] = pair();
        let deep = serde_json::from_str::<serde_json::Value>(&format!(
            "{}1{}",
            "[".repeat(20),
            "]".repeat(20)
        ));
        ours.writer.send(&deep.unwrap()).unwrap();
        let error = theirs.reader.receive::<serde_json::Value>().unwrap_err();
        assert!(matches!(error, SessionError::Malformed(_)), "{error}");
    }
}
