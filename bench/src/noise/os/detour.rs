//! Selfish detours: gaps in the time of a loop that only reads the clock (Netgauge's method
//! `selfish`). Times are nanoseconds of any monotonic clock; this module reads none.

/// Gaps longer than this many times the shortest one are detours. Cache misses of the loop's own
/// stores stay below.
pub const THRESHOLD: u64 = 9;

/// Gaps in a round of the calibration.
const ROUND: u32 = 25;

/// Rounds in a row without a shorter gap that end the calibration.
const CALM: u32 = 100;

/// Finds the shortest gap between two readings of the clock.
#[derive(Debug)]
pub struct Calibration {
    last_ns: u64,
    shortest_ns: u64,
    /// Gaps since the last shorter one.
    unchanged: u32,
}

impl Calibration {
    /// A calibration that begins at a reading of the clock.
    pub fn new(now_ns: u64) -> Self {
        Calibration {
            last_ns: now_ns,
            shortest_ns: u64::MAX,
            unchanged: 0,
        }
    }

    /// Takes the next reading. Returns the shortest gap once the calibration is done.
    pub fn observe(&mut self, now_ns: u64) -> Option<u64> {
        let gap_ns = (now_ns - self.last_ns).max(1);
        self.last_ns = now_ns;
        self.unchanged += 1;
        if gap_ns < self.shortest_ns {
            (self.shortest_ns, self.unchanged) = (gap_ns, 0);
        }
        (self.unchanged >= ROUND * CALM).then_some(self.shortest_ns)
    }
}

/// Time that the loop did not get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Detour {
    /// Time from the start of the loop.
    pub start_ns: u64,
    /// The gap, less the shortest one.
    pub len_ns: u64,
}

/// The detours of a loop.
#[derive(Debug)]
pub struct Detours {
    /// The shortest gap, by a [`Calibration`].
    pub shortest_ns: u64,
    threshold_ns: u64,
    first_ns: u64,
    last_ns: u64,
    /// Executions of the loop.
    executions: u64,
    found: Vec<Detour>,
    most: usize,
}

impl Detours {
    /// At most `most` detours of a loop that begins now. The clock is read when their memory is in
    /// place.
    pub fn new(shortest_ns: u64, most: usize, now_ns: impl FnOnce() -> u64) -> Self {
        // Resized and cut: the first use of a page would be a detour.
        let unused = Detour {
            start_ns: u64::MAX,
            len_ns: 0,
        };
        let mut found = vec![unused; most];
        found.clear();
        let now_ns = now_ns();
        Detours {
            shortest_ns,
            threshold_ns: THRESHOLD * shortest_ns,
            first_ns: now_ns,
            last_ns: now_ns,
            executions: 0,
            found,
            most,
        }
    }

    /// Takes the next reading of the clock. Returns whether it ended a detour.
    #[inline]
    pub fn observe(&mut self, now_ns: u64) -> bool {
        let gap_ns = now_ns - self.last_ns;
        self.executions += 1;
        let is_detour = gap_ns > self.threshold_ns;
        if is_detour && self.found.len() < self.most {
            self.found.push(Detour {
                start_ns: self.last_ns - self.first_ns,
                len_ns: gap_ns - self.shortest_ns,
            });
        }
        self.last_ns = now_ns;
        is_detour
    }

    /// Whether there is no room for another detour.
    pub fn are_full(&self) -> bool {
        self.found.len() >= self.most
    }

    /// Gaps up to this are no detours.
    pub fn threshold_ns(&self) -> u64 {
        self.threshold_ns
    }

    /// Time from the first to the last reading.
    pub fn elapsed_ns(&self) -> u64 {
        self.last_ns - self.first_ns
    }

    /// All detours in their order.
    pub fn all(&self) -> &[Detour] {
        &self.found
    }

    /// Time of detours as a share of all time: Netgauge's "overhead".
    pub fn time_share(&self) -> f64 {
        let lost: u64 = self.found.iter().map(|detour| detour.len_ns).sum();
        lost as f64 / self.elapsed_ns().max(1) as f64
    }

    /// Number of detours as a share of all executions of the loop: Eq. 4.1 of the thesis.
    pub fn count_share(&self) -> f64 {
        self.found.len() as f64 / self.executions.max(1) as f64
    }

    /// [`Detours::time_share`] in each of `parts` equal parts of the time, by the start of a detour.
    pub fn time_shares(&self, parts: usize) -> Vec<f64> {
        let part_ns = (self.elapsed_ns() as f64 / parts as f64).max(1.0);
        let mut shares = vec![0.0; parts];
        for detour in &self.found {
            let part = (detour.start_ns as f64 / part_ns) as usize;
            shares[part.min(parts - 1)] += detour.len_ns as f64 / part_ns;
        }
        shares
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Readings every 20 ns, but for detours of (start, length).
    fn trace(end_ns: u64, detours: &[(u64, u64)]) -> impl Iterator<Item = u64> {
        let (mut now, mut left) = (0, detours.iter().peekable());
        std::iter::from_fn(move || {
            let detour = left.next_if(|(start, _)| *start <= now);
            now += 20 + detour.map_or(0, |(_, len)| *len);
            (now <= end_ns).then_some(now)
        })
    }

    fn found(end_ns: u64, detours: &[(u64, u64)], most: usize) -> Detours {
        let mut found = Detours::new(20, most, || 0);
        trace(end_ns, detours).any(|now| {
            found.observe(now);
            found.are_full()
        });
        found
    }

    #[test]
    fn planted_detours_are_found_exactly() {
        // A gap of 180 ns is nine times the shortest, and no detour; 181 ns is one.
        let planted = [(1000, 161), (4001, 160), (10_021, 5000), (20_001, 1_000)];
        let found = found(100_001, &planted, 10);
        let lens: Vec<u64> = found.all().iter().map(|detour| detour.len_ns).collect();
        assert_eq!(lens, [161, 5000, 1000]);
        let first = Detour {
            start_ns: 1000,
            len_ns: 161,
        };
        assert_eq!(found.all()[0], first);
        assert_eq!(found.elapsed_ns(), 100_001);
        assert_eq!(found.time_share(), 6161.0 / 100_001.0);
        // 6,321 ns went by in gaps; all else in steps of 20 ns, and each gap is a step more.
        let executions = (100_001 - 6321) / 20;
        assert_eq!(found.count_share(), 3.0 / f64::from(executions));
        let shares = found.time_shares(2);
        assert!((shares[0] - 2.0 * found.time_share()).abs() < 1e-12);
        assert_eq!(shares[1], 0.0);
    }

    #[test]
    fn the_loop_ends_with_the_last_detour_that_fits() {
        let planted: Vec<(u64, u64)> = (1..100).map(|n| (10_000 * n, 1000)).collect();
        let found = found(2_000_000, &planted, 7);
        assert_eq!(found.all().len(), 7);
        assert_eq!(found.elapsed_ns(), 71_020);
        assert_eq!(found.time_share(), 7000.0 / 71_020.0);
    }

    #[test]
    fn the_calibration_ends_after_calm_rounds_and_keeps_the_shortest() {
        let mut calibration = Calibration::new(0);
        let (mut now, mut readings) = (0, 0);
        let shortest = loop {
            readings += 1;
            now += if readings == 3000 || readings == 2000 {
                17
            } else {
                25
            };
            if let Some(shortest) = calibration.observe(now) {
                break shortest;
            }
        };
        assert_eq!((shortest, readings), (17, 2000 + 2500));
        assert_eq!(
            Calibration::new(5).observe(5),
            None,
            "equal readings are no gap of 0"
        );
    }
}
