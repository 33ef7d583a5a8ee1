//! The command `micro`: the micro-benchmarks of Kutlug's thesis "Performance Evaluation and Analysis
//! of User Level Networking Protocols in Clusters" (2000), each as a difference to one test.
//!
//! [`plan`] has the tests as data, [`measure`] their rows, [`report`] and [`layers`] the tables. [`bed`] has live
//! hosts, [`adapter`] a software adapter on a virtual clock, which tests the tests.

mod adapter;
pub mod bed;
mod layers;
mod measure;
mod plan;
#[cfg(test)]
mod proofs;
mod report;
#[cfg(test)]
mod shapes;

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use clap::Args;

use self::adapter::{Preset, PresetName};
use self::bed::{Bed, Path};
use self::plan::{Case, LayerName, Planner, SHORT, Subject, Test};
use self::report::Measured;
use crate::plan::{Common, Effort, or_all};
use crate::progress::Progress;
use crate::report::{Report, name};
use crate::runner::Runner;
use crate::samples::{Samples, Series};
use crate::stats::median;
use crate::worker::micro::exchange::Count;
use crate::worker::micro::script::{Pattern, Script, Wait};

/// Samples of a script on the adapter. The first one fills its caches, the last one counts.
const VIRTUAL: Count = Count {
    samples: 2,
    batch: 256,
};

// Not a doc comment, which would replace the text of the command.
#[derive(Args)]
pub struct Options {
    #[command(flatten)]
    pub common: Common,

    /// Measure only these tests.
    #[arg(long, value_name = "TEST", value_delimiter = ',')]
    test: Vec<Test>,

    /// Measure only at these layers [default: all].
    #[arg(long, value_name = "LAYER", value_delimiter = ',')]
    layer: Vec<LayerName>,

    /// Measure only these paths [default: all; verbs if there is an RDMA device].
    #[arg(
        long,
        value_name = "PATH",
        value_delimiter = ',',
        conflicts_with = "preset"
    )]
    path: Vec<Path>,

    /// RDMA devices of the path verbs: one for each host, or one for both [default: the first].
    #[arg(
        long,
        value_name = "DEVICE",
        value_delimiter = ',',
        conflicts_with = "preset"
    )]
    device: Vec<String>,

    /// Run the tests against software adapters on a virtual clock instead: they test the tests.
    #[arg(long, value_name = "PRESET", value_delimiter = ',')]
    preset: Vec<PresetName>,
}

/// Measures everything; nothing is left behind.
pub fn measure(options: &Options, progress: &Progress) -> Result<Report> {
    let start = Instant::now();
    let selection = Selection {
        layers: or_all(&options.layer, &LayerName::ALL),
        tests: or_all(&options.test, &Test::ALL),
        effort: options.common.effort(),
    };
    let (mut measured, mut left_out) = (Vec::new(), None);
    if options.preset.is_empty() {
        let count = options.device.len();
        ensure!(
            count <= 2,
            "--device has {count} names: give one for each of the two hosts, or one for both"
        );
        let (paths, reason) = Path::chosen(&options.path, &options.device)?;
        for path in paths {
            measured.push(live(path, &options.device, &selection, progress)?);
        }
        left_out = reason;
    } else {
        for preset in or_all(&options.preset, &[]) {
            progress.say(name(preset));
            measured.push(emulated(Preset::of(preset), &selection)?);
        }
    }
    ensure!(
        measured.iter().any(|one| !one.times.is_empty()),
        "nothing to measure: no layer of --layer has a test of --test there; leave one of them out"
    );
    let mut report = report::report(start, &measured);
    if let Some(reason) = left_out {
        report.note(&reason);
    }
    Ok(report)
}

/// The chosen rows.
struct Selection {
    layers: Vec<LayerName>,
    tests: Vec<Test>,
    effort: Effort,
}

impl Selection {
    fn cases(&self, subject: Subject) -> Vec<Case> {
        let effort = self.effort;
        let planner = Planner { subject, effort };
        let of = |&layer| {
            let tests = self.tests.iter();
            tests.flat_map(move |&test| planner.cases(layer, test))
        };
        self.layers.iter().flat_map(of).collect()
    }
}

/// The tests on a path of this machine.
fn live(
    path: Path,
    devices: &[String],
    selection: &Selection,
    progress: &Progress,
) -> Result<Measured> {
    progress.say(format!("starting two nodes for {path}"));
    let effort = selection.effort;
    let mut bed = Bed::prepare(path, devices, slice(effort))?;
    let mut subject = Subject {
        wait: path.wait(),
        completions: path.completions(),
        latency: 0,
    };
    let trial = bed.measure(&Planner { subject, effort }.ping_pong(SHORT))?;
    subject.latency = median(&trial.samples_ns).unwrap_or_default() as u64;
    let cases = selection.cases(subject);
    let mut scripts = scripts(&cases);
    progress.expect(scripts.len() * rounds(effort) as usize);
    let mut runner = Runner::new(progress);
    runner.contest(&mut scripts, 1..=rounds(effort), limit(effort), |script| {
        bed.measure(script)
    })?;
    let times = runner.finish();
    Ok(Measured::new(path.to_string(), None, &cases, times))
}

/// The tests on the software adapter.
fn emulated(preset: Preset, selection: &Selection) -> Result<Measured> {
    let queues = preset.mechanisms.completion_queues;
    let cases = selection.cases(Subject {
        wait: Wait::Poll,
        completions: queues.then_some(Pattern::PingPong),
        latency: preset.send + preset.latency + preset.receive,
    });
    let times = simulate(&preset, &cases)?;
    Ok(Measured::new("adapter".into(), Some(preset), &cases, times))
}

/// Times of all scripts on the adapter, in one round.
fn simulate(preset: &Preset, cases: &[Case]) -> Result<Vec<(Script, Series)>> {
    let run = |script: Script| {
        let times = adapter::run(preset, &script, VIRTUAL)?;
        let samples = Samples {
            batch: VIRTUAL.batch,
            samples_ns: times[times.len() - 1..].into(),
            ..Samples::default()
        };
        Ok((script, samples.into()))
    };
    scripts(cases).into_iter().map(run).collect()
}

/// All different scripts of the cases.
fn scripts(cases: &[Case]) -> Vec<Script> {
    let mut scripts = Vec::new();
    for script in cases.iter().flat_map(Case::scripts) {
        if !scripts.contains(&script) {
            scripts.push(script);
        }
    }
    scripts
}

/// Number of rounds if time allows.
fn rounds(effort: Effort) -> u32 {
    effort.quick_or(9, 31)
}

/// Time of all rounds of a path.
fn limit(effort: Effort) -> Duration {
    Duration::from_secs(effort.quick_or(12, 120))
}

/// Time of a script in a round.
fn slice(effort: Effort) -> Duration {
    Duration::from_millis(effort.quick_or(10, 20))
}
