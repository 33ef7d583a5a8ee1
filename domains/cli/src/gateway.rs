//! `toroid gateway`: domains that are connected to the outside.

use serde::Serialize;
use toroid_client::admin::Control;
use toroid_model::gateway::GatewayKind;
use toroid_model::info::DomainInfo;
use toroid_model::refusal::{Refusal, RefusalKind};

use crate::args::GatewayCommand;
use crate::exec;
use crate::failure::Failure;
use crate::show::{Show, table};

pub(crate) fn run(agent: &mut Control, command: GatewayCommand, show: Show) -> Result<(), Failure> {
    match command {
        GatewayCommand::Add {
            node,
            uplink,
            domain,
            bridge,
            ..
        } => {
            let (info, member) = exec::member(agent, &node, domain.as_deref())?;
            let kind = if bridge {
                GatewayKind::Bridge
            } else {
                GatewayKind::Nat
            };
            let place = member.node.to_string();
            show.domain(&agent.add_gateway(&place, &info.name, &uplink, kind)?);
        }
        GatewayCommand::Rm { node, domain } => {
            let domain = match domain {
                Some(domain) => domain,
                None => only_domain(agent, &node)?,
            };
            show.domain(&agent.remove_gateway(&node, &domain)?);
        }
        GatewayCommand::Ls => list(&agent.list()?, show),
    }
    Ok(())
}

/// The one domain whose gateway is at a node.
fn only_domain(agent: &mut Control, node: &str) -> Result<String, Failure> {
    let places = exec::resolve(agent, &[node.into()])?;
    let is_there = |domain: &DomainInfo| {
        let gateway = domain.gateway.as_ref();
        gateway.is_some_and(|gateway| places.contains(&gateway.node))
    };
    let domains = agent.list()?.into_iter();
    let mut there = domains.filter(is_there);
    match (there.next(), there.next()) {
        (Some(only), None) => Ok(only.name),
        (None, _) => Err(Refusal::new(
            RefusalKind::NotFound,
            format!("node {node} is no gateway"),
            "see `toroid gateway ls`",
        )
        .into()),
        _ => Err(Failure::usage(&format!(
            "node {node} is the gateway of several domains; choose one with --domain"
        ))),
    }
}

/// A gateway, for programs.
#[derive(Serialize)]
struct Listed<'a> {
    domain: &'a str,
    node: String,
    uplink: &'a str,
    kind: GatewayKind,
    problem: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    warning: Option<&'a str>,
}

fn list(domains: &[DomainInfo], show: Show) {
    let listed = domains.iter().filter_map(|domain| {
        let gateway = domain.gateway.as_ref()?;
        Some(Listed {
            domain: &domain.name,
            node: gateway.node.to_string(),
            uplink: &gateway.uplink,
            kind: gateway.kind,
            problem: gateway.problem.as_deref(),
            warning: gateway.warning.as_deref(),
        })
    });
    let listed: Vec<Listed<'_>> = listed.collect();
    if show.json {
        return show.value(&listed);
    }
    let rows = listed.iter().map(|gateway| {
        [
            gateway.domain.into(),
            gateway.node.clone(),
            gateway.uplink.into(),
            gateway.kind.to_string(),
            gateway.problem.or(gateway.warning).unwrap_or("-").into(),
        ]
    });
    table(["DOMAIN", "NODE", "UPLINK", "KIND", "PROBLEM"], rows);
}
