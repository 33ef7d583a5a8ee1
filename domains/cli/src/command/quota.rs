//! `toroid quota`: usage and limits of users and nodes.

use std::collections::BTreeMap;

use clap::{Args, Subcommand};
use toroid_client::admin::ClientError;
use toroid_model::info::QuotaInfo;
use toroid_model::quota::Resource;
use toroid_model::refusal::{Refusal, RefusalKind};

use super::{DONE, Run, Session};
use crate::failure::Failure;
use crate::names;
use crate::output::{Show, name_missing, table};
use crate::values;

#[derive(Debug, Subcommand)]
pub(crate) enum Quota {
    /// Show usage and limits
    Show {
        /// A user, by name or number, or nodes [default: all that concern you]
        #[arg(value_name = "USER|NODES")]
        whose: Option<String>,
    },
    /// Set or lift limits (administrators only)
    Set {
        /// A user, by name or number, or nodes
        #[arg(value_name = "USER|NODES")]
        whose: String,
        #[command(flatten)]
        limits: Limits,
    },
}

/// A limit, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Limit(Option<u64>);

#[derive(Debug, Args)]
pub(crate) struct Limits {
    /// Domains owned by the user, or that the node is in; `none` lifts the limit that was set
    #[arg(long, value_name = "N", value_parser = limit)]
    domains: Option<Limit>,
    /// Regions of its processes
    #[arg(long, value_name = "N", value_parser = limit)]
    regions: Option<Limit>,
    /// Bytes of its regions, such as 64M
    #[arg(long, value_name = "SIZE", value_parser = limit)]
    bytes: Option<Limit>,
    /// Packet channels that its processes open
    #[arg(long, value_name = "N", value_parser = limit)]
    rings: Option<Limit>,
    /// Descriptors that the agent keeps for its processes
    #[arg(long, value_name = "N", value_parser = limit)]
    descriptors: Option<Limit>,
    /// Nodes that belong to the user
    #[arg(long, value_name = "N", value_parser = limit)]
    nodes: Option<Limit>,
    /// IPv4 addresses in the subnets of the user's domains
    #[arg(long, value_name = "N", value_parser = limit)]
    addresses: Option<Limit>,
}

impl Limits {
    fn in_order(self) -> [Option<Limit>; 7] {
        [
            self.domains,
            self.regions,
            self.bytes,
            self.rings,
            self.descriptors,
            self.nodes,
            self.addresses,
        ]
    }
}

/// A number or size, or `none`.
fn limit(text: &str) -> Result<Limit, &'static str> {
    if text == "none" {
        return Ok(Limit(None));
    }
    let bytes = values::bytes(text).ok_or("write a number such as 16 or 64M, or none")?;
    Ok(Limit(Some(bytes)))
}

impl Run for Quota {
    fn run(self, session: &Session) -> Result<u8, Failure> {
        let (mut agent, show) = (session.connect()?, session.show);
        match self {
            Quota::Show { whose } => {
                let (user, nodes) = whose.clone().map_or((None, vec![]), tenant);
                let quotas = agent.quotas(user, &nodes);
                let (quotas, missing) = quotas.map_err(|error| unknown(error, whose.as_deref()))?;
                print(&quotas, show);
                name_missing(&missing);
            }
            Quota::Set { whose, limits } => {
                let limits = Resource::ALL.into_iter().zip(limits.in_order());
                let given = limits.filter_map(|(what, limit)| Some((what, limit?.0)));
                let given: BTreeMap<Resource, Option<u64>> = given.collect();
                if given.is_empty() {
                    return Err(Failure::usage(
                        "no limit was given; see `toroid quota set --help`",
                    ));
                }
                let (user, nodes) = tenant(whose.clone());
                let limited = agent.limit(user, &nodes, given);
                limited.map_err(|error| unknown(error, Some(&whose)))?;
                show.done();
            }
        }
        Ok(DONE)
    }
}

/// A user, or else a node set.
fn tenant(text: String) -> (Option<u32>, Vec<String>) {
    match values::user(&text) {
        Ok(uid) => (Some(uid), vec![]),
        Err(_) => (None, vec![text]),
    }
}

/// A word that is no node's name may have been meant as a user's.
fn unknown(error: ClientError, whose: Option<&str>) -> Failure {
    match (&error, whose) {
        (ClientError::Refused(refusal), Some(name))
            if refusal.kind == RefusalKind::NotFound && !name.contains([',', '@']) =>
        {
            let message = format!("no user or node is called {name}");
            let remedy = "see `getent passwd` and `toroid node ls`";
            Refusal::new(RefusalKind::NotFound, message, remedy).into()
        }
        _ => error.into(),
    }
}

fn print(quotas: &[QuotaInfo], show: Show) {
    if show.json {
        return show.value(&quotas);
    }
    let rows = quotas.iter().map(|quota| {
        let mut name = match (&quota.user, &quota.node) {
            (Some(uid), _) => names::user(*uid),
            (_, node) => node.clone().unwrap_or_default(),
        };
        if let Some(host) = &quota.host {
            name = format!("{name} on host {host}");
        }
        let cell = |what: Resource| {
            let used = quota.used.get(&what).copied().unwrap_or_default();
            match quota.in_force.get(&what) {
                Some(limit) => format!("{used}/{limit}"),
                None => used.to_string(),
            }
        };
        let mut cells = std::iter::once(name).chain(Resource::ALL.map(cell));
        std::array::from_fn(|_| cells.next().unwrap_or_default())
    });
    table(
        [
            "WHOSE",
            "DOMAINS",
            "REGIONS",
            "BYTES",
            "RINGS",
            "DESCRIPTORS",
            "NODES",
            "ADDRESSES",
        ],
        rows,
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_numbers_sizes_or_none() {
        assert_eq!(limit("16"), Ok(Limit(Some(16))));
        assert_eq!(limit("64M"), Ok(Limit(Some(64 << 20))));
        assert_eq!(limit("1.5G"), Ok(Limit(Some(3 << 29))));
        assert_eq!(limit("64 MiB"), Ok(Limit(Some(64 << 20))));
        assert_eq!(limit("none"), Ok(Limit(None)));
        for bad in ["", "M", "1KK", "-1", "99999999999T", "1ß"] {
            assert!(limit(bad).is_err(), "{bad}");
        }
    }
}
