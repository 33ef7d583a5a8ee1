//! The runner: takes turns between measurements, round by round, and collects their samples.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

use crate::cluster::ClusterError;
use crate::progress::Progress;
use crate::samples::{Samples, Series, entry};

/// The measurements of a run with all their rounds, in order of first appearance.
pub struct Runner<'a, M> {
    pub progress: &'a Progress,
    measured: Vec<(M, Series)>,
}

impl<'a, M: Clone + Display + PartialEq> Runner<'a, M> {
    /// A runner without measurements.
    pub fn new(progress: &'a Progress) -> Self {
        Runner {
            progress,
            measured: Vec::new(),
        }
    }

    /// Takes one turn: `measure` receives the measurement, and the operations per sample if an
    /// earlier round has chosen them.
    pub fn turn(
        &mut self,
        measurement: &M,
        mut measure: impl FnMut(&M, Option<u32>) -> Result<Samples, ClusterError>,
    ) -> Result<(), ClusterError> {
        self.progress.step(measurement);
        let batch = self.series(measurement).and_then(Series::batch);
        let samples = measure(measurement, batch).map_err(|error| error.at(measurement))?;
        self.add(measurement, samples);
        Ok(())
    }

    /// Takes turns of every measurement of a contest: the most of `rounds`, the least if `time` is
    /// over. Each round reverses the order of the last: otherwise the first measurement would always
    /// find the machine in the same state.
    pub fn contest(
        &mut self,
        contest: &mut [M],
        rounds: RangeInclusive<u32>,
        time: Duration,
        mut measure: impl FnMut(&M) -> Result<Samples, ClusterError>,
    ) -> Result<(), ClusterError> {
        let start = Instant::now();
        for round in 1..=*rounds.end() {
            for measurement in contest.iter() {
                self.turn(measurement, |measurement, _| measure(measurement))?;
            }
            contest.reverse();
            if round >= *rounds.start() && start.elapsed() > time {
                break;
            }
        }
        Ok(())
    }

    /// Adds a round of a measurement.
    pub fn add(&mut self, measurement: &M, samples: Samples) {
        entry(&mut self.measured, measurement.clone()).add(samples);
    }

    fn series(&self, measurement: &M) -> Option<&Series> {
        let mut measured = self.measured.iter();
        measured.find_map(|(known, series)| (known == measurement).then_some(series))
    }

    /// All measurements with their rounds.
    pub fn finish(self) -> Vec<(M, Series)> {
        self.measured
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rounds(rounds: RangeInclusive<u32>, time: Duration) -> usize {
        let progress = Progress::new();
        let mut runner = Runner::new(&progress);
        let mut taken = 0;
        let measure = |_: &&str| {
            taken += 1;
            Ok(Samples::default())
        };
        let taken_all = runner.contest(&mut ["one"], rounds, time, measure);
        taken_all.unwrap();
        taken
    }

    #[test]
    fn without_time_a_contest_has_its_least_rounds_and_otherwise_its_most() {
        assert_eq!(rounds(3..=9, Duration::ZERO), 3);
        assert_eq!(rounds(1..=9, Duration::ZERO), 1);
        assert_eq!(rounds(3..=5, Duration::MAX), 5);
    }
}
