//! A file as a declaration. Everything that is wrong is reported, each with its line.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use toml::de::DeTable;
use toroid_fabric::{NodeId, Place, Torus};

use super::{Declaration, Declared, DeclaredGateway, DeclaredLines, Holder};
use crate::addressing::{self, Subnet};
use crate::directory::members;
use crate::directory::{DirectoryError, MAX_FENCE, MAX_GATEWAYS, MAX_MTU, MIN_FENCE, MIN_MTU};
use crate::ethernet::EthernetPath;
use crate::gateway::GatewayKind;
use crate::link::{DomainLinks, LinkError, LinkSpec, Pair, Rate};
use crate::names::{is_alias, is_domain_name, is_uplink_name};
use crate::nodeset::{self, Names, NodeSetError};
use crate::quota::{Amounts, Resource};
use crate::refusal::Refusal;
use crate::settings::{Key, Lines, Problem, Value};

/// Objects that a file may refer to.
pub struct Surroundings<'a> {
    /// The torus.
    pub torus: Torus,
    /// The names of nodes that there are already.
    pub aliases: BTreeMap<String, Place>,
    /// The hosts that carry nodes, where there are several.
    pub hosts: BTreeMap<Place, String>,
    /// The uid of the user with this name.
    pub user: &'a dyn Fn(&str) -> Option<u32>,
}

impl fmt::Debug for Surroundings<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Surroundings")
            .field("torus", &self.torus)
            .field("aliases", &self.aliases)
            .field("hosts", &self.hosts)
            .finish_non_exhaustive()
    }
}

/// Reads a file.
///
/// # Errors
/// All problems, in order of their lines.
pub fn parse(text: &str, around: &Surroundings<'_>) -> Result<Declaration, Vec<Problem>> {
    match read(text, around) {
        (declaration, problems) if problems.is_empty() => Ok(declaration),
        (_, problems) => Err(problems),
    }
}

/// Reads a file: all of it that makes sense, and all problems, in order of their lines. A caller
/// with problems should carry out nothing of it.
pub fn read(text: &str, around: &Surroundings<'_>) -> (Declaration, Vec<Problem>) {
    let (mut lines, file) = Lines::read(text);
    let mut reader = Reader {
        lines: &mut lines,
        around,
        aliases: around.aliases.clone(),
    };
    let declaration = file.map(|file| reader.file(file.get_ref()));
    let problems = lines.end(()).err();
    (
        declaration.unwrap_or_default(),
        problems.unwrap_or_default(),
    )
}

struct Reader<'a> {
    lines: &'a mut Lines,
    around: &'a Surroundings<'a>,
    /// Present aliases and those of the file.
    aliases: BTreeMap<String, Place>,
}

/// Why a domain with these gateways can have no such further one.
fn objection(present: &[DeclaredGateway], further: &DeclaredGateway) -> Option<String> {
    let is_bridge = |gateway: &DeclaredGateway| gateway.kind == GatewayKind::Bridge;
    if present.iter().any(|other| other.node == further.node) {
        Some(format!(
            "{} is a gateway of this domain twice",
            further.node
        ))
    } else if !present.is_empty() && present.iter().chain([further]).any(is_bridge) {
        let loops = "two bridges to one network are a loop";
        Some(format!(
            "a bridge must be the only gateway of its domain: {loops}"
        ))
    } else if present.len() >= MAX_GATEWAYS {
        Some(format!("a domain has at most {MAX_GATEWAYS} gateways"))
    } else {
        None
    }
}

impl Reader<'_> {
    fn file(&mut self, file: &DeTable<'_>) -> Declaration {
        let tables = ["domain", "gateway", "alias", "owner", "quota"];
        self.lines.check_keys(file, "the file", &tables);
        let mut declaration = Declaration::default();
        // First, because node sets may use them.
        for (key, value) in self.lines.entries(file, "alias") {
            if let Some(place) = self.alias(key, value) {
                declaration.aliases.insert(key.get_ref().to_string(), place);
            }
        }
        for (key, value) in self.lines.entries(file, "domain") {
            if let Some(domain) = self.domain(key, value) {
                declaration
                    .domains
                    .insert(key.get_ref().to_string(), domain);
            }
        }
        for (key, value) in self.lines.entries(file, "gateway") {
            let name = key.get_ref();
            declaration.gateways.insert(name.to_string(), Vec::new());
            match value.get_ref().as_array() {
                Some(several) => several.iter().for_each(|value| {
                    self.gateway(name, value.span().start, value, &mut declaration);
                }),
                None => drop(self.gateway(name, key.span().start, value, &mut declaration)),
            }
        }
        for (key, value) in self.lines.entries(file, "owner") {
            let Some(uid) = self.uid(value) else { continue };
            for place in self.node_set(key.span().start, key.get_ref()) {
                if declaration
                    .owners
                    .insert(place, uid)
                    .is_some_and(|other| other != uid)
                {
                    self.lines
                        .problem(key.span().start, format!("node {place} has two owners"));
                }
            }
        }
        for (key, value) in self.lines.entries(file, "quota") {
            let limits = self.limits(key, value);
            for holder in self.holders(key) {
                if declaration.quotas.insert(holder, limits.clone()).is_some() {
                    self.lines
                        .problem(key.span().start, format!("{holder} has two quotas"));
                }
            }
        }
        declaration
    }

    /// A user, or nodes.
    fn holders(&mut self, key: &Key<'_>) -> Vec<Holder> {
        let (at, name) = (key.span().start, key.get_ref());
        if name.contains(',') {
            let nodes = self.node_set(at, name).into_iter();
            return nodes.map(Holder::Node).collect();
        }
        let uid = name.parse().ok().or_else(|| (self.around.user)(name));
        if uid.is_none() {
            let message = format!("no user is called {name}; write a user or nodes");
            self.lines.problem(at, message);
        }
        uid.map(Holder::User).into_iter().collect()
    }

    fn limits(&mut self, key: &Key<'_>, value: &Value<'_>) -> Amounts {
        let Some(table) = self.lines.table(value) else {
            return Amounts::new();
        };
        let names: Vec<String> = Resource::ALL.iter().map(Resource::to_string).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        self.lines
            .check_keys(table, &format!("quota {}", key.get_ref()), &names);
        let limit = |resource: Resource| {
            let value = table.get(resource.to_string().as_str())?;
            Some((
                resource,
                self.lines.integer(value, 0..=i64::MAX.unsigned_abs())?,
            ))
        };
        Resource::ALL.into_iter().filter_map(limit).collect()
    }

    fn alias(&mut self, key: &Key<'_>, value: &Value<'_>) -> Option<Place> {
        let (at, alias) = (key.span().start, key.get_ref());
        if !is_alias(alias) {
            self.refuse(at, DirectoryError::BadAlias(alias.to_string()));
            return None;
        }
        let text = self.lines.string(value)?;
        let place: Place = match text.parse() {
            Ok(place) => place,
            Err(error) => {
                self.lines.problem(value.span().start, error);
                return None;
            }
        };
        if !self.around.torus.contains(place) {
            let torus = self.around.torus;
            let outside = format!("node {place} is outside the torus {torus}");
            self.lines.problem(value.span().start, outside);
            return None;
        }
        // Also if it is another node's now: then it moves.
        self.aliases.insert(alias.to_string(), place);
        Some(place)
    }

    fn domain(&mut self, key: &Key<'_>, value: &Value<'_>) -> Option<Declared> {
        let (at, name) = (key.span().start, key.get_ref());
        let problems = self.lines.problems();
        if !is_domain_name(name) {
            self.refuse(at, DirectoryError::BadName(name.to_string()));
        }
        let table = self.lines.table(value)?;
        let keys = [
            "nodes", "limited", "plain", "stacks", "managers", "public", "forward", "sealed",
            "fence", "ethernet", "subnet", "capacity", "mtu", "owner", "rate", "link",
        ];
        self.lines
            .check_keys(table, &format!("domain {name}"), &keys);
        let value = |key: &str| table.get(key);
        let [nodes, limited, plain, stacks] =
            ["nodes", "limited", "plain", "stacks"].map(|key| self.node_sets(value(key)));
        let capacity = value("capacity").and_then(|v| self.capacity(v, nodes.len()));
        let rates = value("rate").map_or_else(BTreeMap::new, |v| self.rates(v, &nodes));
        let members = members(&nodes, &limited, &plain, &stacks, &rates);
        let domain = Declared {
            lines: DeclaredLines {
                domain: self.lines.line(at),
                subnet: self.line_of(value("subnet")),
                capacity: self.line_of(value("capacity")),
                mtu: self.line_of(value("mtu")),
            },
            capacity,
            managers: self.node_sets(value("managers")),
            public: value("public").and_then(|v| self.lines.boolean(v)) == Some(true),
            forward: value("forward").and_then(|v| self.lines.boolean(v)) == Some(true),
            sealed: value("sealed").and_then(|v| self.lines.boolean(v)) == Some(true),
            fence: value("fence").and_then(|v| self.lines.number(v, MIN_FENCE..=MAX_FENCE)),
            ethernet: value("ethernet")
                .and_then(|v| self.ethernet(v))
                .unwrap_or_default(),
            subnet: value("subnet").and_then(|v| self.subnet(v, members.len(), capacity)),
            members,
            mtu: value("mtu").and_then(|v| self.lines.number(v, MIN_MTU..=MAX_MTU)),
            owner: value("owner").and_then(|v| self.uid(v)),
            links: value("link").map_or_else(DomainLinks::default, |v| self.links(v, &nodes)),
        };
        let kinds = [
            ("limited", "limited", &limited),
            ("plain", "plain", &plain),
            ("stacks", "a stack", &stacks),
        ];
        for (key, kind, set) in kinds {
            if let Some(outsider) = set.difference(&nodes).next() {
                let at = value(key).map_or(at, |value| value.span().start);
                let message =
                    format!("{outsider} is {kind}, but not among the nodes; add it there");
                self.lines.problem(at, message);
            }
        }
        // Another mistake in the table may be the reason.
        if value("nodes").is_none() && self.lines.problems() == problems {
            let message =
                format!("domain {name} has no nodes; write nodes = [] if it shall be empty");
            self.lines.problem(at, message);
        }
        Some(domain)
    }

    fn ethernet(&mut self, value: &Value<'_>) -> Option<EthernetPath> {
        let path = self.lines.string(value)?.parse();
        path.map_err(|wanted| self.lines.mistyped(value, wanted))
            .ok()
    }

    /// Rates of members, by node sets.
    fn rates(&mut self, value: &Value<'_>, members: &BTreeSet<Place>) -> BTreeMap<Place, Rate> {
        let mut rates = BTreeMap::new();
        let Some(table) = self.lines.table(value) else {
            return rates;
        };
        for (key, value) in table {
            let at = key.span().start;
            let rate = match self.lines.string(value).map(str::parse::<Rate>) {
                Some(Ok(rate)) => rate,
                Some(Err(error)) => {
                    self.lines.problem(value.span().start, error);
                    continue;
                }
                None => continue,
            };
            for place in self.node_set(at, key.get_ref()) {
                if !members.contains(&place) {
                    let message =
                        format!("{place} has a rate, but is not among the nodes; add it there");
                    self.lines.problem(at, message);
                } else if rates.insert(place, rate).is_some_and(|other| other != rate) {
                    let message = format!("{place} has two rates; write one");
                    self.lines.problem(at, message);
                }
            }
        }
        rates
    }

    /// Properties of all links, and tables of single links.
    fn links(&mut self, value: &Value<'_>, members: &BTreeSet<Place>) -> DomainLinks<Place> {
        let mut links = DomainLinks::default();
        let Some(table) = self.lines.table(value) else {
            return links;
        };
        for (key, value) in table {
            let (at, name) = (key.span().start, key.get_ref());
            if !name.contains('>') {
                self.property(&mut links.default, key, value);
            } else if let Some(pair) = self.pair(at, name)
                && let Some(table) = self.lines.table(value)
            {
                let outsider = [pair.from, pair.to]
                    .into_iter()
                    .find(|n| !members.contains(n));
                if let Some(outsider) = outsider {
                    let message = format!("{outsider} is not among the nodes; add it there");
                    self.lines.problem(at, message);
                }
                let mut link = LinkSpec::default();
                for (key, value) in table {
                    self.property(&mut link, key, value);
                }
                if links.pairs.insert(pair, link).is_some() {
                    self.lines
                        .problem(at, format!("link {name} is there twice"));
                }
            }
        }
        links.pairs.retain(|_, link| !link.is_empty());
        if let Err(error) = links.check() {
            self.lines.problem(value.span().start, error);
        }
        links
    }

    fn property(&mut self, link: &mut LinkSpec, key: &Key<'_>, value: &Value<'_>) {
        // Sizes and headers without a unit.
        let text = match value.get_ref().as_integer() {
            Some(number) => Some(number.as_str()),
            None => self.lines.string(value),
        };
        if let Some(text) = text
            && let Err(error) = link.set(key.get_ref(), text)
        {
            let span = match &error {
                LinkError::UnknownKey(_) => key.span(),
                _ => value.span(),
            };
            self.lines.problem(span.start, error);
        }
    }

    fn pair(&mut self, at: usize, text: &str) -> Option<Pair<Place>> {
        let (from, to) = text.split_once('>')?;
        let from = self.one_node(at, from.trim())?;
        let to = self.one_node(at, to.trim())?;
        if from == to {
            self.lines.problem(at, LinkError::Loop);
            return None;
        }
        Some(Pair { from, to })
    }

    fn line_of(&self, value: Option<&Value<'_>>) -> usize {
        value.map_or(0, |value| self.lines.line(value.span().start))
    }

    fn gateway(
        &mut self,
        name: &str,
        at: usize,
        value: &Value<'_>,
        declaration: &mut Declaration,
    ) -> Option<()> {
        let table = self.lines.table(value)?;
        let title = format!("gateway {name}");
        self.lines
            .check_keys(table, &title, &["node", "uplink", "kind"]);
        let (Some(node), Some(uplink)) = (table.get("node"), table.get("uplink")) else {
            let message = format!("{title} needs a node and an uplink");
            self.lines.problem(at, message);
            return None;
        };
        let kind = match table.get("kind") {
            Some(kind) => self.kind(kind)?,
            None => GatewayKind::default(),
        };
        let set = self.lines.string(node)?;
        let place = self.one_node(node.span().start, set)?;
        let domain = declaration.domains.get(name);
        if domain.is_some_and(|domain| !domain.members.contains_key(&place)) {
            let message = format!("{place} is not among the nodes of domain {name}; add it there");
            self.lines.problem(node.span().start, message);
        }
        let is_stack = domain.and_then(|domain| domain.members.get(&place));
        let is_stack = is_stack.is_some_and(|spec| spec.userspace_stack);
        if is_stack && kind == GatewayKind::Nat {
            let message = format!(
                "{place} is a stack of domain {name}, and cannot translate addresses; choose \
                 another node, or kind = \"bridge\""
            );
            self.lines.problem(node.span().start, message);
        }
        let interface = self.lines.string(uplink)?.to_owned();
        let others = declaration.gateways.iter();
        let mut others = others.flat_map(|(name, its)| its.iter().map(move |one| (name, one)));
        let host = |place: &Place| self.around.hosts.get(place);
        let taken = others
            .find(|(_, other)| other.uplink == interface && host(&other.node) == host(&place));
        if let Some((other, _)) = taken {
            let message = format!("{interface} is the uplink of domain {other}, too");
            self.lines.problem(uplink.span().start, message);
        }
        if !is_uplink_name(&interface) {
            let bad = DirectoryError::BadUplink(interface.clone());
            self.refuse(uplink.span().start, bad);
        }
        let gateway = DeclaredGateway {
            node: place,
            uplink: interface,
            kind,
        };
        let its = declaration.gateways.entry(name.into()).or_default();
        if let Some(message) = objection(its, &gateway) {
            self.lines.problem(node.span().start, message);
        }
        its.push(gateway);
        Some(())
    }

    fn kind(&mut self, value: &Value<'_>) -> Option<GatewayKind> {
        let kind = self.lines.string(value)?.parse();
        if let Err(remedy) = kind {
            self.lines
                .problem(value.span().start, format!("this is no kind; {remedy}"));
        }
        kind.ok()
    }

    fn capacity(&mut self, value: &Value<'_>, members: usize) -> Option<u32> {
        let most = Torus::MAX_NODES as u32;
        let capacity = self.lines.number(value, 1..=most)?;
        if members > capacity as usize {
            let message = format!("{members} nodes are members; write this number or a larger one");
            self.lines.problem(value.span().start, message);
        }
        Some(capacity)
    }

    fn subnet(
        &mut self,
        value: &Value<'_>,
        members: usize,
        capacity: Option<u32>,
    ) -> Option<Subnet> {
        let text = self.lines.string(value)?;
        let subnet = text.parse::<Subnet>();
        let needed = addressing::capacity(self.around.torus, members, capacity);
        let checked = subnet.and_then(|subnet| {
            subnet.check_for(needed)?;
            Ok(subnet)
        });
        match checked {
            Ok(subnet) => Some(subnet),
            Err(error) => {
                self.lines.problem(value.span().start, error);
                None
            }
        }
    }

    /// A number, or the name of a user.
    fn uid(&mut self, value: &Value<'_>) -> Option<u32> {
        let Some(name) = value.get_ref().as_str() else {
            return self.lines.number(value, 0..=u32::MAX - 1);
        };
        let uid = (self.around.user)(name);
        if uid.is_none() {
            let message = format!("no user is called {name}; write a name or a number");
            self.lines.problem(value.span().start, message);
        }
        uid
    }

    fn node_sets(&mut self, value: Option<&Value<'_>>) -> BTreeSet<Place> {
        let Some(value) = value else {
            return BTreeSet::new();
        };
        let Some(sets) = value.get_ref().as_array() else {
            self.lines
                .mistyped(value, "a list of node sets, such as [\"0,0,0\", \"*,*,1\"]");
            return BTreeSet::new();
        };
        let mut places = BTreeSet::new();
        for set in sets.iter() {
            if let Some(text) = self.lines.string(set) {
                places.extend(self.node_set(set.span().start, text));
            }
        }
        places
    }

    fn one_node(&mut self, at: usize, set: &str) -> Option<Place> {
        match self.node_set(at, set)[..] {
            [place] => Some(place),
            [] => None,
            [..] => {
                self.lines
                    .problem(at, format!("{set} names several nodes; name one"));
                None
            }
        }
    }

    fn node_set(&mut self, at: usize, set: &str) -> Vec<Place> {
        let torus = self.around.torus;
        let aliases = Aliases(torus, &self.aliases);
        match nodeset::resolve(&[set.into()], torus, &aliases) {
            Ok(nodes) => nodes.iter().filter_map(|node| torus.place(*node)).collect(),
            Err(NodeSetError::NoSuchDomain(_)) => {
                let message = "the members of a domain may change while the file is applied; name \
                               the nodes themselves";
                self.lines.problem(at, message);
                Vec::new()
            }
            Err(error) => {
                self.lines.problem(at, Refusal::from(error));
                Vec::new()
            }
        }
    }

    fn refuse(&mut self, at: usize, error: DirectoryError) {
        self.lines.problem(at, Refusal::from(error));
    }
}

/// Aliases, and no domains.
struct Aliases<'a>(Torus, &'a BTreeMap<String, Place>);

impl Names for Aliases<'_> {
    fn alias(&self, alias: &str) -> Option<NodeId> {
        self.0.node(*self.1.get(alias)?)
    }

    fn members(&self, _: &str) -> Option<BTreeSet<NodeId>> {
        None
    }
}
