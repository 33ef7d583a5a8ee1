//! `toroid alloc` and `toroid free`: nodes from those that are free, and back.

use serde_json::json;
use toroid_client::admin::Control;
use toroid_fabric::{NodeId, Place};
use toroid_model::allocation::Destination;
use toroid_model::placement::Figures;

use crate::args::Alloc;
use crate::failure::Failure;
use crate::show::{Show, line};

pub(crate) fn alloc(agent: &mut Control, options: &Alloc, show: Show) -> Result<(), Failure> {
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
        show.domain(&domain);
    }
    Ok(())
}

pub(crate) fn free(agent: &mut Control, nodes: &[String], show: Show) -> Result<(), Failure> {
    agent.free_nodes(nodes)?;
    show.done();
    Ok(())
}
