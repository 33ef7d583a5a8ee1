//! `toroid up`: start an agent with its nodes.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use clap::Args;
use toroid_agent::background::spawn_background;
use toroid_agent::{Config, read_profile};
use toroid_client::admin::Control;
use toroid_fabric::Torus;
use toroid_model::hosts::etcd::EtcdConfig;
use toroid_model::hosts::{self, ConfigFile, HostConfig};
use toroid_model::info::Limits;
use toroid_model::limits::{ACK_TIMEOUT_MS, MAX_ACK_TIMEOUT_MS};
use toroid_model::link::FabricProfile;

use super::{DONE, Run, Session, status};
use crate::failure::{Failure, wrong};
use crate::locate::{self, Places};
use crate::output::Show;
use crate::values::{self, Offload};

const DRIVER: &str = "toroid-ethernet";

const HELP: &str = "\
A file for --config; each host has its own, and docs/hosts.md explains it:
  host = \"a\"                      # this one
  torus = \"2x2x2\"
  nodes = [\"0,*,*\"]               # those that it carries
  listen = \"10.0.0.1:7470\"        # for the agents of other hosts
  address = \"203.0.113.1:7470\"   # where these reach it; absent: as `listen`
  key = \"/etc/toroid/key\"         # admits this host; 64 hexadecimal digits, mode 600
  directory = \"a\"                 # whose agent holds the directory, or etcd
  candidates = [\"a\", \"b\"]        # with etcd: hosts that may lead
  provider = \"tcp\"                # between hosts, tcp or verbs; absent: tcp
  encryption = \"on\"              # of data between hosts, on or off; absent: on
  admission = \"key\"              # of new hosts, by that key or manual; absent: key
  device = \"mlx5_0\"               # with provider verbs; absent: the first, as the next three
  port = 1
  gid-index = 3
  partition-key-index = 0
  state = \"/run/toroid\"           # absent: as without a file; the same of those below
  data = \"/var/lib/toroid\"
  ack-timeout = 200
  offload = true
  ethernet = true                 # absent: true

  [hosts]                         # those that may lead; others only to override their addresses
  b = \"10.0.0.2:7470\"

  [alias]                         # of nodes that this one carries
  db = \"0,1,1\"

  [etcd]                          # on candidates; ca, cert and key with https
  endpoints = [\"http://10.0.0.1:2379\", \"http://10.0.0.2:2379\"]
  prefix = \"/toroid\"            # of all keys; absent: /toroid";

#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(crate) struct Up {
    /// Configuration file of this host among several; options of the command line override it
    #[arg(long, value_name = "FILE", conflicts_with = "torus")]
    config: Option<PathBuf>,
    /// Shape of the fabric; one node is emulated at each place [default: as before, or 2x2x2]
    #[arg(long, value_name = "XxYxZ")]
    torus: Option<Torus>,
    /// Data directory, on a disk, in which domains survive; every state directory has its own place
    /// there
    /// [default: $XDG_STATE_HOME/toroid or ~/.local/state/toroid, of root /var/lib/toroid]
    #[arg(long, env = "TOROID_DATA", value_name = "DIR", hide_env_values = true)]
    data: Option<PathBuf>,
    /// Start without domains; the old directory is kept in a file beside the new one
    #[arg(long)]
    fresh: bool,
    /// Obey `directory` in the file, although the directory has moved: its place since, a host or
    /// etcd, is lost for good. Two leaders are the price of a mistake (docs/hosts.md)
    #[arg(
        long,
        value_name = "etcd|HOST",
        requires = "config",
        conflicts_with = "fresh"
    )]
    lost: Option<String>,
    /// Stay in the foreground, until SIGINT or SIGTERM
    #[arg(long)]
    foreground: bool,
    /// Make no interfaces: domains have RDMA only
    #[arg(long)]
    no_ethernet: bool,
    /// Segmentation and checksum offload (GSO) of interfaces; off overrides every domain
    /// [default: as before, or on]
    #[arg(long, value_name = "ON|OFF", hide_possible_values = true)]
    offload: Option<Offload>,
    /// Emulate a torus with the costs of a profile, whose links all domains share: bgp, or a file in
    /// TOML (docs/links.md) [default: as before, or the machine's links]
    #[arg(long, value_name = "bgp|FILE", value_parser = read_profile)]
    fabric: Option<FabricProfile>,
    /// Processor time that the Ethernet driver may spend on waiting for due frames of emulated links,
    /// in percent of a core [default: as before, or 30]
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u8).range(0..=100))]
    precision: Option<u8>,
    /// Share the host's /tmp and /var/tmp with all nodes; otherwise each node has its own, in memory
    #[arg(long)]
    share_tmp: bool,
    /// Limit of memory and swap of each node, such as 512M or 4G, files in memory included; a
    /// process that needs more is killed [default: as before, or no limit]
    #[arg(long, value_name = "SIZE", value_parser = memory)]
    memory: Option<u64>,
    /// Limit of processes and threads of each node [default: as before, or 4096]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(32..=4_194_304))]
    pids: Option<u32>,
    /// Time that a remaining process has to acknowledge the departure of a node; a late process
    /// (stopped, or without a processor) is fenced: it loses the domain, too [default: 200]
    #[arg(long, value_name = "MILLISECONDS")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=MAX_ACK_TIMEOUT_MS))]
    ack_timeout: Option<u64>,
}

/// The size of a node's memory: at least 16 MiB, which a node needs to start.
fn memory(text: &str) -> Result<u64, &'static str> {
    let bytes = values::bytes(text).filter(|bytes| (16 << 20..1 << 50).contains(bytes));
    bytes.ok_or("use bytes, or K, M, G or T of them, and at least 16M")
}

impl Run for Up {
    fn run(self, session: &Session) -> Result<u8, Failure> {
        start(&session.places, &self, session.show)?;
        Ok(DONE)
    }
}

fn start(places: &Places, options: &Up, show: Show) -> Result<(), Failure> {
    let file = options.config.as_deref().map(read).transpose()?;
    let file = file.as_ref();
    let its_state = file.and_then(|file| file.state.as_deref());
    let state = places.to_start_or(its_state)?;
    let its_data = file.and_then(|file| file.data.as_deref());
    let no_ethernet = options.no_ethernet || file.is_some_and(|file| !file.ethernet);
    let offload = options.offload.map(|offload| offload == Offload::On);
    let config = Config {
        state: state.into(),
        data: locate::data(options.data.as_deref().or(its_data), show)?,
        fresh: options.fresh,
        torus: options.torus,
        driver_command: driver(no_ethernet)?,
        offload: offload.or(file.and_then(|file| file.offload)),
        fabric: options.fabric.clone(),
        precision: options.precision,
        share_tmp: options.share_tmp,
        limits: Limits {
            memory: options.memory,
            pids: options.pids,
        },
        lifeline: false,
        hosts: file.map(|file| HostConfig {
            lost: options.lost.clone(),
            ..file.host.clone()
        }),
        ack_timeout_ms: options
            .ack_timeout
            .or(file.and_then(|file| file.ack_timeout_ms))
            .unwrap_or(ACK_TIMEOUT_MS),
    };
    if options.foreground {
        let announce = || {
            show.note(&format!("agent ready on {}", state.display()));
            Ok(())
        };
        return Ok(toroid_agent::run(config, || true, announce)?);
    }
    spawn_background(&config)?;
    let status = Control::connect(state)?.status()?;
    if status.rootless {
        show.note(
            "without root, nodes are separated for convenience, not against malice: \
             their processes all run as you",
        );
    } else if !status.private_users {
        show.note(
            "this container has no users to give to nodes, so they are separated for \
             convenience, not against malice: root in a node is root here",
        );
    }
    if status.no_taps.is_some() {
        show.note(
            "nodes have no interfaces in domains: one process of each has its addresses there, with \
             sockets of its own (`toroid_ethernet::Stack`)",
        );
    }
    if let Some(no_limits) = &status.no_limits {
        show.note(&format!(
            "{}, so a node can take all that the host has; `toroid status` says what to do",
            no_limits.message
        ));
    }
    status::print(&status, show);
    Ok(())
}

/// Reads the configuration of one of several hosts. Its paths are relative to its directory.
fn read(path: &Path) -> Result<ConfigFile, Failure> {
    let text = fs::read_to_string(path)
        .map_err(|error| Failure::usage(&format!("cannot read {}: {error}", path.display())))?;
    let mut file = hosts::parse(&text).map_err(|problems| wrong(path, &problems))?;
    file.host.key = beside(path, &file.host.key);
    for file in file.host.etcd.iter_mut().flat_map(EtcdConfig::files) {
        *file = beside(path, file);
    }
    file.state = file.state.map(|state| beside(path, &state));
    file.data = file.data.map(|data| beside(path, &data));
    Ok(file)
}

fn beside(file: &Path, relative: &Path) -> PathBuf {
    // Without it, relative to where we are.
    let file = std::path::absolute(file).unwrap_or_else(|_| file.into());
    file.with_file_name("").join(relative)
}

fn driver(no_ethernet: bool) -> Result<Option<Vec<OsString>>, Failure> {
    if no_ethernet {
        return Ok(None);
    }
    let program = locate::program(DRIVER.as_ref()).ok_or_else(|| {
        Failure::new(format!(
            "{DRIVER} is neither beside this program nor in PATH; build it with \
             `cargo build --release`, or do without Ethernet with --no-ethernet"
        ))
    })?;
    Ok(Some(vec![program.into()]))
}
