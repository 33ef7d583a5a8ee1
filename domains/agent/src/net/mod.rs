//! Networks of nodes: the Ethernet driver, and gateways to the outside.

pub(crate) mod driver;
pub(crate) mod gateways;
pub(crate) mod stack_link;
