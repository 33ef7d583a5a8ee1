//! Shrinks of a domain whose leaver is on a host that is cut off from the leader, with and without
//! a fence.
//!
//! ```text
//!             h0, the leader
//!     cut    /              \
//!   h1, the leaver's ────── h2          a member on each host listens and has memory
//! ```
//!
//! The leaver floods all three members with datagrams, packets and one-sided writes, each with the
//! time of its sending. On its own host it writes by a descriptor, and acknowledges nothing.

use std::net::SocketAddrV4;
use std::thread;
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;
use toroid_client::admin::ClientError;
use toroid_model::hosts::Encryption;
use toroid_protocol::agent::NewDomain;

use super::rack::{Rack, name, node, until};
use crate::cluster::{Cluster, ClusterError, Process, check_signals, member};
use crate::progress::Progress;
use crate::samples::Samples;
use crate::worker;
use crate::worker::hammer::now_ns;
use crate::worker::member::{Order, WATCHED};

/// Seconds of the fence, the least.
pub const FENCE: u32 = 2;

/// Number of hosts: the leader, the leaver's, and one that both reach.
const HOSTS: usize = 3;

const LEADER: usize = 0;

/// The leaver's host.
const CUT: usize = 1;

/// Time in which processes must acknowledge a change. The leaver does not.
const ACK_TIMEOUT: Duration = Duration::from_secs(1);

/// Longest wait until traffic of the leaver arrives.
const HEARD: Duration = Duration::from_secs(20);

/// Bytes and frames in flight arrive within this time, or never.
const SETTLED: Duration = Duration::from_millis(5);

/// Time in which a host that is cut off and not fenced goes on.
const UNFENCED: Duration = Duration::from_millis(200);

/// Arrivals at members after the return of a shrink.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Leaks {
    /// Bytes of memory.
    pub bytes: u64,
    /// Datagrams and packets.
    pub frames: u64,
}

/// Result of all shrinks.
#[derive(Debug, Default)]
pub struct Fenced {
    /// Times of shrinks with the fence.
    pub shrinks: Samples,
    pub leaks: Leaks,
    /// The same of one shrink without a fence.
    pub without: Leaks,
    /// Number of shrinks in which the host killed its nodes because it could not freeze them.
    pub kills: u32,
}

/// Shrinks `rounds` times with the fence, and once without.
pub fn measure(rounds: u32, progress: &Progress) -> Result<Fenced, ClusterError> {
    let mut rack = Rack::start(HOSTS, Encryption::On, ACK_TIMEOUT)?;
    let mut fenced = Fenced::default();
    for (domain, fence) in [("fenced", Some(FENCE)), ("open", None)] {
        rack.connected()?;
        rack.hosts[LEADER].control()?.create_domain(NewDomain {
            name: domain.into(),
            nodes: vec!["*,*,*".into()],
            fence,
            ..NewDomain::default()
        })?;
        let (rounds, leaks) = match fence {
            Some(_) => (rounds, &mut fenced.leaks),
            None => (1, &mut fenced.without),
        };
        for _ in 0..rounds {
            check_signals()?;
            let mut round = Round::begin(&mut rack, domain)?;
            let took = round.shrink(fence.is_some())?;
            if round.end(leaks)? {
                fenced.kills += 1;
            }
            if fence.is_some() {
                fenced.shrinks.record(took, 0, true);
            }
            grow(&mut rack, domain)?;
            progress.step(format!("shrinks of domain {domain}, a host cut off"));
        }
        // The nodes of a fenced domain stop, whatever other domains they are in.
        rack.hosts[LEADER].control()?.remove(domain)?;
    }
    Ok(fenced)
}

/// Takes the leaver in again, once its host has caught up.
fn grow(rack: &mut Rack, domain: &str) -> Result<(), ClusterError> {
    let leaver = [node(CUT, 1)];
    until("the leaver is a member again", || {
        let control = rack.hosts[LEADER].control()?;
        match control.grow(domain, &leaver) {
            Ok(_) => Ok(true),
            Err(ClientError::Refused(_)) => {
                let members = control.show(domain)?.members;
                Ok(members.iter().any(|its| its.node.to_string() == leaver[0]))
            }
            Err(other) => Err(other.into()),
        }
    })
}

/// A member that stays, with the process of the leaver that floods it.
struct Stayer {
    host: usize,
    process: Process,
    _leaver: Process,
    /// Newest time in its memory when the shrink had returned, on a host that is not cut off.
    newest: Option<u64>,
}

struct Round<'a> {
    // Processes end before the round.
    stayers: Vec<Stayer>,
    rack: &'a mut Rack,
    domain: &'a str,
    is_cut: bool,
    /// Time of the return of the shrink.
    returned: u64,
    leaks: Leaks,
}

fn ask<A: DeserializeOwned>(
    cluster: &Cluster,
    process: &mut Process,
    order: Order,
) -> Result<A, ClusterError> {
    cluster.ask(process, &worker::Order::Member(order))
}

impl<'a> Round<'a> {
    /// Starts the leaver's traffic to each member.
    fn begin(rack: &'a mut Rack, domain: &'a str) -> Result<Self, ClusterError> {
        let mut round = Round {
            stayers: Vec::new(),
            rack,
            domain,
            is_cut: false,
            returned: 0,
            leaks: Leaks::default(),
        };
        for host in 0..HOSTS {
            let stayer = round.stayer(host)?;
            round.stayers.push(stayer);
        }
        round.hear()?;
        Ok(round)
    }

    fn stayer(&mut self, host: usize) -> Result<Stayer, ClusterError> {
        let place = node(host, 0);
        let info = self.rack.hosts[host].control()?.show(self.domain)?;
        let address = member(&info, &place)?.ipv4;
        let mut process = self.attach(host, &place)?;
        let cluster = &self.rack.hosts[host];
        let export = Order::Export {
            bytes: 2 * WATCHED,
            writable: true,
        };
        let key: String = ask(cluster, &mut process, export)?;
        let port = ask(cluster, &mut process, Order::Listen)?;
        let mut leaver = self.attach(CUT, &node(CUT, 1))?;
        let cluster = &self.rack.hosts[CUT];
        let by_descriptor = host == CUT;
        let flood = Order::Flood(SocketAddrV4::new(address, port), place);
        let () = ask(cluster, &mut leaver, Order::Stamp { key, by_descriptor })?;
        let () = ask(cluster, &mut leaver, flood)?;
        Ok(Stayer {
            host,
            process,
            _leaver: leaver,
            newest: None,
        })
    }

    fn attach(&mut self, host: usize, place: &str) -> Result<Process, ClusterError> {
        let cluster = &mut self.rack.hosts[host];
        let mut process = cluster.worker(place)?;
        let domain = self.domain.into();
        let () = ask(cluster, &mut process, Order::Attach { domain })?;
        Ok(process)
    }

    /// Waits until each member that the leaver reaches hears more of each kind. Once the leaver's host is
    /// cut off, its member is not asked: the host freezes it when the lease ends.
    fn hear(&mut self) -> Result<(), ClusterError> {
        let (start, since) = (Instant::now(), now_ns());
        for stayer in &mut self.stayers {
            if self.is_cut && [LEADER, CUT].contains(&stayer.host) {
                continue;
            }
            let cluster = &self.rack.hosts[stayer.host];
            let mut missing = [true; 3];
            while missing != [false; 3] {
                thread::sleep(SETTLED);
                let after = since;
                let [datagrams, packets]: [u64; 2] =
                    ask(cluster, &mut stayer.process, Order::Arrived { after })?;
                let newest: u64 = ask(cluster, &mut stayer.process, Order::Newest)?;
                let kinds = [datagrams, packets, newest.saturating_sub(after)];
                for (missing, count) in missing.iter_mut().zip(kinds) {
                    *missing &= count == 0;
                }
                if start.elapsed() > HEARD {
                    let message = format!(
                        "of the leaver's datagrams, packets and writes, some did not come for \
                         {HEARD:?}: run it again on a quiet machine"
                    );
                    return Err(stayer.process.failed(message));
                }
            }
        }
        Ok(())
    }

    /// Cuts the leaver's host off, and takes the leaver out of the domain. Returns the time of the
    /// command.
    fn shrink(&mut self, is_fenced: bool) -> Result<Duration, ClusterError> {
        self.rack.networks.cut(CUT, LEADER)?;
        self.is_cut = true;
        self.hear()?;
        let start = Instant::now();
        let control = self.rack.hosts[LEADER].control()?;
        let shrunk = control.shrink(self.domain, &[node(CUT, 1)]);
        let took = start.elapsed();
        self.returned = now_ns();
        match shrunk {
            Ok(Some(info)) if is_fenced && info.cut_off == [name(CUT)] => {}
            Err(ClientError::Refused(refusal)) if !is_fenced => {
                // The command has named the host that it could not wait for.
                if !refusal.message.contains(&name(CUT)) {
                    return Err(ClientError::Refused(refusal).into());
                }
                thread::sleep(UNFENCED);
            }
            Ok(_) => return Err(ClusterError::ours("the cut host took part in a shrink")),
            Err(error) => return Err(error.into()),
        }
        thread::sleep(SETTLED);
        let after = self.returned;
        for stayer in self.stayers.iter_mut().filter(|its| its.host != CUT) {
            let cluster = &self.rack.hosts[stayer.host];
            let arrived: [u64; 2] = ask(cluster, &mut stayer.process, Order::Arrived { after })?;
            self.leaks.frames += arrived.iter().sum::<u64>();
            let newest = ask(cluster, &mut stayer.process, Order::Newest)?;
            stayer.newest = Some(newest);
        }
        Ok(took)
    }

    /// Connects the host again, and counts what has arrived: at members that were reachable
    /// all the time everything since the return, at the others everything sent since. Returns whether
    /// the member on the cut host was killed, as on machines that cannot freeze it.
    fn end(mut self, leaks: &mut Leaks) -> Result<bool, ClusterError> {
        self.rack.networks.mend(CUT, LEADER)?;
        self.rack.connected()?;
        let mut is_killed = false;
        for stayer in &mut self.stayers {
            let cluster = &self.rack.hosts[stayer.host];
            let after = stayer.newest.map_or(self.returned, |_| 0);
            let arrived = ask(cluster, &mut stayer.process, Order::Arrived { after });
            if matches!(arrived, Err(ClusterError::Lost { .. })) && stayer.host == CUT {
                check_signals()?;
                is_killed = true;
                continue;
            }
            let arrived: [u64; 2] = arrived?;
            self.leaks.frames += arrived.iter().sum::<u64>();
            let after = stayer.newest.unwrap_or(self.returned).min(self.returned);
            let bytes: u64 = ask(cluster, &mut stayer.process, Order::Stamped { after })?;
            self.leaks.bytes += bytes;
        }
        leaks.bytes += self.leaks.bytes;
        leaks.frames += self.leaks.frames;
        Ok(is_killed)
    }
}
