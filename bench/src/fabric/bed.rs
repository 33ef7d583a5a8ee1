//! Two nodes of a domain: the owner exports memory and answers messages, the user measures.

use toroid_fabric::Torus;

use super::plan::{self, Measurement, Op, Provider};
use crate::cluster::{Cluster, ClusterError, Process};
use crate::samples::Samples;
use crate::worker::Order;
use crate::worker::sampler::Pace;

const DOMAIN: &str = "fabric";

/// Node of the memory's owner.
const OWNER: &str = "0,0,0";

/// Node of the measuring process and of both libfabric processes.
const USER: &str = "1,0,0";

/// Bytes of the regions to read and to write, equal to the longest operation.
const MEMORY: usize = 1 << 20;

pub struct Bed {
    owner: Process,
    user: Process,
    cluster: Cluster,
    pub libfabric: String,
    salt: u64,
}

impl Bed {
    /// Starts nodes and processes. Fails if libfabric's programs are not installed.
    pub fn prepare() -> Result<Self, ClusterError> {
        let mut cluster = Cluster::start(Torus::new(2, 1, 1)?, None)?;
        cluster.create_domain(DOMAIN)?;
        let mut user = cluster.worker(USER)?;
        let libfabric = cluster.ask(&mut user, &Order::LibfabricVersion)?;
        let mut owner = cluster.worker(OWNER)?;
        cluster.ask::<()>(&mut owner, &Order::ServeMessages(DOMAIN.into()))?;
        let connect = Order::UseMessages(DOMAIN.into(), OWNER.into());
        cluster.ask::<()>(&mut user, &connect)?;
        cluster.connect_memory(DOMAIN, MEMORY, &mut owner, &mut user)?;
        Ok(Bed {
            owner,
            user,
            cluster,
            libfabric,
            salt: 0,
        })
    }

    /// Measures once. `messages` is the number of messages of a two-sided measurement.
    pub fn measure(
        &mut self,
        measurement: &Measurement,
        messages: u32,
    ) -> Result<Samples, ClusterError> {
        self.salt += 1;
        let order = measurement
            .job(messages)
            .order(self.salt, Pace::of(plan::SLICE));
        let mut samples: Samples = self.cluster.ask(&mut self.user, &order)?;
        samples.errors += self.wrong_at_owner(measurement, samples.ops)?;
        Ok(samples)
    }

    /// Number of errors that only the memory's owner sees.
    fn wrong_at_owner(
        &mut self,
        measurement: &Measurement,
        count: u64,
    ) -> Result<u64, ClusterError> {
        let (bytes, salt) = (measurement.bytes, self.salt);
        match measurement.op {
            Op::Write => {
                let check = Order::CheckWrites { bytes, count, salt };
                self.cluster.ask(&mut self.owner, &check)
            }
            Op::Atomic => {
                let held: u64 = self.cluster.ask(&mut self.owner, &Order::Word)?;
                let added: u64 = self.cluster.ask(&mut self.user, &Order::Added)?;
                Ok(held.abs_diff(added))
            }
            Op::Pingpong | Op::Stream | Op::Read => Ok(0),
        }
    }

    /// Number of wrong messages of libfabric's program, which verifies none while timed. A stream
    /// of this program is a ping-pong, too.
    pub fn check(&mut self, measurement: &Measurement) -> Result<u64, ClusterError> {
        let (provider, op, bytes) = (measurement.provider, measurement.op, measurement.bytes);
        if (provider, op) != (Provider::LibfabricShm, Op::Pingpong) {
            return Ok(0);
        }
        self.cluster
            .ask(&mut self.user, &Order::CheckLibfabric(bytes))
    }
}
