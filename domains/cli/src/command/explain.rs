//! `toroid explain`: the reasons why two nodes can or cannot communicate.

use clap::Args;
use toroid_client::admin::Control;
use toroid_model::explain::{Facts, Guard, Path};

use super::{DONE, Run, Session};
use crate::failure::{Failure, NOT_PERMITTED};
use crate::names;
use crate::nodes;
use crate::output::{Show, line};

#[derive(Debug, Args)]
#[command(after_help = "Exit status 6: the nodes cannot communicate.")]
pub(crate) struct Explain {
    /// The sending node
    from: String,
    /// The receiving node
    to: String,
    /// The domain [default: all domains of both nodes]
    #[arg(short, long)]
    domain: Option<String>,
}

impl Run for Explain {
    fn run(self, session: &Session) -> Result<u8, Failure> {
        explain(&mut session.connect()?, &self, session.show)
    }
}

fn explain(agent: &mut Control, options: &Explain, show: Show) -> Result<u8, Failure> {
    let from = nodes::resolve_one(agent, &options.from)?;
    let to = nodes::resolve_one(agent, &options.to)?;
    if let Some(name) = &options.domain {
        // Fails if there is no such domain, or none that the caller may see.
        agent.show(name)?;
    }
    let (status, all, domains) = (agent.status()?, agent.nodes()?, agent.list()?);
    let facts = Facts {
        status: &status,
        nodes: &all,
        domains: &domains,
    };
    let answer = facts.explain(from, to, options.domain.as_deref());
    let exit = if answer.may { DONE } else { NOT_PERMITTED };
    if show.json {
        show.value(&answer);
        return Ok(exit);
    }
    let verdict = if answer.may { "yes" } else { "no" };
    match &answer.objection {
        Some(objection) => {
            let objection = names::with_names(&objection.to_string());
            line!("{from} to {to}: {verdict}: {objection}");
        }
        None => line!("{from} to {to}: {verdict}"),
    }
    for verdict in &answer.domains {
        line!("{}", verdict.domain);
        line!(
            "  ethernet  {}",
            names::with_names(&sentence(&verdict.ethernet))
        );
        line!(
            "  rdma      {}",
            names::with_names(&sentence(&verdict.rdma))
        );
    }
    Ok(exit)
}

fn sentence(path: &Path) -> String {
    if let Some(objection) = &path.objection {
        return format!("no: {objection}");
    }
    let guards: Vec<String> = path.enforced_by.iter().map(Guard::to_string).collect();
    let provider = path.provider.as_deref().unwrap_or_default();
    let mut yes = format!("yes, by {provider}; enforced by {}", guards.join("; "));
    if let Some(why) = &path.without_kernel {
        yes += &format!("; not through the kernel alone: {why}");
    }
    match &path.limit {
        Some(limit) => format!("{yes}; but {limit}"),
        None => yes,
    }
}
