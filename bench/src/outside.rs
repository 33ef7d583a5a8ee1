//! An external network: a host outside of the fabric, connected to the host of the agent.
//!
//! Both hosts are network namespaces that only processes of the run are in. So gateways change
//! neither interfaces nor rules nor settings of the machine, and the kernel removes all of it with
//! the last process, however that ends.

use std::fs::File;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::AsFd;

use nix::sched::{CloneFlags, unshare};
use toroid_netlink::namespace::inside;
use toroid_netlink::{Netlink, NetlinkError};

use crate::cluster::{Cluster, ClusterError, Process, check_tun, system};

/// The network namespace of the calling thread.
const NETWORK: &str = "/proc/thread-self/ns/net";

/// An address and the length of its prefix.
type Address = (Ipv4Addr, u8);

/// The network of an agent's host, and that of a host outside.
#[derive(Debug)]
pub struct Outside {
    host: File,
    outside: File,
}

/// A pair of interfaces between both hosts, with the same name at each end.
#[derive(Clone, Copy, Debug)]
pub struct Uplink<'a> {
    pub name: &'a str,
    /// Bytes.
    pub mtu: u32,
    /// Last but one byte of the MAC addresses.
    pub number: u8,
    /// Address at the agent's host, if that end has one, and outside.
    pub addresses: [Option<Address>; 2],
}

impl Outside {
    /// Creates both networks, and moves the calling thread to that of the agent's host. An agent
    /// that this thread starts runs there.
    ///
    /// # Errors
    /// [`ClusterError::NotRoot`], [`ClusterError::Tun`], or the system's.
    pub fn create() -> Result<Self, ClusterError> {
        if !nix::unistd::geteuid().is_root() {
            let action = "connect nodes to an external network";
            return Err(ClusterError::NotRoot { action });
        }
        check_tun()?;
        let outside = enter_new_network().map_err(system("create a network outside"))?;
        let host = enter_new_network().map_err(system("create a network for the agent"))?;
        Ok(Outside { host, outside })
    }

    /// Connects both hosts.
    ///
    /// # Errors
    /// The kernel's.
    pub fn connect(&self, uplink: &Uplink<'_>) -> Result<(), ClusterError> {
        self.create_pair(uplink).map_err(ClusterError::ours)
    }

    /// Starts a worker at the host outside.
    ///
    /// # Errors
    /// The system's.
    pub fn worker(&self, cluster: &mut Cluster) -> Result<Process, ClusterError> {
        inside(&self.outside, || cluster.worker_outside()).map_err(system("enter a network"))?
    }

    fn create_pair(&self, uplink: &Uplink<'_>) -> Result<(), NetlinkError> {
        let Uplink { name, number, .. } = *uplink;
        let networks = [&self.host, &self.outside];
        let [near, far] = networks.map(AsFd::as_fd);
        Netlink::open_in(near)?.create_veth(name, name, far)?;
        let ends = (1..).zip(networks.into_iter().zip(uplink.addresses));
        for (end, (network, address)) in ends {
            let mut netlink = Netlink::open_in(network.as_fd())?;
            let index = netlink.index(name)?;
            // A bridge drops frames from a MAC address like a member's, which the kernel may choose.
            netlink.set_mac(index, [2, 0, 0, 0, number, end])?;
            netlink.set_mtu(index, uplink.mtu)?;
            if let Some((address, prefix)) = address {
                netlink.add_address(index, address.into(), prefix)?;
            }
            netlink.set_up(index)?;
        }
        Ok(())
    }
}

fn enter_new_network() -> io::Result<File> {
    unshare(CloneFlags::CLONE_NEWNET)?;
    File::open(NETWORK)
}
