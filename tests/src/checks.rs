//! Programs that check what clients read from a store, `tear-storm` and `histories`: each starts an
//! agent of its own, and itself again, with hidden arguments, for the other roles.

use std::error::Error;
use std::process::ExitCode;
use std::time::Duration;

use bench::cluster::Cluster;
use bench::roles::{self, StoreConfig};
use nix::time::{ClockId, clock_gettime};
use toroid_kv::server::Limits;
use toroid_model::link::{DomainLinks, LinkSpec};

/// The result of a role or of a run.
pub type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// A hidden argument, and the role that it starts.
pub type Role = (&'static str, fn() -> Result<()>);

/// Runs the role that the first argument names, or else `run`, which returns whether all was right.
/// Exit status: 0 all was right, 1 something was wrong, 2 bad usage or a failure.
pub fn main(name: &str, hidden: &[Role], run: impl FnOnce() -> Result<bool>) -> ExitCode {
    if let Some(status) = roles::run_if_asked() {
        return status;
    }
    let first = std::env::args().nth(1).unwrap_or_default();
    let role = hidden.iter().find(|(argument, _)| *argument == first);
    match role.map_or_else(run, |(_, role)| role().map(|()| true)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{name}: {error}");
            ExitCode::from(2)
        }
    }
}

/// The second argument of this process: the JSON that goes with a hidden one.
pub fn task() -> String {
    std::env::args().nth(2).unwrap_or_default()
}

/// Arguments for a process, and the one that makes it leave out the same check as this one. Only
/// programs with the feature `unsafe-variants` leave out any.
pub fn with_variant<'a>(arguments: &[&'a str]) -> Vec<&'a str> {
    #[cfg(feature = "unsafe-variants")]
    let variant = toroid_kv::variants::argument();
    #[cfg(not(feature = "unsafe-variants"))]
    let variant: Option<&str> = None;
    arguments.iter().copied().chain(variant).collect()
}

/// Creates a domain of all nodes, with links of these properties.
pub fn create_domain(cluster: &mut Cluster, name: &str, link: LinkSpec) -> Result<()> {
    cluster.create_domain(name)?;
    if !link.is_empty() {
        let links = DomainLinks {
            default: link,
            ..DomainLinks::default()
        };
        cluster.control()?.set_links(name, &links, false)?;
    }
    Ok(())
}

/// Checks that at least so many operations and packets took the links of a domain, if these have
/// properties.
pub fn took_links(cluster: &mut Cluster, name: &str, link: LinkSpec, least: u64) -> Result<()> {
    let report = cluster.control()?.links(name, &[])?;
    let transfers: u64 = report.links.iter().map(|link| link.rdma.transfers).sum();
    if link.is_empty() || transfers >= least {
        return Ok(());
    }
    Err(format!("{transfers} transfers took the links, not {least} or more").into())
}

/// The JSON for [`roles::STORE`]: a store of the domain with so many bytes for items.
pub fn store_config(domain: &str, memory: u64) -> Result<String> {
    let config = StoreConfig {
        item: Limits::DEFAULT.item,
        domain: domain.into(),
        memory,
        stack: false,
    };
    Ok(serde_json::to_string(&config)?)
}

/// Nanoseconds of a clock that all processes of a host share.
pub fn now_ns() -> u64 {
    let time = clock_gettime(ClockId::CLOCK_MONOTONIC).unwrap_or(Duration::ZERO.into());
    Duration::from(time).as_nanos() as u64
}
