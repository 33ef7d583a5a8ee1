//! The model of communication domains, without I/O, threads or sockets.
//!
//! A [`directory`] holds the domains of a torus, their members and the owners of nodes. [`rights`]
//! decides who may change it, [`quota`] how much of it one tenant may have. [`addressing`] computes
//! the addresses of members, [`placement`] and [`allocation`] choose nodes, and [`nodeset`] reads
//! sets of them. [`link`] describes networks to emulate. [`declare`] compares a file with the
//! present domains. [`info`] has the descriptions that an agent sends, and [`explain`] derives from
//! them why two nodes reach each other or not. [`shared_map`] has maps whose versions share entries.

#![forbid(unsafe_code)]

pub mod addressing;
pub mod allocation;
pub mod as_text;
pub mod audit;
pub mod declare;
pub mod directory;
pub mod ethernet;
pub mod explain;
pub mod gateway;
pub mod host_address;
pub mod host_key;
pub mod hosts;
pub mod info;
pub mod limits;
pub mod link;
pub mod names;
pub mod nodeset;
pub mod placement;
pub mod quota;
pub mod rdma;
pub mod refusal;
pub mod rights;
mod settings;
pub mod shared_map;
