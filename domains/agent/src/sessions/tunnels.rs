//! Connections between the drivers of two hosts, over which their nodes' frames go.
//!
//! Of two hosts, the one whose name comes first asks for it, and its driver for what the two do by
//! RDMA devices. The drivers keep it when an agent ends; when it has ended, or a driver has, the
//! next one is made.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use toroid_protocol::hosts::TicketPurpose;

use crate::cluster::Cluster;
use crate::cluster::tickets::DataConnection;
use crate::core::host::Host;
use crate::error::AgentError;
use crate::net::driver::Driver;
use crate::threads;

/// Pauses before another try grow from the first to the second. One that has lasted longer than that was a
/// success.
const BACKOFF: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(5)];

/// How often is looked whether there is a session with the other host.
const LOOK: Duration = Duration::from_millis(250);

/// Sees to it that there are those for which this host has to ask.
pub(crate) fn begin(host: &Arc<Host>, cluster: &Arc<Cluster>) -> Result<(), AgentError> {
    let Some(driver) = &host.driver else {
        return Ok(());
    };
    let ours = &cluster.config.host;
    for other in cluster.config.hosts.keys().filter(|other| ours < *other) {
        let (host, cluster) = (Arc::clone(host), Arc::clone(cluster));
        let (driver, other) = (Arc::clone(driver), other.clone());
        let keep = move || keep(&host, &cluster, &driver, &other);
        threads::start(keep).map_err(|source| AgentError::System {
            action: "start the thread that connects the drivers",
            source,
        })?;
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
            Ok(stream) => {
                tracing::info!("connected to the driver of host {other}");
                driver.add_tunnel(other, true, stream.into());
            }
            Err(refusal) => tracing::debug!("no connection to the driver of {other}: {refusal}"),
        }
        thread::sleep(pause);
        pause = BACKOFF[1].min(pause * 2);
    }
}

/// The other host has asked. The driver may not listen at this moment, and the door shall not wait for it.
pub(crate) fn receive(host: &Host, connection: DataConnection) {
    let Some(driver) = host.driver.clone() else {
        return;
    };
    let DataConnection {
        stream, host: from, ..
    } = connection;
    let hand_over = move || driver.add_tunnel(&from, false, stream.into());
    // Without a thread the connection ends, and is made again.
    let _ = threads::start(hand_over);
}

impl Cluster {
    /// Whether it makes sense to ask another host. The holder and its followers have a session anyway, unless
    /// one of them is away.
    fn may_be_asked(&self, other: &str) -> bool {
        let has_session = self.is_leader() || other == self.config.directory;
        !has_session || self.link_of(other).is_some()
    }
}
