//! What an agent and its Ethernet driver say to each other, in types.
//!
//! The driver's standard input is its liveness socket, over which come sessions (see
//! [`crate::liveness`]), one at a time, on which the rest is said; frames are those of
//! [`crate::wire`]. The agent alone commands; the driver answers [`DriverRequest::Sync`], in order,
//! after everything before it has been carried out, [`DriverRequest::Retain`], [`DriverRequest::Drops`],
//! [`DriverRequest::Lines`] and [`DriverRequest::Plug`]. Unasked it tells of
//! trunks that have ended, or whose frames go another way now, and why ([`DriverResponse::NoLine`]). The end of a session leaves ports and trunks as they
//! are, for the next agent; the end of the liveness socket ends the driver.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr};

use serde::{Deserialize, Serialize};
use toroid_fabric::Place;
use toroid_model::ethernet::{DropReason, OffloadKind};
use toroid_model::rdma::Rdma;

/// What the agent says to the driver.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "snake_case", deny_unknown_fields)]
pub enum DriverRequest {
    /// First in a session: ports and far members that are not among these go, as by
    /// [`DriverRequest::RemovePort`], and trunks to hosts that are not, or all if the device is another than
    /// before. Asks for [`DriverResponse::Trunks`].
    Retain {
        /// Numbers of domains and nodes.
        ports: Vec<(u32, u32)>,
        /// Names of other hosts.
        hosts: Vec<String>,
        /// The RDMA device by which frames go between hosts, where it works.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        rdma: Option<Rdma>,
    },
    /// Makes an interface, or takes it over if it is there, as after a restart of the driver.
    /// One descriptor: the node's network namespace. A port that is there already may come again
    /// with another epoch, or with [`Port::limited`], [`Port::offload`], [`Port::gateway`] or
    /// [`Port::forward`] changed.
    AddPort(Port),
    /// Names a member that another host carries, or what has changed of it.
    AddFar {
        /// The host.
        host: String,
        /// As its own driver is told of it; what concerns its interface alone does not matter here.
        port: Port,
    },
    /// Cuts a port's packets and takes its interface down; the interface is deleted some time
    /// later. For a far member: it is none any longer. Nothing to do if there is neither.
    RemovePort {
        /// The domain's number.
        domain_id: u32,
        /// The node's number.
        node: u32,
    },
    /// A new epoch of a domain, after its leavers' ports were removed: ports carry it from now
    /// on.
    Epoch {
        /// The domain's number.
        domain_id: u32,
        /// The epoch.
        epoch: u32,
    },
    /// Gives a trunk: a connection to the driver of another host, in place of the one before. One
    /// descriptor: the socket. The driver tells of its end ([`DriverResponse::Trunks`]).
    Trunk {
        /// The host.
        host: String,
        /// Whether this side asks for what the two do by their RDMA devices; the other does not.
        #[serde(default)]
        asks: bool,
    },
    /// Which domains shall be one Ethernet with what is outside, and no others.
    Uplinks {
        /// At most one for each domain.
        uplinks: Vec<Uplink>,
    },
    /// Asks for [`DriverResponse::Synced`].
    Sync {
        /// Any number.
        n: u64,
    },
    /// Gives a process of a node the link of a port whose interface is a stack. One descriptor: the
    /// driver's end of a `SOCK_SEQPACKET` socket. Asks for [`DriverResponse::Plugged`].
    Plug {
        /// Any number.
        n: u64,
        /// The domain's number.
        domain_id: u32,
        /// The node's number.
        node: u32,
    },
    /// Asks for [`DriverResponse::Lines`].
    Lines {
        /// Any number.
        n: u64,
    },
    /// Asks for [`DriverResponse::Dropped`].
    Drops {
        /// Any number.
        n: u64,
        /// The domain's number.
        domain_id: u32,
    },
}

/// What the driver says to the agent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "snake_case", deny_unknown_fields)]
pub enum DriverResponse {
    /// Everything before [`DriverRequest::Sync`] has been carried out, or has failed.
    Synced {
        /// That of the [`DriverRequest::Sync`].
        n: u64,
        /// What went wrong since the previous one.
        errors: Vec<PortError>,
        /// What this kernel may leave undone in packets of ports with [`Port::offload`].
        offload: Vec<OffloadKind>,
    },
    /// Whether a process has the link of a port now.
    Plugged {
        /// That of the [`DriverRequest::Plug`].
        n: u64,
        /// Why not.
        failure: Option<PlugFailure>,
    },
    /// What became of frames that nobody received.
    Dropped {
        /// That of the [`DriverRequest::Drops`].
        n: u64,
        /// Of each port of the domain.
        ports: Vec<PortDrops>,
        /// Of what other hosts have sent in its name.
        hosts: BTreeMap<String, BTreeMap<DropReason, u64>>,
    },
    /// What has gone by RDMA devices.
    Lines {
        /// That of the [`DriverRequest::Lines`].
        n: u64,
        /// Frames to and from each other host, since the driver was started.
        frames_by_rdma: BTreeMap<String, u64>,
    },
    /// Frames to and from a host no longer go by RDMA devices, or still do not. It is said once for each
    /// time.
    NoLine {
        /// The host.
        host: String,
        /// Why, for people.
        why: String,
    },
    /// To which hosts there are trunks now.
    Trunks {
        /// Their names.
        up: Vec<String>,
        /// Those of them whose frames go by RDMA devices, both ways.
        #[serde(default)]
        by_rdma: Vec<String>,
    },
}

/// Why a process cannot have the link of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PlugFailure {
    /// There is no such port, or its interface is a TAP.
    NoStack,
    /// Another process has it.
    Taken,
    /// The system could not wait for the socket.
    System,
}

/// Frames that a port sent and that did not reach an interface, since it is there or its driver
/// was started.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortDrops {
    /// The node's number.
    pub node: u32,
    /// Whether it is about frames from outside, of the domain whose gateway is at this node.
    pub outside: bool,
    /// How many for which reason; what is missing is 0.
    pub dropped: BTreeMap<DropReason, u64>,
}

/// A command that failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortError {
    /// The domain's number.
    pub domain_id: u32,
    /// The node's number.
    pub node: u32,
    /// What failed and why, for people.
    pub message: String,
}

/// One node's interface in one domain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Port {
    /// The node's number.
    pub node: u32,
    /// Its place.
    #[serde(with = "toroid_model::as_text")]
    pub place: Place,
    /// The domain's number: the partition of its packets, and two bytes of the MAC address.
    pub domain_id: u32,
    /// The domain's epoch.
    pub epoch: u32,
    /// The interface's name, which is the domain's.
    pub ifname: String,
    /// The MAC address; a sender may use no other.
    pub mac: [u8; 6],
    /// The IPv4 address.
    pub ipv4: Ipv4Addr,
    /// Its prefix length.
    pub prefix: u8,
    /// The number of nodes of the torus. The directory can give each an IPv4 address of the domain, in
    /// the order of their numbers.
    pub nodes: u32,
    /// The IPv6 address, to be assigned without duplicate address detection.
    pub ipv6: Ipv6Addr,
    /// Its prefix length.
    pub ipv6_prefix: u8,
    /// Bytes.
    pub mtu: u32,
    /// Whether its node is a limited member, which talks to full ones only.
    pub limited: bool,
    /// Whether its interface may leave checksums and the cutting of segments to the driver, and
    /// receives what others have left so.
    pub offload: bool,
    /// By whom packets leave the domain: an address of a member, perhaps its own.
    pub gateway: Option<Ipv4Addr>,
    /// Whether its domain has routers: who is in another such domain, too, forwards packets from there, and
    /// members may announce themselves.
    pub forward: bool,
    /// Whether it has no interface of the kernel, but one of the node's processes may have its link.
    pub stack: bool,
}

/// An interface of the host that leads outside from a domain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Uplink {
    /// The domain's number.
    pub domain_id: u32,
    /// The number of the node at which it is.
    pub node: u32,
    /// The interface's name.
    pub ifname: String,
    /// Its number: one that comes later may have the same name.
    pub index: u32,
    /// The longest packet for members, in bytes.
    pub mtu: u32,
    /// Whether its node is a limited member: then full ones only talk to what is outside.
    pub limited: bool,
}

impl Port {
    /// Whether two ports differ in nothing that their interface shows.
    pub fn is_same_interface(&self, other: &Port) -> bool {
        let Port {
            epoch,
            limited,
            offload,
            gateway,
            forward,
            ..
        } = *other;
        Port {
            epoch,
            limited,
            offload,
            gateway,
            forward,
            ..self.clone()
        } == *other
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

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
            },
            DriverRequest::AddPort(port()),
            DriverRequest::AddFar {
                host: "b".into(),
                port: port(),
            },
            DriverRequest::Trunk {
                host: "b".into(),
                asks: true,
            },
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
            DriverRequest::Sync { n: 1 << 40 },
            DriverRequest::Lines { n: 1 },
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

        let answer = DriverResponse::Synced {
            n: 1 << 40,
            errors: vec![PortError {
                domain_id: 7,
                node: 3,
                message: "no".into(),
            }],
            offload: vec![OffloadKind::Checksum, OffloadKind::Uso],
        };
        writer.send(&answer, &[]).unwrap();
        assert_eq!(answers.receive::<DriverResponse>().unwrap().0, answer);
        let answer = DriverResponse::Dropped {
            n: 1,
            ports: vec![PortDrops {
                node: 3,
                outside: true,
                dropped: DropReason::ALL.map(|reason| (reason, 1 << 40)).into(),
            }],
            hosts: [("b".into(), [(DropReason::WrongSource, 7)].into())].into(),
        };
        writer.send(&answer, &[]).unwrap();
        assert_eq!(answers.receive::<DriverResponse>().unwrap().0, answer);
        let answer = DriverResponse::Trunks {
            up: vec!["b".into(), "c".into()],
            by_rdma: vec!["b".into()],
        };
        writer.send(&answer, &[]).unwrap();
        assert_eq!(answers.receive::<DriverResponse>().unwrap().0, answer);
        let answer = DriverResponse::Lines {
            n: 1,
            frames_by_rdma: [("b".into(), 1 << 40)].into(),
        };
        writer.send(&answer, &[]).unwrap();
        assert_eq!(answers.receive::<DriverResponse>().unwrap().0, answer);
        let answer = DriverResponse::NoLine {
            host: "b".into(),
            why: "no".into(),
        };
        writer.send(&answer, &[]).unwrap();
        assert_eq!(answers.receive::<DriverResponse>().unwrap().0, answer);
        let answer = DriverResponse::Plugged {
            n: 1,
            failure: Some(PlugFailure::Taken),
        };
        writer.send(&answer, &[]).unwrap();
        assert_eq!(answers.receive::<DriverResponse>().unwrap().0, answer);
    }
}
