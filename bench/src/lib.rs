//! The command `toroid-bench`: benchmarks of communication domains.
//!
//! A command (`compare`, `domains`, `ether`, `fabric`, `kv`) is a list of measurements. From the
//! bottom up:
//!
//! * [`worker`]: a process in a node that carries out orders; the operations that are measured.
//! * [`cluster`]: a private agent, its nodes, and the workers in them; [`roles`]: the processes that
//!   this program becomes. [`relay`] and [`pair`] connect nodes without a domain.
//! * [`samples`], [`runner`]: the samples of a round, and measurements in turns, round by round.
//! * [`compare`], [`domains`], [`ether`], [`fabric`], [`kv`]: the commands.
//! * [`report`], [`table`], [`target`], [`results`]: rows, JSON, tables, targets, and kept runs.
//! * [`arguments`]: the command line.
//!
//! A new measurement is an operation in its command's plan and its job, a `Job` of `worker` if no
//! worker can do it yet, and a place in the command's tables.

#![forbid(unsafe_code)]

mod arguments;
mod busy;
pub mod cluster;
mod compare;
mod domains;
mod ether;
mod fabric;
mod features;
mod kv;
mod machine;
mod memory;
pub mod pair;
mod plan;
mod progress;
pub mod relay;
mod report;
mod results;
pub mod roles;
mod runner;
mod samples;
mod table;
mod target;
pub mod worker;

pub use arguments::main;
