//! Kinds of interfaces of nodes: TAPs, or, where the kernel has none to give, links for processes
//! with a userspace stack.

use std::fs::OpenOptions;
use std::io;

use serde::{Deserialize, Serialize};
use toroid_fabric::NodeId;
use toroid_model::directory::Domain;
use toroid_model::refusal::{Refusal, RefusalKind};

use crate::config::Config;
use crate::error::AgentError;

/// Interfaces of this host, independent of domains.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Interfaces {
    /// Whether they offload, unless the membership says no-offload.
    pub(crate) offload: bool,
    /// Whether all are links for userspace stacks.
    pub(crate) stacks: bool,
    /// Whether frames may pass through the kernel alone: the agent is root's, and emulates no torus.
    #[serde(default)]
    pub(crate) kernel: bool,
}

impl Interfaces {
    /// Interfaces as before, or as the kernel allows; and, without TAPs, the reason and remedy.
    ///
    /// # Errors
    /// [`AgentError::Tun`] when those from before are TAPs, which cannot be had any more.
    pub(crate) fn of(
        config: &Config,
        before: Option<Interfaces>,
    ) -> Result<(Self, Option<Refusal>), AgentError> {
        let offload = config.offload.or(before.map(|before| before.offload));
        let no_taps = match (&config.driver_command, before, open_tun()) {
            (None, ..) => None,
            (Some(_), Some(Interfaces { stacks: true, .. }), Ok(())) => Some(outdated()),
            (Some(_), Some(Interfaces { stacks: false, .. }), Err(error)) => {
                return Err(AgentError::Tun(error));
            }
            (Some(_), _, Ok(())) => None,
            (Some(_), _, Err(error)) => Some(missing(error)),
        };
        let interfaces = Interfaces {
            offload: offload.unwrap_or(true),
            stacks: no_taps.is_some(),
            kernel: false,
        };
        Ok((interfaces, no_taps))
    }

    /// Whether a member has a userspace stack.
    pub(crate) fn is_stack(self, domain: &Domain, node: NodeId) -> bool {
        self.stacks || domain.spec(node).userspace_stack
    }
}

/// Remedy for an error of the TAP device.
pub fn tun_remedy(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::NotFound => {
            "load it with `sudo modprobe tun`, or start the container with `--device /dev/net/tun \
             --cap-add NET_ADMIN`"
        }
        _ => {
            "allow it with `sudo chmod 0666 /dev/net/tun`, or start the container with `--device \
             /dev/net/tun --cap-add NET_ADMIN`"
        }
    }
}

fn missing(error: io::Error) -> Refusal {
    let remedy = format!("{}, then `toroid down` and `toroid up`", tun_remedy(&error));
    Refusal {
        remedy,
        ..AgentError::Tun(error).refusal()
    }
}

/// Refusal for existing nodes without TAPs, which stay as they are.
fn outdated() -> Refusal {
    Refusal::new(
        RefusalKind::Denied,
        "/dev/net/tun could not be opened when the nodes were made",
        "now it can: `toroid down`, then `toroid up`",
    )
}

fn open_tun() -> io::Result<()> {
    let mut options = OpenOptions::new();
    options
        .read(true)
        .write(true)
        .open("/dev/net/tun")
        .map(drop)
}
