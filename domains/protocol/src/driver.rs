//! Messages between an agent and its Ethernet driver.
//!
//! The standard input of the driver is its liveness socket, which carries sessions
//! ([`crate::liveness`]), one at a time; messages are framed by [`crate::wire`]. Only the agent
//! sends requests. The driver answers [`DriverRequest::Retain`], [`DriverRequest::Sync`],
//! [`DriverRequest::Drops`], [`DriverRequest::RdmaFrames`] and [`DriverRequest::Plug`], in order,
//! each after all earlier requests have been executed. Unasked it reports tunnels that have ended
//! or changed their path, and why ([`DriverResponse::NoRdma`]). At the end of a session ports and
//! tunnels stay for the next agent; the end of the liveness socket ends the driver.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr};

use serde::{Deserialize, Serialize};
use toroid_fabric::Place;
use toroid_model::ethernet::{DropReason, OffloadKind};
use toroid_model::link::{LinkModel, Rate};
use toroid_model::rdma::Rdma;

use crate::seal::SealKeys;

/// Request of the agent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "snake_case", deny_unknown_fields)]
pub enum DriverRequest {
    /// First in a session. Removes ports and remote members that are not among these, as by
    /// [`DriverRequest::RemovePort`], links of domains without ports among these, and tunnels to
    /// other hosts than these, or all tunnels if the RDMA device or encryption differs. Answered by
    /// [`DriverResponse::Tunnels`].
    Retain {
        /// Numbers of domains and nodes.
        ports: Vec<(u32, u32)>,
        /// Names of other hosts.
        hosts: Vec<String>,
        /// The RDMA device for frames between hosts, if there is one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        rdma: Option<Rdma>,
        /// Whether tunnels are encrypted.
        #[serde(default)]
        sealed: bool,
    },
    /// Offers a network namespace in which frames pass from port to port without the driver
    /// ([`Port::kernel`]). One descriptor: the namespace, which outlives the driver.
    Kernel,
    /// Makes an interface, or takes over a present one, as after a restart of the driver. One
    /// descriptor: the network namespace of the node. A present port may be added again with
    /// another epoch, [`Port::limited`], [`Port::offload`], [`Port::gateway`], [`Port::forward`],
    /// [`Port::rate`] or [`Port::kernel`].
    AddPort(Port),
    /// Adds or changes a member on another host.
    #[serde(rename = "add_far")]
    AddRemote {
        /// The other host.
        host: String,
        /// The port as its own driver knows it. Fields about its interface are ignored.
        port: Port,
    },
    /// Removes a port: cuts its frames at once and deletes its interface later. Removes a remote
    /// member likewise. Does nothing if there is neither.
    RemovePort {
        /// Number of the domain.
        domain_id: u32,
        /// Number of the node.
        node: u32,
    },
    /// Sets a new epoch of a domain, after the ports of former members were removed.
    Epoch {
        /// Number of the domain.
        domain_id: u32,
        /// The epoch.
        epoch: u32,
    },
    /// Replaces the tunnel to the driver of another host. One descriptor: the socket. The driver
    /// reports its end ([`DriverResponse::Tunnels`]).
    #[serde(rename = "trunk")]
    Tunnel {
        /// The other host.
        host: String,
        /// Whether this side offers RDMA streams; the other side answers.
        #[serde(default)]
        asks: bool,
        /// Keys of the connection; `None` for a clear one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        keys: Option<SealKeys>,
    },
    /// Ends the tunnel to the driver of another host, if there is one.
    EndTunnel {
        /// The other host.
        host: String,
    },
    /// Connects these domains to external networks, and no others.
    Uplinks {
        /// At most one for each domain.
        uplinks: Vec<Uplink>,
    },
    /// Sets the links of a domain, which may have no ports yet. With a model, one descriptor: its
    /// clocks ([`toroid_fabric::model::SharedClocks`]), which may be those that the driver has
    /// already, and are fresh when a member has left. If routes are chosen, a second one: their
    /// records ([`toroid_fabric::routing::RouteRecords`]). The driver keeps the links of each domain
    /// until the next request for the domain, also over the end of a session.
    Links {
        /// Number of the domain.
        domain_id: u32,
        /// Their model; null: the machine's.
        model: Option<LinkModel>,
        /// Processor time that the driver may spend on waiting for due frames, in percent of a core.
        precision: u8,
    },
    /// Sets the deadlines after which members of fenced domains send and receive nothing. One
    /// descriptor: their memory ([`toroid_fabric::deadlines::Deadlines`]). A driver that cannot map
    /// the memory ends.
    Deadlines,
    /// Answered by [`DriverResponse::Synced`].
    Sync {
        /// Any number.
        n: u64,
    },
    /// Connects a process of a node to a port whose interface is a stack. One descriptor: the end
    /// of the driver of a `SOCK_SEQPACKET` socket. Answered by [`DriverResponse::Plugged`].
    Plug {
        /// Any number.
        n: u64,
        /// Number of the domain.
        domain_id: u32,
        /// Number of the node.
        node: u32,
    },
    /// Answered by [`DriverResponse::RdmaFrames`].
    #[serde(rename = "lines")]
    RdmaFrames {
        /// Any number.
        n: u64,
    },
    /// Answered by [`DriverResponse::Dropped`].
    Drops {
        /// Any number.
        n: u64,
        /// Number of the domain.
        domain_id: u32,
    },
}

/// Response of the driver.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "snake_case", deny_unknown_fields)]
pub enum DriverResponse {
    /// All requests before [`DriverRequest::Sync`] have been executed, or have failed.
    Synced {
        /// Number of the [`DriverRequest::Sync`].
        n: u64,
        /// Failures since the previous one.
        errors: Vec<PortError>,
        /// Offloads that this kernel supports for ports with [`Port::offload`].
        offload: Vec<OffloadKind>,
        /// Why no frames pass without the driver, if that is so.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        without_kernel: Option<String>,
    },
    /// Result of a [`DriverRequest::Plug`].
    Plugged {
        /// Number of the [`DriverRequest::Plug`].
        n: u64,
        /// Reason of the failure, if it failed.
        failure: Option<PlugFailure>,
    },
    /// Dropped frames.
    Dropped {
        /// Number of the [`DriverRequest::Drops`].
        n: u64,
        /// Frames of each port of the domain.
        ports: Vec<PortDrops>,
        /// Frames from other hosts in the domain, by host.
        hosts: BTreeMap<String, BTreeMap<DropReason, u64>>,
    },
    /// Frames over RDMA.
    #[serde(rename = "lines")]
    RdmaFrames {
        /// Number of the [`DriverRequest::RdmaFrames`].
        n: u64,
        /// Frames to and from each other host since the start of the driver.
        frames_by_rdma: BTreeMap<String, u64>,
    },
    /// Frames to and from a host do not go over RDMA. Sent once for each interruption.
    #[serde(rename = "no_line")]
    NoRdma {
        /// The other host.
        host: String,
        /// Reason, as text.
        why: String,
    },
    /// The present tunnels.
    #[serde(rename = "trunks")]
    Tunnels {
        /// Names of the other hosts.
        up: Vec<String>,
        /// Hosts with frames over RDMA in both directions.
        #[serde(default)]
        by_rdma: Vec<String>,
    },
}

/// Reasons why a process cannot have the stack of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PlugFailure {
    /// There is no such port, or its interface is a TAP.
    NoStack,
    /// Another process has it.
    Taken,
    /// The system cannot wait for the socket.
    System,
}

/// Dropped frames of a port, since it was added or the driver was started.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortDrops {
    /// Number of the node.
    pub node: u32,
    /// Whether they came from the external network, of the domain whose gateway is at this node.
    pub outside: bool,
    /// Numbers by reason; missing ones are 0.
    pub dropped: BTreeMap<DropReason, u64>,
}

/// A request that failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortError {
    /// Number of the domain.
    pub domain_id: u32,
    /// Number of the node.
    pub node: u32,
    /// Failure and reason, as text.
    pub message: String,
}

/// The interface of one node in one domain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Port {
    /// Number of the node.
    pub node: u32,
    /// Place of the node.
    #[serde(with = "toroid_model::as_text")]
    pub place: Place,
    /// Number of the domain: the partition of its packets, and two bytes of the MAC address.
    pub domain_id: u32,
    /// Epoch of the domain.
    pub epoch: u32,
    /// Name of the interface, which is that of the domain.
    pub ifname: String,
    /// MAC address, the only permitted source address.
    pub mac: [u8; 6],
    /// IPv4 address.
    pub ipv4: Ipv4Addr,
    /// Prefix length of the IPv4 address.
    pub prefix: u8,
    /// Number of IPv4 addresses that the directory can assign in the domain, from the second of
    /// the subnet on.
    pub nodes: u32,
    /// IPv6 address, assigned without duplicate address detection.
    pub ipv6: Ipv6Addr,
    /// Prefix length of the IPv6 address.
    pub ipv6_prefix: u8,
    /// MTU in bytes.
    pub mtu: u32,
    /// Whether the node is a limited member, which talks to full members only.
    pub limited: bool,
    /// Whether the interface uses and accepts offloads of checksums and segmentation.
    pub offload: bool,
    /// The gateway of the domain: the address of a member, perhaps the own one.
    pub gateway: Option<Ipv4Addr>,
    /// Whether the domain has routers. A node in two such domains forwards packets between them,
    /// and members may send router advertisements.
    pub forward: bool,
    /// Whether the interface is a stack: a process of the node has it instead of the kernel.
    pub stack: bool,
    /// Rate limit of the member; absent: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<Rate>,
    /// Whether frames to and from other such members of the domain on this host may pass through the
    /// kernel alone.
    #[serde(default)]
    pub kernel: bool,
}

/// An interface of the host to an external network.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Uplink {
    /// Number of the domain.
    pub domain_id: u32,
    /// Number of the node at which it is.
    pub node: u32,
    /// Name of the interface.
    pub ifname: String,
    /// Index of the interface; a later one may have the same name.
    pub index: u32,
    /// MTU of the members, in bytes.
    pub mtu: u32,
    /// Whether the node is a limited member. The external network then talks to full members only.
    pub limited: bool,
}

/// Name of the device at the other end of a member's interface, in the network namespace of
/// [`DriverRequest::Kernel`].
pub fn outer_device(domain_id: u32, node: u32) -> String {
    format!("v{domain_id:x}.{node:x}")
}

impl Port {
    /// Whether two ports have the same interface.
    pub fn is_same_interface(&self, other: &Port) -> bool {
        let Port {
            epoch,
            limited,
            offload,
            gateway,
            forward,
            rate,
            kernel,
            ..
        } = *other;
        Port {
            epoch,
            limited,
            offload,
            gateway,
            forward,
            rate,
            kernel,
            ..self.clone()
        } == *other
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    use toroid_model::link::DomainLinks;

    use super::*;
    use crate::wire;

    fn port() -> Port {
        Port {
            node: 3,
            place: Place { x: 1, y: 1, z: 0 },
            domain_id: 7,
            epoch: 2,
            ifname: "blue".into(),
            mac: [6, 0, 7, 1, 1, 0],
            ipv4: Ipv4Addr::new(10, 64, 0, 4),
            prefix: 24,
            nodes: 8,
            ipv6: Ipv6Addr::LOCALHOST,
            ipv6_prefix: 64,
            mtu: 9000,
            limited: false,
            offload: true,
            gateway: Some(Ipv4Addr::new(10, 64, 0, 1)),
            forward: true,
            stack: false,
            rate: None,
            kernel: false,
        }
    }

    #[test]
    fn every_message_survives_the_wire() {
        let (agent, driver) = UnixStream::pair().unwrap();
        let (mut answers, commands) = wire::split(agent).unwrap();
        let (mut reader, writer) = wire::split(driver).unwrap();
        let namespace = tempfile::tempfile().unwrap();

        let sent = [
            DriverRequest::Retain {
                ports: vec![(7, 3)],
                hosts: vec!["b".into()],
                rdma: Some(Rdma::default()),
                sealed: true,
            },
            DriverRequest::AddPort(port()),
            DriverRequest::AddRemote {
                host: "b".into(),
                port: port(),
            },
            DriverRequest::Tunnel {
                host: "b".into(),
                asks: true,
                keys: None,
            },
            DriverRequest::EndTunnel { host: "b".into() },
            DriverRequest::RemovePort {
                domain_id: 7,
                node: 3,
            },
            DriverRequest::Epoch {
                domain_id: 7,
                epoch: 3,
            },
            DriverRequest::Uplinks {
                uplinks: vec![Uplink {
                    domain_id: 7,
                    node: 3,
                    ifname: "eth1".into(),
                    index: 2,
                    mtu: 9000,
                    limited: true,
                }],
            },
            DriverRequest::Links {
                domain_id: 7,
                model: Some(LinkModel::Pairs(DomainLinks {
                    default: "latency=5us".parse().unwrap(),
                    pairs: [("3>4".parse().unwrap(), "rate=1Gbit".parse().unwrap())].into(),
                })),
                precision: 30,
            },
            DriverRequest::Sync { n: 1 << 40 },
            DriverRequest::RdmaFrames { n: 1 },
            DriverRequest::Drops { n: 1, domain_id: 7 },
            DriverRequest::Plug {
                n: 1,
                domain_id: 7,
                node: 3,
            },
        ];
        for command in &sent {
            commands.send(command, &[namespace.as_fd()]).unwrap();
            let (received, descriptors) = reader.receive::<DriverRequest>().unwrap();
            assert_eq!((&received, descriptors.len()), (command, 1));
        }

        let sent = [
            DriverResponse::Synced {
                n: 1 << 40,
                errors: vec![PortError {
                    domain_id: 7,
                    node: 3,
                    message: "no".into(),
                }],
                offload: vec![OffloadKind::Checksum, OffloadKind::Uso],
                without_kernel: Some("no nftables".into()),
            },
            DriverResponse::Dropped {
                n: 1,
                ports: vec![PortDrops {
                    node: 3,
                    outside: true,
                    dropped: DropReason::ALL.map(|reason| (reason, 1 << 40)).into(),
                }],
                hosts: [("b".into(), [(DropReason::WrongSource, 7)].into())].into(),
            },
            DriverResponse::Tunnels {
                up: vec!["b".into(), "c".into()],
                by_rdma: vec!["b".into()],
            },
            DriverResponse::RdmaFrames {
                n: 1,
                frames_by_rdma: [("b".into(), 1 << 40)].into(),
            },
            DriverResponse::NoRdma {
                host: "b".into(),
                why: "no".into(),
            },
            DriverResponse::Plugged {
                n: 1,
                failure: Some(PlugFailure::Taken),
            },
        ];
        for answer in sent {
            writer.send(&answer, &[]).unwrap();
            assert_eq!(answers.receive::<DriverResponse>().unwrap().0, answer);
        }
    }
}
