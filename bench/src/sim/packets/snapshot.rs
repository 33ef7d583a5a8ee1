//! What routing knows of used credits: a snapshot of a set age.
//!
//! Time is cut into periods of a quarter of the age. A link keeps its use at the end of each of the
//! last four periods, and routing reads the oldest: its age is between 3/4 of the set age and the
//! set age. A link is updated only when its use changes.

use crate::sim::Ticks;

/// Periods of an age.
const PERIODS: u32 = 4;

/// Past use of links, in flits.
#[derive(Debug)]
pub struct Snapshots {
    /// Ticks of a period; 0: routing knows the present use.
    period: Ticks,
    /// Number of the current period.
    current: u32,
    /// First tick after the current period.
    end: Ticks,
    links: Vec<Past>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Past {
    /// Period of the last change.
    changed: u32,
    /// Use at the end of the four periods before `changed`, period `n` at place `n` modulo 4.
    used: [u16; PERIODS as usize],
}

impl Snapshots {
    /// Bytes for a link.
    pub const MEMORY: u64 = size_of::<Past>() as u64;

    pub fn new(links: usize, age: Ticks) -> Self {
        let period = match age {
            0 => 0,
            age => (age / Ticks::from(PERIODS)).max(1),
        };
        Snapshots {
            period,
            current: PERIODS,
            end: period,
            links: vec![Past::default(); links],
        }
    }

    /// Advances the clock.
    #[inline]
    pub fn advance(&mut self, now: Ticks) {
        if now >= self.end && self.period > 0 {
            let periods = now / self.period;
            self.current = PERIODS.wrapping_add(periods as u32);
            self.end = (periods + 1) * self.period;
        }
    }

    /// Keeps the use of a link that is about to change.
    #[inline]
    pub fn keep(&mut self, link: usize, used: u32) {
        if self.period == 0 {
            return;
        }
        let past = &mut self.links[link];
        let passed = self.current.wrapping_sub(past.changed);
        for back in 1..=passed.min(PERIODS) {
            let period = self.current.wrapping_sub(back) % PERIODS;
            past.used[period as usize] = used.min(u16::MAX.into()) as u16;
        }
        past.changed = self.current;
    }

    /// Use of a link as routing knows it; `used` is the present one.
    #[inline]
    pub fn known(&self, link: usize, used: u32) -> u32 {
        if self.period == 0 {
            return used;
        }
        let past = &self.links[link];
        if self.current.wrapping_sub(past.changed) >= PERIODS {
            used
        } else {
            past.used[(self.current % PERIODS) as usize].into()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_known_when_it_has_the_age() {
        let mut snapshots = Snapshots::new(1, 400);
        snapshots.advance(1_000);
        snapshots.keep(0, 0);
        let known = |snapshots: &mut Snapshots, now, used| {
            snapshots.advance(now);
            snapshots.known(0, used)
        };
        // The use is 7 from tick 1,000 on, 9 from tick 1,150 on.
        assert_eq!(known(&mut snapshots, 1_100, 7), 0);
        snapshots.advance(1_150);
        snapshots.keep(0, 7);
        assert_eq!(known(&mut snapshots, 1_399, 9), 0);
        assert_eq!(known(&mut snapshots, 1_400, 9), 7);
        assert_eq!(known(&mut snapshots, 1_499, 9), 7);
        assert_eq!(known(&mut snapshots, 1_500, 9), 9);
        assert_eq!(known(&mut snapshots, 90_000, 9), 9);
    }

    #[test]
    fn without_an_age_the_present_is_known() {
        let mut snapshots = Snapshots::new(1, 0);
        snapshots.advance(1_000);
        snapshots.keep(0, 3);
        assert_eq!(snapshots.known(0, 5), 5);
    }
}
