//! A file as a declaration. Everything that is wrong is reported, each with its line.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::RangeInclusive;

use fabric::{NodeId, Place, Torus};
use toml::Spanned;
use toml::de::{DeString, DeTable, DeValue};

use super::{Declaration, Declared, DeclaredGateway, Holder};
use crate::addressing::Subnet;
use crate::directory::{DirectoryError, MAX_MTU, MIN_MTU, is_alias, is_domain_name};
use crate::gateway::{GatewayKind, is_uplink_name};
use crate::nodeset::{self, Names, NodeSetError};
use crate::protocol::Refusal;
use crate::quota::{Amounts, Resource};

/// What is wrong with a file, and where.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
#[error("line {line}: {message}")]
pub struct Problem {
    /// From 1.
    pub line: usize,
    /// What, and how to mend it.
    pub message: String,
}

/// What a file may refer to.
pub struct Surroundings<'a> {
    /// The torus.
    pub torus: Torus,
    /// The names of nodes that there are already.
    pub aliases: BTreeMap<String, Place>,
    /// The uid of the user with this name.
    pub user: &'a dyn Fn(&str) -> Option<u32>,
}

impl fmt::Debug for Surroundings<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Surroundings")
            .field("torus", &self.torus)
            .field("aliases", &self.aliases)
            .finish_non_exhaustive()
    }
}

/// Reads a file.
///
/// # Errors
/// All problems, in order of their lines.
pub fn parse(text: &str, around: &Surroundings<'_>) -> Result<Declaration, Vec<Problem>> {
    let line_ends = text.match_indices('\n').map(|(at, _)| at);
    let mut reader = Reader {
        line_ends: line_ends.collect(),
        around,
        aliases: around.aliases.clone(),
        problems: Vec::new(),
    };
    let declaration = match DeTable::parse(text) {
        Ok(file) => reader.file(file.get_ref()),
        Err(error) => {
            let span = error.span().unwrap_or_default();
            let message = error.message().replace('\n', ", ");
            let what = text.get(span.clone()).unwrap_or_default().trim();
            let message = match what.is_empty() || what.contains('\n') {
                true => message,
                false => format!("{message}: {what}"),
            };
            reader.problem(span.start, message);
            Declaration::default()
        }
    };
    reader.problems.sort();
    match reader.problems.is_empty() {
        true => Ok(declaration),
        false => Err(reader.problems),
    }
}

type Key<'t> = Spanned<DeString<'t>>;
type Value<'t> = Spanned<DeValue<'t>>;

struct Reader<'a> {
    /// In bytes from the start.
    line_ends: Vec<usize>,
    around: &'a Surroundings<'a>,
    /// Those there are, and those of the file.
    aliases: BTreeMap<String, Place>,
    problems: Vec<Problem>,
}

impl Reader<'_> {
    fn file(&mut self, file: &DeTable<'_>) -> Declaration {
        let tables = ["domain", "gateway", "alias", "owner", "quota"];
        self.check_keys(file, "the file", &tables);
        let mut declaration = Declaration::default();
        // First, because node sets may use them.
        for (key, value) in self.entries(file, "alias") {
            if let Some(place) = self.alias(key, value) {
                declaration.aliases.insert(key.get_ref().to_string(), place);
            }
        }
        for (key, value) in self.entries(file, "domain") {
            if let Some(domain) = self.domain(key, value) {
                declaration
                    .domains
                    .insert(key.get_ref().to_string(), domain);
            }
        }
        for (key, value) in self.entries(file, "gateway") {
            if let Some(gateway) = self.gateway(key, value, &declaration) {
                let name = key.get_ref().to_string();
                declaration.gateways.insert(name, gateway);
            }
        }
        for (key, value) in self.entries(file, "owner") {
            let Some(uid) = self.uid(value) else { continue };
            for place in self.node_set(key.span().start, key.get_ref()) {
                if declaration
                    .owners
                    .insert(place, uid)
                    .is_some_and(|other| other != uid)
                {
                    self.problem(key.span().start, format!("node {place} has two owners"));
                }
            }
        }
        for (key, value) in self.entries(file, "quota") {
            let limits = self.limits(key, value);
            for holder in self.holders(key) {
                if declaration.quotas.insert(holder, limits.clone()).is_some() {
                    self.problem(key.span().start, format!("{holder} has two quotas"));
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
            self.problem(at, message);
        }
        uid.map(Holder::User).into_iter().collect()
    }

    fn limits(&mut self, key: &Key<'_>, value: &Value<'_>) -> Amounts {
        let Some(table) = self.table(value) else {
            return Amounts::new();
        };
        let names: Vec<String> = Resource::ALL.iter().map(Resource::to_string).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        self.check_keys(table, &format!("quota {}", key.get_ref()), &names);
        let limit = |resource: Resource| {
            let value = table.get(resource.to_string().as_str())?;
            Some((resource, self.integer(value, 0..=i64::MAX.unsigned_abs())?))
        };
        Resource::ALL.into_iter().filter_map(limit).collect()
    }

    fn alias(&mut self, key: &Key<'_>, value: &Value<'_>) -> Option<Place> {
        let (at, alias) = (key.span().start, key.get_ref());
        if !is_alias(alias) {
            self.refuse(at, DirectoryError::BadAlias(alias.to_string()));
            return None;
        }
        let text = self.string(value)?;
        let place: Place = match text.parse() {
            Ok(place) => place,
            Err(error) => {
                self.problem(value.span().start, error);
                return None;
            }
        };
        if !self.around.torus.contains(place) {
            let torus = self.around.torus;
            let outside = format!("node {place} is outside the torus {torus}");
            self.problem(value.span().start, outside);
            return None;
        }
        match self.aliases.insert(alias.to_string(), place) {
            Some(other) if other != place => {
                let alias = alias.to_string();
                let exists = DirectoryError::AliasExists {
                    alias,
                    place: other,
                };
                self.refuse(at, exists);
                None
            }
            _ => Some(place),
        }
    }

    fn domain(&mut self, key: &Key<'_>, value: &Value<'_>) -> Option<Declared> {
        let (at, name) = (key.span().start, key.get_ref());
        let problems = self.problems.len();
        if !is_domain_name(name) {
            self.refuse(at, DirectoryError::BadName(name.to_string()));
        }
        let table = self.table(value)?;
        let keys = [
            "nodes", "limited", "plain", "stacks", "managers", "public", "forward", "subnet",
            "mtu", "owner",
        ];
        self.check_keys(table, &format!("domain {name}"), &keys);
        let value = |key: &str| table.get(key);
        let domain = Declared {
            line: self.line(at),
            nodes: self.node_sets(value("nodes")),
            limited: self.node_sets(value("limited")),
            plain: self.node_sets(value("plain")),
            stacks: self.node_sets(value("stacks")),
            managers: self.node_sets(value("managers")),
            public: value("public").and_then(|v| self.boolean(v)) == Some(true),
            forward: value("forward").and_then(|v| self.boolean(v)) == Some(true),
            subnet: value("subnet").and_then(|v| self.subnet(v)),
            mtu: value("mtu").and_then(|v| self.number(v, MIN_MTU..=MAX_MTU)),
            owner: value("owner").and_then(|v| self.uid(v)),
        };
        let kinds = [
            ("limited", "limited", &domain.limited),
            ("plain", "plain", &domain.plain),
            ("stacks", "a stack", &domain.stacks),
        ];
        for (key, kind, set) in kinds {
            if let Some(outsider) = set.difference(&domain.nodes).next() {
                let at = value(key).map_or(at, |value| value.span().start);
                let message =
                    format!("{outsider} is {kind}, but not among the nodes; add it there");
                self.problem(at, message);
            }
        }
        // Of a table with another problem that may be all that is wrong with it.
        if value("nodes").is_none() && self.problems.len() == problems {
            let message =
                format!("domain {name} has no nodes; write nodes = [] if it shall be empty");
            self.problem(at, message);
        }
        Some(domain)
    }

    fn gateway(
        &mut self,
        key: &Key<'_>,
        value: &Value<'_>,
        declaration: &Declaration,
    ) -> Option<DeclaredGateway> {
        let (at, name) = (key.span().start, key.get_ref());
        let table = self.table(value)?;
        let title = format!("gateway {name}");
        self.check_keys(table, &title, &["node", "uplink", "kind"]);
        let (Some(node), Some(uplink)) = (table.get("node"), table.get("uplink")) else {
            let message = format!("{title} needs a node and an uplink");
            self.problem(at, message);
            return None;
        };
        let kind = match table.get("kind") {
            Some(kind) => self.kind(kind)?,
            None => GatewayKind::default(),
        };
        let set = self.string(node)?;
        let places = self.node_set(node.span().start, set);
        let place = match places[..] {
            [place] => place,
            [] => return None,
            _ => {
                let message = format!("{set} names {} nodes; name one", places.len());
                self.problem(node.span().start, message);
                return None;
            }
        };
        let domain = declaration.domains.get(name.as_ref());
        if domain.is_some_and(|domain| !domain.nodes.contains(&place)) {
            let message = format!("{place} is not among the nodes of domain {name}; add it there");
            self.problem(node.span().start, message);
        }
        let is_stack = domain.is_some_and(|domain| domain.stacks.contains(&place));
        if is_stack && kind == GatewayKind::Nat {
            let message = format!(
                "{place} is a stack of domain {name}, and cannot translate addresses; choose \
                 another node, or kind = \"bridge\""
            );
            self.problem(node.span().start, message);
        }
        let interface = self.string(uplink)?.to_owned();
        let others = &declaration.gateways;
        let taken = others.iter().find(|(_, other)| other.uplink == interface);
        if let Some((other, _)) = taken {
            let message = format!("{interface} is the uplink of domain {other}, too");
            self.problem(uplink.span().start, message);
        }
        if !is_uplink_name(&interface) {
            let bad = DirectoryError::BadUplink(interface.clone());
            self.refuse(uplink.span().start, bad);
        }
        Some(DeclaredGateway {
            node: place,
            uplink: interface,
            kind,
        })
    }

    fn kind(&mut self, value: &Value<'_>) -> Option<GatewayKind> {
        let kind = self.string(value)?.parse();
        if let Err(remedy) = kind {
            self.problem(value.span().start, format!("this is no kind; {remedy}"));
        }
        kind.ok()
    }

    fn subnet(&mut self, value: &Value<'_>) -> Option<Subnet> {
        let text = self.string(value)?;
        let subnet = text.parse::<Subnet>();
        let checked = subnet.and_then(|subnet| {
            subnet.check_for(self.around.torus)?;
            Ok(subnet)
        });
        match checked {
            Ok(subnet) => Some(subnet),
            Err(error) => {
                self.problem(value.span().start, error);
                None
            }
        }
    }

    /// A number, or the name of a user.
    fn uid(&mut self, value: &Value<'_>) -> Option<u32> {
        let Some(name) = value.get_ref().as_str() else {
            return self.number(value, 0..=u32::MAX - 1);
        };
        let uid = (self.around.user)(name);
        if uid.is_none() {
            let message = format!("no user is called {name}; write a name or a number");
            self.problem(value.span().start, message);
        }
        uid
    }

    fn node_sets(&mut self, value: Option<&Value<'_>>) -> BTreeSet<Place> {
        let Some(value) = value else {
            return BTreeSet::new();
        };
        let Some(sets) = value.get_ref().as_array() else {
            self.mistyped(value, "a list of node sets, such as [\"0,0,0\", \"*,*,1\"]");
            return BTreeSet::new();
        };
        let mut places = BTreeSet::new();
        for set in sets.iter() {
            if let Some(text) = self.string(set) {
                places.extend(self.node_set(set.span().start, text));
            }
        }
        places
    }

    fn node_set(&mut self, at: usize, set: &str) -> Vec<Place> {
        let torus = self.around.torus;
        let aliases = Aliases(torus, &self.aliases);
        match nodeset::resolve(&[set.into()], torus, &aliases) {
            Ok(nodes) => nodes.iter().filter_map(|node| torus.place(*node)).collect(),
            Err(NodeSetError::NoSuchDomain(_)) => {
                let message = "the members of a domain may change while the file is applied; name \
                               the nodes themselves";
                self.problem(at, message);
                Vec::new()
            }
            Err(error) => {
                self.problem(at, Refusal::from(error));
                Vec::new()
            }
        }
    }

    fn integer(&mut self, value: &Value<'_>, range: RangeInclusive<u64>) -> Option<u64> {
        let Some(number) = value.get_ref().as_integer() else {
            self.mistyped(value, "a number");
            return None;
        };
        let parsed = u64::from_str_radix(number.as_str(), number.radix());
        let parsed = parsed.ok().filter(|number| range.contains(number));
        if parsed.is_none() {
            let (least, most) = range.into_inner();
            let message = format!("{number} is not from {least} to {most}");
            self.problem(value.span().start, message);
        }
        parsed
    }

    fn number(&mut self, value: &Value<'_>, range: RangeInclusive<u32>) -> Option<u32> {
        let (least, most) = range.into_inner();
        let number = self.integer(value, least.into()..=most.into())?;
        u32::try_from(number).ok()
    }

    fn boolean(&mut self, value: &Value<'_>) -> Option<bool> {
        let boolean = value.get_ref().as_bool();
        if boolean.is_none() {
            self.mistyped(value, "true or false");
        }
        boolean
    }

    fn string<'t>(&mut self, value: &'t Value<'_>) -> Option<&'t str> {
        let string = value.get_ref().as_str();
        if string.is_none() {
            self.mistyped(value, "a text in quotes");
        }
        string
    }

    fn table<'t, 'i>(&mut self, value: &'t Value<'i>) -> Option<&'t DeTable<'i>> {
        let table = value.get_ref().as_table();
        if table.is_none() {
            self.mistyped(value, "a table");
        }
        table
    }

    fn entries<'t, 'i>(
        &mut self,
        file: &'t DeTable<'i>,
        key: &str,
    ) -> impl Iterator<Item = (&'t Key<'i>, &'t Value<'i>)> + use<'t, 'i> {
        let table = file.get(key).and_then(|value| self.table(value));
        table.into_iter().flat_map(DeTable::iter)
    }

    fn check_keys(&mut self, table: &DeTable<'_>, what: &str, known: &[&str]) {
        for key in table
            .keys()
            .filter(|key| !known.contains(&&**key.get_ref()))
        {
            let name = key.get_ref();
            let meant = match nearest(name, known) {
                Some(meant) => format!("did you mean \"{meant}\"?"),
                None => format!("there are {}", known.join(", ")),
            };
            let message = format!("unknown key \"{name}\" in {what}; {meant}");
            self.problem(key.span().start, message);
        }
    }

    fn mistyped(&mut self, value: &Value<'_>, wanted: &str) {
        let found = value.get_ref().type_str();
        self.problem(
            value.span().start,
            format!("write {wanted}, not a value of type {found}"),
        );
    }

    fn refuse(&mut self, at: usize, error: DirectoryError) {
        self.problem(at, Refusal::from(error));
    }

    fn problem(&mut self, at: usize, message: impl ToString) {
        self.problems.push(Problem {
            line: self.line(at),
            message: message.to_string(),
        });
    }

    fn line(&self, at: usize) -> usize {
        1 + self.line_ends.partition_point(|end| *end < at)
    }
}

/// The known word that is most like `word`, if one is much like it.
fn nearest<'k>(word: &str, known: &[&'k str]) -> Option<&'k str> {
    let like = |other: &&str| strsim::jaro_winkler(word, other);
    let close = known.iter().copied().filter(|other| like(other) > 0.75);
    close.max_by(|a, b| like(a).total_cmp(&like(b)))
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
