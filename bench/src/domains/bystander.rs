//! An unchanged domain, while many others grow and shrink.

use std::net::SocketAddrV4;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use toroid_client::admin::{ClientError, Control};

use super::nodes;
use super::report::Beside;
use crate::cluster::{Cluster, ClusterError, Process};
use crate::report::Row;
use crate::samples::{Samples, Series};
use crate::worker::network::Transport;
use crate::worker::one_sided::{Direction, HOT};
use crate::worker::sampler::Pace;
use crate::worker::{Job, Order};

const DOMAIN: &str = "quiet";
const BYTES: usize = 64;

/// Measures between the first two nodes, without and with changes of `domains` other domains.
pub fn measure(
    cluster: &mut Cluster,
    domains: u32,
    time: Duration,
) -> Result<Beside, ClusterError> {
    let all = nodes(cluster, 8)?;
    let info = cluster.control()?.create(DOMAIN, &all[..2], None, None)?;
    let mut passive = cluster.worker(&all[0])?;
    let mut active = cluster.worker(&all[1])?;
    let port = cluster.ask(&mut passive, &Order::Serve)?;
    let address = info.members.first().ok_or(ClusterError::NoServer)?.ipv4;
    let server = SocketAddrV4::new(address, port);
    cluster.connect_memory(DOMAIN, HOT, &mut passive, &mut active)?;

    for n in 0..domains {
        cluster
            .control()?
            .create(&format!("busy{n}"), &all[2..], None, None)?;
    }
    let quiet = samples(cluster, &mut active, server, time)?;
    let (mut control, leaver) = (cluster.connect()?, all[7].clone());
    let (ending, changes) = (AtomicBool::new(false), AtomicU32::new(0));
    let start = Instant::now();
    let (busy, changed) = thread::scope(|scope| {
        let change = || change(&mut control, domains, &leaver, &ending, &changes);
        let changing = scope.spawn(change);
        let busy = samples(cluster, &mut active, server, time);
        ending.store(true, Ordering::Relaxed);
        let panicked = |_| Err(ClientError::Unexpected("the thread panicked".into()));
        (busy, changing.join().unwrap_or_else(panicked))
    });
    let per_s = f64::from(changes.load(Ordering::Relaxed)) / start.elapsed().as_secs_f64();
    changed?;
    let busy = busy?;
    let rows = quiet.into_iter().zip(busy).map(|((op, quiet), (_, busy))| {
        let mut both = Series::from(quiet.clone());
        both.add(busy.clone());
        let at = |samples: &Samples, q| samples.quantile_ns(q).unwrap_or_default();
        let (_, rounds) = Series::from(busy.clone()).medians();
        Row::of(&both)
            .label("op", op)
            .rounds("busy_p50_ns", rounds)
            .figure("quiet_p50_ns", at(&quiet, 0.5))
            .figure("quiet_p99_ns", at(&quiet, 0.99))
            .figure("busy_p50_ns", at(&busy, 0.5))
            .figure("busy_p99_ns", at(&busy, 0.99))
    });
    Ok(Beside {
        rows: rows.collect(),
        domains,
        changes_per_s: per_s,
    })
}

/// Shrinks and grows all domains in turn by one member.
fn change(
    control: &mut Control,
    domains: u32,
    leaver: &str,
    ending: &AtomicBool,
    changes: &AtomicU32,
) -> Result<(), ClientError> {
    let nodes = [leaver.to_owned()];
    for n in (0..domains).cycle() {
        if ending.load(Ordering::Relaxed) {
            break;
        }
        let name = format!("busy{n}");
        control.shrink(&name, &nodes)?;
        control.grow(&name, &nodes)?;
        changes.fetch_add(2, Ordering::Relaxed);
    }
    Ok(())
}

fn samples(
    cluster: &Cluster,
    active: &mut Process,
    server: SocketAddrV4,
    time: Duration,
) -> Result<[(&'static str, Samples); 2], ClusterError> {
    let mut measure = |job: Job| cluster.ask::<Samples>(active, &job.order(0, Pace::of(time / 2)));
    let read = measure(Job::OneSided(Direction::Read, 1, BYTES))?;
    let mut round_trip = measure(Job::RoundTrips(server, Transport::Tcp, BYTES))?;
    // A sample is half of a round trip.
    for sample in &mut round_trip.samples_ns {
        *sample *= 2.0;
    }
    Ok([("read of 64 B", read), ("TCP round trip, 64 B", round_trip)])
}
