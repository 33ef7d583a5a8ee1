//! `toroid exec`: a command in nodes, as if it ran here.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::AsFd;
use std::thread;

use domains::client::{ClientError, Control, ExecHandle, Signals};
use domains::nodeset::{self, Names};
use domains::protocol::{DomainInfo, MemberInfo, NodeInfo, Refusal, RefusalKind};
use fabric::{NodeId, Place, Torus};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGWINCH};
use signal_hook::iterator::Signals as Caught;

use crate::args::Exec;
use crate::failure::Failure;

/// What a terminal or another program sends to this one and means for the command.
const SIGNALS: [i32; 7] = [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGWINCH];

pub(crate) fn run(agent: &mut Control, options: &Exec) -> Result<u8, Failure> {
    let places = resolve(agent, &options.nodes)?;
    if places.is_empty() {
        return Err(no_nodes(&options.nodes));
    }
    // Before anything runs: a command may tell somebody to send it a signal as soon as it does.
    let caught = Caught::new(SIGNALS)?;
    let mut commands = places
        .iter()
        .map(|place| start(agent, *place, &options.command))
        .collect::<Result<Vec<_>, _>>()?;
    forward_signals(caught, commands.iter().map(ExecHandle::signals).collect());
    let mut worst = 0;
    for command in &mut commands {
        worst = worst.max(command.wait()?);
    }
    Ok(u8::try_from(worst).unwrap_or(u8::MAX))
}

/// Starts a command in a node with this process's own descriptors, environment and directory.
pub(crate) fn start(
    agent: &Control,
    place: Place,
    command: &[String],
) -> Result<ExecHandle, Failure> {
    let env: Vec<_> = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect();
    let cwd = std::env::current_dir()?.into_os_string();
    let cwd = cwd
        .into_string()
        .map_err(|cwd| Failure::new(format!("{}: not UTF-8", cwd.display())))?;
    let (stdin, stdout, stderr) = (io::stdin(), io::stdout(), io::stderr());
    let stdio = [stdin.as_fd(), stdout.as_fd(), stderr.as_fd()];
    Ok(agent.exec(&place.to_string(), command, &env, &cwd, stdio)?)
}

/// Passes on what a terminal or another program sends to this one.
fn forward_signals(mut caught: Caught, commands: Vec<Signals>) {
    thread::spawn(move || {
        for signal in caught.forever() {
            // It fails when the command has ended, and this process is about to.
            let _: Vec<Result<(), ClientError>> = commands
                .iter()
                .map(|command| command.send(signal))
                .collect();
        }
    });
}

/// What node sets refer to, as the agent knows it now.
struct Snapshot {
    torus: Torus,
    nodes: Vec<NodeInfo>,
    /// Those that the caller may see, also without members.
    domains: Vec<String>,
}

impl Names for Snapshot {
    fn alias(&self, alias: &str) -> Option<NodeId> {
        let named = |node: &&NodeInfo| node.aliases.iter().any(|name| name == alias);
        self.nodes.iter().find(named).map(|node| NodeId(node.id))
    }

    fn members(&self, domain: &str) -> Option<BTreeSet<NodeId>> {
        let inside = |node: &&NodeInfo| node.domains.iter().any(|name| name == domain);
        let members: BTreeSet<_> = self
            .nodes
            .iter()
            .filter(inside)
            .map(|node| NodeId(node.id))
            .collect();
        let exists = !members.is_empty() || self.domains.iter().any(|name| name == domain);
        exists.then_some(members)
    }
}

/// The places that node sets name.
pub(crate) fn resolve(agent: &mut Control, sets: &[String]) -> Result<Vec<Place>, Failure> {
    let snapshot = Snapshot {
        torus: agent.status()?.torus,
        nodes: agent.nodes()?,
        domains: agent.list()?.into_iter().map(|info| info.name).collect(),
    };
    let nodes = nodeset::resolve(sets, snapshot.torus, &snapshot).map_err(Refusal::from)?;
    Ok(nodes
        .into_iter()
        .filter_map(|node| snapshot.torus.place(node))
        .collect())
}

/// The one place that a node set names.
pub(crate) fn resolve_one(agent: &mut Control, set: &str) -> Result<Place, Failure> {
    match resolve(agent, &[set.to_owned()])?[..] {
        [place] => Ok(place),
        _ => Err(Failure::usage(&format!(
            "\"{set}\" is not one node; name one, such as 0,0,0"
        ))),
    }
}

/// A node as a member of a domain: the named one, or the only one that it is in.
pub(crate) fn member(
    agent: &mut Control,
    node: &str,
    domain: Option<&str>,
) -> Result<(DomainInfo, MemberInfo), Failure> {
    let place = resolve_one(agent, node)?;
    let info = match domain {
        Some(name) => agent.show(name)?,
        None => only_domain(agent, place)?,
    };
    let found = info
        .members
        .iter()
        .find(|member| member.node == place)
        .cloned();
    let member = found.ok_or_else(|| not_a_member(place, &info.name))?;
    Ok((info, member))
}

fn only_domain(agent: &mut Control, place: Place) -> Result<DomainInfo, Failure> {
    let domains = agent.list()?;
    let inside = |info: &DomainInfo| info.members.iter().any(|member| member.node == place);
    let mut mine = domains.into_iter().filter(inside);
    match (mine.next(), mine.next()) {
        (Some(only), None) => Ok(only),
        (None, _) => Err(Failure::usage(&format!(
            "node {place} is in no domain; add it to one with `toroid domain grow NAME {place}`"
        ))),
        _ => Err(Failure::usage(&format!(
            "node {place} is in several domains; choose one with --domain"
        ))),
    }
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

fn not_a_member(place: Place, domain: &str) -> Failure {
    Refusal::new(
        RefusalKind::NotFound,
        format!("node {place} is not a member of domain {domain}"),
        format!("add it with `toroid domain grow {domain} {place}`"),
    )
    .into()
}
