//! The measurements of `noise connect`.

use std::fmt;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use clap::{Args, ValueEnum};
use toroid_client::member::MemberError;

use super::client::{Client, Streamed};
use super::error::NetError;
use super::key::Shared;
use super::memory::Memory;
use super::packets;
use super::report;
use super::window::{Rejected, Window};
use super::wire::{Direction, LARGEST, LARGEST_DATAGRAM, Protocol, Streams};
use crate::cluster::ClusterError;
use crate::noise::signals::Signals;
use crate::plan::{Common, Effort};
use crate::progress::Progress;
use crate::report::{Report, name};
use crate::runner::Runner;
use crate::samples::Samples;
use crate::table;

/// Runs of all but streams.
const RUNS: u32 = 10;

/// Round trips of a run whose sample does not count.
const WARM_UP: u32 = 2;

/// Fewest round trips of a run that count.
const FEWEST: u64 = 3;

/// Most round trips of a run.
const MOST: u32 = 100_000;

/// Runs of streams until one is not rejected.
const ATTEMPTS: u32 = 4;

/// Bytes of a message of streams.
const STREAM_BYTES: u32 = 1 << 20;

/// Streams at the same time.
const STREAMS: [u32; 2] = [1, 16];

/// The server and the key.
#[derive(Args)]
pub struct Server {
    /// Address and port at which `noise serve` listens.
    #[arg(value_name = "ADDRESS:PORT")]
    address: String,

    #[command(flatten)]
    key: Shared,
}

impl Server {
    /// Connects.
    pub fn connect(&self, signals: &Signals) -> Result<Client> {
        let key = self.key.given()?;
        Client::connect(&self.address, &key, signals)
    }

    /// The address as given.
    pub fn address(&self) -> &str {
        &self.address
    }
}

// Not a doc comment, which would replace the text of the command.
#[derive(Args)]
pub(crate) struct Options {
    #[command(flatten)]
    pub common: Common,

    #[command(flatten)]
    server: Server,

    /// Measure only these [default: all].
    #[arg(long, value_name = "TEST", value_delimiter = ',')]
    test: Vec<Test>,

    /// Measure latency and bandwidth only for messages of these bytes [default: 1 to 4194304].
    #[arg(
        long,
        value_name = "N",
        value_delimiter = ',',
        value_parser = clap::value_parser!(u32).range(1..=i64::from(LARGEST))
    )]
    bytes: Vec<u32>,
}

/// A group of measurements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Test {
    /// Half round trips of messages, both ends sleeping.
    Latency,
    /// Rate of one stream by the size of messages.
    Bandwidth,
    /// 1 and 16 streams in the middle window of a run.
    Streams,
    /// Noise of packets, both ends looking without sleeping.
    Noise,
}

/// One measurement.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Measurement {
    Latency {
        protocol: Protocol,
        bytes: u32,
    },
    Bandwidth {
        protocol: Protocol,
        direction: Direction,
        bytes: u32,
    },
    /// Single one-sided reads.
    Read {
        bytes: u32,
    },
    /// One-sided writes (out) or reads (in), many in flight.
    OneSided {
        direction: Direction,
        bytes: u32,
    },
    Streams {
        streams: u32,
        direction: Direction,
    },
    Noise,
}

impl fmt::Display for Measurement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let size = |bytes: u32| table::size(bytes as usize);
        match *self {
            Measurement::Latency { protocol, bytes } => {
                write!(f, "latency {} {}", name(protocol), size(bytes))
            }
            Measurement::Bandwidth {
                protocol,
                direction,
                bytes,
            } => {
                let (protocol, direction) = (name(protocol), name(direction));
                write!(f, "bandwidth {protocol} {direction} {}", size(bytes))
            }
            Measurement::Read { bytes } => write!(f, "latency rdma {}", size(bytes)),
            Measurement::OneSided { direction, bytes } => {
                write!(f, "bandwidth rdma {} {}", name(direction), size(bytes))
            }
            Measurement::Streams { streams, direction } => {
                write!(f, "{streams} streams {}", name(direction))
            }
            Measurement::Noise => write!(f, "noise of packets"),
        }
    }
}

/// Measures everything between this host and a server.
pub(crate) fn measure(options: &Options, progress: &Progress) -> Result<Report> {
    let start = Instant::now();
    let signals = Signals::catch()?;
    let effort = options.common.effort();
    let mut client = options.server.connect(&signals)?;
    let mut memory = match options.has_sizes().then(|| client.memory()) {
        // The session has ended.
        Some(Err(error)) if error.is::<NetError>() => {
            signals.check()?;
            return Err(error);
        }
        memory => memory,
    };
    let mut short = options.short();
    if let Some(Ok(_)) = memory {
        short.extend(options.one_sided());
    }
    let mut turns = in_turns(&short);
    let streams = options.streams();
    progress.expect(short.len() * RUNS as usize + streams.len());
    let mut runner = Runner::new(progress);
    // No limit of time: each run has its own.
    runner.contest(&mut turns, 1..=RUNS, Duration::MAX, |measurement| {
        let memory = memory.as_mut().and_then(|memory| memory.as_mut().ok());
        run(&mut client, memory, measurement, effort)
    })?;
    for measurement in &streams {
        progress.step(measurement);
        let parts = steady(&mut client, measurement, effort);
        for part in parts.map_err(|error| error.at(measurement))? {
            runner.add(measurement, part);
        }
    }
    let address = options.server.address();
    let mut measured = runner.finish();
    // Rows are in the order of protocols, streams last.
    measured.sort_by_key(|(measurement, _)| {
        let place = short.iter().position(|known| known == measurement);
        place.unwrap_or(short.len())
    });
    for (measurement, series) in &measured {
        is_heard(measurement, series.rounds())?;
    }
    let mut report = report::report(effort, start, address, &measured);
    if let Some(Err(reason)) = memory
        && !matches!(reason.downcast_ref(), Some(MemberError::NotInNode))
    {
        report.note(&reason.context("RDMA was not measured"));
    }
    Ok(report)
}

/// Measurements by size, and one-sided ones between others of the same size: they are no orders, and a
/// server ends a session without an order for long. Each pass reverses the one before, so one-sided
/// measurements at its end would follow one another twice.
fn in_turns(measurements: &[Measurement]) -> Vec<Measurement> {
    let mut turns = measurements.to_vec();
    turns.sort_by_key(|measurement| match *measurement {
        Measurement::Latency { bytes, .. }
        | Measurement::Bandwidth {
            bytes,
            direction: Direction::Out,
            ..
        } => (bytes, 0),
        Measurement::Read { bytes } | Measurement::OneSided { bytes, .. } => (bytes, 1),
        Measurement::Bandwidth { bytes, .. } => (bytes, 2),
        Measurement::Noise | Measurement::Streams { .. } => (u32::MAX, 0),
    });
    turns
}

/// An error if most runs of the noise of packets had no round trip.
fn is_heard(measurement: &Measurement, runs: &[Samples]) -> Result<()> {
    let empty = runs.iter().filter(|run| run.ops == 0).count();
    if *measurement == Measurement::Noise && 2 * empty > runs.len() {
        let all = runs.len();
        bail!(
            "{measurement}: {empty} of {all} runs had no round trip; open the port for UDP both ways"
        );
    }
    Ok(())
}

impl Options {
    fn has(&self, test: Test) -> bool {
        self.test.is_empty() || self.test.contains(&test)
    }

    /// Whether a test has a measurement for each size.
    fn has_sizes(&self) -> bool {
        self.has(Test::Latency) || self.has(Test::Bandwidth)
    }

    /// Bytes of messages.
    fn sizes(&self, largest: u32) -> Vec<u32> {
        let step = self.common.effort().quick_or(4, 1);
        let all = || (0..=LARGEST.ilog2()).step_by(step).map(|log2| 1 << log2);
        let mut sizes = self.bytes.clone();
        if sizes.is_empty() {
            sizes = all().chain([LARGEST]).collect();
            sizes.dedup();
        }
        sizes.retain(|bytes| *bytes <= largest);
        sizes
    }

    /// Measurements of many short runs.
    fn short(&self) -> Vec<Measurement> {
        let mut all = Vec::new();
        for (protocol, largest) in [(Protocol::Tcp, LARGEST), (Protocol::Udp, LARGEST_DATAGRAM)] {
            for bytes in self.sizes(largest) {
                if self.has(Test::Latency) {
                    all.push(Measurement::Latency { protocol, bytes });
                }
                for direction in [Direction::Out, Direction::In] {
                    if self.has(Test::Bandwidth) {
                        all.push(Measurement::Bandwidth {
                            protocol,
                            direction,
                            bytes,
                        });
                    }
                }
            }
        }
        all.extend(self.has(Test::Noise).then_some(Measurement::Noise));
        all
    }

    /// Measurements of many short runs that need a region of the server.
    fn one_sided(&self) -> Vec<Measurement> {
        let mut all = Vec::new();
        for bytes in self.sizes(LARGEST) {
            if self.has(Test::Latency) {
                all.push(Measurement::Read { bytes });
            }
            for direction in [Direction::Out, Direction::In] {
                if self.has(Test::Bandwidth) {
                    all.push(Measurement::OneSided { direction, bytes });
                }
            }
        }
        all
    }

    fn streams(&self) -> Vec<Measurement> {
        let mut all = Vec::new();
        for streams in STREAMS.iter().copied().filter(|_| self.has(Test::Streams)) {
            for direction in [Direction::Out, Direction::In, Direction::Both] {
                all.push(Measurement::Streams { streams, direction });
            }
        }
        all
    }
}

/// A short run.
fn run(
    client: &mut Client,
    memory: Option<&mut Memory>,
    measurement: &Measurement,
    effort: Effort,
) -> Result<Samples, ClusterError> {
    let time = Duration::from_millis(effort.quick_or(50, 100));
    let samples = match *measurement {
        Measurement::Latency { protocol, bytes } => latency(client, protocol, bytes, time),
        Measurement::Bandwidth {
            protocol,
            direction,
            bytes,
        } => bandwidth(client, protocol, direction, bytes, time),
        Measurement::Read { bytes } => match memory {
            Some(memory) => memory.latency(bytes, time, client.budget()),
            None => return Ok(Samples::default()),
        },
        Measurement::OneSided { direction, bytes } => match memory {
            Some(memory) => memory.bandwidth(direction, bytes, time, client.budget()),
            None => return Ok(Samples::default()),
        },
        Measurement::Noise => noise(client, 4 * time),
        // These have parts instead of runs.
        Measurement::Streams { .. } => return Ok(Samples::default()),
    };
    samples.map_err(|error| client.failed(error))
}

/// Half round trips for a time.
fn latency(
    client: &mut Client,
    protocol: Protocol,
    bytes: u32,
    time: Duration,
) -> Result<Samples, NetError> {
    let mut echo = client.echo(protocol, bytes, 1, MOST + WARM_UP)?;
    let (mut samples, mut lost, mut warm) = (Samples::default(), 0, 0);
    for _ in 0..WARM_UP {
        warm += u64::from(echo.round_trip()?.is_some());
    }
    let start = Instant::now();
    let most = u64::from(MOST);
    while samples.ops + lost < FEWEST || (start.elapsed() < time && samples.ops + lost < most) {
        match echo.round_trip()? {
            Some(took) => samples.record(took / 2, bytes as usize, true),
            None => lost += 1,
        }
    }
    echo.finish(warm + samples.ops)?;
    Ok(samples.with("lost", lost as f64))
}

/// One stream for a time.
fn bandwidth(
    client: &mut Client,
    protocol: Protocol,
    direction: Direction,
    bytes: u32,
    time: Duration,
) -> Result<Samples, NetError> {
    let order = Streams {
        protocol,
        streams: 1,
        direction,
        bytes,
        slice_ms: time.as_millis() as u32,
        slices: 1,
    };
    let streamed = client.streams(&order)?;
    let flow = streamed.outward.iter().chain(&streamed.inward).next();
    let received = flow.map_or(0, |flow| flow.bytes);
    let lost = 1.0 - received as f64 / streamed.sent.max(1) as f64;
    let (bytes, elapsed_ns) = flow.and_then(|flow| flow.rest()).unwrap_or_default();
    let samples = Samples {
        batch: 1,
        ops: bytes / u64::from(order.bytes),
        bytes,
        elapsed_ns,
        ..Samples::default()
    };
    Ok(samples.with("lost_share", lost))
}

fn noise(client: &mut Client, time: Duration) -> Result<Samples, NetError> {
    let (trips, lost) = client.poll(MOST, time)?;
    Ok(packets::samples(&trips).with("lost", lost as f64))
}

/// Parts of the middle window of a run of streams. Rejected runs are repeated.
fn steady(
    client: &mut Client,
    measurement: &Measurement,
    effort: Effort,
) -> Result<Vec<Samples>, ClusterError> {
    let &Measurement::Streams { streams, direction } = measurement else {
        return Ok(Vec::new());
    };
    let order = Streams {
        protocol: Protocol::Tcp,
        streams,
        direction,
        bytes: STREAM_BYTES,
        slice_ms: effort.quick_or(20, 100),
        slices: effort.quick_or(150, 300),
    };
    let mut rejected = 0;
    loop {
        let streamed = client
            .streams(&order)
            .map_err(|error| client.failed(error))?;
        match parts(&order, &streamed) {
            Ok(parts) => return Ok(parts),
            Err(_) if rejected + 1 < ATTEMPTS => rejected += 1,
            Err(reason) => {
                return Err(ClusterError::Failed {
                    process: "noise".into(),
                    message: format!(
                        "{ATTEMPTS} runs were rejected, the last one because {reason}"
                    ),
                });
            }
        }
    }
}

/// The rates of each part of the window.
fn parts(order: &Streams, streamed: &Streamed) -> Result<Vec<Samples>, Rejected> {
    let window = Window::of(order);
    let [outward, inward] = [&streamed.outward, &streamed.inward].map(|flows| window.rates(flows));
    let both = outward?.into_iter().zip(inward?);
    let part = |(outward, inward): (f64, f64)| {
        let bytes = ((outward + inward) * window.part_s()) as u64;
        let samples = Samples {
            batch: 1,
            ops: bytes / u64::from(order.bytes),
            bytes,
            elapsed_ns: (window.part_s() * 1e9) as u64,
            ..Samples::default()
        };
        samples
            .with("out_bytes_per_s", outward)
            .with("in_bytes_per_s", inward)
    };
    Ok(both.map(part).collect())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        options: Options,
    }

    /// All one-sided measurements of two passes followed one another, for longer than the server
    /// waits for an order on paths below 33 Mbit/s.
    #[test]
    fn few_one_sided_measurements_come_between_two_orders() {
        for (words, most) in [
            ("", 3),
            ("--test latency,bandwidth", 3),
            ("--test bandwidth --bytes 4194304", 2),
            ("--test latency", 2),
        ] {
            let line = format!("noise 10.0.0.1:7471 {words}");
            let Line { options } = Line::parse_from(line.split_whitespace());
            let all = [options.short(), options.one_sided()].concat();
            let mut turns = in_turns(&all);
            assert_eq!(turns.len(), all.len());
            let (mut in_a_row, mut longest) = (0, 0);
            for _ in 0..RUNS {
                for turn in &turns {
                    let is_order = !matches!(
                        turn,
                        Measurement::Read { .. } | Measurement::OneSided { .. }
                    );
                    in_a_row = if is_order { 0 } else { in_a_row + 1 };
                    longest = longest.max(in_a_row);
                }
                turns.reverse();
            }
            assert_eq!(longest, most, "{words}");
        }
    }

    #[test]
    fn noise_of_no_round_trip_in_most_runs_is_an_error() {
        let runs = [0, 7, 0].map(|ops| Samples {
            ops,
            ..Samples::default()
        });
        let error = is_heard(&Measurement::Noise, &runs)
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("2 of 3 runs") && error.contains("UDP"),
            "{error}"
        );
        assert!(is_heard(&Measurement::Noise, &runs[..2]).is_ok());
    }
}
