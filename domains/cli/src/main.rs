//! The command `toroid`: administers an agent through its control socket, and nothing else.

mod alloc;
mod args;
mod declare;
mod doctor;
mod events;
mod exec;
mod explain;
mod failure;
mod gateway;
mod generate;
mod locate;
mod names;
mod ping;
mod quota;
mod show;
mod unless;
mod up;

use std::ffi::OsString;
use std::io::{ErrorKind, IsTerminal};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode};

use clap::Parser;
use toroid_agent::roles::{self, Role};
use toroid_client::admin::Control;
use toroid_model::directory::Terms;
use toroid_protocol::agent::{NewDomain, Reply};

use args::{
    Args, Command as Asked, DomainCommand, Forward, Interface, NodeCommand, Offload, Owner,
};
use failure::Failure;
use locate::Places;
use show::Show;

fn main() -> ExitCode {
    match roles::asked() {
        Some(Role::Agent) => start_log("info"),
        Some(Role::Adapter) => start_log("warn"),
        _ => {}
    }
    if let Some(status) = ping::run_if_asked().or_else(roles::run_if_asked) {
        return status.into();
    }
    let args = Args::parse();
    start_log(if args.verbose { "info" } else { "warn" });
    match run(args) {
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

fn run(args: Args) -> Result<u8, Failure> {
    let places = Places::new(args.state.clone());
    let show = Show { json: args.json };
    match args.command {
        Asked::Up(options) => up::run(&places, &options, show)?,
        Asked::Down => up::down(&places, show)?,
        Asked::Status => show.status(&connect(&places)?.status()?),
        Asked::Doctor => return doctor::run(&places, show),
        Asked::Node(command) => node(&mut connect(&places)?, command, show)?,
        Asked::Events(options) => events::run(&mut connect(&places)?, &options, show)?,
        Asked::Quota(command) => quota::run(&mut connect(&places)?, command, show)?,
        Asked::Domain(command) => domain(&mut connect(&places)?, command, show)?,
        Asked::Gateway(command) => gateway::run(&mut connect(&places)?, command, show)?,
        Asked::Alloc(options) => alloc::alloc(&mut connect(&places)?, &options, show)?,
        Asked::Free { nodes } => alloc::free(&mut connect(&places)?, &nodes, show)?,
        Asked::Apply(options) => declare::apply(&mut connect(&places)?, &options, show)?,
        Asked::Dump => declare::dump(&mut connect(&places)?, show)?,
        Asked::Exec(options) => return exec::run(&mut connect(&places)?, &options),
        Asked::Ip { node, domain } => {
            let mut agent = connect(&places)?;
            let (info, member) = exec::member(&mut agent, &node, domain.as_deref())?;
            show.addresses(&info, &member);
        }
        Asked::Ping(options) => return ping::run(&mut connect(&places)?, &options, show),
        Asked::Explain(options) => {
            return explain::run(&mut connect(&places)?, &options, show);
        }
        Asked::Whoami => match Control::of_node()?.whoami()? {
            reply @ Reply::Whoami { .. } => show.whoami(&reply),
            other => return Err(Failure::unexpected(&other)),
        },
        Asked::Completions { shell } => generate::completions(shell),
        Asked::Man { directory } => generate::man_pages(&directory, show)?,
        Asked::Other(words) => return Err(run_sibling(&words, args.state.as_deref())),
    }
    Ok(0)
}

fn connect(places: &Places) -> Result<Control, Failure> {
    places.connect()
}

fn node(agent: &mut Control, command: NodeCommand, show: Show) -> Result<(), Failure> {
    match command {
        NodeCommand::Ls => {
            show.nodes(&agent.nodes()?);
            return Ok(());
        }
        NodeCommand::Alias { node, alias } => agent.alias(&node, &alias)?,
        NodeCommand::Unalias { alias } => agent.unalias(&alias)?,
        NodeCommand::Chown { nodes, owner } => {
            let owner = match owner {
                Owner::Free => None,
                Owner::User(uid) => Some(uid),
            };
            agent.chown(&nodes, owner)?;
        }
        NodeCommand::Consent {
            nodes,
            domain,
            withdraw,
        } => agent.consent(&nodes, &domain, withdraw)?,
    }
    show.done();
    Ok(())
}

fn domain(agent: &mut Control, command: DomainCommand, show: Show) -> Result<(), Failure> {
    match command {
        DomainCommand::Create {
            name,
            nodes,
            limited,
            offload,
            interface,
            public,
            owner,
            subnet,
            mtu,
            may_exist,
        } => {
            let plain = match offload {
                Offload::On => Vec::new(),
                Offload::Off => nodes.clone(),
            };
            let stacks = match interface {
                Interface::Tap => Vec::new(),
                Interface::Stack => nodes.clone(),
            };
            let (nodes, limited) = if limited {
                (Vec::new(), nodes)
            } else {
                (nodes, Vec::new())
            };
            let new = NewDomain {
                name,
                nodes,
                limited,
                plain,
                stacks,
                subnet,
                mtu,
                public,
                owner,
            };
            let info = if may_exist {
                unless::create(agent, new)?
            } else {
                agent.create_domain(new)?
            };
            show.domain(&info);
        }
        DomainCommand::Grow {
            name,
            nodes,
            limited,
            offload,
            interface,
        } => {
            let terms = Terms {
                limited,
                plain: offload == Offload::Off,
                stack: interface == Interface::Stack,
            };
            show.domain(&agent.admit(&name, &nodes, terms)?);
        }
        DomainCommand::Manage {
            name,
            nodes,
            revoke,
        } => show.domain(&agent.manage(&name, &nodes, revoke)?),
        DomainCommand::Set {
            name,
            public,
            forward,
            owner,
        } => {
            let forward = forward.map(|forward| forward == Forward::On);
            show.domain(&agent.set(&name, public, forward, owner)?);
        }
        DomainCommand::Shrink {
            name,
            nodes,
            dry_run: true,
            ..
        } => show.shrink_needs(&name, &agent.shrink_needs(&name, &nodes)?),
        DomainCommand::Shrink {
            name,
            nodes,
            if_exists,
            ..
        } => {
            let info = if if_exists {
                unless::shrink(agent, &name, &nodes)?
            } else {
                Some(agent.shrink(&name, &nodes)?)
            };
            match info {
                Some(info) => show.domain(&info),
                None => show.done(),
            }
        }
        DomainCommand::Rm { name, if_exists } => {
            if if_exists {
                unless::remove(agent, &name)?
            } else {
                agent.remove(&name)?
            }
            show.done();
        }
        DomainCommand::Drops { name } => show.drops(&agent.drops(&name)?),
        DomainCommand::Ls => show.domains(&agent.list()?),
        DomainCommand::Show { name } => show.domain(&agent.show(&name)?),
    }
    Ok(())
}

/// `toroid FOO` is `toroid-FOO`, from beside this program or from `PATH`. Returns only if it
/// cannot be started. It finds the same agent as this program would.
fn run_sibling(words: &[OsString], state: Option<&Path>) -> Failure {
    let Some((name, arguments)) = words.split_first() else {
        return Failure::usage("no command was given");
    };
    let mut program = OsString::from("toroid-");
    program.push(name);
    let found = locate::program(&program).unwrap_or_else(|| program.clone().into());
    let mut command = Command::new(found);
    command.args(arguments);
    if let Some(state) = state {
        command.env("TOROID_STATE", state);
    }
    let error = command.exec();
    let name = name.to_string_lossy();
    let meant = args::nearest_command(&name);
    let meant = meant.map_or_else(String::new, |meant| format!("did you mean {meant}? or "));
    Failure::usage(&match error.kind() {
        ErrorKind::NotFound => format!(
            "there is no command {name}, and no program {}; {meant}see `toroid --help`",
            program.display()
        ),
        _ => format!(
            "there is no command {name}, and {} cannot be started: {error}; {meant}see `toroid --help`",
            program.display()
        ),
    })
}
