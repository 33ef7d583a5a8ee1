//! Tunnels: connections between the drivers of two hosts, for frames.
//!
//! Of two hosts, the one with the first name asks for the tunnel, and its driver for RDMA. The
//! drivers keep the tunnel when an agent ends. When the tunnel or a driver has ended, the next one
//! is made.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::{self, Sender};
use std::time::{Duration, Instant};

use toroid_protocol::hosts::TicketPurpose;

use crate::cluster::Cluster;
use crate::cluster::tickets::DataConnection;
use crate::core::host::Host;
use crate::error::{AgentError, during};
use crate::net::driver::Driver;
use crate::threads;

/// Pauses before another attempt grow from the first to the second. A tunnel that lasted longer
/// than that was a success. A host with the second is *away*.
const BACKOFF: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(5)];

/// Interval of checks for a session with the other host.
const LOOK: Duration = Duration::from_millis(250);

/// Attempts at a time. Each has a thread, because it takes as long as the network does.
const AT_ONCE: usize = 64;

/// Attempts for hosts that are away, as long as others wait for theirs. Each takes up to
/// [`HANDSHAKE`](crate::channel::secure::HANDSHAKE).
const SHARE: usize = AT_ONCE / 2;

/// Starts the thread that keeps the tunnels that this host must ask for.
pub(crate) fn begin(host: &Arc<Host>, cluster: &Arc<Cluster>) -> Result<(), AgentError> {
    let Some(driver) = &host.driver else {
        return Ok(());
    };
    let (host, cluster, driver) = (Arc::clone(host), Arc::clone(cluster), Arc::clone(driver));
    let started = threads::start(move || keep(&host, &cluster, &driver));
    started
        .map(drop)
        .map_err(during("start the thread that connects the drivers"))
}

fn keep(host: &Arc<Host>, cluster: &Cluster, driver: &Arc<Driver>) {
    let (reports, ends) = mpsc::channel();
    let mut others: BTreeMap<String, Attempts> = BTreeMap::new();
    while let Some(missing) = driver.await_missing_tunnels(&cluster.config.host) {
        let now = Instant::now();
        others.retain(|other, its| its.is_running || driver.is_other(other));
        for other in &missing {
            others.entry(other.clone()).or_default();
        }
        let missing = missing.into_iter();
        let missing: Vec<String> = missing.filter(|o| cluster.may_be_asked(o)).collect();
        for other in choose(&mut others, missing, now) {
            let (host, driver) = (Arc::clone(host), Arc::clone(driver));
            // Reports also if there is no thread.
            let report = Report {
                other,
                is_connected: false,
                reports: reports.clone(),
            };
            let _ = threads::start(move || report.of(|other| attempt(&host, &driver, other)));
        }
        let ended = ends.recv_timeout(LOOK).into_iter();
        for (other, is_connected) in ended.chain(ends.try_iter()) {
            if let Some(attempts) = others.get_mut(&other) {
                attempts.end(Instant::now(), is_connected);
            }
        }
    }
}

/// Begins attempts for hosts without a tunnel, those that are due for the longest time first. Hosts
/// that are away wait for each other, and keep no other waiting for longer than an attempt.
fn choose(
    others: &mut BTreeMap<String, Attempts>,
    missing: Vec<String>,
    now: Instant,
) -> Vec<String> {
    let mut due = Vec::new();
    for other in missing {
        if let Some(attempts) = others.get_mut(&other)
            && attempts.is_due(now)
        {
            due.push((attempts.not_before, other));
        }
    }
    due.sort();
    let due = due.into_iter().map(|(_, other)| other);
    let (mut away, mut others_due): (Vec<_>, Vec<_>) = due.partition(|o| others[o].is_away());
    let running = || others.values().filter(|its| its.is_running);
    let free = AT_ONCE.saturating_sub(running().count());
    let away_running = running().filter(|its| its.is_away()).count();
    away.truncate(if others_due.is_empty() {
        free
    } else {
        free.min(SHARE.saturating_sub(away_running))
    });
    others_due.truncate(free - away.len());
    away.append(&mut others_due);
    for other in &away {
        if let Some(attempts) = others.get_mut(other) {
            attempts.is_running = true;
        }
    }
    away
}

/// Tries to make a tunnel. Returns whether that has succeeded.
fn attempt(host: &Host, driver: &Driver, other: &str) -> bool {
    match host.data_connection(other, TicketPurpose::Frames) {
        Ok((stream, keys)) => {
            tracing::info!("connected to the driver of host {other}");
            driver.add_tunnel(other, true, keys, stream.into());
            host.end_tunnel_if_removed(other);
            true
        }
        Err(refusal) => {
            tracing::debug!("no connection to the driver of {other}: {refusal}");
            false
        }
    }
}

/// Reports the end of an attempt when it is dropped.
struct Report {
    other: String,
    is_connected: bool,
    reports: Sender<(String, bool)>,
}

impl Report {
    fn of(mut self, attempt: impl FnOnce(&str) -> bool) {
        self.is_connected = attempt(&self.other);
    }
}

impl Drop for Report {
    fn drop(&mut self) {
        let end = (std::mem::take(&mut self.other), self.is_connected);
        // The other end goes with the driver.
        let _ = self.reports.send(end);
    }
}

/// Attempts to make the tunnel to one host.
#[derive(Debug, Default)]
struct Attempts {
    /// Time before which there is no other.
    not_before: Option<Instant>,
    pause: Duration,
    is_running: bool,
    /// Time at which the last one has made a tunnel.
    made: Option<Instant>,
}

impl Attempts {
    /// Whether the tunnel, which is missing, may be made.
    fn is_due(&mut self, now: Instant) -> bool {
        if !self.is_running && self.made.is_some_and(|made| now - made > BACKOFF[1]) {
            (self.made, self.pause) = (None, Duration::ZERO);
        }
        !self.is_running && self.not_before.is_none_or(|time| time <= now)
    }

    fn is_away(&self) -> bool {
        self.pause >= BACKOFF[1]
    }

    fn end(&mut self, now: Instant, is_connected: bool) {
        self.is_running = false;
        self.made = is_connected.then_some(now);
        self.pause = (2 * self.pause).clamp(BACKOFF[0], BACKOFF[1]);
        self.not_before = Some(now + self.pause);
    }
}

/// Passes another host's tunnel to the driver, on a thread: the driver may not read at this moment,
/// and other connections must not wait.
pub(crate) fn receive(host: &Arc<Host>, connection: DataConnection) {
    let Some(driver) = host.driver.clone() else {
        return;
    };
    let DataConnection {
        stream,
        keys,
        host: from,
        ..
    } = connection;
    let host = Arc::clone(host);
    let hand_over = move || {
        driver.add_tunnel(&from, false, keys, stream.into());
        host.end_tunnel_if_removed(&from);
    };
    // Without a thread the connection ends, and is made again.
    let _ = threads::start(hand_over);
}

impl Cluster {
    /// Whether to ask another host. The leader and its followers have sessions anyway, unless one
    /// of them is away.
    fn may_be_asked(&self, other: &str) -> bool {
        let has_session = self.is_leader() || self.leader_name().as_deref() == Some(other);
        !has_session || self.link_of(other).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_until_a_tunnel_has_lasted() {
        let mut now = Instant::now();
        let mut attempts = Attempts::default();
        assert!(attempts.is_due(now));
        let mut pauses = Vec::new();
        // Tunnels that end at once, too.
        for n in 0..8 {
            attempts.is_running = true;
            assert!(!attempts.is_due(now + BACKOFF[1]));
            attempts.end(now, n % 2 == 0);
            assert!(!attempts.is_due(now));
            now += attempts.pause;
            assert!(attempts.is_due(now));
            pauses.push(attempts.pause.as_millis());
        }
        assert_eq!(pauses, [100, 200, 400, 800, 1600, 3200, 5000, 5000]);
        // To wait for a turn is no success.
        assert!(attempts.is_due(now + 2 * BACKOFF[1]) && attempts.is_away());
        attempts.end(now, true);
        assert!(attempts.is_due(now + BACKOFF[1]) && attempts.is_away());
        now += 2 * BACKOFF[1];
        assert!(attempts.is_due(now) && !attempts.is_away());
        attempts.end(now, false);
        assert_eq!(attempts.pause, BACKOFF[0]);
    }

    /// Hosts of which nothing comes back: an attempt fails when it times out.
    struct Silence {
        others: BTreeMap<String, Attempts>,
        running: Vec<(Instant, String)>,
        now: Instant,
    }

    impl Silence {
        fn of(count: usize) -> Self {
            let others = (0..count).map(|n| (format!("h{n:03}"), Attempts::default()));
            Silence {
                others: others.collect(),
                running: Vec::new(),
                now: Instant::now(),
            }
        }

        /// Goes on to the first attempt for a host, at most for `most`. Returns the time until
        /// then.
        fn go_on(&mut self, until: Option<&str>, most: Duration) -> Duration {
            let start = self.now;
            while self.now - start < most {
                let missing = self.others.keys().cloned().collect();
                let begun = choose(&mut self.others, missing, self.now);
                let has_begun = begun.iter().any(|other| Some(&**other) == until);
                let end = self.now + BACKOFF[1];
                self.running
                    .extend(begun.into_iter().map(|other| (end, other)));
                assert!(self.running.len() <= AT_ONCE);
                if has_begun {
                    return self.now - start;
                }
                self.now += LOOK;
                let (others, now) = (&mut self.others, self.now);
                self.running.retain(|(end, other)| {
                    if *end <= now {
                        others.get_mut(other).unwrap().end(now, false);
                    }
                    *end > now
                });
            }
            most
        }
    }

    /// With twice as many silent hosts as attempts at a time, a later one by name once waited for
    /// ever.
    #[test]
    fn each_of_many_silent_hosts_is_tried_in_its_turn() {
        let mut silence = Silence::of(300);
        silence.go_on(None, Duration::from_secs(600));
        assert!(silence.others.values().all(Attempts::is_away));
        let rounds = 300_usize.div_ceil(AT_ONCE) as u32;
        let most = (rounds + 1) * BACKOFF[1] + rounds * LOOK;
        for host in ["h000", "h150", "h299"] {
            let waited = silence.go_on(Some(host), Duration::from_secs(600));
            assert!(waited <= most, "{host}: {waited:?}");
        }
    }

    #[test]
    fn silent_hosts_keep_a_lost_tunnel_waiting_for_no_longer_than_an_attempt() {
        let mut silence = Silence::of(300);
        silence.go_on(None, Duration::from_secs(600));
        let now = silence.now;
        let lost = silence.others.entry("z".into()).or_default();
        lost.pause = BACKOFF[1];
        lost.end(now - 2 * BACKOFF[1], true);
        let waited = silence.go_on(Some("z"), Duration::from_secs(600));
        assert!(waited <= BACKOFF[1] + LOOK, "{waited:?}");
    }
}
