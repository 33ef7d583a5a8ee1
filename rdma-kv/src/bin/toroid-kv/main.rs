//! The command `toroid-kv`: the store's server, and an RDMA client for the shell.
//!
//! Exit status: 0 done; 1 there is no such key, or the operation failed; 2 bad usage.

use std::io::{Read, Write};
use std::net::IpAddr;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Result, anyhow};
use clap::{Args, Parser, Subcommand};
use domains::member::Member;
use fabric::Place;
use rdma_kv::Client;
use rdma_kv::server::{self, Rdma, Settings, Stop};
use rdma_kv::store::Limits;

/// A memcached-compatible store whose gets are reads of the server's memory.
#[derive(Parser)]
#[command(name = "toroid-kv", version)]
struct Cli {
    /// Say more, on standard error; RUST_LOG overrides.
    #[arg(short, long, action = clap::ArgAction::Count, global = true)]
    verbose: u8,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Serve the store: by the memcached protocol and, in a node, by RDMA.
    ///
    /// Prints one line on standard output when clients may come:
    /// "ready tcp ADDRESS:PORT... rdma DOMAIN PLACE".
    Serve(Serve),
    /// Write a key's value to standard output.
    Get {
        #[command(flatten)]
        server: Server,
        /// The key.
        key: String,
    },
    /// Store a value under a key.
    Set {
        #[command(flatten)]
        server: Server,
        /// Seconds until it expires (up to 30 days), or the Unix time when it does; 0 is never.
        #[arg(short = 'e', long, default_value_t = 0, allow_negative_numbers = true)]
        exptime: i64,
        /// A number kept with the value.
        #[arg(short = 'f', long, default_value_t = 0)]
        flags: u32,
        /// The key.
        key: String,
        /// The value; standard input when absent.
        value: Option<String>,
    },
    /// Remove a key.
    #[command(alias = "rm")]
    Delete {
        #[command(flatten)]
        server: Server,
        /// The key.
        key: String,
    },
}

/// Options as memcached's, where it has them.
#[derive(Args)]
struct Serve {
    /// Addresses to listen at; all of them by default.
    #[arg(short, long, value_name = "ADDR", value_delimiter = ',')]
    listen: Vec<IpAddr>,
    /// TCP port; 0 serves no TCP, -1 takes any free port.
    #[arg(short, long, value_name = "PORT", default_value_t = 11211, allow_negative_numbers = true,
          value_parser = clap::value_parser!(i32).range(-1..=65535))]
    port: i32,
    /// Memory for items, in MiB.
    #[arg(short, long, value_name = "MB", default_value_t = 64)]
    memory_limit: u64,
    /// TCP connections at a time.
    #[arg(short, long, value_name = "NUM", default_value_t = 1024)]
    conn_limit: usize,
    /// The largest item in bytes, with k or m for KiB or MiB: from 1k to half the memory.
    #[arg(short = 'I', long, value_name = "SIZE", default_value = "1m", value_parser = parse_size)]
    max_item_size: u32,
    /// The domain to serve by RDMA; the node's only one by default.
    #[arg(short, long, value_name = "NAME")]
    domain: Option<String>,
    /// Serve TCP alone, in a node too.
    #[arg(long, conflicts_with = "domain")]
    no_rdma: bool,
}

#[derive(Args)]
struct Server {
    /// The domain; the node's only one by default.
    #[arg(short, long, value_name = "NAME")]
    domain: Option<String>,
    /// The server's place, as x,y,z; the domain's only server by default.
    #[arg(short, long, value_name = "PLACE")]
    server: Option<Place>,
}

impl Server {
    fn connect(&self) -> Result<Client> {
        let domain = Member::attach()?.domain_or_only(self.domain.as_deref())?;
        Ok(Client::connect(&domain, self.server)?)
    }
}

fn parse_size(text: &str) -> Result<u32, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match &text[digits.len()..] {
        "" => 1,
        "k" | "K" => 1 << 10,
        "m" | "M" => 1 << 20,
        "g" | "G" => 1 << 30,
        _ => return Err("write a number, with k, m or g after it if you like".into()),
    };
    let number: u32 = digits.parse().map_err(|_| "not a number".to_owned())?;
    number.checked_mul(unit).ok_or_else(|| "too large".into())
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    start_logging(cli.verbose);
    match carry_out(cli.command) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("toroid-kv: {error}");
            ExitCode::FAILURE
        }
    }
}

fn start_logging(verbose: u8) {
    let level = ["warn", "info", "debug", "trace"][usize::from(verbose.min(3))];
    let filter = tracing_subscriber::EnvFilter::try_from_default_env();
    tracing_subscriber::fmt()
        .with_env_filter(filter.unwrap_or_else(|_| level.into()))
        .with_writer(std::io::stderr)
        .init();
}

/// Whether it did what was asked; a key that is not there has been told.
fn carry_out(command: Command) -> Result<bool> {
    match command {
        Command::Serve(options) => serve(options)?,
        Command::Get { server, key } => {
            let Some(value) = server.connect()?.get(key.as_bytes())? else {
                return Ok(miss(&key));
            };
            let mut output = std::io::stdout().lock();
            output
                .write_all(&value.data)
                .and_then(|()| output.flush())?;
        }
        Command::Set {
            server,
            exptime,
            flags,
            key,
            value,
        } => {
            let value = match value {
                Some(value) => value.into_bytes(),
                None => {
                    let mut value = Vec::new();
                    std::io::stdin()
                        .read_to_end(&mut value)
                        .map_err(|error| anyhow!("cannot read standard input: {error}"))?;
                    value
                }
            };
            server
                .connect()?
                .set(key.as_bytes(), flags, exptime, &value)?;
        }
        Command::Delete { server, key } => {
            if !server.connect()?.delete(key.as_bytes())? {
                return Ok(miss(&key));
            }
        }
    }
    Ok(true)
}

fn miss(key: &str) -> bool {
    eprintln!("toroid-kv: there is no key {key:?}");
    false
}

fn serve(serve: Serve) -> Result<()> {
    let rdma = match (serve.domain, serve.no_rdma) {
        (_, true) => Rdma::Off,
        (Some(name), _) => Rdma::Domain(name),
        (None, _) => Rdma::Auto,
    };
    let settings = Settings {
        listen: serve.listen.into_iter().map(Into::into).collect(),
        port: match serve.port {
            0 => None,
            -1 => Some(0),
            port => Some(u16::try_from(port)?),
        },
        connections: serve.conn_limit,
        limits: Limits {
            memory: serve.memory_limit.saturating_mul(1 << 20),
            item: serve.max_item_size,
        },
        rdma,
        ..Settings::default()
    };
    let stop = Stop::new()?;
    stop_on_signals(&stop)?;
    let start = Instant::now();
    server::run(&settings, &stop, |ready, _| {
        if ready.rdma.is_none() && settings.rdma == Rdma::Auto {
            eprintln!("toroid-kv: not in a node: serving TCP alone");
        }
        // Nobody may be listening; that is no reason not to serve.
        let _ = writeln!(std::io::stdout(), "{ready}");
        tracing::info!("ready after {:?}", start.elapsed());
    })?;
    Ok(())
}

fn stop_on_signals(stop: &Stop) -> Result<()> {
    use signal_hook::consts::{SIGINT, SIGTERM};
    let mut signals = signal_hook::iterator::Signals::new([SIGINT, SIGTERM])?;
    let stop = stop.clone();
    std::thread::spawn(move || {
        if signals.forever().next().is_some() {
            stop.stop();
        }
    });
    Ok(())
}
