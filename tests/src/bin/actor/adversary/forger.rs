//! Packets written straight into the memory of rings.
//!
//! ```text
//!  0      128    256                384                4096
//!  +------+------+------------------+------------------+--------------+
//!  | tail | head | consumer sleeps  | producer sleeps  | data         |
//!  +------+------+------------------+------------------+--------------+
//! ```

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;

use toroid_fabric::hold::Hold;
use toroid_fabric::link::LinkHeader;
use toroid_fabric::{Epoch, NodeId, Partition, Protocol};
use toroid_protocol::agent::ChannelInfo;

use super::scribe::Scribe;
use super::{FORGED, OWN, Result};

const TAIL: u64 = 0;
const HEAD: u64 = 128;
const DATA: u64 = 4096;

/// Bytes from the start of a ring that receive nonsense: its words, and some data.
const NONSENSE: u64 = 4 * DATA;

/// Bytes of one packet in a ring.
const RECORD: u64 = LinkHeader::LEN as u64 + OWN.len() as u64;

/// Treatment of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manner {
    /// Well-formed packets, honest ones and others.
    Forge,
    /// Nonsense, to its words as well.
    Ruin,
}

/// One end of a channel, used without the library.
pub struct Forger {
    manner: Manner,
    honest: LinkHeader,
    there: Scribe,
    back: Scribe,
    /// Our position in the ring.
    tail: u64,
    dice: Dice,
    /// In the order of `ChannelEnds`.
    files: [File; 5],
}

impl Forger {
    pub fn new(info: &ChannelInfo, own: NodeId, manner: Manner, files: Vec<File>) -> Result<Self> {
        let files = <[File; 5]>::try_from(files).map_err(|_| "no whole channel")?;
        Ok(Forger {
            manner,
            honest: LinkHeader {
                partition: Partition(info.partition),
                epoch: Epoch(info.epoch),
                source: own,
                protocol: Protocol(info.protocol),
                len: OWN.len() as u32,
                hold: Hold::NONE,
            },
            there: Scribe::map(&files[0])?,
            back: Scribe::map(&files[1])?,
            tail: 0,
            dice: Dice(info.id | 1),
            files,
        })
    }

    /// Does a round of its worst.
    pub fn go_on(&mut self) -> Result<()> {
        match self.manner {
            Manner::Forge => self.forge()?,
            Manner::Ruin => self.ruin()?,
        }
        // Wakes a sleeping peer for nothing. Fails when the pipe is full or gone.
        let _ = self.files[2].write(&[1; 64]);
        // Takes wake-ups that are for another process of this node.
        let _ = self.files[3].read(&mut [0; 64]);
        Ok(())
    }

    /// Bytes that the peer has sent, or 0 where that word is our nonsense.
    pub fn said(&self) -> Result<u64> {
        let mut word = [0; 8];
        if self.manner == Manner::Forge {
            self.files[1].read_exact_at(&mut word, TAIL)?;
        }
        Ok(u64::from_le_bytes(word))
    }

    fn forge(&mut self) -> Result<()> {
        let honest = self.honest;
        let later = Epoch(honest.epoch.0 + 3);
        let may_be = [
            honest,
            LinkHeader {
                epoch: later,
                ..honest
            },
        ];
        let next = |n: u32| n.wrapping_add(1);
        let forged = [
            LinkHeader {
                partition: Partition(next(honest.partition.0)),
                ..honest
            },
            LinkHeader {
                epoch: Epoch(honest.epoch.0 - 1),
                ..honest
            },
            LinkHeader {
                source: NodeId(next(honest.source.0)),
                ..honest
            },
            LinkHeader {
                protocol: Protocol(honest.protocol.0 + 1),
                ..honest
            },
        ];
        for header in may_be {
            self.push(header, OWN)?;
        }
        for header in forged {
            self.push(header, FORGED)?;
        }
        Ok(())
    }

    /// Sends a packet, if there is room: a full ring would be a broken one.
    fn push(&mut self, header: LinkHeader, text: [u8; 8]) -> Result<()> {
        let capacity = self.there.len() - DATA;
        let taken = self.there.add(HEAD, 0)?;
        if self.tail + RECORD > taken + capacity {
            return Ok(());
        }
        let record = [&header.to_bytes()[..], &text].concat();
        for (n, word) in record.chunks(8).enumerate() {
            let at = (self.tail + 8 * n as u64) % capacity;
            self.there.write(DATA + at, word)?;
        }
        self.tail += RECORD;
        self.there.add(TAIL, RECORD)?;
        Ok(())
    }

    /// Publishes impossible packets, first one that is nearly right.
    fn ruin(&mut self) -> Result<()> {
        if self.tail == 0 {
            let len = [u32::MAX, 9, 0, 1 << 16][self.dice.roll(4) as usize];
            let header = LinkHeader { len, ..self.honest };
            return self.push(header, OWN);
        }
        for _ in 0..4 {
            let (at, n) = (self.dice.roll(NONSENSE), self.dice.roll(u64::MAX));
            self.there.write(at & !7, &n.to_le_bytes())?;
            self.back.write(at & !7, &n.to_le_bytes())?;
        }
        let jump = self.dice.roll(1 << 20);
        self.there.add(TAIL, jump)?;
        self.back.add(HEAD, jump)?;
        Ok(())
    }
}

/// Numbers without sense, the same ones in every run (xorshift64).
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % sides
    }
}
