//! One-way time of packets, taken by the receiver.
//!
//! Each packet carries the time of its sending, in nanoseconds of `CLOCK_MONOTONIC`, which all
//! processes of a host share. The receiver asks for one packet at a time.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use toroid_fabric::model::SharedClocks;

use super::{NONSENSE, Side};
use crate::samples::Samples;

/// Bytes of the time at the start of a packet.
const TIME: usize = 8;

/// Packets before the timed ones.
const WARM_UP: u32 = 8;

/// Requests of the receiver.
const NEXT: &[u8] = b"next";
const END: &[u8] = b"end";

/// Timed packets from the serving to the measuring side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OneWay {
    /// Bytes of a packet, at least 8.
    pub bytes: usize,
    pub time: Duration,
}

/// Sends packets until the receiver ends the session.
pub(super) fn send(side: &mut Side, session: OneWay) -> Result<()> {
    let mut packet = vec![0; session.bytes];
    loop {
        side.take()?;
        if side.packet[..] != *NEXT {
            return Ok(());
        }
        let time = packet.first_chunk_mut::<TIME>().context(NONSENSE)?;
        *time = SharedClocks::now().to_le_bytes();
        side.say(&packet)?;
    }
}

/// Receives packets for the session's time.
pub(super) fn receive(side: &mut Side, session: OneWay) -> Result<Samples> {
    let mut samples = Samples::default();
    for _ in 0..WARM_UP {
        samples.errors += u64::from(next(side, session)?.is_none());
    }
    let end = Instant::now() + session.time;
    while samples.ops == 0 || Instant::now() < end {
        match next(side, session)? {
            Some(took) => samples.record(took, session.bytes, true),
            None => samples.errors += 1,
        }
    }
    side.say(END)?;
    Ok(samples)
}

/// One-way time of the next packet; `None` if the packet is wrong.
fn next(side: &mut Side, session: OneWay) -> Result<Option<Duration>> {
    side.say(NEXT)?;
    side.take()?;
    let arrived = SharedClocks::now();
    let sent = side.packet.first_chunk().copied().map(u64::from_le_bytes);
    let took = sent.and_then(|sent| arrived.checked_sub(sent));
    let is_whole = side.packet.len() == session.bytes;
    Ok(took.filter(|_| is_whole).map(Duration::from_nanos))
}
