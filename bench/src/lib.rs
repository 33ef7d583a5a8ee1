//! Benchmarks of communication domains.
//!
//! The command `toroid-bench compare` puts the two ways of talking between two nodes side by
//! side, virtual Ethernet and RDMA, with what there is without Toroid beside them; `domains`
//! measures changes of membership, `ether` the Ethernet beside its limits, `fabric` messages and
//! one-sided operations beside libfabric, `kv` the store beside memcached. From the bottom up:
//!
//! * [`pattern`], [`stats`], [`sampler`]: bytes that can be verified, percentiles, and timing.
//! * [`network`], [`one_sided`], [`store`], [`files`], [`memcpy`]: the measurements. Each runs
//!   inside a node, whose side of it is a [`worker`]; [`veth`] is how two nodes get a pair of
//!   the kernel's interfaces to be compared with, [`relay`] how they get the least that a driver
//!   in user space can be; [`pair`] configures both.
//! * [`cluster`]: the nodes, and processes in them; [`roles`] is what this program becomes there.
//! * [`plan`], [`compare`]: what is measured in what order, and doing it; [`progress`], [`memory`];
//!   [`busy`]: a process that spins beside.
//! * [`concurrent`]: the same two paths at once, and what each loses.
//! * [`domains`]: the command on changes of membership; [`ether`]: the one on Ethernet alone, which
//!   sets [`features`] of interfaces; [`fabric`]: the one on what is below both; [`kv`]: the one on
//!   the store beside memcached.
//! * [`rows`], [`report`], [`table`], [`targets`]: what comes out, for programs and people.

#![forbid(unsafe_code)]

pub mod busy;
pub mod cluster;
pub mod compare;
pub mod concurrent;
pub mod domains;
pub mod ether;
pub mod fabric;
pub mod features;
pub mod files;
pub mod kv;
pub mod machine;
pub mod memcpy;
pub mod memory;
pub mod network;
pub mod one_sided;
pub mod pair;
pub mod pattern;
pub mod plan;
pub mod progress;
pub mod relay;
pub mod report;
pub mod roles;
pub mod rows;
pub mod sampler;
pub mod stats;
pub mod store;
pub mod table;
pub mod targets;
pub mod veth;
pub mod worker;
