//! Findings of the paper: found here or not, with the figures that say so.

use std::fmt::Write;

use super::contender::Contender;
use super::experiment::{Experiment, Measured};
use super::placement::Placement;
use super::plan::{FEW_LINKS, LARGE_EXCHANGE, MANY_LINKS, SMALL, SMALL_EXCHANGE, TINY};
use super::rows::{normalised, qcd, time};
use super::workload::Pattern;
use crate::report::Fields;
use crate::stats::{Estimate, Summary, median};
use crate::table;

const DEFAULT: &str = Contender::DEFAULT;
const HIGH_BIAS: &str = Contender::HIGH_BIAS;
const AUTO: &str = Contender::AUTO;

/// Time by which auto may exceed the better static mode.
const NEAR: f64 = 1.1;

/// Share of the cases in which auto is near.
const MOST: f64 = 0.8;

/// Share of decisions that switch modes above which auto oscillates.
const OSCILLATES: f64 = 0.1;

/// A claim of the paper beside figures of the simulator.
#[derive(Clone, Debug, PartialEq)]
pub struct Finding {
    pub name: &'static str,
    pub claim: &'static str,
    /// `None` if the experiments were not part of the run.
    pub is_found: Option<bool>,
    /// The figure that decides, such as a ratio of times.
    pub figure: Option<f64>,
    pub evidence: String,
}

impl Finding {
    /// The finding as an object.
    pub fn fields(&self) -> Fields {
        Fields::default()
            .with("finding", self.name)
            .with("claim", self.claim)
            .with("found", self.is_found)
            .with("figure", self.figure)
            .with("evidence", &self.evidence)
    }
}

/// The findings as lines for people.
pub fn text(findings: &[Finding]) -> String {
    let mut text = String::new();
    for finding in findings {
        let verdict = match finding.is_found {
            Some(true) => "found",
            Some(false) => "NOT FOUND",
            None => "not run",
        };
        let Finding {
            name,
            claim,
            evidence,
            ..
        } = finding;
        let _ = writeln!(text, "{verdict:9}  {name}: {claim}\n           {evidence}");
    }
    text
}

/// The findings that rows show.
pub fn all(measured: &[Measured]) -> Vec<Finding> {
    let all = All(measured);
    let of = |(name, claim, decide): (_, _, fn(&All<'_>) -> Option<Verdict>)| {
        let verdict = decide(&all);
        Finding {
            name,
            claim,
            is_found: verdict.as_ref().map(|verdict| verdict.is_found),
            figure: verdict.as_ref().map(|verdict| verdict.figure),
            evidence: match verdict {
                Some(verdict) => verdict.evidence,
                None => "its experiments were not chosen".into(),
            },
        }
    };
    CLAIMS.map(of).into()
}

/// Whether the finding is there, the figure that decides, and all figures.
struct Verdict {
    is_found: bool,
    figure: f64,
    evidence: String,
}

type Claim = (&'static str, &'static str, fn(&All<'_>) -> Option<Verdict>);

const CLAIMS: [Claim; 12] = [
    (
        "intra-group",
        "within a group the default mode is faster, as high bias stalls more",
        |all| all.intra_group(),
    ),
    (
        "inter-group",
        "between groups high bias is faster and its latency lower, with many global links",
        |all| all.inter_group(),
    ),
    (
        "calm",
        "between groups latency varies less with high bias, with many global links",
        |all| all.calm(),
    ),
    (
        "few-links",
        "with few global links the default mode is faster between groups",
        |all| all.few_links(),
    ),
    (
        "phantom-congestion",
        "old information sends more packets the long way for nothing",
        |all| all.phantom(),
    ),
    (
        "alltoall",
        "small exchanges between all are faster with high bias, large ones with the default mode",
        |all| all.alltoall(),
    ),
    (
        "auto",
        "auto is within 10 % of the better static mode in 80 % of the cases",
        |all| all.auto(),
    ),
    (
        "broadcast",
        "auto oscillates between modes in a large broadcast",
        |all| all.broadcast(),
    ),
    (
        "sweep3d",
        "auto oscillates between modes in a large sweep3d",
        |all| all.sweep3d(),
    ),
    (
        "placements",
        "medians and quartile distances rise: blade, blades, chassis, groups (Figure 3)",
        |all| all.placements(SMALL),
    ),
    (
        "placements-1-kib",
        "the same without bandwidth, at 1 KiB",
        |all| all.placements(TINY),
    ),
    (
        "neighbour",
        "a neighbour in another domain raises QCD(latency) and delivers nothing",
        |all| all.neighbour(),
    ),
];

/// All experiments of a run.
struct All<'a>(&'a [Measured]);

impl All<'_> {
    /// The ping-pong of this length, or the longest one, beside neighbours on a machine with this
    /// many global links.
    fn ping_pong(
        &self,
        bytes: Option<usize>,
        placement: Placement,
        links: u32,
    ) -> Option<&Measured> {
        let is_it = |experiment: &Experiment| {
            experiment.workload.pattern == Pattern::PingPong
                && bytes.is_none_or(|bytes| experiment.workload.bytes == bytes)
                && experiment.placement == placement
                && experiment.machine.global_links == links
                && experiment.machine.snapshot_age_ns > 0
                && experiment.neighbours.is_some()
        };
        let all = self.0.iter().filter(|measured| is_it(&measured.experiment));
        all.max_by_key(|measured| measured.experiment.workload.bytes)
    }

    fn of_pattern(&self, pattern: Pattern, bytes: Option<usize>) -> Option<&Measured> {
        self.find(|experiment| {
            let workload = experiment.workload;
            let is_size = bytes.is_none_or(|bytes| workload.bytes == bytes);
            workload.pattern == pattern && experiment.placement == Placement::Groups && is_size
        })
    }

    fn find(&self, is_it: impl Fn(&Experiment) -> bool) -> Option<&Measured> {
        self.0.iter().find(|measured| is_it(&measured.experiment))
    }

    fn intra_group(&self) -> Option<Verdict> {
        let measured = self.ping_pong(None, Placement::Blades, MANY_LINKS)?;
        let (high, pair) = (normalised(measured, HIGH_BIAS)?, Pair::of(measured)?);
        let [stalls, latency] = [pair.stalls, pair.latency];
        Some(Verdict {
            is_found: high.interval.low > 1.0 && stalls[1] > stalls[0],
            figure: high.value,
            evidence: format!(
                "high bias takes {} of the time, s {:.2} against {:.2}, L {:.0} against {:.0} cycles",
                shown(&high),
                stalls[1],
                stalls[0],
                latency[1],
                latency[0]
            ),
        })
    }

    fn inter_group(&self) -> Option<Verdict> {
        let measured = self.ping_pong(None, Placement::Groups, MANY_LINKS)?;
        let (high, pair) = (normalised(measured, HIGH_BIAS)?, Pair::of(measured)?);
        let [default, with_bias] = pair.latency;
        Some(Verdict {
            is_found: high.interval.high < 1.0 && with_bias < default,
            figure: high.value,
            evidence: format!(
                "high bias takes {} of the time, L {with_bias:.0} against {default:.0} cycles",
                shown(&high)
            ),
        })
    }

    fn calm(&self) -> Option<Verdict> {
        let mut spreads = Vec::new();
        for bytes in [Some(TINY), Some(SMALL), None] {
            let measured = self.ping_pong(bytes, Placement::Groups, MANY_LINKS)?;
            spreads.push((
                measured.experiment.workload.bytes,
                Spread::latency(measured)?,
            ));
        }
        let calmer = spreads
            .iter()
            .filter(|(_, spread)| spread.high < spread.default);
        let (calmer, lengths) = (calmer.count(), spreads.len());
        let one =
            |(bytes, spread): &(usize, Spread)| format!("{spread} at {}", table::size(*bytes));
        let texts: Vec<String> = spreads.iter().map(one).collect();
        Some(Verdict {
            is_found: calmer == lengths,
            figure: calmer as f64 / lengths as f64,
            evidence: format!("QCD(latency) {}", texts.join(", ")),
        })
    }

    fn few_links(&self) -> Option<Verdict> {
        let measured = self.ping_pong(None, Placement::Groups, FEW_LINKS)?;
        let high = normalised(measured, HIGH_BIAS)?;
        Some(Verdict {
            is_found: high.interval.low > 1.0,
            figure: high.value,
            evidence: format!("high bias takes {} of the time", shown(&high)),
        })
    }

    fn phantom(&self) -> Option<Verdict> {
        let old = self.ping_pong(None, Placement::Groups, MANY_LINKS)?;
        let fresh = self.find(|experiment| experiment.machine.snapshot_age_ns == 0)?;
        let share = |measured: &Measured| Some(measured.of(DEFAULT)?.routed.share_non_minimal());
        let [old, fresh] = [share(old)?, share(fresh)?];
        Some(Verdict {
            is_found: old > fresh,
            figure: old - fresh,
            evidence: format!(
                "{:.1} % of packets go the long way by information of 1 us ago, {:.1} % by that of now",
                old * 100.0,
                fresh * 100.0
            ),
        })
    }

    fn alltoall(&self) -> Option<Verdict> {
        let [small, large] = [SMALL_EXCHANGE, LARGE_EXCHANGE]
            .map(|bytes| normalised(self.of_pattern(Pattern::Alltoall, Some(bytes))?, HIGH_BIAS));
        let (small, large) = (small?, large?);
        Some(Verdict {
            is_found: small.interval.high < 1.0 && large.interval.low > 1.0,
            figure: large.value,
            evidence: format!(
                "high bias takes {} of the time at {SMALL_EXCHANGE} B, {} at {LARGE_EXCHANGE} B",
                shown(&small),
                shown(&large)
            ),
        })
    }

    fn auto(&self) -> Option<Verdict> {
        let over = |measured: &Measured| {
            let best = time(measured, DEFAULT)?.min(time(measured, HIGH_BIAS)?);
            Some((time(measured, AUTO)? / best, measured.experiment.workload))
        };
        let over: Vec<_> = self.0.iter().filter_map(over).collect();
        let worst = over.iter().copied().max_by(|a, b| a.0.total_cmp(&b.0))?;
        let near = over.iter().filter(|(ratio, _)| *ratio <= NEAR).count();
        Some(Verdict {
            is_found: near as f64 >= MOST * over.len() as f64,
            figure: near as f64 / over.len() as f64,
            evidence: format!(
                "{near} of {} cases; the worst is {} with {:.3} of the better mode's time",
                over.len(),
                worst.1,
                worst.0
            ),
        })
    }

    fn broadcast(&self) -> Option<Verdict> {
        oscillation(self.of_pattern(Pattern::Broadcast, None)?)
    }

    fn sweep3d(&self) -> Option<Verdict> {
        oscillation(self.of_pattern(Pattern::Sweep3d, None)?)
    }

    fn placements(&self, bytes: usize) -> Option<Verdict> {
        let mut found = Vec::new();
        for placement in Placement::ALL {
            let measured = self.ping_pong(Some(bytes), placement, MANY_LINKS)?;
            let summary = Summary::of(&measured.of(DEFAULT)?.times)?;
            let distance = summary.quartiles.high - summary.quartiles.low;
            found.push((placement, summary.median, distance));
        }
        let rises = found
            .windows(2)
            .all(|two| two[0].1 < two[1].1 && two[0].2 <= two[1].2);
        let one = |(placement, median, distance): &(Placement, f64, f64)| {
            format!("{placement} {:.2} us ({:.3})", median / 1e3, distance / 1e3)
        };
        let texts: Vec<String> = found.iter().map(one).collect();
        Some(Verdict {
            is_found: rises,
            figure: found[3].1 / found[0].1,
            evidence: format!("median (quartile distance): {}", texts.join(", ")),
        })
    }

    fn neighbour(&self) -> Option<Verdict> {
        let beside = self.ping_pong(Some(SMALL), Placement::Groups, MANY_LINKS)?;
        let alone = self.find(|experiment| experiment.neighbours.is_none())?;
        let [beside_qcd, alone_qcd] =
            [beside, alone].map(|measured| qcd(&measured.of(DEFAULT)?.latencies));
        let (with, without) = (beside_qcd?, alone_qcd?);
        Some(Verdict {
            is_found: with > without
                && beside.neighbours_at_job == 0
                && beside.neighbours_delivered > 0,
            figure: with,
            evidence: format!(
                "QCD(latency) {with:.4} beside the neighbour, {without:.4} alone; {} bytes of its \
                 {} messages reached the job",
                beside.neighbours_at_job, beside.neighbours_delivered
            ),
        })
    }
}

/// Switches of auto, and its time.
fn oscillation(measured: &Measured) -> Option<Verdict> {
    let report = measured.of(AUTO)?.report;
    let share = report.switches as f64 / report.decisions.max(1) as f64;
    let auto = normalised(measured, AUTO)?;
    Some(Verdict {
        is_found: share > OSCILLATES,
        figure: share,
        evidence: format!(
            "{} of {} decisions switch at {}; auto takes {} of the default mode's time",
            report.switches,
            report.decisions,
            measured.experiment.workload,
            shown(&auto)
        ),
    })
}

/// Medians of the default mode and of high bias.
struct Pair {
    stalls: [f64; 2],
    latency: [f64; 2],
}

impl Pair {
    fn of(measured: &Measured) -> Option<Self> {
        let [default, high] = [measured.of(DEFAULT)?, measured.of(HIGH_BIAS)?];
        Some(Pair {
            stalls: [median(&default.stalls)?, median(&high.stalls)?],
            latency: [median(&default.latencies)?, median(&high.latencies)?],
        })
    }
}

/// Quartile coefficients of dispersion of the default mode and of high bias.
struct Spread {
    default: f64,
    high: f64,
}

impl Spread {
    fn latency(measured: &Measured) -> Option<Self> {
        let of = |name| qcd(&measured.of(name)?.latencies);
        Some(Spread {
            default: of(DEFAULT)?,
            high: of(HIGH_BIAS)?,
        })
    }
}

impl std::fmt::Display for Spread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:.4} against {:.4}", self.high, self.default)
    }
}

fn shown(estimate: &Estimate) -> String {
    let Estimate { value, interval } = estimate;
    format!("{value:.3} ({:.3} to {:.3})", interval.low, interval.high)
}
