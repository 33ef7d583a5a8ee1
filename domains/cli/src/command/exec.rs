//! `toroid exec`: a command in nodes, as if it ran here.
//!
//! No descriptor of a terminal goes to a node, where a process could keep it and read later input.
//! The command gets a terminal of its node, or pipes, and this process relays between both.

mod bind;
mod environment;
pub(crate) mod relay;
mod terminal;

use std::fs::File;
use std::io::{self, IsTerminal};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::thread;

use clap::Args;
use rustix::process::{Resource, Rlimit, geteuid, getrlimit, setrlimit};
use signal_hook::consts::{
    SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGUSR1, SIGUSR2, SIGWINCH,
};
use signal_hook::iterator::Signals as Caught;
use signal_hook::low_level::emulate_default_handler;
use toroid_client::admin::{ClientError, Control, ExecHandle, Order, Signals};
use toroid_model::info::NodeInfo;
use toroid_model::refusal::{Refusal, RefusalKind};
use toroid_protocol::agent::{Bind, Terminal};

use super::{Run, Session};
use crate::failure::Failure;
use crate::nodes::Snapshot;
use environment::Environment;
use relay::{Output, Relay, Source};
use terminal::Screen;

/// Signals that are passed on to the command.
const SIGNALS: [i32; 7] = [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGWINCH];

const HELP: &str = "\
Examples:
  toroid exec 0,0,0 -- iperf3 -s
  toroid exec 0,0,0 -- bash                    # with a terminal and job control
  toroid exec --bind . 0,0,0 -- make test      # in this directory, for this user
  toroid exec '*,*,0' -- uptime                # lines begin with their node: \"1,0,0: \"

The terminal is the node's own, so no process of the node can read what is typed afterwards. With it
the command's standard error is the terminal, too, unless it leads elsewhere. When the command ends,
what it has left behind has no terminal any more.";

#[derive(Debug, Args)]
#[command(
    override_usage = "toroid exec [OPTIONS] <NODES>... -- <COMMAND>...",
    after_help = HELP
)]
pub(crate) struct Exec {
    /// Give the command a terminal of its own, as it gets by default in one node when standard input
    /// and output are terminals
    #[arg(short = 't', long, conflicts_with = "no_tty")]
    tty: bool,
    /// Give the command no terminal
    #[arg(short = 'T', long)]
    no_tty: bool,
    /// Begin each line of output with the node it is from, as by default with several nodes
    #[arg(short, long, conflicts_with_all = ["no_label", "tty"])]
    label: bool,
    /// Pass output on as it is
    #[arg(short = 'L', long)]
    no_label: bool,
    /// Give the command a variable, with this process's value or another
    #[arg(short, long, value_name = "NAME[=VALUE]")]
    env: Vec<String>,
    /// Give the command a directory of yours, at the same path or another, as root of the node: your
    /// files are its files. With `:ro` it cannot change them
    #[arg(short, long, value_name = "DIR[:DEST][:ro]")]
    bind: Vec<String>,
    /// The nodes
    #[arg(required = true)]
    nodes: Vec<String>,
    /// The command and its arguments, after `--`
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<String>,
}

impl Run for Exec {
    fn run(self, session: &Session) -> Result<u8, Failure> {
        run(&mut session.connect()?, &self)
    }
}

fn run(agent: &mut Control, options: &Exec) -> Result<u8, Failure> {
    let snapshot = Snapshot::of(agent)?;
    let nodes = snapshot.resolve(&options.nodes)?;
    let caller = Caller {
        agent,
        has_users: snapshot.has_users,
        variables: environment::own(),
        directory: environment::directory()?,
        binds: bind::open(&options.bind)?,
        options,
    };
    let status = match nodes[..] {
        [] => return Err(no_nodes(&options.nodes)),
        [node] if options.tty || (!options.no_tty && !options.label && terminal::is_ours()) => {
            caller.run_on_terminal(node)?
        }
        _ if options.tty => {
            let message = "a terminal is for a command in one node; leave out --tty, or name one";
            return Err(Failure::usage(message));
        }
        _ => caller.run_on_streams(&nodes)?,
    };
    Ok(u8::try_from(status).unwrap_or(u8::MAX))
}

/// Context of a command: this process's variables, directories and options.
struct Caller<'a> {
    agent: &'a Control,
    /// Whether nodes have users of their own.
    has_users: bool,
    variables: Vec<(String, String)>,
    directory: String,
    binds: Vec<(Bind, OwnedFd)>,
    options: &'a Exec,
}

impl Caller<'_> {
    /// Runs a command on a terminal of its node.
    fn run_on_terminal(&self, node: &NodeInfo) -> Result<i32, Failure> {
        // Before the command starts, which may request a signal at once.
        let caught = Caught::new(SIGNALS.iter().chain(&[SIGTSTP, SIGCONT]))?;
        let error = io::stderr().is_terminal();
        // In place of those that the terminal replaces.
        let (null, stderr) = (File::open("/dev/null")?, io::stderr());
        let stderr = if error { null.as_fd() } else { stderr.as_fd() };
        let (rows, columns) = terminal::size();
        let terminal = Terminal {
            rows,
            columns,
            error,
        };
        let stdio = [null.as_fd(), null.as_fd(), stderr];
        let mut command = self.start(node, stdio, Some(terminal))?;
        let Some(master) = command.take_terminal() else {
            return Ok(command.wait()?);
        };
        let screen = Screen::new(master.try_clone()?);
        obey_signals(caught, vec![command.signals()], Some(screen.clone()));
        let output = Source::new(master.try_clone()?, Output::Standard, None);
        screen.begin();
        // No early return until `screen.end()`.
        let status = Relay::start(vec![output]).map_err(ClientError::from);
        let status = status.and_then(|relay| {
            thread::spawn(move || terminal::pass_input(master));
            let status = command.wait();
            relay.finish();
            status
        });
        screen.end();
        Ok(status?)
    }

    /// Runs a command in nodes with this process's own streams, as far as they are no terminals and need
    /// no labels.
    fn run_on_streams(&self, nodes: &[&NodeInfo]) -> Result<i32, Failure> {
        let options = self.options;
        let is_labelled = options.label || (nodes.len() > 1 && !options.no_label);
        raise_limit();
        let caught = Caught::new(SIGNALS)?;
        let stdin = input(nodes.len())?;
        let mut sources = Vec::new();
        let mut commands = Vec::new();
        for node in nodes {
            let label = is_labelled.then(|| node.place.to_string());
            let stdout = output(Output::Standard, label.clone(), &mut sources)?;
            let stderr = output(Output::Error, label, &mut sources)?;
            let stdio = [stdin.as_fd(), stdout.as_fd(), stderr.as_fd()];
            commands.push(self.start(node, stdio, None)?);
        }
        drop(stdin);
        obey_signals(
            caught,
            commands.iter().map(ExecHandle::signals).collect(),
            None,
        );
        let relay = Relay::start(sources)?;
        let mut worst = Ok(0);
        for command in &mut commands {
            worst = worst.and_then(|worst: i32| Ok(worst.max(command.wait()?)));
        }
        relay.finish();
        Ok(worst.map_err(|error: ClientError| error)?)
    }

    /// Starts the command in a node.
    fn start(
        &self,
        node: &NodeInfo,
        stdio: [BorrowedFd<'_>; 3],
        terminal: Option<Terminal>,
    ) -> Result<ExecHandle, Failure> {
        let of_node = environment::Node {
            has_users: self.has_users,
            is_callers: node.owner == Some(geteuid().as_raw()),
        };
        let environment = Environment::new(&self.variables, of_node, &self.options.env)?;
        Ok(self.agent.exec(&Order {
            node: &node.place.to_string(),
            argv: &self.options.command,
            env: &environment.variables,
            search: &environment.search,
            cwd: &self.directory,
            stdio,
            terminal,
            binds: &self.binds,
        })?)
    }
}

/// Standard input of commands in `nodes` nodes. Typed input goes to a command in a single node, and
/// only if this process may read it.
fn input(nodes: usize) -> io::Result<OwnedFd> {
    let stdin = io::stdin();
    if !stdin.is_terminal() {
        return stdin.as_fd().try_clone_to_owned();
    }
    if nodes > 1 || !terminal::is_in_foreground() {
        return Ok(File::open("/dev/null")?.into());
    }
    let (reader, mut writer) = io::pipe()?;
    // It ends with the command, which reads no more, or with this process.
    thread::spawn(move || io::copy(&mut io::stdin().lock(), &mut writer));
    Ok(reader.into())
}

/// Standard output or error of a command in a node: this process's own, or a pipe from which a relay
/// passes it on.
pub(crate) fn output(
    to: Output,
    label: Option<String>,
    sources: &mut Vec<Source>,
) -> io::Result<OwnedFd> {
    if label.is_none() && !to.is_terminal() {
        return to.try_clone();
    }
    let (reader, writer) = io::pipe()?;
    sources.push(Source::new(reader.into(), to, label));
    Ok(writer.into())
}

/// Two pipes and a session for each of a thousand nodes are more than most limits.
fn raise_limit() {
    let limit = getrlimit(Resource::Nofile);
    let current = limit.maximum;
    // After a failure, opening too many descriptors fails with a reason.
    let _ = setrlimit(Resource::Nofile, Rlimit { current, ..limit });
}

/// Passes signals on to the commands.
fn obey_signals(mut caught: Caught, commands: Vec<Signals>, screen: Option<Screen>) {
    thread::spawn(move || {
        // It fails when a command has ended, and this process is about to.
        let pass_on = |signal| {
            for command in &commands {
                let _ = command.send(signal);
            }
        };
        for signal in caught.forever() {
            match (signal, &screen) {
                (SIGWINCH, Some(screen)) => {
                    screen.resize();
                    pass_on(signal);
                }
                (SIGTSTP, Some(screen)) => {
                    screen.give_back();
                    // It fails for no signal that has a default.
                    let _ = emulate_default_handler(SIGTSTP);
                }
                (SIGCONT, Some(screen)) => {
                    screen.begin();
                    screen.resize();
                    pass_on(SIGWINCH);
                }
                _ => pass_on(signal),
            }
        }
    });
}

fn no_nodes(sets: &[String]) -> Failure {
    let sets = sets.join(" ");
    Refusal::new(
        RefusalKind::NotFound,
        format!("{sets} names no nodes"),
        "add members with `toroid domain grow`, or name nodes",
    )
    .into()
}
