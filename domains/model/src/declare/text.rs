//! Declarations as text. Nothing needs escaping: names and places have no character that would.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Display};

use toroid_fabric::Place;

use super::{Declaration, Declared, DeclaredGateway, Holder};
use crate::directory::{MemberSpec, by_rate, members_with};
use crate::link::{DomainLinks, Rate};
use crate::quota::Amounts;

/// Places in a line.
const PER_LINE: usize = 8;

/// Name of a user, if known.
type Name<'a> = &'a dyn Fn(u32) -> Option<String>;

impl Declaration {
    /// Text with the names of users as comments: uids stay valid when users are renamed.
    pub fn text(&self, name: Name<'_>) -> String {
        Named {
            declaration: self,
            name,
        }
        .to_string()
    }
}

impl Display for Declaration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = Named {
            declaration: self,
            name: &|_| None,
        };
        named.fmt(f)
    }
}

struct Named<'a> {
    declaration: &'a Declaration,
    name: Name<'a>,
}

impl Named<'_> {
    fn comment(&self, uid: u32) -> String {
        let name = (self.name)(uid);
        name.map_or_else(String::new, |name| format!("  # {name}"))
    }
}

impl Display for Named<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut is_first = true;
        let mut gap = |f: &mut fmt::Formatter<'_>| {
            if std::mem::take(&mut is_first) {
                Ok(())
            } else {
                writeln!(f)
            }
        };
        let Declaration {
            domains,
            gateways,
            aliases,
            owners,
            quotas,
        } = self.declaration;
        for (name, domain) in domains {
            gap(f)?;
            writeln!(f, "[domain.{name}]")?;
            domain.fmt(f)?;
            if let Some(owner) = domain.owner {
                writeln!(f, "owner = {owner}{}", self.comment(owner))?;
            }
            rates_of(f, name, domain)?;
            links(f, name, &domain.links)?;
        }
        let all = gateways.iter();
        let all = all.flat_map(|(name, its)| its.iter().map(move |one| (name, its.len(), one)));
        for (name, count, DeclaredGateway { node, uplink, kind }) in all {
            gap(f)?;
            match count {
                1 => writeln!(f, "[gateway.{name}]")?,
                _ => writeln!(f, "[[gateway.{name}]]")?,
            }
            writeln!(f, "node = \"{node}\"")?;
            writeln!(f, "uplink = \"{uplink}\"")?;
            writeln!(f, "kind = \"{kind}\"")?;
        }
        if !aliases.is_empty() {
            gap(f)?;
            writeln!(f, "[alias]")?;
        }
        for (alias, place) in aliases {
            writeln!(f, "{alias} = \"{place}\"")?;
        }
        if !owners.is_empty() {
            gap(f)?;
            writeln!(f, "[owner]")?;
        }
        for (place, uid) in owners {
            writeln!(f, "\"{place}\" = {uid}{}", self.comment(*uid))?;
        }
        for (holder, limits, comment) in self.holders(quotas) {
            gap(f)?;
            writeln!(f, "[quota.\"{holder}\"]{comment}")?;
            for (resource, limit) in limits {
                writeln!(f, "{resource} = {limit}")?;
            }
        }
        Ok(())
    }
}

impl Named<'_> {
    /// Users, then nodes; nodes with equal limits together, as node sets.
    fn holders<'q>(
        &self,
        quotas: &'q BTreeMap<Holder, Amounts>,
    ) -> Vec<(String, &'q Amounts, String)> {
        let mut all = Vec::new();
        let mut nodes: Vec<(&Amounts, BTreeSet<Place>)> = Vec::new();
        for (holder, limits) in quotas {
            match holder {
                Holder::User(uid) => all.push((uid.to_string(), limits, self.comment(*uid))),
                Holder::Node(place) => match nodes.iter_mut().find(|(same, _)| *same == limits) {
                    Some((_, places)) => drop(places.insert(*place)),
                    None => nodes.push((limits, [*place].into())),
                },
            }
        }
        for (limits, places) in nodes {
            let sets = boxes(places).into_iter();
            all.extend(sets.map(|set| (set, limits, String::new())));
        }
        all
    }
}

/// Node sets, such as `0-3,0,1-2`, that name these places, each once.
fn boxes(mut places: BTreeSet<Place>) -> Vec<String> {
    let mut sets = Vec::new();
    while let Some(first) = places.first().copied() {
        let [mut x, mut y, mut z] = [first.x, first.y, first.z];
        let all_in = |x: u8, y: u8, z: u8, [from_x, from_y, from_z]: [u8; 3]| {
            let mut line = (from_z..=z).flat_map(|z| (from_y..=y).map(move |y| (y, z)));
            line.all(|(y, z)| (from_x..=x).all(|x| places.contains(&Place { x, y, z })))
        };
        let Place {
            x: x0,
            y: y0,
            z: z0,
        } = first;
        // Extends in one direction after another while all places of the next layer are present.
        while x < u8::MAX && all_in(x + 1, y, z, [x + 1, y0, z0]) {
            x += 1;
        }
        while y < u8::MAX && all_in(x, y + 1, z, [x0, y + 1, z0]) {
            y += 1;
        }
        while z < u8::MAX && all_in(x, y, z + 1, [x0, y0, z + 1]) {
            z += 1;
        }
        places.retain(|place| {
            !((x0..=x).contains(&place.x)
                && (y0..=y).contains(&place.y)
                && (z0..=z).contains(&place.z))
        });
        let range = |from: u8, to: u8| {
            if from == to {
                from.to_string()
            } else {
                format!("{from}-{to}")
            }
        };
        sets.push([range(x0, x), range(y0, y), range(z0, z)].join(","));
    }
    sets
}

impl Declared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let with = |is_wanted: fn(&MemberSpec) -> bool| members_with(&self.members, is_wanted);
        places(f, "nodes", &with(|_| true))?;
        let sets = [
            ("limited", &with(|spec| spec.limited)),
            ("plain", &with(|spec| spec.no_offload)),
            ("stacks", &with(|spec| spec.userspace_stack)),
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
        if self.sealed {
            writeln!(f, "sealed = true")?;
        }
        if let Some(fence) = self.fence {
            writeln!(f, "fence = {fence}")?;
        }
        if !self.ethernet.is_auto() {
            writeln!(f, "ethernet = \"{}\"", self.ethernet)?;
        }
        if let Some(subnet) = self.subnet {
            writeln!(f, "subnet = \"{subnet}\"")?;
        }
        if let Some(capacity) = self.capacity {
            writeln!(f, "capacity = {capacity}")?;
        }
        if let Some(mtu) = self.mtu {
            writeln!(f, "mtu = {mtu}")?;
        }
        Ok(())
    }
}

/// Rates of members, as a table below that of the domain.
fn rates_of(f: &mut fmt::Formatter<'_>, name: &str, domain: &Declared) -> fmt::Result {
    let members = domain.members.iter();
    let by_rate: BTreeMap<Rate, BTreeSet<Place>> =
        by_rate(members.map(|(place, spec)| (*place, spec.rate)));
    if !by_rate.is_empty() {
        writeln!(f, "\n[domain.{name}.rate]")?;
    }
    for (rate, places) in by_rate {
        for set in boxes(places) {
            writeln!(f, "\"{set}\" = \"{rate}\"")?;
        }
    }
    Ok(())
}

/// Links of a domain, as tables below that of the domain.
fn links(f: &mut fmt::Formatter<'_>, name: &str, links: &DomainLinks<Place>) -> fmt::Result {
    let all = (!links.default.is_empty()).then_some((String::new(), &links.default));
    let single = links.pairs.iter();
    let single = single.map(|(pair, link)| (format!(".\"{pair}\""), link));
    for (key, link) in all.into_iter().chain(single) {
        writeln!(f, "\n[domain.{name}.link{key}]")?;
        for (property, text) in link.properties() {
            writeln!(f, "{property} = \"{text}\"")?;
        }
    }
    Ok(())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_named_by_as_few_sets_as_boxes_need() {
        let places = |texts: &[&str]| -> BTreeSet<Place> {
            texts.iter().map(|text| text.parse().unwrap()).collect()
        };
        assert_eq!(boxes(places(&[])), [""; 0]);
        assert_eq!(boxes(places(&["1,2,3"])), ["1,2,3"]);
        assert_eq!(
            boxes(places(&["0,0,0", "1,0,0", "3,0,0"])),
            ["0-1,0,0", "3,0,0"]
        );
        let cube = (0..64).map(|n| Place {
            x: n % 4,
            y: n / 4 % 4,
            z: n / 16,
        });
        let mut cube: BTreeSet<Place> = cube.collect();
        assert_eq!(boxes(cube.clone()), ["0-3,0-3,0-3"]);
        cube.remove(&"0,0,0".parse().unwrap());
        let sets = boxes(cube.clone());
        let torus = "4x4x4".parse().unwrap();
        let named = crate::directory::Directory::new(torus)
            .resolve(&sets)
            .unwrap();
        assert_eq!(named.len(), cube.len());
        assert!(sets.len() < 8, "{sets:?}");
    }
}
