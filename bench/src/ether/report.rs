//! What a run leaves, for programs and for people.

use std::fmt::Write;

use serde::Serialize;

use super::plan::{
    Delivery, FLOOD_LINKS, IDLE, Key, LINKS, LONGEST, Link, Path, RECEIVERS, STACK_LINKS, Test,
    USUAL,
};
use super::series::{Figure, Rounds, Sample};
use crate::machine::Machine;
use crate::plan::Effort;
use crate::table;

/// A measurement, over all rounds. What does not apply to it is null.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// What was done.
    pub test: Test,
    /// By what.
    pub path: Path,
    /// Bytes.
    pub mtu: u32,
    /// Whether super-frames crossed whole, and checksums were left out.
    pub offload: bool,
    /// Bytes of a write, a request, or a datagram.
    pub write_bytes: usize,
    /// Payload received: the median over rounds.
    pub bits_per_s: Option<f64>,
    /// A request with its response: the median over rounds of each round's median.
    pub p50_ns: Option<f64>,
    /// Datagrams received at the highest rate at which at most 1 % were lost: the median over
    /// rounds. All receivers together.
    pub pps: Option<f64>,
    /// The fraction of the datagrams of a flood that was lost: the median over rounds.
    pub lost: Option<f64>,
    /// How many.
    pub rounds: usize,
    /// Members in the domain beside the pair, where that is what is compared.
    pub idle_members: Option<u32>,
    /// How one sender reached many.
    pub delivery: Option<Delivery>,
    /// How many members received.
    pub receivers: Option<usize>,
    /// Copies of a message that the sender's interface sent.
    pub copies_sent: Option<f64>,
    /// Time of all processors of the machine for a byte of a stream, in nanoseconds: the median over
    /// rounds.
    pub cpu_ns_per_byte: Option<f64>,
    /// Messages that were wrong.
    pub errors: u64,
}

/// A measurement compared with another or, for stacks, with [`STACKS_WANTED`], and what was wanted.
#[derive(Clone, Debug, Serialize)]
pub struct Ratio {
    /// What of what.
    pub name: String,
    /// The median over rounds of each round's quotient.
    pub ratio: Option<f64>,
    /// The least or, with `at_most`, the most.
    pub target: f64,
    /// What `target` is.
    pub at_most: bool,
    /// Whether it was met.
    pub met: bool,
    /// The median of the measurement.
    pub median: Option<f64>,
    /// The median of what it is compared with, or that figure.
    pub against: Option<f64>,
}

/// Two measurements of which nothing is wanted.
#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    /// What of what.
    pub name: String,
    /// As in [`Ratio`].
    pub ratio: Option<f64>,
}

/// The circumstances of a run.
#[derive(Clone, Debug, Serialize)]
pub struct Config {
    /// Which budget was asked for.
    pub effort: Effort,
    /// The shape of the torus.
    pub torus: String,
    /// In all nodes.
    pub congestion_control: String,
    /// What carries the limit's packets.
    pub relay: &'static str,
    /// The features that are off where a veth pair has no offload.
    pub veth_off: &'static [&'static str],
    /// Where it was measured.
    #[serde(flatten)]
    pub machine: Machine,
    /// Wall time of the whole in seconds.
    pub elapsed_s: f64,
}

/// A report, as `--json` prints it.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// How it was measured.
    pub config: Config,
    /// What was measured.
    pub rows: Vec<Row>,
    /// What is wanted of it.
    pub ratios: Vec<Ratio>,
    /// What else is of interest.
    pub reported: Vec<Comparison>,
}

/// What is compared with what, by which figure.
struct Compared {
    name: String,
    over: Key,
    under: Key,
    figure: Figure,
}

impl Report {
    /// Makes it of what was measured.
    pub fn of(config: Config, rounds: &Rounds) -> Self {
        Report {
            config,
            rows: rounds
                .all()
                .map(|(key, samples)| row(key, samples, rounds))
                .collect(),
            ratios: ratios(rounds),
            reported: reported(rounds),
        }
    }

    /// Messages that were wrong.
    pub fn errors(&self) -> u64 {
        self.rows.iter().map(|row| row.errors).sum()
    }
}

/// Bits a second of a stream between two stacks, however fast the paths of kernels are.
const STACKS_WANTED: f64 = 1e9;

const BITS: Figure = |sample| sample.bits_per_s;
const TIME: Figure = |sample| sample.p50_ns;
const RATE: Figure = |sample| sample.pps;
const CPU: Figure = |sample| sample.cpu_ns_per_byte;

fn row(key: &Key, samples: &[Sample], rounds: &Rounds) -> Row {
    Row {
        test: key.test,
        path: key.path,
        mtu: key.link.mtu,
        offload: key.link.offload,
        write_bytes: key.write_bytes(),
        bits_per_s: rounds.median(key, BITS),
        p50_ns: rounds.median(key, TIME),
        pps: rounds.median(key, RATE),
        lost: rounds.median(key, |sample| sample.lost),
        rounds: samples.len(),
        idle_members: key.idle_members,
        delivery: key.delivery,
        receivers: key.delivery.map(|_| RECEIVERS),
        copies_sent: rounds.median(key, |sample| sample.copies_sent),
        cpu_ns_per_byte: rounds.median(key, CPU),
        errors: samples.iter().map(|sample| sample.errors).sum(),
    }
}

/// The project's targets. Printed, never asserted.
fn ratios(rounds: &Rounds) -> Vec<Ratio> {
    let mut ratios = Vec::new();
    for link in LINKS {
        let target = if link.offload { 0.9 } else { 0.85 };
        let stream = by_path(Test::TcpStream, link, Path::Relay, BITS);
        // Of plain links that of the Internet's MTU is judged, the others reported.
        if link.offload || link.mtu == 1500 {
            ratios.push(judge(rounds, stream, target, false));
        }
        if link.mtu > USUAL.mtu {
            let stream = by_path(Test::TcpStream, link, Path::Veth, BITS);
            ratios.push(judge(rounds, stream, 0.75, false));
        }
    }
    let round_trip = by_path(Test::TcpRr, USUAL, Path::Relay, TIME);
    ratios.push(judge(rounds, round_trip, 1.25, true));
    let small = by_path(Test::UdpPps, USUAL, Path::Relay, RATE);
    ratios.push(judge(rounds, small, 0.8, false));
    for link in FLOOD_LINKS {
        let flood = by_path(Test::UdpFlood, link, Path::Veth, BITS);
        ratios.push(judge(rounds, flood, 0.8, false));
    }
    let to_many = Compared {
        name: format!("multicast to {RECEIVERS} members, over unicast to each"),
        over: Key::to_many(Delivery::Multicast),
        under: Key::to_many(Delivery::Unicast),
        figure: BITS,
    };
    ratios.push(judge(rounds, to_many, 1.4, false));
    for members in &IDLE[1..] {
        let beside = Compared {
            name: format!("tcp_stream beside {members} idle members, over none"),
            over: Key::beside(*members),
            under: Key::beside(IDLE[0]),
            figure: BITS,
        };
        ratios.push(judge(rounds, beside, 0.9, false));
    }
    ratios.extend(STACK_LINKS.map(|link| judge_stacks(rounds, link)));
    ratios
}

fn judge_stacks(rounds: &Rounds, link: Link) -> Ratio {
    let stream = Key::new(Test::TcpStream, Path::Smoltcp, link);
    let median = rounds.median(&stream, BITS);
    let ratio = median.map(|bits| bits / STACKS_WANTED);
    Ratio {
        name: format!("tcp_stream by smoltcp, MTU {}, over 1 Gbit/s", link.mtu),
        ratio,
        target: 1.0,
        at_most: false,
        met: ratio.is_some_and(|ratio| ratio >= 1.0),
        median,
        against: Some(STACKS_WANTED),
    }
}

fn reported(rounds: &Rounds) -> Vec<Comparison> {
    let mut compared = Vec::new();
    for link in LINKS {
        if link.offload {
            let plain = Link {
                offload: false,
                ..link
            };
            let stream = |link| Key::new(Test::TcpStream, Path::Toroid, link);
            compared.push(Compared {
                name: format!("tcp_stream, {link}, offload on over off"),
                over: stream(link),
                under: stream(plain),
                figure: BITS,
            });
        } else if link.mtu != 1500 {
            compared.push(by_path(Test::TcpStream, link, Path::Relay, BITS));
        }
        if link.mtu <= USUAL.mtu {
            compared.push(by_path(Test::TcpStream, link, Path::Veth, BITS));
        }
    }
    compared.push(by_path(Test::TcpRr, USUAL, Path::Veth, TIME));
    compared.push(by_path(Test::UdpPps, USUAL, Path::Veth, RATE));
    for link in FLOOD_LINKS {
        compared.push(by_path(Test::UdpFlood, link, Path::Relay, BITS));
    }
    // Why a driver in user space cannot be as fast as veth where all processors are busy.
    for path in [Path::Toroid, Path::Relay] {
        let stream = |path| Key::new(Test::TcpStream, path, LONGEST);
        compared.push(Compared {
            name: format!("tcp_stream, {LONGEST}, CPU for a byte, {path} over veth"),
            over: stream(path),
            under: stream(Path::Veth),
            figure: CPU,
        });
    }
    let comparison = |compared: Compared| {
        let Compared {
            name,
            over,
            under,
            figure,
        } = compared;
        let ratio = rounds.ratio(&over, &under, figure);
        Comparison { name, ratio }
    };
    let all = compared.into_iter().map(comparison);
    all.filter(|comparison| comparison.ratio.is_some())
        .collect()
}

fn by_path(test: Test, link: Link, than: Path, figure: Figure) -> Compared {
    Compared {
        name: format!("{test}, {link}, over {than}"),
        over: Key::new(test, Path::Toroid, link),
        under: Key::new(test, than, link),
        figure,
    }
}

fn judge(rounds: &Rounds, compared: Compared, target: f64, at_most: bool) -> Ratio {
    let Compared {
        name,
        over,
        under,
        figure,
    } = compared;
    let ratio = rounds.ratio(&over, &under, figure);
    Ratio {
        name,
        ratio,
        target,
        at_most,
        met: ratio.is_some_and(|ratio| {
            if at_most {
                ratio <= target
            } else {
                ratio >= target
            }
        }),
        median: rounds.median(&over, figure),
        against: rounds.median(&under, figure),
    }
}

impl Report {
    /// The report for people.
    pub fn render(&self) -> String {
        table::text(|to| self.write(to))
    }

    fn write(&self, to: &mut String) -> std::fmt::Result {
        let config = &self.config;
        writeln!(
            to,
            "Ethernet between two nodes of a {} torus on this machine ({}, {}).\n\
             Medians of {} rounds, in each of which one path was measured after another.",
            config.torus,
            config.machine,
            config.congestion_control,
            self.rows.first().map_or(0, |row| row.rounds),
        )?;
        self.write_paths(to)?;
        writeln!(to, "\nBetween stacks in the members' own processes")?;
        for row in self.rows.iter().filter(|row| row.path == Path::Smoltcp) {
            let what = format!("{}, MTU {}", row.test, row.mtu);
            writeln!(to, "  {what:<32}{:>14}", figure(row))?;
        }
        writeln!(
            to,
            "\nOne to {RECEIVERS} members, {} B",
            Key::to_many(Delivery::Multicast).write_bytes()
        )?;
        for row in self.rows.iter().filter(|row| row.delivery.is_some()) {
            let how = match row.delivery {
                Some(Delivery::Multicast) => "all at once",
                _ => "each in turn",
            };
            let copies = row
                .copies_sent
                .map_or_else(|| "-".into(), |copies| copies.to_string());
            writeln!(to, "  {how:<32}{:>14}  {copies} sent", figure(row))?;
        }
        writeln!(to, "\nOne stream beside idle members")?;
        for row in &self.rows {
            if let Some(members) = row.idle_members {
                writeln!(
                    to,
                    "  {:<32}{:>14}",
                    format!("{members} members"),
                    figure(row)
                )?;
            }
        }
        self.write_ratios(to)
    }

    /// One line per link and test, one column per path.
    fn write_paths(&self, to: &mut String) -> std::fmt::Result {
        write!(to, "\n{:<34}", "")?;
        for path in Path::OF_KERNELS {
            write!(to, "{:>14}", path.to_string())?;
        }
        writeln!(to)?;
        let plain = |row: &&Row| row.idle_members.is_none() && row.delivery.is_none();
        for first in self
            .rows
            .iter()
            .filter(plain)
            .filter(|row| row.path == Path::Toroid)
        {
            let link = Link {
                mtu: first.mtu,
                offload: first.offload,
            };
            let label = format!("{}, {link}", first.test);
            write!(to, "  {label:<32}")?;
            for path in Path::OF_KERNELS {
                let same = |row: &&Row| {
                    row.test == first.test
                        && row.path == path
                        && row.mtu == first.mtu
                        && row.offload == first.offload
                };
                let found = self.rows.iter().filter(plain).find(same);
                write!(to, "{:>14}", found.map_or_else(|| "-".into(), figure))?;
            }
            writeln!(to)?;
        }
        Ok(())
    }

    fn write_ratios(&self, to: &mut String) -> std::fmt::Result {
        writeln!(to, "\nTargets: medians of each round's ratio")?;
        for ratio in &self.ratios {
            let bound = if ratio.at_most { "at most" } else { "at least" };
            let verdict = if ratio.met { "met" } else { "MISSED" };
            let found = ratio_cell(ratio.ratio);
            writeln!(
                to,
                "  {:<50}{found:>8}  {bound} {:.2}  {verdict}",
                ratio.name, ratio.target
            )?;
        }
        writeln!(to, "\nBeside them")?;
        for comparison in &self.reported {
            let found = ratio_cell(comparison.ratio);
            writeln!(to, "  {:<50}{found:>8}", comparison.name)?;
        }
        writeln!(to, "\n{:.0} s in all.", self.config.elapsed_s)
    }
}

fn ratio_cell(ratio: Option<f64>) -> String {
    ratio.map_or_else(|| "-".into(), |ratio| format!("{ratio:.2}"))
}

/// What a row is about.
fn figure(row: &Row) -> String {
    match row.test {
        Test::TcpStream | Test::Multicast => row
            .bits_per_s
            .map_or_else(|| "-".into(), |bits| format!("{:.2} Gbit/s", bits / 1e9)),
        Test::UdpFlood => match (row.bits_per_s, row.lost) {
            (Some(bits), Some(lost)) => format!("{:.2} Gb/s {:.0}%", bits / 1e9, lost * 100.0),
            _ => "-".into(),
        },
        Test::TcpRr => crate::table::time(row.p50_ns),
        Test::UdpPps => row
            .pps
            .map_or_else(|| "-".into(), |pps| format!("{:.0} k/s", pps / 1e3)),
    }
}

#[cfg(test)]
mod tests {
    use super::super::plan::contests;
    use super::*;

    fn report(toroid: f64) -> Report {
        let mut rounds = Rounds::default();
        for key in contests().concat() {
            let value = match key.path {
                Path::Toroid | Path::Smoltcp => toroid,
                _ => 1e9,
            };
            let sample = Sample {
                bits_per_s: (key.test != Test::TcpRr).then_some(value),
                p50_ns: (key.test == Test::TcpRr).then_some(1e18 / value),
                pps: (key.test == Test::UdpPps).then_some(value),
                lost: (key.test == Test::UdpFlood).then_some(0.5),
                copies_sent: key.delivery.map(|_| 1.0),
                cpu_ns_per_byte: (key.test == Test::TcpStream).then_some(1.0),
                errors: 0,
            };
            rounds.add(key, sample);
        }
        let config = Config {
            effort: Effort::Quick,
            torus: "1x1x1".into(),
            congestion_control: "reno".into(),
            relay: "",
            veth_off: &[],
            machine: Machine {
                version: "0",
                cpus: 2,
                cpu: String::new(),
                kernel: String::new(),
                busy: false,
            },
            elapsed_s: 1.0,
        };
        Report::of(config, &rounds)
    }

    #[test]
    fn what_is_as_fast_as_its_limit_misses_nothing_but_a_gain() {
        let report = report(1e9);
        let missed: Vec<_> = report.ratios.iter().filter(|ratio| !ratio.met).collect();
        assert_eq!(missed.len(), 1, "{missed:?}");
        assert!(missed[0].name.contains("multicast"));
        assert!(report.render().contains("MISSED"));
    }

    #[test]
    fn what_is_half_as_fast_misses_whatever_is_judged_between_paths() {
        let report = report(0.5e9);
        for ratio in &report.ratios {
            let between_paths = !ratio.name.contains("members");
            assert!(!(between_paths && ratio.met), "{ratio:?}");
        }
    }

    #[test]
    fn every_row_has_every_key() {
        let rows = serde_json::to_value(&report(1e9).rows).unwrap();
        for row in rows.as_array().unwrap() {
            assert_eq!(row.as_object().unwrap().len(), 16, "{row}");
        }
    }
}
