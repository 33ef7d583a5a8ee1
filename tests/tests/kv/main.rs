//! The store beside a real memcached, and with clients that were written for one.
//!
//! Needs the Debian packages that `tests/run` installs, and the Python client that it puts beside
//! the built programs; where one of these is missing a story fails and says so.

mod clients;
mod commands;
mod differential;
mod idle;
mod kills;
mod limit;
mod process;
mod servers;
mod statistics;
mod store;
mod views;
mod watch;
