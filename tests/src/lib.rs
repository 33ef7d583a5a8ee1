//! Tests that span crates, processes and namespaces, and the vocabulary that they are told in.
//!
//! [`conformance`] is the contract of a fabric provider, written once and run on each.

pub mod conformance;
