//! The runner: takes turns between measurements, round by round, and collects their samples.

use std::fmt::Display;
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

    /// Takes `rounds` turns of every measurement of a contest, fewer if `time` is over. Each round
    /// reverses the order of the last: otherwise the first measurement would always find the
    /// machine in the same state.
    pub fn contest(
        &mut self,
        contest: &mut [M],
        rounds: u32,
        time: Duration,
        mut measure: impl FnMut(&M) -> Result<Samples, ClusterError>,
    ) -> Result<(), ClusterError> {
        let start = Instant::now();
        for _ in 0..rounds {
            for measurement in contest.iter() {
                self.turn(measurement, |measurement, _| measure(measurement))?;
            }
            contest.reverse();
            if start.elapsed() > time {
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
