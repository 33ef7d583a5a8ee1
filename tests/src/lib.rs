//! Tests that span crates, processes and namespaces, and their vocabulary.
//!
//! * [`conformance`] is the contract of a fabric provider, written once and run on each.
//! * [`fuzz`] has every reader of untrusted bytes as a function of bytes, and [`forged`] the frames that
//!   the kernel of a node may send.
//! * [`random`] chooses the same for the same seed, and [`value`] has values that describe themselves.
//! * [`linearizability`] checks histories of a store and of members, and [`checks`] has the frame of the programs that
//!   record them.
//!
//! Stories run the programs of this workspace as users do. [`cluster`] starts agents and runs commands
//! in their nodes, [`process`] runs any command with a limit of time, and [`actor`] is the program for
//! which no stock program will do. [`software`] starts stock programs in nodes, and [`terminal`] is a
//! terminal at which a story types. [`outside`] is a network outside of the fabric, [`hosts`] are
//! several hosts on cables, [`etcd`] has servers on the same cables, [`nemesis`] makes faults of both,
//! [`user`] is an ordinary user, and [`leftovers`] finds processes, files and interfaces that a story
//! left behind.

pub mod actor;
pub mod checks;
pub mod cluster;
pub mod conformance;
pub mod etcd;
pub mod forged;
pub mod fuzz;
pub mod hosts;
pub mod leftovers;
pub mod linearizability;
pub mod nemesis;
pub mod outside;
pub mod process;
pub mod random;
pub mod software;
pub mod terminal;
pub mod user;
pub mod value;
mod watchdog;
