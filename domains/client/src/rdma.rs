//! The RDMA device of a host, as far as this build has the provider verbs.

use std::io;

use toroid_fabric::rdma_stream::PreparedRdmaStream;
use toroid_model::rdma::Rdma;

/// Whether this build has the provider verbs.
pub const IS_BUILT: bool = cfg!(feature = "verbs");

/// Why the device that is wanted cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RdmaError {
    /// Nothing of it was built.
    #[error("this build has no provider verbs")]
    NotBuilt,
    /// There is no such device, or it cannot be used.
    #[cfg(feature = "verbs")]
    #[error(transparent)]
    Device(#[from] toroid_fabric::verbs::DeviceError),
    /// The device lacks a required feature.
    #[error("the RDMA device cannot be used: {0}")]
    System(#[from] io::Error),
}

impl RdmaError {
    /// Remedy.
    pub fn remedy(&self) -> &'static str {
        match self {
            RdmaError::NotBuilt => {
                "build it with `cargo build --release --features toroid-cli/verbs` after `apt-get install \
                 cmake libclang-dev libibverbs-dev libnl-3-dev libnl-route-3-dev pkg-config`, or \
                 choose provider = \"tcp\""
            }
            RdmaError::System(_) => "raise `ulimit -l` of the agent, and see the kernel's log",
            #[cfg(feature = "verbs")]
            RdmaError::Device(_) => {
                "see `toroid doctor`, and device, port, gid-index and partition-key-index in the file \
                 for `toroid up --config`"
            }
        }
    }
}

#[cfg(not(feature = "verbs"))]
pub use not_built::{check, prepare_line};

#[cfg(feature = "verbs")]
pub use devices::{check, device, prepare_line};

#[cfg(not(feature = "verbs"))]
mod not_built {
    use super::{PreparedRdmaStream, Rdma, RdmaError};

    /// Describes the chosen device: its name, port, GID and partition key.
    ///
    /// # Errors
    /// [`RdmaError`].
    pub fn check(_: &Rdma) -> Result<String, RdmaError> {
        Err(RdmaError::NotBuilt)
    }

    /// Prepares an end of a line at this device.
    ///
    /// # Errors
    /// [`RdmaError`].
    pub fn prepare_line(_: &Rdma) -> Result<Box<dyn PreparedRdmaStream>, RdmaError> {
        Err(RdmaError::NotBuilt)
    }
}

#[cfg(feature = "verbs")]
mod devices {
    use std::sync::{Arc, Mutex, PoisonError};

    use toroid_fabric::verbs::{Device, DeviceError, Selection};

    use super::{PreparedRdmaStream, Rdma, RdmaError};

    /// Devices that this process has opened, or failed to open.
    static OPENED: Mutex<Vec<(Rdma, Option<Arc<Device>>)>> = Mutex::new(Vec::new());

    /// Describes the chosen device: its name, port, GID and partition key.
    ///
    /// # Errors
    /// [`RdmaError`].
    pub fn check(rdma: &Rdma) -> Result<String, RdmaError> {
        let device = open(rdma)?;
        Ok(format!(
            "{} port {}, GID {}, partition key {}",
            device.name(),
            device.port(),
            device.gid_index(),
            device.partition_key_index()
        ))
    }

    /// Prepares an end of a line at this device, which is opened for it alone.
    ///
    /// # Errors
    /// [`RdmaError`].
    pub fn prepare_line(rdma: &Rdma) -> Result<Box<dyn PreparedRdmaStream>, RdmaError> {
        let prepared = toroid_fabric::verbs::PreparedRdmaStream::new(&open(rdma)?)?;
        Ok(Box::new(prepared))
    }

    /// The device, open until this process ends, or `None` if it cannot be opened. The first failure
    /// is logged.
    pub fn device(rdma: &Rdma) -> Option<Arc<Device>> {
        let mut opened = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, device)) = opened.iter().find(|(wanted, _)| wanted == rdma) {
            return device.clone();
        }
        let device = open(rdma);
        if let Err(error) = &device {
            tracing::warn!("what could go by an RDMA device goes by tcp: {error}");
        }
        let device = device.ok();
        opened.push((rdma.clone(), device.clone()));
        device
    }

    fn open(rdma: &Rdma) -> Result<Arc<Device>, DeviceError> {
        let chosen = Selection::default();
        Device::open(&Selection {
            device: rdma.device.clone(),
            port: rdma.port.unwrap_or(chosen.port),
            gid_index: rdma.gid_index,
            partition_key_index: rdma
                .partition_key_index
                .unwrap_or(chosen.partition_key_index),
        })
    }
}
