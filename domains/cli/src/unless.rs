//! `--may-exist` and `--if-exists`: what is so already is no error, for scripts that may run
//! twice.

use toroid_client::admin::{ClientError, Control};
use toroid_fabric::Place;
use toroid_model::info::DomainInfo;
use toroid_model::refusal::{Refusal, RefusalKind};
use toroid_protocol::agent::NewDomain;

use crate::exec;
use crate::failure::Failure;

/// A domain that may be there. It then stays as it is, and must be as wanted: the nodes are
/// members, whoever else is, and what was said of its properties holds.
pub(crate) fn create(agent: &mut Control, new: NewDomain) -> Result<DomainInfo, Failure> {
    let Some(present) = find(agent, &new.name)? else {
        return Ok(agent.create_domain(new)?);
    };
    let name = &new.name;
    let exists = |with: String, remedy: String| {
        let message = format!("domain {name} exists already, {with}");
        Failure::from(Refusal::new(RefusalKind::Exists, message, remedy))
    };
    let plain = exec::resolve(agent, &new.plain)?;
    let stacks = exec::resolve(agent, &new.stacks)?;
    for (sets, limited) in [(&new.nodes, false), (&new.limited, true)] {
        for place in exec::resolve(agent, sets)? {
            let found = present.members.iter().find(|member| member.node == place);
            let is_plain = plain.contains(&place);
            let is_stack = stacks.contains(&place);
            let add = if limited { "--limited " } else { "" };
            let without = if is_plain { "--offload off " } else { "" };
            let stack = if is_stack { "--interface stack " } else { "" };
            let grow = format!("`toroid domain grow {add}{without}{stack}{name} {place}`");
            let other = match found {
                None => return Err(exists(format!("without {place}"), format!("use {grow}"))),
                Some(member) if member.limited && !limited => "as a limited member",
                Some(member) if !member.limited && limited => "as a full member",
                Some(member) if member.plain && !is_plain => "without offload",
                Some(member) if !member.plain && is_plain => "with offload",
                Some(member) if member.stack && !is_stack => "without an interface",
                Some(member) if !member.stack && is_stack => "with an interface",
                Some(_) => continue,
            };
            return Err(exists(
                format!("with {place} {other}"),
                format!("use `toroid domain shrink {name} {place}`, then {grow}"),
            ));
        }
    }
    for (what, present, wanted) in properties(&present, &new) {
        if wanted.as_ref().is_some_and(|wanted| *wanted != present) {
            return Err(exists(
                format!(
                    "with {what} {present} and not {}",
                    wanted.unwrap_or_default()
                ),
                "remove it first, or ask for what it has".into(),
            ));
        }
    }
    Ok(present)
}

/// Each as it is, and as it was asked for.
fn properties<'a>(present: &DomainInfo, new: &NewDomain) -> [(&'a str, String, Option<String>); 4] {
    let text = |number: u32| number.to_string();
    [
        ("subnet", present.subnet.clone(), new.subnet.clone()),
        ("mtu", text(present.mtu), new.mtu.map(text)),
        ("owner", text(present.owner), new.owner.map(text)),
        (
            "public",
            present.public.to_string(),
            new.public.then(|| true.to_string()),
        ),
    ]
}

/// Takes out the nodes that are members. Returns the domain if there is one.
pub(crate) fn shrink(
    agent: &mut Control,
    name: &str,
    nodes: &[String],
) -> Result<Option<DomainInfo>, Failure> {
    let Some(present) = find(agent, name)? else {
        return Ok(None);
    };
    // A node that is nowhere remains an error: it may be a slip.
    let places = exec::resolve(agent, nodes)?;
    if outsiders(&present, &places).count() == places.len() {
        return Ok(Some(present));
    }
    match agent.shrink(name, nodes) {
        // Somebody was faster.
        Err(error) if is_missing(&error) => find(agent, name),
        result => Ok(Some(result?)),
    }
}

/// Removes a domain if there is one.
pub(crate) fn remove(agent: &mut Control, name: &str) -> Result<(), Failure> {
    match agent.remove(name) {
        Err(error) if is_missing(&error) => Ok(()),
        result => Ok(result?),
    }
}

fn find(agent: &mut Control, name: &str) -> Result<Option<DomainInfo>, Failure> {
    match agent.show(name) {
        Err(error) if is_missing(&error) => Ok(None),
        result => Ok(Some(result?)),
    }
}

fn outsiders(info: &DomainInfo, places: &[Place]) -> impl Iterator<Item = Place> {
    let is_member = |place: &Place| info.members.iter().any(|member| member.node == *place);
    places
        .iter()
        .copied()
        .filter(move |place| !is_member(place))
}

fn is_missing(error: &ClientError) -> bool {
    matches!(error, ClientError::Refused(refusal) if refusal.kind == RefusalKind::NotFound)
}
