//! Fixed work and fixed time (Sottile and Minnich, 2004): the time of equal pieces of work (FWQ),
//! and the work in equal quanta of time (FTQ). Times are nanoseconds of any monotonic clock.

use crate::stats::median;

/// The work in consecutive quanta of time.
#[derive(Debug)]
pub struct Quanta {
    quantum_ns: u64,
    counts: Vec<f64>,
    /// Index of the first quantum that does not count.
    end: usize,
}

impl Quanta {
    /// `count` quanta from time 0.
    pub fn new(quantum_ns: u64, count: usize) -> Self {
        Quanta {
            quantum_ns,
            counts: vec![0.0; count],
            end: count,
        }
    }

    /// Counts a unit of work that was done at `now_ns`. Returns whether quanta are left.
    #[inline]
    pub fn observe(&mut self, now_ns: u64) -> bool {
        let at = (now_ns / self.quantum_ns) as usize;
        if let Some(count) = self.counts.get_mut(at) {
            *count += 1.0;
        }
        at < self.end
    }

    /// Length of a quantum in nanoseconds.
    pub fn quantum_ns(&self) -> u64 {
        self.quantum_ns
    }

    /// Units of work in each quantum.
    pub fn counts(&self) -> &[f64] {
        &self.counts
    }

    /// Missing work as a share of the work of undisturbed quanta.
    pub fn share(&self) -> f64 {
        let most = self.counts.iter().copied().fold(0.0, f64::max);
        let all: f64 = self.counts.iter().sum();
        if most > 0.0 {
            1.0 - all / (most * self.counts.len() as f64)
        } else {
            0.0
        }
    }

    /// The share of noise in each of `parts` consecutive parts of the quanta.
    pub fn shares(&self, parts: usize) -> Vec<f64> {
        let most = self.counts.iter().copied().fold(1.0, f64::max);
        let of = |part: &[f64]| 1.0 - part.iter().sum::<f64>() / (most * part.len() as f64);
        let len = self.counts.len().div_ceil(parts).max(1);
        self.counts.chunks(len).map(of).collect()
    }
}

/// Time beyond that of undisturbed work as a share of all time.
pub fn excess(times_ns: &[f64]) -> f64 {
    let all: f64 = times_ns.iter().sum();
    let shortest = times_ns.iter().copied().reduce(f64::min);
    let undisturbed = shortest.unwrap_or_default() * times_ns.len() as f64;
    if all > 0.0 {
        1.0 - undisturbed / all
    } else {
        0.0
    }
}

/// Units of work that take `quantum_ns`, by the median of trials of `units` units.
pub fn units_of(quantum_ns: u64, units: u64, trials_ns: &[f64]) -> u64 {
    let trial = median(trials_ns).filter(|trial| *trial > 0.0);
    let each = trial.map_or(1.0, |trial| trial / units as f64);
    (quantum_ns as f64 / each).max(1.0) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_planted_detour_takes_work_from_its_quantum() {
        let mut quanta = Quanta::new(1000, 4);
        // Units of 10 ns; a detour of 500 ns in the second quantum, of 1500 ns from the third on.
        let mut now = 0;
        let mut planted = [(1200, 500), (2600, 1500)].into_iter().peekable();
        while quanta.observe(now) {
            let detour = planted.next_if(|(start, _)| *start <= now);
            now += 10 + detour.map_or(0, |(_, len)| len);
        }
        assert_eq!(quanta.counts(), [100.0, 50.0, 61.0, 0.0]);
        assert_eq!(quanta.share(), 1.0 - 211.0 / 400.0);
        let halves = [0.25, 1.0 - 61.0 / 200.0];
        assert_eq!(quanta.shares(2), halves);
        assert_eq!(Quanta::new(1000, 3).share(), 0.0);
    }

    #[test]
    fn excess_is_time_beyond_the_shortest() {
        assert_eq!(excess(&[10.0, 10.0, 20.0]), 0.25);
        assert_eq!(excess(&[7.0, 7.0]), 0.0);
        assert_eq!(excess(&[]), 0.0);
    }

    #[test]
    fn work_is_as_long_as_the_quantum() {
        assert_eq!(
            units_of(1_000_000, 1000, &[2000.0, 90_000.0, 2000.0]),
            500_000
        );
        assert_eq!(units_of(10, 1, &[1000.0]), 1);
    }
}
