//! A domain in which nothing happens, while many others grow and shrink.

use std::net::SocketAddrV4;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use toroid_client::admin::{ClientError, Control};

use super::nodes;
use super::report::Bystander;
use crate::cluster::{Cluster, ClusterError, Process};
use crate::network::Transport;
use crate::one_sided::{Direction, ExportedKeys};
use crate::plan::{Path, Test};
use crate::roles;
use crate::sampler::Pace;
use crate::stats::{Slice, quantile};
use crate::worker::Order;

const DOMAIN: &str = "quiet";
const BYTES: usize = 64;

/// What was measured, how many domains changed, and how often in a second.
pub type Outcome = (Vec<Bystander>, u32, f64);

/// Measures in the first two nodes, while the others change.
///
/// # Errors
/// [`ClusterError`].
pub fn measure(
    cluster: &mut Cluster,
    domains: u32,
    time: Duration,
) -> Result<Outcome, ClusterError> {
    let all = nodes(cluster, 8)?;
    let info = cluster.control()?.create(DOMAIN, &all[..2], None, None)?;
    let mut passive = cluster.spawn(&all[0], &[roles::WORKER])?;
    let mut active = cluster.spawn(&all[1], &[roles::WORKER])?;
    let domain = || DOMAIN.to_owned();
    let port = cluster.ask(&mut passive, &Order::Serve)?;
    let address = info.members.first().ok_or(ClusterError::NoServer)?.ipv4;
    let session = (Path::Ethernet, SocketAddrV4::new(address, port));
    let () = cluster.ask(&mut active, &Order::UseSessions(vec![session]))?;
    let keys: ExportedKeys = cluster.ask(&mut passive, &Order::Export { domain: domain() })?;
    let order = Order::UseMemory {
        domain: domain(),
        keys,
    };
    let () = cluster.ask(&mut active, &order)?;

    for n in 0..domains {
        cluster
            .control()?
            .create(&format!("busy{n}"), &all[2..], None, None)?;
    }
    let quiet = samples(cluster, &mut active, time)?;
    let (mut control, leaver) = (cluster.connect()?, all[7].clone());
    let (ending, changes) = (AtomicBool::new(false), AtomicU32::new(0));
    let start = Instant::now();
    let (busy, changed) = thread::scope(|scope| {
        let change = || change(&mut control, domains, &leaver, &ending, &changes);
        let changing = scope.spawn(change);
        let busy = samples(cluster, &mut active, time);
        ending.store(true, Ordering::Relaxed);
        let panicked = |_| Err(ClientError::Unexpected("the thread panicked".into()));
        (busy, changing.join().unwrap_or_else(panicked))
    });
    let per_s = f64::from(changes.load(Ordering::Relaxed)) / start.elapsed().as_secs_f64();
    changed?;
    let busy = busy?;
    let rows = quiet.iter().zip(&busy).map(|((op, quiet), (_, busy))| {
        let at = |slice: &Slice, q| quantile(&slice.samples_ns, q).unwrap_or_default();
        Bystander {
            op,
            quiet_p50_ns: at(quiet, 0.5),
            quiet_p99_ns: at(quiet, 0.99),
            busy_p50_ns: at(busy, 0.5),
            busy_p99_ns: at(busy, 0.99),
        }
    });
    Ok((rows.collect(), domains, per_s))
}

/// All domains in turn lose a member and get it back.
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
    time: Duration,
) -> Result<[(&'static str, Slice); 2], ClusterError> {
    let read = Test::OneSided {
        direction: Direction::Read,
        depth: 1,
        bytes: BYTES,
    };
    let round_trip = Test::RoundTrip {
        path: Path::Ethernet,
        transport: Transport::Tcp,
        bytes: BYTES,
    };
    let mut measure = |test| {
        let order = Order::Measure {
            test,
            working_set: 0,
            salt: 0,
            pace: Pace {
                time_us: time.as_micros() as u64 / 2,
                batch: None,
            },
        };
        cluster.ask::<Slice>(active, &order)
    };
    let read = measure(read)?;
    let mut round_trip = measure(round_trip)?;
    // A sample is half of one.
    for sample in &mut round_trip.samples_ns {
        *sample *= 2.0;
    }
    Ok([("read of 64 B", read), ("TCP round trip, 64 B", round_trip)])
}
