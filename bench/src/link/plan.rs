//! The measurements of `link`, and their time.

use std::fmt;
use std::time::Duration;

use serde::Serialize;
use toroid_fabric::routes::Mode;

use crate::plan::Effort;
use crate::table;
use crate::worker::network::Transport;

/// The carrier of measured bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Carrier {
    /// One-sided reads.
    Rdma,
    /// Packets of a channel.
    Channel,
    /// Frames between the TAPs of two nodes.
    Ethernet,
    /// Frames of a veth pair with the kernel's token bucket filter.
    Tbf,
    /// No bytes: the choice of their route.
    Router,
}

/// What is set, and what the result is compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Knob {
    /// A latency, which the result should equal.
    Latency,
    /// A latency for which senders spin. It should come on top of the result without a model, once
    /// for each operation.
    Spin,
    /// A rate, which the result should equal.
    Rate,
    /// Latency and rate. The one that is not measured should change nothing.
    Both,
    /// Nothing. The code of the model should change nothing.
    Off,
    /// The routing `off` on an emulated torus. It should change nothing.
    RoutingOff,
    /// A way to choose routes, the time of which has a bound.
    Routing,
}

impl Knob {
    /// Whether the result should equal the one beside, within the interval of their ratio.
    pub fn is_off(self) -> bool {
        matches!(self, Knob::Off | Knob::RoutingOff)
    }
}

/// A measured operation. Lengths are in bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Op {
    /// One read at a time; the result is half its time.
    Read(usize),
    /// Reads with this many under way.
    Reads(usize, u32),
    /// One packet at a time, timed by its receiver.
    Packet(usize),
    /// A stream between interfaces of this MTU; the result is its rate on the wire.
    Stream(Transport, Mtu),
    /// The driver's own record of the time between the TAPs: what the kernels add on both sides
    /// varies by more than the error.
    Frame,
    /// The choice of a route through a torus of this size in each dimension, in a mode or by `auto`,
    /// under load. [`Mode::Adaptive1`] chooses at each hop.
    Decision(u16, Option<Mode>),
    /// A look at the counters of one peer in one mode.
    Counters,
}

/// Interfaces of a pair of nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mtu {
    /// 9000 bytes, with GSO packets.
    Long,
    /// 1500 bytes without offloads.
    Plain,
    /// Interfaces of a veth pair: 1500 bytes, with GSO packets.
    Veth,
}

impl Mtu {
    pub fn bytes(self) -> u32 {
        match self {
            Mtu::Long => 9000,
            Mtu::Plain | Mtu::Veth => 1500,
        }
    }
}

/// A rate to set.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rate {
    /// Bytes per second.
    Bytes(f64),
    /// Share of the rate without a model.
    Share(f64),
}

/// A measurement: one row of the report, repeated in each round.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Key {
    pub carrier: Carrier,
    pub knob: Knob,
    pub op: Op,
    /// Latency to set, in nanoseconds.
    pub latency: Option<u64>,
    pub rate: Option<Rate>,
}

impl Key {
    /// The name of the row: the measurement and what is set.
    pub fn name(&self) -> String {
        match (self.knob, self.latency, self.rate) {
            (Knob::Latency | Knob::Spin, Some(ns), _) => {
                format!("{self}, {}", table::time(Some(ns as f64)))
            }
            (Knob::Rate, _, Some(Rate::Bytes(bytes))) => {
                format!("{self}, {} Mbit/s", table::digits(bytes / MBIT))
            }
            (Knob::Rate, _, Some(Rate::Share(share))) => format!("{self}, {:.0} %", share * 100.0),
            _ => self.to_string(),
        }
    }

    /// Operations of a result: it is half the time of a read.
    pub fn operations(&self) -> f64 {
        if matches!(self.op, Op::Read(_)) {
            0.5
        } else {
            1.0
        }
    }

    /// Whether the result is a time, not a rate.
    pub fn is_time(&self) -> bool {
        !matches!(self.op, Op::Reads(..) | Op::Stream(..))
    }

    /// Duration of one measurement with the model.
    pub fn slice(&self, effort: Effort) -> Duration {
        let ms = match self.op {
            _ if self.knob.is_off() => 200,
            Op::Stream(..) => effort.quick_or(400, 1000),
            Op::Frame => effort.quick_or(250, 1000),
            Op::Read(_) | Op::Reads(..) | Op::Packet(_) => 50,
            Op::Decision(..) | Op::Counters => 20,
        };
        Duration::from_millis(ms)
    }

    /// Duration of the measurement beside. The base of a stream is not compared.
    pub fn base_slice(&self, effort: Effort) -> Duration {
        match self.op {
            Op::Stream(..) => Duration::from_millis(50),
            _ => self.slice(effort),
        }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.op {
            Op::Read(bytes) => write!(f, "read of {bytes} B")?,
            Op::Reads(bytes, depth) => write!(f, "{depth} reads of {}", table::size(bytes))?,
            Op::Packet(bytes) => write!(f, "packet of {bytes} B")?,
            Op::Stream(transport, mtu) => {
                let transport = match transport {
                    Transport::Tcp => "TCP",
                    Transport::Udp => "UDP",
                };
                let plain = if mtu == Mtu::Plain { ", plain" } else { "" };
                write!(f, "{transport}, MTU {}{plain}", mtu.bytes())?;
            }
            Op::Frame => write!(f, "TAP to TAP")?,
            Op::Decision(side, mode) => {
                let name = mode.map_or("auto", Mode::name);
                let each = if mode == Some(Mode::Adaptive1) {
                    " at a hop"
                } else {
                    ""
                };
                write!(f, "decision by {name}{each}, torus of {side}x{side}x{side}")?;
            }
            Op::Counters => write!(f, "counters of a peer in a mode")?,
        }
        match (self.knob, self.latency, self.rate) {
            (Knob::Both, Some(ns), _) if !self.is_time() => {
                write!(f, ", with and without {}", table::time(Some(ns as f64)))
            }
            (Knob::Both, _, Some(Rate::Share(share))) => {
                write!(f, ", at {:.0} % and 100 % rate", share * 100.0)
            }
            (Knob::Spin, ..) => write!(f, ", sender spins"),
            (Knob::Off, ..) => write!(f, ", with and without the code"),
            (Knob::RoutingOff, ..) => write!(f, " through a torus, with and without routing off"),
            _ => Ok(()),
        }
    }
}

const US: u64 = 1000;
const MS: u64 = 1000 * US;
const MBIT: f64 = 1e6 / 8.0;

/// Bytes of a short message.
pub const SHORT: usize = 64;

/// Bytes of a long one-sided read, and the number under way.
pub const LONG: usize = 1 << 20;
pub const WINDOW: u32 = 4;

/// Reads under way that hide a latency, and their bytes.
const UNDER_WAY: u32 = 64;
const HIDING: usize = 64 << 10;

/// Settings of the tests of two knobs.
const LOW: f64 = 0.05;
const HIDDEN: u64 = 16 * US;
const BESIDE: u64 = 10 * US;

/// All measurements, in turns.
pub fn keys(effort: Effort) -> Vec<Key> {
    let quick = effort == Effort::Quick;
    let few = |all: &[u64], some: &[u64]| -> Vec<u64> { if quick { some } else { all }.to_vec() };
    let latency = |carrier, knob, op| {
        move |latency| Key {
            carrier,
            knob,
            op,
            latency: Some(latency),
            rate: None,
        }
    };
    let rate = |carrier, op, rate| Key {
        carrier,
        knob: Knob::Rate,
        op,
        latency: None,
        rate: Some(rate),
    };
    let mut keys = Vec::new();
    let short = few(
        &[US, 2 * US, 5 * US, 10 * US, 20 * US, 50 * US, 100 * US],
        &[US, 5 * US, 20 * US, 100 * US],
    );
    let read = Op::Read(SHORT);
    keys.extend(
        short
            .into_iter()
            .map(latency(Carrier::Rdma, Knob::Latency, read)),
    );
    let spins = few(&[2 * US, 5 * US, 20 * US, 50 * US], &[5 * US, 20 * US]);
    keys.extend(
        spins
            .into_iter()
            .map(latency(Carrier::Rdma, Knob::Spin, read)),
    );
    let shares: &[f64] = if quick {
        &[0.05, 0.2, 0.6, 1.0]
    } else {
        &[0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0]
    };
    let reads = Op::Reads(LONG, WINDOW);
    keys.extend(
        shares
            .iter()
            .map(|share| rate(Carrier::Rdma, reads, Rate::Share(*share))),
    );
    keys.extend([
        Key {
            knob: Knob::Both,
            latency: Some(BESIDE),
            ..rate(Carrier::Rdma, Op::Read(SHORT), Rate::Share(LOW))
        },
        Key {
            knob: Knob::Both,
            latency: Some(HIDDEN),
            ..rate(
                Carrier::Rdma,
                Op::Reads(HIDING, UNDER_WAY),
                Rate::Share(LOW),
            )
        },
    ]);
    let packets = few(
        &[2 * US, 5 * US, 10 * US, 20 * US, 50 * US, 100 * US],
        &[5 * US, 50 * US],
    );
    let packet = Op::Packet(SHORT);
    keys.extend(
        packets
            .into_iter()
            .map(latency(Carrier::Channel, Knob::Latency, packet)),
    );
    keys.push(latency(Carrier::Channel, Knob::Spin, packet)(5 * US));
    keys.extend([Knob::Off, Knob::RoutingOff].into_iter().flat_map(|knob| {
        [(Carrier::Rdma, Op::Read(SHORT)), (Carrier::Channel, packet)].map(|(carrier, op)| Key {
            carrier,
            knob,
            op,
            latency: None,
            rate: None,
        })
    }));
    let frames = few(
        &[
            50 * US,
            100 * US,
            200 * US,
            500 * US,
            MS,
            2 * MS,
            5 * MS,
            10 * MS,
        ],
        &[50 * US, 500 * US, 10 * MS],
    );
    keys.extend(
        frames
            .into_iter()
            .map(latency(Carrier::Ethernet, Knob::Latency, Op::Frame)),
    );
    for mtu in [Mtu::Long, Mtu::Plain] {
        // At a low rate a TCP socket fills the queue for seconds.
        for (transport, mbit) in [
            (Transport::Udp, 10.0),
            (Transport::Tcp, 100.0),
            (Transport::Tcp, 1000.0),
        ] {
            let (op, set) = (Op::Stream(transport, mtu), Rate::Bytes(mbit * MBIT));
            keys.push(rate(Carrier::Ethernet, op, set));
        }
    }
    for mbit in [10.0, 100.0, 1000.0] {
        let op = Op::Stream(Transport::Tcp, Mtu::Veth);
        keys.push(rate(Carrier::Tbf, op, Rate::Bytes(mbit * MBIT)));
    }
    let decisions = [4, 8].into_iter().flat_map(|side| {
        let modes = [
            Mode::Adaptive0,
            Mode::Adaptive1,
            Mode::Adaptive2,
            Mode::Adaptive3,
        ];
        let modes = modes.map(Some).into_iter().chain([None]);
        modes.map(move |mode| Op::Decision(side, mode))
    });
    keys.extend(decisions.chain([Op::Counters]).map(|op| Key {
        carrier: Carrier::Router,
        knob: Knob::Routing,
        op,
        latency: None,
        rate: None,
    }));
    keys
}

/// Number of rounds.
pub fn rounds(effort: Effort) -> u32 {
    effort.pick(5, 11, 21)
}

/// Time of all rounds but the last.
pub fn limit(effort: Effort) -> Duration {
    Duration::from_secs(effort.quick_or(45, 300))
}

/// A round with a larger share of late transfers does not count.
pub const LATE: f64 = 0.01;
