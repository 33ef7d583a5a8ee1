//! The driver and its parts with interfaces of the kernel. A node is a network namespace, made by a
//! thread and ended with its descriptor; the test is the agent.
//!
//! These tests need root. Otherwise they fail if `CI=true` asks for them, and else report that
//! nothing was tested.

mod agent;
mod hosts;
mod interface;
mod kernel;
mod links;
mod membership;
mod node;
mod reachability;
mod segmentation;
mod verdicts;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Write};
use std::iter;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::socket::{setsockopt, sockopt::UdpGsoSegment};
use toroid_ethernet::driver::{self, DriverError};
use toroid_ethernet::offload::Offload;
use toroid_ethernet::tunnel::TunnelHeader;
use toroid_fabric::deadlines::Deadlines;
use toroid_fabric::{Epoch, Partition, Place};
use toroid_model::addressing;
use toroid_model::ethernet::DropReason;
use toroid_model::link::{DomainLinks, LinkModel};
use toroid_netlink::{Link, Netlink, namespace};
use toroid_protocol::driver::{DriverRequest, DriverResponse, Port, PortError};
use toroid_protocol::liveness;
use toroid_protocol::wire::{self, Reader, Writer};

use agent::{Agent, blue, has_kernel_path};
use hosts::tcp_pair;
use node::*;

const BLUE: u32 = 7;
const RED: u32 = 0x1234;

/// A longer wait is a hang.
const WATCHDOG: Duration = Duration::from_secs(20);
