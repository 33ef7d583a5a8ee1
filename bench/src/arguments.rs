//! The command line.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::{Args, Parser, Subcommand};
use toroid_model::link::FabricProfile;

use crate::busy::Busy;
use crate::causes::with_causes;
use crate::cluster::ClusterError;
use crate::comparison::{RunError, ab, diff};
use crate::machine::Awake;
use crate::manifest::Manifest;
use crate::plan::{Common, Effort};
use crate::progress::Progress;
use crate::report::Report;
use crate::results::Keep;
use crate::worker::files;
use crate::{
    compare, domains, ether, fabric, hosts, kv, link, micro, need, noise, page, programs, roles,
    simulate, sweep,
};

/// Benchmarks of communication domains on this machine.
///
/// Exit status: 0 for success; 1 for a failure, a wrong byte or a slower row; 2 for wrong arguments
/// or input; 128 + the signal that ended the run.
#[derive(Parser)]
#[command(name = "toroid-bench", version, next_help_heading = "Global options")]
struct Arguments {
    #[command(subcommand)]
    command: Command,

    /// Run a spinning process beside, as on a machine with other work.
    #[arg(long, global = true)]
    busy: bool,

    /// Write all samples to a file: lines of JSON, one for each round of each row.
    #[arg(long, global = true, value_name = "FILE")]
    raw: Option<PathBuf>,

    /// Keep the run as bench/results/NAME.json, with its machine and command line.
    ///
    /// The folder bench is that of the repository around the current directory. An older result of
    /// that name is replaced, with a message.
    #[arg(long, global = true, value_name = "NAME")]
    save: Option<String>,
}

#[derive(Subcommand)]
enum Command {
    /// Compare both paths between two nodes, Ethernet and RDMA, with baselines.
    ///
    /// Starts a private agent and leaves nothing behind. Root is not needed. Without /dev/net/tun
    /// nodes have no interfaces: Ethernet is then between stacks in the processes themselves, and
    /// the report says so.
    Compare(Compare),

    /// Run a command of two programs in turns, and compare them row by row.
    ///
    /// A pair of runs in each round decides what two runs cannot: a few percent on a noisy machine.
    /// Exit status 1 if a row is slower by more than the threshold.
    #[command(
        after_help = "Example: toroid-bench ab old/toroid-bench new/toroid-bench -- fabric --quick"
    )]
    Ab(ab::Options),

    /// Compare two runs of a command: same, faster, slower or unclear, row by row.
    ///
    /// Exit status 1 if a row is slower by more than the threshold, 2 for input that cannot be
    /// compared.
    Diff(diff::Options),

    /// Measure membership changes: their duration, the pause of remaining members, and leaks.
    ///
    /// Starts private agents with up to 512 nodes and leaves nothing behind. Needs /dev/net/tun and
    /// 4 GiB of memory; root is not needed. The directory of domains is kept in $TMPDIR or /tmp,
    /// which should be on a disk.
    Domains(Domains),

    /// Measure the Ethernet of a domain beside a bare relay between two TAPs (the limit), a bridge
    /// and a veth pair of the kernel.
    ///
    /// Starts a private agent and leaves nothing behind. Needs /dev/net/tun and root.
    Ether(Common),

    /// Measure messages beside libfabric's provider shm, and one-sided operations.
    ///
    /// Starts a private agent and leaves nothing behind. Needs the program fi_pingpong of Debian's
    /// package libfabric-bin; root is not needed.
    Fabric(Common),

    /// Measure changes of membership among many hosts, failover, fences, and encryption.
    ///
    /// Starts private agents, each a host of its own, and hollow hosts: sessions that confirm changes
    /// without carrying them out. Failover, fences and paths between hosts need root and
    /// /dev/net/tun; failover also the feature etcd, the program etcd, and 400 MB in /dev/shm. Paths are
    /// compared with a bare relay, and with fi_pingpong and memcached where these are installed.
    /// Otherwise their figures are null, with the reason. Leaves nothing behind.
    Hosts(Common),

    /// Measure how exactly links keep rates and latencies, and what their model costs.
    ///
    /// Starts a private agent and leaves nothing behind. Needs /dev/net/tun and the program tc of
    /// Debian's package iproute2; root is not needed.
    Link(Common),

    /// Find how much network a program needs.
    ///
    /// Runs the program in turns without a model of the links and with a limit, until the interval
    /// of the ratio of its times decides, and narrows the limit. Needs a running agent and the right
    /// to change the domain. Its links are afterwards as before.
    Need(need::Options),

    /// Write runs as one page of HTML: charts, tables, manifests, and the papers' numbers beside.
    ///
    /// The page needs no network and no scripts. Exit status 2 for a file that is no run.
    #[command(after_help = "Example: toroid-bench report compare.json link.json -o report.html")]
    Report(page::Options),

    /// Run a program under several rates and latencies, in turns with none.
    ///
    /// Needs a running agent and the right to change the domain. Its links are afterwards as before.
    Sweep(sweep::Options),

    /// Measure the store beside memcached and memcpy.
    ///
    /// The store's own client reads the server's memory; the server speaks memcached's protocol,
    /// too. Starts a private agent and leaves nothing behind. Needs the program memcached and 6 GiB
    /// of memory; root is not needed.
    Kv(kv::Options),

    /// Measure parameters and single costs of messages: overheads, gap, buffers, connections,
    /// blocking, segments.
    ///
    /// Each row is a difference to the test of latency. Starts private agents and leaves nothing
    /// behind. The path ethernet needs /dev/net/tun; root is not needed.
    Micro(micro::Options),

    /// Run small parallel programs with checked results: kernels of NPB, GUPS, collectives, halo3d and
    /// sweep3d.
    ///
    /// Starts private agents with a node for each rank (over tcp: one for all) and leaves nothing
    /// behind. A wrong result is a failure. The path ethernet needs /dev/net/tun; root is not needed.
    Programs(programs::Options),

    /// Measure the noise of this host, and of the network between any two hosts.
    Noise(noise::Options),

    /// Simulate machines that are not here, in virtual time, with the error of each simplification.
    ///
    /// Needs no agent and no root. The same seed gives the same result.
    Simulate(simulate::Options),

    /// Simulate the control of changes in clusters with faults, in virtual time, and check its
    /// contract.
    ///
    /// Each seed is a cluster of its own, with stuck, cut off, killed and full hosts, and the same
    /// story each time. Exit status 1 if a seed breaks the contract.
    SimulateControl(hosts::control::Options),
}

#[derive(Args)]
struct Domains {
    #[command(flatten)]
    common: Common,

    /// Measure only these rows of shrinks and growths, with at most 8 members, counted from 1, such
    /// as 3,4.
    #[arg(
        long,
        value_name = "N",
        value_delimiter = ',',
        value_parser = clap::value_parser!(u8).range(1..=domains::SMALL_ROWS)
    )]
    rows: Vec<u8>,
}

#[derive(Args)]
struct Compare {
    /// Print one JSON object instead of tables.
    #[arg(long)]
    json: bool,

    /// Directory of real input: its regular files [default: this repository].
    #[arg(long, value_name = "PATH")]
    dir: Option<PathBuf>,

    /// Measure the loss of an Ethernet stream and of RDMA reads at the same time instead.
    #[arg(long, conflicts_with = "dir")]
    concurrent: bool,

    /// Emulate the machine of the paper instead, and print the paper's figures beside: bgp.
    #[arg(
        long,
        value_name = "bgp",
        value_parser = compare::emulated::profile,
        conflicts_with_all = ["dir", "concurrent"]
    )]
    fabric: Option<FabricProfile>,

    /// Measure sockets to a host outside instead, through gateways by address translation and by
    /// bridge, and print the paper's figures beside; with --fabric, with its costs. Needs root,
    /// /dev/net/tun and nft.
    #[arg(long, conflicts_with_all = ["dir", "concurrent"])]
    external: bool,

    /// Longer run (90 s), less noise.
    #[arg(long, conflicts_with = "quick")]
    full: bool,

    /// Quick run (15 s).
    #[arg(long)]
    quick: bool,
}

impl Compare {
    fn measure(&self, progress: &Progress) -> anyhow::Result<Report> {
        let effort = self.effort();
        if self.concurrent {
            return Ok(compare::concurrent::measure(effort, progress)?);
        }
        let setup = compare::Setup {
            fabric: self.fabric.clone(),
            external: self.external,
        };
        if setup.is_beside_paper() {
            return Ok(compare::emulated::measure(setup, effort, progress)?);
        }
        Ok(compare::measure(&self.options()?, progress)?)
    }

    fn options(&self) -> anyhow::Result<compare::Options> {
        let dir = match &self.dir {
            Some(dir) => dir.clone(),
            None => repository()?,
        };
        let dir = std::path::absolute(dir)?;
        // A wrong directory is reported before the run, not after half of it.
        files::check(&dir)?;
        let effort = self.effort();
        Ok(compare::Options { dir, effort })
    }

    fn effort(&self) -> Effort {
        match (self.quick, self.full) {
            (true, _) => Effort::Quick,
            (_, true) => Effort::Full,
            _ => Effort::Default,
        }
    }
}

impl Command {
    fn is_json(&self) -> bool {
        match self {
            Command::Compare(arguments) => arguments.json,
            Command::Ab(options) => options.json,
            Command::Diff(options) => options.json,
            Command::Need(need::Options { under, .. })
            | Command::Sweep(sweep::Options { under, .. }) => under.json,
            Command::Domains(Domains { common, .. })
            | Command::Kv(kv::Options { common, .. })
            | Command::Micro(micro::Options { common, .. })
            | Command::Programs(programs::Options { common, .. })
            | Command::Ether(common)
            | Command::Fabric(common)
            | Command::Hosts(common)
            | Command::Link(common) => common.json,
            Command::Noise(options) => options.is_json(),
            Command::Simulate(options) => options.is_json(),
            Command::SimulateControl(options) => options.json,
            Command::Report(_) => false,
        }
    }

    /// Whether times under a model of links are measured, to which processors that wake up late
    /// would add.
    fn is_on_time(&self) -> bool {
        match self {
            Command::Compare(arguments) => arguments.fabric.is_some(),
            Command::Link(_) => true,
            Command::Noise(options) => options.is_on_time(),
            _ => false,
        }
    }

    fn measure(&self, progress: &Progress) -> anyhow::Result<Report> {
        Ok(match self {
            Command::Compare(arguments) => arguments.measure(progress)?,
            Command::Ab(options) => ab::measure(options, progress)?,
            Command::Diff(options) => diff::run(options)?,
            Command::Domains(arguments) => {
                domains::measure(arguments.common.effort(), &arguments.rows, progress)?
            }
            Command::Ether(common) => ether::measure(common.effort(), progress)?,
            Command::Fabric(common) => fabric::measure(common.effort(), progress)?,
            Command::Hosts(common) => hosts::measure(common.effort(), progress)?,
            Command::Link(common) => link::measure(common.effort(), progress)?,
            Command::Need(options) => need::measure(options, progress)?,
            Command::Report(options) => page::write(options)?,
            Command::Sweep(options) => sweep::measure(options, progress)?,
            Command::Kv(options) => kv::measure(options, progress)?,
            Command::Micro(options) => micro::measure(options, progress)?,
            Command::Programs(options) => programs::measure(options, progress)?,
            Command::Noise(options) => noise::measure(options, progress)?,
            Command::Simulate(options) => simulate::measure(options, progress)?,
            Command::SimulateControl(options) => hosts::control::measure(options, progress),
        })
    }
}

/// The workspace from which cargo runs this program, otherwise the current directory.
fn repository() -> io::Result<PathBuf> {
    let package = std::env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from);
    match package.as_deref().and_then(|package| package.parent()) {
        Some(workspace) => Ok(workspace.into()),
        None => std::env::current_dir(),
    }
}

/// Runs the command of the command line, or the role that another process of this program requests.
pub fn main() -> ExitCode {
    if let Some(status) = roles::run_if_asked() {
        return status;
    }
    match run(&Arguments::parse()) {
        Ok(None) => ExitCode::SUCCESS,
        Ok(Some(failure)) => {
            eprintln!("toroid-bench: {failure}");
            ExitCode::FAILURE
        }
        Err(error) => {
            if let Some(usage) = error.downcast_ref::<clap::Error>() {
                usage.exit();
            }
            eprintln!("toroid-bench: {}", with_causes(&error));
            match error.downcast_ref() {
                Some(ClusterError::Interrupted(signal)) => ExitCode::from(128 + *signal as u8),
                _ if error.is::<RunError>() => ExitCode::from(2),
                _ => ExitCode::FAILURE,
            }
        }
    }
}

/// Measures, prints and saves. Returns the failure that the report shows, if any.
fn run(arguments: &Arguments) -> anyhow::Result<Option<String>> {
    let keep = Keep::check(arguments.save.as_deref(), arguments.raw.as_deref())?;
    let manifest = Manifest::begin();
    let mut busy = arguments.busy.then(Busy::start).transpose()?;
    let awake = arguments.command.is_on_time().then(Awake::hold);
    let progress = Progress::new();
    let mut report = arguments.command.measure(&progress)?;
    drop(progress);
    let awake = awake.map(|awake| awake.is_held());
    let manifest = manifest.end().with("processors_awake", awake);
    report.manifest(&manifest);
    print(&report, arguments.command.is_json()).context("cannot write to standard output")?;
    busy.as_mut().map_or(Ok(()), Busy::check)?;
    keep.write(&manifest, &report)?;
    let wrong = match report.errors {
        0 => None,
        errors => Some(format!(
            "{errors} operations failed, or bytes or packets were wrong"
        )),
    };
    Ok(wrong.or(report.failure))
}

fn print(report: &Report, json: bool) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    if json {
        serde_json::to_writer(&mut stdout, report)?;
        writeln!(stdout)?;
    } else {
        stdout.write_all(report.text.as_bytes())?;
    }
    stdout.flush()
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_options_of_all_commands_fit_together() {
        Arguments::command().debug_assert();
        let parse = |line: &'static str| Arguments::try_parse_from(line.split(' '));
        let run = parse("toroid-bench kv --quick --rows rdma/get/64 --raw a --save b").unwrap();
        assert_eq!((run.raw, run.save), (Some("a".into()), Some("b".into())));
        assert!(parse("toroid-bench kv --mix --rounds 2").is_err());
    }
}
