//! The path of a channel by the devices of both hosts.

use std::sync::Arc;

use super::retry::Retry;
use crate::mem::DropGuard;
use crate::verbs;
use crate::verbs::control::{PreparedChannel, ProtectionDomain};

/// Resources of a queue pair of the device.
#[derive(Debug)]
pub struct Resources {
    /// The protection domain.
    pub domain: Arc<ProtectionDomain>,
    /// Charges the queue pair; dropped with it.
    pub account: Option<DropGuard>,
}

/// Why there are no [`Resources`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoResources {
    /// A limit is reached; there may be resources later.
    Now,
    /// There is no device.
    Ever,
}

/// Provides [`Resources`] when the channel needs them.
pub type ResourceSource = Box<dyn Fn() -> Result<Resources, NoResources> + Send + Sync>;

/// The state of the path; `Absent` while a transition computes the next state.
#[derive(Default)]
pub(super) enum DevicePath {
    Down(Retry),
    /// Offered; the other side has not answered.
    Offered(Box<(PreparedChannel, Resources)>),
    /// Connected; no message has been acknowledged yet.
    Connected(DeviceChannel),
    Up(DeviceChannel),
    /// Failed: nothing more arrives. The other side has not said how many packets it has received.
    Leaving(DeviceChannel),
    /// As `Leaving`, after the other side has said so. Packets that have arrived are taken first.
    Draining(DeviceChannel),
    /// As `Leaving`, of a queue pair that was never connected here.
    Refused,
    /// One of the two sides has no device.
    #[default]
    Absent,
}

/// A connected channel of the devices, with its resources.
pub(super) struct DeviceChannel {
    pub(super) channel: Box<verbs::Channel>,
    pub(super) _resources: Resources,
}

impl DevicePath {
    /// The channel of the devices, if there is one.
    pub(super) fn channel(&mut self) -> Option<&mut verbs::Channel> {
        match self {
            DevicePath::Connected(path)
            | DevicePath::Up(path)
            | DevicePath::Leaving(path)
            | DevicePath::Draining(path) => Some(&mut path.channel),
            _ => None,
        }
    }

    /// Whether a connected channel has failed.
    pub(super) fn has_failed(&mut self) -> bool {
        match self {
            DevicePath::Connected(path) | DevicePath::Up(path) => path.channel.has_failed(),
            _ => false,
        }
    }
}
