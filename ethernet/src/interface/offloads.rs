//! Offloads that this kernel supports, found by trying: some kernels accept the flags and then
//! reject the packets.

use std::io;
use std::thread;

use nix::sched::{CloneFlags, unshare};
use smoltcp::wire::IpVersion;
use toroid_netlink::{Netlink, NetlinkError};
use tracing::{info, warn};

use crate::offload::Capabilities;
use crate::offload::gso_packet::GsoPacket;
use crate::offload::layout::Transport;
use crate::port::tap::Tap;

const NAME: &str = "probe";

/// Reasons why offloads cannot be tried.
#[derive(Debug, thiserror::Error)]
enum ProbeError {
    #[error("cannot make a network namespace: {0}")]
    Namespace(io::Error),
    #[error("cannot open a TAP: {0}")]
    Tap(io::Error),
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
    #[error("the thread ended")]
    Ended,
}

/// Tries all offloads with a TAP in a temporary network namespace. If that fails, no offload is
/// used, which is slow but works everywhere.
pub(crate) fn capabilities() -> Capabilities {
    // The namespace belongs to the thread.
    let probing = thread::Builder::new().name(NAME.into()).spawn(try_all);
    let probed = match probing {
        Ok(thread) => thread.join().unwrap_or(Err(ProbeError::Ended)),
        Err(_) => Err(ProbeError::Ended),
    };
    probed.unwrap_or_else(|error| {
        warn!("interfaces do without offload, which cannot be tried: {error}");
        Capabilities::empty()
    })
}

fn try_all() -> Result<Capabilities, ProbeError> {
    unshare(CloneFlags::CLONE_NEWNET).map_err(|error| ProbeError::Namespace(error.into()))?;
    let mut tap = Tap::open(NAME, Capabilities::empty()).map_err(ProbeError::Tap)?;
    let mut netlink = Netlink::open()?;
    let index = netlink.index(NAME)?;
    netlink.set_up(index)?;
    let mut works = Capabilities::CHECKSUM;
    for capability in [Capabilities::TSO4, Capabilities::TSO6, Capabilities::USO] {
        match try_one(&mut tap, capability) {
            Ok(()) => works |= capability,
            Err(error) => info!("this kernel does not offload {capability:?}: {error}"),
        }
    }
    Ok(works)
}

/// Tries one offload together with that of checksums, which each other offload requires.
fn try_one(tap: &mut Tap, capability: Capabilities) -> io::Result<()> {
    tap.set_capabilities(Capabilities::CHECKSUM | capability)?;
    samples(capability).try_for_each(|sample| tap.send(&sample.to_bytes()))
}

/// A GSO packet of each type that a port with this capability may receive.
fn samples(capability: Capabilities) -> impl Iterator<Item = GsoPacket> {
    let kinds = [
        (Capabilities::TSO4, Transport::Tcp, IpVersion::Ipv4),
        (Capabilities::TSO6, Transport::Tcp, IpVersion::Ipv6),
        (Capabilities::USO, Transport::Udp, IpVersion::Ipv4),
        (Capabilities::USO, Transport::Udp, IpVersion::Ipv6),
    ];
    let kinds = kinds.into_iter().filter(move |(of, ..)| *of == capability);
    kinds.map(|(_, transport, ip_version)| GsoPacket {
        transport,
        ip_version,
        ..GsoPacket::default()
    })
}
