//! Links for processes with a userspace stack: permission, and the stack socket.

use std::io;
use std::os::fd::OwnedFd;

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair, sockopt};
use toroid_fabric::NodeId;
use toroid_model::refusal::{Refusal, RefusalKind};
use toroid_protocol::agent::StackInfo;
use toroid_protocol::driver::{PlugFailure, Port};

use super::driver::{Driver, PlugError};
use crate::members::{Members, check_member};

/// Bytes that either end may send before the other has read them, as the kernel counts: a packet of
/// 9000 bytes takes twice that. More than the data in flight of a few connections, because packets
/// beyond are lost.
const BUFFER_BYTES: usize = 4 << 20;

/// Makes the link of a process of a node in a domain.
pub(crate) fn grant(
    driver: Option<&Driver>,
    members: &Members,
    node: NodeId,
    domain: &str,
) -> Result<(StackInfo, OwnedFd), Refusal> {
    let id = members.directory(|directory| {
        check_member(directory, domain, node)?;
        Ok::<_, Refusal>(directory.domain(domain)?.id)
    })?;
    let driver = driver.ok_or_else(|| {
        Refusal::new(
            RefusalKind::Invalid,
            "the agent runs without Ethernet",
            "start it without --no-ethernet",
        )
    })?;
    let granted = driver.plug(id.into(), node.0);
    let (port, socket) = granted.map_err(|error| refusal(&error, domain))?;
    Ok((info(&port), socket))
}

/// Makes both ends of a stack socket: the driver's, and the process's.
pub(super) fn stack_socket() -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = SocketFlags::CLOEXEC;
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    for end in [&ours, &theirs] {
        // Without the privilege, the kernel limits the size.
        if sockopt::set_socket_send_buffer_size_force(end, BUFFER_BYTES).is_err() {
            sockopt::set_socket_send_buffer_size(end, BUFFER_BYTES)?;
        }
    }
    Ok((ours, theirs))
}

fn refusal(error: &PlugError, domain: &str) -> Refusal {
    match error {
        PlugError::Refused(PlugFailure::NoStack) => Refusal::new(
            RefusalKind::Invalid,
            format!("this node's interface in {domain} is one of its kernel"),
            format!(
                "use the sockets of the kernel, or let the node be a member by `toroid domain \
                 grow {domain} NODE --interface stack`"
            ),
        ),
        PlugError::Refused(PlugFailure::Taken) => Refusal::new(
            RefusalKind::Exists,
            format!("another process has the addresses of this node in {domain}"),
            "end it first",
        ),
        PlugError::Refused(PlugFailure::System) => Refusal::new(
            RefusalKind::Exhausted,
            "the Ethernet driver cannot wait for another process",
            "end some processes that have a stack",
        ),
        PlugError::NoDriver => Refusal::new(
            RefusalKind::Failed,
            "the Ethernet driver is being started",
            "ask once more",
        ),
        PlugError::System(error) => Refusal::new(
            RefusalKind::Exhausted,
            format!("no socket for a link: {error}"),
            "raise `ulimit -n` of the agent",
        ),
    }
}

fn info(port: &Port) -> StackInfo {
    StackInfo {
        mac: port.mac,
        ipv4: port.ipv4,
        prefix: port.prefix,
        ipv6: port.ipv6,
        ipv6_prefix: port.ipv6_prefix,
        mtu: port.mtu,
    }
}
