//! Sockets and the threads that serve them, for servers and proxies alike.
//!
//! One thread accepts (`accept`) and deals connections to the workers (`worker`), each of which has an epoll.
//! A `connection` moves bytes between a socket and a conversation, after authentication (`auth`).

mod accept;
mod auth;
mod connection;
mod ends;
mod listen;
mod worker;

pub use auth::{Users, UsersError};
pub use listen::{Listen, ListenError};

pub(crate) use accept::{TOO_MANY, serve};
pub(crate) use connection::Converse;
pub(crate) use ends::local;
pub(crate) use listen::Listeners;
pub(crate) use worker::SessionFactory;
