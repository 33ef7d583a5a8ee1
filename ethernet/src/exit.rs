//! Exits: where frames leave a segment and come into it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use crate::offload::{Capabilities, Offload};
use crate::segment::{Piece, Segmenter};
use crate::tap::Tap;
use crate::uplink::Uplink;

/// One of them.
#[derive(Debug)]
pub enum Exit {
    /// To a member.
    Tap(Tap),
    /// To the outside.
    Uplink(Uplink),
}

impl Exit {
    /// What may be left undone in packets for it.
    pub fn capabilities(&self) -> Capabilities {
        match self {
            Exit::Tap(tap) => tap.capabilities(),
            Exit::Uplink(_) => Capabilities::empty(),
        }
    }

    /// Reads the next packet, as [`Tap::receive`] and [`Uplink::receive`].
    ///
    /// # Errors
    /// Theirs.
    pub fn receive(&self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Exit::Tap(tap) => tap.receive(into),
            Exit::Uplink(uplink) => uplink.receive(into),
        }
    }

    /// Sends a frame that needs no offload.
    ///
    /// # Errors
    /// Those of [`Tap::send`] and [`Uplink::send_piece`].
    pub fn send_piece(&self, piece: &Piece<'_>) -> io::Result<()> {
        match self {
            Exit::Tap(tap) => tap.send_piece(piece),
            Exit::Uplink(uplink) => uplink.send_piece(piece),
        }
    }

    /// Sends a packet that was decided on: as it is where it can be taken so, and otherwise as the
    /// frames that it stands for, up to the first that is refused. Returns how many there were.
    ///
    /// # Errors
    /// As [`Exit::send_piece`].
    pub fn deliver(&self, packet: &[u8], segmenter: &mut Segmenter) -> io::Result<usize> {
        // It has been decided on, so it is a good one.
        let (offload, frame) = Offload::split(packet).ok_or(io::ErrorKind::InvalidData)?;
        if let Exit::Tap(tap) = self
            && tap.capabilities().contains(offload.needs())
        {
            return tap.send(packet).map(|()| 1);
        }
        let mut pieces = segmenter.pieces(&offload, frame);
        let mut sent = 0;
        while let Some(piece) = pieces.next() {
            self.send_piece(&piece)?;
            sent += 1;
        }
        Ok(sent)
    }
}

impl AsFd for Exit {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Exit::Tap(tap) => tap.as_fd(),
            Exit::Uplink(uplink) => uplink.as_fd(),
        }
    }
}
