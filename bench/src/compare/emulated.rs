//! `compare --fabric`: an emulated Blue Gene/P beside the paper's [figures](super::paper).
//!
//! Nodes are neighbours. Where the machine's own Ethernet is slower than the paper's, the figure is
//! that of the model on a virtual clock.

use std::time::Instant;

use toroid_model::info::LinkReport;
use toroid_model::link::FabricProfile;
use toroid_model::refusal::Refusal;

use super::figures::{Beside, figures, table, tests};
use super::plan::{self, Test};
use super::{Bed, DOMAIN, TORUS, paper};
use crate::cluster::ClusterError;
use crate::machine;
use crate::plan::{Effort, HOT_BYTES, Path};
use crate::progress::Progress;
use crate::report::{Fields, Report};
use crate::runner::Runner;
use crate::samples::Series;
use crate::table::{digits, percent, time};
use crate::worker::store::KeySet;

/// The paths of the paper between nodes.
const PATHS: [Path; 3] = [Path::Ethernet, Path::Rdma, Path::Loopback];

/// The profiles with figures of a paper.
pub fn profile(name: &str) -> Result<FabricProfile, &'static str> {
    FabricProfile::built_in(name).ok_or("only bgp has figures of a paper; use --fabric bgp")
}

/// Measures everything; nothing is left behind.
pub fn measure(
    profile: FabricProfile,
    effort: Effort,
    progress: &Progress,
) -> Result<Report, ClusterError> {
    let start = Instant::now();
    progress.say("starting two nodes");
    let here = std::path::Path::new("/");
    let mut bed = Bed::prepare(here, effort, Some(profile.clone()))?;
    bed.connect_messages()?;
    let tests = tests(&figures(&PATHS));
    progress.expect(plan::turns(&tests).len() * effort.rounds() as usize);
    let mut runner = Runner::new(progress);
    for (bytes, _) in paper::GET_RATIOS {
        bed.fill(KeySet::of_total(HOT_BYTES, bytes), progress)?;
    }
    bed.rounds(tests, HOT_BYTES, &mut runner)?;
    let links = bed.cluster.control()?.links(DOMAIN, &[])?;
    let run = Run {
        start,
        effort,
        no_taps: bed.no_taps.take(),
        beside: Beside {
            profile,
            base_ns: links.ethernet_base_ns,
            mtus: std::mem::take(&mut bed.mtus),
        },
        links,
    };
    progress.say("cleaning up");
    drop(bed);
    Ok(run.report(&runner.finish()))
}

/// Conditions of a run.
struct Run {
    start: Instant,
    effort: Effort,
    no_taps: Option<Refusal>,
    beside: Beside,
    links: LinkReport,
}

impl Run {
    fn report(&self, measured: &[(Test, Series)]) -> Report {
        let rows = self.beside.rows(&figures(&PATHS), measured);
        let Beside {
            profile, base_ns, ..
        } = &self.beside;
        let config = Fields::default()
            .with("fabric", &profile.name)
            .with("provider", "shm")
            .with("no_taps", &self.no_taps)
            .with("torus", TORUS)
            .with("rounds", self.effort.rounds())
            .with("ethernet_base_ns", base_ns)
            .with("links", &self.links.links);
        let mut report = Report::new(self.effort, self.start, config);
        report.rows("rows", &rows);
        let base = base_ns.map_or("-".into(), |ns| digits(ns as f64 / 1e3));
        let no_taps = self.no_taps.as_ref();
        let no_taps = no_taps.map(|no_taps| format!("No TAPs: {no_taps}.\n"));
        report.text = format!(
            "Blue Gene/P with Kittyhawk (Figures 4 and 5), and two neighbours of an emulated torus \
             ({name}; {}).\n\
             Medians of {} rounds. The values of {name} are fits to the rows with a goal; other rows \
             are predictions.\n\
             This machine's own Ethernet takes {base} us one way. Latencies that the paper has below \
             are those of the model on a virtual clock.\n{}{}\n{}\n{} errors. {:.1} s.\n",
            machine::describe(),
            self.effort.rounds(),
            lateness(&self.links),
            no_taps.unwrap_or_default(),
            table(&rows),
            report.errors,
            self.start.elapsed().as_secs_f64(),
            name = profile.name,
        );
        report
    }
}

/// Text on how late transfers left the emulated links.
fn lateness(links: &LinkReport) -> String {
    let mut text = String::new();
    for link in &links.links {
        for (path, late) in [("Ethernet", link.ethernet), ("RDMA", link.rdma)] {
            if late.transfers > 0 {
                text += &format!(
                    "Lateness, {path}: p50 {}, p99 {}; {} late by more than 1 us and 1 %; {} of \
                     processor time.\n",
                    time(Some(late.p50_ns as f64)),
                    time(Some(late.p99_ns as f64)),
                    percent(Some(late.late as f64 / late.transfers as f64)),
                    time(Some(late.cpu_ns as f64)),
                );
            }
        }
    }
    text
}
