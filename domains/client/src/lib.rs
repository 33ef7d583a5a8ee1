//! Communication domains for programs.
//!
//! A process in a node attaches to its agent as a [`member`] and uses the fabric under the rules of
//! its domains. [`admin`] is a client of the control socket, as the command `toroid` uses it.
//! [`credentials`] tells the user at the other end of a socket, and [`rdma`] opens RDMA devices.

#![forbid(unsafe_code)]

pub mod admin;
pub mod credentials;
pub mod member;
pub mod rdma;
