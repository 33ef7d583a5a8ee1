//! Links of domains.

use std::collections::BTreeSet;
use std::io;

use toroid_fabric::Place;
use toroid_fabric::model::{ClockId, ClockRecord, FlowRecord, Path, SharedClocks, record_of};
use toroid_model::directory::{Directory, DirectoryError, Domain};
use toroid_model::info::{DomainInfo, Flows, Lateness, LinkInfo, LinkReport};
use toroid_model::link::{DomainLinks, LinkModel, LinkSpec, Pair};
use toroid_model::refusal::{Refusal, RefusalKind};
use toroid_model::rights::Actor;

use super::host::Host;
use super::routing;

impl Host {
    /// Gives links of a domain these properties. In effect for the driver, and on the way to all
    /// processes, when this returns.
    pub(super) fn set_links(
        &self,
        actor: Actor,
        name: &str,
        links: &DomainLinks<Place>,
        keep: bool,
    ) -> Result<DomainInfo, Refusal> {
        self.relink(actor, name, |directory| {
            let links = DomainLinks {
                default: links.default,
                pairs: links
                    .pairs
                    .iter()
                    .map(|(pair, link)| Ok((self.pair(*pair)?, *link)))
                    .collect::<Result<_, Refusal>>()?,
            };
            let base = self.rdma_base(|base| links.check_base(base).is_ok())?;
            links.check_base(base).map_err(DirectoryError::Link)?;
            Ok(directory.set_links(name, &links, keep)?)
        })
    }

    /// Ends properties of links likewise.
    pub(super) fn remove_links(
        &self,
        actor: Actor,
        name: &str,
        pairs: &[Pair<Place>],
    ) -> Result<DomainInfo, Refusal> {
        self.relink(actor, name, |directory| {
            let pairs = pairs.iter().map(|pair| self.pair(*pair));
            let pairs: Vec<Pair> = pairs.collect::<Result<_, _>>()?;
            Ok(directory.remove_links(name, &pairs)?)
        })
    }

    fn relink(
        &self,
        actor: Actor,
        name: &str,
        change: impl FnOnce(&mut Directory) -> Result<Domain, Refusal>,
    ) -> Result<DomainInfo, Refusal> {
        let (domain, directory) = self.members.plan(|directory| {
            actor.may_own(directory, actor.named(directory, name)?)?;
            let domain = change(directory)?;
            self.can_have_links(&domain)?;
            Ok::<_, Refusal>(domain)
        })?;
        self.measure_before(&domain);
        self.members.relink(&domain, directory)?;
        self.tell_links(&domain);
        self.sync_ports(&domain, |_| true)?;
        Ok(self.describe(&domain))
    }

    /// Measures the latency of Ethernet before a domain has links of its own. The links of a torus are
    /// emulated already.
    fn measure_before(&self, domain: &Domain) {
        if self.emulation.fabric.is_some() {
            return;
        }
        let present = self.members.directory(|d| d.domain(&domain.name).cloned());
        if let Some(present) = present.ok().filter(|present| present.links.is_empty()) {
            self.measure_ethernet(&present);
        }
    }

    /// A torus has all links, and only on a torus routes can be chosen.
    fn can_have_links(&self, domain: &Domain) -> Result<(), Refusal> {
        let (message, remedy) = match &self.emulation.fabric {
            Some(fabric) if domain.links.has_costs() => (
                format!(
                    "the agent emulates the fabric {}, which has all links",
                    fabric.name
                ),
                "start it without --fabric: `toroid down`, then `toroid up`",
            ),
            None if domain.links.has_routing() => (
                "without an emulated torus there is one route between two nodes".into(),
                "start the agent with one: `toroid down`, then `toroid up --fabric bgp`",
            ),
            _ => return Ok(()),
        };
        Err(Refusal::new(RefusalKind::Invalid, message, remedy))
    }

    fn pair(&self, pair: Pair<Place>) -> Result<Pair, Refusal> {
        let node = |place| {
            self.torus
                .node(place)
                .ok_or_else(|| Refusal::no_such_node(place))
        };
        Ok(Pair {
            from: node(pair.from)?,
            to: node(pair.to)?,
        })
    }

    /// Sends the driver the links of a domain. The caller waits for the driver afterwards.
    pub(crate) fn tell_links(&self, domain: &Domain) {
        if let Some(driver) = &self.driver {
            driver.set_links(domain.id.into(), self.members.emulated(domain));
        }
    }

    /// Does the same for all domains: the predecessor may have been killed before it did.
    pub(crate) fn tell_all_links(&self) {
        let domains: Vec<Domain> = self.members.directory(|d| d.domains().cloned().collect());
        domains.iter().for_each(|domain| self.tell_links(domain));
    }

    /// Takes over links that the leader has decided.
    pub(crate) fn adopt_links(&self, domain: &Domain) -> Result<(), Refusal> {
        let directory = self.members.directory(Directory::clone);
        self.members.relink(domain, directory)?;
        self.tell_links(domain);
        self.sync_ports(domain, |_| true)
    }

    /// Reports links of a domain, and how late transfers left them on this host.
    pub(crate) fn links(
        &self,
        actor: Actor,
        name: &str,
        pairs: &[Pair<Place>],
    ) -> Result<LinkReport, Refusal> {
        let directory = self.members.directory(Directory::clone);
        let domain = actor.named(&directory, name)?;
        let pairs = pairs
            .iter()
            .map(|pair| self.member_pair(domain, &directory, *pair));
        let pairs: Vec<Pair> = pairs.collect::<Result<_, _>>()?;
        let emulated = self.members.emulated(domain);
        let clocks = emulated
            .as_ref()
            .map(|its| SharedClocks::map(&its.clocks))
            .transpose();
        let clocks = clocks.map_err(unreadable)?;
        let routing = emulated.as_ref().and_then(|its| its.records.as_ref());
        let routing = routing.map(|memory| routing::Routes::map(memory));
        let routing = routing.transpose().map_err(unreadable)?;
        let info = |name: Option<Pair>, link: LinkSpec, of: &[Pair]| {
            let [rdma, ethernet] = [Path::Rdma, Path::Ethernet].map(|path| {
                let emulated = emulated.as_ref().zip(clocks.as_ref());
                emulated.map_or_else(ClockRecord::default, |(its, clocks)| {
                    record(&its.model, clocks, path, of)
                })
            });
            LinkInfo {
                pair: name.and_then(|pair| self.place_pair(pair)),
                link,
                // The paths of a pair share its clock.
                clamped: rdma.clamped.max(ethernet.clamped),
                rdma: lateness(&rdma),
                ethernet: lateness(&ethernet),
                routing: routing.as_ref().map(|its| its.info(&link, of)),
                flows: link.gateway.map(|_| flows(&ethernet.flows)),
            }
        };
        let links = &domain.links;
        let single = |pair: &Pair| info(Some(*pair), links.link(pair.from, pair.to), &[*pair]);
        let reported = if pairs.is_empty() {
            let rest: Vec<Pair> = pairs_of(domain)
                .filter(|pair| !links.pairs.contains_key(pair))
                .collect();
            let rest = info(None, links.default, &rest);
            std::iter::once(rest)
                .chain(links.pairs.keys().map(single))
                .collect()
        } else {
            pairs.iter().map(single).collect()
        };
        Ok(LinkReport {
            domain: domain.name.clone(),
            fabric: self
                .emulation
                .fabric
                .as_ref()
                .map(|fabric| fabric.name.clone()),
            rdma_base_ns: self.rdma_base(|_| true)?,
            rdma_base_rate: self.rdma_base_rate(),
            ethernet_base_ns: self.base.ethernet(),
            without_clock: clocks.as_ref().map_or(0, SharedClocks::without_clock),
            links: reported,
        })
    }

    fn place_pair(&self, pair: Pair) -> Option<Pair<Place>> {
        Some(Pair {
            from: self.torus.place(pair.from)?,
            to: self.torus.place(pair.to)?,
        })
    }

    fn member_pair(
        &self,
        domain: &Domain,
        directory: &Directory,
        pair: Pair<Place>,
    ) -> Result<Pair, Refusal> {
        let pair = self.pair(pair)?;
        directory.check_pair(domain, pair)?;
        Ok(pair)
    }
}

fn unreadable(error: io::Error) -> Refusal {
    let message = format!("cannot read the clocks of links: {error}");
    Refusal::new(RefusalKind::Failed, message, "try again")
}

/// All links of a domain.
fn pairs_of(domain: &Domain) -> impl Iterator<Item = Pair> {
    let members = || domain.members.keys().copied();
    members().flat_map(move |from| {
        let others = members().filter(move |to| *to != from);
        others.map(move |to| Pair { from, to })
    })
}

/// The record of these links, by the clocks of the first stages of their routes.
fn record(model: &LinkModel, clocks: &SharedClocks, path: Path, of: &[Pair]) -> ClockRecord {
    let first = |pair: &Pair| {
        let route = model.route(pair.from, pair.to, path)?;
        route.stages.first().map(|stage| stage.clock)
    };
    // Links of a torus share clocks.
    let first: BTreeSet<ClockId> = of.iter().filter_map(first).collect();
    record_of(clocks, path, first)
}

fn lateness(record: &ClockRecord) -> Lateness {
    Lateness {
        transfers: record.transfers,
        late: record.late,
        p50_ns: record.p50,
        p99_ns: record.p99,
        cpu_ns: record.cpu,
    }
}

fn flows(record: &FlowRecord) -> Flows {
    Flows {
        gateway: record.gateway,
        direct: record.direct,
        switches: record.switches,
    }
}
