//! The RDMA adapter of a host: which one it is to be, and the open device.

use std::io;

use serde::{Deserialize, Serialize};
use toroid_fabric::rdma_stream::PreparedLine;

/// Which RDMA adapter is used between hosts, and how. What is not said is chosen.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rdma {
    /// The device's name; the first that there is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// The port's number; the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u8>,
    /// Which of the port's global identifiers; the one that reaches farthest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gid_index: Option<u8>,
    /// Which of the port's partition keys; the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partition_key_index: Option<u16>,
}

/// Why the adapter that is wanted cannot be used.
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
    /// It does not do what is needed of it.
    #[error("the RDMA adapter cannot be used: {0}")]
    System(#[from] io::Error),
}

impl RdmaError {
    /// What to do about it.
    pub fn remedy(&self) -> &'static str {
        match self {
            RdmaError::NotBuilt => {
                "build it with `cargo build --release --features domains/verbs` after `apt-get install \
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
impl Rdma {
    /// Says what there is: the name of the device, its port and what it goes by.
    ///
    /// # Errors
    /// [`RdmaError`].
    pub fn check(&self) -> Result<String, RdmaError> {
        Err(RdmaError::NotBuilt)
    }

    /// Prepares an end of a line at this adapter.
    ///
    /// # Errors
    /// [`RdmaError`].
    pub fn prepare_line(&self) -> Result<Box<dyn PreparedLine>, RdmaError> {
        Err(RdmaError::NotBuilt)
    }
}

#[cfg(feature = "verbs")]
mod devices {
    use std::sync::{Arc, Mutex, PoisonError};

    use toroid_fabric::verbs::{Device, DeviceError, Selection};

    use super::{PreparedLine, Rdma, RdmaError};

    /// Those that this process has open, or could not open.
    static OPENED: Mutex<Vec<(Rdma, Option<Arc<Device>>)>> = Mutex::new(Vec::new());

    impl Rdma {
        /// Says what there is: the name of the device, its port and what it goes by.
        ///
        /// # Errors
        /// [`RdmaError`].
        pub fn check(&self) -> Result<String, RdmaError> {
            let device = self.open()?;
            Ok(format!(
                "{} port {}, GID {}, partition key {}",
                device.name(),
                device.port(),
                device.gid_index(),
                device.partition_key_index()
            ))
        }

        /// Prepares an end of a line at this adapter, which is opened for it alone.
        ///
        /// # Errors
        /// [`RdmaError`].
        pub fn prepare_line(&self) -> Result<Box<dyn PreparedLine>, RdmaError> {
            let prepared = toroid_fabric::verbs::PreparedLine::new(&self.open()?)?;
            Ok(Box::new(prepared))
        }

        /// The device, as long as this process lives. If it cannot be opened, this is said once.
        pub(crate) fn device(&self) -> Option<Arc<Device>> {
            let mut opened = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some((_, device)) = opened.iter().find(|(wanted, _)| wanted == self) {
                return device.clone();
            }
            let device = self.open();
            if let Err(error) = &device {
                tracing::warn!("what could go by an RDMA adapter goes by tcp: {error}");
            }
            let device = device.ok();
            opened.push((self.clone(), device.clone()));
            device
        }

        fn open(&self) -> Result<Arc<Device>, DeviceError> {
            let chosen = Selection::default();
            Device::open(&Selection {
                device: self.device.clone(),
                port: self.port.unwrap_or(chosen.port),
                gid_index: self.gid_index,
                partition_key_index: self
                    .partition_key_index
                    .unwrap_or(chosen.partition_key_index),
            })
        }
    }
}
