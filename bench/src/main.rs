//! The command `toroid-bench`.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use bench::cluster::ClusterError;
use bench::compare::{Options, compare};
use bench::plan::Effort;
use bench::progress::Progress;
use bench::report::Report;
use bench::{files, roles, table};
use clap::{Args, Parser, Subcommand};

/// Measures communication domains on this machine.
///
/// Exit status: 0 when all went well; 1 when something failed or a byte was wrong; 2 for wrong
/// arguments; 128 + the signal that ended it.
#[derive(Parser)]
#[command(name = "toroid-bench", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Put both paths, Ethernet and RDMA, side by side between two nodes, with baselines.
    ///
    /// Starts an agent of its own and leaves nothing behind. Needs /dev/net/tun; root is not
    /// needed.
    Compare(Compare),
}

#[derive(Args)]
struct Compare {
    /// Print one JSON object instead of tables.
    #[arg(long)]
    json: bool,

    /// Real input: the regular files under this directory [default: this repository].
    #[arg(long, value_name = "PATH")]
    dir: Option<PathBuf>,

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
        let effort = match (self.quick, self.full) {
            (true, _) => Effort::Quick,
            (_, true) => Effort::Full,
            _ => Effort::Default,
        };
        Ok(Options { dir, effort })
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
    let Command::Compare(arguments) = Arguments::parse().command;
    match run(&arguments) {
        Ok(0) => ExitCode::SUCCESS,
        Ok(errors) => {
            eprintln!("toroid-bench: {errors} operations failed or gave wrong bytes");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("toroid-bench: {error}");
            status_of(&error)
        }
    }
}

/// Measures, prints, and returns the number of errors.
fn run(arguments: &Compare) -> anyhow::Result<u64> {
    let options = arguments.options()?;
    let mut progress = Progress::new();
    let report = compare(&options, &mut progress)?;
    drop(progress);
    print(&report, arguments.json)?;
    Ok(report.errors())
}

fn print(report: &Report, json: bool) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    if json {
        serde_json::to_writer(&mut stdout, report)?;
        writeln!(stdout)?;
    } else {
        stdout.write_all(table::render(report).as_bytes())?;
    }
    stdout.flush()
}

fn status_of(error: &anyhow::Error) -> ExitCode {
    match error.downcast_ref() {
        Some(ClusterError::Interrupted(signal)) => ExitCode::from(128 + *signal as u8),
        _ => ExitCode::FAILURE,
    }
}
