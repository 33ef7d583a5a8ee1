//! The command `toroid-kv`: the store's server, a proxy to it, and an RDMA client for the shell.
//!
//! [`EXIT_STATUSES`] of a client; a server that does not start ends with memcached's statuses,
//! where memcached has one.

mod client;
mod proxy;
mod serve;
mod top;

use std::ffi::OsString;
use std::io::IsTerminal;
use std::path::Path;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Version of memcached that the command line and the protocol follow, and the store's own.
const VERSION: &str = concat!("1.6.18-toroid-", env!("CARGO_PKG_VERSION"));

const EXIT_STATUSES: &str = "\
Exit status of get, set, delete and top:
  0  done                       3  unreachable: no agent, node, domain or server
  1  no such key                4  refused, such as a value that is too large
  2  wrong usage";

/// Memcached-compatible store with one-sided RDMA gets.
#[derive(Parser)]
#[command(name = "toroid-kv", version, after_help = EXIT_STATUSES)]
struct Cli {
    /// Log more to standard error; RUST_LOG overrides.
    #[arg(short, long, action = clap::ArgAction::Count, global = true)]
    verbose: u8,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run a server: memcached protocol and, in a node, RDMA.
    #[command(
        disable_version_flag = true,
        infer_long_args = true,
        args_override_self = true
    )]
    Serve(Box<serve::Serve>),
    /// Run a proxy: memcached protocol with one-sided gets from a server.
    Proxy(proxy::Proxy),
    #[command(flatten)]
    Client(client::Command),
}

/// Memcached-compatible server: "toroid-kv serve".
#[derive(Parser)]
#[command(
    name = "memcached",
    disable_version_flag = true,
    infer_long_args = true,
    args_override_self = true
)]
struct Alone {
    /// Log more to standard error; RUST_LOG overrides.
    #[arg(short, long, action = clap::ArgAction::Count)]
    verbose: u8,
    #[command(flatten)]
    serve: serve::Serve,
}

fn main() -> ExitCode {
    let words: Vec<OsString> = std::env::args_os().collect();
    let name = words.first().and_then(|name| Path::new(name).file_name());
    let cli = if name.is_some_and(|name| name == "memcached") {
        match Alone::try_parse_from(words) {
            Ok(alone) => Cli {
                verbose: alone.verbose,
                command: Command::Serve(Box::new(alone.serve)),
            },
            Err(error) => {
                // Standard error may be closed; the status says it as well.
                let _ = error.print();
                return ExitCode::from(u8::from(error.use_stderr()));
            }
        }
    } else {
        Cli::parse_from(words)
    };
    start_logging(cli.verbose);
    let (done, status): (_, fn(&anyhow::Error) -> u8) = match cli.command {
        Command::Serve(options) => (
            serve::serve(&options, cli.verbose).map(|()| true),
            serve::status,
        ),
        Command::Proxy(options) => (
            proxy::serve(&options, cli.verbose).map(|()| true),
            serve::status,
        ),
        Command::Client(command) => (command.carry_out(), client::status),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("toroid-kv: {error}");
            ExitCode::from(status(&error))
        }
    }
}

fn start_logging(verbose: u8) {
    let level = ["warn", "info", "debug", "trace"][usize::from(verbose.min(3))];
    let filter = tracing_subscriber::EnvFilter::try_from_default_env();
    tracing_subscriber::fmt()
        .with_env_filter(filter.unwrap_or_else(|_| level.into()))
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .init();
}
