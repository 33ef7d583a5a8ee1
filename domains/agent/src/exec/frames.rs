//! Frames on the data connection of a command.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rustix::net::sockopt;
use toroid_fabric::tcp::secure::{Incoming, Sealing};
use toroid_protocol::command::{MAX_DATA, MAX_NOTICE, Notice, Stream};
use toroid_protocol::seal::SealKeys;

/// Bytes of received text that may wait.
const ROOM: usize = 64 * 1024;

/// Time in which the other host must show that it is there: idle time before keepalive probes, of
/// which three follow, and the longest time without an acknowledgement.
const IDLE: Duration = Duration::from_secs(15);
const PROBE: Duration = Duration::from_secs(5);
const UNACKNOWLEDGED: Duration = Duration::from_secs(30);

/// Tag of a notice.
const NOTICE: u8 = 3;

/// A received frame.
#[derive(Debug, PartialEq)]
pub(super) enum Frame {
    /// Bytes of a stream; none at its end.
    Data(Stream, Vec<u8>),
    Notice(Notice),
}

/// The sending half of a connection.
#[derive(Clone, Debug)]
pub(super) struct Sender(Arc<Mutex<Outgoing>>);

#[derive(Debug)]
struct Outgoing {
    stream: TcpStream,
    sealing: Option<Sealing>,
}

/// The receiving half.
#[derive(Debug)]
pub(super) struct Receiver {
    stream: TcpStream,
    incoming: Incoming,
}

/// Splits a connection, whose frames are sealed if there are keys.
pub(super) fn split(stream: TcpStream, keys: Option<&SealKeys>) -> io::Result<(Receiver, Sender)> {
    stream.set_nodelay(true)?;
    // The handshake has set others.
    stream.set_write_timeout(None)?;
    stream.set_read_timeout(None)?;
    sockopt::set_socket_keepalive(&stream, true)?;
    sockopt::set_tcp_keepidle(&stream, IDLE)?;
    sockopt::set_tcp_keepintvl(&stream, PROBE)?;
    sockopt::set_tcp_keepcnt(&stream, 3)?;
    sockopt::set_tcp_user_timeout(&stream, UNACKNOWLEDGED.as_millis() as u32)?;
    let keys = keys.map(|SealKeys(keys)| keys);
    let outgoing = Outgoing {
        stream: stream.try_clone()?,
        sealing: keys.map(Sealing::new),
    };
    let incoming = Incoming::new(ROOM, keys);
    let receiver = Receiver { stream, incoming };
    Ok((receiver, Sender(Arc::new(Mutex::new(outgoing)))))
}

impl Sender {
    /// Sends bytes of a stream, at most [`MAX_DATA`]; without any, its end.
    pub(super) fn data(&self, stream: Stream, bytes: &[u8]) -> io::Result<()> {
        self.0.lock().send(stream as u8, bytes)
    }

    pub(super) fn notice(&self, notice: &Notice) -> io::Result<()> {
        self.0.lock().send(NOTICE, &serde_json::to_vec(notice)?)
    }
}

impl Outgoing {
    /// After a failure, which may have sent a part, the connection has ended.
    fn send(&mut self, tag: u8, payload: &[u8]) -> io::Result<()> {
        self.try_send(tag, payload).inspect_err(|_| {
            // It fails when the connection has ended already.
            let _ = self.stream.shutdown(Shutdown::Both);
        })
    }

    fn try_send(&mut self, tag: u8, payload: &[u8]) -> io::Result<()> {
        let mut header = [tag; 5];
        header[1..].copy_from_slice(&(payload.len() as u32).to_le_bytes());
        match &mut self.sealing {
            Some(sealing) => {
                sealing.write(&header);
                sealing.write(payload);
                match sealing.flush(|bytes| self.stream.write(bytes)) {
                    Ok(true) => Ok(()),
                    // The socket blocks.
                    Ok(false) => Err(io::ErrorKind::TimedOut.into()),
                    Err(error) => Err(error),
                }
            }
            None => self.stream.write_all(&[&header, payload].concat()),
        }
    }
}

impl Receiver {
    /// Waits for the next frame.
    pub(super) fn receive(&mut self) -> io::Result<Frame> {
        let mut header = [0; 5];
        self.read_exact(&mut header)?;
        let [tag, length @ ..] = header;
        let length = u32::from_le_bytes(length) as usize;
        let (stream, most) = match tag {
            0 => (Some(Stream::Input), MAX_DATA),
            1 => (Some(Stream::Output), MAX_DATA),
            2 => (Some(Stream::Error), MAX_DATA),
            NOTICE => (None, MAX_NOTICE),
            _ => return Err(malformed("a frame has an unknown tag")),
        };
        if length > most {
            return Err(malformed("a frame is too long"));
        }
        let mut payload = vec![0; length];
        self.read_exact(&mut payload)?;
        Ok(match stream {
            Some(stream) => Frame::Data(stream, payload),
            None => Frame::Notice(serde_json::from_slice(&payload)?),
        })
    }
}

/// Opened text.
impl Read for Receiver {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        while self.incoming.text().is_empty() {
            let count = self.stream.read(self.incoming.place())?;
            if count == 0 {
                return self.incoming.check_end().map_or_else(
                    |error| Err(io::Error::new(io::ErrorKind::InvalidData, error)),
                    |()| Ok(0),
                );
            }
            let received = self.incoming.received(count);
            received.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        }
        let count = into.len().min(self.incoming.text().len());
        into[..count].copy_from_slice(self.incoming.take(count));
        Ok(count)
    }
}

/// Error of a peer that breaks the protocol.
pub(super) fn malformed(mistake: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, mistake)
}

#[cfg(test)]
pub(super) mod tests {
    use std::net::TcpListener;

    use toroid_fabric::tcp::secure::{Cipher, KEY, Keys};

    use super::*;

    pub(crate) fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (ours, listener.accept().unwrap().0)
    }

    fn keys() -> Keys {
        Keys {
            cipher: Cipher::ChaChaPoly,
            send: [1; KEY],
            receive: [2; KEY],
        }
    }

    #[test]
    fn frames_round_trip_sealed_and_clear() {
        for sealed in [false, true] {
            let ours = sealed.then(|| SealKeys(keys()));
            let theirs = sealed.then(|| SealKeys(keys().mirrored()));
            let (near, far) = pair();
            let (_receiver, sender) = split(near, ours.as_ref()).unwrap();
            let (mut receiver, _sender) = split(far, theirs.as_ref()).unwrap();
            let long = vec![7; MAX_DATA];
            let sending = std::thread::spawn(move || {
                for bytes in [&b"abc"[..], b"", &long] {
                    sender.data(Stream::Error, bytes).unwrap();
                }
                sender.notice(&Notice::Signal(2)).unwrap();
            });
            for length in [3, 0, MAX_DATA] {
                let frame = receiver.receive().unwrap();
                assert!(
                    matches!(&frame, Frame::Data(Stream::Error, bytes) if bytes.len() == length),
                    "{frame:?}"
                );
            }
            let last = receiver.receive().unwrap();
            assert_eq!(last, Frame::Notice(Notice::Signal(2)));
            sending.join().unwrap();
        }
    }

    #[test]
    fn frames_that_are_malformed_or_too_long_are_refused() {
        let too_long = (MAX_DATA as u32 + 1).to_le_bytes();
        for bytes in [
            [&[9][..], &[0; 4]].concat(),
            [&[1][..], &too_long].concat(),
            [&[3][..], &u32::MAX.to_le_bytes()].concat(),
            [&[3][..], &2_u32.to_le_bytes(), b"{}"].concat(),
        ] {
            let (mut near, far) = pair();
            near.write_all(&bytes).unwrap();
            let (mut receiver, _sender) = split(far, None).unwrap();
            let error = receiver.receive().unwrap_err();
            assert_ne!(error.kind(), io::ErrorKind::UnexpectedEof, "{bytes:?}");
        }
    }
}
