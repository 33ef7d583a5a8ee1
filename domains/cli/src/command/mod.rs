//! The command line: options of every command, and one module for each command.

mod alloc;
mod apply;
mod directory;
mod doctor;
mod domain;
mod down;
mod dump;
mod events;
mod exec;
mod explain;
mod free;
mod gateway;
mod generate;
mod host;
mod ip;
mod link;
mod node;
pub(crate) mod ping;
mod quota;
mod sibling;
mod status;
mod up;
mod whoami;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Parser, Subcommand};
use toroid_client::admin::Control;

use crate::failure::Failure;
use crate::locate::Places;
use crate::output::Show;

const EXAMPLES: &str = "\
Examples:
  toroid up --torus 2x2x2
  toroid domain create blue 0,0,0 1,1,1
  toroid exec 0,0,0 -- ping -c 3 1-1-1.blue
  toroid ping 0,0,0 1,1,1 -d blue

NODES are one or more of: 1,0,0 (a place), 0-3,0,0 and *,*,1 (several), an alias, @blue (the
members of a domain).

Exit status:
  0  done                       4  no such node or domain
  1  failed                     5  exists already, or runs already
  2  wrong usage or value       6  not permitted
  3  no agent runs              7  a limit is reached
`toroid exec` exits as its command does: 126 when it cannot be executed, 127 when it is not
found, 128 + N when signal N killed it. With --json, too, errors are text on standard error, and
their kind is the exit status.

`toroid NAME` with another NAME runs the program toroid-NAME from beside toroid or from PATH, such as
`toroid kv` and `toroid bench`.";

/// Heading of global options in the help of every command.
const GLOBAL: &str = "Options of every command";

/// Communication domains: nodes that may talk over Ethernet and by RDMA at the same time.
#[derive(Debug, Parser)]
#[command(name = "toroid", version, after_help = EXAMPLES, max_term_width = 100)]
pub(crate) struct CommandLine {
    /// State directory of the agent [default: $XDG_RUNTIME_DIR/toroid, or /run/toroid]
    #[arg(
        long,
        global = true,
        help_heading = GLOBAL,
        env = "TOROID_STATE",
        value_name = "DIR",
        hide_env_values = true
    )]
    state: Option<PathBuf>,
    /// Print JSON
    #[arg(long, global = true, help_heading = GLOBAL)]
    json: bool,
    /// Print more, for example which agent is used
    #[arg(short, long, global = true, help_heading = GLOBAL)]
    pub(crate) verbose: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Start an agent with its nodes; returns when it is ready
    Up(up::Up),
    /// End the agent, its nodes and all their processes
    Down(down::Down),
    /// Show the agent
    Status(status::Status),
    /// Check this machine's prerequisites and suggest fixes
    Doctor(doctor::Doctor),
    /// Show nodes, and change their names and owners
    #[command(subcommand)]
    Node(node::Node),
    /// Create, change and show domains
    #[command(subcommand)]
    Domain(domain::Domain),
    /// Connect domains to the outside (administrators only)
    #[command(subcommand, after_help = gateway::EXAMPLES)]
    Gateway(gateway::Gateway),
    /// Admit and remove other hosts, and change keys (administrators only)
    #[command(subcommand, after_help = host::EXAMPLES)]
    Host(host::Host),
    /// Move the directory of several hosts (administrators only)
    #[command(subcommand, after_help = directory::EXAMPLES)]
    Directory(directory::Directory),
    /// Model the links of a domain: latency, rate, loss
    #[command(subcommand, after_help = link::EXAMPLES)]
    Link(link::Link),
    /// Allocate free nodes (all or nothing)
    Alloc(alloc::Alloc),
    /// Release nodes: they leave all domains and their processes are killed
    Free(free::Free),
    /// Apply a configuration file: domains, aliases, owners of nodes, quotas
    Apply(apply::Apply),
    /// Export the configuration as a file for `toroid apply`
    Dump(dump::Dump),
    /// Show the audit log: changes and denials, each with its caller
    Events(events::Events),
    /// Show and set quotas of users and nodes
    #[command(subcommand)]
    Quota(quota::Quota),
    /// Run a command in nodes
    Exec(exec::Exec),
    /// Show the addresses of a node in a domain
    Ip(ip::Ip),
    /// Measure both paths between two nodes: Ethernet and RDMA
    Ping(ping::Ping),
    /// Explain why two nodes can or cannot communicate
    Explain(explain::Explain),
    /// Show the node of this process
    Whoami(whoami::Whoami),
    /// Print completions for a shell
    Completions(generate::Completions),
    /// Write man pages, one for each command
    Man(generate::Man),
    #[command(external_subcommand)]
    Other(Vec<OsString>),
}

/// Exit status of success.
const DONE: u8 = 0;

/// A command: a value with its arguments.
trait Run {
    /// Carries out the command and prints its result. Returns the exit status.
    fn run(self, session: &Session) -> Result<u8, Failure>;
}

/// Options of every command.
struct Session {
    places: Places,
    show: Show,
}

impl Session {
    fn connect(&self) -> Result<Control, Failure> {
        let mut control = self.places.connect()?;
        if !self.show.json {
            control.when_waiting(|| eprintln!("toroid: waiting until a host leads"));
        }
        Ok(control)
    }
}

impl CommandLine {
    /// Carries out the command. Returns the exit status.
    pub(crate) fn run(self) -> Result<u8, Failure> {
        let session = &Session {
            places: Places::new(self.state.clone()),
            show: Show { json: self.json },
        };
        match self.command {
            Command::Up(command) => command.run(session),
            Command::Down(command) => command.run(session),
            Command::Status(command) => command.run(session),
            Command::Doctor(command) => command.run(session),
            Command::Node(command) => command.run(session),
            Command::Domain(command) => command.run(session),
            Command::Gateway(command) => command.run(session),
            Command::Host(command) => command.run(session),
            Command::Directory(command) => command.run(session),
            Command::Link(command) => command.run(session),
            Command::Alloc(command) => command.run(session),
            Command::Free(command) => command.run(session),
            Command::Apply(command) => command.run(session),
            Command::Dump(command) => command.run(session),
            Command::Events(command) => command.run(session),
            Command::Quota(command) => command.run(session),
            Command::Exec(command) => command.run(session),
            Command::Ip(command) => command.run(session),
            Command::Ping(command) => command.run(session),
            Command::Explain(command) => command.run(session),
            Command::Whoami(command) => command.run(session),
            Command::Completions(command) => command.run(session),
            Command::Man(command) => command.run(session),
            Command::Other(words) => Err(sibling::run(&words, self.state.as_deref())),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        super::CommandLine::command().debug_assert();
    }
}
