//! Declarations as text. Nothing needs escaping: names and places have no character that would.

use std::collections::BTreeSet;
use std::fmt::{self, Display};

use fabric::Place;

use super::{Declaration, Declared, DeclaredGateway};

/// Places in a line.
const PER_LINE: usize = 8;

impl Display for Declaration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut is_first = true;
        let mut gap = |f: &mut fmt::Formatter<'_>| match std::mem::take(&mut is_first) {
            true => Ok(()),
            false => writeln!(f),
        };
        for (name, domain) in &self.domains {
            gap(f)?;
            writeln!(f, "[domain.{name}]")?;
            domain.fmt(f)?;
        }
        for (name, DeclaredGateway { node, uplink, kind }) in &self.gateways {
            gap(f)?;
            writeln!(f, "[gateway.{name}]")?;
            writeln!(f, "node = \"{node}\"")?;
            writeln!(f, "uplink = \"{uplink}\"")?;
            writeln!(f, "kind = \"{kind}\"")?;
        }
        if !self.aliases.is_empty() {
            gap(f)?;
            writeln!(f, "[alias]")?;
        }
        for (alias, place) in &self.aliases {
            writeln!(f, "{alias} = \"{place}\"")?;
        }
        if !self.owners.is_empty() {
            gap(f)?;
            writeln!(f, "[owner]")?;
        }
        for (place, uid) in &self.owners {
            writeln!(f, "\"{place}\" = {uid}")?;
        }
        for (holder, limits) in &self.quotas {
            gap(f)?;
            writeln!(f, "[quota.\"{holder}\"]")?;
            for (resource, limit) in limits {
                writeln!(f, "{resource} = {limit}")?;
            }
        }
        Ok(())
    }
}

impl Declared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        places(f, "nodes", &self.nodes)?;
        let sets = [
            ("limited", &self.limited),
            ("plain", &self.plain),
            ("stacks", &self.stacks),
            ("managers", &self.managers),
        ];
        for (key, set) in sets {
            if !set.is_empty() {
                places(f, key, set)?;
            }
        }
        if self.public {
            writeln!(f, "public = true")?;
        }
        if self.forward {
            writeln!(f, "forward = true")?;
        }
        if let Some(subnet) = self.subnet {
            writeln!(f, "subnet = \"{subnet}\"")?;
        }
        if let Some(mtu) = self.mtu {
            writeln!(f, "mtu = {mtu}")?;
        }
        if let Some(owner) = self.owner {
            writeln!(f, "owner = {owner}")?;
        }
        Ok(())
    }
}

fn places(f: &mut fmt::Formatter<'_>, key: &str, places: &BTreeSet<Place>) -> fmt::Result {
    let quoted: Vec<String> = places.iter().map(|place| format!("\"{place}\"")).collect();
    if quoted.len() <= PER_LINE {
        return writeln!(f, "{key} = [{}]", quoted.join(", "));
    }
    writeln!(f, "{key} = [")?;
    for line in quoted.chunks(PER_LINE) {
        writeln!(f, "    {},", line.join(", "))?;
    }
    writeln!(f, "]")
}
