//! Networks to emulate: links between the members of a domain, or a torus that all domains share.
//!
//! Users describe them ([`LinkSpec`], [`FabricProfile`]). [`toroid_fabric::model`] computes with the
//! routes that result ([`LinkModel::route`]).

mod gateway;
mod profile;
mod route;
mod routing;
mod spec;
#[cfg(test)]
mod tests;
mod units;

pub use gateway::{FlowGateway, GatewayPath};
pub use profile::{EthernetCosts, FabricProfile, RdmaCosts};
pub use route::{LinkModel, TorusLinks};
pub use routing::Routing;
pub use spec::{DomainLinks, KEYS, Latency, LinkSpec, Mode, Pair, Variation};
pub use units::{Rate, Share, Size, Time, WantedRate};

use crate::refusal::{Refusal, RefusalKind};

/// Why a link cannot be so.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", Refusal::from(self.clone()))]
#[allow(missing_docs)]
pub enum LinkError {
    NotATime(String),
    NotARate(String),
    NotASize(String),
    NotAShare(String),
    NotAJitter(String),
    NotAHeader(String),
    NotAMode(String),
    NotAGateway(String),
    NotARouting(String),
    NotAPair(String),
    UnknownKey(String),
    /// Longer than [`Time::MAX`].
    TooLong(Time),
    /// Below [`Rate::MIN`].
    TooSlow(Rate),
    /// A share above 100 %.
    OverAll(String),
    /// A link from a node to itself.
    Loop,
    LimitWithoutRate,
    /// [`Mode::Spin`] with this latency, which would contain the machine's.
    SpinInside(Time),
    /// A property of flows whose link has no gateway.
    WithoutGateway(&'static str),
    /// A gateway without a property that it needs.
    GatewayWithout(&'static str),
    /// An idle time of 0.
    NeverIdle,
    JitterAboveLatency {
        jitter: Variation,
        /// The latency that the jitter needs.
        reach: Time,
        latency: Time,
    },
    BelowBase {
        wanted: Time,
        /// Time that the machine itself takes.
        base: Time,
    },
}

impl From<LinkError> for Refusal {
    fn from(error: LinkError) -> Self {
        let (message, remedy) = error.words();
        Refusal::new(RefusalKind::Invalid, message, remedy)
    }
}

impl LinkError {
    /// The error and its remedy.
    fn words(&self) -> (String, String) {
        let no = |text: &str, what: &str, remedy: &str| {
            (format!("\"{text}\" is no {what}"), remedy.to_owned())
        };
        match self {
            LinkError::NotATime(text) => no(
                text,
                "time",
                "write a number with ns, us, ms or s, for example 5us",
            ),
            LinkError::NotARate(text) if text.ends_with('%') => {
                no(text, "rate", "write an absolute one, for example 10Gbit")
            }
            LinkError::NotARate(text) => no(
                text,
                "rate",
                "write a number with Kbit, Mbit, Gbit, KB/s, MB/s or GB/s, for example 10Gbit",
            ),
            LinkError::NotASize(text) => no(
                text,
                "size",
                "write bytes, or a number with KiB, MiB, KB or MB, for example 64KiB",
            ),
            LinkError::NotAShare(text) => no(
                text,
                "share",
                "write a number from 0 to 100 with %, for example 0.1%",
            ),
            LinkError::NotAJitter(text) => no(
                text,
                "jitter",
                "write a time, or normal:TIME or pareto:TIME, for example 2us",
            ),
            LinkError::NotAHeader(text) => {
                no(text, "header", "write a number of bytes from 0 to 65535")
            }
            LinkError::NotAMode(text) => no(text, "mode", "write delay or spin"),
            LinkError::NotAGateway(text) => no(
                text,
                "gateway",
                "write LATENCY,RATE, for example 500us,5Gbit",
            ),
            LinkError::NotARouting(text) => no(
                text,
                "routing",
                "write off, auto, adaptive0, adaptive1, adaptive2, adaptive3, min-hash, nmin-hash or \
                 in-order",
            ),
            LinkError::NotAPair(text) => no(text, "pair of nodes", "write FROM>TO"),
            LinkError::UnknownKey(key) => (
                format!("a link has no \"{key}\""),
                format!("its properties are {}", KEYS.join(", ")),
            ),
            LinkError::TooLong(time) => (
                format!("a time of {time} is too long"),
                format!("the most is {}", Time::MAX),
            ),
            LinkError::TooSlow(rate) => (
                format!("a rate of {rate} is too low"),
                format!(
                    "write at least {}, or shrink the domain to send nothing",
                    Rate::MIN
                ),
            ),
            LinkError::OverAll(text) => (
                format!("a share of {text} is more than all"),
                "the most is 100%".into(),
            ),
            LinkError::Loop => (
                "a link leads from a node to another one".into(),
                "name two different nodes".into(),
            ),
            LinkError::LimitWithoutRate => (
                "without a rate nothing waits for a link".into(),
                "set a rate as well, or no limit".into(),
            ),
            LinkError::SpinInside(latency) => (
                format!("a sender cannot spin for a latency of {latency} in all"),
                format!("set +{latency}, which comes on top, or the mode delay"),
            ),
            LinkError::WithoutGateway(key) => (
                format!("\"{key}\" is about flows through a gateway, and the link has none"),
                "set a gateway as well, for example 500us,5Gbit".into(),
            ),
            LinkError::GatewayWithout(key) => (
                format!("a gateway needs \"{key}\", or its flows never change their path"),
                "set direct-above and idle as well, for example 200Mbit and 100ms".into(),
            ),
            LinkError::NeverIdle => (
                "with an idle time of 0 every flow is idle".into(),
                "set a longer one, for example 100ms".into(),
            ),
            LinkError::JitterAboveLatency {
                jitter,
                reach,
                latency,
            } => (
                format!("a jitter of {jitter} can exceed the latency of {latency}"),
                format!("set a latency of at least {reach}, or less jitter"),
            ),
            LinkError::BelowBase { wanted, base } => (
                format!("a latency of {wanted} is less than the {base} that this machine takes"),
                format!("set at least {base}, or +{wanted} to come on top"),
            ),
        }
    }
}
