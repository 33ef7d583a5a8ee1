//! The network between two hosts: `noise serve` and `noise connect`.
//!
//! Without I/O: [`wire`] has the messages and [`session`] the server's side of them, [`window`] the
//! rates of streams, [`packets`] the noise of datagrams, [`burst`] the verdict on a switching path,
//! [`changes`] change points. [`server`] and [`client`] are the two ends;
//! [`orders`], [`traffic`] and [`datagrams`] move the bytes of sockets, [`memory`] those of a domain. [`plan`] and [`report`] are the
//! measurements of `noise connect`, [`long`] those of `noise burst` and `noise stress`.

mod burst;
mod changes;
mod client;
mod control;
mod datagrams;
mod error;
pub mod key;
mod long;
mod memory;
mod orders;
mod packets;
mod plan;
mod report;
mod server;
pub mod session;
mod traffic;
mod window;
pub mod wire;

use std::time::Duration;

pub(crate) use long::{BurstOptions, StressOptions, burst, stress};
pub(crate) use plan::{Options, measure};
pub(crate) use server::{Options as ServerOptions, serve};

/// Time without a byte after which a peer has stopped.
const PATIENCE: Duration = Duration::from_secs(5);
