//! Tests that span crates, processes and namespaces, and the vocabulary that they are told in.
//!
//! [`conformance`] is the contract of a fabric provider, written once and run on each.
//!
//! [`fuzz`] has every reader of bytes that a stranger may choose, [`forged`] what a node may have its
//! kernel send. [`random`] chooses the same each time, and [`value`] has values that describe themselves.
//! [`variants`] lets tests leave out what the store's protocol relies on.
//!
//! The system tests use the programs of this workspace as people do: [`cluster`] starts agents
//! and runs commands in their nodes, [`process`] runs any command so that none can hang a test,
//! [`software`] starts what others wrote in nodes, [`terminal`] is one at which a test types, [`outside`] is a network that is none of the
//! fabric's, [`hosts`] are several of these on
//! cables, [`user`] makes an ordinary user to be, and [`leftovers`] sees what was left behind.

pub mod actor;
pub mod cluster;
pub mod conformance;
pub mod forged;
pub mod fuzz;
pub mod hosts;
pub mod leftovers;
pub mod outside;
pub mod process;
pub mod random;
pub mod software;
pub mod terminal;
pub mod user;
pub mod value;
pub mod variants;
