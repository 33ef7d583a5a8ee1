//! `toroid ping`: round trips between two nodes on both paths.
//!
//! This program executes itself as two helpers in the nodes. One exports memory and waits; the
//! other sends ICMP echo requests (RFC 792) to its address and reads its memory.

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, PipeWriter, Read as _, Write};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use clap::Args;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketType, ipproto, recv, sendto, socket};
use serde::{Deserialize, Serialize};
use serde_json::json;
use toroid_client::admin::{Control, ExecHandle, Order};
use toroid_client::member::Member;
use toroid_fabric::{Access, Endpoint, Place, Read, RemoteKey};
use toroid_model::explain::no_interfaces;
use toroid_model::info::{DomainInfo, MemberInfo, Status};

use super::exec::output;
use super::exec::relay::{Output, Relay};
use super::{Run, Session};
use crate::failure::Failure;
use crate::nodes;
use crate::output::{Show, line};

const ANSWER: &str = "__ping-answer";
const ASK: &str = "__ping-ask";

/// Time after which an echo counts as lost.
const ECHO_TIMEOUT: Duration = Duration::from_secs(1);

/// Reads in a sample: a single one takes little longer than reading the clock.
const BATCH: u32 = 64;

/// Task of the asking helper.
#[derive(Debug, Serialize, Deserialize)]
struct Task {
    domain: String,
    place: String,
    key: String,
    /// Absent unless both have interfaces of the kernel.
    ipv4: Option<Ipv4Addr>,
    count: u32,
    size: u32,
}

/// Round trips on one path.
#[derive(Debug, Serialize, Deserialize)]
struct Path {
    path: String,
    sent: u32,
    lost: u32,
    batch: u32,
    min_ns: Option<u64>,
    p50_ns: Option<u64>,
    max_ns: Option<u64>,
}

impl Path {
    fn new(path: &str, sent: u32, batch: u32, mut samples: Vec<Duration>) -> Self {
        samples.sort_unstable();
        let ns = |sample: Option<&Duration>| {
            sample.map(|time| (time.as_nanos() / u128::from(batch)) as u64)
        };
        Path {
            path: path.into(),
            sent,
            lost: sent - samples.len() as u32,
            batch,
            min_ns: ns(samples.first()),
            p50_ns: ns(samples.get(samples.len() / 2)),
            max_ns: ns(samples.last()),
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct Ping {
    /// The initiating node
    from: String,
    /// The target node
    to: String,
    /// The domain; may be left out if the first node is in only one
    #[arg(short, long)]
    domain: Option<String>,
    /// Round trips on each path
    #[arg(short, long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    count: u32,
    /// Bytes of each read and echo
    #[arg(short, long, default_value_t = 56, value_parser = clap::value_parser!(u32).range(8..=65_000))]
    size: u32,
}

impl Run for Ping {
    fn run(self, session: &Session) -> Result<u8, Failure> {
        ping(&mut session.connect()?, &self, session.show)
    }
}

fn ping(agent: &mut Control, options: &Ping, show: Show) -> Result<u8, Failure> {
    let (info, from) = nodes::member(agent, &options.from, options.domain.as_deref())?;
    let (_, to) = nodes::member(agent, &options.to, Some(&info.name))?;
    let mut answering = Helper::start(agent, to.node, &[ANSWER, &info.name])?;
    let key = answering.line()?;
    let status = agent.status()?;
    let mut unmeasured = BTreeMap::new();
    if let Some(why) = no_ethernet(&status, &from, &to) {
        unmeasured.insert("ethernet", why);
    }
    let task = Task {
        domain: info.name.clone(),
        place: to.node.to_string(),
        key,
        ipv4: (!unmeasured.contains_key("ethernet")).then_some(to.ipv4),
        count: options.count,
        size: options.size,
    };
    let task = serde_json::to_string(&task).map_err(io::Error::from)?;
    let mut asking = Helper::start(agent, from.node, &[ASK, &task])?;
    let line = asking.line()?;
    let paths: Vec<Path> = serde_json::from_str(&line).map_err(io::Error::from)?;
    let outcome = Outcome {
        info,
        from: from.node,
        to: to.node,
        provider: match status.between_hosts {
            Some(between) if from.host != to.host => between.to_string(),
            _ => status.provider,
        },
        size: options.size,
        paths: &paths,
        unmeasured,
    };
    outcome.print(show);
    let silent = paths.iter().any(|path| path.lost == path.sent);
    Ok(u8::from(silent))
}

/// Why the kernels of two nodes have no Ethernet to measure.
fn no_ethernet(status: &Status, from: &MemberInfo, to: &MemberInfo) -> Option<String> {
    if status.ethernet == "none" {
        return Some("the agent runs without Ethernet".into());
    }
    let mut stacks = vec![from, to];
    stacks.retain(|member| member.ifname.is_none());
    let mut stacks: Vec<Place> = stacks.iter().map(|member| member.node).collect();
    stacks.dedup();
    no_interfaces(&stacks)
}

/// Printed results.
struct Outcome<'a> {
    info: DomainInfo,
    from: Place,
    to: Place,
    provider: String,
    size: u32,
    paths: &'a [Path],
    /// Paths that were not measured, and why.
    unmeasured: BTreeMap<&'static str, String>,
}

impl Outcome<'_> {
    fn print(&self, show: Show) {
        if show.json {
            return show.value(&json!({
                "from": self.from.to_string(),
                "to": self.to.to_string(),
                "domain": self.info.name,
                "bytes": self.size,
                "provider": self.provider,
                "paths": self.paths,
                "unmeasured": self.unmeasured,
            }));
        }
        line!(
            "{} to {} in {}, {} bytes",
            self.from,
            self.to,
            self.info.name,
            self.size
        );
        line!(
            "{:10}{:>8}{:>8}{:>12}{:>12}{:>12}",
            "path",
            "sent",
            "lost",
            "min us",
            "median us",
            "max us"
        );
        for path in self.paths {
            let us = |ns: Option<u64>| match ns {
                Some(ns) => format!("{:.2}", ns as f64 / 1000.0),
                None => "-".into(),
            };
            let [min, median, max] = [path.min_ns, path.p50_ns, path.max_ns].map(us);
            line!(
                "{:10}{:>8}{:>8}{min:>12}{median:>12}{max:>12}",
                path.path,
                path.sent,
                path.lost
            );
        }
        for (path, why) in &self.unmeasured {
            line!("{path}: not measured, because {why}");
        }
        if !self.unmeasured.contains_key("rdma") && self.provider == "shm" {
            line!("rdma: one-sided reads, for which shared memory stands in here");
        }
    }
}

/// This program, running in a node.
struct Helper {
    process: ExecHandle,
    /// Relays the helper's standard error.
    complaints: Option<Relay>,
    /// Closing it ends the helper.
    _stdin: PipeWriter,
    stdout: BufReader<io::PipeReader>,
}

impl Helper {
    fn start(agent: &Control, place: Place, arguments: &[&str]) -> Result<Self, Failure> {
        let program = std::env::current_exe()?.into_os_string();
        let program = program
            .into_string()
            .map_err(|program| Failure::new(format!("{}: not UTF-8", program.display())))?;
        let mut argv = vec![program];
        argv.extend(arguments.iter().map(|argument| (*argument).to_owned()));
        let (stdin, to_stdin) = io::pipe()?;
        let (from_stdout, stdout) = io::pipe()?;
        let mut complaints = Vec::new();
        let stderr = output(Output::Error, None, &mut complaints)?;
        let process = agent.exec(&Order {
            node: &place.to_string(),
            argv: &argv,
            env: &[],
            search: "",
            cwd: "/",
            stdio: [stdin.as_fd(), stdout.as_fd(), stderr.as_fd()],
            terminal: None,
            binds: &[],
        })?;
        Ok(Helper {
            process,
            complaints: Some(Relay::start(complaints)?),
            _stdin: to_stdin,
            stdout: BufReader::new(from_stdout),
        })
    }

    /// Next line of the helper. Without a line, the reason is on its standard error.
    fn line(&mut self) -> Result<String, Failure> {
        let mut line = String::new();
        self.stdout.read_line(&mut line)?;
        if line.is_empty() {
            let status = self.process.wait()?;
            if let Some(complaints) = self.complaints.take() {
                complaints.finish();
            }
            return Err(Failure::new(format!(
                "the helper ended with status {status}"
            )));
        }
        Ok(line.trim_end().to_owned())
    }
}

/// Runs as a helper if the first argument is that of the role; returns the exit status.
pub(crate) fn run_if_asked() -> Option<u8> {
    let mut arguments = std::env::args_os().skip(1);
    let role = arguments.next()?;
    let argument = arguments.next().unwrap_or_default();
    let argument = argument.to_string_lossy();
    let result = match role.to_str()? {
        ANSWER => answer(&argument),
        ASK => ask(&argument),
        _ => return None,
    };
    if let Err(failure) = &result {
        eprintln!("toroid: {failure}");
    }
    Some(result.map_or_else(|failure| failure.status(), |()| 0))
}

fn say(line: &str) -> Result<(), Failure> {
    Ok(writeln!(io::stdout(), "{line}")?)
}

fn answer(domain: &str) -> Result<(), Failure> {
    let region = Member::attach()?
        .domain(domain)?
        .alloc(64 * 1024, Access::REMOTE_READ)?;
    let key = region.remote_key().map(|key| key.to_string());
    say(&key.unwrap_or_default())?;
    io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

fn ask(task: &str) -> Result<(), Failure> {
    let task: Task = serde_json::from_str(task).map_err(io::Error::from)?;
    let mut paths = Vec::new();
    if let Some(address) = task.ipv4 {
        let samples = echo(address, task.count, task.size)?;
        paths.push(Path::new("ethernet", task.count, 1, samples));
    }
    let samples = read(&task, &task.key)?;
    paths.push(Path::new("rdma", task.count, BATCH, samples));
    say(&serde_json::to_string(&paths).map_err(io::Error::from)?)
}

fn read(task: &Task, key: &str) -> Result<Vec<Duration>, Failure> {
    let malformed = |what: &str| Failure::new(format!("not a {what}"));
    let key: RemoteKey = key.parse().map_err(|_| malformed("key"))?;
    let place: Place = task.place.parse().map_err(|_| malformed("place"))?;
    let domain = Member::attach()?.domain(&task.domain)?;
    let remote = domain.open(key, Access::REMOTE_READ)?;
    let mut pair = domain.queue_pair(place, 1)?;
    let mut bytes = vec![0; task.size as usize];
    let mut samples = Vec::new();
    for _ in 0..task.count {
        let start = Instant::now();
        for _ in 0..BATCH {
            let into = &mut bytes[..];
            let read = Read {
                remote: &remote,
                offset: 0,
                into,
            };
            pair.read_batch(&mut [read])
                .map_err(|error| Failure::new(error.to_string()))?;
        }
        samples.push(start.elapsed());
    }
    Ok(samples)
}

/// The times of the echoes that came back.
fn echo(address: Ipv4Addr, count: u32, size: u32) -> Result<Vec<Duration>, Failure> {
    let socket = socket(AddressFamily::INET, SocketType::RAW, Some(ipproto::ICMP))
        .map_err(io::Error::from)?;
    let to = SocketAddrV4::new(address, 0);
    let mut samples = Vec::new();
    for n in 0..count {
        let request = echo_request(n, size as usize);
        let start = Instant::now();
        sendto(&socket, &request, SendFlags::empty(), &to).map_err(io::Error::from)?;
        if wait_for(&socket, &request, start)? {
            samples.push(start.elapsed());
        }
    }
    Ok(samples)
}

/// ```text
///  0      1      2          4            6          8
///  +------+------+----------+------------+----------+---------+
///  | type | code | checksum | identifier | sequence | payload |   RFC 792
///  +------+------+----------+------------+----------+---------+
/// ```
fn echo_request(n: u32, size: usize) -> Vec<u8> {
    let mut packet = vec![0; 8 + size];
    packet[0] = 8;
    packet[4..6].copy_from_slice(&(std::process::id() as u16).to_be_bytes());
    packet[6..8].copy_from_slice(&(n as u16).to_be_bytes());
    packet[8..12].copy_from_slice(&n.to_be_bytes());
    let checksum = checksum(&packet);
    packet[2..4].copy_from_slice(&checksum.to_be_bytes());
    packet
}

/// The Internet checksum (RFC 1071).
fn checksum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2).map(|pair| {
        u32::from(u16::from_be_bytes([
            pair[0],
            pair.get(1).copied().unwrap_or(0),
        ]))
    });
    let mut sum: u32 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// Waits for the reply to `request`; returns whether it came in time.
fn wait_for(socket: &OwnedFd, request: &[u8], start: Instant) -> Result<bool, Failure> {
    let mut packet = vec![0; 64 * 1024];
    loop {
        let left = ECHO_TIMEOUT.saturating_sub(start.elapsed());
        let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::ZERO);
        let mut fds = [PollFd::new(socket.as_fd(), PollFlags::POLLIN)];
        match poll(&mut fds, timeout) {
            Ok(0) => return Ok(false),
            Ok(_) => {}
            Err(error) => return Err(io::Error::from(error).into()),
        }
        let (len, _) =
            recv(socket, &mut packet[..], RecvFlags::DONTWAIT).map_err(io::Error::from)?;
        if is_reply(&packet[..len], request) {
            return Ok(true);
        }
    }
}

/// Whether an IPv4 packet is the echo reply to `request`: type 0, otherwise equal.
fn is_reply(packet: &[u8], request: &[u8]) -> bool {
    let header = packet
        .first()
        .map_or(0, |byte| usize::from(byte & 0x0f) * 4);
    packet
        .get(header..)
        .is_some_and(|icmp| icmp.first() == Some(&0) && icmp.get(4..) == request.get(4..))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checksummed_packet_sums_to_zero() {
        for size in [8, 9, 56, 1473] {
            assert_eq!(checksum(&echo_request(7, size)), 0);
        }
    }

    #[test]
    fn only_the_reply_to_the_request_counts() {
        let request = echo_request(7, 16);
        let packet = |icmp: &[u8]| [&[0x45; 1][..], &[0; 19], icmp].concat();
        let mut reply = request.clone();
        reply[0] = 0;
        assert!(is_reply(&packet(&reply), &request));
        assert!(
            !is_reply(&packet(&request), &request),
            "our own request, on loopback"
        );
        reply[7] ^= 1;
        assert!(!is_reply(&packet(&reply), &request));
        assert!(!is_reply(&[], &request));
        assert!(!is_reply(&[0x4f], &request));
    }
}
