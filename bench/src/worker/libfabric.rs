//! Two processes of Debian's `fi_pingpong`: messages between two endpoints of a provider.
//!
//! The program sends messages to the peer and as many back, and prints their mean time. Both sides
//! poll without pause. By default the program verifies no byte, with `-c` all bytes.

use std::fs;
use std::io;
use std::net::Ipv4Addr;
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};

use crate::samples::Samples;

pub const PROGRAM: &str = "fi_pingpong";

/// Program of the same package that prints the version.
const INFO: &str = "fi_info";

/// Port of the program's server in a network of its own, and the state "listening" in
/// `/proc/net/tcp`.
const PORT: u16 = 47592;
const LISTENS: &str = "0A";

/// Longest start of the server.
const PATIENCE: Duration = Duration::from_secs(20);

/// Pause between two checks of the server's start.
const PAUSE: Duration = Duration::from_millis(1);

pub fn version() -> Result<String> {
    let info = run(Command::new(INFO).arg("--version"), INFO)?;
    let text = String::from_utf8_lossy(&info.stdout).into_owned();
    let mut lines = text.lines();
    let version = lines.find_map(|line| line.strip_prefix("libfabric: "));
    version.map(Into::into).with_context(|| unreadable(&text))
}

/// Sends `count` messages of `bytes` bytes in each direction: one sample, without errors.
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

/// Lets the program verify `count` messages. Returns the number of wrong messages, at most 1,
/// because the program ends at the first.
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

/// Runs both sides. Returns the output of the client.
fn exchange(bytes: usize, count: u32, is_checked: bool) -> Result<String> {
    let exchange = Exchange {
        provider: "shm",
        endpoint: "rdm",
        bytes,
        count,
        is_checked,
    };
    let side = || Command::new(PROGRAM);
    let server = exchange.serve(side())?;
    let printed = exchange.with(side(), Ipv4Addr::LOCALHOST)?;
    // Only after success: the server of a failed client waits forever.
    server.end()?;
    Ok(printed)
}

/// Messages between two processes. Commands are the program without arguments, each in its network.
#[derive(Clone, Copy, Debug)]
pub struct Exchange {
    /// Names of libfabric.
    pub provider: &'static str,
    pub endpoint: &'static str,
    pub bytes: usize,
    /// Messages in each direction.
    pub count: u32,
    pub is_checked: bool,
}

impl Exchange {
    fn side(&self, mut command: Command) -> Command {
        let (bytes, count) = (self.bytes.to_string(), self.count.to_string());
        command.args(["-p", self.provider, "-e", self.endpoint]);
        command.args(["-S", &bytes, "-I", &count]);
        command.args(self.is_checked.then_some("-c"));
        command
    }

    /// Starts the server.
    pub fn serve(&self, command: Command) -> Result<Server> {
        Server::start(&mut self.side(command))
    }

    /// Runs the client to its end; returns its output.
    fn with(&self, command: Command, server: Ipv4Addr) -> Result<String> {
        successful(run(self.side(command).arg(server.to_string()), PROGRAM)?)
    }

    /// Runs the client to its end; returns the mean time of a message in nanoseconds.
    pub fn mean_ns(&self, command: Command, server: Ipv4Addr) -> Result<f64> {
        let printed = self.with(command, server)?;
        mean_ns(&printed, self.bytes).with_context(|| unreadable(&printed))
    }
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

/// The server's process, which ends when this is dropped.
pub struct Server(Option<Child>);

impl Server {
    /// Starts the server, and returns when it listens.
    fn start(command: &mut Command) -> Result<Self> {
        let command = command.stdin(Stdio::null()).stdout(Stdio::piped());
        let child = command.stderr(Stdio::piped()).spawn();
        let child = child.map_err(|error| missing(PROGRAM, error))?;
        // Those of the network that the process is in by then.
        let sockets = format!("/proc/{}/net/tcp", child.id());
        let mut server = Server(Some(child));
        let start = Instant::now();
        while !fs::read_to_string(&sockets).is_ok_and(|sockets| listens(&sockets)) {
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

    /// Waits until it has ended, with success.
    pub fn end(mut self) -> Result<()> {
        let child = self.0.take();
        let output = child.map(Child::wait_with_output).transpose()?;
        let output =
            output.with_context(|| format!("{PROGRAM} failed: its server is not there"))?;
        successful(output).map(drop)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            // The process may have ended.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Whether a process listens at [`PORT`] (`net/tcp` of proc(5)).
fn listens(sockets: &str) -> bool {
    let port = format!(":{PORT:04X}");
    sockets.lines().any(|line| {
        let mut fields = line.split_whitespace().skip(1);
        let local = fields.next().is_some_and(|local| local.ends_with(&port));
        local && fields.nth(1) == Some(LISTENS)
    })
}

/// Mean time of a message in nanoseconds, from the line below the heads
/// `bytes #sent #ack total time MB/sec usec/xfer Mxfers/sec`: of the throughput or the time, whichever
/// has more digits. A `=` tells that as many messages came back as were sent.
fn mean_ns(printed: &str, bytes: usize) -> Option<f64> {
    let line = printed.lines().last()?;
    let fields: Vec<&str> = line.split_whitespace().collect();
    let [_, _, acknowledged, _, _, throughput, time, _] = fields[..] else {
        return None;
    };
    let bytes_per_us: f64 = throughput.parse().ok()?;
    let us: f64 = time.parse().ok()?;
    let mean_us = if bytes_per_us > us {
        bytes as f64 / bytes_per_us
    } else {
        us
    };
    (acknowledged.starts_with('=') && mean_us > 0.0).then_some(mean_us * 1000.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADS: &str =
        "bytes   #sent   #ack     total       time     MB/sec    usec/xfer   Mxfers/sec\n";

    #[test]
    fn the_mean_is_parsed_from_the_output() {
        let line = "64      200k    =200k    24m         0.13s    200.00       0.32       3.12\n";
        assert_eq!(mean_ns(&format!("{HEADS}{line}"), 64), Some(320.0));
        // On a machine that is very busy.
        let slow = "64      10      =10      1.2k        0.33s      0.00   16704.75       0.00\n";
        assert_eq!(mean_ns(&format!("{HEADS}{slow}"), 64), Some(16_704_750.0));
    }

    #[test]
    fn an_incomplete_result_is_none() {
        let lost = "64      200k    +3       24m         0.13s    200.00       0.32       3.12\n";
        let timeless =
            "64      1       =1       128         0.00s      0.00       0.00       0.00\n";
        for printed in ["", HEADS, &format!("{HEADS}{lost}"), timeless, "a b c\n"] {
            assert_eq!(mean_ns(printed, 64), None, "{printed}");
        }
    }

    #[test]
    fn only_a_listener_at_the_port_is_the_server() {
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
