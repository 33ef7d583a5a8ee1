//! `toroid quota`: what users and nodes have of the agent, and may have.

use std::collections::BTreeMap;

use toroid_client::admin::{ClientError, Control};
use toroid_model::info::QuotaInfo;
use toroid_model::quota::Resource;
use toroid_model::refusal::{Refusal, RefusalKind};

use crate::args::{self, QuotaCommand};
use crate::failure::Failure;
use crate::names;
use crate::show::{Show, table};

pub(crate) fn run(agent: &mut Control, command: QuotaCommand, show: Show) -> Result<(), Failure> {
    match command {
        QuotaCommand::Show { whose } => {
            let (user, nodes) = whose.clone().map_or((None, vec![]), tenant);
            let quotas = agent.quotas(user, &nodes);
            print(
                &quotas.map_err(|error| unknown(error, whose.as_deref()))?,
                show,
            );
        }
        QuotaCommand::Set { whose, limits } => {
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
    Ok(())
}

/// A user, or else a node set.
fn tenant(text: String) -> (Option<u32>, Vec<String>) {
    match args::user(&text) {
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
        let name = match (&quota.user, &quota.node) {
            (Some(uid), _) => names::user(*uid),
            (_, node) => node.clone().unwrap_or_default(),
        };
        let cell = |what: Resource| {
            let used = quota.used.get(&what).copied().unwrap_or_default();
            match quota.in_force.get(&what) {
                Some(limit) => format!("{used}/{limit}"),
                None => used.to_string(),
            }
        };
        let [
            domains,
            regions,
            bytes,
            rings,
            descriptors,
            nodes,
            addresses,
        ] = Resource::ALL.map(cell);
        [
            name,
            domains,
            regions,
            bytes,
            rings,
            descriptors,
            nodes,
            addresses,
        ]
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
