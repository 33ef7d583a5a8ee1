//! The command `toroid-bench`.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use bench::busy::Busy;
use bench::cluster::ClusterError;
use bench::compare::{Options, compare};
use bench::plan::Effort;
use bench::progress::Progress;
use bench::{concurrent, domains, ether, fabric, files, kv, roles, table};
use clap::{Args, Parser, Subcommand};
use serde::Serialize;

/// Measures communication domains on this machine.
///
/// Exit status: 0 when all went well; 1 when something failed or a byte was wrong; 2 for wrong
/// arguments; 128 + the signal that ended it.
#[derive(Parser)]
#[command(name = "toroid-bench", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,

    /// Let one process spin beside, as on a machine on which something else works, too.
    #[arg(long, global = true)]
    busy: bool,
}

#[derive(Subcommand)]
enum Command {
    /// Put both paths, Ethernet and RDMA, side by side between two nodes, with baselines.
    ///
    /// Starts an agent of its own and leaves nothing behind. Root is not needed. Without /dev/net/tun
    /// nodes have no interfaces, and Ethernet is by sockets in the processes themselves, which the
    /// report says.
    Compare(Compare),

    /// Measure changes of membership: how long they take, what those who stay notice, and whether
    /// anything still passes.
    ///
    /// Starts agents of its own, with up to 512 nodes, and leaves nothing behind. Needs
    /// /dev/net/tun and 4 GiB of memory; root is not needed. The domains' directory is kept in
    /// $TMPDIR or /tmp, which should be on a disk.
    Domains(Domains),

    /// Measure the Ethernet of a domain, beside a bare relay between two TAPs, which is the limit,
    /// and a pair of interfaces of the kernel's own.
    ///
    /// Starts an agent of its own and leaves nothing behind. Needs /dev/net/tun and root.
    Ether(Ether),

    /// Measure messages between two nodes beside those of libfabric's provider `shm`, and one-sided
    /// operations beside them.
    ///
    /// Starts an agent of its own and leaves nothing behind. Needs the program fi_pingpong, which is in
    /// Debian's package libfabric-bin; root is not needed.
    Fabric(Fabric),

    /// Measure the store beside memcached and memcpy: by its own client, which reads the server's
    /// memory, and by memcached's protocol.
    ///
    /// Starts an agent of its own and leaves nothing behind. Needs the program memcached and 6 GiB of
    /// memory; root is not needed.
    Kv(Kv),
}

#[derive(Args)]
struct Kv {
    /// Print one JSON object instead of tables.
    #[arg(long)]
    json: bool,

    /// Be done in a minute.
    #[arg(long)]
    quick: bool,

    /// Only rows with all these words, such as set/1024/hot or rdma/get/64; may be repeated.
    ///
    /// A row's words are its path, operation, bytes, set and load, as the table has them.
    #[arg(long, value_name = "WORD/...")]
    rows: Vec<kv::plan::Words>,

    /// How often everything is measured.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: Option<u32>,

    /// Compare hit rates instead, on traces with more keys than there is memory for.
    ///
    /// Each server has 64 MiB. Takes some minutes, with --quick one or two.
    #[arg(long, conflicts_with_all = ["rows", "rounds", "unbound"])]
    mix: bool,

    /// Let client and server run wherever the scheduler puts them.
    ///
    /// Without this they have one processor over sockets while one request is under way.
    #[arg(long)]
    unbound: bool,
}

#[derive(Args)]
struct Fabric {
    /// Print one JSON object instead of a table.
    #[arg(long)]
    json: bool,

    /// Be done in a minute.
    #[arg(long)]
    quick: bool,
}

#[derive(Args)]
struct Ether {
    /// Print one JSON object instead of tables.
    #[arg(long)]
    json: bool,

    /// Be done in a minute.
    #[arg(long)]
    quick: bool,
}

#[derive(Args)]
struct Domains {
    /// Print one JSON object instead of tables.
    #[arg(long)]
    json: bool,

    /// Be done in a minute.
    #[arg(long)]
    quick: bool,

    /// Only these rows of shrinks and growths, with 8 members at most, counted from 1, such as 3,4.
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

    /// Real input: the regular files under this directory [default: this repository].
    #[arg(long, value_name = "PATH")]
    dir: Option<PathBuf>,

    /// Measure instead what an Ethernet stream and RDMA reads lose when both go on at once.
    #[arg(long, conflicts_with = "dir")]
    concurrent: bool,

    /// Take up to 90 s for calmer figures.
    #[arg(long, conflicts_with = "quick")]
    full: bool,

    /// Be done in 15 s.
    #[arg(long)]
    quick: bool,
}

impl Compare {
    fn options(&self) -> anyhow::Result<Options> {
        let dir = match &self.dir {
            Some(dir) => dir.clone(),
            None => repository()?,
        };
        // Better now than after all else was measured.
        let dir = std::path::absolute(dir)?;
        files::check(&dir)?;
        let effort = self.effort();
        Ok(Options { dir, effort })
    }

    fn effort(&self) -> Effort {
        match (self.quick, self.full) {
            (true, _) => Effort::Quick,
            (_, true) => Effort::Full,
            _ => Effort::Default,
        }
    }
}

/// What cargo runs us from, or else where we are.
fn repository() -> io::Result<PathBuf> {
    let package = std::env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from);
    match package.as_deref().and_then(|package| package.parent()) {
        Some(workspace) => Ok(workspace.into()),
        None => std::env::current_dir(),
    }
}

fn main() -> ExitCode {
    if let Some(status) = roles::run_if_asked() {
        return status;
    }
    let arguments = Arguments::parse();
    let result = if arguments.busy {
        run_busy(&arguments.command)
    } else {
        run_command(&arguments.command)
    };
    match result {
        Ok(0) => ExitCode::SUCCESS,
        Ok(errors) => {
            eprintln!("toroid-bench: {errors} operations failed, or bytes or packets were wrong");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("toroid-bench: {error}");
            status_of(&error)
        }
    }
}

/// As [`run_command`], with a process that spins beside.
fn run_busy(command: &Command) -> anyhow::Result<u64> {
    let busy = Busy::start()?;
    let errors = run_command(command)?;
    busy.end()?;
    Ok(errors)
}

/// Measures, prints, and returns the number of errors.
fn run_command(command: &Command) -> anyhow::Result<u64> {
    match command {
        Command::Compare(arguments) if arguments.concurrent => run_concurrent(arguments),
        Command::Compare(arguments) => run(arguments),
        Command::Domains(arguments) => run_domains(arguments),
        Command::Ether(arguments) => run_ether(arguments),
        Command::Fabric(arguments) => run_fabric(arguments),
        Command::Kv(arguments) => run_kv(arguments),
    }
}

/// The same for the command `compare`.
fn run(arguments: &Compare) -> anyhow::Result<u64> {
    let options = arguments.options()?;
    let mut progress = Progress::new();
    let report = compare(&options, &mut progress)?;
    drop(progress);
    print(&report, arguments.json, || table::render(&report))?;
    Ok(report.errors())
}

/// The same for both paths at once.
fn run_concurrent(arguments: &Compare) -> anyhow::Result<u64> {
    let mut progress = Progress::new();
    let report = concurrent::measure(arguments.effort(), &mut progress)?;
    drop(progress);
    print(&report, arguments.json, || report.render())?;
    Ok(report.errors())
}

/// The same for the command `domains`.
fn run_domains(arguments: &Domains) -> anyhow::Result<u64> {
    let effort = if arguments.quick {
        Effort::Quick
    } else {
        Effort::Default
    };
    let mut progress = Progress::new();
    let report = domains::measure(effort, &arguments.rows, &mut progress)?;
    drop(progress);
    print(&report, arguments.json, || report.render())?;
    Ok(report.errors())
}

/// The same for the command `kv`.
fn run_kv(arguments: &Kv) -> anyhow::Result<u64> {
    let effort = if arguments.quick {
        Effort::Quick
    } else {
        Effort::Default
    };
    if arguments.mix {
        let mut progress = Progress::new();
        let report = kv::hits::measure(effort, &mut progress)?;
        drop(progress);
        print(&report, arguments.json, || report.render())?;
        return Ok(report.errors());
    }
    let options = kv::Options {
        effort,
        rows: arguments.rows.clone(),
        rounds: arguments.rounds,
        unbound: arguments.unbound,
    };
    let mut progress = Progress::new();
    let report = kv::measure(&options, &mut progress)?;
    drop(progress);
    print(&report, arguments.json, || report.render())?;
    Ok(report.errors())
}

/// The same for the command `fabric`.
fn run_fabric(arguments: &Fabric) -> anyhow::Result<u64> {
    let effort = if arguments.quick {
        Effort::Quick
    } else {
        Effort::Default
    };
    let mut progress = Progress::new();
    let report = fabric::measure(effort, &mut progress)?;
    drop(progress);
    print(&report, arguments.json, || report.render())?;
    Ok(report.errors())
}

/// The same for the command `ether`.
fn run_ether(arguments: &Ether) -> anyhow::Result<u64> {
    let effort = if arguments.quick {
        Effort::Quick
    } else {
        Effort::Default
    };
    let mut progress = Progress::new();
    let report = ether::measure(effort, &mut progress)?;
    drop(progress);
    print(&report, arguments.json, || report.render())?;
    Ok(report.errors())
}

fn print(report: &impl Serialize, json: bool, table: impl Fn() -> String) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    if json {
        serde_json::to_writer(&mut stdout, report)?;
        writeln!(stdout)?;
    } else {
        stdout.write_all(table().as_bytes())?;
    }
    stdout.flush()
}

fn status_of(error: &anyhow::Error) -> ExitCode {
    match error.downcast_ref() {
        Some(ClusterError::Interrupted(signal)) => ExitCode::from(128 + *signal as u8),
        _ => ExitCode::FAILURE,
    }
}
