//! Communication domains: who may talk to whom.
//!
//! [`protocol`] is what an agent and its clients say to each other, [`wire`] how it
//! travels.

#![forbid(unsafe_code)]

pub mod protocol;
pub mod wire;
