//! Networks of several hosts on one machine: a namespace each, and a cable between each two.
//!
//! The kernel removes all of it with the last process and descriptor, however the run ends.

use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd};
use std::path::PathBuf;

use toroid_netlink::{Netlink, NetlinkError, namespace};

use crate::cluster::{ClusterError, system};

/// Port of agents.
const PORT: u16 = 7470;

/// Prefix length of the subnet of a cable.
const PREFIX: u8 = 30;

/// Networks of hosts, which are numbered from 0.
#[derive(Debug)]
pub struct Networks(Vec<File>);

impl Networks {
    /// Makes `count` networks, at most 16, each connected to all others. The caller is root.
    pub fn mesh(count: usize) -> Result<Self, ClusterError> {
        let all: std::io::Result<_> = (0..count).map(|_| namespace::create()).collect();
        let networks = Networks(all.map_err(system("make a network for a host"))?);
        networks.connect().map_err(ClusterError::ours)?;
        Ok(networks)
    }

    fn connect(&self) -> Result<(), NetlinkError> {
        for near in 0..self.0.len() {
            let mut netlink = self.open(near)?;
            let loopback = netlink.index("lo")?;
            netlink.set_up(loopback)?;
            for far in near + 1..self.0.len() {
                netlink.create_veth(&cable(far), &cable(near), self.0[far].as_fd())?;
                for (of, towards) in [(near, far), (far, near)] {
                    let mut netlink = self.open(of)?;
                    let index = netlink.index(&cable(towards))?;
                    netlink.add_address(index, address(of, towards).into(), PREFIX)?;
                    netlink.set_up(index)?;
                }
            }
        }
        Ok(())
    }

    fn open(&self, host: usize) -> Result<Netlink, NetlinkError> {
        Netlink::open_in(self.0[host].as_fd())
    }

    /// Takes down a host's end of its cable to another one.
    pub fn cut(&self, host: usize, from: usize) -> Result<(), ClusterError> {
        let cut = || {
            let mut netlink = self.open(host)?;
            let index = netlink.index(&cable(from))?;
            netlink.set_down(index)
        };
        cut().map_err(|error: NetlinkError| ClusterError::ours(error))
    }

    /// Brings it up again.
    pub fn mend(&self, host: usize, from: usize) -> Result<(), ClusterError> {
        let mend = || {
            let mut netlink = self.open(host)?;
            let index = netlink.index(&cable(from))?;
            netlink.set_up(index)
        };
        mend().map_err(|error: NetlinkError| ClusterError::ours(error))
    }

    /// Calls `work` in a host's network. Processes that it starts are there.
    pub fn inside<R: Send>(
        &self,
        host: usize,
        work: impl FnOnce() -> R + Send,
    ) -> Result<R, ClusterError> {
        namespace::inside(&self.0[host], work).map_err(system("enter the network of a host"))
    }

    /// A path by which a child of this process finds the network of a host.
    pub fn path(&self, host: usize) -> PathBuf {
        let descriptor = self.0[host].as_raw_fd();
        format!("/proc/{}/fd/{descriptor}", std::process::id()).into()
    }
}

/// Address of a host on its cable to another one.
pub fn address(of: usize, towards: usize) -> Ipv4Addr {
    let (low, high) = (of.min(towards) as u8, of.max(towards) as u8);
    Ipv4Addr::new(10, 99, 16 * low + high, if of < towards { 1 } else { 2 })
}

/// Address of the agent of a host, seen from another one.
pub fn agent(of: usize, towards: usize) -> SocketAddr {
    (address(of, towards), PORT).into()
}

/// Address at which each agent listens: all of its cables.
pub fn listen() -> SocketAddr {
    (Ipv4Addr::UNSPECIFIED, PORT).into()
}

/// The interface of a cable to a host.
fn cable(to: usize) -> String {
    format!("to-{to}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ends_of_a_cable_are_alone_in_their_subnet() {
        let ends = |near, far| [address(near, far), address(far, near)].map(|end| end.octets());
        assert_eq!(ends(0, 1), [[10, 99, 1, 1], [10, 99, 1, 2]]);
        assert_eq!(ends(3, 2), [[10, 99, 35, 2], [10, 99, 35, 1]]);
    }
}
