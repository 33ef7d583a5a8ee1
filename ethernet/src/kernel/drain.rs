//! Waiting until the kernel has delivered what was under way.
//!
//! A frame between two members waits at most twice in the queue of a processor (the "backlog"): on
//! its way into this namespace, and into that of the receiver. Each queue is served in order. A mark
//! goes through the queue of each processor, comes back, and goes through it again: after that all
//! frames have arrived that rules since changed had let pass.
//!
//! A mark is a frame that is written to a TAP of its own. The kernel steers it to a processor (RPS,
//! Documentation/networking/scaling.rst), and a rule sends it back to the TAP.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::offload::Offload;
use crate::port::tap::Tap;

/// Name of the TAP.
pub(super) const DEVICE: &str = "marks";

/// Time after which lost marks are sent again: a full queue drops them.
const AGAIN: Duration = Duration::from_millis(2);

/// Time for all marks.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Bytes of a mark: Ethernet header, number of the drain, processor.
const LEN: usize = 14 + 8 + 4;

/// Local experimental EtherType 1 (IEEE 802).
const ETHERTYPE: [u8; 2] = [0x88, 0xb5];

#[derive(Debug)]
pub(super) struct Drain {
    tap: Tap,
    /// The processors to which the kernel steers frames of the TAP, as `rps_cpus` in sysfs.
    steering: File,
    processors: u32,
    /// Number of the last round.
    round: u64,
}

impl Drain {
    /// Takes the TAP, which is up, and its file `rps_cpus`.
    pub(super) fn new(tap: Tap, steering: OwnedFd) -> io::Result<Self> {
        // A list such as `0-3,8`.
        let possible = fs::read_to_string("/sys/devices/system/cpu/possible")?;
        let last = possible.trim().rsplit([',', '-']).next();
        let last: u32 = last.unwrap_or_default().parse().map_err(io::Error::other)?;
        let processors = last + 1;
        let mut drain = Drain {
            tap,
            steering: steering.into(),
            processors,
            round: 0,
        };
        drain.wait()?;
        Ok(drain)
    }

    /// Waits until all frames are delivered that were under way.
    pub(super) fn wait(&mut self) -> io::Result<()> {
        let deadline = Instant::now() + TIMEOUT;
        // Into this namespace, and into that of the receiver.
        self.pass(deadline)?;
        self.pass(deadline)
    }

    /// Waits until a mark has gone through the queue of each processor.
    fn pass(&mut self, deadline: Instant) -> io::Result<()> {
        self.round += 1;
        let mut missing: Vec<u32> = (0..self.processors).collect();
        while !missing.is_empty() {
            if Instant::now() > deadline {
                let late = format!("the queues of the processors {missing:?} do not move");
                return Err(io::Error::new(io::ErrorKind::TimedOut, late));
            }
            for processor in &missing {
                steer(&self.steering, *processor)?;
                self.tap.send(&mark(self.round, *processor))?;
            }
            let again = Instant::now() + AGAIN;
            while !missing.is_empty() && self.is_readable(again)? {
                self.hear(&mut missing)?;
            }
        }
        Ok(())
    }

    fn is_readable(&self, until: Instant) -> io::Result<bool> {
        let rest = until.saturating_duration_since(Instant::now());
        let mut ready = [PollFd::new(self.tap.as_fd(), PollFlags::POLLIN)];
        let milliseconds = rest.as_micros().div_ceil(1000);
        let timeout = PollTimeout::try_from(milliseconds).unwrap_or(PollTimeout::MAX);
        Ok(poll(&mut ready, timeout)? > 0)
    }

    fn hear(&self, missing: &mut Vec<u32>) -> io::Result<()> {
        let mut packet = [0; Offload::LEN + LEN];
        match self.tap.receive(&mut packet) {
            Ok(len) if len == packet.len() => {
                missing.retain(|processor| packet != mark(self.round, *processor)[..]);
                Ok(())
            }
            Ok(_) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
            Err(error) => Err(error),
        }
    }
}

/// Steers frames to a processor, by a file `rps_cpus`.
pub(super) fn steer(mut steering: &File, processor: u32) -> io::Result<()> {
    // Words of 32 bits, the highest first.
    let words = ",00000000".repeat((processor / 32) as usize);
    let mask = format!("{:x}{words}", 1_u32 << (processor % 32));
    steering.write_all(mask.as_bytes())
}

/// A mark, as it is written to a TAP.
fn mark(round: u64, processor: u32) -> [u8; Offload::LEN + LEN] {
    let mut packet = [0; Offload::LEN + LEN];
    let frame = &mut packet[Offload::LEN..];
    // Locally administered addresses.
    frame[0] = 2;
    frame[6] = 2;
    frame[12..14].copy_from_slice(&ETHERTYPE);
    frame[14..22].copy_from_slice(&round.to_be_bytes());
    frame[22..].copy_from_slice(&processor.to_be_bytes());
    packet
}
