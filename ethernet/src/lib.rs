//! Ethernet over the fabric: one virtual interface per node and domain, for programs that use sockets.
//!
//! One driver per host holds the TAPs of all of its nodes, and switches frames between them under the
//! rules of the domains. Frames to nodes of other hosts go from driver to driver. The agent starts the
//! driver and commands it.
//!
//! A node can do without an interface of the kernel: one of its processes opens a [`Stack`], which has
//! TCP and UDP sockets of a domain (feature `stack`, a default one).
//!
//! ```no_run
//! use std::io::Write;
//!
//! use toroid_client::member::Member;
//! use toroid_ethernet::Stack;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // Joins the domain `blue` of the node in which this process runs.
//! let stack = Stack::open(&Member::attach()?.domain("blue")?)?;
//! let listener = stack.listen(7000)?;
//! let (mut client, address) = listener.accept()?;
//! writeln!(client, "hello, {address}")?;
//! # Ok(())
//! # }
//! ```
//!
//! From the bytes up:
//!
//! * [`headers`]: views of the Ethernet, IP, ARP, ICMPv6, IGMP and MLD headers that matter to a switch.
//! * [`offload`]: GSO packets and checksums that a kernel left out; segmentation and coalescing.
//! * [`port`]: ports of the switch: TAPs, sockets of userspace stacks, uplinks.
//! * [`interface`]: the interface of a port in the network namespace of its node.
//! * `kernel`: frames between members that do not pass through the driver.
//! * [`tunnel`]: packets to and from the driver of another host.
//! * `delay_line`: frames that are under way on the links of a model.
//! * [`forward`]: which members of a domain a frame reaches; decisions without I/O.
//! * `switch`: the data path, one thread that moves frames.
//! * [`driver`]: the control path, which executes the commands of the agent.
//! * [`role`]: the driver as a role of another program.
//! * [`stack`]: the userspace stack.

#![deny(unsafe_code)]

mod delay_line;
pub mod driver;
pub mod forward;
pub mod headers;
pub mod interface;
mod kernel;
pub mod offload;
pub mod port;
pub mod role;
#[cfg(feature = "stack")]
pub mod stack;
pub(crate) mod switch;
pub mod tunnel;

#[cfg(feature = "stack")]
pub use stack::{Stack, StackError};
