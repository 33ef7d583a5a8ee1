//! Bytes that wait on either side of a tunnel.

use std::collections::VecDeque;
use std::io::{self, IoSlice, Read, Write};

use toroid_fabric::tcp::secure::{Incoming, Keys, Sealing};

use super::header::{Message, MessageHeader, ProtocolViolation, TunnelHeader};
use super::signal::Signal;
use crate::offload::MAX_PACKET;

/// Limit of a send queue in bytes: some tens of milliseconds at a gigabit per second. A sender should learn
/// of a longer delay.
const MAX_QUEUED: usize = 4 << 20;

/// Packets shorter than this are collected, and sent in one call.
const SHORT: usize = 16 << 10;

/// Bytes that are sealed before they are sent.
const SEALED: usize = 128 << 10;

/// Bytes of a receive buffer. A header and a packet fit beside them, and the buffer limits how many shorter
/// packets delay others.
const RECEIVE_BUFFER: usize = 2 * (TunnelHeader::LEN + MAX_PACKET);

/// Bytes that have arrived and are not processed yet.
#[derive(Debug)]
pub struct ReceiveBuffer(Incoming);

impl Default for ReceiveBuffer {
    /// A buffer of clear bytes.
    fn default() -> Self {
        ReceiveBuffer::new(None)
    }
}

impl ReceiveBuffer {
    /// A buffer of sealed bytes, or of clear ones without keys.
    pub fn new(keys: Option<&Keys>) -> Self {
        ReceiveBuffer(Incoming::new(RECEIVE_BUFFER, keys))
    }

    /// Reads once; returns the number of bytes.
    ///
    /// # Errors
    /// The system's; [`io::ErrorKind::UnexpectedEof`] at the end; a
    /// [`RecordError`](toroid_fabric::tcp::secure::RecordError).
    pub fn fill(&mut self, mut from: impl Read) -> io::Result<usize> {
        self.0.compact();
        // There is room, because less than one message is left.
        match from.read(self.0.place())? {
            0 => {
                self.0.check_end().map_err(io::Error::other)?;
                Err(io::ErrorKind::UnexpectedEof.into())
            }
            len => {
                self.0.received(len).map_err(io::Error::other)?;
                Ok(len)
            }
        }
    }

    /// Whether the next message, or a protocol violation, is complete.
    pub(crate) fn has_next(&self) -> bool {
        let bytes = self.0.text();
        bytes.first_chunk().is_some_and(|header| {
            let is_complete = |len| TunnelHeader::LEN + len <= bytes.len();
            MessageHeader::read(header).map_or(true, |header| is_complete(header.body_len()))
        })
    }

    /// The next message, if it is complete.
    ///
    /// # Errors
    /// [`ProtocolViolation`], from then on.
    pub fn next_message(&mut self) -> Result<Option<Message<'_>>, ProtocolViolation> {
        let Some(header) = self.0.text().first_chunk() else {
            return Ok(None);
        };
        let header = MessageHeader::read(header)?;
        let len = TunnelHeader::LEN + header.body_len();
        if self.0.text().len() < len {
            return Ok(None);
        }
        let body = &self.0.take(len)[TunnelHeader::LEN..];
        Ok(Some(match header {
            MessageHeader::Packet(header, _) => Message::Packet(header, body),
            MessageHeader::Signal => {
                let bytes = body.try_into().map_err(|_| ProtocolViolation)?;
                Message::Signal(Signal::from_bytes(bytes)?)
            }
        }))
    }
}

/// Bytes to be sent.
#[derive(Debug, Default)]
pub(super) struct SendQueue {
    bytes: VecDeque<u8>,
    /// Sealed bytes to send before those, if the connection is sealed.
    sealing: Option<Sealing>,
    /// The connection has accepted part of the given bytes. Nothing is written before the connection
    /// is writable again.
    pub(super) is_blocked: bool,
    pub(super) has_ended: bool,
}

impl SendQueue {
    /// A queue for a sealed connection, or for a clear one without keys.
    pub(super) fn new(keys: Option<&Keys>) -> Self {
        SendQueue {
            sealing: keys.map(Sealing::new),
            ..SendQueue::default()
        }
    }

    /// Sends or queues a packet.
    ///
    /// # Errors
    /// As [`Tunnel::send`](super::Tunnel::send).
    pub(super) fn send(
        &mut self,
        to: impl Write,
        header: &[u8; TunnelHeader::LEN],
        packet: &[u8],
    ) -> io::Result<()> {
        if self.has_ended {
            return Err(io::ErrorKind::NotConnected.into());
        }
        if self.bytes.len() + header.len() + packet.len() > MAX_QUEUED {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let mut sent = 0;
        if self.bytes.len() + packet.len() >= SHORT && !self.is_blocked {
            // Behind the queued bytes, without a copy.
            sent = self.write(to, [header, packet]);
        }
        for part in [header, packet] {
            let gone = part.len().min(sent);
            sent -= gone;
            self.bytes.extend(&part[gone..]);
        }
        Ok(())
    }

    /// Queues a signal, even in a full queue: a host that reads no signals is sent few.
    pub(super) fn signal(&mut self, signal: Signal) {
        self.bytes.extend(signal.to_message());
    }

    /// Sends queued bytes, as many as `to` accepts.
    pub(super) fn flush(&mut self, to: impl Write) {
        let unsent = self.sealing.as_ref().map_or(0, Sealing::unsent);
        if self.bytes.len() + unsent > 0 && !self.is_blocked {
            self.write(to, [&[], &[]]);
        }
    }

    /// Sends queued bytes and these behind them, as many as `to` accepts. Returns how many of these were
    /// sent.
    fn write(&mut self, mut to: impl Write, [a, b]: [&[u8]; 2]) -> usize {
        let (first, second) = self.bytes.as_slices();
        let queued = self.bytes.len();
        let parts = [first, second, a, b];
        let written = match &mut self.sealing {
            Some(sealing) => {
                let sent = seal(sealing, &mut to, parts);
                sent.map(|sent| (sent, sealing.unsent() > 0))
            }
            None => to
                .write_vectored(&parts.map(IoSlice::new))
                .map(|sent| (sent, false)),
        };
        let (sent, is_full) = match written {
            Ok(written) => written,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return 0,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => (0, true),
            Err(_) => {
                self.has_ended = true;
                (0, true)
            }
        };
        self.is_blocked = is_full || sent < queued + a.len() + b.len();
        self.bytes.drain(..sent.min(queued));
        sent.saturating_sub(queued)
    }
}

/// Seals these bytes, as long as `to` accepts what is sealed. Returns how many were sealed.
fn seal(sealing: &mut Sealing, mut to: impl Write, parts: [&[u8]; 4]) -> io::Result<usize> {
    let mut sealed = 0;
    if !sealing.flush(|bytes| to.write(bytes))? {
        return Ok(0);
    }
    for piece in parts.iter().flat_map(|part| part.chunks(SEALED)) {
        sealing.write(piece);
        sealed += piece.len();
        if sealing.unsent() >= SEALED && !sealing.flush(|bytes| to.write(bytes))? {
            return Ok(sealed);
        }
    }
    sealing.flush(|bytes| to.write(bytes))?;
    Ok(sealed)
}

#[cfg(test)]
mod tests {
    use super::super::header::SIGNAL_HEADER;
    use super::super::header::tests::HEADER;
    use super::super::signal::SignalKind;
    use super::*;
    use toroid_fabric::tcp::secure::{Cipher, KEY, RecordError};

    /// A writer that accepts `room` bytes.
    #[derive(Default)]
    struct Narrow {
        room: usize,
        taken: Vec<u8>,
    }

    impl Write for &mut Narrow {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let len = bytes.len().min(self.room);
            if len == 0 && !bytes.is_empty() {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            self.room -= len;
            self.taken.extend(&bytes[..len]);
            Ok(len)
        }

        fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
            let all: Vec<u8> = parts.iter().flat_map(|part| part.to_vec()).collect();
            self.write(&all)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn packet(len: usize) -> Vec<u8> {
        (0..len).map(|n| (n * 7 + len) as u8).collect()
    }

    const KEYS: Keys = Keys {
        cipher: Cipher::AesGcm,
        send: [1; KEY],
        receive: [2; KEY],
    };

    #[test]
    fn packets_arrive_whole_in_pieces_of_any_size() {
        packets_arrive_whole(None);
    }

    #[test]
    fn sealed_packets_arrive_whole_in_pieces_of_any_size() {
        packets_arrive_whole(Some(KEYS));
    }

    fn packets_arrive_whole(keys: Option<Keys>) {
        let lens = [
            24,
            25,
            1514,
            MAX_PACKET,
            60,
            SHORT,
            SHORT - 1,
            MAX_PACKET,
            24,
        ];
        for step in [1, 13, 4096, 100_000, usize::MAX] {
            let mut send_queue = SendQueue::new(keys.as_ref());
            let mut narrow = Narrow::default();
            for len in lens {
                narrow.room = step.min(1 << 20);
                send_queue.is_blocked = false;
                let packet = packet(len);
                send_queue
                    .send(&mut narrow, &HEADER.to_bytes(len), &packet)
                    .unwrap();
            }
            while !send_queue.bytes.is_empty() || send_queue.is_blocked {
                narrow.room = 1 << 20;
                send_queue.is_blocked = false;
                send_queue.flush(&mut narrow);
            }
            let is_clear = narrow
                .taken
                .windows(64)
                .any(|all| packet(1514).starts_with(all));
            assert_eq!(is_clear, keys.is_none());
            let keys = keys.as_ref().map(Keys::mirrored);
            let mut buffer = ReceiveBuffer::new(keys.as_ref());
            let (mut rest, mut received) = (&narrow.taken[..], vec![]);
            while !rest.is_empty() {
                let (now, later) = rest.split_at(step.min(rest.len()));
                let mut now = now;
                while !now.is_empty() {
                    buffer.fill(&mut now).unwrap();
                    while let Some(message) = buffer.next_message().unwrap() {
                        let Message::Packet(HEADER, bytes) = message else {
                            panic!("{message:?}");
                        };
                        assert!(bytes == packet(bytes.len()), "{} bytes", bytes.len());
                        received.push(bytes.len());
                    }
                }
                rest = later;
            }
            assert_eq!(received, lens, "by {step}");
        }
    }

    #[test]
    fn an_altered_record_is_an_error_with_a_name() {
        let mut send_queue = SendQueue::new(Some(&KEYS));
        let mut narrow = Narrow {
            room: 1 << 20,
            ..Narrow::default()
        };
        let packet = packet(SHORT);
        let header = HEADER.to_bytes(SHORT);
        send_queue.send(&mut narrow, &header, &packet).unwrap();
        narrow.taken[100] ^= 1;
        let mut buffer = ReceiveBuffer::new(Some(&KEYS.mirrored()));
        let error = buffer.fill(&narrow.taken[..]).unwrap_err();
        assert_eq!(error.to_string(), RecordError::Altered.to_string());
        assert!(!buffer.has_next());
        let mut buffer = ReceiveBuffer::new(Some(&KEYS.mirrored()));
        buffer.fill(&narrow.taken[..50]).unwrap();
        let error = buffer.fill(&[][..]).unwrap_err();
        assert_eq!(error.to_string(), RecordError::Cut.to_string());
    }

    #[test]
    fn signals_between_packets_are_recognized() {
        let signal = Signal {
            number: 7,
            kind: SignalKind::Begin,
        };
        let packet = packet(60);
        let sent = [
            &HEADER.to_bytes(60)[..],
            &packet,
            &SIGNAL_HEADER,
            &signal.to_bytes(),
            &HEADER.to_bytes(60),
            &packet,
        ];
        let mut received = ReceiveBuffer::default();
        received.fill(&*sent.concat()).unwrap();
        let wanted = [
            Message::Packet(HEADER, &packet),
            Message::Signal(signal),
            Message::Packet(HEADER, &packet),
        ];
        for item in wanted {
            assert!(received.has_next());
            assert_eq!(received.next_message(), Ok(Some(item)));
        }
        assert_eq!(received.next_message(), Ok(None));
        let mut changed = SIGNAL_HEADER;
        changed[5] = 1;
        let mut received = ReceiveBuffer::default();
        received
            .fill(&*[&changed[..], &signal.to_bytes()].concat())
            .unwrap();
        assert_eq!(received.next_message(), Err(ProtocolViolation));
    }

    #[test]
    fn a_send_queue_is_bounded() {
        let (mut send_queue, mut narrow) = (SendQueue::default(), Narrow::default());
        let mut send = || send_queue.send(&mut narrow, &HEADER.to_bytes(9000), &packet(9000));
        let taken = (0..1000).take_while(|_| send().is_ok()).count();
        assert_eq!(taken, MAX_QUEUED / (9000 + TunnelHeader::LEN));
        let full = send().unwrap_err();
        assert_eq!(full.kind(), io::ErrorKind::WouldBlock);
    }
}
