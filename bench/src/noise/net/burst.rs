//! Does a path switch between bursts and continuous use? The Hoverboard test (Algorithm 1 of the
//! thesis): round trips of a large message with busy waits of nine lengths between, once single
//! and once many in a row. This module has the waits and the verdict, without I/O.
//!
//! A connection that was idle for longer than its retransmission time-out starts slowly again (RFC
//! 2861), on paths of one kind as well. So single round trips after the longest wait are measured a
//! second time, while another connection has just kept the path busy: this takes the path's part away,
//! and leaves that of the connection and of the hosts.

use std::time::Duration;

use crate::stats::{Estimate, median, of_unpaired_ratio};

/// The busy waits after each measurement, in their order. The clock cannot tell 1 ns from none.
pub const WAITS: [Duration; 9] = [
    Duration::from_secs(1),
    Duration::from_millis(1),
    Duration::from_micros(1),
    Duration::from_nanos(1),
    Duration::ZERO,
    Duration::from_nanos(1),
    Duration::from_micros(1),
    Duration::from_millis(1),
    Duration::from_secs(1),
];

/// Names of [`WAITS`].
pub const NAMES: [&str; 9] = [
    "1 s", "1 ms", "1 us", "1 ns", "0", "1 ns", "1 us", "1 ms", "1 s",
];

/// Measurements at each wait.
pub const REPETITIONS: u32 = 30;

/// Waits that are none, in the middle.
const BUSY: std::ops::RangeInclusive<usize> = 3..=5;

/// The least effect of a switch: an idle path takes this many times as long as a busy one.
const LEAST: f64 = 1.25;

/// Times of round trips at each wait, in nanoseconds.
#[derive(Clone, Debug, Default)]
pub struct Steps(pub [Vec<f64>; 9]);

impl Steps {
    /// Times after no wait.
    fn busy(&self) -> Vec<f64> {
        self.0[BUSY].concat()
    }

    /// Time after the longest wait, before and after the middle, over other times.
    fn flanks(&self, under: &[f64]) -> Option<[Estimate; 2]> {
        let ratio = |step: usize| of_unpaired_ratio(&self.0[step], under, step as u64);
        Some([ratio(0)?, ratio(WAITS.len() - 1)?])
    }
}

/// Whether the path switches.
#[derive(Clone, Debug)]
pub struct Verdict {
    /// Both flanks of single round trips show it, those in a row do not, and neither do single ones
    /// on a path that was kept busy.
    pub switches: bool,
    /// Median after the longest waits, in nanoseconds.
    pub idle_ns: f64,
    /// Median after no wait.
    pub busy_ns: f64,
    /// Median after the longest wait on a path that another connection kept busy.
    pub kept_busy_ns: f64,
    /// Idle over busy, before and after the middle, for single round trips.
    pub single: [Estimate; 2],
    /// Idle over kept busy: the part of the path.
    pub path: [Estimate; 2],
    /// The same for round trips in a row.
    pub row: [Estimate; 2],
    /// The pairs of neighbouring waits between which the time changes, on each flank.
    pub between: [Option<[usize; 2]>; 2],
}

impl Verdict {
    /// The verdict of single round trips, those in a row, and single ones after the longest wait on a
    /// path that was kept busy. `None` if a wait has no measurement.
    pub fn of(single: &Steps, row: &Steps, kept_busy: &[f64]) -> Option<Self> {
        let ends = [single.0[0].clone(), single.0[WAITS.len() - 1].clone()];
        let [idle_ns, busy_ns] = [median(&ends.concat())?, median(&single.busy())?];
        let (flanks, control) = (single.flanks(&single.busy())?, row.flanks(&row.busy())?);
        let path = single.flanks(kept_busy)?;
        let mut slow = flanks.iter().chain(&path);
        let is_slow = slow.all(|flank| flank.interval.low > LEAST);
        let pairs = flanks.iter().zip(&control);
        let is_flat = pairs
            .into_iter()
            .all(|(flank, control)| control.value - 1.0 < (flank.value - 1.0) / 2.0);
        let switches = is_slow && is_flat;
        let medians: Vec<f64> = single.0.iter().filter_map(|step| median(step)).collect();
        let middle = (idle_ns * busy_ns).sqrt();
        Some(Verdict {
            switches,
            idle_ns,
            busy_ns,
            kept_busy_ns: median(kept_busy)?,
            single: flanks,
            path,
            row: control,
            between: between(&medians, middle).map(|pair| pair.filter(|_| switches)),
        })
    }
}

/// The neighbours between which the medians fall below `middle` before step 4, and rise above it
/// after.
fn between(medians: &[f64], middle: f64) -> [Option<[usize; 2]>; 2] {
    let crosses = |pair: &[usize; 2]| {
        let [first, second] = pair.map(|step| medians[step] > middle);
        first != second
    };
    let half = medians.len() / 2;
    let falls = (0..half).map(|step| [step, step + 1]).find(crosses);
    let mut rises = (half..medians.len() - 1).map(|step| [step, step + 1]);
    [falls, rises.rfind(crosses)]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Noise of a network: some of the time to everything, and much to a few.
    fn noisy(random: &mut fastrand::Rng, ns: f64) -> f64 {
        let outlier = if random.f64() < 0.05 {
            3.0 * random.f64()
        } else {
            0.0
        };
        ns * (1.0 + 0.2 * random.f64() + outlier)
    }

    /// A path with a gateway until it is used without a pause of `idle`.
    fn path(seed: u64, gateway: f64, idle: Duration, count: u32) -> Steps {
        let mut random = fastrand::Rng::with_seed(seed);
        let (mut steps, mut is_direct) = (Steps::default(), false);
        for (step, wait) in WAITS.iter().enumerate() {
            for _ in 0..REPETITIONS {
                let mut sum = 0.0;
                for _ in 0..count {
                    sum += noisy(&mut random, if is_direct { 0.8e6 } else { 0.8e6 * gateway });
                    is_direct = true;
                }
                steps.0[step].push(sum / f64::from(count));
                is_direct = *wait < idle;
            }
        }
        steps
    }

    /// Times on a path that is busy, each `slower` times as long.
    fn kept_busy(seed: u64, slower: f64) -> Vec<f64> {
        let mut random = fastrand::Rng::with_seed(seed);
        (0..REPETITIONS)
            .map(|_| noisy(&mut random, 0.8e6 * slower))
            .collect()
    }

    fn verdict(seed: u64, gateway: f64, idle: Duration) -> Verdict {
        let [single, row] = [1, 100].map(|count| path(seed, gateway, idle, count));
        Verdict::of(&single, &row, &kept_busy(seed, 1.0)).unwrap()
    }

    #[test]
    fn a_gateway_is_found_every_time() {
        for seed in 0..100 {
            let found = verdict(seed, 2.25, Duration::from_millis(100));
            assert!(found.switches, "{seed}: {found:?}");
            assert_eq!(found.between, [Some([0, 1]), Some([7, 8])]);
            let ratio = found.idle_ns / found.busy_ns;
            assert!((2.0..2.5).contains(&ratio), "{found:?}");
        }
        for seed in 0..10 {
            let short = verdict(seed, 2.25, Duration::from_micros(100));
            assert!(short.switches);
            assert_eq!(short.between, [Some([1, 2]), Some([6, 7])]);
        }
    }

    #[test]
    fn a_flat_path_does_not_switch() {
        let never = Duration::from_secs(9);
        let wrong = (0..100).filter(|seed| verdict(*seed, 1.0, never).switches);
        assert_eq!(wrong.count(), 0);
    }

    #[test]
    fn one_slow_flank_or_slow_rows_are_no_switch() {
        let idle = Duration::from_millis(100);
        let [gateway, flat] = [2.25, 1.0].map(|gateway| path(1, gateway, idle, 1));
        let (row, busy) = (path(2, 1.0, idle, 100), kept_busy(3, 1.0));
        let mut once = flat.clone();
        once.0[0].clone_from(&gateway.0[0]);
        assert!(!Verdict::of(&once, &row, &busy).unwrap().switches);
        assert!(Verdict::of(&gateway, &row, &busy).unwrap().switches);
        // The same times in rows come from the hosts.
        assert!(!Verdict::of(&gateway, &gateway, &busy).unwrap().switches);
        assert!(Verdict::of(&Steps::default(), &row, &busy).is_none());
        assert!(Verdict::of(&gateway, &row, &[]).is_none());
    }

    #[test]
    fn a_connection_that_starts_slowly_is_no_switch() {
        let idle = Duration::from_millis(100);
        for seed in 0..10 {
            // The same times as those behind a gateway: only the busy path tells them apart.
            let [single, row] = [1, 100].map(|count| path(seed, 2.25, idle, count));
            let slow_start = Verdict::of(&single, &row, &kept_busy(seed, 2.25)).unwrap();
            assert!(!slow_start.switches, "{seed}: {slow_start:?}");
            // A gateway, and half of its effect by slow start as well.
            let both = Verdict::of(&single, &row, &kept_busy(seed, 1.5)).unwrap();
            assert!(both.switches, "{seed}: {both:?}");
        }
    }
}
