//! Delay line: frames that are under way on the links of a model.
//!
//! Each directed link has a queue, which keeps the order of its frames also if their latencies vary.
//! The first frames of all queues are in a heap by the time at which they are due. A frame that
//! has not come to the end of its route yet reserves the next stage [`AHEAD`] of reaching it, in
//! the order in which the frames of all links do. There are no clock and no I/O here.
//!
//! All frames together use about [`CAPACITY`] bytes at most. A link may hold as many bytes as are
//! free (dynamic thresholds; Choudhury and Hahne, 1998): one flooded link leaves half of the memory
//! to others, and there is always some for a link without frames.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::sync::Arc;

use toroid_fabric::Partition;
use toroid_fabric::model::{ClockId, Clocks, Nanos, Passage, Route, Stage, StageList};
use toroid_fabric::routing::Trip;

use crate::forward::End;

/// Limit of the memory of all frames in bytes.
const CAPACITY: usize = 64 << 20;

/// Time before a frame reaches a stage in which it may reserve the stage: the switch then need not
/// wake up for each stage of a short route.
pub(crate) const AHEAD: Nanos = 100_000;

/// A directed link of a domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Link {
    pub(crate) partition: Partition,
    pub(crate) from: End,
    pub(crate) to: End,
}

/// A frame under way.
#[derive(Clone, Debug)]
pub(crate) struct Frame {
    /// Frame or GSO packet with its virtio-net header.
    pub(crate) packet: Vec<u8>,
    /// Time at which the driver read the frame.
    pub(crate) sent: Nanos,
    /// Time before which the frame does not leave; with stages ahead, at least.
    pub(crate) due: Nanos,
    /// Stages ahead.
    pub(crate) ahead: Option<Ahead>,
    /// Clock of the first stage of its route.
    pub(crate) clock: Option<ClockId>,
}

/// The route of a frame.
#[derive(Clone, Debug)]
pub(crate) enum Course {
    /// The same for all frames.
    Fixed(Arc<Route>),
    /// Chosen for a packet; counts what its frames meet.
    Chosen(Trip),
}

impl Course {
    /// Counts a frame that has passed all stages.
    pub(crate) fn passed(&self, passage: &Passage) {
        if let Course::Chosen(trip) = self {
            trip.passed(passage);
        }
    }
}

impl StageList for Course {
    fn stage(&self, at: usize) -> Option<Stage> {
        match self {
            Course::Fixed(route) => route.stage(at),
            Course::Chosen(trip) => trip.stage(at),
        }
    }

    fn base(&self) -> Nanos {
        match self {
            Course::Fixed(route) => route.base(),
            Course::Chosen(trip) => trip.base(),
        }
    }
}

/// Stages that a frame has not reserved yet.
#[derive(Clone, Debug)]
pub(crate) struct Ahead {
    pub(crate) passage: Passage,
    pub(crate) course: Course,
    /// Drawn from [`Route::jitter`].
    pub(crate) delay: Nanos,
}

/// Frames under way.
#[derive(Debug, Default)]
pub(crate) struct DelayLine {
    queues: HashMap<Link, Queue>,
    /// First frames of the queues, by the time at which they are due.
    heads: BinaryHeap<Reverse<Entry>>,
    /// Frames with stages ahead, by the time at which they reserve the next one.
    moving: BinaryHeap<Reverse<Entry>>,
    /// Bytes of all frames.
    bytes: usize,
    /// Number of frames so far.
    pushed: u64,
}

/// Frames of one link, never empty.
#[derive(Debug, Default)]
struct Queue {
    /// Each with its number.
    frames: VecDeque<(u64, Frame)>,
    bytes: usize,
}

/// A frame in a heap. Frames of the same time come in the order of their numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Entry {
    time: Nanos,
    number: u64,
    link: Link,
}

impl Frame {
    /// Bytes of memory besides the packet, for the queue and the allocator.
    const OVERHEAD: usize = 256;

    fn cost(&self) -> usize {
        self.packet.capacity() + Self::OVERHEAD
    }
}

impl DelayLine {
    /// Whether there is room for a packet of `len` bytes, cut into so many frames, on a link.
    pub(crate) fn has_room(&self, link: &Link, len: usize, frames: usize) -> bool {
        let held = self.queues.get(link).map_or(0, |queue| queue.bytes);
        held + self.bytes + len + frames * Frame::OVERHEAD <= CAPACITY
    }

    /// Adds a frame, which leaves no earlier than those before it on its link. The caller has made
    /// sure that there is [room](DelayLine::has_room).
    pub(crate) fn push(&mut self, link: Link, frame: Frame) {
        let number = self.pushed;
        self.pushed += 1;
        let queue = self.queues.entry(link).or_default();
        queue.bytes += frame.cost();
        self.bytes += frame.cost();
        let entry = |time| Reverse(Entry { time, number, link });
        if frame.ahead.is_some() {
            self.moving.push(entry(frame.due.saturating_sub(AHEAD)));
        } else if queue.frames.is_empty() {
            self.heads.push(entry(frame.due));
        }
        queue.frames.push_back((number, frame));
    }

    /// Time at which the next frame is due; `None` if none has reserved all stages.
    pub(crate) fn next_due(&self) -> Option<Nanos> {
        self.heads.peek().map(|Reverse(head)| head.time)
    }

    /// Time at which the next frame reserves a stage.
    pub(crate) fn next_move(&self) -> Option<Nanos> {
        self.moving.peek().map(|Reverse(entry)| entry.time)
    }

    /// Reserves the stages that frames come to until `now`. In a domain without clocks the stages
    /// ahead take no time.
    pub(crate) fn advance<'c, C: Clocks + 'c>(
        &mut self,
        now: Nanos,
        clocks: impl Fn(Partition) -> Option<&'c C>,
    ) {
        while self.next_move().is_some_and(|time| time <= now) {
            let Some(Reverse(Entry { time, number, link })) = self.moving.pop() else {
                return;
            };
            let Some(queue) = self.queues.get_mut(&link) else {
                continue;
            };
            let Ok(position) = queue.frames.binary_search_by_key(&number, |frame| frame.0) else {
                continue;
            };
            let frame = &mut queue.frames[position].1;
            frame.advance(time, clocks(link.partition));
            let entry = |time| Reverse(Entry { time, number, link });
            if frame.ahead.is_some() {
                self.moving.push(entry(frame.due.saturating_sub(AHEAD)));
            } else if position == 0 {
                self.heads.push(entry(frame.due));
            }
        }
    }

    /// Removes the next frame, if it is due at `now`.
    pub(crate) fn pop_due(&mut self, now: Nanos) -> Option<(Link, Frame)> {
        let Reverse(Entry { time, link, .. }) = *self.heads.peek().filter(|e| e.0.time <= now)?;
        self.heads.pop();
        let queue = self.queues.get_mut(&link)?;
        let (_, mut frame) = queue.frames.pop_front()?;
        frame.due = time;
        queue.bytes -= frame.cost();
        self.bytes -= frame.cost();
        match queue.frames.front() {
            None => drop(self.queues.remove(&link)),
            Some((number, next)) if next.ahead.is_none() => self.heads.push(Reverse(Entry {
                time: next.due.max(time),
                number: *number,
                link,
            })),
            Some(_) => {}
        }
        Some((link, frame))
    }

    /// Time at which the last frame under way on a link is due at the earliest; `None` without
    /// frames.
    pub(crate) fn last_due(&self, link: &Link) -> Option<Nanos> {
        let (_, last) = self.queues.get(link)?.frames.back()?;
        Some(last.due)
    }

    /// Whether frames are under way in a domain.
    pub(crate) fn holds_any_of(&self, partition: Partition) -> bool {
        self.queues.keys().any(|link| link.partition == partition)
    }

    /// Drops the frames from and to one end of links of a domain.
    pub(crate) fn drop_of(&mut self, partition: Partition, end: End) {
        let is_of =
            |link: &Link| link.partition == partition && (link.from == end || link.to == end);
        let dropped = self.queues.extract_if(|link, _| is_of(link));
        let dropped: usize = dropped.map(|(_, queue)| queue.bytes).sum();
        self.bytes -= dropped;
        if dropped > 0 {
            for heap in [&mut self.heads, &mut self.moving] {
                heap.retain(|Reverse(entry)| !is_of(&entry.link));
            }
        }
    }
}

impl Frame {
    /// Reserves the stages that the frame reaches until [`AHEAD`] after `time`, or all others
    /// without clocks.
    fn advance<C: Clocks>(&mut self, time: Nanos, clocks: Option<&C>) {
        let Some(Ahead {
            passage,
            course,
            delay,
        }) = &mut self.ahead
        else {
            return;
        };
        if let Some(clocks) = clocks {
            passage.advance(course, clocks, time.saturating_add(AHEAD));
            if let Some(reaches) = passage.reaches(course) {
                self.due = reaches;
                return;
            }
        }
        self.due = passage.times(course, *delay).arrival;
        course.passed(passage);
        self.ahead = None;
    }
}

#[cfg(test)]
mod tests;
