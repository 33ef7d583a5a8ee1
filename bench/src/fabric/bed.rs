//! Two nodes of a domain: one offers its memory and answers messages, the other measures.

use toroid_fabric::Torus;

use super::member::{Offer, Order};
use super::plan::{self, Measurement, Op, Provider};
use crate::cluster::{Cluster, ClusterError, Process};
use crate::roles;
use crate::sampler::Pace;
use crate::stats::Slice;

const DOMAIN: &str = "fabric";

/// The place of the one that offers.
const OWNER: &str = "0,0,0";

/// Of the one that measures; libfabric's two processes are there, too.
const USER: &str = "1,0,0";

/// Both, connected.
pub struct Bed {
    owner: Process,
    user: Process,
    cluster: Cluster,
    libfabric: String,
    salt: u64,
}

impl Bed {
    /// Starts everything.
    ///
    /// # Errors
    /// [`ClusterError`], also when libfabric's programs are not installed.
    pub fn prepare() -> Result<Self, ClusterError> {
        let mut cluster = Cluster::start(Torus::new(2, 1, 1)?, None)?;
        cluster.create_domain(DOMAIN)?;
        let mut user = cluster.spawn(USER, &[roles::FABRIC])?;
        let libfabric = cluster.ask(&mut user, &Order::Version)?;
        let mut owner = cluster.spawn(OWNER, &[roles::FABRIC])?;
        let offer = Order::Offer {
            domain: DOMAIN.into(),
        };
        let offer: Offer = cluster.ask(&mut owner, &offer)?;
        let order = Order::Use {
            domain: DOMAIN.into(),
            place: OWNER.into(),
            offer,
        };
        cluster.ask::<()>(&mut user, &order)?;
        Ok(Bed {
            owner,
            user,
            cluster,
            libfabric,
            salt: 0,
        })
    }

    /// Libfabric's version.
    pub fn libfabric(&self) -> &str {
        &self.libfabric
    }

    /// Measures once, with so many messages if it is one of messages.
    ///
    /// # Errors
    /// [`ClusterError`].
    pub fn measure(
        &mut self,
        measurement: &Measurement,
        messages: u32,
    ) -> Result<Slice, ClusterError> {
        self.salt += 1;
        let order = Order::Measure {
            measurement: *measurement,
            messages,
            salt: self.salt,
            pace: Pace {
                time_us: plan::SLICE.as_micros() as u64,
                batch: None,
            },
        };
        let mut slice: Slice = self.cluster.ask(&mut self.user, &order)?;
        slice.errors += self.wrong_at_owner(measurement, &slice)?;
        Ok(slice)
    }

    /// What only the one whose memory it is can see.
    fn wrong_at_owner(
        &mut self,
        measurement: &Measurement,
        slice: &Slice,
    ) -> Result<u64, ClusterError> {
        match measurement.op {
            Op::Write => {
                let check = Order::CheckWrites {
                    bytes: measurement.bytes,
                    count: slice.ops,
                    salt: self.salt,
                };
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

    /// Wrong messages of libfabric's program, which does not look for them while it is timed. Its
    /// streams are what its ping-pongs are.
    ///
    /// # Errors
    /// [`ClusterError`].
    pub fn check(&mut self, measurement: &Measurement) -> Result<u64, ClusterError> {
        let Measurement {
            provider: Provider::LibfabricShm,
            op: Op::Pingpong,
            bytes,
            ..
        } = *measurement
        else {
            return Ok(0);
        };
        let check = Order::CheckLibfabric { bytes };
        self.cluster.ask(&mut self.user, &check)
    }
}
