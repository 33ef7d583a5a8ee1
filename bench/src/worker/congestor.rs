//! Load on links until its end: the part of one member in a pattern of traffic.
//!
//! Each flow has a thread, which sleeps while its operations are under way: beside a measurement on
//! few processors, polling threads would take those of the measurement.

use std::net::SocketAddrV4;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use serde::{Deserialize, Serialize};
use toroid_client::member::Domain;
use toroid_fabric::{Completion, Endpoint, Operation};

use super::network::Transport;
use super::network::client::stream_while;
use super::network::flood::{Flood, flood_while};
use super::network::socket::Sockets;
use super::one_sided::{Direction, ExportedKeys, Peer};
use crate::samples::Samples;

/// Longest wait for the begin of all flows.
const PATIENCE: Duration = Duration::from_secs(20);

/// Longest sleep in a wait for completions.
const LOOK: Duration = Duration::from_millis(100);

/// Traffic of one member of a domain.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Congestion {
    pub domain: String,
    pub flows: Vec<Sending>,
}

/// Endless traffic to one member or group.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Sending {
    /// One-sided operations on a member's memory.
    Operations(Operations),
    /// A TCP stream of messages of this length in bytes to a member's session server.
    Stream(SocketAddrV4, usize),
    /// Datagrams at a rate, for at most the time of the flood.
    Datagrams(Flood),
}

/// One-sided operations of equal length.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Operations {
    pub keys: ExportedKeys,
    pub direction: Direction,
    /// Length in bytes.
    pub bytes: usize,
    /// Operations under way.
    pub depth: u32,
    /// Sleep after each [`Operations::depth`] of them. Without a model of links an operation is a
    /// copy by the thread itself, which would never sleep.
    pub pause: Duration,
}

/// Threads that congest links.
#[derive(Debug)]
pub struct Congestor {
    ended: Arc<AtomicBool>,
    threads: Vec<JoinHandle<Result<Samples>>>,
}

impl Congestor {
    /// Starts all flows. Returns when each has sent something.
    pub fn start(domain: &Domain, flows: Vec<Sending>) -> Result<Self> {
        let run = |flow: Sending| {
            let domain = domain.clone();
            move |goes_on: &mut dyn FnMut() -> bool| flow.run(&domain, goes_on)
        };
        Congestor::of(flows.into_iter().map(run), PATIENCE)
    }

    /// Starts a thread for each flow, which sends until the function that it is given says no. The
    /// first call of the function is the begin: something has been sent.
    fn of<F>(flows: impl Iterator<Item = F>, patience: Duration) -> Result<Self>
    where
        F: FnOnce(&mut dyn FnMut() -> bool) -> Result<Samples> + Send + 'static,
    {
        let ended = Arc::new(AtomicBool::new(false));
        let (tell, begun) = mpsc::channel();
        let mut congestor = Congestor {
            ended,
            threads: Vec::new(),
        };
        for flow in flows {
            let (ended, mut tell) = (Arc::clone(&congestor.ended), Some(tell.clone()));
            let run = move || {
                let sent = flow(&mut || {
                    if let Some(tell) = tell.take() {
                        // The other end waits for all flows, or has given up.
                        let _ = tell.send(Ok(()));
                    }
                    !ended.load(Ordering::Relaxed)
                });
                match (sent, tell) {
                    (Err(error), Some(tell)) => {
                        // As above: the error is that of the start.
                        let _ = tell.send(Err(error));
                        Ok(Samples::default())
                    }
                    (sent, _) => sent,
                }
            };
            congestor.threads.push(thread::Builder::new().spawn(run)?);
        }
        drop(tell);
        let deadline = Instant::now() + patience;
        for _ in 0..congestor.threads.len() {
            let left = deadline.saturating_duration_since(Instant::now());
            match begun.recv_timeout(left) {
                Ok(begin) => begin?,
                Err(RecvTimeoutError::Timeout) => return Err(congestor.late(patience)),
                // Each flow has begun or ends.
                Err(RecvTimeoutError::Disconnected) => {
                    congestor.end()?;
                    bail!("some flow of the congestor ended before it sent anything");
                }
            }
        }
        Ok(congestor)
    }

    /// The reason why not all flows have begun: the error of an ended flow, otherwise the time-out.
    /// A flow that has not begun may never end, so no other thread is joined.
    fn late(mut self, patience: Duration) -> anyhow::Error {
        let ended = self.threads.drain(..).filter(JoinHandle::is_finished);
        let error = ended.filter_map(|thread| joined(thread).err()).next();
        error.unwrap_or_else(|| {
            anyhow!("some flow of the congestor did not begin within {patience:?}")
        })
    }

    /// Ends all flows. Returns their traffic: bytes that have arrived, and the time of the longest
    /// flow.
    ///
    /// # Errors
    /// That of a flow; otherwise if a flow has moved nothing: nothing was congested then.
    pub fn end(mut self) -> Result<Samples> {
        self.ended.store(true, Ordering::Relaxed);
        let flows: Vec<Result<Samples>> = self.threads.drain(..).map(joined).collect();
        // A flow may have moved nothing because another one has failed.
        let flows = flows.into_iter().collect::<Result<Vec<_>>>()?;
        let mut all = Samples::default();
        for flow in flows {
            ensure!(
                flow.bytes > 0,
                "a flow of the congestor moved no bytes; measure on a machine with less other work"
            );
            let elapsed_ns = all.elapsed_ns.max(flow.elapsed_ns);
            all.extend(&flow);
            all.elapsed_ns = elapsed_ns;
        }
        Ok(all)
    }
}

fn joined(thread: JoinHandle<Result<Samples>>) -> Result<Samples> {
    let sent = thread.join();
    sent.unwrap_or_else(|_| Err(anyhow!("the thread panicked")))
}

/// Ends the threads, which nothing waits for.
impl Drop for Congestor {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
    }
}

impl Sending {
    fn run(self, domain: &Domain, goes_on: &mut dyn FnMut() -> bool) -> Result<Samples> {
        match self {
            Sending::Operations(operations) => {
                let peer = Peer::open(domain, &operations.keys)?;
                let node = peer.readable.key().node;
                let place = domain.member().torus().place(node);
                let member = place.map_or_else(|| node.to_string(), |place| place.to_string());
                operate(&peer, &member, &operations, goes_on)
            }
            Sending::Stream(server, bytes) => {
                let samples =
                    stream_while(&Sockets::Kernel, server, Transport::Tcp, bytes, goes_on);
                samples.with_context(|| format!("cannot send a stream to {server}"))
            }
            Sending::Datagrams(flood) => {
                let flow = flood_while(&Sockets::Kernel, &flood, goes_on)?;
                Ok(Samples {
                    batch: 1,
                    ops: flow.received,
                    bytes: flow.received * flood.bytes as u64,
                    elapsed_ns: flow.elapsed_ns,
                    ..Samples::errors(flow.errors)
                })
            }
        }
    }
}

/// Keeps operations under way as long as `goes_on`, which is asked after the first completions, then
/// completes them.
///
/// # Errors
/// That of the first failed operation on the memory of `member`.
fn operate(
    peer: &Peer,
    member: &str,
    operations: &Operations,
    goes_on: &mut dyn FnMut() -> bool,
) -> Result<Samples> {
    let Operations { bytes, depth, .. } = *operations;
    let mut pair = peer.queue_pair(depth)?;
    let mut completions = vec![Completion::default(); depth as usize];
    let places = peer.local.len() / bytes as u64;
    let (mut posted, mut done, mut failed) = (0_u64, 0, None);
    let start = Instant::now();
    let mut continues = true;
    loop {
        continues = continues && failed.is_none() && (done == 0 || goes_on());
        while continues && posted - done < u64::from(depth) {
            let offset = posted % places * bytes as u64;
            let range = offset..offset + bytes as u64;
            let operation = match operations.direction {
                Direction::Read => Operation::read(&peer.readable, offset, &peer.local, range),
                _ => Operation::write(&peer.writable, offset, &peer.local, range),
            };
            pair.post(posted, operation)?;
            posted += 1;
        }
        pair.flush();
        if posted == done {
            break;
        }
        if !operations.pause.is_zero() {
            thread::sleep(operations.pause);
        }
        pair.wait(LOOK);
        let count = pair.poll(&mut completions);
        let mut results = completions[..count].iter();
        failed = failed.or_else(|| results.find_map(|one| one.result.err()));
        done += count as u64;
    }
    if let Some(error) = failed {
        return Err(error).with_context(|| format!("operation on member {member} failed"));
    }
    Ok(Samples {
        batch: 1,
        ops: done,
        bytes: done * bytes as u64,
        elapsed_ns: start.elapsed().as_nanos() as u64,
        ..Samples::default()
    })
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use toroid_fabric::{Access, OpError};

    use super::super::network::server;
    use super::super::one_sided::HOT;
    use super::super::one_sided::tests::{connected, export};
    use super::*;
    use crate::causes::with_causes;

    type GoesOn<'a> = &'a mut dyn FnMut() -> bool;
    type Run = Box<dyn FnOnce(GoesOn<'_>) -> Result<Samples> + Send>;

    fn samples(bytes: u64, elapsed_ns: u64) -> Samples {
        Samples {
            ops: 1,
            bytes,
            elapsed_ns,
            ..Samples::default()
        }
    }

    #[test]
    fn flows_send_until_their_end_and_their_bytes_add_up() {
        let flow = |bytes| {
            move |goes_on: GoesOn<'_>| {
                while goes_on() {
                    thread::yield_now();
                }
                Ok(samples(bytes, bytes))
            }
        };
        let congestor = Congestor::of([3, 5].map(flow).into_iter(), PATIENCE).unwrap();
        let all = congestor.end().unwrap();
        assert_eq!((all.ops, all.bytes, all.elapsed_ns), (2, 8, 5));
    }

    #[test]
    fn a_flow_without_traffic_is_an_error() {
        let idle = |goes_on: GoesOn<'_>| {
            while goes_on() {
                thread::yield_now();
            }
            Ok(samples(0, 7))
        };
        let congestor = Congestor::of([idle].into_iter(), PATIENCE).unwrap();
        let error = congestor.end().unwrap_err().to_string();
        assert!(error.contains("moved no bytes"), "{error}");
    }

    #[test]
    fn the_error_of_a_flow_comes_before_that_of_an_idle_one() {
        let until_end = |goes_on: GoesOn<'_>| {
            while goes_on() {
                thread::yield_now();
            }
        };
        let idle: Run = Box::new(move |goes_on| {
            until_end(goes_on);
            Ok(samples(0, 7))
        });
        let fails: Run = Box::new(move |goes_on| {
            until_end(goes_on);
            Err(anyhow!("the server has ended"))
        });
        let congestor = Congestor::of([idle, fails].into_iter(), PATIENCE).unwrap();
        let error = congestor.end().unwrap_err().to_string();
        assert_eq!(error, "the server has ended");
    }

    #[test]
    fn the_error_of_a_flow_is_that_of_the_start() {
        let works: Run = Box::new(|goes_on| {
            while goes_on() {
                thread::yield_now();
            }
            Ok(samples(1, 1))
        });
        let fails: Run = Box::new(|_| Err(anyhow!("no such server")));
        let error = Congestor::of([works, fails].into_iter(), PATIENCE).unwrap_err();
        assert_eq!(error.to_string(), "no such server");
    }

    fn operations(direction: Direction) -> Operations {
        Operations {
            keys: ExportedKeys {
                readable: String::new(),
                writable: String::new(),
                word: String::new(),
            },
            direction,
            bytes: HOT / 4,
            depth: 4,
            pause: Duration::ZERO,
        }
    }

    #[test]
    fn a_failed_operation_ends_the_flow_with_its_reason() {
        let (exports, mut peer) = connected();
        let (region, read_only) = export(0, 4, HOT, Access::REMOTE_READ);
        peer.writable = read_only;
        let write = operations(Direction::Write);
        let error = operate(&peer, "1,0,0", &write, &mut || true).unwrap_err();
        let reason = OpError::MissingRight {
            needed: Access::REMOTE_WRITE,
        };
        assert_eq!(
            with_causes(&error),
            format!("operation on member 1,0,0 failed: {reason}")
        );
        drop((exports, region));
    }

    #[test]
    fn operations_go_on_until_the_end_and_all_complete() {
        let (exports, peer) = connected();
        for direction in [Direction::Read, Direction::Write] {
            let mut left = 10;
            let samples = operate(&peer, "1,0,0", &operations(direction), &mut || {
                left -= 1;
                left > 0
            })
            .unwrap();
            assert_eq!((samples.ops, samples.errors), (40, 0), "{direction:?}");
            assert_eq!(samples.bytes, 40 * HOT as u64 / 4);
        }
        drop(exports);
    }

    #[test]
    fn a_flow_that_never_begins_is_not_waited_for() {
        let (end, ended) = mpsc::channel::<()>();
        let hangs: Run = Box::new(move |_| {
            // The sender outlives the assertion.
            let _ = ended.recv();
            Ok(Samples::default())
        });
        let patience = Duration::from_millis(20);
        let error = Congestor::of([hangs].into_iter(), patience).unwrap_err();
        assert_eq!(
            error.to_string(),
            "some flow of the congestor did not begin within 20ms"
        );
        drop(end);
    }

    #[test]
    fn flows_begin_with_what_they_have_sent() {
        let (exports, peer) = connected();
        let read = operations(Direction::Read);
        let samples = operate(&peer, "1,0,0", &read, &mut || false).unwrap();
        assert_eq!(samples.ops, 4);
        drop(exports);
        let here = Ipv4Addr::LOCALHOST;
        let server = SocketAddrV4::new(here, server::start(here).unwrap());
        let flood = Flood {
            bytes: 64,
            per_s: 1e5,
            ..Flood::to(server, PATIENCE)
        };
        let flow = flood_while(&Sockets::Kernel, &flood, &mut || false).unwrap();
        assert!(flow.sent > 0, "{flow:?}");
    }

    #[test]
    fn streams_and_datagrams_count_what_arrives() {
        let here = Ipv4Addr::LOCALHOST;
        let server = SocketAddrV4::new(here, server::start(here).unwrap());
        let mut left = 5;
        let sent = stream_while(&Sockets::Kernel, server, Transport::Tcp, 8000, &mut || {
            left -= 1;
            left >= 0
        });
        // The receiver does not count the bytes that came with the verified messages.
        let arrived = sent.unwrap().bytes;
        assert!((1..=5 * 8000).contains(&arrived), "{arrived}");
        let flood = Flood {
            bytes: 64,
            per_s: 1e5,
            ..Flood::to(server, PATIENCE)
        };
        let mut left = 1000;
        let flow = flood_while(&Sockets::Kernel, &flood, &mut || {
            left -= 1;
            left > 0
        });
        let flow = flow.unwrap();
        assert!(flow.sent > 0 && flow.received == flow.sent, "{flow:?}");
    }
}
