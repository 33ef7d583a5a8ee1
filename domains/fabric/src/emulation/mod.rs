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
//! operations that are under way. A completion is returned when the answer arrives. The way back is
//! reserved when the request arrives: traffic that the peer sends meanwhile does not wait for it.
//!
//! Packets travel at once, with the time before which the receiver does not see them
//! ([`Hold`](crate::hold::Hold)). Receivers without a model respect it, too.
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

pub use crate::core::peer_link::{PeerLink, Way};
pub use channel::Channel;
pub use queue_pair::QueuePair;

use std::hint::spin_loop;
use std::thread::sleep;
use std::time::Duration;

use crate::model::Nanos;
use crate::os::thread::monotonic;

/// Time before an event from which on a thread polls the clock: most sleeps end within it.
const GUARD: Nanos = 50_000;

/// Time before an event from which on the clock is polled without pause.
const CLOSE: Nanos = 1_000;

/// Waits for `event`: sleeps until shortly before, then polls the clock. Returns the processor time
/// spent.
fn await_event(event: Nanos, now: Nanos) -> Nanos {
    let mut start = now;
    if event.saturating_sub(now) > GUARD {
        sleep(Duration::from_nanos(event - now - GUARD));
        start = monotonic();
    }
    let mut now = start;
    while now < event {
        if event - now > CLOSE {
            spin_loop();
        }
        now = monotonic();
    }
    now - start
}

/// The time after `timeout` from now on.
fn end_of(timeout: Duration) -> Nanos {
    let timeout = Nanos::try_from(timeout.as_nanos()).unwrap_or(Nanos::MAX);
    monotonic().saturating_add(timeout)
}

#[cfg(test)]
mod tests;
