//! `toroid alloc`: allocate free nodes.

use clap::Args;
use serde_json::json;
use toroid_client::admin::Control;
use toroid_fabric::{NodeId, Place};
use toroid_model::allocation::Destination;
use toroid_model::placement::{Figures, Policy};

use super::{DONE, Run, Session, domain};
use crate::failure::Failure;
use crate::output::{Show, line};

const EXAMPLES: &str = "\
Examples:
  toroid alloc 8 --new red           eight close together, in a new domain
  toroid alloc 1 -d red              another one, close to these
  toroid alloc 4 --near 0,0,0        the four nearest to a node, in no domain yet
  toroid free @red                   all of them back";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Alloc {
    /// Number of nodes
    count: u32,
    /// Add the nodes to this domain, near its members
    #[arg(short, long, conflicts_with = "new")]
    domain: Option<String>,
    /// Create a domain of the nodes
    #[arg(long, value_name = "DOMAIN")]
    new: Option<String>,
    /// Placement in the torus: compact (close together), spread (far apart) or random
    #[arg(long, value_name = "HOW", default_value_t)]
    place: Policy,
    /// Allocate the nodes nearest to this one
    #[arg(long, value_name = "NODE")]
    near: Option<String>,
}

impl Run for Alloc {
    fn run(self, session: &Session) -> Result<u8, Failure> {
        alloc(&mut session.connect()?, &self, session.show)?;
        Ok(DONE)
    }
}

fn alloc(agent: &mut Control, options: &Alloc, show: Show) -> Result<(), Failure> {
    let destination = match (&options.domain, &options.new) {
        (Some(name), _) => Destination::Grow(name.clone()),
        (None, Some(name)) => Destination::Create(name.clone()),
        (None, None) => Destination::None,
    };
    let near = options.near.as_deref();
    let (nodes, domain) = agent.alloc_nodes(options.count, options.place, near, &destination)?;
    let torus = agent.status()?.torus;
    let node = |text: &String| -> Option<NodeId> { torus.node(text.parse::<Place>().ok()?) };
    let figures = Figures::of(torus, &nodes.iter().filter_map(node).collect());
    if show.json {
        show.value(&json!({
            "nodes": nodes,
            "size": figures.size,
            "diameter": figures.diameter,
            "mean_hops": figures.mean_hops,
            "domain": domain,
        }));
        return Ok(());
    }
    line!("{}", nodes.join(" "));
    line!(
        "{} nodes, diameter {}, mean {:.2} hops",
        figures.size,
        figures.diameter,
        figures.mean_hops
    );
    if let Some(domain) = domain {
        domain::print(&domain, show);
    }
    Ok(())
}
