//! The command `toroid`: administers an agent through its control socket, and nothing else.

mod command;
mod failure;
mod locate;
mod names;
mod nodes;
mod output;
mod values;

use std::io::IsTerminal;
use std::process::ExitCode;

use clap::Parser;
use toroid_agent::roles::{self, Role};

use command::{CommandLine, ping};

fn main() -> ExitCode {
    match roles::asked() {
        Some(Role::Agent) => start_log("info"),
        Some(Role::TargetProxy) => start_log("warn"),
        _ => {}
    }
    if let Some(status) = ping::run_if_asked().or_else(roles::run_if_asked) {
        return status.into();
    }
    let command_line = CommandLine::parse();
    start_log(if command_line.verbose { "info" } else { "warn" });
    match command_line.run() {
        Ok(status) => status.into(),
        Err(failure) => {
            eprintln!("toroid: {}", names::with_names(&failure.to_string()));
            failure.status().into()
        }
    }
}

fn start_log(default: &str) {
    let filter = tracing_subscriber::EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new(default));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .without_time()
        .init();
}
