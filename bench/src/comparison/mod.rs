//! Comparison of two programs by the rounds of their rows: [`diff`] of two runs, [`ab`] in turns.
//!
//! Of each row the ratio of the medians is estimated with its bootstrap interval. The verdict also
//! needs a test of the logarithms of the rounds, corrected for the number of rows: one row or more
//! is wrongly called faster or slower in at most 5 % of comparisons.

pub mod ab;
pub mod diff;
pub mod run;

use serde::Serialize;

pub use run::RunError;

use crate::report::{Fields, Report};
use crate::stats::{self, Estimate, Location, Summary};
use crate::table::{Table, decimals, digits, percent, rate, time};

/// Probability of a wrong verdict.
const LEVEL: f64 = 0.05;

/// Draws of intervals.
const SEED: u64 = 24;

/// The verdict on a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    Slower,
    Faster,
    /// The rounds do not tell.
    Unclear,
    /// Within the threshold.
    Same,
}

/// The limits of a comparison, as shares.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// A difference up to this one counts as none.
    pub threshold: f64,
    /// A row is slower or faster by more than this.
    pub margin: f64,
    /// Whether rounds belong together in pairs.
    pub paired: bool,
}

/// A row of both sides.
#[derive(Clone, Debug)]
pub struct Sides {
    pub id: String,
    /// The name of the figure.
    pub of: String,
    pub old: Vec<f64>,
    pub new: Vec<f64>,
}

impl Sides {
    /// Whether all rounds are above 0. A figure that is a difference of times may have none or less
    /// in a round.
    fn have_ratio(&self) -> bool {
        self.old.iter().chain(&self.new).all(|round| *round > 0.0)
    }
}

/// A compared row.
#[derive(Clone, Debug)]
pub struct Compared {
    id: String,
    of: String,
    old: Summary,
    new: Summary,
    /// The new median over the old one.
    ratio: Estimate,
    /// Corrected for the number of rows.
    p: f64,
    pub verdict: Verdict,
    /// Whether the row is slower by more than the threshold.
    pub fails: bool,
}

/// What to say of rows left out.
fn note(left_out: &[String]) -> Option<String> {
    let first = left_out.first()?;
    Some(format!(
        "{} rows left out, the first is {first}",
        left_out.len()
    ))
}

/// Compares all rows; slower ones are first. Rows without rounds on a side are left out.
pub fn compare(rows: Vec<Sides>, limits: Limits) -> Vec<Compared> {
    let tested: Vec<_> = rows
        .into_iter()
        .filter_map(|row| Some((difference(&row, limits.paired)?, row)))
        .collect();
    let margin = limits.margin.ln_1p();
    let values: Vec<f64> = tested.iter().map(|(it, _)| it.beyond(margin)).collect();
    let corrected = stats::holm(&values).into_iter();
    let judged = tested
        .into_iter()
        .zip(corrected)
        .filter_map(|((difference, row), p)| judge(row, difference, p, limits));
    let mut judged: Vec<Compared> = judged.collect();
    judged.sort_by_key(|row| row.verdict);
    judged
}

/// The logarithm of the ratio, new over old.
fn difference(row: &Sides, paired: bool) -> Option<Location> {
    let logarithms = |rounds: &[f64]| -> Vec<f64> { rounds.iter().map(|x| x.ln()).collect() };
    let [old, new] = [logarithms(&row.old), logarithms(&row.new)];
    if paired {
        let each: Vec<f64> = old.iter().zip(&new).map(|(old, new)| new - old).collect();
        return Location::of(&each);
    }
    Some(Location::of(&new)?.minus(Location::of(&old)?))
}

fn judge(row: Sides, difference: Location, p: f64, limits: Limits) -> Option<Compared> {
    let ratio = if limits.paired {
        let pairs: Vec<_> = row
            .new
            .iter()
            .copied()
            .zip(row.old.iter().copied())
            .collect();
        stats::of_ratio(&pairs, SEED)?
    } else {
        stats::of_unpaired_ratio(&row.new, &row.old, SEED)?
    };
    let [low, high] = [ratio.interval.low, ratio.interval.high];
    let [margin, threshold] = [1.0 + limits.margin, 1.0 + limits.threshold];
    let is_within = low >= 1.0 / threshold && high <= threshold;
    // Of rates, more is faster.
    let [more, less] = if is_rate(&row.of) {
        [Verdict::Faster, Verdict::Slower]
    } else {
        [Verdict::Slower, Verdict::Faster]
    };
    let verdict = if is_within && difference.within(limits.threshold.ln_1p()) < LEVEL / 2.0 {
        Verdict::Same
    } else if p < LEVEL && low > margin {
        more
    } else if p < LEVEL && high < 1.0 / margin {
        less
    } else {
        Verdict::Unclear
    };
    let beyond = ratio.value.max(1.0 / ratio.value) > threshold;
    Some(Compared {
        old: Summary::of(&row.old)?,
        new: Summary::of(&row.new)?,
        id: row.id,
        of: row.of,
        ratio,
        p,
        verdict,
        fails: verdict == Verdict::Slower && beyond,
    })
}

/// Whether more of a figure is better.
fn is_rate(of: &str) -> bool {
    of.ends_with("_per_s") || of == "pps"
}

impl Compared {
    pub fn fields(&self) -> Fields {
        Fields::default()
            .with("row", &self.id)
            .with("rounds_of", &self.of)
            .with("old", &self.old)
            .with("new", &self.new)
            .with("ratio", self.ratio.value)
            .with("ci", self.ratio.interval)
            .with("p", self.p)
            .with("verdict", self.verdict)
    }
}

/// The number of rows with each verdict.
pub fn counts(rows: &[Compared]) -> Fields {
    use Verdict::{Faster, Same, Slower, Unclear};
    let all = [
        (Same, "same"),
        (Faster, "faster"),
        (Slower, "slower"),
        (Unclear, "unclear"),
    ];
    all.into_iter()
        .fold(Fields::default(), |fields, (verdict, name)| {
            fields.with(
                name,
                rows.iter().filter(|row| row.verdict == verdict).count(),
            )
        })
}

/// A share in percent, such as `5%`, or as a fraction.
fn share(text: &str) -> Result<f64, &'static str> {
    let (number, unit) = match text.strip_suffix('%') {
        Some(number) => (number, 100.0),
        None => (text, 1.0),
    };
    let share = number.trim().parse::<f64>().map(|number| number / unit);
    let share = share.ok().filter(|share| (0.0..=10.0).contains(share));
    share.ok_or("not between 0% and 1000%; write 5% or 0.05")
}

/// Adds the compared rows to a report, and its failure if rows are too slow.
fn finish(report: &mut Report, compared: &[Compared], threshold: f64) {
    report.object("verdicts", counts(compared));
    report.list("rows", compared.iter().map(Compared::fields).collect());
    let slower = compared.iter().filter(|row| row.fails).count();
    if slower > 0 {
        let threshold = percent(Some(threshold));
        report.failure = Some(format!("{slower} rows are slower by more than {threshold}"));
    }
}

/// The number of rows with each verdict, as text.
fn verdicts(compared: &[Compared]) -> String {
    let counts = serde_json::json!(counts(compared));
    let of = |name: &str| format!("{} {name}", counts[name]);
    let parts = ["slower", "faster", "unclear", "same"].map(of);
    format!("{} rows: {}", compared.len(), parts.join(", "))
}

/// The table of compared rows.
pub fn table(rows: &[Compared]) -> Table {
    let heads = ["row", "old", "new", "new/old", "95 %", "p", "rounds", "QCD"];
    let mut table = Table::new(1, &[&["verdict"], &heads[..]].concat());
    for row in rows {
        let show = |value: f64| match row.of.as_str() {
            of if of.ends_with("_ns") => time(Some(value)),
            "bytes_per_s" | "together_bytes_per_s" => rate(Some(value)),
            of if is_rate(of) => format!("{}/s", digits(value)),
            _ => digits(value),
        };
        let [low, high] = [row.ratio.interval.low, row.ratio.interval.high];
        let both = |of: fn(&Summary) -> String| format!("{}, {}", of(&row.old), of(&row.new));
        table.row([
            crate::report::name(row.verdict),
            row.id.clone(),
            show(row.old.median),
            show(row.new.median),
            decimals(Some(row.ratio.value), 3),
            format!("{low:.3}-{high:.3}"),
            decimals(Some(row.p), 4),
            both(|side| side.rounds.len().to_string()),
            both(|side| decimals(Some(side.qcd), 3)),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Limits of `diff`.
    const DIFF: Limits = Limits {
        threshold: 0.05,
        margin: 0.05,
        paired: false,
    };

    /// A round on a noisy machine: 3 % of noise, and in every tenth round other work.
    fn round(random: &mut fastrand::Rng, mean: f64) -> f64 {
        let noise: f64 = (0..4).map(|_| random.f64() - 0.5).sum();
        let other = if random.f64() < 0.1 {
            1.3 + random.f64()
        } else {
            1.0
        };
        mean * (1.0 + 0.05 * noise) * other
    }

    fn sides(random: &mut fastrand::Rng, id: usize, rounds: usize, ratio: f64) -> Sides {
        let mean = 100.0 * (1 + id) as f64;
        let mut of = |mean| (0..rounds).map(|_| round(random, mean)).collect();
        Sides {
            id: id.to_string(),
            of: "p50_ns".into(),
            old: of(mean),
            new: of(mean * ratio),
        }
    }

    fn verdicts(compared: &[Compared], wanted: Verdict) -> usize {
        compared.iter().filter(|row| row.verdict == wanted).count()
    }

    #[test]
    fn at_most_one_in_twenty_equal_runs_differs() {
        let pairs = Limits {
            margin: 0.0,
            paired: true,
            ..DIFF
        };
        for (limits, rows, rounds) in [(DIFF, 3, 9), (pairs, 1, 9), (pairs, 1, 5)] {
            let differs = |seed: &u64| {
                let mut random = fastrand::Rng::with_seed(*seed);
                let rows = (0..rows).map(|id| sides(&mut random, id, rounds, 1.0));
                let compared = compare(rows.collect(), limits);
                verdicts(&compared, Verdict::Slower) + verdicts(&compared, Verdict::Faster) > 0
            };
            let count = (0..1000).filter(differs).count();
            assert!(
                count <= 50,
                "{count} of 1,000 with {limits:?}, {rounds} rounds"
            );
        }
    }

    #[test]
    fn a_row_slower_by_a_fifth_is_found_between_many() {
        let finds = |seed: &u64| {
            let mut random = fastrand::Rng::with_seed(*seed);
            let ratio = |id| if id == 7 { 1.2 } else { 1.0 };
            let rows = (0..20)
                .map(|id| sides(&mut random, id, 15, ratio(id)))
                .collect();
            let compared = compare(rows, DIFF);
            let first = &compared[0];
            first.id == "7" && first.fails && verdicts(&compared, Verdict::Slower) == 1
        };
        let found = (0..20).filter(finds).count();
        assert!(found >= 18, "{found} of 20");
    }

    #[test]
    fn three_percent_are_found_in_pairs_on_a_machine_that_drifts() {
        let limits = Limits {
            threshold: 0.01,
            margin: 0.0,
            paired: true,
        };
        let finds = |seed: &u64| {
            let mut random = fastrand::Rng::with_seed(*seed);
            let (mut old, mut new) = (Vec::new(), Vec::new());
            for _ in 0..15 {
                // The machine is up to 40 % slower in some rounds, for both.
                let drift = 1.0 + 0.4 * random.f64();
                let mut noisy =
                    |mean: f64| mean * drift * (0.98 + 0.02 * (random.f64() + random.f64()));
                old.push(noisy(100.0));
                new.push(noisy(103.0));
            }
            let (id, of) = ("get".into(), "p50_ns".into());
            compare(vec![Sides { id, of, old, new }], limits)[0].fails
        };
        let found = (0..20).filter(finds).count();
        assert!(found >= 18, "{found} of 20");
    }

    #[test]
    fn verdicts_follow_the_figure_and_the_threshold() {
        let of = |figure: &str, new: [f64; 5]| {
            let row = Sides {
                id: "get".into(),
                of: figure.into(),
                old: vec![99.0, 100.0, 101.0, 100.5, 99.5],
                new: new.into(),
            };
            let found = &compare(vec![row], DIFF)[0];
            (found.verdict, found.fails)
        };
        let more = [148.0, 150.0, 152.0, 151.0, 149.0];
        assert_eq!(of("p50_ns", more), (Verdict::Slower, true));
        assert_eq!(of("ops_per_s", more), (Verdict::Faster, false));
        let less = more.map(|value| value / 2.0);
        assert_eq!(of("p50_ns", less), (Verdict::Faster, false));
        assert_eq!(of("pps", less), (Verdict::Slower, true));
        assert_eq!(
            of("p50_ns", [100.0, 101.0, 99.0, 100.2, 99.9]),
            (Verdict::Same, false)
        );
        assert_eq!(
            of("p50_ns", [60.0, 150.0, 100.0, 170.0, 90.0]),
            (Verdict::Unclear, false)
        );
    }
}
