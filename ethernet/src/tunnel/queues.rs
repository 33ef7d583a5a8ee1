//! Bytes that wait on either side of a tunnel.

use std::collections::VecDeque;
use std::io::{self, IoSlice, Read, Write};

use super::header::{Message, MessageHeader, ProtocolViolation, TunnelHeader};
use super::signal::Signal;
use crate::offload::MAX_PACKET;

/// Limit of a send queue in bytes: some tens of milliseconds at a gigabit per second. A sender should learn
/// of a longer delay.
const MAX_QUEUED: usize = 4 << 20;

/// Packets shorter than this are collected, and sent in one call.
const SHORT: usize = 16 << 10;

/// Bytes of a receive buffer. A header and a packet fit beside them, and the buffer limits how many shorter
/// packets delay others.
const RECEIVE_BUFFER: usize = 2 * (TunnelHeader::LEN + MAX_PACKET);

/// Bytes that have arrived and are not processed yet.
#[derive(Debug, Default)]
pub struct ReceiveBuffer {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
}

impl ReceiveBuffer {
    /// Reads once; returns the number of bytes.
    ///
    /// # Errors
    /// The system's; [`io::ErrorKind::UnexpectedEof`] at the end.
    pub fn fill(&mut self, mut from: impl Read) -> io::Result<usize> {
        self.bytes.resize(RECEIVE_BUFFER, 0);
        self.bytes.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
        // There is room, because less than one message is left.
        match from.read(&mut self.bytes[self.end..])? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            len => {
                self.end += len;
                Ok(len)
            }
        }
    }

    /// Whether the next message, or a protocol violation, is complete.
    pub(crate) fn has_next(&self) -> bool {
        let bytes = &self.bytes[self.start..self.end];
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
        let Some(header) = self.bytes[self.start..self.end].first_chunk() else {
            return Ok(None);
        };
        let header = MessageHeader::read(header)?;
        let from = self.start + TunnelHeader::LEN;
        if self.end - from < header.body_len() {
            return Ok(None);
        }
        self.start = from + header.body_len();
        let body = &self.bytes[from..self.start];
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
    /// The connection has accepted part of the given bytes. Nothing is written before the connection
    /// is writable again.
    pub(super) is_blocked: bool,
    pub(super) has_ended: bool,
}

impl SendQueue {
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
        if !self.bytes.is_empty() && !self.is_blocked {
            self.write(to, [&[], &[]]);
        }
    }

    /// Sends queued bytes and these behind them, as many as `to` accepts. Returns how many of these were
    /// sent.
    fn write(&mut self, mut to: impl Write, [a, b]: [&[u8]; 2]) -> usize {
        let (first, second) = self.bytes.as_slices();
        let queued = self.bytes.len();
        let parts = [first, second, a, b].map(IoSlice::new);
        let sent = match to.write_vectored(&parts) {
            Ok(sent) => sent,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return 0,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
            Err(_) => {
                self.has_ended = true;
                0
            }
        };
        self.is_blocked = sent < queued + a.len() + b.len();
        self.bytes.drain(..sent.min(queued));
        sent.saturating_sub(queued)
    }
}

#[cfg(test)]
mod tests {
    use super::super::header::SIGNAL_HEADER;
    use super::super::header::tests::HEADER;
    use super::super::signal::SignalKind;
    use super::*;

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

    #[test]
    fn packets_arrive_whole_in_pieces_of_any_size() {
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
            let (mut send_queue, mut narrow) = (SendQueue::default(), Narrow::default());
            for len in lens {
                narrow.room = step.min(1 << 20);
                send_queue.is_blocked = false;
                let packet = packet(len);
                send_queue
                    .send(&mut narrow, &HEADER.to_bytes(len), &packet)
                    .unwrap();
            }
            while !send_queue.bytes.is_empty() {
                narrow.room = 1 << 20;
                send_queue.is_blocked = false;
                send_queue.flush(&mut narrow);
            }
            let (mut buffer, mut rest, mut received) =
                (ReceiveBuffer::default(), &narrow.taken[..], vec![]);
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
