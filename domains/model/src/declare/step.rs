//! Steps of a plan: each is a change by one request.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::{Serialize, Serializer};
use toroid_fabric::Place;

use super::Holder;
use crate::addressing::Subnet;
use crate::directory::MemberSpec;
use crate::ethernet::EthernetPath;
use crate::gateway::GatewayKind;
use crate::link::{DomainLinks, Rate};
use crate::quota::Resource;

/// A change by one request.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "change", rename_all = "snake_case")]
#[allow(missing_docs)]
pub enum Step {
    /// Take managers away.
    Revoke {
        domain: String,
        nodes: Places,
    },
    Shrink {
        domain: String,
        nodes: Places,
    },
    Remove {
        domain: String,
    },
    /// Give nodes to a user.
    Own {
        nodes: Places,
        owner: u32,
    },
    /// Set limits, or lift them.
    Limit {
        #[serde(serialize_with = "crate::as_text::serialize")]
        holder: Holder,
        limits: BTreeMap<Resource, Option<u64>>,
    },
    Unalias {
        alias: String,
    },
    Alias {
        alias: String,
        #[serde(with = "crate::as_text")]
        node: Place,
    },
    Create {
        domain: String,
        nodes: Places,
        limited: Places,
        #[serde(skip_serializing_if = "Places::is_empty")]
        plain: Places,
        #[serde(skip_serializing_if = "Places::is_empty")]
        stacks: Places,
        #[serde(skip_serializing_if = "BTreeMap::is_empty")]
        rates: BTreeMap<Rate, Places>,
        #[serde(serialize_with = "crate::as_text::optional::serialize")]
        subnet: Option<Subnet>,
        #[serde(skip_serializing_if = "Option::is_none")]
        capacity: Option<u32>,
        mtu: Option<u32>,
        public: bool,
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        sealed: bool,
        #[serde(skip_serializing_if = "Option::is_none")]
        fence: Option<u32>,
        #[serde(skip_serializing_if = "EthernetPath::is_auto")]
        ethernet: EthernetPath,
        owner: Option<u32>,
    },
    Grow {
        domain: String,
        nodes: Places,
        #[serde(flatten)]
        spec: MemberSpec,
    },
    /// Change the properties that are not `None`.
    Set {
        domain: String,
        public: Option<bool>,
        #[serde(skip_serializing_if = "Option::is_none")]
        forward: Option<bool>,
        #[serde(skip_serializing_if = "Option::is_none")]
        sealed: Option<bool>,
        /// Length of the fence in seconds; 0: off.
        #[serde(skip_serializing_if = "Option::is_none")]
        fence: Option<u32>,
        #[serde(skip_serializing_if = "Option::is_none")]
        ethernet: Option<EthernetPath>,
        owner: Option<u32>,
    },
    /// Give members a rate, or lift theirs.
    Rate {
        domain: String,
        nodes: Places,
        rate: Option<Rate>,
    },
    /// Make managers.
    Manage {
        domain: String,
        nodes: Places,
    },
    /// Give the links these properties, and no others.
    Link {
        domain: String,
        links: DomainLinks<Place>,
    },
    /// Connect to the outside.
    Connect {
        domain: String,
        #[serde(with = "crate::as_text")]
        node: Place,
        uplink: String,
        kind: GatewayKind,
    },
    /// End that.
    Disconnect {
        domain: String,
        #[serde(with = "crate::as_text")]
        node: Place,
    },
}

/// Some nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Places(pub BTreeSet<Place>);

impl Places {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// As node sets.
    pub fn sets(&self) -> Vec<String> {
        self.0.iter().map(ToString::to_string).collect()
    }
}

impl Serialize for Places {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.sets())
    }
}

impl fmt::Display for Places {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.sets().join(" "))
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Step::Revoke { domain, nodes } => write!(f, "{nodes} no longer manage {domain}"),
            Step::Shrink { domain, nodes } => write!(f, "shrink {domain} by {nodes}"),
            Step::Remove { domain } => write!(f, "remove {domain}"),
            Step::Own { nodes, owner } => write!(f, "give {nodes} to uid {owner}"),
            Step::Limit { holder, limits } => {
                write!(f, "limit {holder}:")?;
                limits.iter().try_for_each(|(resource, limit)| match limit {
                    Some(limit) => write!(f, " {resource} {limit}"),
                    None => write!(f, " {resource} without limit"),
                })
            }
            Step::Unalias { alias } => write!(f, "nobody is named {alias}"),
            Step::Alias { alias, node } => write!(f, "name {node} {alias}"),
            Step::Create {
                domain,
                nodes,
                limited,
                plain,
                stacks,
                rates,
                subnet,
                capacity,
                mtu,
                public,
                sealed,
                fence,
                ethernet,
                owner,
            } => {
                write!(f, "create {domain}")?;
                members(f, " of ", nodes)?;
                members(f, " with limited members ", limited)?;
                members(f, " without offload for ", plain)?;
                members(f, " without interfaces for ", stacks)?;
                for (rate, nodes) in rates {
                    write!(f, " with {rate} for {nodes}")?;
                }
                optional(f, "subnet", subnet)?;
                optional(f, "capacity", capacity)?;
                optional(f, "mtu", mtu)?;
                optional(f, "owner", owner)?;
                optional(f, "fence", fence)?;
                optional(
                    f,
                    "ethernet",
                    &Some(ethernet).filter(|path| !path.is_auto()),
                )?;
                f.write_str(if *public { ", public" } else { "" })?;
                f.write_str(if *sealed { ", sealed" } else { "" })
            }
            Step::Grow {
                domain,
                nodes,
                spec,
            } => {
                let how = if spec.limited { "limited members " } else { "" };
                write!(f, "grow {domain} by {how}{nodes}")?;
                f.write_str(if spec.no_offload {
                    " without offload"
                } else {
                    ""
                })?;
                f.write_str(if spec.userspace_stack {
                    " without interfaces"
                } else {
                    ""
                })?;
                match spec.rate {
                    Some(rate) => write!(f, " with {rate}"),
                    None => Ok(()),
                }
            }
            Step::Set {
                domain,
                public,
                forward,
                sealed,
                fence,
                ethernet,
                owner,
            } => {
                write!(f, "change {domain}")?;
                optional(f, "owner", owner)?;
                optional(f, "ethernet", ethernet)?;
                match fence {
                    Some(0) => f.write_str(", not fenced")?,
                    fence => optional(f, "fence", fence)?,
                }
                f.write_str(match public {
                    Some(true) => ", public",
                    Some(false) => ", not public",
                    None => "",
                })?;
                f.write_str(match forward {
                    Some(true) => ", forwarding",
                    Some(false) => ", not forwarding",
                    None => "",
                })?;
                f.write_str(match sealed {
                    Some(true) => ", sealed",
                    Some(false) => ", not sealed",
                    None => "",
                })
            }
            Step::Rate {
                domain,
                nodes,
                rate: Some(rate),
            } => write!(f, "limit {nodes} in {domain} to {rate}"),
            Step::Rate { domain, nodes, .. } => write!(f, "lift the rate of {nodes} in {domain}"),
            Step::Manage { domain, nodes } => write!(f, "let {nodes} manage {domain}"),
            Step::Link { domain, links } => {
                write!(f, "link {domain}:")?;
                if links.is_empty() {
                    return f.write_str(" as the machine has it");
                }
                if !links.default.is_empty() {
                    write!(f, " {}", links.default)?;
                }
                let mut pairs = links.pairs.iter();
                pairs.try_for_each(|(pair, link)| write!(f, " {pair} {link}"))
            }
            Step::Connect {
                domain,
                node,
                uplink,
                kind,
            } => write!(f, "connect {domain} at {node} to {uplink} ({kind})"),
            Step::Disconnect { domain, node } => write!(f, "disconnect {domain} at {node}"),
        }
    }
}

fn members(f: &mut fmt::Formatter<'_>, how: &str, nodes: &Places) -> fmt::Result {
    if nodes.is_empty() {
        Ok(())
    } else {
        write!(f, "{how}{nodes}")
    }
}

fn optional(
    f: &mut fmt::Formatter<'_>,
    name: &str,
    value: &Option<impl fmt::Display>,
) -> fmt::Result {
    match value {
        Some(value) => write!(f, ", {name} {value}"),
        None => Ok(()),
    }
}
