//! The time before which a packet is not received.

use crate::model::Nanos;
#[cfg(not(loom))]
use crate::os::thread::monotonic;

/// Nanoseconds of a unit.
const UNIT: Nanos = 16;

/// The longest hold.
const LONGEST: Nanos = 10_000_000_000;

/// The time before which the receiver of a packet does not see it: the lower 32 bits of
/// `CLOCK_MONOTONIC`, in units of 16 ns. The default is no hold.
///
/// The sender computes it from a link model. A time that is not within the next 10 s has passed. A
/// packet that nobody receives for almost a minute after its hold may be held again: the 32 bits
/// repeat after 68.7 s.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hold(pub(crate) u32);

impl Hold {
    /// The packet can be received at once.
    pub const NONE: Hold = Hold(0);

    /// Not before `due`, but at most 10 s after `now`.
    pub fn until(due: Nanos, now: Nanos) -> Self {
        if due <= now {
            return Hold::NONE;
        }
        let end = due.min(now + LONGEST).div_ceil(UNIT) as u32;
        // 0 is no hold.
        Hold(end.max(1))
    }

    /// Nanoseconds from `now` until the hold ends.
    pub fn left(self, now: Nanos) -> Nanos {
        let units = self.0.wrapping_sub((now / UNIT) as u32);
        let left = (Nanos::from(units) * UNIT).saturating_sub(now % UNIT);
        if self == Hold::NONE || left > LONGEST + UNIT {
            0
        } else {
            left
        }
    }

    /// Nanoseconds from the end of the hold until `now`; 0 before.
    #[cfg(not(loom))]
    pub(crate) fn passed(self, now: Nanos) -> Nanos {
        let units = ((now / UNIT) as u32).wrapping_sub(self.0);
        // Half of all differences are those of times to come.
        if self == Hold::NONE || units > u32::MAX / 2 {
            0
        } else {
            Nanos::from(units) * UNIT
        }
    }

    /// The form between hosts, whose clocks differ: the duration from now on.
    #[cfg(not(loom))]
    pub(crate) fn between_hosts(self) -> Self {
        match self {
            Hold::NONE => self,
            _ => Hold(self.left(monotonic()).div_ceil(UNIT) as u32),
        }
    }

    /// The hold of a packet that arrives now with this duration, from another host.
    pub(crate) fn starting_at(self, now: Nanos) -> Self {
        Self::until(now + Nanos::from(self.0) * UNIT, now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Nanos = 1_000_000_000;

    #[test]
    fn a_hold_ends_at_its_time_also_where_the_clock_wraps() {
        let wrap = UNIT << 32;
        for now in [1, 15, 16, 1_000_003, wrap - 40, wrap, wrap * 3 - 17] {
            for time in [1, 16, 17, 5_000, 10 * SECOND] {
                let hold = Hold::until(now + time, now);
                let left = hold.left(now);
                assert!(left >= time && left < time + 2 * UNIT, "{time} at {now}");
                assert_eq!(hold.left(now + left - 1), 1);
                assert_eq!(hold.left(now + left), 0);
                assert_eq!(hold.left(now + left + 58 * SECOND), 0);
                let duration = Hold(left.div_ceil(UNIT) as u32);
                assert!(duration.starting_at(now).left(now).abs_diff(left) <= 2 * UNIT);
            }
            assert_eq!(Hold::until(now, now), Hold::NONE);
            assert_eq!(Hold::until(0, now), Hold::NONE);
            assert_eq!(Hold::NONE.left(now), 0);
            assert_eq!(Hold::NONE.starting_at(now), Hold::NONE);
        }
    }

    #[test]
    fn no_hold_is_longer_than_ten_seconds() {
        let now = 77_777;
        for long in [Hold::until(u64::MAX, now), Hold(u32::MAX).starting_at(now)] {
            assert!(long.left(now).abs_diff(LONGEST) <= UNIT);
        }
        // As a peer may write it.
        assert_eq!(Hold(((now + 11 * SECOND) / UNIT) as u32).left(now), 0);
    }
}
