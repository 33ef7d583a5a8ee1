//! Emulation of slower links: queue pairs and channels that delay what they carry by a link model.
//!
//! [`QueuePair`] and [`Channel`] wrap those of any provider. Without a model they pass calls on, at
//! the cost of a branch. With a model, messages take the times that [`carry`](crate::model::carry)
//! computes:
//!
//! ```text
//!   write   ── bytes ──►  executed, seen by the peer        batch   ── request ──►
//!           ◄── answer ── completed                                 ◄─── bytes ── read together
//!
//!   read    ── request ─► executed: memory is read          packet  ── bytes ──►  received
//!           ◄── bytes ─── completed
//! ```
//!
//! An operation executes on the provider's queue pair when its request arrives, in posted order. The
//! checks of rights and epochs are those of the provider at that time, so a revocation also ends
//! operations that are under way. A completion is returned when the answer arrives. A request or an
//! answer reserves a stage of its route when it reaches the stage ([`Passage`](crate::model::Passage)),
//! and the way back when the request has arrived: other traffic does not wait for it before.
//!
//! Packets travel at once, with the time before which the receiver does not see them
//! ([`Hold`](crate::hold::Hold)). Receivers without a model respect it, too. So packets reserve all
//! stages when they are sent. On a route of several loaded stages, other messages may then wait for
//! packets that have not reached the stage yet.
//!
//! Where the machine's own time is inside of the latency, operations begin earlier by the learned
//! time of the transfer, so that they end with the arrival. Bytes of a write of 4096 bytes or more
//! are seen earlier where the machine is faster than it was for recent ones; its completion is not.
//!
//! Where a sender spins ([`Way::spin`]), as in InterSense (Wang et al., 2016), `post`, `send` and
//! `read_batch` poll the clock for the time of the message and its bytes. Then the message goes as
//! the provider has it. The time is one of the sender: a read pays once, and no other message of the
//! thread is sent meanwhile.
//!
//! Threads that poll or wait execute operations themselves. For other threads a thread of the
//! process does, about 50 us later, and wakes receivers that sleep in poll(2).
//!
//! Lost messages are repeated, as on any reliable fabric: a retry takes a round trip and 10 us.

mod channel;
mod delay_line;
mod own_time;
mod queue_pair;
mod timer;
mod transit;

pub use crate::core::peer_link::{PeerLink, Routers, Way};
pub use channel::Channel;
pub use queue_pair::QueuePair;

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::sleep;
use std::time::Duration;

use crate::core::peer_link::{first_clock, latency};
use crate::model::{Nanos, Path};
use crate::os::thread::{monotonic, precisely};

/// The least and the most time before an event from which on a thread polls the clock.
const GUARDS: [Nanos; 2] = [20_000, 150_000];

/// That time, learned from the sleeps of the process: it covers the lateness of all but 1 %.
static GUARD: AtomicU64 = AtomicU64::new(60_000);

/// A completion or packet that is due within this time counts as present. The call that takes it
/// polls the clock until then.
const SOON: Nanos = 250;

/// Interval at which a spinning sender looks at the link.
const LOOK: Nanos = 100_000;

fn guard() -> Nanos {
    GUARD.load(Ordering::Relaxed)
}

/// Learns from a sleep that ended `late` nanoseconds after its time.
fn learn_guard(late: Nanos) {
    let guard = guard();
    let [least, most] = GUARDS;
    let learned = if late > guard {
        guard + guard / 4
    } else {
        guard - guard / 512
    };
    // Concurrent changes may be lost.
    GUARD.store(learned.clamp(least, most), Ordering::Relaxed);
}

/// Waits for `event`: sleeps until shortly before, then polls the clock. Returns the processor time
/// spent.
fn await_event(event: Nanos, now: Nanos) -> Nanos {
    let mut start = now;
    let guard = guard();
    if event.saturating_sub(now) > guard {
        precisely(|| sleep(Duration::from_nanos(event - now - guard)));
        start = monotonic();
        learn_guard((start + guard).saturating_sub(event));
    }
    poll_clock(event) - start
}

/// Polls the clock until `event`; returns the time.
fn poll_clock(event: Nanos) -> Nanos {
    loop {
        let now = monotonic();
        if now >= event {
            return now;
        }
    }
}

/// Polls the clock until a message of `bytes` may be posted that the sender began with at `start`,
/// or the link changes. Returns the time.
fn spin(link: &PeerLink, bytes: u64, start: Nanos) -> Nanos {
    let Some(way) = link.way() else {
        return start;
    };
    let due = way.posts_at(start, bytes, &mut fastrand::Rng::new());
    let mut end = poll_clock(due.min(start + LOOK));
    while end < due && link.has(&way) {
        end = poll_clock(due.min(end + LOOK));
    }
    if let Some(route) = &way.spin
        && let Some(clock) = first_clock(route)
    {
        let (late, took) = (end.saturating_sub(due), latency(route));
        way.clocks
            .record(clock, Path::Rdma, late, took, end - start);
    }
    end
}

/// The time after `timeout` from now on.
fn end_of(timeout: Duration) -> Nanos {
    let timeout = Nanos::try_from(timeout.as_nanos()).unwrap_or(Nanos::MAX);
    monotonic().saturating_add(timeout)
}

#[cfg(test)]
mod tests;
