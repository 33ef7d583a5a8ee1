//! How long to look for the next frame before going to sleep.
//!
//! Waking a sleeping thread costs more than carrying a frame: the sender must interrupt another
//! core, which on a virtual machine may first have to be scheduled by its host. In an exchange of
//! requests and responses the next frame comes soon, and looking for it a little longer is
//! cheaper than a wake-up. Between single frames it would be a waste.
//!
//! On two idle virtual cores a round trip took 40 to 90 us without looking and 36 with it, and a
//! stream gained a tenth.
//!
//! Who looks gives way between two looks, because those who would send the next frame may need
//! this core: with one core busy, that halved the slowest round trips. But a thread that
//! computes then keeps the core for milliseconds, whereas a sleeper that wakes up takes it back
//! at once. So whoever lost the core while giving way does not look again for a while.

use std::time::{Duration, Instant};

/// The longest look. Longer than a round trip between two nodes takes, and short enough that a
/// wrong guess costs little.
const LOOK: Duration = Duration::from_micros(50);

/// Giving way for longer than this means to have lost the core to a thread that computes. Others
/// carry on for shorter: they wait for a frame again.
const LOST: Duration = Duration::from_micros(500);

/// How long not to look then.
const REST: Duration = Duration::from_millis(100);

/// Learns from the last waits whether looking pays.
#[derive(Debug, Default)]
pub struct Patience {
    pays: bool,
    rest_until: Option<Instant>,
}

impl Patience {
    /// How long to look at the beginning of a wait.
    pub fn look(&self, now: Instant) -> Duration {
        let rested = self.rest_until.is_none_or(|end| end <= now);
        if self.pays && rested {
            LOOK
        } else {
            Duration::ZERO
        }
    }

    /// Tells how long it took to give way once.
    pub fn gave_way(&mut self, from: Instant, to: Instant) {
        if to - from > LOST {
            self.rest_until = Some(to + REST);
        }
    }

    /// Tells how long the wait for the last frame was, looking and sleeping. Had looking found
    /// it, then it is worth trying the next time; so one wait that was too long ends all
    /// looking until frames come in quick succession again.
    pub fn waited(&mut self, from: Instant, to: Instant) {
        self.pays = to - from <= LOOK;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looking_begins_with_quick_frames_and_ends_with_a_pause() {
        let (mut patience, now) = (Patience::default(), Instant::now());
        assert_eq!(patience.look(now), Duration::ZERO);
        patience.waited(now, now + LOOK);
        assert_eq!(patience.look(now), LOOK);
        patience.waited(now, now + 2 * LOOK);
        assert_eq!(patience.look(now), Duration::ZERO);
    }

    #[test]
    fn who_lost_the_core_does_not_look_for_a_while() {
        let (mut patience, now) = (Patience::default(), Instant::now());
        patience.waited(now, now + LOOK);
        patience.gave_way(now, now + LOST);
        assert_eq!(patience.look(now), LOOK);
        let back = now + 2 * LOST;
        patience.gave_way(now, back);
        patience.waited(now, now + LOOK);
        assert_eq!(patience.look(back), Duration::ZERO);
        assert_eq!(patience.look(back + REST), LOOK);
    }
}
