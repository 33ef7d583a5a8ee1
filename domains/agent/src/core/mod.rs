//! The host: its nodes, and the changes of membership that concern all of them.

pub(crate) mod admission;
pub(crate) mod allocation;
pub(crate) mod audit;
pub(crate) mod base;
pub(crate) mod changes;
mod concerns;
mod describe;
pub(crate) mod fair_queue;
mod fences;
pub(crate) mod gateways;
pub(crate) mod host;
pub(crate) mod hosts_file;
mod links;
pub(crate) mod look;
mod membership;
pub(crate) mod offers;
pub(crate) mod once;
pub(crate) mod ports;
pub(crate) mod quotas;
mod rates;
mod relocation;
mod routing;
pub(crate) mod ways;
