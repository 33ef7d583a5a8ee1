//! The command `sweep`: a program under several links, in turns.

use std::fmt;
use std::time::Instant;

use clap::Args;
use toroid_model::link::{Latency, LinkError, LinkSpec, Rate};

use crate::cluster::ClusterError;
use crate::links::{Links, Under};
use crate::machine;
use crate::plan::Effort;
use crate::program::Program;
use crate::progress::Progress;
use crate::report::{Fields, Report, Row};
use crate::runner::Runner;
use crate::samples::{Samples, Series};
use crate::stats::{self, Estimate};
use crate::table::{self, Table};

/// Share of late transfers in a round.
const LATE_SHARE: &str = "late_share";

/// Draws of intervals.
const SEED: u64 = 1;

#[derive(Args, Clone, Debug)]
pub struct Options {
    #[command(flatten)]
    pub under: Under,

    /// Rates of the links, such as 10Gbit,425MB/s.
    #[arg(
        long,
        value_name = "RATE",
        value_delimiter = ',',
        required_unless_present = "latency"
    )]
    rate: Vec<Rate>,

    /// Latencies of the links, such as 0,5us,+2us; 0 sets none.
    #[arg(long, value_name = "TIME", value_delimiter = ',', value_parser = latency)]
    latency: Vec<Wanted>,

    /// Runs under each setting.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
}

/// A latency, or none.
type Wanted = Option<Latency>;

fn latency(text: &str) -> Result<Wanted, LinkError> {
    match text {
        "0" => Ok(None),
        text => text.parse().map(Some),
    }
}

/// A setting of all links of the domain; the default is no model.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Setting {
    rate: Option<Rate>,
    latency: Option<Latency>,
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.link() {
            link if link == LinkSpec::default() => write!(f, "without a model"),
            link => write!(f, "with {link}"),
        }
    }
}

impl Setting {
    fn link(self) -> LinkSpec {
        LinkSpec {
            rate: self.rate,
            latency: self.latency,
            ..LinkSpec::default()
        }
    }
}

/// No model, then all combinations. Without a rate or latency the other varies alone.
fn settings(rates: &[Rate], latencies: &[Wanted]) -> Vec<Setting> {
    let rates: Vec<Option<Rate>> = match rates {
        [] => vec![None],
        rates => rates.iter().copied().map(Some).collect(),
    };
    let latencies = if latencies.is_empty() {
        &[None]
    } else {
        latencies
    };
    let mut all = vec![Setting::default()];
    for &latency in latencies {
        for &rate in &rates {
            let setting = Setting { rate, latency };
            if !all.contains(&setting) {
                all.push(setting);
            }
        }
    }
    all
}

/// Runs the program under all settings. The links are then as before.
///
/// # Errors
/// The agent's refusal of a setting; the program's failure.
pub fn measure(options: &Options, progress: &Progress) -> Result<Report, ClusterError> {
    let start = Instant::now();
    let mut settings = settings(&options.rate, &options.latency);
    let mut program = Program::new(&options.under.command)?;
    let mut links = Links::of(&options.under)?;
    // A refused setting ends the command before the first run, not after some.
    for setting in &settings {
        links.set(setting.link())?;
    }
    progress.expect(settings.len() * options.rounds as usize + 1);
    progress.step("a first run, which does not count");
    links.set(LinkSpec::default())?;
    program.run()?;
    let mut runner = Runner::new(progress);
    for _ in 0..options.rounds {
        for setting in &settings {
            runner.turn(setting, |setting, _| {
                links.set(setting.link())?;
                let took = program.time()?;
                let mut samples = Samples::default().with(LATE_SHARE, links.late_share()?);
                samples.record(took, 0, true);
                Ok(samples)
            })?;
        }
        // Otherwise a setting would always follow the same one.
        settings.reverse();
    }
    links.restore()?;
    Ok(report(options, start, &runner.finish()))
}

/// The time of a setting over that without a model.
fn ratio(series: &Series, base: &Series) -> Option<Estimate> {
    let took = |round: &Samples| round.elapsed_ns as f64;
    let pairs = series.rounds().iter().zip(base.rounds());
    let pairs: Vec<_> = pairs
        .map(|(over, under)| (took(over), took(under)))
        .collect();
    stats::of_ratio(&pairs, SEED)
}

fn report(options: &Options, start: Instant, measured: &[(Setting, Series)]) -> Report {
    let find = |wanted: Setting| measured.iter().find(|(setting, _)| *setting == wanted);
    let base = find(Setting::default()).map(|(_, series)| series.clone());
    let base = base.unwrap_or_default();
    let row = |(setting, series): &(Setting, Series)| {
        let ratio = ratio(series, &base);
        Row::of(series)
            .label("rate", setting.rate)
            .label("latency", setting.latency)
            .figure("seconds", series.quantile_ns(0.5).map(|ns| ns / 1e9))
            .figure("ratio", ratio.map(|ratio| ratio.value))
            .figure("ci", ratio.map(|ratio| ratio.interval))
            .figure(LATE_SHARE, series.median(|round| round.figure(LATE_SHARE)))
    };
    let rows: Vec<Row> = measured.iter().map(row).collect();
    let config = Fields::default()
        .with("rounds", options.rounds)
        .and(options.under.fields());
    let mut report = Report::new(Effort::Default, start, config);
    report.rows("rows", &rows);
    let mut heads = vec!["Time over that without a model".to_owned()];
    let mut rates: Vec<Option<Rate>> = options.rate.iter().copied().map(Some).collect();
    if rates.is_empty() {
        rates.push(None);
    }
    heads.extend(rates.iter().map(|rate| text(*rate, "any rate")));
    heads.push("late".into());
    let heads: Vec<&str> = heads.iter().map(String::as_str).collect();
    let mut table = Table::new(1, &heads);
    let latencies: &[Wanted] = match &options.latency[..] {
        [] => &[None],
        latencies => latencies,
    };
    for &latency in latencies {
        let of = |rate: &Option<Rate>| {
            find(Setting {
                rate: *rate,
                latency,
            })
        };
        let cell = |rate| {
            let found = of(rate).and_then(|(_, series)| ratio(series, &base));
            found.map_or("-".into(), |ratio| {
                let [low, high] = [ratio.interval.low, ratio.interval.high].map(table::digits);
                format!("{} ({low} to {high})", table::digits(ratio.value))
            })
        };
        let late = rates.iter().filter_map(of);
        let late = late.filter_map(|(_, series)| series.median(|round| round.figure(LATE_SHARE)));
        let latest = late.reduce(f64::max);
        let first = text(latency, "no latency");
        let last = table::percent(latest);
        table.row(
            [first]
                .into_iter()
                .chain(rates.iter().map(cell))
                .chain([last]),
        );
    }
    report.text = format!(
        "{}\n{} in {} rounds, {:.0} s; without a model {}; late is the largest share of transfers later \
         than 1 us and 1 %\n\n{table}",
        machine::describe(),
        options.under.text(),
        options.rounds,
        start.elapsed().as_secs_f64(),
        table::time(base.quantile_ns(0.5)),
    );
    report
}

fn text(value: Option<impl fmt::Display>, none: &str) -> String {
    value.map_or_else(|| none.into(), |value| value.to_string())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::{Value, json};

    use super::*;
    use crate::links::tests::parse;

    fn texts(options: &Options) -> Vec<String> {
        let all = settings(&options.rate, &options.latency);
        all.iter().map(Setting::to_string).collect()
    }

    #[test]
    fn every_rate_meets_every_latency_once() {
        let options = parse("--rate 10Gbit,1Gbit --latency 0,5us,+2us -- true").unwrap();
        assert_eq!(
            texts(&options),
            [
                "without a model",
                "with rate=10Gbit",
                "with rate=1Gbit",
                "with latency=5us rate=10Gbit",
                "with latency=5us rate=1Gbit",
                "with latency=+2us rate=10Gbit",
                "with latency=+2us rate=1Gbit",
            ]
        );
        let options = parse("--latency 0,5us,5us -- true").unwrap();
        assert_eq!(texts(&options), ["without a model", "with latency=5us"]);
    }

    #[test]
    fn wrong_arguments_name_the_remedy() {
        for (line, wanted) in [
            ("--rate 5parsec -- true", "Gbit"),
            ("--latency 5 -- true", "us"),
            ("--rate 1Gbit", "COMMAND"),
            ("-- true", "--rate"),
            ("--rate 1Gbit --rounds 0 -- true", "1..=1000"),
        ] {
            let error = parse::<Options>(line).map(|_| ()).unwrap_err();
            assert!(error.contains(wanted), "{line}: {error}");
        }
    }

    #[test]
    fn the_table_is_normalized_by_the_runs_without_a_model() {
        let options: Options = parse("--rate 1Gbit --latency 0,50us -- true").unwrap();
        let measured: Vec<_> = settings(&options.rate, &options.latency)
            .into_iter()
            .map(|setting| {
                let factor = setting.latency.map_or(1, |_| 3) + setting.rate.map_or(0, |_| 1);
                let mut series = Series::default();
                for noise in [1, 9, 1, 1, 2] {
                    let mut samples = Samples::default().with(LATE_SHARE, 0.25);
                    samples.record(Duration::from_secs(2 * factor * noise), 0, true);
                    series.add(samples);
                }
                (setting, series)
            })
            .collect();
        let report = report(&options, Instant::now(), &measured);
        let json: Value = json!(report);
        let rows = json["rows"].as_array().unwrap();
        let row = json!({
            "rate": "1Gbit", "latency": "50us", "seconds": 8.0, "ratio": 4.0, "ci": [4.0, 4.0],
            "late_share": 0.25,
            "id": "1Gbit 50us", "rounds_of": "p50_ns", "rounds": [8e9, 72e9, 8e9, 8e9, 16e9],
        });
        assert_eq!((rows.len(), &rows[2]), (3, &row));
        assert_eq!(rows[0]["rate"], Value::Null);
        assert!(
            report.text.contains("4.00 (4.00 to 4.00)"),
            "{}",
            report.text
        );
        assert_eq!(json["config"]["command"], json!(["true"]));
        assert_eq!(json["config"]["domain"], "blue");
    }
}
