//! Findings of the paper: found here, not found, or undecided, with the figures that say so.

mod claims;

use std::fmt::Write;

use super::experiment::{Experiment, Measured};
use super::placement::Placement;
use super::plan::{SMALL, TINY};
use super::verdict::Found;
use super::workload::Pattern;
use crate::report::Fields;

/// A claim of the paper beside figures of the simulator.
#[derive(Clone, Debug, PartialEq)]
pub struct Finding {
    pub name: &'static str,
    pub claim: &'static str,
    /// `None` if the experiments were not part of the run.
    pub found: Option<Found>,
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
            .with("verdict", self.verdict())
            .with("figure", self.figure)
            .with("evidence", &self.evidence)
    }

    fn verdict(&self) -> &'static str {
        self.found.map_or("not run", Found::name)
    }
}

/// The findings as lines for people.
pub fn text(findings: &[Finding]) -> String {
    let mut text = String::new();
    for finding in findings {
        let verdict = finding.verdict();
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
            found: verdict.as_ref().map(|verdict| verdict.found),
            figure: verdict.as_ref().map(|verdict| verdict.figure),
            evidence: match verdict {
                Some(verdict) => verdict.evidence,
                None => "its experiments were not chosen, or have no such figure".into(),
            },
        }
    };
    CLAIMS.map(of).into()
}

/// Whether the finding is there, the figure that decides, and all figures.
struct Verdict {
    found: Found,
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
        "old information sends more packets the long way, by 1 % of all or more",
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
        "a neighbour in another domain raises latency and QCD(latency) of a job",
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
}
