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
/// than that was a success.
const BACKOFF: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(5)];

/// Interval of checks for a session with the other host.
const LOOK: Duration = Duration::from_millis(250);

/// Attempts at a time. Each has a thread, because it takes as long as the network does.
const AT_ONCE: usize = 64;

/// Starts the thread that keeps the tunnels that this host must ask for.
pub(crate) fn begin(host: &Arc<Host>, cluster: &Arc<Cluster>) -> Result<(), AgentError> {
    let Some(driver) = &host.driver else {
        return Ok(());
    };
    let ours = &cluster.config.host;
    let others = cluster.config.hosts.keys().filter(|other| ours < *other);
    let others: BTreeMap<_, _> = others.map(|o| (o.clone(), Attempts::default())).collect();
    if others.is_empty() {
        return Ok(());
    }
    let (host, cluster, driver) = (Arc::clone(host), Arc::clone(cluster), Arc::clone(driver));
    let started = threads::start(move || keep(&host, &cluster, &driver, others));
    started
        .map(drop)
        .map_err(during("start the thread that connects the drivers"))
}

fn keep(
    host: &Arc<Host>,
    cluster: &Cluster,
    driver: &Arc<Driver>,
    mut others: BTreeMap<String, Attempts>,
) {
    let (reports, ends) = mpsc::channel();
    while let Some(missing) = driver.await_missing_tunnels(others.keys()) {
        let now = Instant::now();
        let running = others.values().filter(|its| its.is_running).count();
        let may_begin = |other: &String| others[other].is_due(now) && cluster.may_be_asked(other);
        let mut due: Vec<String> = missing.into_iter().filter(may_begin).collect();
        // Hosts that are away for long have the longest pauses.
        due.sort_by_key(|other| others[other].pause);
        for other in due.into_iter().take(AT_ONCE - running) {
            if let Some(attempts) = others.get_mut(&other) {
                attempts.begin(now);
            }
            let (host, driver) = (Arc::clone(host), Arc::clone(driver));
            // Reports also if there is no thread.
            let report = Report(other, reports.clone());
            let _ = threads::start(move || attempt(&host, &driver, &report.0));
        }
        for other in ends.recv_timeout(LOOK).into_iter().chain(ends.try_iter()) {
            if let Some(attempts) = others.get_mut(&other) {
                attempts.end(Instant::now());
            }
        }
    }
}

fn attempt(host: &Host, driver: &Driver, other: &str) {
    match host.data_connection(other, TicketPurpose::Frames) {
        Ok((stream, keys)) => {
            tracing::info!("connected to the driver of host {other}");
            driver.add_tunnel(other, true, keys, stream.into());
            host.end_tunnel_if_removed(other);
        }
        Err(refusal) => tracing::debug!("no connection to the driver of {other}: {refusal}"),
    }
}

/// Reports the end of an attempt when it is dropped.
struct Report(String, Sender<String>);

impl Drop for Report {
    fn drop(&mut self) {
        // The other end goes with the driver.
        let _ = self.1.send(std::mem::take(&mut self.0));
    }
}

/// Attempts to make the tunnel to one host.
#[derive(Debug, Default)]
struct Attempts {
    /// Time before which there is no other.
    not_before: Option<Instant>,
    pause: Duration,
    is_running: bool,
}

impl Attempts {
    fn is_due(&self, now: Instant) -> bool {
        !self.is_running && self.not_before.is_none_or(|time| time <= now)
    }

    fn begin(&mut self, now: Instant) {
        self.is_running = true;
        if self.not_before.is_some_and(|time| now - time > BACKOFF[1]) {
            self.pause = Duration::ZERO;
        }
    }

    fn end(&mut self, now: Instant) {
        self.is_running = false;
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
        let has_session = self.is_leader() || other == self.config.directory;
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
        for _ in 0..8 {
            attempts.begin(now);
            assert!(!attempts.is_due(now + BACKOFF[1]));
            attempts.end(now);
            assert!(!attempts.is_due(now));
            now += attempts.pause;
            assert!(attempts.is_due(now));
            pauses.push(attempts.pause.as_millis());
        }
        assert_eq!(pauses, [100, 200, 400, 800, 1600, 3200, 5000, 5000]);
        now += BACKOFF[1] + BACKOFF[0];
        attempts.begin(now);
        attempts.end(now);
        assert_eq!(attempts.pause, BACKOFF[0]);
    }
}
