//! The report of `ether`.

use std::time::Instant;

use serde_json::json;

use super::bed::Bed;
use super::plan::{
    Delivery, FLOOD_LINKS, IDLE, Key, LARGE, LINKS, LONGEST, Link, OF_KERNELS, RECEIVERS, STREAMS,
    Test, USERSPACE_LINKS, USUAL,
};
use crate::features;
use crate::machine;
use crate::plan::{Effort, Path};
use crate::report::{self, Fields, Report, Row, find, name};
use crate::samples::Series;
use crate::table::{Table, decimals, time};
use crate::target::Bound::{AtLeast, AtMost};
use crate::target::{self, Target};

/// Target of a stream between two userspace stacks in bit/s.
const USERSPACE_WANTED: f64 = 1e9;

/// Figures of a round; a row has their medians.
const FIGURES: [&str; 6] = [
    "bits_per_s",
    "p50_ns",
    "pps",
    "lost",
    "copies_sent",
    "cpu_ns_per_byte",
];

/// Two measurements compared by a figure.
struct Compared {
    name: String,
    over: Key,
    under: Key,
    figure: &'static str,
}

/// The target of a comparison or, for userspace stacks, of one measurement.
struct Judged {
    target: Target,
    /// Median of the measurement, and the value on the other side.
    median: Option<f64>,
    against: Option<f64>,
}

struct Rounds<'a>(&'a [(Key, Series)]);

pub fn report(
    effort: Effort,
    start: Instant,
    congestion_control: &str,
    measured: &[(Key, Series)],
) -> Report {
    let rounds = Rounds(measured);
    let rows = report::rows_of(measured, row);
    let (judged, reported) = (rounds.judged(), rounds.reported());
    let config = Fields::default()
        .with("torus", Bed::torus())
        .with("congestion_control", congestion_control)
        .with("relay", "two threads that block")
        .with("bridge", "locked ports without learning")
        .with("veth_off", features::OFFLOADS);
    let mut report = Report::new(effort, start, config);
    report.rows("rows", &rows);
    let ratios = judged.iter().map(|judged| {
        Fields::default()
            .with("name", &judged.target.what)
            .with("ratio", judged.target.found)
            .with("target", judged.target.wanted)
            .with("at_most", judged.target.at_most)
            .with("met", judged.target.met)
            .with("median", judged.median)
            .with("against", judged.against)
    });
    report.list("ratios", ratios.collect());
    let others = reported.iter();
    let others =
        others.map(|(name, ratio)| Fields::default().with("name", name).with("ratio", ratio));
    report.list("reported", others.collect());
    report.text = format!(
        "Ethernet between two nodes of a {} torus on this machine ({}, {congestion_control}).\n\
         Medians of {} rounds, in each of which one path was measured after another.\n\n{}\n\
         Medians of each round's ratio\n{}\n{}\n{:.0} s in all.\n",
        Bed::torus(),
        machine::describe(),
        rows.first().map_or(0, |row| row.series().rounds().len()),
        tables(&rows),
        target::render(judged.iter().map(|judged| &judged.target)),
        beside(&reported),
        start.elapsed().as_secs_f64(),
    );
    report
}

fn row(key: &Key, series: &Series) -> Row {
    let row = Row::of(series)
        .label("test", key.test)
        .label("path", key.path)
        .label("mtu", key.link.mtu)
        .label("offload", key.link.offload)
        .label("write_bytes", key.write_bytes())
        .label("streams", key.streams)
        .label("idle_members", key.idle_members)
        .label("delivery", key.delivery)
        .label("receivers", key.delivery.map(|_| RECEIVERS));
    let row = FIGURES.into_iter().fold(row, |row, figure| {
        row.figure(figure, series.median(|round| round.figure(figure)))
    });
    let figures = FIGURES.map(|figure| (figure, series.figures(figure)));
    let measured = figures.into_iter().find(|(_, rounds)| !rounds.is_empty());
    let (of, rounds) = measured.unwrap_or_default();
    row.rounds(of, rounds).figure("errors", series.errors())
}

impl Rounds<'_> {
    fn series(&self, key: &Key) -> Series {
        let mut measured = self.0.iter();
        let found = measured.find_map(|(known, series)| (known == key).then_some(series));
        found.cloned().unwrap_or_default()
    }

    fn median(&self, key: &Key, figure: &str) -> Option<f64> {
        self.series(key).median(|round| round.figure(figure))
    }

    /// Median of the rounds' ratios.
    fn ratio(&self, compared: &Compared) -> Option<f64> {
        let (over, under) = (self.series(&compared.over), self.series(&compared.under));
        over.ratio(&under, |round| round.figure(compared.figure))
    }

    fn judge(&self, compared: Compared, wanted: f64) -> Judged {
        let found = self.ratio(&compared);
        let bound = match compared.figure {
            "p50_ns" | "cpu_ns_per_byte" => AtMost(wanted),
            _ => AtLeast(wanted),
        };
        Judged {
            median: self.median(&compared.over, compared.figure),
            against: self.median(&compared.under, compared.figure),
            target: Target::new(bound, compared.name, found),
        }
    }

    fn judged(&self) -> Vec<Judged> {
        let mut judged = Vec::new();
        for link in LINKS {
            let wanted = if link.offload { 0.9 } else { 0.85 };
            let stream = by_path(Test::TcpStream, link, Path::Relay, "bits_per_s");
            // Of links without offload only MTU 1500 has a target; the others are reported.
            if link.offload || link.mtu == 1500 {
                judged.push(self.judge(stream, wanted));
            }
            if link.mtu > USUAL.mtu {
                let stream = by_path(Test::TcpStream, link, Path::Veth, "bits_per_s");
                judged.push(self.judge(stream, 0.75));
            }
        }
        judged.push(self.judge(by_path(Test::TcpRr, USUAL, Path::Relay, "p50_ns"), 1.25));
        judged.push(self.judge(by_path(Test::UdpPps, USUAL, Path::Relay, "pps"), 0.8));
        for link in FLOOD_LINKS {
            let flood = by_path(Test::UdpFlood, link, Path::Veth, "bits_per_s");
            judged.push(self.judge(flood, 0.8));
        }
        for link in LINKS.into_iter().filter(|link| link.offload) {
            let stream = |figure| by_kernel(Test::TcpStream, link, figure);
            judged.push(self.judge(stream("bits_per_s"), 0.9));
            judged.push(self.judge(stream("cpu_ns_per_byte"), 1.2));
            let streams = Compared {
                name: format!("{STREAMS} tcp_streams, {link}, toroid-kernel over veth"),
                over: Key::side_by_side(Path::ToroidKernel, link),
                under: Key::side_by_side(Path::Veth, link),
                figure: "bits_per_s",
            };
            judged.push(self.judge(streams, 0.9));
        }
        judged.push(self.judge(by_kernel(Test::TcpRr, USUAL, "p50_ns"), 1.3));
        judged.push(self.judge(by_kernel(Test::UdpPps, USUAL, "pps"), 0.8));
        for link in FLOOD_LINKS {
            let flood = by_kernel(Test::UdpFlood, link, "bits_per_s");
            judged.push(self.judge(flood, 0.75));
        }
        let to_many = Compared {
            name: format!("multicast to {RECEIVERS} members, over unicast to each"),
            over: Key::to_many(Path::Toroid, Delivery::Multicast),
            under: Key::to_many(Path::Toroid, Delivery::Unicast),
            figure: "bits_per_s",
        };
        judged.push(self.judge(to_many, 1.4));
        let to_many = Compared {
            name: format!("multicast to {RECEIVERS} members, toroid-kernel over toroid"),
            over: Key::to_many(Path::ToroidKernel, Delivery::Multicast),
            under: Key::to_many(Path::Toroid, Delivery::Multicast),
            figure: "bits_per_s",
        };
        judged.push(self.judge(to_many, 1.0));
        for members in &IDLE[1..] {
            let beside = Compared {
                name: format!("tcp_stream beside {members} idle members, over none"),
                over: Key::beside(*members),
                under: Key::beside(IDLE[0]),
                figure: "bits_per_s",
            };
            judged.push(self.judge(beside, 0.9));
        }
        judged.extend(USERSPACE_LINKS.map(|link| {
            let stream = Key::new(Test::TcpStream, Path::Smoltcp, link);
            let median = self.median(&stream, "bits_per_s");
            let name = format!("tcp_stream by smoltcp, MTU {}, over 1 Gbit/s", link.mtu);
            Judged {
                target: Target::new(
                    AtLeast(1.0),
                    name,
                    median.map(|bits| bits / USERSPACE_WANTED),
                ),
                median,
                against: Some(USERSPACE_WANTED),
            }
        }));
        judged
    }

    /// Names and values of ratios without a target.
    fn reported(&self) -> Vec<(String, f64)> {
        let mut compared = Vec::new();
        for link in LINKS {
            if link.offload {
                let stream =
                    |offload| Key::new(Test::TcpStream, Path::Toroid, Link { offload, ..link });
                compared.push(Compared {
                    name: format!("tcp_stream, {link}, offload on over off"),
                    over: stream(true),
                    under: stream(false),
                    figure: "bits_per_s",
                });
            } else if link.mtu != 1500 {
                compared.push(by_path(Test::TcpStream, link, Path::Relay, "bits_per_s"));
            }
            if link.mtu <= USUAL.mtu {
                compared.push(by_path(Test::TcpStream, link, Path::Veth, "bits_per_s"));
            }
        }
        compared.push(by_path(Test::TcpStream, USUAL, Path::Bridge, "bits_per_s"));
        for path in [Path::Bridge, Path::Veth] {
            compared.push(by_path(Test::TcpRr, USUAL, path, "p50_ns"));
        }
        compared.push(by_path(Test::UdpPps, USUAL, Path::Veth, "pps"));
        for link in FLOOD_LINKS {
            compared.push(by_path(Test::UdpFlood, link, Path::Relay, "bits_per_s"));
        }
        // CPU per byte: the reason why a userspace driver is slower than veth on busy processors.
        for path in [Path::Toroid, Path::Relay, Path::Bridge] {
            let stream = |path| Key::new(Test::TcpStream, path, LONGEST);
            compared.push(Compared {
                name: format!(
                    "tcp_stream, {LONGEST}, CPU for a byte, {} over veth",
                    name(path)
                ),
                over: stream(path),
                under: stream(Path::Veth),
                figure: "cpu_ns_per_byte",
            });
        }
        let found = compared
            .iter()
            .filter_map(|compared| Some((compared.name.clone(), self.ratio(compared)?)));
        found.collect()
    }
}

/// A domain whose frames pass through the kernel alone, over veth.
fn by_kernel(test: Test, link: Link, figure: &'static str) -> Compared {
    let cost = match figure {
        "cpu_ns_per_byte" => ", CPU for a byte",
        _ => "",
    };
    Compared {
        name: format!("{} by toroid-kernel, {link}{cost}, over veth", name(test)),
        over: Key::new(test, Path::ToroidKernel, link),
        under: Key::new(test, Path::Veth, link),
        figure,
    }
}

fn by_path(test: Test, link: Link, than: Path, figure: &'static str) -> Compared {
    Compared {
        name: format!("{}, {link}, over {}", name(test), name(than)),
        over: Key::new(test, Path::Toroid, link),
        under: Key::new(test, than, link),
        figure,
    }
}

fn tables(rows: &[Row]) -> String {
    let mut paths = Table::new(
        1,
        &[
            "Between two nodes",
            "toroid",
            "toroid-kernel",
            "relay",
            "bridge",
            "veth",
        ],
    );
    let toroid = json!({"path": Path::Toroid, "idle_members": null, "delivery": null});
    for first in rows.iter().filter(|row| row.has(&toroid)) {
        let by = |path| {
            let [test, mtu, offload] = ["test", "mtu", "offload"].map(|label| first.get(label));
            let labels = json!({
                "path": path, "test": test, "mtu": mtu, "offload": offload,
                "streams": first.get("streams"), "idle_members": null, "delivery": null,
            });
            find(rows, &labels).map_or("-".into(), figure)
        };
        let is_offloaded = *first.get("offload") == json!(true);
        let no_offload = if is_offloaded { "" } else { ", plain" };
        let (test, mtu) = (first.text("test"), first.text("mtu"));
        let label = format!("{test}, MTU {mtu}{no_offload}");
        paths.row([label].into_iter().chain(OF_KERNELS.map(by)));
    }
    let mut userspace = Table::new(1, &["Between stacks in the members' own processes", ""]);
    let smoltcp = json!({"path": Path::Smoltcp});
    for row in rows.iter().filter(|row| row.has(&smoltcp)) {
        let label = format!("{}, MTU {}", row.text("test"), row.text("mtu"));
        userspace.row([label, figure(row)]);
    }
    let title = format!("{STREAMS} streams side by side");
    let mut side_by_side = Table::new(1, &[&title, "toroid-kernel", "veth"]);
    for link in LINKS.into_iter().filter(|link| link.offload) {
        let by = |path| {
            let labels = json!({"path": path, "mtu": link.mtu, "streams": STREAMS});
            find(rows, &labels).map_or("-".into(), figure)
        };
        side_by_side.row([link.to_string(), by(Path::ToroidKernel), by(Path::Veth)]);
    }
    let title = format!("One to {RECEIVERS} members, {LARGE} B");
    let mut many = Table::new(1, &[&title, "", "copies sent"]);
    for row in rows.iter().filter(|row| !row.get("delivery").is_null()) {
        let way = format!("{} by {}", row.text("delivery"), row.text("path"));
        many.row([way, figure(row), row.text("copies_sent")]);
    }
    let mut beside = Table::new(1, &["One stream beside idle members", ""]);
    for row in rows.iter().filter(|row| !row.get("idle_members").is_null()) {
        beside.row([format!("{} members", row.text("idle_members")), figure(row)]);
    }
    format!("{paths}\n{side_by_side}\n{userspace}\n{many}\n{beside}")
}

fn beside(reported: &[(String, f64)]) -> String {
    let mut table = Table::new(1, &["Beside them", ""]);
    for (name, ratio) in reported {
        table.row([name.clone(), decimals(Some(*ratio), 2)]);
    }
    table.to_string()
}

/// The figure of a row in tables.
fn figure(row: &Row) -> String {
    let bits = row.number("bits_per_s").map(|bits| bits / 1e9);
    match (row.text("test").as_str(), bits) {
        ("tcp_rr", _) => time(row.number("p50_ns")),
        ("udp_pps", _) => {
            let pps = row.number("pps");
            pps.map_or("-".into(), |pps| format!("{:.0} k/s", pps / 1e3))
        }
        (_, None) => "-".into(),
        ("udp_flood", Some(bits)) => {
            let lost = row.number("lost").unwrap_or_default();
            format!("{bits:.2} Gbit/s, {:.0} % lost", lost * 100.0)
        }
        (_, Some(bits)) => format!("{bits:.2} Gbit/s"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::plan::contests;
    use super::*;
    use crate::samples::Samples;

    fn report_of(toroid: f64) -> (Report, serde_json::Value) {
        let of = |key: Key| {
            let value = match key.path {
                Path::Toroid | Path::ToroidKernel | Path::Smoltcp => toroid,
                _ => 1e9,
            };
            let samples = Samples::default()
                .with("bits_per_s", (key.test != Test::TcpRr).then_some(value))
                .with("p50_ns", (key.test == Test::TcpRr).then_some(1e18 / value))
                .with("pps", (key.test == Test::UdpPps).then_some(value))
                .with("lost", (key.test == Test::UdpFlood).then_some(0.5))
                .with("copies_sent", key.delivery.map(|_| 1.0))
                .with(
                    "cpu_ns_per_byte",
                    (key.test == Test::TcpStream).then_some(1e9 / value),
                );
            (key, Series::from(samples))
        };
        let measured: Vec<_> = contests().concat().into_iter().map(of).collect();
        let report = report(Effort::Quick, Instant::now(), "reno", &measured);
        let json = json!(report);
        (report, json)
    }

    #[test]
    fn equal_speeds_miss_only_the_gain_by_multicast() {
        let (report, json) = report_of(1e9);
        let ratios = json["ratios"].as_array().unwrap();
        let missed = ratios.iter().filter(|ratio| ratio["met"] == false);
        let missed: Vec<_> = missed.collect();
        assert_eq!(missed.len(), 1, "{missed:?}");
        assert!(missed[0]["name"].as_str().unwrap().contains("multicast"));
        assert!(report.text.contains("MISSED"));
        assert_eq!(json["reported"].as_array().unwrap().len(), 16);
    }

    #[test]
    fn half_the_speed_misses_all_targets_between_paths() {
        let (_, json) = report_of(0.5e9);
        for ratio in json["ratios"].as_array().unwrap() {
            let between_paths = !ratio["name"].as_str().unwrap().contains("members");
            assert!(!(between_paths && ratio["met"] == true), "{ratio}");
        }
    }

    #[test]
    fn every_row_has_every_key() {
        let (_, json) = report_of(1e9);
        for row in json["rows"].as_array().unwrap() {
            assert_eq!(row.as_object().unwrap().len(), 19, "{row}");
        }
    }
}
