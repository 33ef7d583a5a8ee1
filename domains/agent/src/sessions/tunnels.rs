//! Tunnels: connections between the drivers of two hosts, for frames.
//!
//! Of two hosts, the one with the first name asks for the tunnel, and its driver for RDMA. The
//! drivers keep the tunnel when an agent ends. When the tunnel or a driver has ended, the next one
//! is made.

use std::sync::Arc;
use std::thread;
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

/// Starts the threads for the tunnels that this host must ask for.
pub(crate) fn begin(host: &Arc<Host>, cluster: &Arc<Cluster>) -> Result<(), AgentError> {
    let Some(driver) = &host.driver else {
        return Ok(());
    };
    let ours = &cluster.config.host;
    for other in cluster.config.hosts.keys().filter(|other| ours < *other) {
        let (host, cluster) = (Arc::clone(host), Arc::clone(cluster));
        let (driver, other) = (Arc::clone(driver), other.clone());
        let keep = move || keep(&host, &cluster, &driver, &other);
        threads::start(keep).map_err(during("start the thread that connects the drivers"))?;
    }
    Ok(())
}

fn keep(host: &Host, cluster: &Cluster, driver: &Driver, other: &str) {
    let mut pause = BACKOFF[0];
    loop {
        let began = Instant::now();
        if !driver.await_missing_tunnel(other) {
            return;
        }
        if began.elapsed() > BACKOFF[1] {
            pause = BACKOFF[0];
        }
        if !cluster.may_be_asked(other) {
            thread::sleep(LOOK);
            continue;
        }
        match host.data_connection(other, TicketPurpose::Frames) {
            Ok((stream, keys)) => {
                tracing::info!("connected to the driver of host {other}");
                driver.add_tunnel(other, true, keys, stream.into());
                host.end_tunnel_if_removed(other);
            }
            Err(refusal) => tracing::debug!("no connection to the driver of {other}: {refusal}"),
        }
        thread::sleep(pause);
        pause = BACKOFF[1].min(pause * 2);
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
