//! A memcached-compatible store whose gets are one-sided reads.
//!
//! A server keeps all items in memory that clients may read: an index and the items themselves.
//! An RDMA client gets a value by reading it there, without the server's CPU; it sets and deletes
//! by messages. Every memcached client does the same over TCP, from the same store.
//!
//! From the bottom up:
//!
//! * [`layout`]: what lies in the two regions, byte by byte; [`hash`]: of keys.
//! * [`segments`], [`index`], [`store`]: the server's side of them, without I/O; [`shared`] puts a
//!   lock around it.
//! * `free_list`: memory that is reused first; `heavy_hitters`: the keys that are used most; `ghosts`:
//!   keys that were evicted too early.
//! * [`borrows`]: which values clients have borrowed, and so must not change; [`view`]: such a value.
//! * [`operations`]: what each of memcached's commands does to it; `counts`: what is counted of them.
//! * [`text`]: the memcached protocol over it, without I/O; `receive_budget`: memory for values that have not arrived
//!   completely.
//! * [`content`]: keys that are made of their values.
//! * [`reader`]: one-sided gets, with a cache of [locations](location_cache), which [`uses`] tells the server of;
//!   [`messages`]: messages for the rest.
//! * [`network`]: what client and server ask of a domain.
//! * [`client`] and [`server`]; [`proxy`]: gets by reading, for whoever speaks memcached's protocol.

#![forbid(unsafe_code)]

pub mod client;
pub mod network;
mod number;
pub mod protocol;
pub mod proxy;
pub mod server;
pub mod store;
pub mod text;
#[cfg(feature = "unsafe-variants")]
pub mod variants;

#[cfg(test)]
mod testing;

pub use client::{Client, ClientError, Consistency, Value, View, ViewError, content_key};
pub use protocol::messages::PROTOCOL;
