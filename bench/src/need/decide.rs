//! The decision: how much network does a program need?

use super::search::{Answer, Axis, Search, Verdict};
use crate::stats::{self, Estimate, median};

/// The fewest pairs of runs of a comparison. An interval of fewer holds the median too seldom.
const FEWEST: usize = 5;

/// The most pairs of runs of a comparison.
const MOST: usize = 15;

/// A program whose network can be limited.
pub trait Program {
    type Error;

    /// Runs the program once, without a limit or with the given one.
    fn run(&mut self, setting: Option<f64>) -> Result<Run, Self::Error>;
}

/// A run of a program.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    pub seconds: f64,
    /// Share of transfers that left limited links late; `None` without transfers.
    pub late_share: Option<f64>,
}

/// A setting compared with no limit.
#[derive(Clone, Copy, Debug)]
pub struct Compared {
    pub setting: f64,
    /// Time with the setting over time without.
    pub ratio: Estimate,
    pub pairs: usize,
    /// Median of [`Run::late_share`] with the setting.
    pub late_share: Option<f64>,
    pub verdict: Verdict,
}

/// The answer with all comparisons, in their order.
#[derive(Clone, Debug)]
pub struct Found {
    pub answer: Answer,
    pub compared: Vec<Compared>,
}

/// Finds the harshest setting under which the program takes at most `1 + within` times as long as
/// without a limit. `watch` sees each comparison.
///
/// # Errors
/// The program's.
pub fn decide<P: Program>(
    program: &mut P,
    axis: Axis,
    within: f64,
    mut watch: impl FnMut(&Compared),
) -> Result<Found, P::Error> {
    let (mut search, mut all) = (Search::of(axis), Vec::new());
    while let Some(depth) = search.next() {
        let compared = compare(program, axis.at(depth), 1.0 + within, all.len() as u64)?;
        watch(&compared);
        search.tried(depth, compared.verdict);
        all.push(compared);
    }
    Ok(Found {
        answer: search.answer(),
        compared: all,
    })
}

/// Runs the program without and with `setting` in turns, until the interval of the ratio is on one
/// side of `limit`.
fn compare<P: Program>(
    program: &mut P,
    setting: f64,
    limit: f64,
    seed: u64,
) -> Result<Compared, P::Error> {
    let (mut pairs, mut late) = (Vec::new(), Vec::new());
    loop {
        // The order changes, so that neither always follows the other.
        let limited_first = pairs.len() % 2 == 1;
        let order = [limited_first, !limited_first].map(|limited| limited.then_some(setting));
        let mut runs = [program.run(order[0])?, program.run(order[1])?];
        if !limited_first {
            runs.reverse();
        }
        let [limited, alone] = runs;
        pairs.push((limited.seconds, alone.seconds));
        late.extend(limited.late_share);
        if pairs.len() < FEWEST {
            continue;
        }
        let Some(ratio) = stats::of_ratio(&pairs, seed) else {
            continue;
        };
        let verdict = verdict(&ratio, limit);
        if verdict != Verdict::Undecided || pairs.len() >= MOST {
            return Ok(Compared {
                setting,
                ratio,
                pairs: pairs.len(),
                late_share: median(&late),
                verdict,
            });
        }
    }
}

fn verdict(ratio: &Estimate, limit: f64) -> Verdict {
    if ratio.interval.high <= limit {
        Verdict::Within
    } else if ratio.interval.low > limit {
        Verdict::Over
    } else {
        Verdict::Undecided
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATES: Axis = Axis {
        mild: 100e9,
        harsh: 1e6,
    };

    const WITHIN: f64 = 0.05;

    /// A program of known need on a noisy machine.
    struct Planted<F> {
        /// Relative time by setting.
        time: F,
        /// Spread of a run's time.
        noise: f64,
        random: fastrand::Rng,
        runs: usize,
        /// Sum of the relative times.
        took: f64,
    }

    impl<F: Fn(f64) -> f64> Program for Planted<F> {
        type Error = std::convert::Infallible;

        fn run(&mut self, setting: Option<f64>) -> Result<Run, Self::Error> {
            let random = &mut self.random;
            let noise = self.noise * (2.0 * random.f64() + 2.0 * random.f64() - 2.0);
            // Now and then other work holds the machine.
            let hold = if random.f64() < 0.05 { 0.5 } else { 0.0 };
            let time = setting.map_or(1.0, &self.time);
            self.runs += 1;
            self.took += time;
            Ok(Run {
                seconds: time * (1.0 + noise.abs() + hold),
                late_share: setting.map(|_| 0.001),
            })
        }
    }

    fn planted<F: Fn(f64) -> f64>(seed: u64, noise: f64, time: F) -> Planted<F> {
        Planted {
            time,
            noise,
            random: fastrand::Rng::with_seed(seed),
            runs: 0,
            took: 0.0,
        }
    }

    /// Both ends of the answered interval; panics on another answer.
    fn between(axis: Axis, program: &mut Planted<impl Fn(f64) -> f64>) -> [f64; 2] {
        let found = decide(program, axis, WITHIN, |_| {}).unwrap();
        match found.answer {
            Answer::Between(within, over) => [axis.at(within), axis.at(over)],
            other => panic!("{other:?} after {:?}", found.compared),
        }
    }

    /// Number of seeds for which the middle of the answer is within 10 % of 200 Mbit/s.
    fn right(noise: f64, time: impl Fn(f64) -> f64 + Copy) -> usize {
        let middle = |seed| {
            let [within, over] = between(RATES, &mut planted(seed, noise, time));
            (within * over).sqrt()
        };
        let right = |seed: &u64| (180e6..=220e6).contains(&middle(*seed));
        (0..20).filter(right).count()
    }

    #[test]
    fn a_program_that_streams_200_mbit_is_found_within_a_tenth() {
        // The stream overlaps with the work: over the limit below 210 / 1.05 Mbit/s.
        let right = right(0.02, |rate| f64::max(1.0, 210e6 / rate));
        assert!(right >= 19, "{right} of 20");
    }

    #[test]
    fn a_program_that_waits_for_its_bytes_is_found_within_a_tenth() {
        // A tenth of the rate changes the time by half a percent only.
        let right = right(0.003, |rate| 1.0 + WITHIN * 200e6 / rate);
        assert!(right >= 19, "{right} of 20");
    }

    #[test]
    fn a_tolerated_latency_is_found() {
        let latencies = Axis {
            mild: 1e3,
            harsh: 1e8,
        };
        // 1,000 round trips in a second: 5 % are 25 us of one way.
        let mut program = planted(1, 0.003, |latency| 1.0 + 1000.0 * 2.0 * latency / 1e9);
        let [within, over] = between(latencies, &mut program);
        assert!(within < over && over < 1.2 * within, "{within} {over}");
        assert!((20e3..=30e3).contains(&within), "{within}");
    }

    #[test]
    fn no_run_is_much_slower_than_the_limit() {
        let mut program = planted(2, 0.02, |rate| f64::max(1.0, 210e6 / rate));
        between(RATES, &mut program);
        assert!(program.runs < 300, "{} runs", program.runs);
        assert!(program.took < 2.0 * program.runs as f64);
    }

    #[test]
    fn a_program_without_need_keeps_the_limit_everywhere() {
        let mut program = planted(3, 0.02, |_| 1.0);
        let found = decide(&mut program, RATES, WITHIN, |_| {}).unwrap();
        assert_eq!(found.answer, Answer::Harshest);
        // The deepest setting was compared twice.
        let deepest = found.compared.iter().filter(|one| one.setting < 1.01e6);
        assert_eq!(deepest.count(), 2);
        let late = found.compared.iter().map(|one| one.late_share);
        assert!(late.into_iter().all(|share| share == Some(0.001)));
    }

    #[test]
    fn a_program_slowed_by_any_limit_exceeds_it_at_once() {
        let found = decide(&mut planted(4, 0.02, |_| 1.2), RATES, WITHIN, |_| {}).unwrap();
        assert_eq!(found.answer, Answer::Mildest);
        assert_eq!(found.compared.len(), 2);
    }

    #[test]
    fn a_machine_with_too_much_noise_leaves_it_undecided() {
        let mut program = planted(5, 0.3, |rate| f64::max(1.0, 210e6 / rate));
        let found = decide(&mut program, RATES, WITHIN, |_| {}).unwrap();
        assert!(matches!(found.answer, Answer::Undecided(..)), "{found:?}");
        assert!(found.compared.iter().all(|one| one.pairs <= MOST));
    }

    #[test]
    fn a_failed_run_ends_the_search() {
        struct Fails;
        impl Program for Fails {
            type Error = &'static str;

            fn run(&mut self, setting: Option<f64>) -> Result<Run, Self::Error> {
                let run = Run {
                    seconds: 1.0,
                    late_share: None,
                };
                setting.map_or(Ok(run), |_| Err("status 1"))
            }
        }
        let failed = decide(&mut Fails, RATES, WITHIN, |_| {});
        assert_eq!(failed.unwrap_err(), "status 1");
    }
}
