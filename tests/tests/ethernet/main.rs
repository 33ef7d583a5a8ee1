//! A domain is an Ethernet: stock software, as people install it, runs in nodes and notices
//! nothing.
//!
//! Each story is told once for every [mix](mix::Mix) of members with and without offload, and
//! looks at the end that nothing is left. They need root, /dev/net/tun and the Debian packages
//! that `tests/run` installs; where one of these is missing they fail and say so. Those that take
//! long are for `tests/run --nightly`.

#[macro_use]
mod mix;

mod capture;
mod files;
mod foreign;
mod groups;
mod listeners;
mod nightly;
mod ping;
mod servers;
mod ssh;
mod streams;
mod survival;
