//! `toroid gateway`: domains that are connected to the outside.

use clap::Subcommand;
use serde::Serialize;
use toroid_client::admin::Control;
use toroid_model::gateway::GatewayKind;
use toroid_model::info::DomainInfo;
use toroid_model::refusal::{Refusal, RefusalKind};

use super::{DONE, Run, Session, domain};
use crate::failure::Failure;
use crate::nodes;
use crate::output::{Show, table};

pub(super) const EXAMPLES: &str = "\
Examples:
  toroid gateway add 0,0,0 --uplink eth1 -d blue             members reach servers outside, by IPv4
  toroid gateway add 1,0,0 --uplink eth2 -d blue             where they go while the first does not work
  toroid gateway add 0,0,0 --uplink eth1 -d blue --bridge    blue and what is outside are one Ethernet
  toroid gateway rm 0,0,0 -d blue";

#[derive(Debug, Subcommand)]
pub(crate) enum Gateway {
    /// Connect a domain to the outside at one of its members
    ///
    /// A domain may have several gateways that translate addresses, at nodes of any hosts. Members
    /// use the first, in the order of their addition, that works.
    Add {
        /// The member; the gateway ends when it leaves
        node: String,
        /// The interface of the member's host that leads outside
        #[arg(long, value_name = "INTERFACE")]
        uplink: String,
        /// The domain; may be left out if the node is in only one
        #[arg(short, long)]
        domain: Option<String>,
        /// Translate addresses: members begin connections, by IPv4 (the default)
        #[arg(long)]
        nat: bool,
        /// Let frames pass: members and what is outside are on one Ethernet
        #[arg(long, conflicts_with = "nat")]
        bridge: bool,
    },
    /// Disconnect a domain at one of its gateways
    #[command(alias = "delete", alias = "remove")]
    Rm {
        /// The member at which the gateway is
        node: String,
        /// The domain; may be left out if the node is the gateway of only one
        #[arg(short, long)]
        domain: Option<String>,
    },
    /// List the gateways, those of a domain in order of preference
    #[command(alias = "list")]
    Ls,
}

impl Run for Gateway {
    fn run(self, session: &Session) -> Result<u8, Failure> {
        let (agent, show) = (&mut session.connect()?, session.show);
        match self {
            Gateway::Add {
                node,
                uplink,
                domain,
                bridge,
                ..
            } => {
                let (info, member) = nodes::member(agent, &node, domain.as_deref())?;
                let kind = if bridge {
                    GatewayKind::Bridge
                } else {
                    GatewayKind::Nat
                };
                let place = member.node.to_string();
                domain::print(&agent.add_gateway(&place, &info.name, &uplink, kind)?, show);
            }
            Gateway::Rm { node, domain } => {
                let domain = match domain {
                    Some(domain) => domain,
                    None => only_domain(agent, &node)?,
                };
                domain::print(&agent.remove_gateway(&node, &domain)?, show);
            }
            Gateway::Ls => list(&agent.list()?, show),
        }
        Ok(DONE)
    }
}

/// Name of the only domain with a gateway at a node.
fn only_domain(agent: &mut Control, node: &str) -> Result<String, Failure> {
    let places = nodes::resolve(agent, &[node.into()])?;
    let is_there = |domain: &DomainInfo| {
        let mut gateways = domain.gateways.iter();
        gateways.any(|gateway| places.contains(&gateway.node))
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
    #[serde(skip_serializing_if = "Option::is_none")]
    in_use: Option<bool>,
    problem: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    warning: Option<&'a str>,
}

fn list(domains: &[DomainInfo], show: Show) {
    let all = domains.iter().flat_map(|domain| {
        let gateways = domain.gateways.iter();
        gateways.map(|gateway| (&domain.name, gateway))
    });
    let listed = all.map(|(domain, gateway)| Listed {
        domain,
        node: gateway.node.to_string(),
        uplink: &gateway.uplink,
        kind: gateway.kind,
        in_use: gateway.in_use,
        problem: gateway.problem.as_deref(),
        warning: gateway.warning.as_deref(),
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
            match gateway.in_use {
                Some(true) => "yes",
                Some(false) => "no",
                None => "-",
            }
            .into(),
            gateway.problem.or(gateway.warning).unwrap_or("-").into(),
        ]
    });
    table(
        ["DOMAIN", "NODE", "UPLINK", "KIND", "IN USE", "PROBLEM"],
        rows,
    );
}
