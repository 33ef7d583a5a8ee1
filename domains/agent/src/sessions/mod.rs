//! Sessions with the agents of other hosts, from both ends.
//!
//! The [`listener`] accepts connections of other agents. The [`leader`] attends to its followers, a
//! [`follower`] to its leader; [`apply`] makes a host as the leader's directory has it. With
//! [`tickets`] hosts make [`data`] connections, and the [`tunnels`] of their drivers. [`lookup`] and
//! [`queries`] ask all other hosts. [`reports`] tell those with members of a domain which gateways do
//! not work.

pub(crate) mod apply;
pub(crate) mod commands;
mod data;
pub(crate) mod follower;
pub(crate) mod gateways;
mod leader;
mod listener;
pub(crate) mod lookup;
pub(crate) mod queries;
pub(crate) mod renewals;
mod reports;
mod tickets;
mod tunnels;

use std::net::TcpListener;
use std::sync::Arc;

use crate::core::host::Host;
use crate::error::{AgentError, during};
use crate::threads;

/// Accepts connections of other hosts, and follows the leader unless this is it.
pub(crate) fn begin(host: &Arc<Host>, listener: TcpListener) -> Result<(), AgentError> {
    let Some(cluster) = &host.cluster else {
        return Ok(());
    };
    data::serve(host, cluster);
    listener::open(host, cluster, listener)?;
    tunnels::begin(host, cluster)?;
    reports::begin(host, cluster)?;
    if cluster.is_leader() {
        let control = Arc::clone(&cluster.control);
        control.open();
        let started = threads::start_named("changes", move || control.keep_time());
        started.map(drop).map_err(during("start a thread"))
    } else {
        follower::begin(host, cluster)
    }
}
