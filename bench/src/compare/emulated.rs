//! `compare --fabric` and `compare --external`: an emulated Blue Gene/P, or this machine itself,
//! beside the paper's [figures](super::paper).
//!
//! Nodes are neighbours. Where the machine's own Ethernet is slower than the paper's, the figure of
//! an emulated torus is that of the model on a virtual clock.

use std::time::Instant;

use toroid_model::info::LinkReport;
use toroid_model::link::FabricProfile;
use toroid_model::refusal::Refusal;

use super::figures::{Beside, figures, table, tests};
use super::plan::{self, Test};
use super::{Bed, DOMAIN, Setup, paper};
use crate::cluster::ClusterError;
use crate::machine;
use crate::plan::{Effort, HOT_BYTES, Path};
use crate::progress::Progress;
use crate::report::{Fields, Report};
use crate::runner::Runner;
use crate::samples::Series;
use crate::table::{digits, percent, time};
use crate::worker::store::KeySet;

/// The paths of the paper that exist. RDMA without a model is shared memory.
fn paths(setup: &Setup) -> Vec<Path> {
    let external = [Path::Nat, Path::Bridge].into_iter();
    let external = external.filter(|_| setup.external);
    let rdma = setup.fabric.as_ref().map(|_| Path::Rdma);
    let paths = external.chain([Path::Ethernet]).chain(rdma);
    paths.chain([Path::Loopback]).collect()
}

/// The profiles with figures of a paper.
pub fn profile(name: &str) -> Result<FabricProfile, &'static str> {
    FabricProfile::built_in(name).ok_or("only bgp has figures of a paper; use --fabric bgp")
}

/// Measures everything; nothing is left behind.
pub fn measure(setup: Setup, effort: Effort, progress: &Progress) -> Result<Report, ClusterError> {
    let start = Instant::now();
    progress.say("starting the nodes");
    let here = std::path::Path::new("/");
    let mut bed = Bed::prepare(here, effort, setup.clone())?;
    let paths = paths(&setup);
    let tests = tests(&figures(&paths));
    progress.expect(plan::turns(&tests).len() * effort.rounds() as usize);
    let mut runner = Runner::new(progress);
    if paths.contains(&Path::Rdma) {
        bed.connect_messages()?;
        for (bytes, _) in paper::GET_RATIOS {
            bed.fill(KeySet::of_total(HOT_BYTES, bytes), progress)?;
        }
    }
    bed.rounds(tests, HOT_BYTES, &mut runner)?;
    let links = bed.cluster.control()?.links(DOMAIN, &[])?;
    let run = Run {
        start,
        effort,
        no_taps: bed.no_taps.take(),
        beside: Beside {
            profile: setup.fabric.clone(),
            base_ns: links.ethernet_base_ns,
            mtus: std::mem::take(&mut bed.mtus),
        },
        setup,
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
    setup: Setup,
    beside: Beside,
    links: LinkReport,
}

impl Run {
    fn report(&self, measured: &[(Test, Series)]) -> Report {
        let rows = self.beside.rows(&figures(&paths(&self.setup)), measured);
        let config = Fields::default()
            .with("fabric", &self.setup.fabric)
            .with("external", self.setup.external)
            .with("provider", "shm")
            .with("no_taps", &self.no_taps)
            .with("torus", self.setup.torus())
            .with("rounds", self.effort.rounds())
            .with("ethernet_base_ns", self.beside.base_ns)
            .with("links", &self.links.links);
        let mut report = Report::new(self.effort, self.start, config);
        report.rows("rows", &rows);
        let no_taps = self.no_taps.as_ref();
        let no_taps = no_taps.map(|no_taps| format!("No TAPs: {no_taps}.\n"));
        report.text = format!(
            "Blue Gene/P with Kittyhawk (Figures 4 and 5), and {}.\nMedians of {} rounds. {}{}{}\n\
             {}\n{} errors. {:.1} s.\n",
            self.beside_what(),
            self.effort.rounds(),
            self.meaning(),
            lateness(&self.links),
            no_taps.unwrap_or_default(),
            table(&rows),
            report.errors,
            self.start.elapsed().as_secs_f64(),
        );
        report
    }

    fn beside_what(&self) -> String {
        let machine = machine::describe();
        match &self.setup.fabric {
            Some(FabricProfile { name, .. }) => {
                format!("two neighbours of an emulated torus ({name}; {machine})")
            }
            None => format!("two nodes without a model ({machine})"),
        }
    }

    /// What the figures mean.
    fn meaning(&self) -> String {
        let mut text = String::new();
        if let Some(FabricProfile { name, .. }) = &self.setup.fabric {
            let base = self.beside.base_ns;
            let base = base.map_or("-".into(), |ns| digits(ns as f64 / 1e3));
            text += &format!(
                "The values of {name} are fits to the rows with a goal; other rows are predictions.\n\
                 This machine's own Ethernet takes {base} us one way. Latencies that the paper has \
                 below are those of the model on a virtual clock."
            );
        }
        if self.setup.external {
            text += "\nExternal: from a node to a host outside by NAT, and from that host to a node by \
                     bridge, as in the paper.";
        }
        text + "\n"
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
