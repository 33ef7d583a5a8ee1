//! Scripts: the exchanges of messages that micro-benchmarks consist of, as data.

use std::fmt;
use std::ops::Range;

use serde::{Deserialize, Serialize};

/// Bytes of a page.
pub const PAGE: usize = 4096;

/// Bytes of the shortest message: its number.
pub const SHORTEST: usize = 4;

/// The most segments of a message.
pub const MOST_SEGMENTS: usize = 32;

/// Least distance of segments in bytes: a cache line lies between two.
const LINE: usize = 64;

/// Nanoseconds on the clock of a host.
pub type Nanos = u64;

/// An exchange between two hosts. The leader measures, the follower answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Script {
    pub pattern: Pattern,
    pub message: Message,
    /// How receivers wait.
    pub wait: Wait,
    /// Further open connections between the two hosts, all idle.
    pub idle: u32,
    /// Queue pairs whose completions come through one queue, all but one of them idle; without such a
    /// queue 0.
    pub queues: u32,
    pub layer: Layer,
}

/// The layer that carries the messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Layer {
    /// Packets of a connection.
    Fabric,
    /// The [message layer](super::message_layer).
    Message {
        /// Bytes of the longest eager message.
        eager: usize,
        /// Whether receives take a message of any peer.
        any_source: bool,
    },
}

/// The order of messages, and the time that is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pattern {
    /// A message is answered by one back; half the time of both.
    PingPong,
    /// As [`Pattern::PingPong`], but the leader computes for `delay` before it receives; the time of
    /// an iteration. The answer waits already if the delay is longer than a round trip.
    Delayed { delay: Nanos },
    /// `count` messages, and an acknowledgement of the last; the time for each message.
    Burst { count: u32 },
    /// As [`Pattern::Burst`], but without the wait for the acknowledgement: the time of each send.
    Sends { count: u32 },
    /// The leader counts for `time` without traffic, and again while `messages` arrive; the time of
    /// the processor for each message, by the loss of counts.
    Counting { time: Nanos, messages: u32 },
    /// The leader writes the message into memory of the follower; the time until the completion.
    Write,
}

/// A message and its place in the sender's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    pub bytes: usize,
    /// Pages from which messages are sent in turns, each at the start of one.
    pub pages: u32,
    /// Messages of each hundred that are sent from the first page instead.
    pub reuse: u32,
    /// Separate pieces of equal length.
    pub segments: u32,
    pub gather: Gather,
}

/// Treatment of a message of several segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Gather {
    /// The fabric takes all segments in one operation.
    Native,
    /// The sender copies the segments into one buffer first.
    Pack,
}

/// How a receiver waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Wait {
    /// Polls and never sleeps.
    Poll,
    /// Sleeps unless a message is there.
    Block,
    /// Polls for a while, then sleeps.
    SpinThenBlock,
}

impl Message {
    /// A message in one piece, always from the same place.
    pub const fn of(bytes: usize) -> Self {
        Message {
            bytes: if bytes < SHORTEST { SHORTEST } else { bytes },
            pages: 1,
            reuse: 0,
            segments: 1,
            gather: Gather::Native,
        }
    }

    /// The segments of message `number` in the sender's memory.
    pub fn places(
        &self,
        number: u32,
    ) -> impl ExactSizeIterator<Item = Range<usize>> + Clone + use<> {
        let (segment, distance, bytes) = (self.segment(), self.distance(), self.bytes);
        let start = self.page(number) as usize * self.stride();
        (0..self.segments as usize).map(move |n| {
            let (from, at) = ((n * segment).min(bytes), start + n * distance);
            at..at + segment.min(bytes - from)
        })
    }

    /// Bytes of the sender's memory.
    pub fn memory(&self) -> usize {
        self.stride() * self.pages.max(1) as usize
    }

    /// The page from which message `number` is sent.
    fn page(&self, number: u32) -> u32 {
        let reused = |number: u64| number * u64::from(self.reuse) / 100;
        let number = u64::from(number);
        if reused(number + 1) > reused(number) {
            return 0;
        }
        (number % u64::from(self.pages.max(1))) as u32
    }

    /// Bytes of a segment; the last one may be shorter.
    fn segment(&self) -> usize {
        self.bytes.div_ceil(self.segments.max(1) as usize)
    }

    /// Bytes from the start of a segment to the next.
    fn distance(&self) -> usize {
        self.segment().next_multiple_of(LINE) + LINE
    }

    /// Bytes from the start of a message to that from the next page.
    fn stride(&self) -> usize {
        (self.segments.max(1) as usize * self.distance()).next_multiple_of(PAGE)
    }
}

impl Script {
    /// A script with all else as in the test of latency.
    pub fn new(pattern: Pattern, bytes: usize) -> Self {
        Script {
            pattern,
            message: Message::of(bytes),
            wait: Wait::Poll,
            idle: 0,
            queues: 0,
            layer: Layer::Fabric,
        }
    }
}

impl fmt::Display for Script {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self.pattern {
            Pattern::PingPong => "ping-pong",
            Pattern::Delayed { .. } => "delayed ping-pong",
            Pattern::Burst { .. } => "burst",
            Pattern::Sends { .. } => "sends",
            Pattern::Counting { .. } => "counting loop",
            Pattern::Write => "write",
        };
        write!(f, "{name} of {} bytes", self.message.bytes)?;
        if self.layer == Layer::Fabric {
            return Ok(());
        }
        f.write_str(" over the message layer")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_take_turns_and_the_first_is_reused_as_often_as_asked() {
        let of = |reuse| Message {
            pages: 1000,
            reuse,
            ..Message::of(64)
        };
        for reuse in [0, 25, 50, 99, 100] {
            let first = (1..=100).filter(|&number| of(reuse).page(number) == 0);
            assert_eq!(first.count() as u32, reuse);
        }
        assert_eq!([1, 999, 1000, 1001].map(|n| of(0).page(n)), [1, 999, 0, 1]);
        assert_eq!(Message::of(64).page(7), 0);
    }

    #[test]
    fn segments_are_apart_and_inside_of_the_memory() {
        for (bytes, segments, pages) in [(1024, 1, 1), (1024, 32, 1), (10, 3, 5), (5000, 1, 7)] {
            let message = Message {
                segments,
                pages,
                ..Message::of(bytes)
            };
            for number in 0..2 * pages {
                let places: Vec<_> = message.places(number).collect();
                let sum: usize = places.iter().map(ExactSizeIterator::len).sum();
                assert_eq!((places.len() as u32, sum), (segments, bytes));
                assert!(
                    places
                        .windows(2)
                        .all(|two| two[0].end + LINE <= two[1].start)
                );
                assert!(places.iter().all(|place| place.end <= message.memory()));
                let page = (number % pages) as usize * message.stride();
                assert_eq!((places[0].start, page % PAGE), (page, 0));
            }
        }
    }
}
