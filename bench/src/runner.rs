//! The runner: measurements in turns, round by round, and their samples.

use std::fmt::Display;
use std::time::{Duration, Instant};

use crate::cluster::ClusterError;
use crate::progress::Progress;
use crate::samples::{Samples, Series};

/// The measurements of a run with all their rounds, in the order in which they were first made.
pub struct Runner<'a, M> {
    /// Shows every turn.
    pub progress: &'a Progress,
    measured: Vec<(M, Series)>,
}

impl<'a, M: Clone + Display + PartialEq> Runner<'a, M> {
    /// Nothing is measured yet.
    pub fn new(progress: &'a Progress) -> Self {
        Runner {
            progress,
            measured: Vec::new(),
        }
    }

    /// Gives one measurement its turn: `measure` gets it, and operations per sample if they are
    /// decided already.
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

    /// Gives all of a contest one turn after another, so often or until the time is over. Every
    /// round is in the reverse order of the one before: the first would always meet the machine in
    /// the same state.
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
        let known = self
            .measured
            .iter_mut()
            .find(|(known, _)| known == measurement);
        match known {
            Some((_, series)) => series.add(samples),
            None => self.measured.push((measurement.clone(), samples.into())),
        }
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
