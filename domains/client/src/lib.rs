//! Communication domains for programs.
//!
//! A process in a node attaches to its agent as a [`member`] and uses the fabric under the rules of
//! its domains. [`admin`] is a client of the control socket, as the command `toroid` uses it.
//!
//! ```no_run
//! use toroid_client::member::Member;
//! use toroid_fabric::Access;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let member = Member::attach()?;
//! let region = member.domain("blue")?.alloc(4096, Access::all())?;
//! println!("{}", region.remote_key().ok_or("no key")?);
//! # Ok(())
//! # }
//! ```
//!
//! [`credentials`] tells the user at the other end of a socket, and [`rdma`] opens RDMA devices.

#![forbid(unsafe_code)]

pub mod admin;
pub mod credentials;
pub mod member;
mod once;
pub mod rdma;
