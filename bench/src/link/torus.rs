//! Two neighbours of an emulated torus: operations with the routing `off`, and without a choice of
//! routes.

use std::thread;
use std::time::Duration;

use toroid_fabric::Torus;
use toroid_model::link::{DomainLinks, FabricProfile, LinkSpec, RdmaCosts, Routing};

use super::bed::SETTLE;
use super::hook::{Beside, in_turns};
use super::plan::{Op, SHORT};
use crate::cluster::{Cluster, ClusterError, Process};
use crate::samples::Samples;
use crate::worker::one_sided::Direction;
use crate::worker::sampler::Pace;
use crate::worker::{Job, Order};

const OWNER: &str = "0,0,0";
const USER: &str = "1,0,0";
const DOMAIN: &str = "torus";

/// Bytes of the memory to read.
const MEMORY: usize = 1 << 20;

/// Time of a turn.
const TURN: Duration = Duration::from_millis(20);

/// Two nodes of a torus, and a process in each.
pub struct TorusBed {
    // Processes end before the cluster.
    _owner: Process,
    user: Process,
    cluster: Cluster,
    /// Number of turns.
    turns: u64,
    /// Whether the routing is `off`, and not absent.
    is_off: bool,
}

impl TorusBed {
    /// Starts nodes and processes.
    pub fn prepare() -> Result<Self, ClusterError> {
        // Costs of a sender would hide what the choice of routes costs the processor.
        let fabric = FabricProfile {
            rdma: RdmaCosts::default(),
            ..FabricProfile::bgp()
        };
        let mut cluster = Cluster::start_emulating(Some(fabric), Torus::new(2, 1, 1)?, None)?;
        cluster.create_domain(DOMAIN)?;
        let mut user = cluster.worker(USER)?;
        let mut owner = cluster.worker(OWNER)?;
        cluster.ask::<()>(&mut owner, &Order::ServeMessages(DOMAIN.into()))?;
        let connect = Order::UseMessages(DOMAIN.into(), OWNER.into());
        cluster.ask::<()>(&mut user, &connect)?;
        cluster.connect_memory(DOMAIN, MEMORY, &mut owner, &mut user)?;
        Ok(TorusBed {
            _owner: owner,
            user,
            cluster,
            turns: 0,
            is_off: false,
        })
    }

    /// Times of an operation without a choice of routes, and with the routing `off`.
    pub fn routing_off(&mut self, op: Op, time: Duration) -> Result<Beside, ClusterError> {
        in_turns(time, |is_off| {
            self.set(is_off)?;
            self.turn(op)
        })
    }

    fn set(&mut self, is_off: bool) -> Result<(), ClusterError> {
        if is_off == self.is_off {
            return Ok(());
        }
        let control = self.cluster.control()?;
        if is_off {
            let default = LinkSpec {
                routing: Some(Routing::Off),
                ..LinkSpec::default()
            };
            let links = DomainLinks {
                default,
                ..DomainLinks::default()
            };
            control.set_links(DOMAIN, &links, false)?;
        } else {
            control.remove_links(DOMAIN, &[])?;
        }
        self.is_off = is_off;
        thread::sleep(SETTLE);
        Ok(())
    }

    fn turn(&mut self, op: Op) -> Result<f64, ClusterError> {
        self.turns += 1;
        let job = match op {
            Op::Packet(bytes) => Job::OneWay(bytes),
            _ => Job::OneSided(Direction::Read, 1, SHORT),
        };
        let order = job.order(self.turns, Pace::of(TURN));
        let samples: Samples = self.cluster.ask(&mut self.user, &order)?;
        let median = samples.quantile_ns(0.5).filter(|_| samples.errors == 0);
        median.ok_or_else(|| {
            let errors = samples.errors;
            ClusterError::ours(format!(
                "{op:?} through the torus: {errors} operations failed"
            ))
        })
    }
}
