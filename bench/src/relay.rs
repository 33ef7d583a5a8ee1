//! The upper limit of a userspace Ethernet driver: a relay between two TAPs that only reads and
//! writes, without checks, counters or polling of several ports.
//!
//! Each direction has a thread, which blocks in its read.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::thread;

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use toroid_ethernet::offload::Capabilities;
use toroid_ethernet::port::tap::Tap;
use toroid_netlink::namespace::inside;
use toroid_netlink::{Netlink, NetlinkError};

/// Longer than any packet.
const LONGEST: usize = 70_000;

/// Failure to start a relay.
#[derive(Debug, thiserror::Error)]
pub enum RelayError {
    /// The system refused a TAP or a thread.
    #[error("cannot relay between TAPs: {0}")]
    Io(#[from] io::Error),
    /// Netlink did not find a new TAP.
    #[error("cannot find a TAP again: {0}")]
    Netlink(#[from] NetlinkError),
}

/// Carries packets between two TAPs of the same name. Dropping the relay deletes the TAPs.
#[derive(Debug)]
pub struct Relay {
    /// A connection to each namespace, and the TAP's index there.
    ends: [(Netlink, u32); 2],
}

impl Relay {
    /// Creates a TAP `name` in each of two network namespaces, still down, and relays packets with
    /// these offloads.
    ///
    /// # Errors
    /// [`RelayError`]; only root of the host may enter other namespaces.
    pub fn start(
        name: &str,
        networks: [&File; 2],
        capabilities: Capabilities,
    ) -> Result<Self, RelayError> {
        let [near, far] = networks;
        let taps = Arc::new([
            open(name, near, capabilities)?,
            open(name, far, capabilities)?,
        ]);
        let find = |network: &File| -> Result<(Netlink, u32), NetlinkError> {
            let mut netlink = Netlink::open_in(network.as_fd())?;
            let index = netlink.index(name)?;
            Ok((netlink, index))
        };
        let ends = [find(near)?, find(far)?];
        for from in [0, 1] {
            let taps = Arc::clone(&taps);
            thread::Builder::new()
                .name("relay".into())
                .spawn(move || relay(&taps[from], &taps[1 - from]))?;
        }
        Ok(Relay { ends })
    }
}

impl Drop for Relay {
    /// Deletes the interfaces, which fails the threads' reads and so ends the threads.
    fn drop(&mut self) {
        for (netlink, index) in &mut self.ends {
            // The interface may have gone with its node.
            let _ = netlink.delete(*index);
        }
    }
}

/// Opens a TAP in a network namespace.
fn open(name: &str, network: &File, capabilities: Capabilities) -> io::Result<Tap> {
    inside(network, || -> io::Result<Tap> {
        let tap = Tap::open(name, capabilities)?;
        tap.set_persistent(false)?;
        fcntl(&tap, FcntlArg::F_SETFL(OFlag::empty()))?;
        Ok(tap)
    })?
}

fn relay(from: &Tap, to: &Tap) -> io::Result<()> {
    let mut packet = vec![0; LONGEST];
    loop {
        let len = from.receive(&mut packet)?;
        // Interfaces may lose packets.
        let _ = to.send(&packet[..len]);
    }
}
