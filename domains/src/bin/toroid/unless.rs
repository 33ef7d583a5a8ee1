//! `--may-exist` and `--if-exists`: what is so already is no error, for scripts that may run
//! twice.

use domains::client::{ClientError, Control};
use domains::protocol::{DomainInfo, Refusal, RefusalKind};
use fabric::Place;

use crate::exec;
use crate::failure::Failure;

/// A domain that may be there. It then stays as it is, and must be as wanted: the nodes are
/// members, whoever else is, and what was said of its properties holds.
pub(crate) fn create(
    agent: &mut Control,
    name: &str,
    nodes: &[String],
    properties: &[(&str, Option<String>)],
    create: impl FnOnce(&mut Control) -> Result<DomainInfo, ClientError>,
) -> Result<DomainInfo, Failure> {
    let Some(present) = find(agent, name)? else {
        return Ok(create(agent)?);
    };
    let places = exec::resolve(agent, nodes)?;
    let outside: Vec<String> = outsiders(&present, &places)
        .map(|place| place.to_string())
        .collect();
    if !outside.is_empty() {
        let outside = outside.join(" ");
        return Err(Failure::from(Refusal::new(
            RefusalKind::Exists,
            format!("domain {name} exists already, without {outside}"),
            format!("add them with `toroid domain grow {name} {outside}`"),
        )));
    }
    for (what, wanted) in properties {
        let present = property(&present, what);
        if let Some(wanted) = wanted
            && *wanted != present
        {
            return Err(Failure::from(Refusal::new(
                RefusalKind::Exists,
                format!("domain {name} exists already, with {what} {present} and not {wanted}"),
                "remove it first, or ask for what it has",
            )));
        }
    }
    Ok(present)
}

fn property(info: &DomainInfo, what: &str) -> String {
    match what {
        "subnet" => info.subnet.clone(),
        "mtu" => info.mtu.to_string(),
        _ => info.public.to_string(),
    }
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
