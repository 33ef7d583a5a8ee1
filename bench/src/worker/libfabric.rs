//! Debian's `fi_pingpong`, twice, as a user runs it: messages between endpoints of the type "reliable
//! datagram" by the provider `shm`.
//!
//! It sends so many messages there and as many back, and prints their mean time. Both sides
//! poll without a pause. By default it looks at no byte; asked to, at all of them.

use std::fs;
use std::io;
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};

use crate::samples::Samples;

const PROGRAM: &str = "fi_pingpong";

/// In the same package.
const INFO: &str = "fi_info";

/// The port of its server, in a network of the node's own, and its state in `/proc/net/tcp`.
const PORT: u16 = 47592;
const LISTENS: &str = "0A";

/// The longest start of its server.
const PATIENCE: Duration = Duration::from_secs(20);

/// Between two looks.
const PAUSE: Duration = Duration::from_millis(1);

pub fn version() -> Result<String> {
    let info = run(Command::new(INFO).arg("--version"), INFO)?;
    let text = String::from_utf8_lossy(&info.stdout).into_owned();
    let mut lines = text.lines();
    let version = lines.find_map(|line| line.strip_prefix("libfabric: "));
    version.map(Into::into).with_context(|| unreadable(&text))
}

/// Sends `count` messages of `bytes` bytes there and back: one sample, without errors.
pub fn pingpong(bytes: usize, count: u32) -> Result<Samples> {
    let printed = exchange(bytes, count, false)?;
    let mean_ns = mean_ns(&printed, bytes).with_context(|| unreadable(&printed))?;
    let ops = 2 * u64::from(count);
    Ok(Samples {
        batch: ops as u32,
        samples_ns: vec![mean_ns],
        ops,
        bytes: ops * bytes as u64,
        elapsed_ns: (mean_ns * ops as f64) as u64,
        ..Samples::default()
    })
}

/// Lets it look at every byte of some messages. Returns the number of wrong ones: it ends with the first.
pub fn wrong_messages(bytes: usize, count: u32) -> Result<u64> {
    match exchange(bytes, count, true) {
        Err(error) if error.to_string().contains("Error at iteration") => Ok(1),
        exchanged => exchanged.map(|_| 0),
    }
}

fn missing(program: &str, error: io::Error) -> anyhow::Error {
    anyhow!("cannot run {program}: {error}; it is in the package libfabric-bin")
}

fn unreadable(printed: &str) -> String {
    format!("{PROGRAM} printed an unknown format: {printed}")
}

/// Runs both sides; returns the output of the one that began.
fn exchange(bytes: usize, count: u32, is_checked: bool) -> Result<String> {
    let (bytes, count) = (bytes.to_string(), count.to_string());
    let common = ["-p", "shm", "-e", "rdm", "-S", &bytes, "-I", &count];
    let side = || {
        let mut command = Command::new(PROGRAM);
        command.args(common).args(is_checked.then_some("-c"));
        command
    };
    let server = Server::start(&mut side())?;
    let printed = successful(run(side().arg("127.0.0.1"), PROGRAM)?)?;
    // It would wait for ever for a client that has failed.
    successful(server.end()?)?;
    Ok(printed)
}

fn successful(output: Output) -> Result<String> {
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() {
        Ok(printed)
    } else {
        bail!(
            "{PROGRAM} failed: {printed}{}",
            String::from_utf8_lossy(&output.stderr)
        )
    }
}

fn run(command: &mut Command, program: &'static str) -> Result<Output> {
    let output = command.stdin(Stdio::null()).output();
    output.map_err(|error| missing(program, error))
}

/// The side that waits for the other. Dropping it ends it.
struct Server(Option<Child>);

impl Server {
    /// Returns when it listens.
    fn start(command: &mut Command) -> Result<Self> {
        let command = command.stdin(Stdio::null()).stdout(Stdio::piped());
        let child = command.stderr(Stdio::piped()).spawn();
        let child = child.map_err(|error| missing(PROGRAM, error))?;
        let mut server = Server(Some(child));
        let start = Instant::now();
        while !listens(&fs::read_to_string("/proc/net/tcp")?) {
            if server.has_ended()? || start.elapsed() > PATIENCE {
                bail!("{PROGRAM} failed: its server does not listen");
            }
            thread::sleep(PAUSE);
        }
        Ok(server)
    }

    fn has_ended(&mut self) -> io::Result<bool> {
        let ended = self.0.as_mut().map(Child::try_wait).transpose()?;
        Ok(ended.flatten().is_some())
    }

    fn end(mut self) -> Result<Output> {
        let child = self.0.take();
        let output = child.map(Child::wait_with_output).transpose()?;
        output.with_context(|| format!("{PROGRAM} failed: its server is not there"))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            // It may have ended by itself.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Whether a process listens at its port; see `proc(5)`, net/tcp.
fn listens(sockets: &str) -> bool {
    let port = format!(":{PORT:04X}");
    sockets.lines().any(|line| {
        let mut fields = line.split_whitespace().skip(1);
        let local = fields.next().is_some_and(|local| local.ends_with(&port));
        local && fields.nth(1) == Some(LISTENS)
    })
}

/// The time of a message, from the line below the heads
/// `bytes #sent #ack total time MB/sec usec/xfer Mxfers/sec`: of its throughput, which has more digits
/// than the time. As many messages must have come back as were sent, which it says by `=`.
fn mean_ns(printed: &str, bytes: usize) -> Option<f64> {
    let line = printed.lines().last()?;
    let fields: Vec<&str> = line.split_whitespace().collect();
    let [_, _, acknowledged, _, _, throughput, _, _] = fields[..] else {
        return None;
    };
    let bytes_per_us: f64 = throughput.parse().ok()?;
    let answered = acknowledged.starts_with('=') && bytes_per_us > 0.0;
    answered.then(|| bytes as f64 / bytes_per_us * 1000.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADS: &str =
        "bytes   #sent   #ack     total       time     MB/sec    usec/xfer   Mxfers/sec\n";

    #[test]
    fn the_mean_is_read_from_what_it_prints() {
        let line = "64      200k    =200k    24m         0.13s    200.00       0.32       3.12\n";
        assert_eq!(mean_ns(&format!("{HEADS}{line}"), 64), Some(320.0));
    }

    #[test]
    fn what_is_not_a_whole_result_is_none() {
        let lost = "64      200k    +3       24m         0.13s    200.00       0.32       3.12\n";
        let endless =
            "64      1       =1       128         0.13s      0.00  130000.00       0.00\n";
        for printed in ["", HEADS, &format!("{HEADS}{lost}"), endless, "a b c\n"] {
            assert_eq!(mean_ns(printed, 64), None, "{printed}");
        }
    }

    #[test]
    fn only_who_listens_at_the_port_is_its_server() {
        let heads = "  sl  local_address rem_address   st tx_queue rx_queue tr\n";
        let line = |port: &str, state: &str| {
            format!("{heads}   0: 00000000:{port} 00000000:0000 {state} 00000000:00000000 00\n")
        };
        assert!(listens(&line("B9E8", "0A")));
        assert!(!listens(&line("B9E8", "01")));
        assert!(!listens(&line("B9E9", "0A")));
        assert!(!listens(heads));
    }
}
