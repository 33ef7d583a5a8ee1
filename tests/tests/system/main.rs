//! The whole of it, as its users run it: real programs, namespaces, TAPs and signals.
//!
//! Each module is a chapter of stories. They need root, /dev/net/tun and the Debian packages that
//! `tests/run` installs; where one of these is missing they fail and say so.

mod allocation;
mod bad_input;
mod bind;
mod busy;
mod changes;
mod command_line;
mod compare;
mod comparison;
mod container;
mod declarative;
mod domains;
mod durable;
mod ether;
mod ethernet;
mod events;
mod exec;
mod explain;
mod fabric;
mod failures;
mod flows;
mod gateway;
mod histories;
mod hostile;
mod hosts;
mod hosts_bench;
mod hosts_far;
mod hosts_frames;
mod hosts_keys;
mod hosts_sealed;
mod identity;
mod lifecycle;
mod limits;
mod link_bench;
mod links;
mod links_traffic;
mod machine;
mod micro;
mod noise;
mod offload;
mod one_sided;
mod ownership;
mod programs;
mod proxy;
mod quotas;
mod report;
mod restart;
mod rights;
mod rootless;
mod routing;
mod squatting;
mod stack;
mod store;
mod terminal;
