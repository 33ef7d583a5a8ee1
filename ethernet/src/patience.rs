//! How long to look for the next frame before going to sleep.
//!
//! Waking a sleeping thread costs more than carrying a frame: the sender must interrupt another
//! core, which on a virtual machine may first have to be scheduled by its host. In an exchange of
//! requests and responses the next frame comes soon, and looking for it a little longer is
//! cheaper than a wake-up. Between single frames it would be a waste.
//!
//! On two idle virtual cores a round trip took 40 to 90 us without looking and 36 with it, a
//! stream gained a tenth. Who looks gives way between two looks, because those who would send
//! the next frame may need this core: with one core busy, that halved the slowest round trips.

use std::time::Duration;

/// The longest look. Longer than a round trip between two nodes takes, and short enough that a
/// wrong guess costs little.
const LOOK: Duration = Duration::from_micros(50);

/// Learns from the last wait whether looking pays.
#[derive(Debug, Default)]
pub struct Patience {
    pays: bool,
}

impl Patience {
    /// How long to look before sleeping.
    pub fn look(&self) -> Duration {
        match self.pays {
            true => LOOK,
            false => Duration::ZERO,
        }
    }

    /// Tells how long the wait for the last frame was, looking and sleeping. Had looking found
    /// it, then it is worth trying the next time; so one wait that was too long ends all
    /// looking until frames come in quick succession again.
    pub fn waited(&mut self, time: Duration) {
        self.pays = time <= LOOK;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looking_begins_with_quick_frames_and_ends_with_a_pause() {
        let mut patience = Patience::default();
        assert_eq!(patience.look(), Duration::ZERO);
        patience.waited(LOOK / 2);
        assert_eq!(patience.look(), LOOK);
        patience.waited(LOOK * 2);
        assert_eq!(patience.look(), Duration::ZERO);
    }
}
