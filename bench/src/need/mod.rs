//! The command `need`: how much network does a program need?
//!
//! [`decide`] runs the program without and with limits in turns, [`search`] chooses the limits.

pub mod decide;
pub mod search;

use std::time::Instant;

use clap::{Args, ValueEnum};
use serde::Serialize;
use toroid_model::link::{Latency, LinkSpec, Rate, Share};

use self::decide::{Compared, Found, Run};
use self::search::{Answer, Axis, Verdict};
use crate::cluster::ClusterError;
use crate::links::{Links, Under};
use crate::machine;
use crate::plan::Effort;
use crate::program;
use crate::progress::Progress;
use crate::report::{Fields, Report, name};
use crate::table::{self, Table};

#[derive(Args, Clone, Debug)]
pub struct Options {
    #[command(flatten)]
    pub under: Under,

    /// Longest time of the program, as a share of its time without a model that comes on top.
    #[arg(long, value_name = "PERCENT", value_parser = positive)]
    within: Share,

    /// The property of the links in question.
    #[arg(long, value_enum, default_value_t = Property::Rate)]
    what: Property,
}

fn positive(text: &str) -> Result<Share, String> {
    match text.parse() {
        Ok(Share(0)) => Err("runs are never exactly equal; give more than 0%".into()),
        parsed => parsed.map_err(|error: toroid_model::link::LinkError| error.to_string()),
    }
}

/// A property of links.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
enum Property {
    /// The lowest rate, from 100 Gbit/s down to 1 Mbit/s.
    Rate,
    /// The longest latency on top of the machine's own, from 1 us up to 100 ms.
    Latency,
}

impl Property {
    /// Bits per second, or nanoseconds.
    fn axis(self) -> Axis {
        match self {
            Property::Rate => Axis {
                mild: 100e9,
                harsh: 1e6,
            },
            Property::Latency => Axis {
                mild: 1e3,
                harsh: 100e6,
            },
        }
    }

    fn unit(self) -> &'static str {
        match self {
            Property::Rate => "bit/s",
            Property::Latency => "ns",
        }
    }

    /// The setting of a value in [`Property::unit`].
    fn link(self, value: f64) -> LinkSpec {
        let mut link = LinkSpec::default();
        match self {
            Property::Rate => link.rate = Some(Rate((value / 8.0) as u64)),
            Property::Latency => {
                link.latency = Some(Latency {
                    nanos: value as u64,
                    on_top: true,
                });
            }
        }
        link
    }

    fn text(self, value: f64) -> String {
        match self {
            Property::Rate if value < 999.5e6 => format!("{} Mbit/s", table::digits(value / 1e6)),
            Property::Rate => format!("{} Gbit/s", table::digits(value / 1e9)),
            Property::Latency => format!("+{}", table::time(Some(value))),
        }
    }
}

/// The program with its links.
struct Limited<'a> {
    program: program::Program,
    links: &'a mut Links,
    what: Property,
}

impl decide::Program for Limited<'_> {
    type Error = ClusterError;

    fn run(&mut self, setting: Option<f64>) -> Result<Run, ClusterError> {
        let link = setting.map_or_else(LinkSpec::default, |value| self.what.link(value));
        self.links.set(link)?;
        Ok(Run {
            seconds: self.program.time()?.as_secs_f64(),
            late_share: self.links.late_share()?,
        })
    }
}

/// Finds the need. The links are then as before.
///
/// # Errors
/// The agent's refusal; the program's failure.
pub fn measure(options: &Options, progress: &Progress) -> Result<Report, ClusterError> {
    let (start, what) = (Instant::now(), options.what);
    let within = options.within.of_one();
    let program = program::Program::new(&options.under.command)?;
    let mut links = Links::of(&options.under)?;
    let mut limited = Limited {
        program,
        links: &mut links,
        what,
    };
    progress.say("a first run, which does not count");
    decide::Program::run(&mut limited, None)?;
    let found = decide::decide(&mut limited, what.axis(), within, |compared| {
        progress.say(format!(
            "{}: {}",
            what.text(compared.setting),
            ratio(compared)
        ));
    })?;
    links.restore()?;
    Ok(report(options, start, &found))
}

/// What the answer says, with both ends of the interval in the unit of the property.
fn verdict(what: Property, answer: Answer) -> (&'static str, Option<f64>, [Option<f64>; 2]) {
    let at = |depth| what.axis().at(depth);
    let ends = |one: Option<f64>, other: Option<f64>| {
        let mut ends = [one.map(at), other.map(at)];
        if what == Property::Rate {
            ends.reverse();
        }
        ends
    };
    match answer {
        Answer::Between(within, over) => {
            let middle = at((within + over) / 2.0);
            ("found", Some(middle), ends(Some(within), Some(over)))
        }
        Answer::Harshest => ("any", None, ends(Some(1.0), None)),
        Answer::Mildest => ("none", None, ends(None, Some(0.0))),
        Answer::Undecided(within, over) => ("undecided", None, ends(within, over)),
    }
}

fn sentence(options: &Options, answer: Answer) -> String {
    let (what, within) = (options.what, options.within);
    let under = options.under.text();
    let (_, middle, [low, high]) = verdict(what, answer);
    let text = |value: Option<f64>| value.map_or_else(|| "?".into(), |value| what.text(value));
    let property = name(what);
    match answer {
        Answer::Between(..) => {
            let verb = match what {
                Property::Rate => "needs",
                Property::Latency => "tolerates",
            };
            format!(
                "{under} {verb} {} (95 %: {} to {}): within {within} of its time without a model",
                text(middle),
                text(low),
                text(high)
            )
        }
        Answer::Harshest => format!(
            "{under} stays within {within} at every {property}, also at {}",
            text(low.or(high))
        ),
        Answer::Mildest => format!(
            "{under} takes over {within} longer at every {property}, also at {}",
            text(low.or(high))
        ),
        Answer::Undecided(..) => format!(
            "undecided: {under} varies too much between runs for {within}; the {property} is between \
             {} and {}; make its runs longer, the machine calmer, or the share larger",
            text(low),
            text(high)
        ),
    }
}

fn ratio(compared: &Compared) -> String {
    let ratio = &compared.ratio;
    let [value, low, high] = [ratio.value, ratio.interval.low, ratio.interval.high];
    format!("{value:.3} ({low:.3} to {high:.3})")
}

fn report(options: &Options, start: Instant, found: &Found) -> Report {
    let what = options.what;
    let (verdict, middle, interval) = verdict(what, found.answer);
    let mut report = Report::new(Effort::Default, start, options.under.fields());
    report.fields(
        Fields::default()
            .with("what", what)
            .with("unit", what.unit())
            .with("within", options.within.of_one())
            .with("verdict", verdict)
            .with("answer", middle)
            .with("interval", interval),
    );
    let heads = [
        name(what),
        "pairs".into(),
        "time over that without".into(),
        "late".into(),
        String::new(),
    ];
    let mut table = Table::new(1, &heads.each_ref().map(String::as_str));
    let mut compared = Vec::new();
    for one in &found.compared {
        let words = match one.verdict {
            Verdict::Within => "within",
            Verdict::Over => "over",
            Verdict::Undecided => "undecided",
        };
        compared.push(
            Fields::default()
                .with("set", one.setting)
                .with("pairs", one.pairs)
                .with("ratio", one.ratio.value)
                .with("ci", one.ratio.interval)
                .with("late_share", one.late_share)
                .with("verdict", words),
        );
        table.row([
            what.text(one.setting),
            one.pairs.to_string(),
            ratio(one),
            table::percent(one.late_share),
            words.into(),
        ]);
    }
    report.list("compared", compared);
    report.text = format!(
        "{}\n{} comparisons, {:.0} s\n\n{table}\n{}\n",
        machine::describe(),
        found.compared.len(),
        start.elapsed().as_secs_f64(),
        sentence(options, found.answer),
    );
    report
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::links::tests::parse;
    use crate::stats::{Estimate, Interval};

    fn report_of(line: &str, answer: Answer) -> (Value, String) {
        let interval = Interval {
            low: 1.0,
            high: 1.02,
        };
        let compared = Compared {
            setting: 1e9,
            ratio: Estimate {
                value: 1.01,
                interval,
            },
            pairs: 5,
            late_share: Some(0.002),
            verdict: Verdict::Within,
        };
        let found = Found {
            answer,
            compared: vec![compared],
        };
        let report = report(&parse(line).unwrap(), Instant::now(), &found);
        (json!(report), report.text)
    }

    #[test]
    fn an_answer_has_both_ends_in_its_unit() {
        // A fifth of the axis is a decade.
        let (json, text) = report_of("--within 5% -- true", Answer::Between(0.4, 0.6));
        let rounded = |value: &Value| value.as_f64().unwrap().round();
        assert_eq!(
            (&json["verdict"], &json["within"]),
            (&json!("found"), &json!(0.05))
        );
        assert_eq!(rounded(&json["answer"]), 316_227_766.0);
        assert_eq!(rounded(&json["interval"][0]), 1e8);
        assert_eq!(rounded(&json["interval"][1]), 1e9);
        let compared = json!([{
            "set": 1e9, "pairs": 5, "ratio": 1.01, "ci": [1.0, 1.02], "late_share": 0.002,
            "verdict": "within",
        }]);
        assert_eq!(json["compared"], compared);
        let end = "needs 316 Mbit/s (95 %: 100 Mbit/s to 1.00 Gbit/s): within 5% of its time without \
                   a model\n";
        assert!(text.ends_with(end), "{text}");
        let latency = "--within 5% --what latency -- true";
        let (json, text) = report_of(latency, Answer::Between(0.2, 0.4));
        assert_eq!(rounded(&json["interval"][0]), 1e4);
        assert_eq!(
            (&json["what"], &json["unit"]),
            (&json!("latency"), &json!("ns"))
        );
        assert!(
            text.contains("tolerates +31.6 us (95 %: +10.0 us to +100 us)"),
            "{text}"
        );
    }

    #[test]
    fn other_answers_are_words() {
        for (answer, verdict, interval, words) in [
            (
                Answer::Harshest,
                "any",
                json!([null, 1e6]),
                "also at 1.00 Mbit/s",
            ),
            (
                Answer::Mildest,
                "none",
                json!([1e11, null]),
                "also at 100 Gbit/s",
            ),
            (
                Answer::Undecided(None, None),
                "undecided",
                json!([null, null]),
                "calmer",
            ),
        ] {
            let (json, text) = report_of("--within 5% -- true", answer);
            assert_eq!(
                (&json["verdict"], &json["answer"]),
                (&json!(verdict), &Value::Null)
            );
            let rounded = |end: &Value| end.as_f64().map(f64::round);
            let found = [&json["interval"][0], &json["interval"][1]].map(rounded);
            assert_eq!(json!(found), interval);
            assert!(text.contains(words), "{text}");
        }
    }

    #[test]
    fn wrong_arguments_name_the_remedy() {
        for (line, wanted) in [
            ("-- true", "--within"),
            ("--within 0% -- true", "more than 0%"),
            ("--within five -- true", "%"),
            ("--within 5%", "COMMAND"),
            ("--within 5% --what loss -- true", "latency"),
        ] {
            let error = parse::<Options>(line).map(|_| ()).unwrap_err();
            assert!(error.contains(wanted), "{line}: {error}");
        }
    }

    #[test]
    fn a_setting_is_one_property() {
        let rate = Property::Rate.link(200e6);
        assert_eq!(rate, "rate=200Mbit".parse().unwrap());
        let latency = Property::Latency.link(5e3);
        assert_eq!(latency, "latency=+5us".parse().unwrap());
    }
}
