//! Equation 2 of the paper against simulated times, as Section 2.4 does it on Piz Daint.
//!
//! A ping-pong of several sizes runs on many allocations beside neighbours. Equation 2 predicts the
//! time of a message from latency and stalls that the network card counted meanwhile. Pearson's
//! correlation of predicted and simulated times over the medians of the allocations is taken for
//! each size; its mean over sizes is the result.
//!
//! Allocations take turns between four distances, which explain most of the correlation. Without the
//! mean of each distance only noise is left to explain, and the correlation is lower.
//!
//! `bias` is predicted over simulated time: a window slides, so that long messages wait for less
//! latency than the equation says.

use std::fmt;

use anyhow::{Context, Result};
use toroid_fabric::routes::counters::CYCLE_NS;
use toroid_fabric::routes::model::predicted_cycles;
use toroid_fabric::routes::{Operation, Sample};

use super::contender::Contender;
use super::experiment::{Experiment, Iterations, Machine};
use super::neighbours::Traffic;
use super::placement::Placement;
use super::workload::{Pattern, Workload};
use crate::simulate::turns::on_all_processors;
use crate::stats::{mean, median};
use crate::table;

/// A comparison of Equation 2 with the simulator.
#[derive(Clone, Debug)]
pub struct Comparison<'a> {
    pub global_links: u32,
    pub allocations: usize,
    /// Placements of the allocations, in turns.
    pub placements: &'a [Placement],
    pub sizes: &'a [usize],
    pub rounds: usize,
    pub seed: u64,
}

/// Correlation and bias of one size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OfSize {
    pub bytes: usize,
    /// Over the allocations' medians; `None` if one side does not vary.
    pub correlation: Option<f64>,
    /// The same over differences to the means of the placements.
    pub of_noise: Option<f64>,
    /// Median of predicted over simulated time.
    pub bias: f64,
}

impl fmt::Display for OfSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let correlation = table::decimals(self.correlation, 2);
        write!(f, "{} (r {correlation})", table::size(self.bytes))
    }
}

/// A message's median times on an allocation, in nanoseconds.
#[derive(Clone, Copy, Debug)]
struct Times {
    predicted: f64,
    simulated: f64,
}

impl Comparison<'_> {
    /// Compares all sizes.
    ///
    /// # Errors
    /// An experiment that stops.
    pub fn run(&self) -> Result<Vec<OfSize>> {
        let experiments: Vec<Experiment> = (0..self.allocations).map(|at| self.on(at)).collect();
        let allocations = on_all_processors(&experiments, |experiment| {
            let measured = experiment.run()?;
            let of_size = self.sizes.iter().zip(&measured.iterations);
            let times = of_size.map(|(bytes, iterations)| times(*bytes, iterations));
            times
                .collect::<Option<Vec<Times>>>()
                .context("a ping-pong without counters")
        })?;
        let of_size = |(at, bytes): (usize, &usize)| {
            let times: Vec<Times> = allocations.iter().map(|sizes| sizes[at]).collect();
            let bias: Vec<f64> = times.iter().map(|t| t.predicted / t.simulated).collect();
            OfSize {
                bytes: *bytes,
                correlation: pearson(&times),
                of_noise: pearson(&self.without_means(&times)),
                bias: median(&bias).unwrap_or(f64::NAN),
            }
        };
        Ok(self.sizes.iter().enumerate().map(of_size).collect())
    }

    /// Times less their mean over allocations of the same placement.
    fn without_means(&self, times: &[Times]) -> Vec<Times> {
        let turns = self.placements.len();
        let less_mean = |at: usize| {
            let same = times.iter().skip(at % turns).step_by(turns);
            let of_same = |of: fn(&Times) -> f64| mean(&same.clone().map(of).collect::<Vec<_>>());
            let less = |of: fn(&Times) -> f64| of(&times[at]) - of_same(of).unwrap_or_default();
            Times {
                predicted: less(|times| times.predicted),
                simulated: less(|times| times.simulated),
            }
        };
        (0..times.len()).map(less_mean).collect()
    }

    /// Ping-pongs of all sizes in turns on an allocation. Placements take turns.
    fn on(&self, allocation: usize) -> Experiment {
        let workload = |bytes| Workload {
            pattern: Pattern::PingPong,
            bytes,
        };
        let contender = |bytes: &usize| Contender::default_mode().with(workload(*bytes));
        Experiment {
            machine: Machine::small(self.global_links),
            workload: workload(0),
            ranks: 2,
            placement: self.placements[allocation % self.placements.len()],
            neighbours: Some((0.25, Traffic::with_pause_ns(30_000))),
            rounds: self.rounds,
            seed: self.seed + allocation as u64,
            contenders: self.sizes.iter().map(contender).collect(),
        }
    }
}

/// Mean of a correlation over all sizes: 0 if a side does not vary.
pub fn over_sizes(sizes: &[OfSize], of: fn(&OfSize) -> Option<f64>) -> Option<f64> {
    let all = sizes.iter().map(|size| of(size).unwrap_or_default());
    mean(&all.collect::<Vec<f64>>())
}

fn times(bytes: usize, iterations: &Iterations) -> Option<Times> {
    let network = iterations.latencies.iter().zip(&iterations.stalls);
    let predicted: Vec<f64> = network
        .map(|(latency, stalls)| {
            let sample = Sample {
                latency: *latency,
                stalls: *stalls,
            };
            predicted_cycles(bytes as u64, Operation::Put, &sample) * CYCLE_NS
        })
        .collect();
    Some(Times {
        predicted: median(&predicted)?,
        // There and back.
        simulated: median(&iterations.times)? / 2.0,
    })
}

/// Pearson's coefficient; `None` if a side does not vary.
fn pearson(times: &[Times]) -> Option<f64> {
    let [x, y]: [Vec<f64>; 2] = [
        times.iter().map(|t| t.predicted).collect(),
        times.iter().map(|t| t.simulated).collect(),
    ];
    let (x_mean, y_mean) = (mean(&x)?, mean(&y)?);
    let sum = |of: &dyn Fn(f64, f64) -> f64| {
        x.iter()
            .zip(&y)
            .map(|(x, y)| of(x - x_mean, y - y_mean))
            .sum::<f64>()
    };
    let product = sum(&|x, y| x * y);
    let deviations = (sum(&|x, _| x * x) * sum(&|_, y| y * y)).sqrt();
    (deviations > 0.0).then(|| product / deviations)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(times: &[(f64, f64)]) -> Vec<Times> {
        let of = |&(predicted, simulated): &(f64, f64)| Times {
            predicted,
            simulated,
        };
        times.iter().map(of).collect()
    }

    /// The values are those of `cor` of R.
    #[test]
    fn correlation_is_that_of_pearson() {
        let close = |found: Option<f64>, right: f64| (found.unwrap() - right).abs() < 1e-6;
        assert!(close(
            pearson(&all(&[(1.0, 2.0), (2.0, 4.0), (3.0, 6.0)])),
            1.0
        ));
        assert!(close(
            pearson(&all(&[(1.0, 2.0), (2.0, 1.0), (4.0, 5.0)])),
            0.838_628
        ));
        assert_eq!(pearson(&all(&[(1.0, 2.0), (1.0, 3.0)])), None);
    }

    /// Two distances, in turns: within each, the equation predicts the opposite.
    #[test]
    fn distance_is_no_correlation_of_noise() {
        let comparison = Comparison {
            global_links: 4,
            allocations: 4,
            placements: &Placement::ALL[..2],
            sizes: &[],
            rounds: 1,
            seed: 1,
        };
        let times = all(&[(1.0, 2.0), (11.0, 12.0), (2.0, 1.0), (12.0, 11.0)]);
        assert!(pearson(&times).unwrap() > 0.9);
        let noise = pearson(&comparison.without_means(&times)).unwrap();
        assert!((noise + 1.0).abs() < 1e-9, "{noise}");
    }
}
