//! Descriptions of the links of a domain.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use toroid_fabric::model::{Jitter, Nanos};
use toroid_fabric::{NodeId, Place};

use super::units::serde_as_text;
use super::{FlowGateway, LinkError, Rate, Routing, Share, Size, Time};

/// Names of the properties of a link: in files, in JSON and, with `--`, as options.
pub const KEYS: [&str; 11] = [
    "latency",
    "rate",
    "jitter",
    "loss",
    "limit",
    "header",
    "mode",
    "gateway",
    "direct-above",
    "idle",
    "routing",
];

/// A directed link. Absent properties are those of the machine. Written as
/// `latency=5us rate=10Gbit`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkSpec {
    /// Time that each message is under way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency: Option<Latency>,
    /// Transfer rate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<Rate>,
    /// Variation of the latency.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jitter: Option<Variation>,
    /// Frames lost; on RDMA, which loses nothing, messages that are sent twice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss: Option<Share>,
    /// Bytes that may wait for the link; later frames are dropped. RDMA waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<Size>,
    /// Bytes that each packet takes on the link besides its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub header: Option<u16>,
    /// The way in which RDMA takes these times.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<Mode>,
    /// Detour of frames until their flow is busy. RDMA never takes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gateway: Option<FlowGateway>,
    /// Rate of a flow above which its frames go direct.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[serde(rename = "direct-above")]
    pub direct_above: Option<Rate>,
    /// Time without a frame after which a flow takes the gateway again; also the window of
    /// `direct_above`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle: Option<Time>,
    /// Choice of routes through a torus.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub routing: Option<Routing>,
}

/// The way in which RDMA takes the time of a link, written as `delay` or `spin`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Messages are under way for the time.
    #[default]
    Delay,
    /// The sender polls the clock for the time before it posts, as in InterSense (Wang et al.,
    /// 2016).
    Spin,
}

/// Latency of a link, written as `5us` or `+2us`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Latency {
    /// Nanoseconds.
    pub nanos: Nanos,
    /// Whether the latency comes on top of the time that the machine takes itself (`+`). Without
    /// effect on Ethernet, where each latency does.
    pub on_top: bool,
}

/// Variation of a latency, written as `2us` (uniform, from -2 us to +2 us), `normal:2us` (standard
/// deviation) or `pareto:2us` (mean of what is added).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Variation(pub Jitter);

/// A directed pair of nodes, written as `0,0,0>1,0,0`, or with numbers as `0>1`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Pair<N = NodeId> {
    /// Sender.
    pub from: N,
    /// Receiver.
    pub to: N,
}

/// The links between the members of a domain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[serde(bound(
    serialize = "Pair<N>: Serialize",
    deserialize = "Pair<N>: Deserialize<'de> + Ord"
))]
pub struct DomainLinks<N = NodeId> {
    /// Properties of all links.
    #[serde(default, skip_serializing_if = "LinkSpec::is_empty")]
    pub default: LinkSpec,
    /// Properties of single links, which have precedence.
    #[serde(default = "BTreeMap::new", skip_serializing_if = "BTreeMap::is_empty")]
    pub pairs: BTreeMap<Pair<N>, LinkSpec>,
}

impl LinkSpec {
    /// Whether the link is the machine's.
    pub fn is_empty(&self) -> bool {
        *self == LinkSpec::default()
    }

    /// The link without a choice of routes.
    #[must_use]
    pub fn without_routing(self) -> Self {
        LinkSpec {
            routing: None,
            ..self
        }
    }

    /// Sets one property from its text.
    ///
    /// # Errors
    /// There is no such property ([`KEYS`]), or it has no such value.
    pub fn set(&mut self, key: &str, text: &str) -> Result<(), LinkError> {
        match key {
            "latency" => self.latency = Some(text.parse()?),
            "rate" => self.rate = Some(text.parse()?),
            "jitter" => self.jitter = Some(text.parse()?),
            "loss" => self.loss = Some(text.parse()?),
            "limit" => self.limit = Some(text.parse()?),
            "header" => {
                let header = text.parse().map_err(|_| LinkError::NotAHeader(text.into()));
                self.header = Some(header?);
            }
            "mode" => self.mode = Some(text.parse()?),
            "gateway" => self.gateway = Some(text.parse()?),
            "direct-above" => self.direct_above = Some(text.parse()?),
            "idle" => self.idle = Some(text.parse()?),
            "routing" => self.routing = Some(text.parse()?),
            _ => return Err(LinkError::UnknownKey(key.into())),
        }
        Ok(())
    }

    /// Names and texts of the properties that are set, in the order of [`KEYS`].
    pub fn properties(&self) -> impl Iterator<Item = (&'static str, String)> + use<> {
        let LinkSpec {
            latency,
            rate,
            jitter,
            loss,
            limit,
            header,
            mode,
            gateway,
            direct_above,
            idle,
            routing,
        } = self;
        let texts = [
            latency.map(|latency| latency.to_string()),
            rate.map(|rate| rate.to_string()),
            jitter.map(|jitter| jitter.to_string()),
            loss.map(|loss| loss.to_string()),
            limit.map(|limit| limit.to_string()),
            header.map(|header| header.to_string()),
            mode.map(|mode| mode.to_string()),
            gateway.map(|gateway| gateway.to_string()),
            direct_above.map(|rate| rate.to_string()),
            idle.map(|idle| idle.to_string()),
            routing.map(|routing| routing.to_string()),
        ];
        let named = KEYS.into_iter().zip(texts);
        named.filter_map(|(key, text)| Some((key, text?)))
    }

    /// Its properties, and where absent those of `other`.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        LinkSpec {
            latency: self.latency.or(other.latency),
            rate: self.rate.or(other.rate),
            jitter: self.jitter.or(other.jitter),
            loss: self.loss.or(other.loss),
            limit: self.limit.or(other.limit),
            header: self.header.or(other.header),
            mode: self.mode.or(other.mode),
            gateway: self.gateway.or(other.gateway),
            direct_above: self.direct_above.or(other.direct_above),
            idle: self.idle.or(other.idle),
            routing: self.routing.or(other.routing),
        }
    }

    /// Compares the properties of a link with each other.
    ///
    /// # Errors
    /// [`LinkError::JitterAboveLatency`], [`LinkError::LimitWithoutRate`],
    /// [`LinkError::SpinInside`], or an incomplete gateway.
    pub fn check(&self) -> Result<(), LinkError> {
        let latency = Time(self.latency.map_or(0, |latency| latency.nanos));
        if let Some(jitter) = self.jitter {
            let reach = Time(jitter.0.reach());
            if reach > latency {
                return Err(LinkError::JitterAboveLatency {
                    jitter,
                    reach,
                    latency,
                });
            }
        }
        if self.limit.is_some() && self.rate.is_none() {
            return Err(LinkError::LimitWithoutRate);
        }
        if self.mode == Some(Mode::Spin) && self.latency.is_some_and(|latency| !latency.on_top) {
            return Err(LinkError::SpinInside(latency));
        }
        self.check_gateway()
    }

    /// Compares the latency with `base`, the nanoseconds that the machine itself takes to a peer in
    /// memory.
    ///
    /// # Errors
    /// [`LinkError::BelowBase`].
    pub fn check_base(&self, base: Nanos) -> Result<(), LinkError> {
        match self.latency {
            Some(Latency { nanos, on_top }) if !on_top && nanos < base => {
                Err(LinkError::BelowBase {
                    wanted: Time(nanos),
                    base: Time(base),
                })
            }
            _ => Ok(()),
        }
    }
}

impl<N: Copy + Ord> DomainLinks<N> {
    /// Whether all links are the machine's.
    pub fn is_empty(&self) -> bool {
        self.default.is_empty() && self.pairs.values().all(LinkSpec::is_empty)
    }

    /// Whether links have other properties than a choice of routes.
    pub fn has_costs(&self) -> bool {
        let mut all = std::iter::once(&self.default).chain(self.pairs.values());
        all.any(|link| !link.without_routing().is_empty())
    }

    /// Whether routes of some links are chosen.
    pub fn has_routing(&self) -> bool {
        let mut all = std::iter::once(&self.default).chain(self.pairs.values());
        all.any(|link| link.routing.is_some())
    }

    /// The link from one node to another.
    pub fn link(&self, from: N, to: N) -> LinkSpec {
        let own = self.pairs.get(&Pair { from, to }).copied();
        own.unwrap_or_default().or(self.default)
    }

    /// Checks every link ([`LinkSpec::check`]).
    ///
    /// # Errors
    /// The first mistake.
    pub fn check(&self) -> Result<(), LinkError> {
        self.default.check()?;
        for Pair { from, to } in self.pairs.keys() {
            if from == to {
                return Err(LinkError::Loop);
            }
            self.link(*from, *to).check()?;
        }
        Ok(())
    }

    /// Compares every latency with the machine's ([`LinkSpec::check_base`]).
    ///
    /// # Errors
    /// [`LinkError::BelowBase`].
    pub fn check_base(&self, base: Nanos) -> Result<(), LinkError> {
        let all = std::iter::once(&self.default).chain(self.pairs.values());
        all.into_iter().try_for_each(|link| link.check_base(base))
    }

    /// The same links between nodes of other names; without links of nodes that have none.
    pub fn renamed<M: Copy + Ord>(&self, name: impl Fn(N) -> Option<M>) -> DomainLinks<M> {
        let pairs = self.pairs.iter().filter_map(|(pair, link)| {
            let (from, to) = (name(pair.from)?, name(pair.to)?);
            Some((Pair { from, to }, *link))
        });
        DomainLinks {
            default: self.default,
            pairs: pairs.collect(),
        }
    }
}

impl<N: Ord> Default for DomainLinks<N> {
    fn default() -> Self {
        DomainLinks {
            default: LinkSpec::default(),
            pairs: BTreeMap::new(),
        }
    }
}

impl fmt::Display for LinkSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, (key, text)) in self.properties().enumerate() {
            let gap = if n == 0 { "" } else { " " };
            write!(f, "{gap}{key}={text}")?;
        }
        Ok(())
    }
}

impl FromStr for LinkSpec {
    type Err = LinkError;

    fn from_str(text: &str) -> Result<Self, LinkError> {
        let mut link = LinkSpec::default();
        for property in text.split_whitespace() {
            let (key, text) = property.split_once('=').unwrap_or((property, ""));
            link.set(key, text)?;
        }
        Ok(link)
    }
}

impl fmt::Display for Latency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = if self.on_top { "+" } else { "" };
        write!(f, "{sign}{}", Time(self.nanos))
    }
}

impl FromStr for Latency {
    type Err = LinkError;

    fn from_str(text: &str) -> Result<Self, LinkError> {
        let (on_top, time) = match text.strip_prefix('+') {
            Some(time) => (true, time),
            None => (false, text),
        };
        let Time(nanos) = time.parse()?;
        Ok(Latency { nanos, on_top })
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Mode::Delay => "delay",
            Mode::Spin => "spin",
        })
    }
}

impl FromStr for Mode {
    type Err = LinkError;

    fn from_str(text: &str) -> Result<Self, LinkError> {
        match text {
            "delay" => Ok(Mode::Delay),
            "spin" => Ok(Mode::Spin),
            _ => Err(LinkError::NotAMode(text.into())),
        }
    }
}

impl fmt::Display for Variation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Jitter::None => Time(0).fmt(f),
            Jitter::Uniform { spread } => Time(spread).fmt(f),
            Jitter::Normal { deviation } => write!(f, "normal:{}", Time(deviation)),
            Jitter::Pareto { mean } => write!(f, "pareto:{}", Time(mean)),
        }
    }
}

impl FromStr for Variation {
    type Err = LinkError;

    fn from_str(text: &str) -> Result<Self, LinkError> {
        let (shape, time) = text.split_once(':').unwrap_or(("uniform", text));
        let nanos = match time.parse() {
            Ok(Time(nanos)) => nanos,
            Err(LinkError::NotATime(_)) => return Err(LinkError::NotAJitter(text.into())),
            Err(error) => return Err(error),
        };
        Ok(Variation(match shape {
            _ if nanos == 0 => Jitter::None,
            "uniform" => Jitter::Uniform { spread: nanos },
            "normal" => Jitter::Normal { deviation: nanos },
            "pareto" => Jitter::Pareto { mean: nanos },
            _ => return Err(LinkError::NotAJitter(text.into())),
        }))
    }
}

impl fmt::Display for Pair<NodeId> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}>{}", self.from.0, self.to.0)
    }
}

impl fmt::Display for Pair<Place> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}>{}", self.from, self.to)
    }
}

impl FromStr for Pair<NodeId> {
    type Err = LinkError;

    fn from_str(text: &str) -> Result<Self, LinkError> {
        pair(text, |node| node.parse().ok().map(NodeId))
    }
}

impl FromStr for Pair<Place> {
    type Err = LinkError;

    fn from_str(text: &str) -> Result<Self, LinkError> {
        pair(text, |node| node.parse().ok())
    }
}

fn pair<N: PartialEq>(text: &str, node: impl Fn(&str) -> Option<N>) -> Result<Pair<N>, LinkError> {
    let nodes = text.split_once('>');
    let nodes = nodes.and_then(|(from, to)| Some((node(from.trim())?, node(to.trim())?)));
    let (from, to) = nodes.ok_or_else(|| LinkError::NotAPair(text.into()))?;
    if from == to {
        return Err(LinkError::Loop);
    }
    Ok(Pair { from, to })
}

serde_as_text!(Latency, Mode, Variation, Pair<NodeId>, Pair<Place>);
