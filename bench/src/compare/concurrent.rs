//! `compare --concurrent`: an Ethernet stream and one-sided reads between the same two nodes, each
//! alone and then both at once, and the loss of each.

use std::fmt::Write;
use std::net::SocketAddrV4;
use std::time::{Duration, Instant};

use toroid_model::refusal::Refusal;

use super::{CLIENT, DOMAIN, SERVER, Setup, start_pair};
use crate::cluster::{Cluster, ClusterError, Process};
use crate::machine;
use crate::plan::{Effort, LONG_WRITE, PIPELINE, Path};
use crate::progress::Progress;
use crate::report::{self, Fields, PERCENT, RATE, Report, Row, Show};
use crate::samples::{Samples, Series};
use crate::worker::network::Transport;
use crate::worker::one_sided::{Direction, HOT};
use crate::worker::sampler::Pace;
use crate::worker::{Job, Order};

/// Bytes and depth of the reads: small ones one at a time, and large ones pipelined.
const READS: [(usize, u32); 2] = [(200, 1), (8000, PIPELINE)];

/// All rounds of one path, alone and beside the other path.
#[derive(Clone, Default)]
struct Both {
    alone: Series,
    together: Series,
}

impl Both {
    fn add(&mut self, alone: Samples, together: Samples) {
        self.alone.add(alone);
        self.together.add(together);
    }

    /// A row. The loss is the median of the rounds' ratios.
    fn row(&self, path: Path, reads: (usize, u32)) -> Row {
        let kept = self.together.ratio(&self.alone, Samples::bytes_per_s);
        let (op, bytes, depth) = match path {
            Path::Rdma => ("read", reads.0, Some(reads.1)),
            _ => ("stream", LONG_WRITE, None),
        };
        Row::of(&self.together)
            .label("path", path)
            .label("op", op)
            .label("bytes", bytes)
            .label("depth", depth)
            .label("reads", reads)
            .figure("alone_bytes_per_s", self.alone.bytes_per_s())
            .figure("together_bytes_per_s", self.together.bytes_per_s())
            .figure("lost", kept.map(|kept| 1.0 - kept))
            .rounds("together_bytes_per_s", self.together.rates())
            .figure("errors", self.alone.errors() + self.together.errors())
    }
}

/// Measures everything; nothing is left behind.
pub fn measure(effort: Effort, progress: &Progress) -> Result<Report, ClusterError> {
    let start = Instant::now();
    let (rounds, time_ms): (usize, _) = effort.pick((7, 100), (9, 250), (15, 600));
    let time = Duration::from_millis(time_ms);
    progress.say("starting two nodes");
    let mut pair = Pair::prepare()?;
    progress.expect(rounds * READS.len());
    let mut measured: [(Both, Both); READS.len()] = Default::default();
    for _ in 0..rounds {
        for (reads, (ethernet, rdma)) in READS.into_iter().zip(&mut measured) {
            progress.step(format!("a stream beside reads of {} B", reads.0));
            let stream = pair.stream(time);
            let read = pair.read(reads, time);
            let streamed = pair.cluster.ask(&mut pair.streamer, &stream)?;
            let was_read = pair.cluster.ask(&mut pair.reader, &read)?;
            let both = [(&mut pair.streamer, &stream), (&mut pair.reader, &read)];
            let [streamed_beside, was_read_beside] = pair.cluster.ask_both(both)?;
            ethernet.add(streamed, streamed_beside);
            rdma.add(was_read, was_read_beside);
        }
    }
    progress.say("cleaning up");
    let (mtu, no_taps) = (pair.mtu, pair.no_taps.take());
    drop(pair);
    let mut rows = Vec::new();
    let config = Fields::default()
        .with("provider", "shm")
        .with("mtu", mtu)
        .with("no_taps", &no_taps);
    let mut report = Report::new(effort, start, config);
    for (reads, (ethernet, rdma)) in READS.into_iter().zip(&measured) {
        for (path, both) in [(Path::Ethernet, ethernet), (Path::Rdma, rdma)] {
            let row = both.row(path, reads);
            let alone = Fields::default().with("path", path).with("reads", reads);
            report.samples("alone", alone, both.alone.clone());
            report.errors += both.alone.errors();
            rows.push(row);
        }
    }
    report.rows("concurrent", &rows);
    report.text = render(&rows, no_taps.as_ref(), start);
    Ok(report)
}

/// Two nodes: a process of one serves and exports, two processes of the other measure.
struct Pair {
    // Processes end before the cluster.
    _passive: Process,
    streamer: Process,
    reader: Process,
    cluster: Cluster,
    server: SocketAddrV4,
    no_taps: Option<Refusal>,
    mtu: u32,
    salt: u64,
}

impl Pair {
    fn prepare() -> Result<Self, ClusterError> {
        let (mut cluster, domain, address) = start_pair(Setup::default())?;
        let mut passive = cluster.worker(SERVER)?;
        let mut streamer = cluster.worker(CLIENT)?;
        let mut reader = cluster.worker(CLIENT)?;
        let no_taps = cluster.no_taps()?;
        if no_taps.is_some() {
            for process in [&mut passive, &mut streamer] {
                cluster.ask::<()>(process, &Order::UseStack(DOMAIN.into()))?;
            }
        }
        let port = cluster.ask(&mut passive, &Order::Serve)?;
        cluster.connect_memory(DOMAIN, HOT, &mut passive, &mut reader)?;
        Ok(Pair {
            _passive: passive,
            streamer,
            reader,
            cluster,
            server: SocketAddrV4::new(address, port),
            no_taps,
            mtu: domain.mtu,
            salt: 0,
        })
    }

    fn stream(&self, time: Duration) -> Order {
        Job::Stream(self.server, Transport::Tcp, LONG_WRITE).order(0, Pace::of(time))
    }

    fn read(&mut self, (bytes, depth): (usize, u32), time: Duration) -> Order {
        self.salt += 1;
        Job::OneSided(Direction::Read, depth, bytes).order(self.salt, Pace::of(time))
    }
}

fn render(rows: &[Row], no_taps: Option<&Refusal>, start: Instant) -> String {
    let columns: [(&str, &str, Show); 4] = [
        ("", "depth", |row, name| {
            let bytes = row.text("bytes");
            match row.number(name) {
                None => format!("TCP stream, {} KiB writes", LONG_WRITE / 1024),
                Some(1.0) => format!("  beside RDMA reads of {bytes} B, one at a time"),
                Some(depth) => format!("  beside RDMA reads of {bytes} B, {depth} at once"),
            }
        }),
        ("alone", "alone_bytes_per_s", RATE),
        ("together", "together_bytes_per_s", RATE),
        ("lost", "lost", PERCENT),
    ];
    let table = report::table(rows, 1, &columns);
    let mut text = format!(
        "Both paths between two nodes of one domain, each alone and both at once ({}).\n\
         Shared memory stands in for RDMA. Medians of {} rounds.\n",
        machine::describe(),
        rows.first().map_or(0, |row| row.series().rounds().len()),
    );
    if let Some(no_taps) = no_taps {
        text += "No interfaces; the stream is between stacks in the processes (smoltcp).\n";
        // Writing to a string does not fail.
        let _ = writeln!(text, "No TAPs: {no_taps}.");
    }
    let _ = writeln!(
        text,
        "\n{table}\n{:.0} s in all.",
        start.elapsed().as_secs_f64()
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loss_is_the_median_of_the_rounds_losses() {
        let samples = |bytes| Samples {
            bytes,
            elapsed_ns: 1_000_000_000,
            ..Samples::default()
        };
        let mut both = Both::default();
        for (alone, together) in [(100, 50), (1000, 500), (10, 9)] {
            both.add(samples(alone), samples(together));
        }
        let row = both.row(Path::Rdma, READS[0]);
        assert_eq!(row.number("lost"), Some(0.5));
        assert_eq!(row.number("alone_bytes_per_s"), Some(100.0));
        assert_eq!(row.number("together_bytes_per_s"), Some(50.0));
        assert_eq!(
            (row.text("op").as_str(), row.number("depth")),
            ("read", Some(1.0))
        );
    }
}
