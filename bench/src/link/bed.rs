//! Two nodes with all that `link` measures, and one measurement.

use std::net::SocketAddrV4;
use std::thread;
use std::time::{Duration, Instant};

use toroid_client::admin::ClientError;
use toroid_fabric::{Place, Torus};
use toroid_model::info::Lateness;
use toroid_model::link::{DomainLinks, Latency, LinkSpec, Mode, Rate as LinkRate};
use toroid_protocol::agent::NewDomain;

use super::decision::Decisions;
use super::hook::{Beside, Hook};
use super::plan::{Carrier, Key, Knob, LONG, Mtu, Op, Rate, SHORT, WINDOW};
use super::report::figure;
use super::torus::TorusBed;
use crate::cluster::{Cluster, ClusterError, Process, check_tun, member};
use crate::plan::Effort;
use crate::roles;
use crate::samples::Samples;
use crate::worker::network::Transport;
use crate::worker::network::flood::{Flood, Flow};
use crate::worker::one_sided::Direction;
use crate::worker::sampler::Pace;
use crate::worker::{Job, Order, veth};

/// Node of the memory, of the sessions and of the sender of packets.
const OWNER: &str = "0,0,0";

/// Node of the measuring process.
const USER: &str = "1,0,0";

/// Domains with interfaces of 9000 bytes, and plain ones of 1500 bytes.
const LONG_DOMAIN: &str = "long";
const PLAIN_DOMAIN: &str = "plain";

/// Bytes of the memory to read.
const MEMORY: usize = 4 * LONG;

/// Longer than attached processes take to learn of a change.
pub(super) const SETTLE: Duration = Duration::from_millis(5);

/// The longest time in which links are refused because the machine is busy, and the time between two
/// attempts.
const BUSY: Duration = Duration::from_secs(20);
const AGAIN: Duration = Duration::from_millis(200);

/// Bytes of headers: of Ethernet, IPv4 and UDP, and of IPv4 and TCP with its timestamps.
const ETHERNET: u32 = 14;
const UDP: u32 = 20 + 8;
const TCP: u32 = 20 + 20 + 12;

/// Bytes of a write to a TCP stream.
const WRITE: usize = 4096;

/// Sending rate of datagrams over the rate of the link, and without a limit in bytes per second.
const SURPLUS: f64 = 1.05;
const FAST: f64 = 1e9;

/// Size of the torus whose counters are read.
const COUNTED: u16 = 4;

/// Nodes, processes in them, and what connects them.
pub struct Bed {
    // Processes end before the cluster.
    _owner: Process,
    user: Process,
    cluster: Cluster,
    hook: Hook,
    torus: TorusBed,
    /// The owner's sessions by interface.
    servers: [(Mtu, SocketAddrV4); 3],
    /// Version of `tc`.
    pub tc: String,
    effort: Effort,
    /// Rate of long reads without a model, in bytes per second.
    base: f64,
    /// Number of measurements.
    count: u64,
}

/// Result of one operation.
struct Outcome {
    /// Nanoseconds, or bytes per second on the wire.
    value: Option<f64>,
    errors: u64,
    lateness: Lateness,
    took: Duration,
}

impl Bed {
    /// Starts nodes, paths and processes. Fails without `/dev/net/tun` or `tc`.
    pub fn prepare(effort: Effort) -> Result<Self, ClusterError> {
        check_tun()?;
        let mut cluster = Cluster::start(Torus::new(2, 1, 1)?, Some(roles::DRIVER))?;
        let mut user = cluster.worker(USER)?;
        let tc = cluster.ask(&mut user, &Order::TcVersion)?;
        let mut owner = cluster.worker(OWNER)?;
        let nodes: &[String] = &[OWNER, USER].map(Into::into);
        let mut addresses = Vec::new();
        for (name, mtu, plain) in [
            (LONG_DOMAIN, Mtu::Long, &[][..]),
            (PLAIN_DOMAIN, Mtu::Plain, nodes),
        ] {
            let domain = cluster.control()?.create_domain(NewDomain {
                name: name.into(),
                nodes: nodes.into(),
                plain: plain.into(),
                mtu: Some(mtu.bytes()),
                ..NewDomain::default()
            })?;
            addresses.push(member(&domain, OWNER)?.ipv4);
        }
        crate::veth::connect(&mut cluster, [(OWNER, &mut owner), (USER, &mut user)])?;
        let port: u16 = cluster.ask(&mut owner, &Order::Serve)?;
        let servers = [
            (Mtu::Long, addresses[0]),
            (Mtu::Plain, addresses[1]),
            (Mtu::Veth, veth::LENDER),
        ];
        cluster.ask::<()>(&mut owner, &Order::ServeMessages(LONG_DOMAIN.into()))?;
        let connect = Order::UseMessages(LONG_DOMAIN.into(), OWNER.into());
        cluster.ask::<()>(&mut user, &connect)?;
        cluster.connect_memory(LONG_DOMAIN, MEMORY, &mut owner, &mut user)?;
        let mut bed = Bed {
            _owner: owner,
            user,
            cluster,
            hook: Hook::new(),
            torus: TorusBed::prepare()?,
            servers: servers.map(|(mtu, ip)| (mtu, SocketAddrV4::new(ip, port))),
            tc,
            effort,
            base: FAST,
            count: 0,
        };
        let reads = bed.measure_op(Op::Reads(LONG, WINDOW), None, Duration::from_millis(500))?;
        bed.base = reads.value.unwrap_or(FAST);
        Ok(bed)
    }

    /// Measures once, with what it is compared with.
    pub fn measure(&mut self, key: &Key) -> Result<Samples, ClusterError> {
        if key.knob.is_off() {
            let beside = match key.knob {
                Knob::RoutingOff => self.torus.routing_off(key.op, key.slice(self.effort))?,
                _ => self.hook(key).map_err(ClusterError::ours)?,
            };
            return Ok(alone(Some(beside.with)).with(figure::BASE, beside.without));
        }
        if key.knob == Knob::Routing {
            let found = self.measure_op(key.op, None, key.slice(self.effort))?;
            return Ok(alone(found.value));
        }
        self.count += 1;
        let (link, alone) = (self.link(key), self.beside(key));
        let (base_slice, slice) = (key.base_slice(self.effort), key.slice(self.effort));
        // Neither always follows the other.
        let first = if self.count.is_multiple_of(2) {
            Some(self.under(key, alone, base_slice)?)
        } else {
            None
        };
        let found = self.under(key, link, slice)?;
        let base = match first {
            Some(base) => base,
            None => self.under(key, alone, base_slice)?,
        };
        let set = if key.is_time() {
            link.latency.map(|latency| latency.nanos)
        } else {
            link.rate.map(|rate| rate.0)
        };
        let late = &found.lateness;
        let value = match key.op {
            Op::Frame => set.map(|set| (set + late.p50_ns) as f64),
            _ => found.value,
        };
        let late_share = late.late as f64 / late.transfers.max(1) as f64;
        let took = found.took.as_nanos() as f64;
        Ok(Samples::errors(found.errors + base.errors)
            .with(figure::SET, set.unwrap_or_default() as f64)
            .with(figure::BASE, base.value)
            .with(figure::MEASURED, value)
            .with(figure::LATE_P50, late.p50_ns as f64)
            .with(figure::LATE_P99, late.p99_ns as f64)
            .with(figure::LATE_SHARE, late_share)
            .with(figure::CPU, late.cpu_ns as f64 / took))
    }

    fn hook(&self, key: &Key) -> anyhow::Result<Beside> {
        let slice = key.slice(self.effort);
        match key.op {
            Op::Packet(bytes) => self.hook.packets(bytes, slice),
            _ => self.hook.reads(SHORT, slice),
        }
    }

    /// The links to set.
    fn link(&self, key: &Key) -> LinkSpec {
        LinkSpec {
            latency: key.latency.map(|nanos| Latency {
                nanos,
                on_top: key.knob == Knob::Spin,
            }),
            mode: (key.knob == Knob::Spin).then_some(Mode::Spin),
            rate: key.rate.map(|rate| {
                let bytes = match rate {
                    Rate::Bytes(bytes) => bytes,
                    Rate::Share(share) => share * self.base,
                };
                LinkRate(bytes as u64)
            }),
            ..LinkSpec::default()
        }
    }

    /// The links of the measurement beside: of two knobs the measured one alone, otherwise none.
    fn beside(&self, key: &Key) -> LinkSpec {
        let LinkSpec { latency, rate, .. } = self.link(key);
        match key.knob {
            Knob::Both if key.is_time() => LinkSpec {
                latency,
                ..LinkSpec::default()
            },
            Knob::Both => LinkSpec {
                rate,
                ..LinkSpec::default()
            },
            _ => LinkSpec::default(),
        }
    }

    /// Sets links. Beside other work this machine's own latency may exceed a wanted one for a while;
    /// the agent measures anew before it refuses.
    fn set(&mut self, domain: &str, links: &DomainLinks<Place>) -> Result<(), ClusterError> {
        let end = Instant::now() + BUSY;
        loop {
            match self.cluster.control()?.set_links(domain, links, false) {
                Err(ClientError::Refused(_)) if Instant::now() < end => thread::sleep(AGAIN),
                result => return Ok(result.map(|_| ())?),
            }
        }
    }

    /// Measures the operation of `key` under these links, which are afterwards the machine's.
    fn under(
        &mut self,
        key: &Key,
        link: LinkSpec,
        slice: Duration,
    ) -> Result<Outcome, ClusterError> {
        let rate = link.rate.map(|rate| rate.0 as f64);
        if link.is_empty() {
            return self.measure_op(key.op, None, slice);
        }
        if key.carrier == Carrier::Tbf {
            let limit = rate.map(|rate| (rate * 8.0) as u64);
            let () = self.cluster.ask(&mut self.user, &Order::LimitVeth(limit))?;
            let outcome = self.measure_op(key.op, rate, slice);
            let () = self.cluster.ask(&mut self.user, &Order::LimitVeth(None))?;
            return outcome;
        }
        let domain = match key.op {
            Op::Stream(_, Mtu::Plain) => PLAIN_DOMAIN,
            _ => LONG_DOMAIN,
        };
        let links = DomainLinks {
            default: link,
            ..DomainLinks::default()
        };
        self.set(domain, &links)?;
        thread::sleep(SETTLE);
        let mut outcome = self.measure_op(key.op, rate, slice)?;
        let control = self.cluster.control()?;
        let report = control.links(domain, &[])?;
        if let Some(link) = report.links.first() {
            outcome.lateness = match key.carrier {
                Carrier::Rdma | Carrier::Channel => link.rdma,
                Carrier::Ethernet | Carrier::Tbf | Carrier::Router => link.ethernet,
            };
        }
        // Without links the agent forgets the record.
        control.remove_links(domain, &[])?;
        thread::sleep(SETTLE);
        Ok(outcome)
    }

    /// Measures an operation as the links are, with `rate` in bytes per second.
    fn measure_op(
        &mut self,
        op: Op,
        rate: Option<f64>,
        time: Duration,
    ) -> Result<Outcome, ClusterError> {
        let start = Instant::now();
        let mut outcome = match op {
            Op::Read(bytes) => half(&self.job(Job::OneSided(Direction::Read, 1, bytes), time)?),
            Op::Reads(bytes, depth) => {
                let samples = self.job(Job::Window(bytes, depth), time)?;
                Outcome::of(samples.bytes_per_s(), samples.errors)
            }
            Op::Packet(bytes) => {
                let samples = self.job(Job::OneWay(bytes), time)?;
                Outcome::of(samples.quantile_ns(0.5), samples.errors)
            }
            Op::Frame => {
                let job = Job::RoundTrips(self.server(Mtu::Long)?, Transport::Udp, 64);
                // A sample of round trips is half of one.
                let samples = self.job(job, time)?;
                Outcome::of(samples.quantile_ns(0.5), samples.errors)
            }
            Op::Stream(Transport::Tcp, mtu) => {
                let job = Job::Stream(self.server(mtu)?, Transport::Tcp, WRITE);
                let samples = self.job(job, time)?;
                let of_wire = f64::from(mtu.bytes() + ETHERNET) / f64::from(mtu.bytes() - TCP);
                let wire = samples.bytes_per_s().map(|rate| rate * of_wire);
                Outcome::of(wire, samples.errors)
            }
            Op::Stream(Transport::Udp, mtu) => {
                let frame = f64::from(mtu.bytes() + ETHERNET);
                let server = self.server(mtu)?;
                let flow: Flow = self.cluster.ask(
                    &mut self.user,
                    &Order::Flood(Flood {
                        bytes: (mtu.bytes() - UDP) as usize,
                        per_s: rate.unwrap_or(FAST) * SURPLUS / frame,
                        ..Flood::to(server, time)
                    }),
                )?;
                let wire = flow.arrivals_per_s().map(|rate| rate * frame);
                Outcome::of(wire, flow.errors)
            }
            Op::Decision(side, mode) => {
                let decisions = Decisions::new(side, mode).map_err(ClusterError::ours)?;
                Outcome::of(Some(decisions.decision(time)), 0)
            }
            Op::Counters => {
                let decisions = Decisions::new(COUNTED, None).map_err(ClusterError::ours)?;
                Outcome::of(Some(decisions.counters(time)), 0)
            }
        };
        outcome.took = start.elapsed();
        Ok(outcome)
    }

    fn job(&mut self, job: Job, time: Duration) -> Result<Samples, ClusterError> {
        let order = job.order(self.count, Pace::of(time));
        self.cluster.ask(&mut self.user, &order)
    }

    fn server(&self, mtu: Mtu) -> Result<SocketAddrV4, ClusterError> {
        let mut servers = self.servers.iter();
        let server = servers.find(|(of, _)| *of == mtu);
        server.map(|(_, at)| *at).ok_or(ClusterError::NoServer)
    }
}

impl Outcome {
    fn of(value: Option<f64>, errors: u64) -> Self {
        Outcome {
            value,
            errors,
            lateness: Lateness::default(),
            took: Duration::ZERO,
        }
    }
}

/// A result in this process, where nothing is late.
fn alone(value: Option<f64>) -> Samples {
    Samples::default()
        .with(figure::SET, 0.0)
        .with(figure::MEASURED, value)
        .with(figure::LATE_P50, 0.0)
        .with(figure::LATE_P99, 0.0)
        .with(figure::LATE_SHARE, 0.0)
        .with(figure::CPU, 0.0)
}

/// Half the time of an operation: the request takes the other half.
fn half(samples: &Samples) -> Outcome {
    let half = samples.quantile_ns(0.5).map(|ns| ns / 2.0);
    Outcome::of(half, samples.errors)
}
