//! `toroid link`: models of the links between members of a domain.

use clap::{Args, Subcommand};
use toroid_client::admin::Control;
use toroid_fabric::Place;
use toroid_model::info::{Flows, Lateness, LinkReport, RouteCounters, RoutingInfo};
use toroid_model::link::{
    DomainLinks, FlowGateway, Latency, LinkError, LinkSpec, Mode, Pair, Rate, Routing, Share, Size,
    Time, Variation, WantedRate,
};

use super::{DONE, Run, Session, domain};
use crate::failure::Failure;
use crate::nodes;
use crate::output::{Show, line, table};

pub(super) const EXAMPLES: &str = "\
Examples:
  toroid link set -d blue --latency 20us --rate 1Gbit      all links, both paths
  toroid link set -d blue 0,0,0 1,0,0 --loss 0.1%          single links, in both directions
  toroid link set -d blue 0,0,0 1,0,0 --one-way --rate 10Mbit
  toroid link set -d blue --gateway 500us,5Gbit --direct-above 200Mbit --idle 100ms
  toroid link set -d blue --routing auto                   through an emulated torus
  toroid link show -d blue
  toroid link rm -d blue 0,0,0 1,0,0                       as all links
  toroid link rm -d blue                                   as the machine has them

A latency such as 5us is the time that RDMA takes in all, one way, and +5us comes on top of the
machine's own time; on Ethernet both come on top. docs/links.md has the rest.";

#[derive(Debug, Subcommand)]
pub(crate) enum Link {
    /// Set properties of links; those that are not given stay as they are
    Set(Set),
    /// Show properties of links, and how late transfers left them on this host
    Show {
        #[command(flatten)]
        links: Links,
    },
    /// End all properties of single links, or of all links of the domain
    #[command(alias = "delete", alias = "remove")]
    Rm {
        #[command(flatten)]
        links: Links,
        /// Only from A to B
        #[arg(long, requires = "from")]
        one_way: bool,
    },
}

#[derive(Debug, Args)]
pub(crate) struct Links {
    /// The domain
    #[arg(short, long)]
    domain: String,
    /// A member [default: all links of the domain]
    #[arg(value_name = "A", requires = "to")]
    from: Option<String>,
    /// Another member
    #[arg(value_name = "B")]
    to: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct Set {
    #[command(flatten)]
    links: Links,
    /// Only from A to B
    #[arg(long, requires = "from")]
    one_way: bool,
    #[command(flatten)]
    properties: Properties,
}

#[derive(Debug, Args)]
#[group(required = true, multiple = true)]
struct Properties {
    /// Time one way, such as 5us, or +5us on top of the machine's own time
    #[arg(long, value_name = "[+]TIME")]
    latency: Option<Latency>,
    /// Rate in each direction, such as 10Gbit, 425MB/s, or 40% of the rate of RDMA that the agent
    /// measures here
    #[arg(long, value_name = "RATE")]
    rate: Option<WantedRate>,
    /// Variation of the latency: 2us (uniform, from -2us to +2us), normal:2us (standard deviation)
    /// or pareto:2us (mean of the addition)
    #[arg(long, value_name = "[SHAPE:]TIME")]
    jitter: Option<Variation>,
    /// Share of frames that are lost, such as 0.1%; RDMA sends again
    #[arg(long, value_name = "PERCENT")]
    loss: Option<Share>,
    /// Bytes that may wait for the rate, such as 64KB; further frames are lost, and RDMA waits
    #[arg(long, value_name = "BYTES")]
    limit: Option<Size>,
    /// Bytes that each packet takes besides its own
    #[arg(long, value_name = "BYTES")]
    header: Option<u16>,
    /// How RDMA takes these times: delay (messages are under way) or spin (senders poll the clock
    /// before they post)
    #[arg(long, value_name = "MODE")]
    mode: Option<Mode>,
    /// Extra time and rate of a gateway, such as 500us,5Gbit, that flows of Ethernet start through;
    /// RDMA goes direct
    #[arg(long, value_name = "LATENCY,RATE")]
    gateway: Option<FlowGateway>,
    /// Rate above which a flow goes direct, such as 200Mbit
    #[arg(long, value_name = "RATE")]
    direct_above: Option<Rate>,
    /// Time without a frame, such as 100ms, after which a flow takes the gateway again; also the
    /// window of --direct-above
    #[arg(long, value_name = "TIME")]
    idle: Option<Time>,
    /// Choice of the route of each message through an emulated torus: off (dimension-ordered), auto
    /// (the mode by what former messages met), adaptive0 (no bias towards minimal routes) to
    /// adaptive3 (a high one), min-hash, nmin-hash or in-order
    #[arg(long, value_name = "MODE")]
    routing: Option<Routing>,
}

impl Properties {
    /// The properties, with a share of the rate that the agent has measured.
    fn link(&self, agent: &mut Control, domain: &str) -> Result<LinkSpec, Failure> {
        let machine = match self.rate {
            Some(WantedRate::Share(_)) => measured(agent.links(domain, &[])?.rdma_base_rate)?,
            _ => 0,
        };
        let rate = self.rate.map(|rate| rate.of(machine)).transpose();
        Ok(LinkSpec {
            latency: self.latency,
            rate: rate.map_err(|error| Failure::usage(&error.to_string()))?,
            jitter: self.jitter,
            loss: self.loss,
            limit: self.limit,
            header: self.header,
            mode: self.mode,
            gateway: self.gateway,
            direct_above: self.direct_above,
            idle: self.idle,
            routing: self.routing,
        })
    }
}

/// The machine's rate of RDMA in bytes per second. Without it the command is right, but fails.
fn measured(rate: Option<u64>) -> Result<u64, Failure> {
    rate.ok_or_else(|| {
        Failure::new(
            "cannot set a share of the machine's rate: the agent could not measure the rate of RDMA; \
             give --rate a rate such as 10Gbit",
        )
    })
}

impl Links {
    /// Requested single links, in both directions unless `one_way`; none for all links.
    fn pairs(&self, agent: &mut Control, one_way: bool) -> Result<Vec<Pair<Place>>, Failure> {
        let (Some(from), Some(to)) = (&self.from, &self.to) else {
            return Ok(Vec::new());
        };
        let from = nodes::resolve_one(agent, from)?;
        let to = nodes::resolve_one(agent, to)?;
        if from == to {
            return Err(Failure::usage(&LinkError::Loop.to_string()));
        }
        let there = Pair { from, to };
        let back = Pair { from: to, to: from };
        Ok(if one_way {
            vec![there]
        } else {
            vec![there, back]
        })
    }
}

impl Run for Link {
    fn run(self, session: &Session) -> Result<u8, Failure> {
        let (agent, show) = (&mut session.connect()?, session.show);
        match self {
            Link::Set(Set {
                links,
                one_way,
                properties,
            }) => {
                let pairs = links.pairs(agent, one_way)?;
                let link = properties.link(agent, &links.domain)?;
                let mut wanted = DomainLinks::default();
                if pairs.is_empty() {
                    wanted.default = link;
                }
                wanted.pairs = pairs.into_iter().map(|pair| (pair, link)).collect();
                domain::print(&agent.set_links(&links.domain, &wanted, true)?, show);
            }
            Link::Show { links } => {
                let pairs = links.pairs(agent, false)?;
                print(&agent.links(&links.domain, &pairs)?, show);
            }
            Link::Rm { links, one_way } => {
                let pairs = links.pairs(agent, one_way)?;
                domain::print(&agent.remove_links(&links.domain, &pairs)?, show);
            }
        }
        Ok(DONE)
    }
}

fn print(report: &LinkReport, show: Show) {
    if show.json {
        return show.value(report);
    }
    let rest = match report.links.len() {
        1 => "all",
        _ => "others",
    };
    let rows = report.links.iter().flat_map(|info| {
        let name = info.pair.map_or(rest.into(), |pair| pair.to_string());
        let properties = match (&report.fabric, info.link.is_empty()) {
            (Some(fabric), true) => format!("of fabric {fabric}"),
            (Some(fabric), false) => format!("of fabric {fabric}, {}", info.link),
            (None, true) => "-".into(),
            (None, false) => info.link.to_string(),
        };
        let first = row(name, properties, "rdma", &info.rdma);
        let second = row(String::new(), String::new(), "ethernet", &info.ethernet);
        [first, second]
    });
    let head = [
        "LINK",
        "PROPERTIES",
        "PATH",
        "TRANSFERS",
        "LATE",
        "P50 US",
        "P99 US",
        "CPU S",
    ];
    table(head, rows);
    for info in &report.links {
        if let Some(flows) = &info.flows {
            let name = info.pair.map_or(rest.into(), |pair| pair.to_string());
            let Flows {
                gateway,
                direct,
                switches,
            } = flows;
            line!("{name}: {gateway} frames by the gateway, {direct} direct, {switches} switches");
        }
    }
    for info in &report.links {
        if let Some(routing) = &info.routing {
            let name = info.pair.map_or(rest.into(), |pair| pair.to_string());
            routes(&name, routing);
        }
    }
    let clamped: u64 = report.links.iter().map(|info| info.clamped).sum();
    if clamped > 0 {
        line!("{clamped} transfers waited for 10 s: a process has written to the clocks of links");
    }
    if report.without_clock > 0 {
        let count = report.without_clock;
        line!("{count} transfers did not wait for the rate: the table of clocks is full");
    }
    let us = |ns: u64| format!("{:.2} us", ns as f64 / 1e3);
    let ethernet = report.ethernet_base_ns.map(us);
    let rate = |rate: u64| format!("{:.1} GB/s", rate as f64 / 1e9);
    let rate = report.rdma_base_rate.map(rate);
    line!(
        "this machine takes, one way: rdma {}, inside a latency without +; ethernet {}, always on top; \
         rdma has {}",
        us(report.rdma_base_ns),
        ethernet.as_deref().unwrap_or("not measured"),
        rate.as_deref().unwrap_or("no measured rate")
    );
}

fn routes(name: &str, routing: &RoutingInfo) {
    let paths = [("rdma", &routing.rdma), ("ethernet", &routing.ethernet)];
    for (path, counters) in paths {
        let RouteCounters {
            decisions,
            switches,
            share_non_minimal,
            modes,
            ..
        } = counters;
        let bytes = modes.iter();
        let bytes: Vec<String> = bytes
            .map(|(mode, its)| format!("{mode} {} bytes", its.bytes))
            .collect();
        line!(
            "{name}: routing {}, {path}: {decisions} decisions, {switches} switches, {:.1}% not minimal{}{}",
            routing.mode,
            100.0 * share_non_minimal,
            if bytes.is_empty() { "" } else { "; " },
            bytes.join(", ")
        );
    }
}

fn row(link: String, properties: String, path: &str, late: &Lateness) -> [String; 8] {
    let us = |ns: u64| format!("{:.2}", ns as f64 / 1e3);
    let share = |share: f64| format!("{:.2}%", 100.0 * share);
    let measured = |text: String| {
        if late.transfers == 0 {
            "-".into()
        } else {
            text
        }
    };
    [
        link,
        properties,
        path.into(),
        late.transfers.to_string(),
        measured(share(late.late as f64 / late.transfers as f64)),
        measured(us(late.p50_ns)),
        measured(us(late.p99_ns)),
        format!("{:.2}", late.cpu_ns as f64 / 1e9),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_of_an_unknown_rate_is_a_failure_with_a_rate_as_remedy() {
        let failure = measured(None).unwrap_err();
        assert_eq!(failure.status(), 1);
        let message = failure.to_string();
        assert!(
            message.ends_with("give --rate a rate such as 10Gbit"),
            "{message}"
        );
        assert_eq!(measured(Some(7)).ok(), Some(7));
    }
}
