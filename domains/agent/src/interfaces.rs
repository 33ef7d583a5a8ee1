//! What the interfaces of nodes are: TAPs where the kernel has some to give, and otherwise stacks,
//! links for processes that bring sockets of their own.

use std::fs::OpenOptions;
use std::io;

use serde::{Deserialize, Serialize};
use toroid_fabric::NodeId;
use toroid_model::directory::Domain;
use toroid_model::refusal::{Refusal, RefusalKind};

use crate::config::Config;
use crate::error::AgentError;

/// What interfaces of this host are, whatever domains say.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Interfaces {
    /// Whether they offload, unless their membership is plain.
    pub(crate) offload: bool,
    /// Whether the kernel has none to give.
    pub(crate) stacks: bool,
}

impl Interfaces {
    /// Those that were there before, or what the kernel lets them be; and if there are no TAPs, why,
    /// and what to do.
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
        };
        Ok((interfaces, no_taps))
    }

    /// Whether a member has no interface of the kernel.
    pub(crate) fn is_stack(self, domain: &Domain, node: NodeId) -> bool {
        self.stacks || domain.spec(node).userspace_stack
    }
}

/// How to get at the device of which TAPs are made.
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

/// Nodes that are there keep what they have.
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
