//! Ethernet over the fabric: in each node one interface per domain, for software that knows only
//! sockets.
//!
//! A program without an interface of the kernel opens a [`Stack`], which has TCP and UDP sockets of a
//! domain (feature `stack`, a default one). The other modules are the driver's.
//!
//! One driver per host holds every TAP of that host. Frames between two of its nodes go from TAP
//! to TAP, those to nodes of other hosts from driver to driver. From the bytes up:
//!
//! * [`offload`]: what comes before a frame: super-frames and checksums left out; [`layout`] finds
//!   a super-frame's headers, and [`segment`] does what was left undone, with [`checksum`].
//! * [`row`]: puts datagrams together to a super-frame.
//! * [`address`], [`frame`]: what a frame says of itself; [`ipv6`] finds what is in a packet.
//! * [`source`]: the address that a packet is from; [`router`]: who says that it is one.
//! * [`neighbour`]: answers to ARP requests and IPv6 neighbour solicitations.
//! * [`listener`]: reports about groups, and which group a frame is for.
//! * [`cable`]: the link of a process that brings its own IP stack, such as [`stack`]'s.
//! * [`exit`]: where frames come from and go to: a TAP, a cable or an uplink.
//! * [`forward`]: which of a partition's members a frame reaches; a decision, without I/O.
//! * [`tap`], [`interface`]: the kernel's side of a port, in the node's network namespace;
//!   [`removal`] deletes interfaces in batches, behind everybody's back.
//! * [`uplink`]: an interface of the host that leads outside; [`exit`](mod@exit) is a TAP or an uplink.
//! * [`tunnel`]: a connection to the driver of another host.
//! * [`probe`]: what this kernel may leave undone, tried out with a [`sample`].
//! * [`switch`]: the data path, a single thread that moves frames; [`patience`] tells it when to
//!   sleep.
//! * [`driver`]: the control path, which carries out the agent's commands.
//! * [`role`]: how a program becomes the driver.

#![deny(unsafe_code)]

pub mod driver;
pub mod forward;
pub mod headers;
pub mod interface;
pub mod offload;
pub mod port;
pub mod role;
#[cfg(feature = "stack")]
pub mod stack;
pub(crate) mod switch;
pub mod tunnel;

#[cfg(feature = "stack")]
pub use stack::{Stack, StackError};
