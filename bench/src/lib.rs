//! The command `toroid-bench`: benchmarks of communication domains.
//!
//! A measuring command (`compare`, `domains`, `ether`, `fabric`, `hosts`, `kv`, `link`, `micro`,
//! `programs`) is a list of measurements. From the bottom up:
//!
//! * [`worker`]: a process in a node that carries out orders; the measured operations.
//! * [`cluster`]: a private agent, its nodes, and the workers in them; [`roles`]: the roles of this
//!   program. [`veth`], [`relay`] and [`pair`] connect nodes without a domain.
//! * [`samples`], [`stats`], [`runner`]: the samples of a round; their statistics; turns between
//!   measurements.
//! * [`compare`], [`domains`], [`ether`], [`fabric`], [`hosts`], [`kv`], [`micro`], [`programs`]:
//!   the commands.
//! * [`tethered`]: another program that ends with the run; [`janitor`]: removes directories after it.
//! * [`noise`]: the noise of a host, and of the network between any two hosts.
//! * [`sim`]: simulated fabrics; [`simulate`]: the command of the same name, and what it is checked
//!   against.
//! * [`comparison`]: the commands `diff` and `ab`, which run a [`program`]; [`page`]: the command
//!   `report`.
//! * [`report`], [`table`], [`target`], [`manifest`], [`results`]: rows, JSON, tables, targets, the
//!   conditions of a run, and saved runs.
//! * [`arguments`]: the command line. [`causes`]: texts of errors.
//!
//! A new measurement needs an operation in its command's plan, a `Job` of `worker` for that
//! operation, and a place in the command's tables.

#![forbid(unsafe_code)]

mod arguments;
mod busy;
mod causes;
pub mod cluster;
mod compare;
mod comparison;
mod directory;
mod domains;
mod ether;
mod fabric;
mod features;
mod hosts;
mod janitor;
mod kv;
mod link;
mod links;
mod machine;
mod manifest;
mod memory;
mod micro;
mod need;
pub mod noise;
mod outside;
mod page;
pub mod pair;
mod plan;
mod program;
mod programs;
mod progress;
pub mod relay;
mod report;
mod results;
pub mod roles;
mod runner;
mod samples;
pub mod sim;
mod simulate;
pub mod stats;
mod sweep;
mod table;
mod target;
mod tethered;
mod veth;
pub mod worker;

pub use arguments::main;
pub use simulate::routing::duel::{Duel, against_auto};
