//! Each claim of the paper by the figures of a run.

use super::super::contender::Contender;
use super::super::experiment::{Iterations, Measured};
use super::super::placement::Placement;
use super::super::plan::{FEW_LINKS, LARGE_EXCHANGE, MANY_LINKS, SMALL, SMALL_EXCHANGE, TINY};
use super::super::rows::{normalised, qcd, time};
use super::super::verdict::{Found, compare, ratio};
use super::super::workload::Pattern;
use super::{All, Verdict};
use crate::stats::{Estimate, Summary, median, quotient};
use crate::table;

const DEFAULT: &str = Contender::DEFAULT;
const HIGH_BIAS: &str = Contender::HIGH_BIAS;
const AUTO: &str = Contender::AUTO;

/// Time by which auto may exceed the better static mode.
const NEAR: f64 = 1.1;

/// Share of the cases in which auto is near.
const MOST: f64 = 0.8;

/// Share of decisions that switch modes from which on auto oscillates, and up to which it does not.
const OSCILLATES: f64 = 0.1;
const STEADY: f64 = 0.05;

/// Share of all packets that old information must add to those on non-minimal paths.
const PHANTOM: f64 = 0.01;

impl All<'_> {
    pub(super) fn intra_group(&self) -> Option<Verdict> {
        let measured = self.ping_pong(None, Placement::Blades, MANY_LINKS)?;
        let (high, pair) = (normalised(measured, HIGH_BIAS)?, Pair::of(measured)?);
        let [stalls, latency] = [pair.stalls, pair.latency];
        let [high_bias, default] = [measured.of(HIGH_BIAS)?, measured.of(DEFAULT)?];
        let stalls_more = compare(&high_bias.stalls, &default.stalls, |high, default| {
            Some(median(high)? - median(default)?)
        });
        Some(Verdict {
            found: Found::above(Some(high), 1.0).and(Found::above(stalls_more, 0.0)),
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

    pub(super) fn inter_group(&self) -> Option<Verdict> {
        let measured = self.ping_pong(None, Placement::Groups, MANY_LINKS)?;
        let (high, pair) = (normalised(measured, HIGH_BIAS)?, Pair::of(measured)?);
        let [default, with_bias] = pair.latency;
        let latency = high_over_default(measured, |of| &of.latencies, median);
        Some(Verdict {
            found: Found::below(Some(high), 1.0).and(Found::below(latency, 1.0)),
            figure: high.value,
            evidence: format!(
                "high bias takes {} of the time, L {with_bias:.0} against {default:.0} cycles",
                shown(&high)
            ),
        })
    }

    pub(super) fn calm(&self) -> Option<Verdict> {
        let (mut found, mut texts, mut calmer) = (Found::Yes, Vec::new(), 0);
        for bytes in [Some(TINY), Some(SMALL), None] {
            let measured = self.ping_pong(bytes, Placement::Groups, MANY_LINKS)?;
            let ratio = high_over_default(measured, |of| &of.latencies, qcd);
            let is_calmer = Found::below(ratio, 1.0);
            found = found.and(is_calmer);
            calmer += u32::from(is_calmer == Found::Yes);
            let ratio = ratio.as_ref().map_or("-".into(), shown);
            let bytes = table::size(measured.experiment.workload.bytes);
            texts.push(format!("{ratio} at {bytes}"));
        }
        Some(Verdict {
            found,
            figure: f64::from(calmer) / texts.len() as f64,
            evidence: format!(
                "QCD(latency) of high bias over the default mode's: {}",
                texts.join(", ")
            ),
        })
    }

    pub(super) fn few_links(&self) -> Option<Verdict> {
        let measured = self.ping_pong(None, Placement::Groups, FEW_LINKS)?;
        let high = normalised(measured, HIGH_BIAS)?;
        Some(Verdict {
            found: Found::above(Some(high), 1.0),
            figure: high.value,
            evidence: format!("high bias takes {} of the time", shown(&high)),
        })
    }

    pub(super) fn phantom(&self) -> Option<Verdict> {
        let old = self.ping_pong(None, Placement::Groups, MANY_LINKS)?;
        let fresh = self.find(|experiment| experiment.machine.snapshot_age_ns == 0)?;
        let share = |measured: &Measured| Some(measured.of(DEFAULT)?.routed.share_non_minimal());
        let [old, fresh] = [share(old)?, share(fresh)?];
        Some(Verdict {
            found: Found::from_to(old - fresh, 0.0, PHANTOM),
            figure: old - fresh,
            evidence: format!(
                "{:.1} % of packets go the long way by information of 1 us ago, {:.1} % by that of now",
                old * 100.0,
                fresh * 100.0
            ),
        })
    }

    pub(super) fn alltoall(&self) -> Option<Verdict> {
        let [small, large] = [SMALL_EXCHANGE, LARGE_EXCHANGE]
            .map(|bytes| normalised(self.of_pattern(Pattern::Alltoall, Some(bytes))?, HIGH_BIAS));
        let (small, large) = (small?, large?);
        Some(Verdict {
            found: Found::below(Some(small), 1.0).and(Found::above(Some(large), 1.0)),
            figure: large.value,
            evidence: format!(
                "high bias takes {} of the time at {SMALL_EXCHANGE} B, {} at {LARGE_EXCHANGE} B",
                shown(&small),
                shown(&large)
            ),
        })
    }

    pub(super) fn auto(&self) -> Option<Verdict> {
        let over = |measured: &Measured| {
            let is_default_better = time(measured, DEFAULT)? <= time(measured, HIGH_BIAS)?;
            let better = if is_default_better {
                DEFAULT
            } else {
                HIGH_BIAS
            };
            let [auto, better] = [measured.of(AUTO)?, measured.of(better)?];
            let over = ratio(&auto.times, &better.times, median)?;
            Some((over, measured.experiment.workload))
        };
        let over: Vec<_> = self.0.iter().filter_map(over).collect();
        let worst = (over.iter().copied()).max_by(|a, b| a.0.value.total_cmp(&b.0.value))?;
        let share = |is_it: &dyn Fn(&Estimate) -> bool| {
            let those = over.iter().filter(|(ratio, _)| is_it(ratio)).count();
            those as f64 / over.len() as f64
        };
        let surely = share(&|ratio| ratio.interval.high <= NEAR);
        let perhaps = share(&|ratio| ratio.interval.low <= NEAR);
        let near = share(&|ratio| ratio.value <= NEAR);
        let found = match () {
            () if surely >= MOST => Found::Yes,
            () if perhaps < MOST => Found::No,
            () => Found::Undecided,
        };
        Some(Verdict {
            found,
            figure: near,
            evidence: format!(
                "{:.0} % of {} cases, by their intervals {:.0} to {:.0} %; the worst is {} with {:.3} of \
                 the better mode's time",
                near * 100.0,
                over.len(),
                surely * 100.0,
                perhaps * 100.0,
                worst.1,
                worst.0.value
            ),
        })
    }

    pub(super) fn broadcast(&self) -> Option<Verdict> {
        oscillation(self.of_pattern(Pattern::Broadcast, None)?)
    }

    pub(super) fn sweep3d(&self) -> Option<Verdict> {
        oscillation(self.of_pattern(Pattern::Sweep3d, None)?)
    }

    pub(super) fn placements(&self, bytes: usize) -> Option<Verdict> {
        let mut all = Vec::new();
        for placement in Placement::ALL {
            let measured = self.ping_pong(Some(bytes), placement, MANY_LINKS)?;
            all.push((placement, &measured.of(DEFAULT)?.times));
        }
        let rises = |two: &[(Placement, &Vec<f64>)]| {
            let [near, far] = [two[0].1, two[1].1];
            let median = Found::above(ratio(far, near, median), 1.0);
            median.and(Found::above(ratio(far, near, quartile_distance), 1.0))
        };
        let found = all.windows(2).map(rises).fold(Found::Yes, Found::and);
        let one = |(placement, times): &(Placement, &Vec<f64>)| {
            let figures = [median(times), quartile_distance(times)];
            let [median, distance] = figures.map(|ns| table::decimals(ns.map(|ns| ns / 1e3), 3));
            format!("{placement} {median} us ({distance})")
        };
        let texts: Vec<String> = all.iter().map(one).collect();
        Some(Verdict {
            found,
            figure: quotient(median(all[3].1), median(all[0].1))?,
            evidence: format!("median (quartile distance): {}", texts.join(", ")),
        })
    }

    pub(super) fn neighbour(&self) -> Option<Verdict> {
        let beside = self.ping_pong(Some(SMALL), Placement::Groups, MANY_LINKS)?;
        let alone = self.find(|experiment| experiment.neighbours.is_none())?;
        let [with, without] =
            [beside, alone].map(|measured| Some(&measured.of(DEFAULT)?.latencies));
        let (with, without) = (with?, without?);
        let latency = ratio(with, without, median)?;
        let rise = compare(with, without, |with, without| {
            Some(qcd(with)? - qcd(without)?)
        })?;
        let isolated = match beside.neighbours_at_job {
            0 => Found::Yes,
            _ => Found::No,
        };
        Some(Verdict {
            found: Found::above(Some(latency), 1.0)
                .and(Found::above(Some(rise), 0.0))
                .and(isolated),
            figure: rise.value,
            evidence: format!(
                "latency is {} of that alone, QCD(latency) rises by {}; {} bytes of the neighbour's {} \
                 messages reached the job",
                shown(&latency),
                shown(&rise),
                beside.neighbours_at_job,
                beside.neighbours_delivered
            ),
        })
    }
}

/// Switches of auto after the warm-up, and its time.
fn oscillation(measured: &Measured) -> Option<Verdict> {
    let report = measured.of(AUTO)?.report;
    let share = report.switches as f64 / report.decisions.max(1) as f64;
    let auto = normalised(measured, AUTO)?;
    Some(Verdict {
        found: Found::from_to(share, STEADY, OSCILLATES),
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

/// A figure of high bias over that of the default mode.
fn high_over_default(
    measured: &Measured,
    series: fn(&Iterations) -> &Vec<f64>,
    of: fn(&[f64]) -> Option<f64>,
) -> Option<Estimate> {
    let [high, default] = [measured.of(HIGH_BIAS)?, measured.of(DEFAULT)?].map(series);
    ratio(high, default, of)
}

fn quartile_distance(values: &[f64]) -> Option<f64> {
    let quartiles = Summary::of(values)?.quartiles;
    Some(quartiles.high - quartiles.low)
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

fn shown(estimate: &Estimate) -> String {
    let Estimate { value, interval } = estimate;
    format!("{value:.3} ({:.3} to {:.3})", interval.low, interval.high)
}
