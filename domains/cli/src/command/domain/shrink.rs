//! `toroid domain shrink`.

use clap::Args;
use toroid_client::admin::Control;
use toroid_fabric::Place;
use toroid_model::info::{DomainInfo, ShrinkNeeds};

use super::{find, is_missing, print};
use crate::command::{DONE, Run, Session};
use crate::failure::Failure;
use crate::nodes;
use crate::output::{Show, line, name_missing, table};

#[derive(Debug, Args)]
pub(crate) struct Shrink {
    /// The domain
    name: String,
    /// The leaving members
    #[arg(required = true)]
    nodes: Vec<String>,
    /// Succeed if no node is a member, or the domain does not exist
    #[arg(long)]
    if_exists: bool,
    /// Print the work of the change without making it
    #[arg(long, conflicts_with = "if_exists")]
    dry_run: bool,
}

impl Run for Shrink {
    fn run(self, session: &Session) -> Result<u8, Failure> {
        let (mut agent, show) = (session.connect()?, session.show);
        let Shrink { name, nodes, .. } = &self;
        if self.dry_run {
            let needs = agent.shrink_needs(name, nodes)?;
            print_needs(name, &needs, show);
            name_missing(&needs.missing);
            return Ok(DONE);
        }
        let info = if self.if_exists {
            shrink_if_member(&mut agent, name, nodes)?
        } else {
            agent.shrink(name, nodes)?
        };
        match info {
            Some(info) => print(&info, show),
            None => show.done(),
        }
        Ok(DONE)
    }
}

/// Removes the nodes that are members. Returns the domain if it exists.
fn shrink_if_member(
    agent: &mut Control,
    name: &str,
    sets: &[String],
) -> Result<Option<DomainInfo>, Failure> {
    let Some(present) = find(agent, name)? else {
        return Ok(None);
    };
    // A node outside of the torus remains an error: it may be a typing mistake.
    let places = nodes::resolve(agent, sets)?;
    if outsiders(&present, &places).count() == places.len() {
        return Ok(Some(present));
    }
    match agent.shrink(name, sets) {
        // Another caller removed the domain in between.
        Err(error) if is_missing(&error) => find(agent, name),
        result => Ok(result?),
    }
}

fn outsiders(info: &DomainInfo, places: &[Place]) -> impl Iterator<Item = Place> {
    let is_member = |place: &Place| info.members.iter().any(|member| member.node == *place);
    places
        .iter()
        .copied()
        .filter(move |place| !is_member(place))
}

fn print_needs(name: &str, needs: &ShrinkNeeds, show: Show) {
    if show.json {
        return show.value(needs);
    }
    line!("{name} without {}, not done yet:", needs.leaving.join(" "));
    let row = |node: &str, what: &str, count: u32, bytes: Option<u64>| {
        let bytes = bytes.map_or_else(|| "-".into(), |bytes| bytes.to_string());
        [node.into(), what.into(), count.to_string(), bytes]
    };
    let waiting = needs.acknowledging.iter();
    let waiting = waiting.map(|of| row(&of.node, "processes acknowledge", of.processes, None));
    let moving = needs.moving.iter().map(|of| {
        let what = if of.written {
            "regions move (rw)"
        } else {
            "regions move (ro)"
        };
        row(&of.node, what, of.regions, Some(of.bytes))
    });
    let ending = needs.ending.iter();
    let ending = ending.map(|of| row(&of.node, "regions end", of.regions, Some(of.bytes)));
    table(
        ["NODE", "WHAT", "COUNT", "BYTES"],
        waiting.chain(moving).chain(ending),
    );
    line!("at most {} packet channels end", needs.ending_channels);
    line!(
        "at most {} bytes of memory more until all has moved",
        needs.extra_bytes
    );
}
