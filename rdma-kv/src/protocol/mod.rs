//! Agreement between clients and servers: bytes in memory and messages, without I/O.
//!
//! * [`layout`]: the index and the items, byte by byte; [`hash`]: of keys.
//! * [`messages`]: requests and replies; [`change`]: changes of a value; [`geometry`]: what a client needs
//!   to read a store.
//! * [`hazards`]: hazard pointers, which keep borrowed values as they are.

pub mod change;
pub mod geometry;
pub mod hash;
pub mod hazards;
pub mod layout;
pub mod messages;
