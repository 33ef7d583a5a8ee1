//! `toroid node`: list nodes, name them, give them to users and domains.

use clap::Subcommand;
use toroid_model::info::NodeInfo;

use super::{DONE, Run, Session};
use crate::failure::Failure;
use crate::names;
use crate::output::{Show, table};
use crate::values;

#[derive(Debug, Subcommand)]
pub(crate) enum Node {
    /// List the nodes
    #[command(alias = "list")]
    Ls,
    /// Add an alias for a node
    Alias {
        /// The node
        node: String,
        /// A host name label, such as `db`
        alias: String,
    },
    /// Remove an alias
    Unalias {
        /// The alias
        alias: String,
    },
    /// Change the owner of nodes: the user may add them to domains and run commands in them
    Chown {
        /// The nodes
        #[arg(required = true)]
        nodes: Vec<String>,
        /// The user, by name or number; `free` gives them back to the agent
        #[arg(value_name = "USER", value_parser = owner)]
        owner: Owner,
    },
    /// Let the owner of a domain add your nodes
    Consent {
        /// The nodes
        #[arg(required = true)]
        nodes: Vec<String>,
        /// The domain
        #[arg(short, long)]
        domain: String,
        /// Withdraw the consent; nodes that are in the domain stay there
        #[arg(long)]
        withdraw: bool,
    },
}

/// Owner of a node.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Owner {
    Free,
    User(u32),
}

fn owner(text: &str) -> Result<Owner, String> {
    match text {
        "free" => Ok(Owner::Free),
        _ => values::user(text).map(Owner::User),
    }
}

impl Run for Node {
    fn run(self, session: &Session) -> Result<u8, Failure> {
        let mut agent = session.connect()?;
        match self {
            Node::Ls => {
                print(&agent.nodes()?, session.show);
                return Ok(DONE);
            }
            Node::Alias { node, alias } => agent.alias(&node, &alias)?,
            Node::Unalias { alias } => agent.unalias(&alias)?,
            Node::Chown { nodes, owner } => {
                let owner = match owner {
                    Owner::Free => None,
                    Owner::User(uid) => Some(uid),
                };
                agent.chown(&nodes, owner)?;
            }
            Node::Consent {
                nodes,
                domain,
                withdraw,
            } => agent.consent(&nodes, &domain, withdraw)?,
        }
        session.show.done();
        Ok(DONE)
    }
}

fn print(nodes: &[NodeInfo], show: Show) {
    if show.json {
        return show.value(&nodes);
    }
    let is_alone = nodes.iter().all(|node| node.host.is_none());
    let rows = nodes.iter().map(|node| {
        let host = match &node.host {
            Some(host) => host.as_str(),
            None if is_alone => "here",
            None => "none",
        };
        [
            node.place.to_string(),
            host.to_owned(),
            match node.owner {
                _ if node.free => "free".into(),
                Some(owner) => names::user(owner),
                None => "-".into(),
            },
            node.aliases.join(","),
            node.domains.join(","),
            node.pid.map_or_else(|| "-".into(), |pid| pid.to_string()),
        ]
    });
    table(["NODE", "HOST", "OWNER", "ALIASES", "DOMAINS", "PID"], rows);
}
