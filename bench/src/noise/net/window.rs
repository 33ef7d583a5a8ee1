//! Received streams in slices of time, and the middle window: while all streams run.

use std::time::Duration;

use super::wire::{Flow, Streams};

/// Parts of the window with a rate each.
pub const PARTS: usize = 10;

/// A reason to reject a run with several streams.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Rejected {
    /// A stream began too late or ended too early.
    #[error("stream {stream} was not active from before the window until after its end")]
    Short {
        /// Index of the stream.
        stream: usize,
    },
    /// A stream stood still.
    #[error("stream {stream} received nothing in second {part} of the window or longer")]
    Still {
        /// Index of the stream.
        stream: usize,
        /// Index of the part, from 0.
        part: usize,
    },
}

/// Counts bytes of a stream by the time of their arrival.
#[derive(Debug)]
pub struct Counter {
    slice_ns: u64,
    flow: Flow,
}

impl Counter {
    /// A counter of an order's slices. Later bytes count in [`Flow::bytes`] only.
    pub fn new(order: &Streams) -> Self {
        Counter {
            slice_ns: u64::from(order.slice_ms) * 1_000_000,
            flow: Flow {
                slices: vec![0; order.slices as usize],
                ..Flow::default()
            },
        }
    }

    /// Counts bytes that arrived at a time from the start of the order.
    #[inline]
    pub fn add(&mut self, now_ns: u64, bytes: u64) {
        let flow = &mut self.flow;
        flow.bytes += bytes;
        let at = (now_ns / self.slice_ns) as usize;
        let Some(slice) = flow.slices.get_mut(at) else {
            return;
        };
        *slice += bytes;
        if flow.last_ns == 0 {
            (flow.first_ns, flow.first_bytes) = (now_ns, bytes);
        }
        flow.last_ns = now_ns.max(1);
    }

    /// The stream.
    pub fn finish(self) -> Flow {
        self.flow
    }
}

impl Flow {
    /// Bytes after the first ones and the time of their arrival, within the slices; `None` if no
    /// others came.
    pub fn rest(&self) -> Option<(u64, u64)> {
        let ns = self
            .last_ns
            .checked_sub(self.first_ns)
            .filter(|ns| *ns > 0)?;
        let bytes = self.in_slices()?.checked_sub(self.first_bytes)?;
        Some((bytes, ns))
    }

    /// Whether a stream agrees with itself and with an order.
    pub fn is_sound(&self, order: &Streams) -> bool {
        let is_whole = self.slices.len() == order.slices as usize;
        let in_slices = self.in_slices().filter(|bytes| *bytes <= self.bytes);
        is_whole
            && in_slices.is_some_and(|bytes| self.first_bytes <= bytes)
            && self.first_ns <= self.last_ns
    }

    fn in_slices(&self) -> Option<u64> {
        let mut slices = self.slices.iter();
        slices.try_fold(0_u64, |sum, bytes| sum.checked_add(*bytes))
    }
}

/// The middle third of an order's slices, as seconds 10 to 20 of 30.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    slice: Duration,
    from: usize,
    to: usize,
}

impl Window {
    /// The window of an order with at least 3 times [`PARTS`] slices.
    pub fn of(order: &Streams) -> Self {
        let third = order.slices as usize / 3;
        Window {
            slice: Duration::from_millis(order.slice_ms.into()),
            from: third,
            to: 2 * third,
        }
    }

    /// Bytes per second of all streams together in each part of the window.
    ///
    /// # Errors
    /// A stream that was not active throughout rejects the run.
    pub fn rates(self, flows: &[Flow]) -> Result<Vec<f64>, Rejected> {
        let len = (self.to - self.from) / PARTS;
        let mut bytes = vec![0; PARTS];
        for (stream, flow) in flows.iter().enumerate() {
            self.covers(flow).ok_or(Rejected::Short { stream })?;
            let window = &flow.slices[self.from..self.to];
            let longest = len.max(self.a_second());
            let mut pauses = window.windows(longest);
            if let Some(at) = pauses.position(|slices| slices.iter().all(|bytes| *bytes == 0)) {
                let part = at / longest;
                return Err(Rejected::Still { stream, part });
            }
            for (part, slices) in window.chunks(len).take(PARTS).enumerate() {
                bytes[part] += slices.iter().sum::<u64>();
            }
        }
        let rates = bytes.into_iter().map(|bytes| bytes as f64 / self.part_s());
        Ok(rates.collect())
    }

    /// Length of a part in seconds.
    pub fn part_s(self) -> f64 {
        (self.slice * ((self.to - self.from) / PARTS) as u32).as_secs_f64()
    }

    /// Slices of a second: a scheduler may keep a stream from its processor for less.
    fn a_second(self) -> usize {
        (1.0 / self.slice.as_secs_f64()) as usize
    }

    fn covers(self, flow: &Flow) -> Option<()> {
        let at = |slices: usize| (self.slice * slices as u32).as_nanos() as u64;
        let begins = flow.last_ns > 0 && flow.first_ns <= at(self.from);
        (begins && flow.last_ns >= at(self.to) && flow.slices.len() >= self.to).then_some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::noise::net::wire::{Direction, Protocol};

    const ORDER: Streams = Streams {
        protocol: Protocol::Tcp,
        streams: 2,
        direction: Direction::Out,
        bytes: 1000,
        slice_ms: 100,
        slices: 300,
    };

    /// 1000 bytes each millisecond between two seconds.
    fn flow(from_s: u64, to_s: u64, pause: std::ops::Range<u64>) -> Flow {
        let mut counter = Counter::new(&ORDER);
        for ms in from_s * 1000..to_s * 1000 {
            if !pause.contains(&ms) {
                counter.add(ms * 1_000_000, 1000);
            }
        }
        counter.finish()
    }

    fn rates(flows: &[Flow]) -> Result<Vec<f64>, Rejected> {
        Window::of(&ORDER).rates(flows)
    }

    #[test]
    fn only_the_middle_counts() {
        let whole = flow(0, 30, 0..0);
        assert_eq!(rates(&[whole.clone(), whole.clone()]), Ok(vec![2e6; PARTS]));
        // A late start outside of the window changes no rate.
        assert_eq!(
            rates(&[whole.clone(), flow(9, 25, 0..0)]),
            Ok(vec![2e6; PARTS])
        );
        let pause = flow(0, 30, 14_000..14_500);
        let found = rates(&[whole, pause]).unwrap();
        assert_eq!((found[3], found[4], found[5]), (2e6, 1.5e6, 2e6));
    }

    #[test]
    fn a_stream_that_was_not_active_throughout_rejects_the_run() {
        let whole = flow(0, 30, 0..0);
        for late in [flow(12, 30, 0..0), flow(0, 19, 0..0), flow(0, 0, 0..0)] {
            let found = rates(&[whole.clone(), late]);
            assert_eq!(found, Err(Rejected::Short { stream: 1 }));
        }
        for pause in [12_000..13_000, 12_050..13_950] {
            let found = rates(&[flow(0, 30, pause), whole.clone()]);
            assert_eq!(found, Err(Rejected::Still { stream: 0, part: 2 }));
        }
        assert!(rates(&[flow(0, 30, 12_050..13_050), whole]).is_ok());
    }

    #[test]
    fn a_rate_leaves_out_the_first_bytes() {
        let flow = flow(1, 3, 0..0);
        assert_eq!((flow.first_ns, flow.first_bytes), (1_000_000_000, 1000));
        assert_eq!(flow.rest(), Some((1_999_000, 1_999_000_000)));
        assert_eq!(Flow::default().rest(), None);
        assert!(flow.is_sound(&ORDER));
        for unsound in [
            Flow {
                bytes: flow.bytes - 1,
                ..flow.clone()
            },
            Flow {
                slices: vec![u64::MAX; ORDER.slices as usize],
                ..flow.clone()
            },
            Flow {
                first_ns: flow.last_ns + 1,
                ..flow.clone()
            },
            Flow {
                slices: Vec::new(),
                ..flow.clone()
            },
        ] {
            assert!(!unsound.is_sound(&ORDER), "{unsound:?}");
        }
    }
}
